package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// codeBlocks gives the lines of a document's indented and fenced code.
func codeBlocks(text string) []string {
	var lines []string
	fenced := false
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
			continue
		}
		if code, indented := strings.CutPrefix(line, "    "); fenced || indented {
			lines = append(lines, strings.TrimPrefix(strings.TrimSpace(code), "$ "))
		}
	}
	return lines
}

// TestDocumentLinks follows the links between documents and to files.
func TestDocumentLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	root, paths := sourceFiles(t)
	for _, p := range paths {
		if filepath.Ext(p) != ".md" {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(string(read(t, root, p)), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(p), m[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", p, m[1])
			}
		}
	}
}

// TestDocumentedTests checks that each test that a document names exists.
func TestDocumentedTests(t *testing.T) {
	name := regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]*)")
	function := regexp.MustCompile(`(?m)^func (Test[A-Z][A-Za-z0-9]*)\(`)
	root, paths := sourceFiles(t)
	there := map[string]bool{}
	for _, p := range paths {
		if strings.HasSuffix(p, "_test.go") {
			for _, m := range function.FindAllStringSubmatch(string(read(t, root, p)), -1) {
				there[m[1]] = true
			}
		}
	}
	for _, p := range paths {
		if filepath.Ext(p) != ".md" {
			continue
		}
		for _, m := range name.FindAllStringSubmatch(string(read(t, root, p)), -1) {
			if !there[m[1]] {
				t.Errorf("%s names %s, which is not there", p, m[1])
			}
		}
	}
}

// TestDocumentedTargets checks that each make target in a document exists and that
// make help names every target that is documented in the Makefile.
func TestDocumentedTargets(t *testing.T) {
	root, paths := sourceFiles(t)
	makefile := string(read(t, root, "Makefile"))
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`).FindAllStringSubmatch(makefile, -1) {
		targets[m[1]] = true
	}
	use := regexp.MustCompile("(?:`|^|&& |sudo )make ([a-z][a-z0-9-]*)")
	for _, p := range paths {
		if filepath.Ext(p) != ".md" {
			continue
		}
		text := string(read(t, root, p))
		lines := append(codeBlocks(text), strings.Split(text, "\n")...)
		for _, line := range lines {
			for _, m := range use.FindAllStringSubmatch(line, -1) {
				if !targets[m[1]] {
					t.Errorf("%s speaks of make %s, which is no target", p, m[1])
				}
			}
		}
	}
	cmd := exec.Command("make", "--no-print-directory", "help")
	cmd.Dir = root
	help, err := cmd.Output()
	if err != nil {
		t.Fatalf("make help: %v", err)
	}
	for _, m := range regexp.MustCompile(`(?m)^## ([a-z0-9-]+):`).FindAllStringSubmatch(makefile, -1) {
		if !targets[m[1]] {
			t.Errorf("the Makefile documents %s, which is no target", m[1])
		}
		if !strings.Contains(string(help), m[1]) {
			t.Errorf("make help lacks %s", m[1])
		}
	}
}

// TestDocumentedCommands asks the program, when it was built, about each command
// that a document has people type.
func TestDocumentedCommands(t *testing.T) {
	root, paths := sourceFiles(t)
	binary := filepath.Join(root, "bin", "runsc-fs")
	if _, err := os.Stat(binary); err != nil {
		t.Log("bin/runsc-fs is not built: commands in documents are not checked")
		return
	}
	use := regexp.MustCompile(`(?:^|sudo |bin/)runsc-fs ((?:--\S+ )*)([a-z]+)(?: ([a-z]+))?`)
	checked := map[string]bool{}
	for _, p := range paths {
		if filepath.Ext(p) != ".md" {
			continue
		}
		for _, line := range codeBlocks(string(read(t, root, p))) {
			m := use.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			args := []string{m[2], "--help"}
			if m[2] == "volume" && m[3] != "" {
				args = []string{m[2], m[3], "--help"}
			}
			key := strings.Join(args, " ")
			if checked[key] {
				continue
			}
			checked[key] = true
			out, _ := exec.Command(binary, args...).CombinedOutput()
			// Help on a command begins with its own name; otherwise it is about all commands.
			if !strings.Contains(string(out), strings.TrimSuffix(key, " --help")) || strings.Contains(string(out), "has no command") {
				t.Errorf("%s: %q: the program does not know this command: %.300s", p, line, out)
			}
		}
	}
}
