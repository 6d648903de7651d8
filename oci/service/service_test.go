package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets this program stand for a plugin: "serve SOCKET" until SIGTERM, "stubborn SOCKET" for
// longer than that, "fail" at once.
func TestMain(m *testing.M) {
	if len(os.Args) < 3 || os.Args[1] != "as-plugin" {
		os.Exit(m.Run())
	}
	if os.Args[2] == "fail" {
		fmt.Println("some\nthe reason")
		os.Exit(1)
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	listener, err := net.Listen("unix", os.Args[3])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if os.Args[2] == "stubborn" {
		time.Sleep(time.Minute)
	}
	<-terminated
	listener.Close()
}

type rig struct {
	Options
	calls []string // of systemctl
}

func newRig(t *testing.T, systemd bool, verb string) *rig {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := &rig{Options: Options{
		Socket:  filepath.Join(dir, "blobfs.sock"),
		UnitDir: dir,
		PidFile: filepath.Join(dir, "run", "plugin.pid"),
		LogFile: filepath.Join(dir, "log", "plugin.log"),
		Timeout: 10 * time.Second,
	}}
	r.Command = []string{self, "as-plugin", verb, r.Socket}
	r.systemdRuns = func() bool { return systemd }
	r.systemctl = func(_ context.Context, args ...string) error {
		r.calls = append(r.calls, strings.Join(args, " "))
		return nil
	}
	t.Cleanup(func() {
		if _, err := Stop(context.Background(), r.Options); err != nil {
			t.Errorf("Stop at the end: %v", err)
		}
	})
	return r
}

func start(t *testing.T, opts Options) Result {
	t.Helper()
	result, err := Start(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestBackground(t *testing.T) {
	r := newRig(t, false, "serve")
	if had, err := Stop(context.Background(), r.Options); had || err != nil {
		t.Fatalf("Stop of nothing: %v, %v", had, err)
	}
	first := start(t, r.Options)
	if first.Pid == 0 || first.Unit != "" || first.LogFile != r.LogFile || !serving(r.Socket) {
		t.Fatalf("%+v", first)
	}
	second := start(t, r.Options)
	if second.Pid == first.Pid || !serving(r.Socket) {
		t.Fatalf("started anew: %+v, first %+v", second, first)
	}
	if _, ok := startTime(first.Pid); ok {
		t.Error("the first one still runs")
	}
	if had, err := Stop(context.Background(), r.Options); !had || err != nil {
		t.Fatalf("Stop: %v, %v", had, err)
	}
	if exists(r.Socket) || exists(r.PidFile) {
		t.Error("socket or pid file left")
	}
	if _, ok := startTime(second.Pid); ok {
		t.Error("the second one still runs")
	}
}

func TestKilledProcess(t *testing.T) {
	r := newRig(t, false, "serve")
	result := start(t, r.Options)
	if err := syscall.Kill(result.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, ok := startTime(result.Pid); ok; _, ok = startTime(result.Pid) {
		time.Sleep(time.Millisecond)
	}
	if !exists(r.Socket) {
		t.Fatal("the killed process removed its socket")
	}
	if had, err := Stop(context.Background(), r.Options); !had || err != nil {
		t.Fatalf("Stop: %v, %v", had, err)
	}
	if exists(r.Socket) || exists(r.PidFile) {
		t.Error("socket or pid file left")
	}
}

func TestStubbornProcessIsKilled(t *testing.T) {
	r := newRig(t, false, "stubborn")
	result := start(t, r.Options)
	r.Timeout = 50 * time.Millisecond
	if had, err := Stop(context.Background(), r.Options); !had || err != nil {
		t.Fatalf("Stop: %v, %v", had, err)
	}
	if _, ok := startTime(result.Pid); ok {
		t.Error("it still runs")
	}
}

func TestPidOfAnotherIsLeftAlone(t *testing.T) {
	r := newRig(t, false, "serve")
	if err := os.MkdirAll(filepath.Dir(r.PidFile), 0o755); err != nil {
		t.Fatal(err)
	}
	// This very process, as if its number had been the plugin's before.
	if err := os.WriteFile(r.PidFile, fmt.Appendf(nil, "%d 1\n", os.Getpid()), 0o644); err != nil {
		t.Fatal(err)
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	defer signal.Stop(terminated)
	if had, err := Stop(context.Background(), r.Options); !had || err != nil {
		t.Fatalf("Stop: %v, %v", had, err)
	}
	select {
	case <-terminated:
		t.Error("it was told to end")
	default:
	}
	if err := os.WriteFile(r.PidFile, []byte("what"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Stop(context.Background(), r.Options); err == nil || !strings.Contains(err.Error(), r.PidFile) {
		t.Errorf("pid file of nonsense: %v", err)
	}
	os.Remove(r.PidFile)
}

func TestStartErrors(t *testing.T) {
	r := newRig(t, false, "fail")
	if _, err := Start(context.Background(), r.Options); err == nil || !strings.HasSuffix(err.Error(), "it ended at once: the reason") {
		t.Errorf("failing command: %v", err)
	}
	if exists(r.PidFile) {
		t.Error("pid file left")
	}
	foreign, err := net.Listen("unix", r.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	if _, err := Start(context.Background(), r.Options); err == nil || !strings.Contains(err.Error(), "another program serves") {
		t.Errorf("taken socket: %v", err)
	}
	for _, change := range []func(*Options){
		func(o *Options) { o.Command = nil },
		func(o *Options) { o.Command = []string{"relative"} },
		func(o *Options) { o.Socket = "relative" },
		func(o *Options) { o.Timeout = -1 },
	} {
		opts := r.Options
		change(&opts)
		if _, err := Start(context.Background(), opts); err == nil {
			t.Errorf("accepted: %+v", opts)
		}
	}
}

func TestUnit(t *testing.T) {
	r := newRig(t, true, "serve")
	r.Command = []string{"/opt/100% mine/runsc-fs", "--volume-root=/a \"b\" $HOME\\\n", "plugin"}
	result := start(t, r.Options)
	path := filepath.Join(r.UnitDir, "runsc-fs-plugin.service")
	if result.Unit != path || result.Pid != 0 {
		t.Fatalf("%+v", result)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`ExecStart="/opt/100%% mine/runsc-fs" "--volume-root=/a \"b\" $$HOME\\\x0a" "plugin"`,
		`ExecStopPost=-/bin/rm -f "` + r.Socket + `"`,
		"Type=notify", "Before=docker.service", "WantedBy=multi-user.target",
	} {
		if !slices.Contains(strings.Split(string(data), "\n"), line) {
			t.Errorf("no line %q in:\n%s", line, data)
		}
	}
	if want := []string{"daemon-reload", "enable runsc-fs-plugin.service", "restart runsc-fs-plugin.service"}; !slices.Equal(r.calls, want) {
		t.Errorf("systemctl: %q", r.calls)
	}
	r.calls = nil
	if had, err := Stop(context.Background(), r.Options); !had || err != nil || exists(path) {
		t.Errorf("Stop: %v, %v", had, err)
	}
	if want := []string{"disable --now runsc-fs-plugin.service", "daemon-reload"}; !slices.Equal(r.calls, want) {
		t.Errorf("systemctl: %q", r.calls)
	}
	r.systemctl = func(context.Context, ...string) error { return errors.New("no such unit") }
	if _, err := Start(context.Background(), r.Options); err == nil || !strings.Contains(err.Error(), "journalctl -u runsc-fs-plugin.service") {
		t.Errorf("failing systemctl: %v", err)
	}
	os.Remove(path)
}

func TestNotifyReady(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := NotifyReady(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "notify")
	listener, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	if err := NotifyReady(); err != nil {
		t.Fatal(err)
	}
	listener.SetReadDeadline(time.Now().Add(10 * time.Second))
	message := make([]byte, 64)
	n, err := listener.Read(message)
	if err != nil || string(message[:n]) != "READY=1" {
		t.Errorf("%q, %v", message[:n], err)
	}
}
