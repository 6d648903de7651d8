package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// gvisorModule is the module that gets the hooks.
const gvisorModule = "gvisor.dev/gvisor"

func main() {
	root := flag.String("root", ".", "directory of the project's go.mod")
	out := flag.String("out", ".build", "build directory, relative to root")
	flag.Parse()
	if err := run(*root, *out); err != nil {
		fmt.Fprintf(os.Stderr, "hookgen: %v\n", err)
		os.Exit(1)
	}
}

func run(root, out string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	mod, err := findModule(root)
	if err != nil {
		return err
	}
	build := filepath.Join(root, out)
	target := filepath.Join(build, "gvisor")
	stampFile := filepath.Join(build, "gvisor.stamp")
	stamp, err := inputStamp(mod)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(build, 0o755); err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(build, "hookgen.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if have, err := os.ReadFile(stampFile); err != nil || string(have) != stamp {
		if err := generate(mod, target, stampFile, stamp); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "hookgen: %d hooks inserted into a copy of %s %s\n", len(hookTable), gvisorModule, mod.Version)
	}
	return writeModFiles(root, out)
}

// lock keeps two builds from making the copy at the same time.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// generate replaces target by a fresh copy with hooks. The copy is complete
// before it takes its place, and the stamp is removed first and written last,
// so an interrupted run is repeated.
func generate(mod module, target, stampFile, stamp string) error {
	next := target + ".new"
	if err := os.RemoveAll(next); err != nil {
		return err
	}
	if err := copyModule(mod.Dir, next); err != nil {
		return fmt.Errorf("copying %s: %w", gvisorModule, err)
	}
	if err := applyAll(next, hookTable); err != nil {
		return fmt.Errorf("%s %s: %w", gvisorModule, mod.Version, err)
	}
	if err := os.Remove(stampFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	if err := os.Rename(next, target); err != nil {
		return err
	}
	return os.WriteFile(stampFile, []byte(stamp), 0o644)
}

// module is what the Go tool says about a dependency.
type module struct {
	Version string
	Dir     string
	Replace *module
	Error   string
}

// findModule tells where gVisor's source lies. A fresh machine has it nowhere
// yet: it is downloaded then, as any build would do.
func findModule(root string) (module, error) {
	m, err := askGo(root, "list", "-m", "-json", gvisorModule)
	if err != nil {
		return module{}, err
	}
	if m.Replace != nil {
		m.Dir = m.Replace.Dir
	}
	if m.Dir != "" {
		return m, nil
	}
	version := m.Version
	m, err = askGo(root, "mod", "download", "-json", gvisorModule)
	if err != nil {
		return module{}, err
	}
	if m.Dir == "" {
		return module{}, fmt.Errorf("%s %s could not be downloaded: run 'go mod download %s' to see why", gvisorModule, version, gvisorModule)
	}
	return m, nil
}

// askGo runs a command of the Go tool that describes one module.
func askGo(root string, args ...string) (module, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	var m module
	if jsonErr := json.Unmarshal(text, &m); jsonErr != nil && err == nil {
		err = jsonErr
	}
	if m.Error != "" {
		err = errors.New(m.Error)
	}
	if err != nil {
		return module{}, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return m, nil
}

// inputStamp identifies everything that the copy depends on: the module's
// version and this program, which contains the hook table.
func inputStamp(mod module) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	f, err := os.Open(self)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return mod.Version + " " + mod.Dir + " " + hex.EncodeToString(h.Sum(nil)) + "\n", nil
}

// copiedTrees are the parts of the module that the runtime is built from.
var copiedTrees = []string{"pkg", "runsc", "sandboxexec"}

// copyModule copies the packages under copiedTrees without their tests. The
// module cache is read-only; the copy is not.
func copyModule(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if err := copyFile(filepath.Join(from, "go.mod"), filepath.Join(to, "go.mod")); err != nil {
		return err
	}
	for _, tree := range copiedTrees {
		if _, err := os.Stat(filepath.Join(from, tree)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		err := filepath.WalkDir(filepath.Join(from, tree), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(from, path)
			if err != nil {
				return err
			}
			switch {
			case d.IsDir():
				return os.MkdirAll(filepath.Join(to, rel), 0o755)
			case !d.Type().IsRegular() || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			return copyFile(path, filepath.Join(to, rel))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}

// writeModFiles writes the go.mod and go.sum for 'go build -modfile'. Paths in
// a replace directive are relative to the main module, not to the file.
func writeModFiles(root, out string) error {
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return err
	}
	text = append(text, fmt.Sprintf("\nreplace %s => ./%s\n", gvisorModule, filepath.ToSlash(filepath.Join(out, "gvisor")))...)
	if err := writeIfChanged(filepath.Join(root, out, "go.mod"), text); err != nil {
		return err
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return writeIfChanged(filepath.Join(root, out, "go.sum"), sum)
}

// writeIfChanged keeps modification times, and with them the build cache.
func writeIfChanged(path string, text []byte) error {
	if have, err := os.ReadFile(path); err == nil && string(have) == string(text) {
		return nil
	}
	return os.WriteFile(path, text, 0o644)
}
