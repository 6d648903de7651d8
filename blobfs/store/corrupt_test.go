package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"runsc-fs/blobfs/format"
)

// hostile prepares images for mutation: one of a store that was not closed,
// with a log to replay.
type hostile struct {
	image  *testDevice
	sb     *format.Superblock
	slot   int
	blocks []format.Addr // metadata blocks: superblocks, bitmap, log records, nodes
	kind   map[format.Addr]string
}

func newHostile(t testing.TB) *hostile {
	rig := newCrashRig(t, 11, 8<<20, true)
	rig.dev.hook = nil
	if err := rig.run(300); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := rig.items(rig.rnd, 0, 60); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := rig.s.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
		if err := rig.s.Commit(rig.s.LastLSN()); err != nil {
			t.Fatal(err)
		}
	}
	h := &hostile{image: rig.dev.clone(t), kind: make(map[format.Addr]string)}
	s := openTest(t, h.image, Options{ReadOnly: true})
	defer closeTest(t, s)
	h.sb = s.sb
	h.slot = s.pair
	h.add("superblock", format.SuperblockAddr(s.pair))
	h.add("superblock", format.SuperblockAddr(s.pair+2))
	h.add("bitmap", format.BitmapAddr(0, 0))
	h.add("bitmap", format.BitmapAddr(0, 1))
	for pos := s.sb.LogPos; pos < s.sb.LogPos+8; pos++ {
		addr := s.sb.LogStart + format.Addr(pos)
		if format.ReadHeader(h.image.block(addr)).Magic == format.MagicRecord {
			h.add("log record", addr)
		}
	}
	root := (*format.Node)(h.image.block(s.sb.Root.Addr))
	h.add("root", s.sb.Root.Addr)
	for i := range root.Count() {
		h.add("node", root.Child(i).Addr)
	}
	if len(h.blocks) < 20 || root.Level() == 0 {
		t.Fatalf("image has only %d metadata blocks", len(h.blocks))
	}
	return h
}

func (h *hostile) add(kind string, a format.Addr) {
	h.blocks = append(h.blocks, a)
	h.kind[a] = kind
}

// mutate returns a copy of the image with the changes that data describes, and
// with checksums fixed up, so that the changes get past them.
func (h *hostile) mutate(t testing.TB, data []byte, reseal bool) *testDevice {
	image := h.image.clone(t)
	for ; len(data) >= 5; data = data[5:] {
		a := h.blocks[int(data[0])%len(h.blocks)]
		off := int(binary.LittleEndian.Uint16(data[1:])) % format.BlockSizeBytes
		b := image.block(a)
		switch data[3] % 4 {
		case 0:
			b[off] = data[4]
		case 1:
			b[off] ^= 1 << (data[4] % 8)
		case 2: // a small field near the start, where the structure is
			b[off%160] = data[4]
		case 3:
			copy(b[off:], h.image.block(h.blocks[int(data[4])%len(h.blocks)])[off:])
		}
		image.setBlock(a, b)
		if reseal {
			h.reseal(image, a)
		}
	}
	return image
}

// reseal fixes the checksum of a block and those that refer to it.
func (h *hostile) reseal(image *testDevice, a format.Addr) {
	b := image.block(a)
	if h.kind[a] == "log record" {
		size := min(int(binary.LittleEndian.Uint32(b[48:])), 16*format.BlockSizeBytes)
		if size < format.RecordHeaderBytes {
			return
		}
		rec := b
		for next := a + 1; len(rec) < size; next++ {
			rec = append(rec, image.block(next)...)
		}
		binary.LittleEndian.PutUint32(b[4:], format.Checksum(rec[:size]))
		image.setBlock(a, b)
		return
	}
	crc := format.Seal(b)
	image.setBlock(a, b)
	switch h.kind[a] {
	case "root":
		h.setRootCRC(image, crc)
	case "bitmap":
		h.setBitmapCRC(image, a, crc)
	}
}

func (h *hostile) setRootCRC(image *testDevice, crc uint32) {
	for slot := h.slot; slot < format.SuperblockSlots; slot += 2 {
		b := image.block(format.SuperblockAddr(slot))
		binary.LittleEndian.PutUint32(b[104:], crc)
		format.Seal(b)
		image.setBlock(format.SuperblockAddr(slot), b)
	}
}

// setBitmapCRC changes the item of group 0, in the first leaf.
func (h *hostile) setBitmapCRC(image *testDevice, a format.Addr, crc uint32) {
	root := (*format.Node)(image.block(h.sb.Root.Addr))
	leafAddr := root.Child(0).Addr
	if leafAddr.Block() >= h.sb.VolumeBlocks {
		return // already mutated
	}
	leaf := (*format.Node)(image.block(leafAddr))
	b := image.block(leafAddr)
	i := strings.Index(string(b), string(binary.LittleEndian.AppendUint32([]byte{0, 0, 0}, format.ReadHeader(h.image.block(a)).CRC)))
	if i < 0 {
		return
	}
	copy(leaf[:], b)
	binary.LittleEndian.PutUint32(leaf[i+3:], crc)
	format.Seal(leaf[:])
	image.setBlock(leafAddr, leaf[:])
}

// exercise uses an image in every way. Errors are fine; it must neither panic
// nor take long.
func exercise(t testing.TB, image *testDevice) (opened bool) {
	began := time.Now()
	for _, opts := range []Options{{ReadOnly: true}, {}} {
		opts.NodeCacheBytes, opts.Now = 1<<20, testNow
		s, err := Open(image, opts)
		if err != nil {
			checkOpenError(t, err)
			continue
		}
		opened = true
		walkAll(s)
		_ = s.Verify()
		if !opts.ReadOnly {
			changeAll(s)
		}
		_ = s.Close()
	}
	if d := time.Since(began); d > time.Minute {
		t.Fatalf("took %v", d)
	}
	return opened
}

