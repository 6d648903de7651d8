package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"runsc-fs/tests/lab"
)

// contender is one way to give a container a directory /data.
type contender struct {
	name  string
	about string
	// tools are host programs that it needs.
	tools []lab.Tool
	// runtime and flags run the container.
	runtime string
	flags   []string
	// mount prepares the directory and gives the container's mount of it. It is
	// called for each start; what was in the directory is there again if keeps.
	// Directories of different use are different ones.
	mount func(ctx context.Context, use string) (specs.Mount, error)
	// keeps says that the files outlive the container.
	keeps bool
	// quick has the contender in quick runs.
	quick bool
}

// Names of the contenders that ratios are made of.
const (
	blobfsMemory  = "blobfs-memory"
	blobfsImage   = "blobfs-image"
	runscTmpfs    = "runsc-tmpfs"
	runscDirectfs = "runsc-directfs"
	runscGofer    = "runsc-gofer"
	runcExt4      = "runc-disk"
	runcTmpfs     = "runc-tmpfs"
	runcFUSE      = "runc-fuse"
)

var (
	toolRunc   = lab.Tool{Program: "runc", Package: "runc"}
	toolBindfs = lab.Tool{Program: "bindfs", Package: "bindfs"}
)

// sizeData is the size of volumes; of it the jobs use less than half.
const sizeData = "6G"

// contenders lists all of them, in the order of the tables.
func contenders(b *bench) []contender {
	return []contender{
		{
			name: blobfsMemory, about: "runsc-fs, volume in memory", runtime: b.binary, flags: runscFlags(), quick: true,
			mount: b.volume("mem", "--memory"),
		},
		{
			name: blobfsImage, about: "runsc-fs, volume in an image file on the host's disk", runtime: b.binary, flags: runscFlags(), quick: true, keeps: true,
			mount: b.volume("img"),
		},
		{
			name: runscTmpfs, about: "stock runsc, tmpfs inside the sandbox", runtime: b.stock, flags: runscFlags(), quick: true,
			mount: func(context.Context, string) (specs.Mount, error) { return lab.TmpfsMount("/data"), nil },
		},
		{
			name: runscDirectfs, about: "stock runsc, bind mount of the host's disk with directfs (its default)", runtime: b.stock, flags: runscFlags(), quick: true, keeps: true,
			mount: b.bind("directfs"),
		},
		{
			name: runscGofer, about: "stock runsc, bind mount of the host's disk through the gofer (--directfs=false)", runtime: b.stock, flags: append(runscFlags(), "--directfs=false"), keeps: true,
			mount: b.bind("gofer"),
		},
		{
			name: runcExt4, about: "runc, bind mount of the host's disk", tools: []lab.Tool{toolRunc}, runtime: "runc", flags: []string{"--root=/run/runc"}, quick: true, keeps: true,
			mount: b.bind("disk"),
		},
		{
			name: runcTmpfs, about: "runc, tmpfs of the host's kernel", tools: []lab.Tool{toolRunc}, runtime: "runc", flags: []string{"--root=/run/runc"}, quick: true,
			mount: func(context.Context, string) (specs.Mount, error) {
				return lab.TmpfsMount("/data", "size="+strings.ToLower(sizeData)), nil
			},
		},
		{
			name: runcFUSE, about: "runc, bind mount of a FUSE file system (bindfs) over the host's disk", tools: []lab.Tool{toolRunc, toolBindfs}, runtime: "runc", flags: []string{"--root=/run/runc"}, keeps: true,
			mount: b.fuse,
		},
	}
}

// runscFlags are the global flags of runsc, stock or ours.
func runscFlags() []string { return []string{"--root=/run/runsc", "--network=none"} }

// volume makes the mount of a blobfs volume, which is created when it is not there.
func (b *bench) volume(kind string, args ...string) func(context.Context, string) (specs.Mount, error) {
	return func(ctx context.Context, use string) (specs.Mount, error) {
		name := "bench-" + kind + "-" + use
		m := lab.VolumeMount(name, "/data")
		mark := filepath.Join(b.dir, name)
		if _, err := os.Stat(mark); err == nil {
			return m, nil
		}
		argv := append([]string{b.binary, "volume", "create", "--size=" + sizeData}, args...)
		if _, err := lab.Run(ctx, lab.Cmd{Argv: append(argv, name), Env: b.env()}); err != nil {
			return m, err
		}
		return m, os.WriteFile(mark, nil, 0o644)
	}
}

// bind makes the mount of a host directory.
func (b *bench) bind(kind string) func(context.Context, string) (specs.Mount, error) {
	return func(_ context.Context, use string) (specs.Mount, error) {
		dir := filepath.Join(b.dir, "host", kind, use)
		return lab.BindMount(dir, "/data"), os.MkdirAll(dir, 0o777)
	}
}

// fuse mounts bindfs in the cell, once, over a host directory.
func (b *bench) fuse(ctx context.Context, use string) (specs.Mount, error) {
	below, dir := filepath.Join(b.dir, "host", "below-fuse", use), filepath.Join(b.dir, "fuse", use)
	m := lab.BindMount(dir, "/data")
	if _, err := os.Stat(below); err == nil {
		return m, nil
	}
	for _, d := range []string{below, dir} {
		if err := os.MkdirAll(d, 0o777); err != nil {
			return m, err
		}
	}
	_, err := b.cell.Run(ctx, lab.Cmd{Argv: []string{"bindfs", below, dir}})
	return m, err
}

// box is a running container of a contender.
type box struct {
	contender
	b         *bench
	runtime   *lab.Runtime
	container *lab.Container
}

// open starts a contender's container, in which the jobs run.
func (b *bench) open(ctx context.Context, c contender) (*box, error) {
	x := &box{contender: c, b: b, runtime: &lab.Runtime{
		Cell: b.cell, Binary: c.runtime, Dir: filepath.Join(b.dir, "run", c.name), Flags: c.flags, Env: b.env(),
	}}
	return x, x.start(ctx)
}

// spec is a container of the contender over the directory of one use.
func (x *box) spec(ctx context.Context, use string, args ...string) (*specs.Spec, error) {
	m, err := x.mount(ctx, use)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", x.name, err)
	}
	return lab.BundleSpec{
		RootFS: x.b.rootfs, Args: args, Mounts: []specs.Mount{m, lab.BindMount(x.b.inputs, "/inputs", "ro")},
		Env: []string{"LC_ALL=C"},
	}.OCI(), nil
}

// idle starts a container that does nothing.
func (x *box) idle(ctx context.Context, use string) (*lab.Container, error) {
	spec, err := x.spec(ctx, use, "sleep", "infinity")
	if err != nil {
		return nil, err
	}
	return x.runtime.StartSpec(ctx, spec)
}

func (x *box) start(ctx context.Context) (err error) {
	x.container, err = x.idle(ctx, "jobs")
	return err
}

// restart ends the container and starts it again, so that nothing is cached in the
// sandbox, nor, of names and inodes, in the host's kernel.
func (x *box) restart(ctx context.Context) error {
	if err := x.close(ctx); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o200); err != nil {
		return err
	}
	return x.start(ctx)
}

func (x *box) close(ctx context.Context) error {
	if x.container == nil {
		return nil
	}
	c := x.container
	x.container = nil
	return c.Delete(ctx)
}

// sh runs a shell script in the container and gives what it printed.
func (x *box) sh(ctx context.Context, script string) (string, error) {
	cmd := x.container.ExecCmd("sh", "-ec", script)
	cmd.Timeout = 10 * time.Minute
	res, err := lab.Run(ctx, cmd)
	return res.Stdout, err
}
