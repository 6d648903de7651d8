package sentry

import (
	"math"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/blobfs"
	"runsc-fs/nvme/trace"
	"runsc-fs/sentry/rw"
	"runsc-fs/sentry/volumestats"
)

var (
	_ rw.Batcher    = (*regularFD)(nil)
	_ rw.DataSyncer = (*regularFD)(nil)
)

// SyncData implements rw.DataSyncer.
func (fd *regularFD) SyncData(context.Context) error { return fd.sync(true /* dataOnly */) }

// Batch implements rw.Batcher. Direct requests go to the volume together; those
// through the page cache have nothing to gain from that.
func (fd *regularFD) Batch(ctx context.Context, reqs []rw.Request) {
	if fd.vfsfd.StatusFlags()&linux.O_DIRECT == 0 {
		for k := range reqs {
			fd.single(ctx, &reqs[k])
		}
		return
	}
	ts := blobfs.GetTransfers()
	defer ts.Put()
	for k := range reqs {
		fd.addTransfer(ctx, ts, &reqs[k])
	}
	was := trace.Enter(trace.FS)
	call := fd.stats.BeginBatch(len(ts.List))
	fd.inode.blob.Transfer(ts.List)
	trace.Leave(was)
	for k := range ts.List {
		t := &ts.List[k]
		op := volumestats.Read
		if t.Source != nil {
			op = volumestats.Write
		}
		call.Count(op, t.Done, failed(t.Err))
	}
	next := 0
	for k := range reqs {
		r := &reqs[k]
		if r.Err != errJoined {
			continue
		}
		t := &ts.List[next]
		next++
		if r.Write {
			plan := writePlan{flags: t.Flags}
			r.Done, r.Err = plan.result(t.Done, t.Err)
			putUserMemory(t.Source.(*userMemory))
		} else {
			r.Done, r.Err = readResult(t.Done, t.Err)
			putUserMemory(t.Sink.(*userMemory))
		}
	}
}

// errJoined marks requests that have become transfers.
var errJoined = linuxerr.EINPROGRESS

// addTransfer makes r a transfer, unless it must be carried out by itself: then
// it is.
func (fd *regularFD) addTransfer(ctx context.Context, ts *blobfs.Transfers, r *rw.Request) {
	n := r.Mem.NumBytes()
	t := blobfs.Transfer{Off: r.Off}
	if r.Write {
		p, err := fd.planWrite(ctx, r.Off, n, r.Flags)
		if err != nil || p.n == 0 || p.atEnd {
			fd.single(ctx, r)
			return
		}
		t.Source, t.N, t.Flags = getUserMemory(ctx, r.Mem), p.n, p.flags
	} else {
		flags, err := fd.readFlags(r.Flags)
		if err != nil || n == 0 {
			fd.single(ctx, r)
			return
		}
		t.Sink, t.N, t.Flags = getUserMemory(ctx, r.Mem), min(n, math.MaxInt64-r.Off), flags
	}
	ts.List = append(ts.List, t)
	r.Done, r.Err = 0, errJoined
}

// single carries out r by itself.
func (fd *regularFD) single(ctx context.Context, r *rw.Request) {
	if r.Write {
		_, r.Done, r.Err = fd.write(ctx, r.Mem, r.Off, vfs.WriteOptions{Flags: r.Flags})
	} else {
		r.Done, r.Err = fd.PRead(ctx, r.Mem, r.Off, vfs.ReadOptions{Flags: r.Flags})
	}
}
