package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// fioJob is a fio command line that stops at the first error.
func fioJob(args string) string {
	return "fio --name=job --directory=/data --bs=4k --size=48m --thread --randseed=42 --verify_fatal=1 " + args
}

// TestFioVerify writes 4 KiB blocks at random places and reads them back against
// their checksums, with the engines that databases use.
func TestFioVerify(t *testing.T) {
	backings := []struct {
		name string
		args []string
	}{
		{"memory", []string{"--size=256M", "--memory"}},
		{"image", []string{"--size=256M"}},
	}
	for _, backing := range backings {
		for _, engine := range []struct{ name, args string }{
			{"psync", "psync"},
			{"libaio", "libaio --iodepth=16"},
			{"libaio-batches", "libaio --iodepth=32 --iodepth_batch_submit=16 --iodepth_batch_complete_min=1 --iodepth_batch_complete_max=16 --userspace_reap"},
			{"io_uring", "io_uring --iodepth=16 --iodepth_batch_submit=8"},
			{"io_uring-registered", "io_uring --iodepth=16 --fixedbufs --registerfiles"},
			{"io_uring-poller", "io_uring --iodepth=16 --sqthread_poll"},
			{"io_uring-hipri", "io_uring --iodepth=16 --hipri"},
		} {
			for _, direct := range []int{0, 1} {
				name := fmt.Sprintf("%s/%s/direct=%d", backing.name, engine.name, direct)
				if engine.name == "io_uring-hipri" && direct == 0 {
					continue // polling a device is for direct I/O
				}
				t.Run(name, func(t *testing.T) {
					m := storage(t, "/data", backing.args...)
					out := run(t, bundle(fioJob(fmt.Sprintf("--rw=randwrite --verify=crc32c --direct=%d --ioengine=%s", direct, engine.args)), m))
					if !strings.Contains(out, "err= 0") {
						t.Fatalf("fio did not report success:\n%s", out)
					}
				})
			}
		}
	}
}

// TestFioVerifyAcrossSandboxes writes in one sandbox and verifies in the next.
func TestFioVerifyAcrossSandboxes(t *testing.T) {
	m := storage(t, "/data", "--size=256M")
	job := "--rw=randwrite --verify=crc32c --ioengine=psync --fsync=64 "
	run(t, bundle(fioJob(job+"--do_verify=0"), m))
	run(t, bundle(fioJob(job+"--verify_only=1"), m))
}

// TestFioMmap verifies a shared mapping against its checksums.
func TestFioMmap(t *testing.T) {
	out := run(t, bundle(fioJob("--rw=randwrite --verify=crc32c --ioengine=mmap --fsync=1000"), storage(t, "/data", "--size=256M")))
	if !strings.Contains(out, "err= 0") {
		t.Fatalf("fio did not report success:\n%s", out)
	}
}
