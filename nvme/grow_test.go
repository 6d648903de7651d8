package nvme_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"runsc-fs/nvme"
	"runsc-fs/nvme/nvmetest"
	"runsc-fs/nvme/soft"
	"runsc-fs/nvme/spec"
)

// TestNamespaceGrows: a namespace that has been given more space offers it after
// the event, or at once if it is asked; one that has shrunk stays as it was.
func TestNamespaceGrows(t *testing.T) {
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arena.Close() })
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	resize := func(sizeBytes int64) {
		t.Helper()
		if err := f.Truncate(sizeBytes); err != nil {
			t.Fatal(err)
		}
	}
	resize(1 << 20)
	backing, err := soft.NewFileBacking(f, false)
	if err != nil {
		t.Fatal(err)
	}
	s, err := soft.New(arena, []soft.Backing{backing}, soft.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var events nvmetest.EventLog
	ns, err := nvme.OpenNamespace(s, 1, nvme.Options{EventInterval: -1, OnEvent: events.Add})
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	mem, err := arena.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	beyond := []nvme.Request{{Op: nvme.OpWrite, OffsetBytes: 2<<20 - 4096, Vec: [][]byte{mem}}}
	if err := ns.Do(beyond); !errors.Is(err, nvme.ErrInvalidRequest) {
		t.Errorf("writing behind the end: %v", err)
	}
	if err := s.Grow(1, 2<<20); err == nil {
		t.Error("the controller grew beyond the file")
	}
	resize(2 << 20)
	if err := s.Grow(1, 2<<20); err != nil {
		t.Fatal(err)
	}
	if e := events.Wait(t, ns.Controller(), spec.EventTypeNotice, spec.NoticeNamespace); len(e.Namespaces) != 1 || e.Namespaces[0] != 1 {
		t.Errorf("event %+v", e)
	}
	if got := ns.Geometry().SizeBytes(); got != 2<<20 {
		t.Errorf("%d bytes after the event", got)
	}
	if err := ns.Do(beyond); err != nil {
		t.Error(err)
	}
	resize(3 << 20)
	if err := errors.Join(s.Grow(1, 3<<20), ns.Refresh()); err != nil {
		t.Fatal(err)
	}
	if got := ns.Geometry().SizeBytes(); got != 3<<20 {
		t.Errorf("%d bytes after asking", got)
	}
	if err := errors.Join(s.Grow(1, 1<<20), ns.Refresh()); err != nil || ns.Geometry().SizeBytes() != 3<<20 {
		t.Errorf("it shrank: %v", err)
	}
	if err := s.Grow(2, 4<<20); err == nil {
		t.Error("a namespace grew that does not exist")
	}
}
