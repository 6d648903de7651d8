package sentry

import (
	goContext "context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// TestShutdownUnderLoad closes the volumes while threads use them in all ways.
// Each call succeeds or gives EIO, none hangs, and all memory comes back.
func TestShutdownUnderLoad(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range uint64(20) {
		shutdownUnderLoad(t, seed, round)
	}
}

func shutdownUnderLoad(t *testing.T, seed, round uint64) {
	const pages = 64
	e := newEnv(t)
	e.mkdir("d")
	e.create("f", strings.Repeat("x", pages*hostarch.PageSize))
	fd := e.mustOpen("f", linux.O_RDWR)
	direct := e.mustOpen("f", linux.O_RDWR|linux.O_DIRECT)
	m := e.mmap(fd, pages)
	calls := []func(rng *rand.Rand, n int) error{
		func(rng *rand.Rand, n int) error {
			_, err := fd.PRead(e.ctx, usermem.BytesIOSequence(make([]byte, 200000)), rng.Int64N(10)*5000, vfs.ReadOptions{})
			return err
		},
		func(rng *rand.Rand, n int) error {
			_, err := direct.PRead(e.ctx, usermem.BytesIOSequence(make([]byte, 8192)), rng.Int64N(pages-2)*4096, vfs.ReadOptions{})
			return err
		},
		func(rng *rand.Rand, n int) error {
			_, err := e.pwrite(fd, rng.Int64N(pages*4000), strings.Repeat("x", 5000), linux.RWF_DSYNC)
			return err
		},
		func(rng *rand.Rand, n int) error {
			_, err := e.pwrite(direct, rng.Int64N(pages)*4096, strings.Repeat("x", 4096), 0)
			return err
		},
		func(*rand.Rand, int) error { return fd.Sync(e.ctx) },
		func(*rand.Rand, int) error { return fd.SyncFS(e.ctx) },
		func(rng *rand.Rand, n int) error {
			mem, done, err := m.fault(rng.IntN(pages), hostarch.ReadWrite)
			if err == nil {
				mem[0] = 'x'
				done()
			}
			if bus, ok := err.(*memmap.BusError); ok {
				err = bus.Err
			}
			return err
		},
		func(rng *rand.Rand, n int) error {
			path := fmt.Sprintf("d/t%d", n)
			f, err := e.open(e.ctx, path, linux.O_CREAT|linux.O_RDWR, 0600)
			if err != nil {
				return err
			}
			defer f.DecRef(e.ctx)
			if _, err := e.pwrite(f, 0, "short-lived", 0); err != nil {
				return err
			}
			if err := e.rename(e.ctx, path, path+"r", 0); err != nil {
				return err
			}
			return e.unlink(e.ctx, path+"r")
		},
	}
	var wg sync.WaitGroup
	var made atomic.Int64
	for n := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(seed, round<<8|uint64(n)))
			for {
				k := rng.IntN(len(calls))
				err := calls[k](rng, n)
				made.Add(1)
				if err == nil {
					continue
				}
				if !linuxerr.Equals(linuxerr.EIO, err) {
					t.Errorf("round %d: call %d: %v", round, k, err)
				}
				return
			}
		}()
	}
	for want := int64(200 + 37*round); made.Load() < want && !t.Failed(); {
		time.Sleep(100 * time.Microsecond)
	}
	ctx, cancel := goContext.WithTimeout(goContext.Background(), 30*time.Second)
	defer cancel()
	if err := Shutdown(ctx); err != nil {
		t.Errorf("round %d: %v", round, err)
	}
	wg.Wait()
	if free, all := volumes.arena.FreePages(), int(volumes.arena.SizeBytes()/hostarch.PageSize); free != all {
		t.Errorf("round %d: %d of %d pages of the arena are free", round, free, all)
	}
}
