package dockercfg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func options(t *testing.T, content string) Options {
	t.Helper()
	dir := t.TempDir()
	opts := Options{
		Config:      filepath.Join(dir, "docker", "daemon.json"),
		PidFile:     filepath.Join(dir, "docker.pid"),
		APISocket:   filepath.Join(dir, "docker.sock"),
		RuntimePath: "/usr/local/bin/runsc-fs",
		RuntimeArgs: []string{"--volume-root=/v"},
	}
	if content != "absent" {
		if err := os.Mkdir(filepath.Dir(opts.Config), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, opts.Config, content)
	}
	return opts
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// entry is what Install adds with the options above, in the layout of a file with four spaces.
const entry = `"blobfs": {
            "path": "/usr/local/bin/runsc-fs",
            "runtimeArgs": [
                "--volume-root=/v"
            ]
        }`

func TestRoundTrip(t *testing.T) {
	for _, test := range []struct{ name, before, installed, removed string }{
		{"absent", "absent", "{\n    \"runtimes\": {\n        " + entry + "\n    }\n}\n", "{}\n"},
		{"empty", "", "{\n    \"runtimes\": {\n        " + entry + "\n    }\n}\n", "{}\n"},
		{"nothing in it", "{ }\n", "{\n    \"runtimes\": {\n        " + entry + "\n    }\n}\n", "{}\n"},
		{
			"others before it",
			"{\n    \"debug\":true,\n    \"x\" : [1, 2,\n 3],\n    \"log-level\": \"info\"\n}",
			"{\n    \"debug\":true,\n    \"x\" : [1, 2,\n 3],\n    \"log-level\": \"info\",\n    \"runtimes\": {\n        " + entry + "\n    }\n}",
			"{\n    \"debug\":true,\n    \"x\" : [1, 2,\n 3],\n    \"log-level\": \"info\"\n}",
		},
		{
			"another runtime",
			"{\n    \"runtimes\": {\n        \"kata\": {\"path\": \"/k\"}\n    },\n    \"z\": 1e400\n}\n",
			"{\n    \"runtimes\": {\n        \"kata\": {\"path\": \"/k\"},\n        " + entry + "\n    },\n    \"z\": 1e400\n}\n",
			"{\n    \"runtimes\": {\n        \"kata\": {\"path\": \"/k\"}\n    },\n    \"z\": 1e400\n}\n",
		},
		{
			"one line",
			`{"a": "}{\"", "runtimes": {"k":{"path":"/k"}}, "ü\n": null}`,
			`{"a": "}{\"", "runtimes": {"k":{"path":"/k"}, "blobfs": {"path":"/usr/local/bin/runsc-fs","runtimeArgs":["--volume-root=/v"]}}, "ü\n": null}`,
			`{"a": "}{\"", "runtimes": {"k":{"path":"/k"}}, "ü\n": null}`,
		},
		{
			"an earlier installation, first of two",
			"{\n\t\"runtimes\": {\n\t\t\"blobfs\": {\"path\": \"/old/runsc-fs\", \"runtimeArgs\": [\"-x\"]},\n\t\t\"k\": {\"path\": \"/k\"}\n\t}\n}\n",
			"{\n\t\"runtimes\": {\n\t\t\"blobfs\": {\n\t\t\t\"path\": \"/usr/local/bin/runsc-fs\",\n\t\t\t\"runtimeArgs\": [\n\t\t\t\t\"--volume-root=/v\"\n\t\t\t]\n\t\t},\n\t\t\"k\": {\"path\": \"/k\"}\n\t}\n}\n",
			"{\n\t\"runtimes\": {\n\t\t\"k\": {\"path\": \"/k\"}\n\t}\n}\n",
		},
		{
			"lines end with CR LF",
			"{\r\n  \"debug\": true\r\n}\r\n",
			"{\r\n  \"debug\": true,\r\n  \"runtimes\": {\r\n    \"blobfs\": {\r\n      \"path\": \"/usr/local/bin/runsc-fs\",\r\n      \"runtimeArgs\": [\r\n        \"--volume-root=/v\"\r\n      ]\r\n    }\r\n  }\r\n}\r\n",
			"{\r\n  \"debug\": true\r\n}\r\n",
		},
		{
			"null", `{"runtimes": null}`,
			"{\"runtimes\": {\n    \"blobfs\": {\n        \"path\": \"/usr/local/bin/runsc-fs\",\n        \"runtimeArgs\": [\n            \"--volume-root=/v\"\n        ]\n    }\n}}", "{}",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			opts := options(t, test.before)
			result, err := Install(context.Background(), opts)
			if err != nil || !result.Changed || result.Config != opts.Config || result.Reload != ReloadNotRunning {
				t.Fatalf("Install: %+v, %v", result, err)
			}
			if got := read(t, opts.Config); got != test.installed {
				t.Errorf("installed:\n%s\nwant:\n%s", got, test.installed)
			}
			if (result.Backup == "") != (test.before == "absent") {
				t.Errorf("backup %q", result.Backup)
			}
			if result.Backup != "" && read(t, result.Backup) != test.before {
				t.Errorf("backup holds %q", read(t, result.Backup))
			}
			if again, err := Install(context.Background(), opts); err != nil || again.Changed || read(t, opts.Config) != test.installed {
				t.Errorf("second Install: %+v, %v", again, err)
			}
			var config map[string]any
			if err := json.Unmarshal([]byte(strings.ReplaceAll(read(t, opts.Config), "1e400", "1")), &config); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{"path": "/usr/local/bin/runsc-fs", "runtimeArgs": []any{"--volume-root=/v"}}
			if got := config["runtimes"].(map[string]any)["blobfs"]; !reflect.DeepEqual(got, want) {
				t.Errorf("entry: %v", got)
			}
			if result, err = Uninstall(context.Background(), opts); err != nil || !result.Changed {
				t.Fatalf("Uninstall: %+v, %v", result, err)
			}
			if got := read(t, opts.Config); got != test.removed {
				t.Errorf("removed:\n%q\nwant:\n%q", got, test.removed)
			}
			if result, err = Uninstall(context.Background(), opts); err != nil || result.Changed {
				t.Errorf("second Uninstall: %+v, %v", result, err)
			}
			files, err := filepath.Glob(filepath.Join(filepath.Dir(opts.Config), "*"))
			if hidden, _ := filepath.Glob(filepath.Join(filepath.Dir(opts.Config), ".*")); err != nil || len(files)+len(hidden) != 2 {
				t.Errorf("files: %q %q, %v", files, hidden, err)
			}
		})
	}
}

