package soft

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

// lab is a controller with its driver and some memory.
type lab struct {
	*testing.T
	ctrl *Controller
	ns   *nvme.Namespace
	page []byte // transfers
	spy  []byte // another page
	log  *logLines
}

type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, format)
}

func (l *logLines) has(what string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(strings.Join(l.lines, "\n"), what)
}

func newLab(t *testing.T, backing Backing, driver nvme.Options) *lab {
	t.Helper()
	l := &lab{T: t, log: &logLines{}}
	driver.Logf = l.log.logf
	if driver.CommandTimeout == 0 {
		driver.CommandTimeout = 40 * time.Millisecond
	}
	driver.AdminTimeout = 200 * time.Millisecond
	arena := newArena(t)
	ctrl, err := New(arena, []Backing{backing}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := nvme.OpenNamespace(ctrl, 1, driver)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := arena.Alloc(2)
	if err != nil {
		t.Fatal(err)
	}
	l.ctrl, l.ns, l.page, l.spy = ctrl, ns, mem[:4096], mem[4096:]
	t.Cleanup(func() { ns.Close() })
	return l
}

func (l *lab) inject(rules ...Rule) *Rules {
	r := NewRules(rules...)
	l.ctrl.SetInjector(r)
	return r
}

func (l *lab) read() error {
	return l.ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{l.page}}})
}

func (l *lab) write() error {
	return l.ns.Do([]nvme.Request{{Op: nvme.OpWrite, Vec: [][]byte{l.page}}})
}

// alive checks that the device works after whatever happened.
func (l *lab) alive() {
	l.Helper()
	l.ctrl.SetInjector(nil)
	for i := range l.page {
		l.page[i] = byte(i * 3)
	}
	want := bytes.Clone(l.page)
	if err := l.write(); err != nil {
		l.Fatalf("write afterwards: %v", err)
	}
	clear(l.page)
	if err := l.read(); err != nil {
		l.Fatalf("read afterwards: %v", err)
	}
	if !bytes.Equal(l.page, want) {
		l.Fatal("data differs afterwards")
	}
}

func TestStatusWithoutDNRIsTriedAgain(t *testing.T) {
	l := newLab(t, newMem(t, 1<<20), nvme.Options{Retries: 2})
	r := l.inject(Rule{Opcode: spec.CmdRead, Count: 2, Action: Action{Status: spec.NamespaceNotReady}})
	if err := l.read(); err != nil || r.Hits() != 2 {
		t.Errorf("after %d failures: %v", r.Hits(), err)
	}
	r = l.inject(Rule{Opcode: spec.CmdRead, Count: 3, Action: Action{Status: spec.NamespaceNotReady}})
	var status *nvme.StatusError
	if err := l.read(); !errors.As(err, &status) || status.Status() != spec.NamespaceNotReady || r.Hits() != 3 {
		t.Errorf("after %d failures: %v", r.Hits(), err)
	}
	r = l.inject(Rule{Opcode: spec.CmdRead, Action: Action{Status: spec.InternalError | spec.StatusDNR}})
	if err := l.read(); !errors.As(err, &status) || !status.DNR || r.Hits() != 1 {
		t.Errorf("with DNR, tried %d times: %v", r.Hits(), err)
	}
	l.alive()
}

// TestBackingErrorsBecomeStatuses checks the way of an error from the medium to
// the caller, and that other requests of the call are not affected.
func TestBackingErrorsBecomeStatuses(t *testing.T) {
	f := NewFaulty(newMem(t, 1<<20))
	l := newLab(t, f, nvme.Options{})
	for _, c := range []struct {
		op    nvme.Op
		err   error
		class error
		code  spec.Status
	}{
		{nvme.OpRead, unix.EIO, nvme.ErrMedia, spec.UnrecoveredReadError},
		{nvme.OpWrite, unix.EIO, nvme.ErrMedia, spec.WriteFault},
		{nvme.OpWrite, unix.ENOSPC, nvme.ErrNoSpace, spec.CapacityExceeded},
		{nvme.OpWrite, unix.EROFS, nvme.ErrReadOnly, spec.NamespaceWriteProtected},
		{nvme.OpWriteZeroes, unix.EIO, nvme.ErrIO, spec.WriteFault},
		{nvme.OpDeallocate, unix.EIO, nvme.ErrIO, spec.WriteFault},
		{nvme.OpRead, &Error{Status: spec.GuardCheckError}, nvme.ErrMedia, spec.GuardCheckError},
	} {
		fault := Fault{Op: c.op, From: 4096, Until: 8192, Err: c.err}
		f.Set(fault)
		reqs := []nvme.Request{
			{Op: c.op, OffsetBytes: 0, LengthBytes: 4096, Vec: [][]byte{l.spy}},
			{Op: c.op, OffsetBytes: 4096, LengthBytes: 4096, Vec: [][]byte{l.page}},
		}
		if c.op == nvme.OpDeallocate { // ranges in a row share a command
			reqs[0].Op = nvme.OpRead
		}
		err := l.ns.Do(reqs)
		var status *nvme.StatusError
		if !errors.Is(err, c.class) || !errors.Is(err, nvme.ErrIO) || !errors.As(err, &status) || status.Status() != c.code {
			t.Errorf("%v: %v", fault, err)
		}
		if reqs[0].Err != nil || reqs[1].Err != err {
			t.Errorf("%v: errors %v and %v", fault, reqs[0].Err, reqs[1].Err)
		}
		if f.Hits() == 0 {
			t.Errorf("%v was not hit", f)
		}
	}
	f.Set()
	l.alive()
}

