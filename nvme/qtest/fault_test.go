package qtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"runsc-fs/nvme"
	"runsc-fs/nvme/nvmetest"
	"runsc-fs/nvme/spec"
)

// logLines collects what the driver says.
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

// open opens namespace 1 and takes memory.
func open(t *testing.T, m *Machine, opts nvme.Options) (*nvme.Namespace, []byte) {
	t.Helper()
	ns, err := nvme.OpenNamespace(m, 1, opts)
	if err != nil {
		t.Fatal(err, m.Err())
	}
	mem, err := m.Arena().Alloc(16)
	if err != nil {
		t.Fatal(err)
	}
	return ns, mem
}

func TestMediaErrors(t *testing.T) {
	for _, c := range []struct {
		iotype string
		op     nvme.Op
		status spec.Status
	}{
		{"read", nvme.OpRead, spec.UnrecoveredReadError},
		{"write", nvme.OpWrite, spec.WriteFault},
	} {
		t.Run(c.iotype, func(t *testing.T) {
			m := start(t, Options{Namespaces: []Namespace{{Fault: []string{"iotype=" + c.iotype, "errno=5", "sector=64"}}}})
			ns, mem := open(t, m, nvme.Options{})
			defer ns.Close()
			reqs := make([]nvme.Request, 16)
			for i := range reqs {
				reqs[i] = nvme.Request{Op: c.op, OffsetBytes: int64(i) * 4096, Vec: [][]byte{mem[i*4096:][:4096]}}
			}
			err := ns.Do(reqs)
			var status *nvme.StatusError
			if !errors.As(err, &status) || status.Status() != c.status || status.SLBA != 64 || !errors.Is(err, nvme.ErrMedia) {
				t.Errorf("%v", err)
			}
			for i := range reqs {
				if (reqs[i].Err != nil) != (i == 8) {
					t.Errorf("request %d: %v", i, reqs[i].Err)
				}
			}
		})
	}
}

// TestNoSpace: the host's disk is full.
func TestNoSpace(t *testing.T) {
	m := start(t, Options{Namespaces: []Namespace{{Fault: []string{"iotype=write", "errno=28"}}}})
	ns, mem := open(t, m, nvme.Options{})
	defer ns.Close()
	if err := ns.Do([]nvme.Request{{Op: nvme.OpWrite, Vec: [][]byte{mem}}}); !errors.Is(err, nvme.ErrIO) {
		t.Errorf("%v", err)
	}
	if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{mem}}}); err != nil {
		t.Errorf("reading from a full disk: %v", err)
	}
}

// TestSlowDisk has commands that take longer than they may. This controller
// aborts nothing, so each one costs a reset; afterwards it works.
func TestSlowDisk(t *testing.T) {
	m := start(t, Options{Namespaces: []Namespace{{Drive: "throttling.iops-write=1"}}})
	var log logLines
	ns, mem := open(t, m, nvme.Options{CommandTimeout: 200 * time.Millisecond, Logf: log.logf})
	defer ns.Close()
	reqs := make([]nvme.Request, 4)
	for i := range reqs {
		reqs[i] = nvme.Request{Op: nvme.OpWrite, OffsetBytes: int64(i) * 4096, Vec: [][]byte{mem[i*4096:][:4096]}}
	}
	if err := ns.Do(reqs); !errors.Is(err, nvme.ErrTimeout) {
		t.Errorf("writing to a slow disk: %v", err)
	}
	if !log.has("aborting") || !log.has("resetting") {
		t.Errorf("log: %q", log.lines)
	}
	var err error
	for range 20 { // the machine may be slow, too
		if err = ns.Do([]nvme.Request{{Op: nvme.OpRead, OffsetBytes: 1 << 20, Vec: [][]byte{mem}}}); err == nil {
			break
		}
	}
	if err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if !bytes.Equal(mem, make([]byte, len(mem))) {
		t.Error("what was never written does not read as zeroes")
	}
}

// TestPulledOut ends QEMU under load.
func TestPulledOut(t *testing.T) {
	m := start(t, Options{})
	ns, mem := open(t, m, nvme.Options{CommandTimeout: 2 * time.Second, AdminTimeout: 2 * time.Second})
	var wg sync.WaitGroup
	begun := make(chan struct{})
	for g := range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; ; i++ {
				if g == 0 && i == 20 {
					close(begun)
				}
				err := ns.Do([]nvme.Request{{Op: nvme.OpWrite, Vec: [][]byte{mem[g*4096:][:4096]}}})
				if err == nil {
					continue
				}
				if !errors.Is(err, nvme.ErrRemoved) {
					t.Errorf("caller %d: %v", g, err)
				}
				return
			}
		}()
	}
	<-begun
	m.Kill()
	wg.Wait()
	if err := ns.Close(); !errors.Is(err, nvme.ErrRemoved) {
		t.Errorf("closing: %v", err)
	}
}