func TestInstallRefuses(t *testing.T) {
	for _, test := range []struct {
		content string
		class   error
		want    string
	}{
		{"{\n\"a\": 1,\n}", ErrConfig, "line 3: "},
		{`{"a": 1} x`, ErrConfig, "is not valid JSON"},
		{`{"a": `, ErrConfig, "is not valid JSON"},
		{`["a"]`, ErrConfig, "not an object"},
		{`"a"`, ErrConfig, "not an object"},
		{"\ufeff{}", ErrConfig, "is not valid JSON"},
		{`{"runtimes": []}`, ErrConfig, `"runtimes" is not an object`},
		{`{"runtimes": {}, "runtimes": {}}`, ErrConfig, `"runtimes" twice`},
		{`{"runtimes": {"blobfs": {"path": "/a"}, "blobfs": {"path": "/b"}}}`, ErrConfig, `"blobfs" twice`},
		{`{"runtimes": {"blobfs": 7}}`, ErrConfig, `runtime "blobfs" cannot be read`},
		{`{"runtimes": {"blobfs": {"path": "/opt/other"}}}`, ErrForeign, `"blobfs" is /opt/other there`},
	} {
		opts := options(t, test.content)
		result, err := Install(context.Background(), opts)
		if !errors.Is(err, test.class) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "nothing was changed") ||
			!strings.Contains(err.Error(), opts.Config) || strings.Contains(err.Error(), "\n") || result.Changed {
			t.Errorf("%s: %+v, error %v, want one line with %q", test.content, result, err, test.want)
		}
		if read(t, opts.Config) != test.content {
			t.Errorf("%s: changed to %s", test.content, read(t, opts.Config))
		}
		if _, err := os.Stat(opts.Config + backupSuffix); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: backup: %v", test.content, err)
		}
	}
	if _, err := Install(context.Background(), Options{RuntimePath: "runsc-fs"}); err == nil {
		t.Error("relative path accepted")
	}
}

