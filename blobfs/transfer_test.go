package blobfs

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"runsc-fs/nvme"
)

// callsDevice counts calls of a device, and fails requests that touch bad.
type callsDevice struct {
	nvme.BlockDevice
	calls, reqs int
	bad         func(*nvme.Request) bool
}

var errBadBlock = errors.New("bad block")

func (d *callsDevice) Do(reqs []nvme.Request) error {
	d.calls++
	d.reqs += len(reqs)
	if d.bad != nil {
		for k := range reqs {
			if d.bad(&reqs[k]) {
				reqs[k].Err = errBadBlock
				return errBadBlock
			}
		}
	}
	return d.BlockDevice.Do(reqs)
}

// transferEnv is a volume with a file of n random blocks that are on the device,
// in an order that is not that of the file, and not in the cache.
func transferEnv(t *testing.T, blocks int) (*env, *callsDevice, *Inode) {
	e := newEnv(t, 64<<20)
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular|0o644)
	other := e.create(root, "other", ModeRegular|0o644)
	for _, k := range rand.New(rand.NewPCG(1, 2)).Perm(blocks) {
		e.write(f, int64(k)*BlockSizeBytes, pattern(byte(k), BlockSizeBytes), IODirect)
		e.write(other, int64(k)*BlockSizeBytes, pattern(1, BlockSizeBytes), IODirect)
	}
	other.DecRef()
	f.DecRef()
	root.DecRef()
	e.must(e.fs.Close())
	d := &callsDevice{BlockDevice: e.dev}
	e.dev = d
	e.mount()
	root = e.fs.Root()
	f = e.lookup(root, "f")
	root.DecRef()
	t.Cleanup(f.DecRef)
	return e, d, f
}

// TestTransferIsOneCall pins that a batch goes to the device at once, and
// allocates nothing.
func TestTransferIsOneCall(t *testing.T) {
	const n = 32
	e, d, f := transferEnv(t, n)
	e.read(f, 0, n*BlockSizeBytes, IODirect) // metadata is in memory now
	ts := make([]Transfer, n)
	sinks := make([]memSink, n)
	reads := func() {
		for k := range ts {
			sinks[k].b = sinks[k].b[:0]
			ts[k] = Transfer{Sink: &sinks[k], Off: int64(k) * BlockSizeBytes, N: BlockSizeBytes, Flags: IODirect}
		}
		f.Transfer(ts)
	}
	d.calls, d.reqs = 0, 0
	reads()
	if d.calls != 1 || d.reqs < n/2 {
		t.Errorf("%d reads are %d calls with %d requests, not one with many", n, d.calls, d.reqs)
	}
	for k := range ts {
		if ts[k].Err != nil || !bytes.Equal(sinks[k].b, pattern(byte(k), BlockSizeBytes)) {
			t.Errorf("read %d: %d bytes, %v", k, ts[k].Done, ts[k].Err)
		}
	}
	src := &fillSource{}
	writes := func() {
		for k := range ts {
			ts[k] = Transfer{Source: src, Off: int64(k) * BlockSizeBytes, N: BlockSizeBytes, Flags: IODirect}
		}
		f.Transfer(ts)
	}
	d.calls, d.reqs = 0, 0
	writes()
	if d.calls != 1 || d.reqs < n/2 {
		t.Errorf("%d writes are %d calls with %d requests, not one with many", n, d.calls, d.reqs)
	}
	for k := range ts {
		if ts[k].Err != nil || ts[k].Done != BlockSizeBytes {
			t.Errorf("write %d: %d bytes, %v", k, ts[k].Done, ts[k].Err)
		}
	}
	if invariants {
		return // the checks allocate
	}
	if got := testing.AllocsPerRun(100, func() { reads(); writes() }); got > 0 {
		t.Errorf("%v allocations in two batches", got)
	}
}

