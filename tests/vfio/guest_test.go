package vfio

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// TestProbe shows that the guest has what the other tests rely on: an IOMMU, NVMe
// controllers that the kernel's driver knows and that vfio-pci takes over.
func TestProbe(t *testing.T) {
	lab.Need(t)
	spec := Spec{
		Programs: map[string]string{"probe": program(t, "./tests/vfio/probe", false)},
		Controllers: []Controller{
			{},
			{Namespaces: []Namespace{{SizeBytes: 16 << 20}, {SizeBytes: 32 << 20, LBASizeBytes: 4096}}},
			{HotPlug: true},
			{HotPlug: true},
		},
	}
	var script strings.Builder
	for n := range spec.Controllers {
		address := spec.Address(n)
		script.WriteString("d=" + address + `
echo $d driver $(driver_of $d) serial $(cat /sys/bus/pci/devices/$d/nvme/nvme*/serial) group $(group_of $d)
for ns in /sys/bus/pci/devices/$d/nvme/nvme*/nvme*n*; do
	echo $d sectors $(cat $ns/size) block $(cat $ns/queue/logical_block_size)
done
vfio_bind $d
probe $d
`)
	}
	spec.Script = script.String()
	out := run(t, spec)
	for _, want := range []string{
		"0000:00:03.0 driver nvme serial rig0001 group ",
		"0000:00:03.0 sectors 131072 block 512",
		"device=0000:00:03.0 vendor=1b36 class=010802 regions=9 interrupts=5 bar0=16384 mqes=2047 version=1.4",
		"0000:00:04.0 sectors 32768 block 512",
		"0000:00:04.0 sectors 65536 block 4096",
		"device=0000:00:04.0 vendor=1b36",
		"0000:01:00.0 driver nvme serial rig0003 group ",
		"device=0000:01:00.0 vendor=1b36",
		"0000:02:00.0 driver nvme serial rig0004 group ",
		"device=0000:02:00.0 vendor=1b36",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the guest did not print %q:\n%s", want, out)
		}
	}
}

// TestStatus: a script's output and exit status come back unchanged, and lines reach it.
func TestStatus(t *testing.T) {
	g := boot(t, Spec{Script: `echo ready; read -r line; printf 'got <%s>' "$line"; exit 7`})
	must(t, g.WaitOutput("ready"))
	must(t, g.Send(`two  words \ and $one`))
	result, err := g.Wait()
	must(t, err)
	if want := "ready\ngot <two  words \\ and $one>"; result.Output != want || result.Status != 7 {
		t.Errorf("status %d and output %q, want 7 and %q", result.Status, result.Output, want)
	}
}

// TestGuestDies: a panic of the guest is no success, and a script that hangs ends.
func TestGuestDies(t *testing.T) {
	g := boot(t, Spec{Script: "echo c >/proc/sysrq-trigger"})
	if result, err := g.Wait(); !errors.Is(err, ErrGuestDied) || !strings.Contains(g.KernelLog(), "Kernel panic") {
		t.Errorf("the guest panicked: %+v, %v", result, err)
	}
	g = boot(t, Spec{Script: "echo waiting; read -r line", Timeout: 10 * time.Second})
	if err := g.WaitOutput("never said"); err == nil {
		t.Error("the guest is said to have printed what it did not")
	}
	if _, err := g.Wait(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the script never ended: %v", err)
	}
}

// TestBadSpec: what no guest can have is refused before anything is started.
func TestBadSpec(t *testing.T) {
	for name, spec := range map[string]Spec{
		"no script":            {},
		"too many controllers": {Script: "true", Controllers: make([]Controller, maxControllers+1)},
		"program":              {Script: "true", Programs: map[string]string{"a b": "/bin/true"}},
	} {
		if g, err := Boot(context.Background(), t.TempDir(), spec); err == nil {
			g.Close()
			t.Errorf("%s: no error", name)
		}
	}
}