func TestUninstallLeavesOthers(t *testing.T) {
	for _, content := range []string{"absent", "{}", `{"runtimes": {}}`, `{"runtimes": {"blobfs": {"path": "/opt/other"}}}`} {
		opts := options(t, content)
		if result, err := Uninstall(context.Background(), opts); err != nil || result.Changed {
			t.Errorf("%s: %+v, %v", content, result, err)
		}
		if content != "absent" && read(t, opts.Config) != content {
			t.Errorf("%s: changed", content)
		}
	}
	content := `{"default-runtime": "blobfs", "runtimes": {"blobfs": {"path": "/usr/local/bin/runsc-fs"}}}`
	opts := options(t, content)
	if _, err := Uninstall(context.Background(), opts); !errors.Is(err, ErrDefaultRuntime) || read(t, opts.Config) != content {
		t.Errorf("default runtime: %v", err)
	}
}

func TestLinkAndAttributesStay(t *testing.T) {
	opts := options(t, "absent")
	target := filepath.Join(t.TempDir(), "real.json")
	write(t, target, "{}")
	if err := errors.Join(os.Chmod(target, 0o640), os.Mkdir(filepath.Dir(opts.Config), 0o755), os.Symlink(target, opts.Config)); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(target, 12, 34); err != nil {
			t.Fatal(err)
		}
	}
	if result, err := Install(context.Background(), opts); err != nil || result.Config != target {
		t.Fatalf("%+v, %v", result, err)
	}
	if info, err := os.Lstat(opts.Config); err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link: %v, %v", info, err)
	}
	mode, uid, gid, err := attributes(target)
	if err != nil || mode != 0o640 || (os.Geteuid() == 0 && (uid != 12 || gid != 34)) {
		t.Errorf("mode %o, owner %d:%d, %v", mode, uid, gid, err)
	}
}

// TestMain lets this program stand for a daemon: it writes a byte for each SIGHUP until its input ends.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "dockerd" {
		os.Exit(m.Run())
	}
	hups := make(chan os.Signal, 16)
	signal.Notify(hups, syscall.SIGHUP)
	go func() {
		os.Stdout.WriteString("r")
		for range hups {
			os.Stdout.WriteString("h")
		}
	}()
	io.Copy(io.Discard, os.Stdin)
}

// fakeDaemon is a process named dockerd, and an API that shows the runtimes that the file had at the last
// SIGHUP. One that does not obey goes on showing none.
func fakeDaemon(t *testing.T, opts Options, obeys bool) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "dockerd")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	process := exec.Command(program)
	stdin, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); process.Wait() })
	if _, err := stdout.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	write(t, opts.PidFile, strconv.Itoa(process.Process.Pid))

	var mu sync.Mutex
	shown := []byte("{}")
	go func() {
		for {
			if n, err := stdout.Read(make([]byte, 1)); n == 0 || err != nil {
				return
			}
			data, err := os.ReadFile(opts.Config)
			var config struct{ Runtimes json.RawMessage }
			if err := errors.Join(err, json.Unmarshal(data, &config)); err != nil {
				t.Errorf("the daemon reads its configuration: %v", err)
			}
			mu.Lock()
			if config.Runtimes != nil && obeys { // as Docker: no word about runtimes changes none
				shown = config.Runtimes
			}
			mu.Unlock()
		}
	}()
	listener, err := net.Listen("unix", opts.APISocket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(w, `{"Runtimes":%s}`, shown)
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
}

