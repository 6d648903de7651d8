package sentry

import (
	"bytes"
	"runtime"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"runsc-fs/sentry/rw"
)

// TestBatch carries out 32 direct reads and 32 direct overwrites of one file: all
// are done when the call returns, no goroutine has been started for them, and
// nothing was allocated.
func TestBatch(t *testing.T) {
	const n, size = 32, 4096
	e := newEnv(t)
	fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR|linux.O_DIRECT)
	bufs := make([][]byte, n)
	// Backwards, so that neighbours in the file are none on the device.
	for k := n - 1; k >= 0; k-- {
		bufs[k] = bytes.Repeat([]byte{byte(k + 1)}, size)
		if _, err := fd.PWrite(e.ctx, usermem.BytesIOSequence(bufs[k]), int64(k)*size, vfs.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	reqs := make([]rw.Request, n)
	do := func(write bool) {
		for k := range reqs {
			reqs[k] = rw.Request{File: fd, Mem: usermem.BytesIOSequence(bufs[k]), Off: int64(k) * size, Write: write}
		}
		rw.Do(e.ctx, reqs)
	}
	for _, write := range []bool{false, true} {
		for k := range bufs {
			if !write {
				clear(bufs[k])
			}
		}
		before := runtime.NumGoroutine()
		do(write)
		if after := runtime.NumGoroutine(); after > before {
			t.Errorf("write %v: %d goroutines more", write, after-before)
		}
		for k := range reqs {
			if reqs[k].Done != size || reqs[k].Err != nil || bufs[k][0] != byte(k+1) || bufs[k][size-1] != byte(k+1) {
				t.Fatalf("write %v: request %d: %d bytes, %v, %d", write, k, reqs[k].Done, reqs[k].Err, bufs[k][0])
			}
		}
		// What BytesIOSequence makes is the test's: one for each request.
		if got := testing.AllocsPerRun(50, func() { do(write) }); got > n {
			t.Errorf("write %v: %v allocations for %d requests", write, got-n, n)
		}
	}
	// Each has an outcome of its own.
	reqs[3].Off = 100
	reqs[5].Flags = 1 << 30
	rw.Do(e.ctx, reqs)
	for k := range reqs {
		if wrong := k == 3 || k == 5; (reqs[k].Err != nil) != wrong {
			t.Errorf("request %d: %d bytes, %v", k, reqs[k].Done, reqs[k].Err)
		}
	}
}
