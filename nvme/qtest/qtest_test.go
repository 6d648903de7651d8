package qtest

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"runsc-fs/nvme"
)

// requireEnv says, when set, that QEMU has to be there.
const requireEnv = "RUNSC_FS_REQUIRE_QEMU"

func TestMain(m *testing.M) {
	if err := Available(); err != nil {
		if os.Getenv(requireEnv) != "" {
			fmt.Fprintf(os.Stderr, "%v (%s is set)\n", err, requireEnv)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// needQEMU skips a test where QEMU is not installed.
func needQEMU(t testing.TB) {
	t.Helper()
	if err := Available(); err != nil {
		t.Skipf("NOT TESTED: %v. Install it (apt-get install %s); with %s=1 this is a failure.", err, packageName, requireEnv)
	}
}

// start starts a machine that ends with the test.
func start(t testing.TB, opts Options) *Machine {
	t.Helper()
	needQEMU(t)
	opts.Dir = t.TempDir()
	m, err := Start(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("closing the machine: %v", err)
		}
		if err := m.Arena().Close(); err != nil {
			t.Errorf("closing its memory: %v", err)
		}
	})
	return m
}

func TestFirstIO(t *testing.T) {
	m := start(t, Options{})
	ns, err := nvme.OpenNamespace(m, 1, nvme.Options{QueuePairs: 4, Logf: t.Logf})
	if err != nil {
		t.Fatal(err, m.Err())
	}
	defer ns.Close()
	t.Logf("%+v\n%+v", ns.Controller().Info(), ns.Geometry())
	mem, err := m.Arena().Alloc(2)
	if err != nil {
		t.Fatal(err)
	}
	for i := range mem {
		mem[i] = byte(i >> 4)
	}
	want := bytes.Clone(mem)
	if err := ns.Do([]nvme.Request{{Op: nvme.OpWrite, OffsetBytes: 1024, Vec: [][]byte{mem}}}); err != nil {
		t.Fatal(err)
	}
	clear(mem)
	if err := ns.Do([]nvme.Request{{Op: nvme.OpFlush}, {Op: nvme.OpRead, OffsetBytes: 1024, Vec: [][]byte{mem}}}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mem, want) {
		t.Error("data differs")
	}
}