func TestReload(t *testing.T) {
	opts := options(t, "{}")
	fakeDaemon(t, opts, true)
	if result, err := Install(context.Background(), opts); err != nil || result.Reload != ReloadDone {
		t.Fatalf("Install: %+v, %v", result, err)
	}
	if result, err := Install(context.Background(), opts); err != nil || result.Reload != ReloadNotNeeded {
		t.Fatalf("second Install: %+v, %v", result, err)
	}
	opts.RuntimeArgs = nil
	if result, err := Install(context.Background(), opts); err != nil || result.Reload != ReloadDone {
		t.Fatalf("other arguments: %+v, %v", result, err)
	}
	if result, err := Uninstall(context.Background(), opts); err != nil || result.Reload != ReloadDone || read(t, opts.Config) != "{}" {
		t.Fatalf("Uninstall: %+v, %v; file %s", result, err, read(t, opts.Config))
	}
}

func TestReloadThatIsNotObeyed(t *testing.T) {
	opts := options(t, "{}")
	fakeDaemon(t, opts, false)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	result, err := Install(ctx, opts)
	if !errors.Is(err, ErrReload) || !result.Changed || strings.Contains(err.Error(), "\n") {
		t.Fatalf("%+v, %v", result, err)
	}
}

func TestPidFiles(t *testing.T) {
	opts := options(t, "{}")
	write(t, opts.PidFile, strconv.Itoa(os.Getpid())) // lives, but is no dockerd
	if result, err := Install(context.Background(), opts); err != nil || result.Reload != ReloadNotRunning {
		t.Errorf("another's process: %+v, %v", result, err)
	}
	for _, content := range []string{"", "x", "-1", "0", "1"} {
		write(t, opts.PidFile, content)
		if _, err := Install(context.Background(), opts); !errors.Is(err, ErrReload) {
			t.Errorf("pid file %q: %v", content, err)
		}
	}
}

// FuzzEdit wants every change of a valid file to be valid, to be there, and to be undone completely.
func FuzzEdit(f *testing.F) {
	for _, seed := range []string{"{}", `{"a":1}`, "{\n \"runtimes\":{\n  \"k\":{}\n }\n}", `{"runtimes":{"blobfs":{"path":"/x/runsc-fs"}},"z":[{}]}`, `{"\"":"}"}`, `{"runtimes":null}`} {
		f.Add(seed)
	}
	opts := Options{Runtime: "blobfs", RuntimePath: "/bin/runsc-fs"}
	f.Fuzz(func(t *testing.T, text string) {
		doc, err := parseDocument([]byte(text))
		if err != nil {
			return
		}
		want := runtimeEntry{Path: opts.RuntimePath}
		if addRuntime(doc, opts, want) != nil {
			return
		}
		var before, after map[string]any
		if json.Unmarshal([]byte(text), &before) != nil {
			before = map[string]any{}
		}
		if err := json.Unmarshal(doc.text, &after); err != nil {
			if strings.Contains(err.Error(), "cannot unmarshal number") {
				return
			}
			t.Fatalf("%q became %q: %v", text, doc.text, err)
		}
		list, _, _, err := runtimes(doc)
		if err != nil {
			t.Fatal(err)
		}
		found, err := list.find("blobfs")
		if err != nil || found == nil || !sameEntry(doc.value(found), want) {
			t.Fatalf("%q became %q", text, doc.text)
		}
		emptied, err := removeRuntime(doc, opts)
		if errors.Is(err, ErrDefaultRuntime) {
			return
		}
		if err == nil && emptied {
			err = removeEmptyRuntimes(doc)
		}
		if err != nil {
			t.Fatal(err)
		}
		var removed map[string]any
		if err := json.Unmarshal(doc.text, &removed); err != nil {
			t.Fatalf("%q became %q: %v", text, doc.text, err)
		}
		withoutRuntime := func(config map[string]any) map[string]any {
			if list, ok := config["runtimes"].(map[string]any); ok {
				if delete(list, "blobfs"); len(list) == 0 {
					delete(config, "runtimes")
				}
			} else if config["runtimes"] == nil {
				delete(config, "runtimes")
			}
			return config
		}
		if !reflect.DeepEqual(withoutRuntime(before), withoutRuntime(removed)) {
			t.Fatalf("%q became %q", text, doc.text)
		}
	})
}
