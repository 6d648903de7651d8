package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

const sectorBytes = 512

// sector is the content of one logical block.
type sector = [sectorBytes]byte

// testDevice is a namespace in memory that knows what a power cut may do to
// it: what was flushed stays, of the rest any part may be there.
type testDevice struct {
	geometry nvme.Geometry
	arena    *nvme.Arena

	// Faults; set while nothing is in progress.
	dropFlush func() bool                 // a flush is acknowledged and not done
	dropFUA   bool                        // FUA is ignored
	fail      func(r *nvme.Request) error // error instead of the request
	hook      func()                      // called after each write and flush
	before    func(r *nvme.Request)       // called before each request

	mu      sync.Mutex
	sectors []*sector         // content as read; nil: zero
	durable map[int64]*sector // content that survives, of sectors that differ
	writes  int
	flushes int
}

func newTestDevice(t testing.TB, sizeBytes int64, volatileCache bool) *testDevice {
	t.Helper()
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arena.Close() })
	return &testDevice{
		geometry: nvme.Geometry{
			LBASizeBytes: sectorBytes, Blocks: sizeBytes / sectorBytes, MaxTransferBytes: 1 << 20,
			AtomicWriteBytes: sectorBytes, VolatileWriteCache: volatileCache, WriteZeroes: true, Deallocate: true,
		},
		arena: arena, sectors: make([]*sector, sizeBytes/sectorBytes), durable: make(map[int64]*sector),
	}
}

func (d *testDevice) Geometry() nvme.Geometry { return d.geometry }
func (d *testDevice) Arena() *nvme.Arena      { return d.arena }
func (d *testDevice) Close() error            { return nil }

func (d *testDevice) Do(reqs []nvme.Request) error {
	var first error
	for i := range reqs {
		r := &reqs[i]
		r.Err = d.one(r)
		if r.Err != nil && first == nil {
			first = r.Err
		}
		if d.hook != nil && r.Op != nvme.OpRead {
			d.hook()
		}
	}
	return first
}

func (d *testDevice) one(r *nvme.Request) error {
	if d.before != nil {
		d.before(r)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		if err := d.fail(r); err != nil {
			return err
		}
	}
	if r.OffsetBytes%sectorBytes != 0 || r.OffsetBytes < 0 {
		return fmt.Errorf("test device: bad offset %d", r.OffsetBytes)
	}
	switch r.Op {
	case nvme.OpRead, nvme.OpWrite:
		at := r.OffsetBytes / sectorBytes
		for _, v := range r.Vec {
			if _, ok := d.arena.Offset(v); !ok || len(v)%sectorBytes != 0 {
				return errors.New("test device: buffer outside the arena")
			}
			for ; len(v) > 0; v, at = v[sectorBytes:], at+1 {
				if at >= d.geometry.Blocks {
					return errors.New("test device: beyond the end")
				}
				if r.Op == nvme.OpRead {
					d.readSector(at, v)
				} else {
					d.writeSector(at, (*sector)(v), r.FUA)
				}
			}
		}
		if r.Op == nvme.OpWrite {
			d.writes++
		}
	case nvme.OpWriteZeroes, nvme.OpDeallocate:
		for at := r.OffsetBytes / sectorBytes; at < (r.OffsetBytes+r.LengthBytes)/sectorBytes; at++ {
			if d.sectors[at] != nil {
				d.writeSector(at, new(sector), r.FUA)
			}
		}
		d.writes++
	case nvme.OpFlush:
		d.flushes++
		if d.dropFlush == nil || !d.dropFlush() {
			clear(d.durable)
		}
	}
	return nil
}

func (d *testDevice) readSector(at int64, dst []byte) {
	if s := d.sectors[at]; s != nil {
		copy(dst, s[:])
	} else {
		clear(dst[:sectorBytes])
	}
}

// writeSector replaces a sector, remembering what survives if it is not flushed.
func (d *testDevice) writeSector(at int64, src *sector, fua bool) {
	old := d.sectors[at]
	if old == nil {
		old = new(sector)
	}
	c := *src
	d.sectors[at] = &c
	if fua && !d.dropFUA || !d.geometry.VolatileWriteCache {
		delete(d.durable, at)
	} else if d.durable[at] == nil {
		d.durable[at] = old
	}
}

// crash returns a device with what a power cut now may leave: each sector that
// was not flushed is there or not, as rnd says. Sectors are the device's
// atomic unit, so this tears and reorders writes as well.
func (d *testDevice) crash(t testing.TB, rnd *rand.Rand) *testDevice {
	c := d.clone(t)
	d.mu.Lock()
	defer d.mu.Unlock()
	at := make([]int64, 0, len(d.durable))
	for a := range d.durable {
		at = append(at, a)
	}
	slices.Sort(at) // the same seed gives the same image
	// Whole samples of "nothing survives" and "all survives" are the
	// commonest real outcomes; the rest is a coin for each sector.
	share := []float64{0, 1, 0.1, 0.5, 0.9}[rnd.IntN(5)]
	for _, a := range at {
		if rnd.Float64() >= share {
			c.sectors[a] = d.durable[a]
		}
	}
	return c
}

// clone returns a device with the same content, all of it durable. It shares
// the arena and the sectors, which are never changed in place.
func (d *testDevice) clone(t testing.TB) *testDevice {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := &testDevice{geometry: d.geometry, arena: d.arena, durable: make(map[int64]*sector)}
	c.sectors = slices.Clone(d.sectors)
	return c
}

func (d *testDevice) block(a format.Addr) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := make([]byte, format.BlockSizeBytes)
	for i := range format.BlockSizeBytes / sectorBytes {
		d.readSector(a.OffsetBytes()/sectorBytes+int64(i), b[i*sectorBytes:])
	}
	return b
}

func (d *testDevice) setBlock(a format.Addr, b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range format.BlockSizeBytes / sectorBytes {
		c := sector(b[i*sectorBytes:])
		d.sectors[a.OffsetBytes()/sectorBytes+int64(i)] = &c
	}
}

var testUUID = format.UUID{1, 2, 3, 4, 5, 6, 0x47, 8, 0x89, 10, 11, 12, 13, 14, 15, 16}

func testNow() time.Time { return time.Unix(1_700_000_000, 123456789) }

func formatTest(t testing.TB, dev nvme.BlockDevice) {
	t.Helper()
	err := Format(dev, FormatOptions{Label: "test", UUID: testUUID, HashSeed: [16]byte{7}, Now: testNow})
	if err != nil {
		t.Fatal(err)
	}
}

func openTest(t testing.TB, dev nvme.BlockDevice, opts Options) *Store {
	t.Helper()
	opts.Now = testNow
	opts.Logf = t.Logf
	s, err := Open(dev, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() }) // nothing may go on behind the arena's end
	return s
}

func closeTest(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func verifyTest(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Verify(); err != nil {
		t.Fatal(err)
	}
}
