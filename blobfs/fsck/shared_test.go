package fsck

import (
	"bytes"
	"strings"
	"testing"

	"runsc-fs/blobfs/format"
)

const inoClone = 24

// sharing makes /clone share the first three of the four blocks that /file
// begins with, the third one twice, and one that nobody else holds any more.
func sharing(im *image) {
	im.sb.Incompat = format.IncompatReflink
	setInode(inoRoot, func(n *format.Inode) { n.Size++ })(im)
	im.dirent(inoRoot, "clone", inoClone, format.ModeRegular)
	im.inode(inoClone, format.Inode{Mode: format.ModeRegular | 0o600, Nlink: 1, Size: 10 * format.BlockSizeBytes, Blocks: 5})
	im.extent(inoFile, 0, dataStart, 4, format.ExtentShared)
	im.extent(inoClone, 0, dataStart, 3, format.ExtentShared)
	im.extent(inoClone, 3, dataStart+2, 1, format.ExtentShared)
	im.extent(inoClone, 7, dataStart+400, 1, format.ExtentShared)
	im.refcount(dataStart, 2, 2)
	im.refcount(dataStart+2, 1, 3)
}

func (im *image) refcount(a format.Addr, blocks uint32, owners uint64) {
	im.items[format.RefcountKey(a)] = format.RefcountItem{Blocks: blocks, Owners: owners}.Append(nil)
}

func TestSharedBlocks(t *testing.T) {
	im := sample()
	sharing(im)
	for _, opts := range []Options{{}, {WindowGroups: 1}} {
		r := check(t, im.build(3).dev, opts)
		wantClean(t, r)
		if c := r.Counters; c.SharedBlocks != 3 || c.DataBlocks != 19 || c.Items["refcount"] != 2 {
			t.Errorf("counted %+v", c)
		}
	}
	var b bytes.Buffer
	if err := Dump(im.dev, "items", &b); err != nil || !strings.Contains(b.String(), "block 20002 have 3 owners") {
		t.Errorf("dump: %v\n%s", err, b.String())
	}
}

// TestSharedWindows shares blocks on both sides of the border of two windows.
func TestSharedWindows(t *testing.T) {
	im := sample()
	sharing(im)
	setInode(inoClone, func(n *format.Inode) { n.Blocks += 5 })(im)
	im.extent(inoShrinking, 0, 2*format.GroupBlocks-5, 5, format.ExtentShared)
	im.extent(inoClone, 9, 2*format.GroupBlocks-5, 5, format.ExtentShared)
	setInode(inoClone, func(n *format.Inode) { n.Size = 14 * format.BlockSizeBytes })(im)
	im.refcount(2*format.GroupBlocks-5, 5, 2)
	for _, opts := range []Options{{}, {WindowGroups: 1}} {
		r := check(t, im.build(3).dev, opts)
		wantClean(t, r)
		if r.Counters.SharedBlocks != 8 {
			t.Errorf("counted %+v", r.Counters)
		}
	}
	im.refcount(2*format.GroupBlocks-5, 5, 7)
	for _, opts := range []Options{{}, {WindowGroups: 1}} {
		if got := strings.Join(codes(check(t, im.build(3).dev, opts)), " "); got != "refcount-wrong?" {
			t.Errorf("found %q", got)
		}
	}
}

// TestMissingOwners looks at the text for blocks that will be freed too early.
func TestMissingOwners(t *testing.T) {
	im := sample()
	sharing(im)
	im.refcount(dataStart+2, 1, 2)
	r := check(t, im.build(3).dev, Options{})
	if len(r.Findings) != 1 {
		t.Fatalf("found %v", codes(r))
	}
	if f := r.Findings[0]; f.Object != "block 20002" || !strings.Contains(f.Message, "have 3 owners, but 2 are recorded") ||
		!strings.Contains(f.Message, "inode 16 (file blocks 0 to 3), inode 24 (file blocks 0 to 2), inode 24 (file blocks 3 to 3)") {
		t.Errorf("%+v", f)
	}
}

func shared(change func(im *image)) func(im *image) { return both(sharing, change) }

var sharedDamage = []damage{
	{"count missing", shared(remove(format.RefcountKey(dataStart))), nil, "refcount-wrong"},
	{"count too low", shared(func(im *image) { im.refcount(dataStart, 3, 2) }), nil, "refcount-item refcount-wrong?"},
	{"count too high", shared(func(im *image) { im.refcount(dataStart, 2, 9) }), nil, "refcount-wrong?"},
	{"count of one owner", shared(func(im *image) { im.refcount(dataStart+3, 1, 2) }), nil, "refcount-wrong?"},
	{"count of no owner", shared(func(im *image) { im.refcount(dataStart+1000, 1, 2) }), nil, "refcount-wrong?"},
	{"count for fixed blocks", shared(func(im *image) { im.refcount(3, 1, 2) }), nil, "refcount-item refcount-wrong?"},
	{"one", shared(func(im *image) { im.refcount(dataStart, 2, 1) }), nil, "refcount-item refcount-wrong"},
	{"value too short", shared(setItem(format.RefcountKey(dataStart), func(v []byte) []byte { return v[:8] })), nil, "refcount-item refcount-wrong"},
	{"owner that does not know", shared(func(im *image) { im.extent(inoFile, 0, dataStart, 4, 0) }), nil,
		"block-twice block-twice refcount-wrong? refcount-wrong?"},
	{"shared and unwritten", shared(func(im *image) {
		im.extent(inoClone, 3, dataStart+2, 1, format.ExtentShared|format.ExtentUnwritten)
	}), nil, "block-count extent-item refcount-wrong?"},
	{"no feature", shared(func(im *image) { im.sb.Incompat = 0 }), nil, "shared-feature"},
	{"no feature, extents only", func(im *image) { im.extent(inoFile, 0, dataStart, 4, format.ExtentShared) }, nil, "shared-feature"},
}