// TestTransferFailsAlone makes one block bad: only what touches it fails.
func TestTransferFailsAlone(t *testing.T) {
	const n = 16
	e, d, f := transferEnv(t, n)
	e.read(f, 0, n*BlockSizeBytes, IODirect)
	m, err := f.mapBlock(5, 1)
	e.must(err)
	bad := m.addr.OffsetBytes()
	d.bad = func(r *nvme.Request) bool {
		return r.OffsetBytes <= bad && bad < r.OffsetBytes+max(r.LengthBytes, BlockSizeBytes)
	}
	for _, write := range []bool{false, true} {
		ts := make([]Transfer, n)
		for k := range ts {
			ts[k] = Transfer{Off: int64(k) * BlockSizeBytes, N: BlockSizeBytes, Flags: IODirect}
			if write {
				ts[k].Source = &fillSource{}
			} else {
				ts[k].Sink = &memSink{}
			}
		}
		f.Transfer(ts)
		for k := range ts {
			if want := k == 5; (ts[k].Err != nil) != want || (ts[k].Done == 0) != want {
				t.Errorf("write %v: transfer %d: %d bytes, %v", write, k, ts[k].Done, ts[k].Err)
			}
		}
	}
	d.bad = nil
}

// TestTransferAgainstModel compares random batches with what single calls do:
// of all sizes, within the file and beyond, over cached pages, holes and each other's
// neighbours.
func TestTransferAgainstModel(t *testing.T) {
	e := newEnv(t, 64<<20)
	root := e.fs.Root()
	defer root.DecRef()
	f := e.create(root, "f", ModeRegular|0o644)
	defer f.DecRef()
	rng := rand.New(rand.NewPCG(3, 4))
	var model []byte
	const slots, slot = 24, 4 * BlockSizeBytes
	for round := range 400 {
		// Requests of one batch do not overlap: their order is open.
		ts := make([]Transfer, 0, slots)
		sinks := make([]memSink, slots)
		data := make([][]byte, slots)
		want := make([]byte, len(model))
		copy(want, model)
		before := model
		for _, k := range rng.Perm(slots)[:1+rng.IntN(slots)] {
			off := int64(k)*slot + rng.Int64N(4)*BlockSizeBytes
			n := 1 + rng.Int64N(int64(k+1)*slot-off)
			flags := IOFlags(0)
			if rng.IntN(4) > 0 {
				flags = IODirect
				n = (n + BlockSizeBytes - 1) / BlockSizeBytes * BlockSizeBytes
			}
			if rng.IntN(8) == 0 {
				flags |= IODSync
			}
			tr := Transfer{Off: off, N: n, Flags: flags}
			if rng.IntN(2) == 0 {
				data[k] = pattern(byte(round+k), int(n))
				tr.Source = &bytesSource{data[k]}
				if need := int(off + n); need > len(want) {
					want = append(want, make([]byte, need-len(want))...)
				}
				copy(want[off:], data[k])
			} else {
				tr.Sink = &sinks[k]
			}
			ts = append(ts, tr)
		}
		f.Transfer(ts)
		for _, tr := range ts {
			k := tr.Off / slot
			if tr.Err != nil {
				t.Fatalf("round %d: %+v", round, tr)
			}
			if tr.Source != nil {
				if tr.Done != tr.N {
					t.Fatalf("round %d: wrote %d of %d", round, tr.Done, tr.N)
				}
				continue
			}
			// A read may see the file longer, as a write of the batch has made it.
			got := sinks[k].b
			exact := make([]byte, len(got))
			if tr.Off < int64(len(before)) {
				copy(exact, before[tr.Off:])
			}
			least := min(max(int64(len(before))-tr.Off, 0), tr.N)
			if int64(len(got)) < least || int64(len(got)) != tr.Done || !bytes.Equal(got, exact) {
				t.Fatalf("round %d: read of %d at %d gave %d bytes, at least %d are there, or they are wrong", round, tr.N, tr.Off, len(got), least)
			}
		}
		model = want
		switch rng.IntN(12) {
		case 0:
			e.must(f.Fsync(nil, true))
			f.dropAllPages()
		case 1:
			e.must(f.Fsync(nil, true))
		case 2:
			size := rng.Int64N(slots * slot)
			e.must(f.Truncate(size))
			if size <= int64(len(model)) {
				model = model[:size:size]
			} else {
				model = append(model, make([]byte, size-int64(len(model)))...)
			}
		}
	}
	e.expect(f, 0, model, 0)
}
