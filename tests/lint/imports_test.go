package lint

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"runsc-fs/tests/lab"
)

const module = "runsc-fs"

// rule says what the packages at and below a path may import besides the standard
// library and each other. The rule of the longest matching path counts.
type rule struct {
	path string   // below the module
	may  []string // import paths; each stands for what is below it, too
}

var rules = []rule{
	{"nvme", []string{"golang.org/x/sys"}},
	{"blobfs/format", nil},
	{"blobfs/store", []string{module + "/blobfs/format", module + "/nvme"}},
	{"blobfs/fsck", []string{module + "/blobfs/format", module + "/nvme"}},
	{"blobfs", []string{"golang.org/x/sys", module + "/nvme"}},
	{"sentry", []string{"golang.org/x/sys", "github.com/HdrHistogram/hdrhistogram-go", "gvisor.dev/gvisor/pkg", module + "/blobfs", module + "/nvme"}},
	{"gofer", []string{"golang.org/x/sys", module + "/blobfs", module + "/nvme"}},
	{"oci", []string{
		"golang.org/x/sys", "github.com/opencontainers/runtime-spec", "github.com/docker/go-plugins-helpers", "github.com/docker/go-units",
		"github.com/sirupsen/logrus",
	}},
	{"runsc-fs/hooks", []string{
		"golang.org/x/sys", "github.com/opencontainers/runtime-spec", "gvisor.dev/gvisor/pkg", module + "/gofer", module + "/nvme", module + "/oci", module + "/sentry",
	}},
	{"runsc-fs/hookgen", []string{"golang.org/x/sys"}},
	{"runsc-fs", []string{
		"golang.org/x/sys", "github.com/HdrHistogram/hdrhistogram-go", "github.com/google/subcommands", "github.com/opencontainers/runtime-spec", "github.com/sirupsen/logrus", "gvisor.dev/gvisor",
		module + "/blobfs", module + "/gofer", module + "/nvme", module + "/oci", module + "/sentry",
	}},
	{"tests/bench", []string{"golang.org/x/sys", "github.com/opencontainers/runtime-spec", "gonum.org/v1/plot", module + "/tests/lab"}},
	{"tests", []string{"golang.org/x/sys", "github.com/lib/pq", "github.com/opencontainers/runtime-spec"}},
}

// inTests is what the tests of a package may import besides what the
// package itself may import.
var inTests = []string{"golang.org/x/sys", "gvisor.dev/gvisor/pkg", "github.com/opencontainers/runtime-spec", module + "/blobfs", module + "/nvme"}

// listed is what go list says about a package.
type listed struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	root, err := lab.TreeRoot()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// below says whether path is prefix or lies below it.
func below(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

func ruleOf(path string) (rule, bool) {
	var best rule
	for _, r := range rules {
		if below(path, module+"/"+r.path) && len(r.path) > len(best.path) {
			best = r
		}
	}
	return best, best.path != ""
}

func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".") && first != module
}

// TestImports checks the direction of imports.
func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		r, ok := ruleOf(p.ImportPath)
		if !ok {
			t.Errorf("%s has no import rule; add one in tests/lint", p.ImportPath)
			continue
		}
		allowed := func(path string, more ...string) bool {
			return standard(path) || below(path, module+"/"+r.path) ||
				slices.ContainsFunc(append(r.may, more...), func(may string) bool { return below(path, may) })
		}
		for _, path := range p.Imports {
			if !allowed(path) {
				t.Errorf("%s must not import %s", p.ImportPath, path)
			}
		}
		for _, path := range append(p.TestImports, p.XTestImports...) {
			if !allowed(path, inTests...) {
				t.Errorf("the tests of %s must not import %s", p.ImportPath, path)
			}
		}
	}
}

// TestFewImportersOfRunsc keeps gVisor's runsc, which changes often, at arm's length.
func TestFewImportersOfRunsc(t *testing.T) {
	for _, p := range packages(t) {
		for _, path := range p.Imports {
			if below(path, "gvisor.dev/gvisor/runsc") && p.ImportPath != module+"/runsc-fs" {
				t.Errorf("%s imports %s: only %s/runsc-fs does", p.ImportPath, path, module)
			}
		}
	}
}