// TestFatal takes the controller's access to memory away: it fails, and the
// reset cannot succeed. (With doorbells in memory it would notice nothing.)
func TestFatal(t *testing.T) {
	m := start(t, Options{})
	ns, mem := open(t, m, nvme.Options{CommandTimeout: 10 * time.Second, AdminTimeout: time.Second, Avoid: nvme.FeatureDoorbellBuffer})
	m.StopDMA()
	if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{mem}}}); !errors.Is(err, nvme.ErrControllerFatal) {
		t.Errorf("%v", err)
	}
	if err := ns.Close(); !errors.Is(err, nvme.ErrControllerFatal) {
		t.Errorf("closing: %v", err)
	}
}

// TestDoorbellsInMemory: QEMU takes the buffers, and commands arrive.
func TestDoorbellsInMemory(t *testing.T) {
	m := start(t, Options{})
	var log logLines
	ns, mem := open(t, m, nvme.Options{QueuePairs: 2, QueueDepth: 8, Logf: log.logf})
	defer ns.Close()
	if ns.Controller().Info().OACS&spec.OACSDoorbellConfig == 0 || log.has("doorbells") {
		t.Fatalf("OACS %#x, log %q", ns.Controller().Info().OACS, log.lines)
	}
	reqs := make([]nvme.Request, 50)
	for range 20 {
		for i := range reqs {
			reqs[i] = nvme.Request{Op: nvme.OpRead, OffsetBytes: int64(i) * 4096, Vec: [][]byte{mem[i%16*4096:][:4096]}}
		}
		if err := ns.Do(reqs); err != nil {
			t.Fatal(err)
		}
	}
}

// attach is Namespace Attachment (Base 2.0, 5.19): the administrator's command.
func attach(t *testing.T, c *nvme.Controller, nsid, sel uint32) {
	t.Helper()
	list := make([]byte, spec.IdentifyBytes)
	binary.LittleEndian.PutUint16(list, 1) // one controller, number 0
	if _, err := c.Admin(spec.SubmissionEntry{CDW0: 0x15, NSID: nsid, CDW10: sel}, list); err != nil {
		t.Fatal(err)
	}
}

// TestNamespaceGoesAway detaches a namespace that is open.
func TestNamespaceGoesAway(t *testing.T) {
	m := start(t, Options{Namespaces: []Namespace{{}, {}}})
	var log nvmetest.EventLog
	ns, mem := open(t, m, nvme.Options{OnEvent: log.Add, EventInterval: -1})
	defer ns.Close()
	c := ns.Controller()
	two, err := c.Namespace(2)
	if err != nil {
		t.Fatal(err)
	}
	attach(t, c, 2, 1)
	e := log.Wait(t, c, spec.EventTypeNotice, spec.NoticeNamespace)
	if len(e.Namespaces) != 1 || e.Namespaces[0] != 2 || e.All {
		t.Errorf("%+v", e)
	}
	read := []nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{mem}}}
	if err := two.Do(read); !errors.Is(err, nvme.ErrNamespaceChanged) || !errors.Is(err, nvme.ErrNoNamespace) {
		t.Errorf("namespace that went away: %v", err)
	}
	if err := ns.Do(read); err != nil {
		t.Errorf("namespace that stayed: %v", err)
	}
	attach(t, c, 2, 0)
	log.Wait(t, c, spec.EventTypeNotice, spec.NoticeNamespace)
	if two, err = c.Namespace(2); err != nil {
		t.Fatal(err)
	}
	if err := two.Do(read); err != nil {
		t.Errorf("namespace opened anew: %v", err)
	}
}

// TestMetadataFormatIsRefused: such a format is not served, but named.
func TestMetadataFormatIsRefused(t *testing.T) {
	m := start(t, Options{Namespaces: []Namespace{{Device: "ms=8"}}})
	if _, err := nvme.OpenNamespace(m, 1, nvme.Options{}); !errors.Is(err, nvme.ErrUnsupported) || !strings.Contains(err.Error(), "8 bytes of metadata") {
		t.Errorf("%v", err)
	}
}