func TestTimeoutThenAbort(t *testing.T) {
	l := newLab(t, newMem(t, 1<<20), nvme.Options{})
	l.inject(Rule{Opcode: spec.CmdRead, Count: 1, Action: Action{Hold: true}})
	if err := l.read(); !errors.Is(err, nvme.ErrTimeout) || !errors.Is(err, nvme.ErrIO) {
		t.Errorf("held command: %v", err)
	}
	if l.log.has("resetting") {
		t.Errorf("reset although Abort sufficed: %q", l.log.lines)
	}
	if l.ctrl.Held() != 0 {
		t.Error("command still outstanding")
	}
	l.alive()
}

// TestLateCompletionTouchesNothing holds a read that Abort does not find. When
// Do has given up, the memory belongs to others: letting the command go must
// not write there.
func TestLateCompletionTouchesNothing(t *testing.T) {
	l := newLab(t, newMem(t, 1<<20), nvme.Options{})
	l.inject(Rule{Opcode: spec.CmdRead, Count: 1, Action: Action{Hold: true, NoAbort: true}})
	if err := l.read(); !errors.Is(err, nvme.ErrTimeout) {
		t.Errorf("held command: %v", err)
	}
	if !l.log.has("resetting") {
		t.Error("no reset: the command is still outstanding")
	}
	for i := range l.page {
		l.page[i] = 0xee
	}
	if n := l.ctrl.Release(); n != 0 {
		t.Errorf("%d commands survived the reset", n)
	}
	if !bytes.Equal(l.page, bytes.Repeat([]byte{0xee}, len(l.page))) {
		t.Error("late completion wrote into memory given back")
	}
	l.alive()
}

func TestCompletionJustBeforeTheDeadline(t *testing.T) {
	l := newLab(t, newMem(t, 1<<20), nvme.Options{CommandTimeout: 20 * time.Second})
	l.inject(Rule{Opcode: spec.CmdRead, Count: 1, Action: Action{Hold: true}})
	go func() {
		for l.ctrl.Held() == 0 {
			time.Sleep(time.Millisecond)
		}
		l.ctrl.Release()
	}()
	if err := l.read(); err != nil {
		t.Errorf("command completed by another thread: %v", err)
	}
	l.alive()
}

// TestInnocentCommandsSurviveAReset has one command that never completes among
// many that do; after the reset the others must have been carried out.
func TestInnocentCommandsSurviveAReset(t *testing.T) {
	l := newLab(t, newMem(t, 1<<20), nvme.Options{QueuePairs: 2})
	l.inject(Rule{Opcode: spec.CmdWrite, From: 80, Until: 81, Action: Action{Lose: true}})
	var wg sync.WaitGroup
	var others atomic.Int64
	stop := make(chan struct{})
	for range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := l.ns.Do([]nvme.Request{{Op: nvme.OpFlush}, {Op: nvme.OpRead, Vec: [][]byte{l.spy}}}); err != nil {
					t.Errorf("innocent command: %v", err)
					return
				}
				others.Add(1)
			}
		}()
	}
	reqs := make([]nvme.Request, 40)
	for i := range reqs {
		reqs[i] = nvme.Request{Op: nvme.OpWrite, OffsetBytes: int64(i) * 4096, Vec: [][]byte{l.page}}
	}
	if err := l.ns.Do(reqs); !errors.Is(err, nvme.ErrTimeout) {
		t.Errorf("lost completion: %v", err)
	}
	for i := range reqs {
		if (reqs[i].Err != nil) != (i == 10) {
			t.Errorf("request %d: %v", i, reqs[i].Err)
		}
	}
	close(stop)
	wg.Wait()
	l.alive()
}

func TestControllerFatalIsReset(t *testing.T) {
	l := newLab(t, newMem(t, 1<<20), nvme.Options{})
	l.inject(Rule{Opcode: spec.CmdRead, Count: 1, Action: Action{Fatal: true}})
	if err := l.read(); err != nil {
		t.Errorf("read over a fatal error: %v", err)
	}
	if !l.log.has("resetting") {
		t.Error("no reset")
	}
	l.alive()
	// A controller that fails again and again ends in an error.
	l.inject(Rule{Opcode: spec.CmdRead, Action: Action{Fatal: true}})
	if err := l.read(); !errors.Is(err, nvme.ErrControllerFatal) {
		t.Errorf("read over endless fatal errors: %v", err)
	}
	l.alive()
}

