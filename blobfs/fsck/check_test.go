package fsck

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"runsc-fs/blobfs/format"
)

func TestSampleIsClean(t *testing.T) {
	for _, perLeaf := range []int{1, 3, 1000} {
		r := check(t, sample().build(perLeaf).dev, Options{})
		wantClean(t, r)
		c := r.Counters
		if c.Inodes != 9 || c.Directories != 3 || c.Files != 3 || c.Symlinks != 1 || c.Special != 2 || c.Entries != 8 || c.Xattrs != 3 || c.Orphans != 2 {
			t.Errorf("counted %+v", c)
		}
		if c.DataBlocks != 18 || c.Extents != 5 || c.UsedBlocks+c.FreeBlocks != r.VolumeBlocks || c.LeakedBlocks != 0 {
			t.Errorf("counted %+v", c)
		}
		if r.Label != "test" || r.Generation != imageGen || r.Closed || r.Version != format.Version {
			t.Errorf("report %+v", r)
		}
	}
}

// TestWindows checks a volume group by group.
func TestWindows(t *testing.T) {
	im := sample()
	im.used = []format.Run{{Start: 2*format.GroupBlocks + 100, Blocks: 2}}
	dev := im.build(3).dev
	one := check(t, dev, Options{})
	each := check(t, dev, Options{WindowGroups: 1})
	for _, r := range []*Report{one, each} {
		if got := strings.Join(codes(r), " "); got != "block-leaked?" || r.Counters.LeakedBlocks != 2 {
			t.Errorf("found %s, %d blocks leaked", got, r.Counters.LeakedBlocks)
		}
	}
	if one.Counters.UsedBlocks != each.Counters.UsedBlocks || one.Counters.FreeBlocks != each.Counters.FreeBlocks {
		t.Errorf("counted %+v and %+v", one.Counters, each.Counters)
	}
}

// TestManyNodes checks a tree of three levels.
func TestManyNodes(t *testing.T) {
	im := newImage()
	const files = 3000
	im.sb.NextObject = 100 + files
	im.inode(inoRoot, format.Inode{Mode: format.ModeDir | 0o755, Nlink: 2, Size: files, Parent: inoRoot})
	for i := range files {
		im.inode(uint64(100+i), format.Inode{Mode: format.ModeRegular, Nlink: 1})
		im.dirent(inoRoot, fileName(i), uint64(100+i), format.ModeRegular)
	}
	im.build(20)
	r := check(t, im.dev, Options{})
	wantClean(t, r)
	if r.Counters.TreeLevels != 3 || r.Counters.Nodes != im.sb.Nodes {
		t.Errorf("%d levels, %d nodes; built %d", r.Counters.TreeLevels, r.Counters.Nodes, im.sb.Nodes)
	}

	// With one inner node gone, only what is certain is reported.
	inner := im.levels[1][1]
	im.dev.block(inner.addr)[100] ^= 1
	r = check(t, im.dev, Options{})
	if got := strings.Join(codes(r), " "); got != "(incomplete) node-corrupt" || r.Complete {
		t.Errorf("found %s", got)
	}
}

// TestLog replays what the log can do, and finds the result clean.
func TestLog(t *testing.T) {
	im := sample().build(3)
	b := make([]byte, format.InodeBytes)
	encode := func(n format.Inode) []byte {
		n.Encode(b)
		return bytes.Clone(b)
	}
	const inoNew = 1005
	dirent, direntValue := direntItem(inoRoot, "new", inoNew, format.ModeRegular)
	gone, _ := direntItem(inoRoot, "fifo", 0, format.ModeFIFO)
	ext, extValue := extentItem(inoNew, 0, dataStart+500, 3, 0)
	deleted, _ := extentItem(inoDeleted, 0, 0, 0, 0)
	orphan, _ := orphanItem(inoDeleted, 0)
	root := format.Inode{Mode: format.ModeDir | 0o755, Nlink: 3, Size: 6, Parent: inoRoot}
	im.record(
		newTx().put(inodeKey(inoNew), encode(format.Inode{Mode: format.ModeRegular, Nlink: 1})).put(dirent, direntValue).
			del(gone).del(inodeKey(inoFIFO)).put(inodeKey(inoRoot), encode(root)),
		newTx().claim(dataStart+500, 3).put(ext, extValue).
			put(inodeKey(inoNew), encode(format.Inode{Mode: format.ModeRegular, Nlink: 1, Size: 9000, Blocks: 3})),
	)
	// Freed blocks get a new owner, in a later record.
	im.record(newTx().release(dataStart+300, 1).del(deleted).del(orphan).del(inodeKey(inoDeleted)))
	ext2, ext2Value := extentItem(inoNew, 3, dataStart+300, 1, 0)
	im.record(newTx().claim(dataStart+300, 1).put(ext2, ext2Value).
		put(inodeKey(inoNew), encode(format.Inode{Mode: format.ModeRegular, Nlink: 1, Size: 13000, Blocks: 4})))
	for _, opts := range []Options{{}, {WindowGroups: 1}} {
		r := check(t, im.dev, opts)
		wantClean(t, r)
		c := r.Counters
		if c.LogRecords != 3 || c.LogTransactions != 4 || c.LogOperations != 15 || c.Inodes != 8 || c.Entries != 8 || c.DataBlocks != 21 {
			t.Errorf("counted %+v", c)
		}
	}
	// The end of the log is torn: the state is that before the last record.
	last := im.sb.LogStart + format.Addr(im.log) - 1
	im.dev.block(last)[200] ^= 1
	r := check(t, im.dev, Options{})
	wantClean(t, r)
	if r.Counters.LogRecords != 2 || r.Counters.DataBlocks != 20 {
		t.Errorf("counted %+v", r.Counters)
	}
}

