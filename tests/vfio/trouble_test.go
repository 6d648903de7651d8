//go:build full

package vfio

import (
	"strings"
	"testing"
)

// trouble comes to the controller $d: it is reset while fio verifies what it writes, and
// pulled out while dd writes.
const trouble = `
trap 'cat /tmp/output-load; grep -h "volume v" /tmp/log/*boot*' EXIT
runsc-fs device bind $d
runsc-fs volume create v --device $d
background load "
	fio --name=load --directory=/data --size=4m --thread --bs=4k --rw=randwrite --direct=1 \
		--ioengine=libaio --iodepth=8 --verify=crc32c --verify_fatal=1 --verify_backlog=64 \
		--time_based --runtime=10 --eta=never
	echo fio ended with \$?
	while dd if=/dev/zero of=/data/f bs=4k count=1 oflag=direct conv=notrunc 2>/tmp/said; do
		echo written
	done
	cat /tmp/said
	echo writing ended
	exec sleep 100000"
sleep 5
echo 1 >/sys/bus/pci/devices/$d/reset
wait_for 300 grep -q written /tmp/output-load
pull $d
wait_for 300 grep -q 'writing ended' /tmp/output-load
runtime exec load true </dev/null >/tmp/exec 2>&1
kill -9 $(sandbox load)
runtime delete --force load
refused "device $d" contain again true
`

// TestTrouble: a controller that is reset by others under load is brought back, and no
// data are lost or changed; one that is pulled out gives EIO, while the container lives on.
func TestTrouble(t *testing.T) {
	spec := containerSpec(t, Controller{HotPlug: true, Namespaces: []Namespace{{SizeBytes: 128 << 20}}})
	spec.Script = "d=" + spec.Address(0) + trouble
	out := run(t, spec)
	for _, want := range []string{"err= 0", "fio ended with 0", "resetting the controller", "error writing '/data/f': Input/output error"} {
		if !strings.Contains(out, want) {
			t.Errorf("the guest did not print %q:\n%s", want, out)
		}
	}
}
