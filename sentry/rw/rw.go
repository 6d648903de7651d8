// Package rw is what AIO and io_uring have in common: reads and writes of files
// that are handed over together and come back with results of their own.
//
// Files that can serve several requests at once (Batcher: those of blobfs) get
// them so. All others are asked one after the other, as the system calls for a
// single read or write do it. Nothing here waits: a file that is not ready
// makes a request fail with linuxerr.ErrWouldBlock, and whether and how to wait
// is up to the caller, or to Wait.
//
// The package takes no locks.
package rw

import (
	"time"

	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
	"gvisor.dev/gvisor/pkg/sentry/socket"
	"gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
	"gvisor.dev/gvisor/pkg/waiter"

	"runsc-fs/sentry/volumestats"
)

// CurrentOffset as Request.Off stands for the offset of the file description.
const CurrentOffset = -1

// RWFNoWait is RWF_NOWAIT of preadv2(2), which gVisor has no name for.
const RWFNoWait = 0x08

// Request is one read or write.
type Request struct {
	File  *vfs.FileDescription // the caller holds the reference
	Mem   usermem.IOSequence
	Off   int64  // CurrentOffset, or 0 and more; files without offsets ignore it
	Flags uint32 // RWF_*
	Write bool

	// Done counts bytes; Err is that of vfs.FileDescription.PRead and its like.
	Done int64
	Err  error
}

// Batcher is a file that serves several requests at once.
type Batcher interface {
	// Batch carries out reqs, all of them on this file, in no order. It does for
	// each what PRead or PWrite does; access has been checked.
	Batch(ctx context.Context, reqs []Request)
}

// DataSyncer is a file that tells fdatasync(2) from fsync(2).
type DataSyncer interface {
	SyncData(ctx context.Context) error
}

// Do carries out reqs, in no order.
func Do(ctx context.Context, reqs []Request) {
	for len(reqs) > 0 {
		n := together(reqs)
		if n < 2 {
			n = 1
			traced := volumestats.BeginTrace(reqs[0].File.Impl(), reqs[0].op())
			once(ctx, &reqs[0])
			traced.End()
		} else {
			traced := volumestats.BeginTrace(reqs[0].File.Impl(), volumestats.TracedBatch)
			batch(ctx, reqs[:n])
			traced.End()
		}
		reqs = reqs[n:]
	}
}

// together counts the requests at the beginning of reqs that their file can
// serve at once.
func together(reqs []Request) int {
	file := reqs[0].File
	if _, ok := file.Impl().(Batcher); !ok {
		return 0
	}
	n := 0
	for n < len(reqs) && reqs[n].File == file && reqs[n].Off >= 0 && reqs[n].allowed() {
		n++
	}
	return n
}

// op is the kind of the request.
func (r *Request) op() volumestats.Op {
	if r.Write {
		return volumestats.Write
	}
	return volumestats.Read
}

// allowed says whether the file is open for that.
func (r *Request) allowed() bool {
	if r.Write {
		return r.File.IsWritable()
	}
	return r.File.IsReadable()
}

// batch does what is around the calls of a FileDescriptionImpl, once for all.
func batch(ctx context.Context, reqs []Request) {
	file := reqs[0].File
	file.Impl().(Batcher).Batch(ctx, reqs)
	events := uint32(0)
	for k := range reqs {
		switch {
		case reqs[k].Done <= 0:
		case reqs[k].Write:
			events |= abi.IN_MODIFY
		default:
			events |= abi.IN_ACCESS
		}
	}
	// Events that are alike and follow each other are one for their readers.
	for _, event := range [2]uint32{abi.IN_ACCESS, abi.IN_MODIFY} {
		if events&event != 0 {
			file.Dentry().InotifyWithParent(ctx, event, 0, vfs.PathEvent)
		}
	}
}