// TestLogWraps has records at the end of the region and a gap, transactions
// that the tree contains already, and one record that fills all of its blocks.
func TestLogWraps(t *testing.T) {
	im := sample()
	im.sb.LogPos = im.sb.LogBlocks - 3
	im.log = im.sb.LogPos
	im.sb.LSN = 91 // the first transaction of the log is in the tree
	im.build(3)
	im.record(newTx().claim(dataStart+700, 1), newTx().del(inodeKey(777)).put(inodeKey(777), nil).del(inodeKey(777))) // 91 and 92
	k, v := direntItem(inoSub, strings.Repeat("n", 200), inoFile, format.ModeRegular)
	big := newTx()
	for range 40 {
		big.put(k, v).del(k)
	}
	im.record(big) // two blocks needed, two left
	im.record(newTx().put(k, v).del(k))
	r := check(t, im.dev, Options{})
	if got := strings.Join(codes(r), " "); got != "log-delete" {
		t.Errorf("found %s", got)
	}
	if r.Counters.LogRecords != 3 || r.Counters.LogTransactions != 3 {
		t.Errorf("counted %+v", r.Counters)
	}
}

func TestNotAVolume(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func(im *image)
		want   error
	}{
		"empty device": {func(im *image) { clear(im.dev.data) }, format.ErrNotBlobfs},
		"other version": {func(im *image) {
			for slot := range format.SuperblockSlots {
				im.patch(format.SuperblockAddr(slot), 40, 2)
			}
		}, format.ErrVersion},
		"feature": {func(im *image) { im.patch(format.SuperblockAddr(2), 64+7, 1) }, format.ErrFeature},
	} {
		im := sample().build(5)
		tc.damage(im)
		if _, err := Check(im.dev, Options{}); !errors.Is(err, tc.want) {
			t.Errorf("%s: error %v, not %v", name, err, tc.want)
		}
		if err := Dump(im.dev, "tree", &bytes.Buffer{}); !errors.Is(err, tc.want) {
			t.Errorf("%s: dump: error %v, not %v", name, err, tc.want)
		}
	}
}

func TestReport(t *testing.T) {
	im := sample()
	im.inode(inoFile, func() format.Inode { n := sampleFile(); n.Nlink = 5; return n }())
	im.used = []format.Run{{Start: dataStart + 900, Blocks: 2}}
	r := check(t, im.build(5).dev, Options{})
	var text, js bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`error: inode 16 ("/dir/again"): is a regular file with 2 names, but says 5 [link-count]`,
		"warning: blocks 20900 to 20901: marked in use, but nothing uses them",
		"errors: 1, warnings: 1",
	} {
		if !strings.Contains(text.String(), want) && !strings.Contains(text.String(), strings.Replace(want, "/dir/again", "/file", 1)) {
			t.Errorf("text lacks %q:\n%s", want, text.String())
		}
	}
	if err := r.WriteJSON(&js); err != nil {
		t.Fatal(err)
	}
	var back struct {
		UUID     string
		Clean    bool
		Findings []struct {
			Severity, Code, Object, Path, Message string
			Inode                                 uint64
		}
		Counters map[string]any
	}
	if err := json.Unmarshal(js.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if back.Clean || len(back.Findings) != 2 || back.Findings[0].Severity != "error" || back.Findings[0].Inode != inoFile || back.Counters["inodes"] != 9.0 {
		t.Errorf("JSON is %s", js.String())
	}
}

func TestFindingsAreBounded(t *testing.T) {
	im := sample()
	for i := range 50 {
		im.used = append(im.used, format.Run{Start: dataStart + 900 + format.Addr(2*i), Blocks: 1})
	}
	r := check(t, im.build(5).dev, Options{MaxFindings: 7})
	if len(r.Findings) != 7 || r.Omitted != 43 || r.Warnings != 50 || r.Counters.LeakedBlocks != 50 {
		t.Errorf("%d findings, %d omitted, %d warnings, %d leaked", len(r.Findings), r.Omitted, r.Warnings, r.Counters.LeakedBlocks)
	}
	if _, err := Check(im.dev, Options{MaxFindings: -1}); err == nil {
		t.Error("a negative bound was accepted")
	}
}

func TestDump(t *testing.T) {
	im := sample().build(4)
	k, v := direntItem(inoSub, "x", inoFile, format.ModeRegular)
	im.record(newTx().put(k, v).claim(dataStart+600, 2).release(dataStart+600, 2).del(k))
	for what, want := range map[string]string{
		"superblock": "slot 2 at block 8: generation 7",
		"tree":       "level 0: 4 entries",
		"items":      `"file" -> inode 16, regular file`,
		"log":        "claim blocks 20600 to 20601",
		"inode=16":   `"user.big" = 3000 bytes`,
		"group=1":    "in use: blocks 32272 to 32273",
		"node=534":   "level 0, 4 entries",
		"node=20000": "magic is 0x00000000",
		"group=77":   "the volume has 3 groups",
	} {
		var b bytes.Buffer
		if err := Dump(im.dev, what, &b); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s lacks %q:\n%.2000s", what, want, b.String())
		}
	}
	for _, what := range []string{"", "node", "tree=1", "node=x", "all", "node=-1"} {
		if err := Dump(im.dev, what, &bytes.Buffer{}); !errors.Is(err, ErrDump) {
			t.Errorf("%q: error %v", what, err)
		}
	}
}
