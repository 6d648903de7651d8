package nvmetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

// testController covers what lies beyond one namespace: several namespaces, log
// pages, shutdown.
func testController(t *testing.T, open OpenTransport) {
	cfg := Config{SizeBytes: 4 << 20, Namespaces: 3}
	tr := open(t, cfg)
	c, err := nvme.Open(tr, cfg.Driver)
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	defer func() {
		if !closed {
			c.Close()
		}
	}()
	info := c.Info()
	if info.Model == "" || info.Serial == "" || info.Namespaces == 0 {
		t.Errorf("empty identification: %+v", info)
	}
	if c.QueuePairs() < 1 {
		t.Errorf("%d queue pairs", c.QueuePairs())
	}
	ids, err := c.ActiveNamespaces()
	if err != nil || len(ids) == 0 {
		t.Fatalf("active namespaces: %v, %v", ids, err)
	}
	if _, err := c.Namespace(0); !errors.Is(err, nvme.ErrNoNamespace) {
		t.Errorf("namespace 0: %v", err)
	}
	if _, err := c.Namespace(info.Namespaces + 1); !errors.Is(err, nvme.ErrNoNamespace) {
		t.Errorf("namespace beyond the last: %v", err)
	}
	if _, err := c.Namespace(spec.NSIDAll); !errors.Is(err, nvme.ErrNoNamespace) {
		t.Errorf("broadcast namespace: %v", err)
	}

	// Each namespace keeps its own data.
	page, err := tr.Arena().Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Arena().Free(page)
	var all []*nvme.Namespace
	for _, id := range ids {
		ns, err := c.Namespace(id)
		if err != nil {
			t.Fatal(err)
		}
		if ns.ID() != id || ns.Controller() != c {
			t.Errorf("namespace %d is %d of another controller", id, ns.ID())
		}
		all = append(all, ns)
		for i := range page {
			page[i] = byte(id)
		}
		if err := ns.Do([]nvme.Request{{Op: nvme.OpWrite, Vec: [][]byte{page}}}); err != nil {
			t.Fatal(err)
		}
	}
	for i, ns := range all {
		if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(page, bytes.Repeat([]byte{byte(ids[i])}, len(page))) {
			t.Errorf("namespace %d has the data of %d", ids[i], page[0])
		}
	}

	// A closed namespace refuses; the others go on.
	if err := all[0].Close(); err != nil {
		t.Error(err)
	}
	if err := all[0].Do([]nvme.Request{{Op: nvme.OpFlush}}); !errors.Is(err, nvme.ErrClosed) {
		t.Errorf("closed namespace: %v", err)
	}
	if len(all) > 1 {
		if err := all[1].Do([]nvme.Request{{Op: nvme.OpFlush}}); err != nil {
			t.Errorf("namespace beside a closed one: %v", err)
		}
	}

	smart, err := c.LogPage(spec.LogSMART, 512)
	if err != nil {
		t.Fatal(err)
	}
	if n := binary.LittleEndian.Uint64(smart[80:]); n < uint64(len(ids)) {
		t.Errorf("SMART log counts %d writes, there were %d", n, len(ids))
	}
	var status *nvme.StatusError
	if _, err := c.LogPage(0xfe, 512); !errors.As(err, &status) || !errors.Is(err, nvme.ErrIO) {
		t.Errorf("log page that does not exist: %v", err)
	}
	if _, err := c.LogPage(spec.LogSMART, 3); !errors.Is(err, nvme.ErrInvalidRequest) {
		t.Errorf("3 bytes of a log page: %v", err)
	}

	closed = true
	if err := c.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if _, err := c.LogPage(spec.LogSMART, 512); !errors.Is(err, nvme.ErrClosed) {
		t.Errorf("log page of a closed controller: %v", err)
	}
	if err := all[len(all)-1].Do([]nvme.Request{{Op: nvme.OpFlush}}); !errors.Is(err, nvme.ErrClosed) {
		t.Errorf("namespace of a closed controller: %v", err)
	}
}
