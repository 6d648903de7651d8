package lint

import (
	"bytes"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"runsc-fs/tests/lab"
)

// maxLines is how long a Go file may be. Longer ones have more than one subject.
const maxLines = 700

// sourceFiles gives the files of the tree that git tracks or would track, by their
// path from the top, and the top.
func sourceFiles(t *testing.T) (root string, paths []string) {
	t.Helper()
	root, err := lab.TreeRoot()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	for p := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		if info, err := os.Lstat(filepath.Join(root, p)); err == nil && info.Mode().IsRegular() {
			paths = append(paths, p)
		}
	}
	return root, paths
}

func read(t *testing.T, elem ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGofmt checks the layout of all Go files.
func TestGofmt(t *testing.T) {
	root, paths := sourceFiles(t)
	for _, p := range paths {
		if !strings.HasSuffix(p, ".go") {
			continue
		}
		have := read(t, root, p)
		want, err := format.Source(have)
		if err != nil {
			t.Errorf("%s: %v", p, err)
		} else if !bytes.Equal(have, want) {
			t.Errorf("%s is not formatted; run gofmt -w %s", p, p)
		}
	}
}

// TestFileLength keeps Go files at a length that can be read at one go.
func TestFileLength(t *testing.T) {
	root, paths := sourceFiles(t)
	for _, p := range paths {
		if !strings.HasSuffix(p, ".go") {
			continue
		}
		if n := bytes.Count(read(t, root, p), []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, more than %d: split it", p, n, maxLines)
		}
	}
}

// TestLeftovers finds notes to oneself, which belong where work is planned.
func TestLeftovers(t *testing.T) {
	note := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)
	root, paths := sourceFiles(t)
	for _, p := range paths {
		if ext := filepath.Ext(p); ext != ".go" && ext != ".md" && ext != ".sh" && filepath.Base(p) != "Makefile" {
			continue
		}
		for i, line := range strings.Split(string(read(t, root, p)), "\n") {
			if note.MatchString(line) {
				t.Errorf("%s:%d: %s", p, i+1, strings.TrimSpace(line))
			}
		}
	}
}

// TestSkips allows tests to be left out only by the guards, which turn into failures
// when make test asks for all tests.
func TestSkips(t *testing.T) {
	guards := map[string]bool{"tests/lab/guard.go": true, "nvme/qtest/qtest_test.go": true, "nvme/pcie/device_test.go": true}
	skip := regexp.MustCompile(`\b[tb]\.Skip(f|Now)?\(`)
	root, paths := sourceFiles(t)
	for _, p := range paths {
		if !strings.HasSuffix(p, ".go") || guards[p] {
			continue
		}
		for i, line := range strings.Split(string(read(t, root, p)), "\n") {
			if skip.MatchString(line) && !strings.HasPrefix(p, "tests/lint/") {
				t.Errorf("%s:%d leaves a test out: %s", p, i+1, strings.TrimSpace(line))
			}
		}
	}
}

// TestPackageComments wants each package to say what it is for.
func TestPackageComments(t *testing.T) {
	root, paths := sourceFiles(t)
	documented := map[string]bool{}
	for _, p := range paths {
		if !strings.HasSuffix(p, ".go") {
			continue
		}
		dir := filepath.Dir(p)
		if _, seen := documented[dir]; !seen {
			documented[dir] = false
		}
		if regexp.MustCompile(`(?m)^(//.*|.*\*/)\npackage \w+$`).Match(read(t, root, p)) {
			documented[dir] = true
		}
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("the package in %s has no package comment", dir)
		}
	}
}
