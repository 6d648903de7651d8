package fsck

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"runsc-fs/blobfs"
	"runsc-fs/blobfs/format"
)

// mutated is the sample volume with a log, changed as data says and with all
// checksums put right, so that a change gets as deep as it can. A mutation is
// four bytes: what is changed, where, and the new value.
func mutated(data []byte) *memDevice {
	perLeaf := 3
	if len(data) > 0 {
		perLeaf = 1 + int(data[0]%8)
		data = data[1:]
	}
	im := sample().build(perLeaf)
	fuzzLog(im)
	root := im.levels[len(im.levels)-1][0]
	for ; len(data) >= 4; data = data[4:] {
		what, off, val := int(data[0]), int(data[1])<<4|int(data[2])>>4, data[3]
		switch {
		case what < 16:
			for slot := 0; slot < format.SuperblockSlots; slot += 2 {
				im.dev.block(format.SuperblockAddr(slot))[off] = val
			}
		case what < 32: // a bitmap, and what its group's item says of it
			im.mutateBitmap(uint64(what%3), off, val)
		case what < 64:
			im.dev.block(im.sb.LogStart + format.Addr(im.sb.LogPos) + format.Addr(what%8))[off] = val
		case what < 128: // a value in a leaf
			n := im.levels[0][what%len(im.levels[0])]
			if count := n.node.Count(); count > 0 {
				if v := n.node.Value(off % count); len(v) > 0 {
					v[int(data[2])%len(v)] = val
				}
			}
		default:
			level := im.levels[what%len(im.levels)]
			level[what%len(level)].node[off] = val
		}
	}
	for _, level := range im.levels {
		for _, n := range level {
			format.Seal(n.node[:])
			copy(im.dev.block(n.addr), n.node[:])
		}
	}
	for slot := 0; slot < format.SuperblockSlots; slot += 2 {
		b := im.dev.block(format.SuperblockAddr(slot))
		copy(b[104:108], root.node[4:8]) // the root's checksum
		format.Seal(b)
	}
	for pos := range format.Addr(8) {
		b := im.dev.block(im.sb.LogStart + format.Addr(im.sb.LogPos) + pos)
		r := format.ReadHeader(b)
		if size := int(b[48]) | int(b[49])<<8; r.Magic == format.MagicRecord && size >= format.RecordHeaderBytes && size <= len(b) {
			format.Seal(b[:size])
		}
	}
	return im.dev
}

// fuzzLog adds records with every kind of operation.
func fuzzLog(im *image) {
	k, v := direntItem(inoSub, "logged", inoFile, format.ModeRegular)
	node := sampleFile()
	node.Nlink = 3
	b := make([]byte, format.InodeBytes)
	node.Encode(b)
	sub := make([]byte, format.InodeBytes)
	(&format.Inode{Mode: format.ModeDir | 0o700, Nlink: 2, Size: 1, Parent: inoDir}).Encode(sub)
	im.record(newTx().put(k, v).put(inodeKey(inoFile), b).put(inodeKey(inoSub), sub))
	e, ev := extentItem(inoFile, 6, dataStart+800, 1, 0)
	node.Blocks++
	node.Encode(b)
	im.record(newTx().claim(dataStart+800, 1).put(e, ev).put(inodeKey(inoFile), b))
	d, _ := extentItem(inoDeleted, 0, 0, 0, 0)
	im.record(newTx().release(dataStart+300, 1).del(d).del(inodeKey(inoDeleted)).del(orphanKey(inoDeleted)))
}

func (im *image) mutateBitmap(g uint64, off int, val byte) {
	n := im.leafOf(format.GroupKey(g))
	i, _ := n.node.Search(format.GroupKey(g))
	item, err := format.DecodeGroupItem(format.GroupKey(g), n.node.Value(i), im.sb.VolumeBlocks)
	if err != nil {
		return
	}
	addr := format.BitmapAddr(g, int(item.Slot))
	im.dev.block(addr)[off] = val
	item.CRC = format.Seal(im.dev.block(addr))
	copy(n.node.Value(i), item.Append(nil))
}

