//go:build full

package vfio

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// containerSpec is a guest that can run containers on the volume "v" at /data, made of
// the root file system of the end-to-end tests.
func containerSpec(t *testing.T, controllers ...Controller) Spec {
	t.Helper()
	lab.Need(t)
	const command = "@COMMAND@"
	config := lab.BundleSpec{RootFS: "/base", Cwd: "/tmp", Args: []string{"sh", "-euc", command}}
	config.Mounts = append(config.Mounts, lab.VolumeMount("v", "/data"))
	text, err := json.Marshal(config.OCI())
	must(t, err)
	head, tail, _ := strings.Cut(string(text), command)
	return Spec{
		Programs:    runtimeProgram(t),
		Files:       map[string][]byte{"config-head": []byte(head), "config-tail": []byte(tail)},
		Base:        true,
		Controllers: controllers,
		Modules:     []string{"overlay"},
		MemoryMiB:   2048,
		Timeout:     12 * time.Minute,
	}
}

// life is a volume's on the controller $d, whose second namespace belongs to nobody.
const life = `
runsc-fs volume create v --memory
background memory "exec sleep 100000"
sleep 6
echo @@ idle ticks $(idle memory 8)
kill -9 $(sandbox memory)
runtime delete --force memory
runsc-fs volume rm v

dd if=/dev/urandom of=/dev/nvme0n2 bs=1M count=8 2>/dev/null
foreign=$(sha256sum </dev/nvme0n2)
refused "not bound to vfio-pci" runsc-fs volume create v --device $d
runsc-fs device bind $d
refused "namespace" runsc-fs volume create v --device $d --namespace 3
refused "--force" runsc-fs volume create v --device $d --namespace 2
runsc-fs volume create v --device $d
refused "" runsc-fs volume create again --device $d

fio="fio --eta=never --directory=/data --size=4m --thread --bs=4k --rw=randwrite --verify=crc32c --verify_fatal=1"
contain write "
	$fio --name=direct --direct=1 --ioengine=libaio --iodepth=8
	$fio --name=cached --ioengine=psync --fsync=64 --do_verify=0"
contain verify "$fio --name=cached --ioengine=psync --verify_only=1"

background idle "exec sleep 100000"
sleep 6
echo @@ idle ticks $(idle idle 8)
echo others are refused
refused "in use by" contain second true
refused "in use by" runsc-fs fsck v
refused "in use by" runsc-fs volume rm v
refused "in use by" runsc-fs device unbind $d
echo the idle container is killed
kill -9 $(sandbox idle)
runtime delete --force idle

background load "
	fio --name=load --directory=/data --size=4m --thread --bs=4k --rw=randwrite --direct=1 \
		--ioengine=psync --time_based --runtime=1000 --status-interval=1 --output-format=terse &
	i=0
	while :; do
		i=\$((i + 1))
		echo \$i >>/data/stamps
		sync /data/stamps
		echo \$i
	done"
echo load runs
wait_for 300 grep -qx 10 /tmp/output-load
wait_for 300 grep -q '^3;' /tmp/output-load
echo load is watched
watch_calls $(sandbox load) 4
echo @@ fio while watched:
grep '^3;.*%$' /tmp/output-load
echo @@ end
wait_for 300 grep -qx 20 /tmp/output-load
kill -9 $(sandbox load)
acknowledged=$(grep -cx '[0-9]*' /tmp/output-load)
runtime delete --force load
runsc-fs fsck v
runsc-fs volume rm v
runsc-fs device unbind $d
wait_for 60 test -b /dev/nvme0n2
[ "$(sha256sum </dev/nvme0n2)" = "$foreign" ]
runsc-fs device bind $d
refused "--force" runsc-fs volume create v --device $d
runsc-fs volume create v --device $d --existing
contain after "test \$(grep -c . /data/stamps) -ge $acknowledged"
`

// maxIdleTicks is how much more an idle sandbox may use with a device than without one, in
// hundredths of a second in 8 s: a twentieth of what polling would use.
const maxIdleTicks = 40

// TestContainer: containers use a volume on a device as they use any other, without
// system calls of the host for data; nobody else gets the device meanwhile; an idle container uses no processor time for it;
// a sandbox that is killed leaves the volume sound, the device free and the other
// namespace as it was.
func TestContainer(t *testing.T) {
	spec := containerSpec(t, Controller{Namespaces: []Namespace{{SizeBytes: 128 << 20}, {SizeBytes: 8 << 20}}})
	spec.Script = "d=" + spec.Address(0) + life
	out := run(t, spec)
	if n := strings.Count(out, "err= 0"); n != 3 {
		t.Errorf("fio reported %d successes, not 3:\n%s", n, out)
	}
	var idle []int
	for _, m := range regexp.MustCompile(`(?m)^@@ idle ticks (\d+)$`).FindAllStringSubmatch(out, -1) {
		ticks, err := strconv.Atoi(m[1])
		must(t, err)
		idle = append(idle, ticks)
	}
	t.Logf("processor time of idle containers on a memory volume and on a device in 8 s, in hundredths of a second: %v", idle)
	if len(idle) != 2 || idle[1] > idle[0]+maxIdleTicks {
		t.Error("an idle container on a device uses too much processor time")
	}
	checkCalls(t, out)
}
