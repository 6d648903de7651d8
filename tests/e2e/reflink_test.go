package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestReflink clones a file with cp: that takes no space, and each file keeps
// what it has when the other changes or goes, across sandboxes, too.
func TestReflink(t *testing.T) {
	m := storage(t, "/data", "--size=256M")
	out := run(t, bundle(`set -e
cd /data
used() { sync; df --output=used -B4096 . | tail -1; }
dd if=/dev/urandom of=a bs=1M count=64 status=none
printf tail >> a
before=$(used)
cp --reflink=always a b
cp a c     # copy_file_range, which shares, too
after=$(used)
echo "clones took $((after - before)) blocks"
echo "du: $(du -B4096 --apparent-size a b c | cut -f1 | tr '\n' ' ') $(du -B4096 a b c | cut -f1 | tr '\n' ' ')"
cmp a b
cmp a c
dd if=/dev/zero of=b bs=4k count=256 seek=1000 conv=notrunc status=none
truncate -s 30M c
echo "overwriting took $(($(used) - after)) blocks"
sha256sum a b c > sums
sha256sum -c --quiet sums
rm a
sed -i /a$/d sums
sha256sum -c --quiet sums
sync
`, m))
	var clones, written int
	for _, line := range strings.Split(out, "\n") {
		fmt.Sscanf(line, "clones took %d blocks", &clones)
		fmt.Sscanf(line, "overwriting took %d blocks", &written)
	}
	// Nodes of the tree count, too.
	if !strings.Contains(out, "clones took") || clones < 0 || clones > 64 || written < 256 || written > 256+64 {
		t.Errorf("cloning 64 MiB twice and overwriting 1 MiB:\n%s", out)
	}
	if !strings.Contains(out, "du: 16385 16385 16385  16385 16385 16385") {
		t.Errorf("du says otherwise:\n%s", out)
	}
	run(t, bundle(`set -e
cd /data
sha256sum -c --quiet sums
test "$(stat -c %s c)" = $((30<<20))
rm b c sums
`, m))
}

// TestReflinkFio overwrites a clone at random, with checksums, and finds the
// original unchanged; and the other way round.
func TestReflinkFio(t *testing.T) {
	for _, way := range []string{"--ioengine=psync", "--ioengine=libaio --iodepth=16 --direct=1", "--ioengine=mmap", "--ioengine=psync --direct=1 --fsync=16"} {
		t.Run(strings.NewReplacer("--", "", "ioengine=", "", " ", ",").Replace(way), func(t *testing.T) {
			m := storage(t, "/data", "--size=256M")
			job := func(file, seed, more string) string {
				return fmt.Sprintf("fio --name=job --filename=/data/%s --bs=4k --size=32m --thread --randseed=%s --verify_fatal=1 --rw=randwrite --verify=crc32c %s > /tmp/out || { cat /tmp/out; exit 1; }\n", file, seed, more)
			}
			run(t, bundle("set -e\n"+
				job("a", "1", "--do_verify=0 --ioengine=psync")+
				"cp --reflink=always /data/a /data/b\n"+
				job("b", "2", way)+
				job("a", "1", "--verify_only=1 --ioengine=psync")+
				"cp --reflink=always /data/b /data/c\n"+
				job("b", "3", way)+
				job("c", "2", "--verify_only=1 --ioengine=psync"), m))
			// Once more from the device.
			run(t, bundle("set -e\n"+job("a", "1", "--verify_only=1 --ioengine=psync")+job("c", "2", "--verify_only=1 --ioengine=psync"), m))
		})
	}
}
