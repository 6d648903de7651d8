package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const source = `// Package p is for tests.
package p

import "fmt"

type Args struct {
	// A is documented.
	A int
}

type T struct{}

// Run has one of everything.
func (t *T) Run(kind string) error {
	x := 1
	if err := fmt.Errorf("x"); err != nil {
		y := 2
		_ = y
	}
	switch kind {
	case "a":
		times("a", x)
	default:
		times("b", x)
	}
	for i := 0; i < 3; i++ {
		go func() {
			z := 3
			_ = z
		}()
	}
	twice()
	twice()
	_ = map[string]int{
		"one": 1,
	}
	return nil
}

func twice() {}

func times(string, int) {}
`

func applyOne(t *testing.T, at anchor, code string) (string, error) {
	t.Helper()
	text, err := apply("p.go", []byte(source), []hook{{name: "test", why: "this is a test", file: "p.go", at: at, code: code}})
	return string(text), err
}

// lines is text without indentation, to compare what stands where.
func lines(text string) string {
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

func TestAnchors(t *testing.T) {
	const mark = "// runsc-fs hook test: this is a test\n"
	for _, test := range []struct {
		name string
		at   anchor
		code string
		want string
	}{
		{"function start", funcStart{"(*T).Run"}, "HOOKS.F()", "func (t *T) Run(kind string) error {\n" + mark + "blobfshooks.F()\nx := 1"},
		{"before a call", beforeCall{"(*T).Run", "fmt.Errorf", ""}, "HOOKS.F()", "x := 1\n" + mark + "blobfshooks.F()\nif err := fmt.Errorf"},
		{"after a nested definition", afterDefinition{"(*T).Run", "y"}, "HOOKS.F()", "y := 2\n" + mark + "blobfshooks.F()\n_ = y"},
		{"in a function literal", afterDefinition{"(*T).Run", "z"}, "HOOKS.F()", "z := 3\n" + mark + "blobfshooks.F()\n_ = z"},
		{"in a case", afterCall{"(*T).Run", "times", `"a"`}, "HOOKS.F()", "times(\"a\", x)\n" + mark + "blobfshooks.F()\ndefault:"},
		{"switch case", switchCase{"(*T).Run", "kind"}, "case HOOKS.Name:\nreturn HOOKS.F()", "times(\"a\", x)\n" + mark + "case blobfshooks.Name:\nreturn blobfshooks.F()\ndefault:"},
		{"struct field", structField{"Args"}, "More []HOOKS.T", "type Args struct {\n" + mark + "More []blobfshooks.T\n// A is documented."},
		{"map entry", mapEntry{"(*T).Run", `"one"`}, `"two": HOOKS.Two,`, "_ = map[string]int{\n" + mark + "\"two\": blobfshooks.Two,\n\"one\": 1,"},
		{"file end", fileEnd{}, "func init() { HOOKS.F() }", "func times(string, int) {}\n" + mark + "func init() { blobfshooks.F() }"},
	} {
		t.Run(test.name, func(t *testing.T) {
			text, err := applyOne(t, test.at, test.code)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(lines(text), lines(test.want)) {
				t.Errorf("the insertion is not where it should be:\n%s", text)
			}
			if !strings.Contains(text, "import \"fmt\"\n\nimport blobfshooks \"runsc-fs/runsc-fs/hooks\"\n") {
				t.Errorf("the import is missing:\n%s", text)
			}
			if !strings.Contains(text, "// Run has one of everything.\nfunc") || !strings.Contains(text, "// A is documented.\n") {
				t.Errorf("comments have moved:\n%s", text)
			}
		})
	}
}

func TestMovedAnchorIsAnError(t *testing.T) {
	for _, test := range []struct {
		name string
		at   anchor
		want string
	}{
		{"function", funcStart{"(*T).Walk"}, "function (*T).Walk not found"},
		{"receiver", funcStart{"Run"}, "function Run not found"},
		{"function of a call", beforeCall{"Walk", "x", ""}, "function Walk not found"},
		{"definition", afterDefinition{"(*T).Run", "q"}, "0 statements of (*T).Run that define q, want 1"},
		{"argument", beforeCall{"(*T).Run", "times", `"c"`}, "0 statements of (*T).Run that call times, want 1"},
		{"ambiguous call", afterCall{"(*T).Run", "twice", ""}, "2 statements of (*T).Run that call twice, want 1"},
		{"switch", switchCase{"(*T).Run", "sort"}, "0 switches over sort with a default clause"},
		{"map", mapEntry{"(*T).Run", `"three"`}, `0 literals with the key "three" in (*T).Run, want 1`},
		{"struct", structField{"T2"}, "struct type T2 not found"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := applyOne(t, test.at, "HOOKS.F()")
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range []string{`hook "test" does not fit p.go: `, test.want} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
	if _, err := applyOne(t, funcStart{"twice"}, "return ("); err == nil || !strings.Contains(err.Error(), "does not parse with its hooks") {
		t.Errorf("code that does not parse: %v", err)
	}
}

// TestTableFitsGvisor puts the real hooks into the real module, which is what
// the build does.
func TestTableFitsGvisor(t *testing.T) {
	mod, err := findModule(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	byFile := map[string][]hook{}
	for _, h := range hookTable {
		if h.name == "" || h.why == "" || names[h.name] {
			t.Errorf("hook %q has no reason, or its name is not its own", h.name)
		}
		names[h.name] = true
		byFile[h.file] = append(byFile[h.file], h)
	}
	for file, hooks := range byFile {
		src, err := os.ReadFile(filepath.Join(mod.Dir, filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		text, err := apply(file, src, hooks)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, h := range hooks {
			if !strings.Contains(string(text), "// runsc-fs hook "+h.name+": ") {
				t.Errorf("hook %s is not in %s", h.name, file)
			}
		}
	}
}

func TestCopyAndModFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		path = filepath.Join(dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("cache/go.mod", "module gvisor.dev/gvisor\n", 0o444)
	write("cache/runsc/a.go", "package a\n", 0o444)
	write("cache/runsc/a_test.go", "package a\n", 0o444)
	write("cache/webhook/b.go", "package b\n", 0o444)
	write("root/go.mod", "module m\n", 0o644)
	write("root/go.sum", "sum\n", 0o644)
	if err := copyModule(filepath.Join(dir, "cache"), filepath.Join(dir, "copy")); err != nil {
		t.Fatal(err)
	}
	for path, there := range map[string]bool{"go.mod": true, "runsc/a.go": true, "runsc/a_test.go": false, "webhook/b.go": false} {
		info, err := os.Stat(filepath.Join(dir, "copy", path))
		if (err == nil) != there {
			t.Errorf("%s in the copy: %v, want %v", path, err == nil, there)
		}
		if err == nil && info.Mode().Perm()&0o200 == 0 {
			t.Errorf("%s is as read-only as in the module cache", path)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "root", ".build"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeModFiles(filepath.Join(dir, "root"), ".build"); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"go.mod": "module m\n\nreplace gvisor.dev/gvisor => ./.build/gvisor\n",
		"go.sum": "sum\n",
	} {
		if have, err := os.ReadFile(filepath.Join(dir, "root", ".build", path)); err != nil || string(have) != want {
			t.Errorf(".build/%s: %q, %v; want %q", path, have, err, want)
		}
	}
}