// TestResetThatFails ends in errors for everybody, without DMA afterwards.
func TestResetThatFails(t *testing.T) {
	l := newLab(t, newMem(t, 1<<20), nvme.Options{})
	l.inject(
		Rule{Opcode: spec.CmdRead, Action: Action{Fatal: true}},
		Rule{Opcode: spec.AdminCreateIOCQ, Admin: true, Action: Action{Status: spec.InternalError | spec.StatusDNR}},
	)
	if err := l.read(); !errors.Is(err, nvme.ErrControllerFatal) {
		t.Errorf("read when the reset fails: %v", err)
	}
	l.ctrl.SetInjector(nil)
	if err := l.write(); !errors.Is(err, nvme.ErrControllerFatal) {
		t.Errorf("write afterwards: %v", err)
	}
	if v := l.ctrl.Read32(spec.RegCC); v&spec.CCEN != 0 {
		t.Errorf("controller still enabled: CC %#x", v)
	}
	if err := l.ns.Close(); !errors.Is(err, nvme.ErrControllerFatal) {
		t.Errorf("closing: %v", err)
	}
}

// TestAdminTimeouts lets admin commands get lost.
func TestAdminTimeouts(t *testing.T) {
	l := newLab(t, newMem(t, 1<<20), nvme.Options{})
	before := l.ns.Arena().FreePages()
	l.inject(Rule{Opcode: spec.AdminGetLogPage, Admin: true, Count: 1, Action: Action{Hold: true}})
	if _, err := l.ns.Controller().LogPage(spec.LogSMART, 512); !errors.Is(err, nvme.ErrTimeout) {
		t.Errorf("lost log page: %v", err)
	}
	if l.ctrl.Held() != 0 {
		t.Error("the page was given back while the controller had the command")
	}
	if n := l.ns.Arena().FreePages(); n != before {
		t.Errorf("%d pages leaked", before-n)
	}
	l.alive()
	// Lost Aborts lead to a reset as well. What answers nothing has forgotten its commands,
	// which have another try, but no third one.
	for held, want := range map[int]error{1: nil, 2: nvme.ErrTimeout} {
		l.inject(
			Rule{Opcode: spec.CmdRead, Count: held, Action: Action{Hold: true}},
			Rule{Opcode: spec.AdminAbort, Admin: true, Action: Action{Lose: true}},
		)
		if err := l.read(); !errors.Is(err, want) {
			t.Errorf("read that is lost %d times, and so is its Abort: %v", held, err)
		}
		l.ctrl.SetInjector(nil)
		l.alive()
	}
}

// TestSlowCommandIsNoTimeout: what takes time inside the doorbell is complete
// when the driver looks.
func TestSlowCommandIsNoTimeout(t *testing.T) {
	l := newLab(t, newMem(t, 1<<20), nvme.Options{CommandTimeout: time.Millisecond})
	l.inject(Rule{Opcode: spec.CmdRead, Count: 1, Action: Action{Delay: 20 * time.Millisecond}})
	if err := l.read(); err != nil {
		t.Errorf("slow read: %v", err)
	}
}

func TestOpenFailures(t *testing.T) {
	for _, rule := range []Rule{
		{Opcode: spec.AdminIdentify, Admin: true, Action: Action{Status: spec.InternalError | spec.StatusDNR}},
		{Opcode: spec.AdminIdentify, Admin: true, Action: Action{Hold: true, NoAbort: true}},
		{Opcode: spec.AdminIdentify, Admin: true, Skip: 1, Action: Action{Lose: true}},
		{Opcode: spec.AdminSetFeatures, Admin: true, Action: Action{Fatal: true}},
		{Opcode: spec.AdminCreateIOCQ, Admin: true, Skip: 3, Action: Action{Lose: true}},
		{Opcode: spec.AdminCreateIOSQ, Admin: true, Action: Action{Status: spec.InvalidQueueSize}},
	} {
		arena := newArena(t)
		before := arena.FreePages()
		dev, err := Open(newMem(t, 1<<20), arena, Options{
			Injector: NewRules(rule),
			Driver:   nvme.Options{AdminTimeout: 20 * time.Millisecond},
		})
		if err == nil {
			dev.Close()
			t.Errorf("%v: opened", rule)
		} else if !errors.Is(err, nvme.ErrIO) {
			t.Errorf("%v: %v", rule, err)
		}
		if n := arena.FreePages(); n != before {
			t.Errorf("%v: %d pages leaked", rule, before-n)
		}
	}
}