// once carries out one request as far as it goes without waiting.
func once(ctx context.Context, r *Request) {
	if r.Off != CurrentOffset {
		if r.Write {
			r.Done, r.Err = r.File.PWrite(ctx, r.Mem, r.Off, vfs.WriteOptions{Flags: r.Flags})
		} else {
			r.Done, r.Err = r.File.PRead(ctx, r.Mem, r.Off, vfs.ReadOptions{Flags: r.Flags})
		}
		if !linuxerr.Equals(linuxerr.ESPIPE, r.Err) {
			return
		}
		r.Off = CurrentOffset // pipes, sockets and their like have no offsets
	}
	if r.Write {
		r.Done, r.Err = r.File.Write(ctx, r.Mem, vfs.WriteOptions{Flags: r.Flags})
	} else {
		r.Done, r.Err = r.File.Read(ctx, r.Mem, vfs.ReadOptions{Flags: r.Flags})
	}
}

// Again goes on with a request that would have blocked: what has been done
// before stays done.
func (r *Request) Again(ctx context.Context) {
	before := r.Done
	rest := Request{File: r.File, Mem: r.Mem.DropFirst64(before), Off: r.Off, Flags: r.Flags, Write: r.Write}
	if r.Off > 0 {
		rest.Off += before
	}
	once(ctx, &rest)
	r.Done, r.Err = before+rest.Done, rest.Err
}

// Events of a file that let a request go on.
const (
	ReadEvents  = waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr | waiter.EventRdHUp
	WriteEvents = waiter.WritableEvents | waiter.EventHUp | waiter.EventErr
)

// Events are those that let r go on.
func (r *Request) Events() waiter.EventMask {
	if r.Write {
		return WriteEvents
	}
	return ReadEvents
}

// WouldBlock says that r has to wait for its file, and that the file and the
// request allow it to.
func (r *Request) WouldBlock() bool {
	return linuxerr.Equals(linuxerr.ErrWouldBlock, r.Err) && r.Flags&RWFNoWait == 0 &&
		r.File.StatusFlags()&abi.O_NONBLOCK == 0
}

// Wait waits for the file of a request that would block and goes on with it
// until it is through. It ends early with linuxerr.ErrInterrupted.
func (r *Request) Wait(t *kernel.Task) {
	deadline, bounded := ktime.Time{}, false
	if s, ok := r.File.Impl().(socket.Socket); ok {
		limit := s.RecvTimeout()
		if r.Write {
			limit = s.SendTimeout()
		}
		if limit < 0 {
			return
		}
		if limit > 0 {
			deadline, bounded = t.Kernel().MonotonicClock().Now().Add(time.Duration(limit)), true
		}
	}
	w, ch := waiter.NewChannelEntry(r.Events())
	if err := r.File.EventRegister(&w); err != nil {
		r.Err = err
		return
	}
	defer r.File.EventUnregister(&w)
	for {
		r.Again(t)
		if !linuxerr.Equals(linuxerr.ErrWouldBlock, r.Err) {
			return
		}
		if err := t.BlockWithDeadline(ch, bounded, deadline); err != nil {
			if !linuxerr.Equals(linuxerr.ETIMEDOUT, err) {
				r.Err = err
			}
			return
		}
	}
}

// Result is what the request has come to: bytes, or an errno below zero. It
// sends SIGXFSZ for a write beyond the limit of the process.
func (r *Request) Result(ctx context.Context) int64 {
	if r.Err == nil {
		return r.Done
	}
	if err := linux.HandleIOError(ctx, r.Done != 0, r.Err, linuxerr.EINTR, "asynchronous", r.File); err != nil {
		return Errno(err)
	}
	return r.Done
}

// Sync is fsync(2), or fdatasync(2) if dataOnly.
func Sync(ctx context.Context, file *vfs.FileDescription, dataOnly bool) error {
	traced := volumestats.BeginTrace(file.Impl(), volumestats.Sync)
	defer traced.End()
	if s, ok := file.Impl().(DataSyncer); ok && dataOnly {
		return s.SyncData(ctx)
	}
	return file.Sync(ctx)
}

// restartErrnos is where the numbers begin that only the kernel knows, which mean
// that an interrupted call may be restarted. A request may not.
const restartErrnos = 512

// Errno is an error as the result of a request: below zero, or 0 for nil.
func Errno(err error) int64 {
	n := kernel.ExtractErrno(err, -1)
	if n >= restartErrnos {
		n = int(linuxerr.EINTR.Errno())
	}
	return -int64(n)
}