func checkOpenError(t testing.TB, err error) {
	for _, known := range []error{
		format.ErrCorrupt, format.ErrNotBlobfs, format.ErrVersion, format.ErrFeature, format.ErrReadOnlyFeature, ErrNoSpace, ErrReadOnly,
	} {
		if errors.Is(err, known) {
			return
		}
	}
	t.Fatalf("unclassified error %v", err)
}

func walkAll(s *Store) {
	_ = s.View(func(r *Reader) error {
		return r.Scan(format.Key{}, format.MaxKey, func(k format.Key, v []byte) (bool, error) {
			_, _, err := r.Get(k, nil)
			return true, err
		})
	})
	_ = s.View(func(r *Reader) error {
		_, _, _, err := r.SeekLast(format.Key{}, format.MaxKey, nil)
		return err
	})
}

// changeAll adds items everywhere, frees extents and deletes what is left.
func changeAll(s *Store) {
	for i := range uint64(70) {
		_, _ = s.Update(func(tx *Tx) error {
			return tx.Put(format.Key{Object: i, Kind: format.KindXattr, Offset: i}, make([]byte, 40+i*7))
		})
	}
	if run, err := s.Allocate(20, 0, false); err == nil {
		_, _ = s.Update(func(tx *Tx) error { return tx.Claim(run) })
	}
	var keys []format.Key
	_ = s.View(func(r *Reader) error {
		return r.Scan(format.Key{}, format.MaxKey, func(k format.Key, v []byte) (bool, error) {
			keys = append(keys, k)
			return len(keys) < 2000, nil
		})
	})
	for _, k := range keys {
		_, _ = s.UpdateFreeing(func(tx *Tx) error {
			if k.Kind == format.KindExtent {
				if v, ok, err := tx.Get(k, nil); err == nil && ok {
					if e, err := format.DecodeExtentItem(k, v, s.VolumeBlocks()); err == nil {
						if err := tx.Free(e.Run()); err != nil {
							return err
						}
					}
				}
			}
			return tx.Delete(k)
		})
		if k.Offset%16 == 0 {
			_ = s.Commit(s.LastLSN())
		}
	}
	_ = s.Checkpoint()
	_ = s.Verify()
}

// TestHostileImages mutates each metadata block many times.
func TestHostileImages(t *testing.T) {
	h := newHostile(t)
	rnd := rand.New(rand.NewPCG(3, 3))
	opened, tried := 0, 0
	for i := range h.blocks {
		for range 6 {
			data := make([]byte, 5*(1+rnd.IntN(3)))
			for j := range data {
				data[j] = byte(rnd.Uint32())
			}
			data[0] = byte(i)
			tried++
			func() {
				defer func() {
					if p := recover(); p != nil {
						panic(fmt.Sprintf("mutation %x: %v", data, p))
					}
				}()
				if exercise(t, h.mutate(t, data, rnd.IntN(4) > 0)) {
					opened++
				}
			}()
		}
	}
	t.Logf("%d of %d images could be opened", opened, tried)
	if opened < tried/4 {
		t.Errorf("only %d of %d images could be opened: mutations do not get deep", opened, tried)
	}
}

// TestDamageIsNoticed shows that without fixed checksums every damage to a
// block in use is an error or harmless, never other content.
func TestDamageIsNoticed(t *testing.T) {
	h := newHostile(t)
	s := openTest(t, h.image, Options{ReadOnly: true})
	want := model{}
	if err := s.View(func(r *Reader) error {
		return r.Scan(format.Key{Object: 1}, format.MaxKey, func(k format.Key, v []byte) (bool, error) { want[k] = string(v); return true, nil })
	}); err != nil {
		t.Fatal(err)
	}
	closeTest(t, s)
	rnd := rand.New(rand.NewPCG(4, 4))
	for _, a := range h.blocks {
		for range 4 {
			image := h.image.clone(t)
			b := image.block(a)
			b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
			image.setBlock(a, b)
			s, err := Open(image, Options{ReadOnly: true, Now: testNow})
			if err != nil {
				checkOpenError(t, err)
				continue
			}
			err = compareModel(s, want)
			if h.kind[a] == "log record" {
				err = nil // the last record may be torn: then it was not acknowledged
			}
			if err != nil && !errors.Is(err, format.ErrCorrupt) {
				t.Errorf("%s at block %v: %v", h.kind[a], a, err)
			}
			closeTest(t, s)
		}
	}
}

// TestDamagedLog shows that a broken record with others behind it is not taken
// for the end of the log.
func TestDamagedLog(t *testing.T) {
	h := newHostile(t)
	var first format.Addr
	records := 0
	for _, a := range h.blocks {
		if h.kind[a] == "log record" {
			if records++; records == 1 {
				first = a
			}
		}
	}
	if records < 2 {
		t.Fatalf("only %d log records", records)
	}
	b := h.image.block(first)
	b[200] ^= 1
	h.image.setBlock(first, b)
	if _, err := Open(h.image, Options{Now: testNow}); !errors.Is(err, format.ErrCorrupt) || !strings.Contains(err.Error(), "later one exists") {
		t.Errorf("open: %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	h := newHostile(f)
	f.Add([]byte{0, 88, 0, 0, 7})
	f.Add([]byte{5, 64, 0, 1, 3, 6, 70, 0, 2, 255})
	f.Add([]byte{4, 48, 0, 0, 200})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 100 {
			data = data[:100]
		}
		exercise(t, h.mutate(t, data, true))
	})
}
