package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"runsc-fs/tests/lab"
)

// machine describes where and with what a run was made.
type machine struct {
	Processor string
	Cores     int
	MemoryGiB float64
	Kernel    string
	Disk      string // file system type of the measured directory
	Versions  []string
	Date      string
}

// String is the description as a list.
func (m machine) String() string {
	return fmt.Sprintf("- %s, %d cores, %.0f GiB\n- Linux %s, %s\n- %s\n- %s\n", m.Processor, m.Cores, m.MemoryGiB, m.Kernel, m.Disk, strings.Join(m.Versions, ", "), m.Date)
}

// fileSystem is the type of the file system that a directory is in, by the name that
// it is mounted with: statfs(2) has one magic number for ext2, ext3 and ext4.
func fileSystem(ctx context.Context, dir string) (string, error) {
	res, err := lab.Run(ctx, lab.Cmd{Argv: []string{"df", "--output=fstype", dir}})
	if err != nil {
		return "", err
	}
	f := strings.Fields(res.Stdout) // a head and the type
	if len(f) != 2 {
		return "", fmt.Errorf("df gives no file system of %s: %q", dir, res.Stdout)
	}
	return f[1], nil
}

// describe looks at the machine.
func (b *bench) describe(ctx context.Context, cs []contender, date string) (machine, error) {
	m := machine{Processor: "unknown processor", Cores: runtime.NumCPU(), Date: date}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			m.Processor = strings.TrimSpace(v)
		}
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return m, err
	}
	m.MemoryGiB = float64(info.Totalram) * float64(info.Unit) / (1 << 30)
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return m, err
	}
	m.Kernel = unix.ByteSliceToString(uts.Release[:])
	fs, err := fileSystem(ctx, b.dir)
	if err != nil {
		return m, err
	}
	m.Disk = "disk with " + fs
	programs := map[string]bool{}
	commands := [][]string{{"go", "version"}, {"chroot", b.rootfs, "fio", "--version"}}
	for _, c := range cs {
		if !programs[c.runtime] {
			programs[c.runtime] = true
			commands = append(commands, []string{c.runtime, "--version"})
		}
	}
	for _, argv := range commands {
		res, err := lab.Run(ctx, lab.Cmd{Argv: argv})
		if err != nil {
			return m, err
		}
		first, _, _ := strings.Cut(res.Stdout, "\n")
		m.Versions = append(m.Versions, strings.TrimSpace(first))
	}
	return m, nil
}
