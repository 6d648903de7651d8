package main

import (
	stdsyscall "syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	uringPollAdd       = 6
	uringPollRemove    = 7
	uringSendmsg       = 9
	uringRecvmsg       = 10
	uringTimeout       = 11
	uringTimeoutRemove = 12
	uringAccept        = 13
	uringCancel        = 14
	uringLinkTimeout   = 15
	uringConnect       = 16
	uringFilesUpdate   = 20
	uringFadvise       = 24
	uringSend          = 26
	uringRecv          = 27
	uringOpenat2       = 28
	uringSymlinkat     = 38
	uringLinkat        = 39

	sqeFixedFile = 1 << 0
	sqeDrain     = 1 << 1
	sqeLink      = 1 << 2
	sqeHardLink  = 1 << 3
	sqeAsync     = 1 << 4
	sqeSkip      = 1 << 6

	setupIOPoll       = 1 << 0
	setupSQPoll       = 1 << 1
	setupCQSize       = 1 << 3
	setupDisabled     = 1 << 6
	setupSubmitAll    = 1 << 7
	setupCoopTaskrun  = 1 << 8
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13

	enterGetEvents = 1
	enterWakeup    = 2
	enterSQWait    = 4
	enterExtArg    = 8
)

// uringWith is uring with a size and flags.
func (t *T) uringWith(entries int, p uringParams) *uring {
	r := &uring{t: t, p: p}
	fd := must[uintptr](t)(syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), pointer(&r.p)))
	r.fd = t.closing(int(fd))
	r.sq = t.mmapAt(r.fd, 0, int(r.p.sq.array+r.p.sqEntries*4), readWrite, unix.MAP_SHARED)
	r.cq = t.mmapAt(r.fd, 0x8000000, int(r.p.cq.cqes+r.p.cqEntries*16), readWrite, unix.MAP_SHARED)
	r.sqes = t.mmapAt(r.fd, 0x10000000, int(r.p.sqEntries)*64, readWrite, unix.MAP_SHARED)
	return r
}

// put adds submissions to the ring.
func (r *uring) put(reqs ...sqe) {
	tail := word(r.sq, r.p.sq.tail)
	for n, q := range reqs {
		at := (tail.Load() + uint32(n)) & (r.p.sqEntries - 1)
		*(*sqe)(unsafe.Pointer(&r.sqes[at*64])) = q
		word(r.sq, r.p.sq.array+at*4).Store(at)
	}
	tail.Add(uint32(len(reqs)))
}

func (r *uring) enter(submit, wait int, flags uintptr) (int, error) {
	n, err := syscall(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(submit), uintptr(wait), flags, 0, 0)
	return int(n), err
}

// submit submits requests and expects all to be taken.
func (r *uring) submit(reqs ...sqe) {
	r.put(reqs...)
	eq(r.t, "requests taken", must[int](r.t)(r.enter(len(reqs), 0, 0)), len(reqs))
}

// sleeps says whether the poller has gone to sleep, and says so in the ring.
func (r *uring) sleeps() bool {
	const needWakeup = 1
	return word(r.sq, r.p.sq.flags).Load()&needWakeup != 0
}

// wake wakes the poller if it sleeps: on a busy machine its idle time may end
// between the setup of a ring and the first submission.
func (r *uring) wake() {
	if r.sleeps() {
		must[int](r.t)(r.enter(0, 0, enterWakeup))
	}
}

// reap waits for n completions without a system call, and gives them by their data.
func (r *uring) reap(n int) map[uint64]cqe {
	head, tail := word(r.cq, r.p.cq.head), word(r.cq, r.p.cq.tail)
	r.t.that(until(func() bool { return tail.Load()-head.Load() >= uint32(n) }), "%d completions instead of %d", tail.Load()-head.Load(), n)
	all := map[uint64]cqe{}
	for range n {
		c := *(*cqe)(unsafe.Pointer(&r.cq[r.p.cq.cqes+(head.Load()&(r.p.cqEntries-1))*16]))
		all[c.data] = c
		head.Add(1)
	}
	return all
}

// none says that no completion comes in a while.
func (r *uring) none() {
	time.Sleep(20 * time.Millisecond)
	head, tail := word(r.cq, r.p.cq.head).Load(), word(r.cq, r.p.cq.tail).Load()
	r.t.that(head == tail, "%d completions too many", tail-head)
}

func (r *uring) register(op int, arg uintptr, n int) error {
	return errOf(syscall(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), uintptr(op), arg, uintptr(n)))
}

// twoEnds are the descriptors of a new pipe.
func (t *T) twoEnds() (in, out int) {
	p := t.pipe()
	return p.r, p.w
}

func (q sqe) with(data uint64, flags uint8) sqe {
	q.data, q.flags = data, flags
	return q
}

// enterInChild has a child made by fork submit n requests, and gives how many
// were taken.
//
//go:norace
func enterInChild(ring, n uintptr) int {
	pid, _, errno := stdsyscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return -1
	}
	if pid == 0 {
		taken, _, _ := stdsyscall.RawSyscall6(unix.SYS_IO_URING_ENTER, ring, n, 0, 0, 0, 0)
		stdsyscall.RawSyscall(unix.SYS_EXIT_GROUP, taken, 0, 0)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(int(pid), &status, 0, nil); err != nil || !status.Exited() {
		return -1
	}
	return status.ExitStatus()
}
