package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// fioResult is what fio says about one group of jobs, as far as it is used here.
type fioResult struct {
	Jobs []struct {
		Error int
		Read  fioDirection
		Write fioDirection
	}
}

type fioDirection struct {
	IOPS    float64
	BWBytes float64 `json:"bw_bytes"`
	TotalIO int64   `json:"total_ios"`
}

// parseFio gives operations a second and bytes a second, reads and writes together.
func parseFio(out string) (iops, bandwidth float64, err error) {
	begin := strings.Index(out, "{") // warnings may come first
	if begin < 0 {
		return 0, 0, fmt.Errorf("fio printed no result: %q", out)
	}
	var r fioResult
	if err := json.Unmarshal([]byte(out[begin:]), &r); err != nil {
		return 0, 0, fmt.Errorf("fio's result: %w", err)
	}
	for _, j := range r.Jobs {
		if j.Error != 0 {
			return 0, 0, fmt.Errorf("fio reports error %d", j.Error)
		}
		iops += j.Read.IOPS + j.Write.IOPS
		bandwidth += j.Read.BWBytes + j.Write.BWBytes
		if j.Read.TotalIO+j.Write.TotalIO == 0 {
			return 0, 0, errors.New("fio did no I/O")
		}
	}
	if len(r.Jobs) == 0 {
		return 0, 0, errors.New("fio reports no job")
	}
	return iops, bandwidth, nil
}

// fioFile is where fio's jobs work: one file a job, laid out once.
const fioFile = "--directory=/data --filename_format=fio.$jobnum"

// layout fills the files of fio's jobs, so that no job finds holes.
func layout(ctx context.Context, x *box) error {
	_, err := x.sh(ctx, fmt.Sprintf("fio --name=layout %s --size=%s --numjobs=4 --rw=write --bs=1m --ioengine=psync --end_fsync=1 --output-format=json",
		fioFile, x.b.scale.fioSize))
	return err
}

// fio makes a job of a fio command line. Bandwidth is reported instead of
// operations for large blocks.
func fio(name, args string, quick bool) job {
	large := strings.Contains(args, "--bs=1m")
	j := job{name: name, unit: "IOPS", dir: higher, quick: quick, needs: layout, needsName: "layout"}
	if large {
		j.unit = "MB/s"
	}
	j.run = func(ctx context.Context, x *box) (float64, error) {
		out, err := x.sh(ctx, fmt.Sprintf("fio --name=job %s --size=%s --time_based --runtime=%s --norandommap --randrepeat=0 --thread --group_reporting --output-format=json --bs=4k %s",
			fioFile, x.b.scale.fioSize, x.b.scale.fioTime, args))
		if err != nil {
			return 0, err
		}
		iops, bandwidth, err := parseFio(out)
		if large {
			return bandwidth / 1e6, err
		}
		return iops, err
	}
	return j
}

// fioJobs are the jobs of single calls, of batches, and of syncs.
func fioJobs() []job {
	jobs := []job{
		fio("psync randread direct", "--ioengine=psync --rw=randread --direct=1", true),
		fio("psync randwrite direct", "--ioengine=psync --rw=randwrite --direct=1", true),
		fio("psync randrw direct", "--ioengine=psync --rw=randrw --direct=1", false),
		fio("psync randread buffered", "--ioengine=psync --rw=randread", true),
		fio("psync randwrite buffered", "--ioengine=psync --rw=randwrite", true),
		fio("psync randread direct, 4 jobs", "--ioengine=psync --rw=randread --direct=1 --numjobs=4", false),
		fio("psync randwrite direct, 4 jobs", "--ioengine=psync --rw=randwrite --direct=1 --numjobs=4", false),
	}
	for _, depth := range []int{1, 8, 32, 64} {
		jobs = append(jobs, fio(fmt.Sprintf("libaio randread qd%d", depth),
			fmt.Sprintf("--ioengine=libaio --rw=randread --direct=1 --iodepth=%d", depth), depth == 1 || depth == 32))
	}
	return append(jobs,
		fio("libaio randwrite qd32", "--ioengine=libaio --rw=randwrite --direct=1 --iodepth=32", false),
		fio("libaio randread qd32, batches of 16", "--ioengine=libaio --rw=randread --direct=1 --iodepth=32 --iodepth_batch=16 --iodepth_batch_complete_min=16 --iodepth_batch_complete_max=16", true),
		fio("io_uring randread qd32", "--ioengine=io_uring --rw=randread --direct=1 --iodepth=32", true),
		fio("io_uring randread qd32, batches of 16", "--ioengine=io_uring --rw=randread --direct=1 --iodepth=32 --iodepth_batch=16 --iodepth_batch_complete_min=16 --iodepth_batch_complete_max=16", false),
		fio("io_uring randread qd32, SQPOLL", "--ioengine=io_uring --rw=randread --direct=1 --iodepth=32 --sqthread_poll=1", true),
		fio("1 MiB sequential read", "--ioengine=psync --rw=read --direct=1 --bs=1m", true),
		fio("1 MiB sequential write", "--ioengine=psync --rw=write --direct=1 --bs=1m", true),
		fio("randwrite, fsync after each", "--ioengine=psync --rw=randwrite --fsync=1", true),
		fio("overwrite, fdatasync after each", "--ioengine=psync --rw=write --fdatasync=1", false),
		fio("mmap randread", "--ioengine=mmap --rw=randread", false),
		fio("mmap randwrite", "--ioengine=mmap --rw=randwrite", false),
	)
}
