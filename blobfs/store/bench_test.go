package store

import (
	"testing"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

func benchStore(b *testing.B, items uint64) *Store {
	dev := newTestDevice(b, 256<<20, true)
	formatTest(b, dev)
	s := openTest(b, dev, Options{})
	value := make([]byte, 100)
	for i := uint64(0); i < items; {
		if _, err := s.Update(func(tx *Tx) error {
			for range 30 {
				if err := tx.Put(format.Key{Object: i % items, Kind: format.KindInode}, value); err != nil {
					return err
				}
				i++
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func BenchmarkGet(b *testing.B) {
	const items = 100_000
	s := benchStore(b, items)
	buf := make([]byte, 0, format.MaxValueBytes)
	b.ReportAllocs()
	i := uint64(0)
	for b.Loop() {
		i = (i*2862933555777941757 + 3037000493)
		if err := s.View(func(r *Reader) error {
			_, ok, err := r.Get(format.Key{Object: i >> 16 % items, Kind: format.KindInode}, buf)
			if !ok {
				b.Fatal("missing")
			}
			return err
		}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreate does what the creation of a file does: an inode, an entry,
// and the directory's inode.
func BenchmarkCreate(b *testing.B) {
	s := benchStore(b, 1000)
	inode, entry := make([]byte, 128), make([]byte, 24)
	b.ReportAllocs()
	i := uint64(1 << 20)
	for b.Loop() {
		i++
		_, err := s.Update(func(tx *Tx) error {
			if err := tx.Put(format.Key{Object: i, Kind: format.KindInode}, inode); err != nil {
				return err
			}
			if err := tx.Put(format.Key{Object: 1, Kind: format.KindDirent, Offset: i * 2862933555777941757}, entry); err != nil {
				return err
			}
			return tx.Put(format.Key{Object: 1, Kind: format.KindInode}, inode)
		})
		if err != nil {
			// Full: begin anew.
			b.StopTimer()
			s = benchStore(b, 1000)
			b.StartTimer()
		}
	}
}

func BenchmarkCommit(b *testing.B) {
	s := benchStore(b, 1000)
	inode := make([]byte, 128)
	b.ReportAllocs()
	for b.Loop() {
		lsn, err := s.Update(func(tx *Tx) error { return tx.Put(format.Key{Object: 1, Kind: format.KindInode}, inode) })
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Commit(lsn); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAllocate(b *testing.B) {
	s := benchStore(b, 1000)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Reserve(1); err != nil {
			b.Fatal(err)
		}
		run, err := s.Allocate(1, 0, true)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Release(run); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadData(b *testing.B) {
	s := benchStore(b, 1000)
	buf, err := s.dev.Arena().Alloc(1)
	if err != nil {
		b.Fatal(err)
	}
	reqs := []nvme.Request{{Op: nvme.OpRead, OffsetBytes: 64 << 20, Vec: [][]byte{buf}}}
	b.ReportAllocs()
	for b.Loop() {
		if err := s.ReadData(reqs); err != nil {
			b.Fatal(err)
		}
	}
}