// checkMutated checks a volume every way there is. What the checker calls
// clean, the file system must be able to read.
func checkMutated(t *testing.T, dev *memDevice) {
	opts := Options{MaxFindings: 50}
	r, err := Check(dev, opts)
	opts.WindowGroups = 1
	narrow, err2 := Check(dev, opts)
	if fmt.Sprint(err) != fmt.Sprint(err2) {
		t.Fatalf("error %v, with small windows %v", err, err2)
	}
	for _, what := range []string{"superblock", "tree", "items", "log", "node=533", "group=1", "inode=16"} {
		_ = Dump(dev, what, &bytes.Buffer{}) // must only end
	}
	if err != nil {
		return
	}
	if len(r.Findings) > 50 || r.Errors != narrow.Errors || r.Warnings != narrow.Warnings || r.Notes != narrow.Notes {
		t.Fatalf("%d findings; %d errors, %d warnings, %d notes; with small windows %d, %d, %d",
			len(r.Findings), r.Errors, r.Warnings, r.Notes, narrow.Errors, narrow.Warnings, narrow.Notes)
	}
	if r.Errors == 0 {
		if err := readAll(dev); err != nil {
			t.Fatalf("nothing was found, but the file system says %v", err)
		}
	}
}

// readAll mounts a volume and reads everything in it.
func readAll(dev *memDevice) error {
	fs, err := blobfs.Mount(dev, blobfs.MountOptions{ReadOnly: true, CacheBytes: 1 << 20, CommitInterval: -1})
	if errors.Is(err, format.ErrReadOnlyFeature) {
		return nil
	}
	if err != nil {
		return err
	}
	defer fs.Close()
	root := fs.Root()
	defer root.DecRef()
	return readTree(root, 20)
}

func readTree(dir *blobfs.Inode, depth int) error {
	if depth == 0 {
		return errors.New("directories without end")
	}
	var errs []error
	err := dir.ReadDir(0, func(d blobfs.Dirent) bool {
		i, err := dir.Lookup(d.Name)
		if err != nil {
			errs = append(errs, fmt.Errorf("%q: %w", d.Name, err))
			return true
		}
		defer i.DecRef()
		switch i.Attr().Mode & blobfs.ModeTypeMask {
		case blobfs.ModeDir:
			err = readTree(i, depth-1)
		case blobfs.ModeSymlink:
			_, err = i.Readlink()
		case blobfs.ModeRegular:
			var s bytesSink
			_, err = i.ReadAt(&s, 0, min(i.Size(), 1<<20), 0)
		}
		names, err2 := i.ListXattr()
		for _, name := range names {
			if _, err := i.GetXattr(name); err != nil {
				err2 = err
			}
		}
		errs = append(errs, err, err2)
		return true
	})
	return errors.Join(append(errs, err)...)
}

type bytesSink struct{ b []byte }

func (s *bytesSink) CopyOut(b []byte) (int, error) { s.b = append(s.b, b...); return len(b), nil }

// FuzzCheck mutates a volume.
func FuzzCheck(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{2, 0, 8, 0x80, 9})
	f.Add([]byte{2, 100, 0, 3, 1, 200, 10, 0, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 401 {
			return
		}
		checkMutated(t, mutated(data))
	})
}

// TestMutations is a short FuzzCheck that needs no fuzzing.
func TestMutations(t *testing.T) {
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, 1))
	for n := range 200 {
		data := make([]byte, 1+4*(1+rnd.IntN(3)))
		for i := range data {
			data[i] = byte(rnd.Uint32())
		}
		if !t.Run(fmt.Sprintf("seed%d-%d", seed, n), func(t *testing.T) { checkMutated(t, mutated(data)) }) {
			t.Fatalf("data %#v", data)
		}
	}
}
