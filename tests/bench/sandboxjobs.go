package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"runsc-fs/tests/lab"
)

// sandboxJobs are what a sandbox costs that does nothing.
func sandboxJobs() []job {
	noSandbox := func(c contender) string {
		if c.runtime == "runc" {
			return "there is no sandbox"
		}
		return ""
	}
	return []job{
		{name: "start to first instruction", unit: "ms", dir: lower, quick: true, run: startTime},
		{name: "memory of an idle sandbox", unit: "MiB", dir: lower, quick: true, skip: noSandbox, run: idleMemory},
		{name: "CPU of an idle sandbox", unit: "%", dir: lower, quick: true, skip: noSandbox, run: idleCPU},
	}
}

// startTime is from the start of the runtime to what the container's first process prints.
func startTime(ctx context.Context, x *box) (float64, error) {
	spec, err := x.spec(ctx, "spare", "date", "+%s.%N")
	if err != nil {
		return 0, err
	}
	id, dir, err := x.runtime.Bundle(spec)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	res, err := lab.Run(ctx, x.runtime.Cmd("run", "--bundle="+dir, id))
	if err != nil {
		return 0, err
	}
	sec, err := strconv.ParseFloat(strings.TrimSpace(res.Stdout), 64)
	if err != nil {
		return 0, err
	}
	return (sec - float64(begin.UnixNano())/1e9) * 1e3, nil
}

// withIdle starts a container that does nothing and looks at its sandbox.
func withIdle(ctx context.Context, x *box, look func(pid int) (float64, error)) (float64, error) {
	c, err := x.idle(ctx, "spare")
	if err != nil {
		return 0, err
	}
	pid, err := lab.SandboxPID(c.ID)
	var v float64
	if err == nil {
		// What the start itself costs is another figure.
		time.Sleep(time.Second)
		v, err = look(pid)
	}
	return v, errors.Join(err, c.Delete(ctx))
}

// idleMemory is the proportional set size, of which shared pages are a share.
func idleMemory(ctx context.Context, x *box) (float64, error) {
	return withIdle(ctx, x, func(pid int) (float64, error) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
				kib, err := strconv.ParseFloat(f[1], 64)
				return kib / 1024, err
			}
		}
		return 0, errors.New("smaps_rollup has no Pss")
	})
}

// idleCPU is the share of one processor that the sandbox uses.
func idleCPU(ctx context.Context, x *box) (float64, error) {
	return withIdle(ctx, x, func(pid int) (float64, error) {
		before, err := cpuTicks(pid)
		if err != nil {
			return 0, err
		}
		time.Sleep(time.Duration(x.b.scale.idleSeconds) * time.Second)
		after, err := cpuTicks(pid)
		// A tick of /proc is a hundredth of a second for all programs (proc(5)).
		return (after - before) / float64(x.b.scale.idleSeconds), err
	})
}

// cpuTicks is the time in user and system mode of a process (proc(5), fields 14 and 15).
func cpuTicks(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0, fmt.Errorf("stat of process %d is %q", pid, text)
	}
	utime, err := strconv.ParseFloat(f[11], 64)
	if err != nil {
		return 0, err
	}
	stime, err := strconv.ParseFloat(f[12], 64)
	return utime + stime, err
}
