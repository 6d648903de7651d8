package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"runsc-fs/tests/lab"
)

//go:embed files.pl
var filesPL []byte

// gvisorModule is where stock runsc and the source tree of the jobs come from.
const gvisorModule = "gvisor.dev/gvisor"

// rootFS has the programs of the jobs.
var rootFS = lab.RootFSSpec{
	Name:     "bench",
	Packages: []string{"postgresql", "fio", "sqlite3", "git", "gcc", "libc6-dev"},
	Setup: `set -e
ln -sf /usr/lib/postgresql/*/bin/* /usr/local/bin/
rm -rf /var/lib/postgresql/15 /etc/postgresql/15 /var/cache/apt/* /var/lib/apt/lists/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/*
`,
}

// bench is one run: the machine prepared, the jobs, and what was measured.
type bench struct {
	root           string // of the project
	binary, stock  string // runsc-fs, and runsc of the same gVisor
	rootfs, inputs string
	dir            string // on the disk that is measured
	cell           *lab.Cell
	scale          scale
	logf           lab.Logf
}

// newBench knows where things are; prepare makes them.
func newBench(logf lab.Logf, s scale) (*bench, error) {
	root, err := lab.TreeRoot()
	if err != nil {
		return nil, err
	}
	b := &bench{scale: s, logf: logf, root: root, stock: filepath.Join(root, ".build", "stock-runsc")}
	b.binary, err = lab.Binary()
	return b, err
}

// prepare installs, builds and lays out what the jobs under cs need.
func (b *bench) prepare(ctx context.Context, cs []contender) error {
	tools := []lab.Tool{lab.ToolDebootstrap, lab.ToolIP, lab.ToolNsenter}
	stock := false
	for _, c := range cs {
		tools = append(tools, c.tools...)
		stock = stock || c.runtime == b.stock
	}
	if err := lab.EnsureTools(ctx, b.logf, tools...); err != nil {
		return err
	}
	var err error
	if b.rootfs, err = lab.RootFS(ctx, b.logf, b.scale.rootFS); err != nil {
		return err
	}
	if stock {
		if err := b.buildStock(ctx); err != nil {
			return err
		}
	}
	if b.dir, err = lab.NewDir("bench"); err != nil {
		return err
	}
	if err := b.makeInputs(ctx); err != nil {
		return err
	}
	b.cell, err = lab.NewCell(ctx, filepath.Join(b.dir, "cell"))
	return err
}

// env is for commands that use the volumes of this run.
func (b *bench) env() []string {
	return []string{"RUNSC_FS_VOLUME_ROOT=" + filepath.Join(b.dir, "volumes")}
}

// buildStock builds runsc without hooks from the module that runsc-fs is built from.
func (b *bench) buildStock(ctx context.Context) error {
	b.logf("building stock runsc (some minutes the first time)")
	res, err := lab.Run(ctx, lab.Cmd{Argv: []string{"go", "list", "-m", "-f", "{{.Version}}", gvisorModule}, Dir: b.root})
	if err != nil {
		return err
	}
	// Built without its own build system, runsc does not know its version.
	version := gvisorModule + "/runsc/version.version=" + strings.TrimSpace(res.Stdout)
	_, err = lab.Run(ctx, lab.Cmd{
		Argv: []string{"go", "build", "-buildvcs=false", "-ldflags=-s -w -X " + version, "-o", b.stock, gvisorModule + "/runsc"},
		Dir:  b.root, Env: []string{"CGO_ENABLED=0"}, Timeout: 20 * time.Minute,
	})
	return err
}

// makeInputs writes what the containers read from /inputs.
func (b *bench) makeInputs(ctx context.Context) error {
	b.inputs = filepath.Join(b.dir, "inputs")
	if err := os.MkdirAll(filepath.Join(b.inputs, "c"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.inputs, "files.pl"), filesPL, 0o644); err != nil {
		return err
	}
	res, err := lab.Run(ctx, lab.Cmd{Argv: []string{"go", "list", "-m", "-f", "{{.Dir}}", gvisorModule}, Dir: b.root})
	if err != nil {
		return err
	}
	source := "pkg"
	if b.scale.small {
		source = "pkg/sentry/vfs"
	}
	_, err = lab.Run(ctx, lab.Cmd{Argv: []string{"tar", "cf", filepath.Join(b.inputs, "source.tar"), "--mode=u+w", "-C", strings.TrimSpace(res.Stdout), source}})
	if err != nil {
		return err
	}
	for i := range min(b.scale.files/500+2, 100) {
		text := fmt.Sprintf("int f%d(int x)\n{\n\tint sum = %d;\n\tfor (int i = 0; i < x; i++)\n\t\tsum = sum * 31 + i;\n\treturn sum;\n}\n", i, i)
		if i == 0 {
			text += "int main(void) { return f0(1) == 2; }\n"
		}
		if err := os.WriteFile(filepath.Join(b.inputs, "c", fmt.Sprintf("f%d.c", i)), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// close ends everything that runs and removes the data.
func (b *bench) close() error {
	if b.cell != nil {
		b.cell.Stop()
	}
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir) // mounts below it were the cell's and went with it
}
