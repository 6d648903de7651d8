package vfio

import (
	"slices"
	"strings"
	"testing"

	"runsc-fs/tests/lab"
)

// runtimeProgram is the runtime under test as a program of the guest.
func runtimeProgram(t *testing.T) map[string]string {
	t.Helper()
	binary, err := lab.Binary()
	must(t, err)
	return map[string]string{"runsc-fs": binary}
}

// deviceCommands moves six controllers between the host and vfio-pci: $a is empty, the
// others have something on them.
const deviceCommands = `
block() { ls /sys/bus/pci/devices/$1/nvme/*/ | sed -n 's/^\(nvme[0-9]*\)\(c[0-9]*\)\?\(n1\)$/\1\3/p'; }
mke2fs -q /dev/$(block $b)
mkdir /tmp/b /tmp/c
mount -t ext4 /dev/$(block $b) /tmp/b
printf 'o\nn\np\n1\n\n\nw\n' | fdisk /dev/$(block $c) >/dev/null
wait_for 10 test -b /dev/$(block $c)p1
mke2fs -q /dev/$(block $c)p1
mount -t ext4 /dev/$(block $c)p1 /tmp/c
mke2fs -q /dev/$(block $d)
mkswap /dev/$(block $e) >/dev/null
swapon /dev/$(block $e)
wanted=$(dd if=/dev/$(block $d) bs=1M 2>/dev/null | sha256sum)

runsc-fs device ls
runsc-fs device ls --json

refused "is mounted on /tmp/b" runsc-fs device bind $b
refused "is mounted on /tmp/b" runsc-fs device bind --force $b
refused "is mounted on /tmp/c" runsc-fs device bind --force $c
refused "is swap" runsc-fs device bind --force $e
refused "--force" runsc-fs device bind $d
umount /tmp/c
refused "partition table" runsc-fs device bind $c
swapoff /dev/$(block $e)
refused "--force" runsc-fs device bind $e
for device in $b $c $d $e; do
	driven $device nvme
done

runsc-fs device bind $a $f
driven $a vfio-pci
driven $f vfio-pci
refused "bound to vfio-pci already" runsc-fs device bind $a
runsc-fs device bind --force $d
driven $d vfio-pci
runsc-fs device ls

echo while open: while a program has the device nobody gives it back
probe $a hold >/tmp/held &
holder=$!
wait_for 10 grep -q device= /tmp/held
refused "in use" runsc-fs device unbind $a
kill $holder
wait $holder || true

runsc-fs device unbind $a $d $f
for device in $a $b $c $d $e $f; do
	driven $device nvme
done
refused "not bound to vfio-pci" runsc-fs device unbind $a
refused "" runsc-fs device bind 0000:00:1f.0
refused "" runsc-fs device bind 0000:77:00.0
refused "" runsc-fs device bind ../../etc
wait_for 10 test -b /dev/$(block $d)
[ "$(dd if=/dev/$(block $d) bs=1M 2>/dev/null | sha256sum)" = "$wanted" ]
umount /tmp/b
runsc-fs device bind --force $b
driven $b vfio-pci
`

// TestDeviceCommands: the host's controllers are listed, a device that is in use or has
// something on it is not taken, and devices come back with what was on them.
func TestDeviceCommands(t *testing.T) {
	t.Run("Plain", func(t *testing.T) { testDeviceCommands(t, Controller{}) })
	t.Run("Multipath", func(t *testing.T) { testDeviceCommands(t, Controller{Multipath: true}) })
}

func testDeviceCommands(t *testing.T, kind Controller) {
	lab.Need(t)
	spec := Spec{Programs: runtimeProgram(t), Controllers: slices.Repeat([]Controller{kind}, 6)}
	spec.Programs["probe"] = program(t, "./tests/vfio/probe", false)
	for n := range spec.Controllers {
		spec.Script += string(rune('a'+n)) + "=" + spec.Address(n) + "\n"
	}
	spec.Script += deviceCommands
	out := run(t, spec)
	table, _, _ := strings.Cut(out, "[\n")
	for n := range spec.Controllers {
		if !strings.Contains(table, spec.Address(n)) || !strings.Contains(out, `"`+Serial(n)+`"`) {
			t.Errorf("controller %s with serial number %s is not listed:\n%s", spec.Address(n), Serial(n), out)
		}
	}
	if n := strings.Count(table, "ready"); n != len(spec.Controllers) {
		t.Errorf("%d of %d controllers are ready for vfio-pci:\n%s", n, len(spec.Controllers), table)
	}
}
