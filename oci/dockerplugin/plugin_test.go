package dockerplugin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/go-plugins-helpers/volume"
	"github.com/sirupsen/logrus"

	"runsc-fs/oci/registry"
)

// rig is a service on a socket of its own, called the way Docker calls.
type rig struct {
	t      *testing.T
	reg    *registry.Registry
	socket string
	client *http.Client
	stop   func() error
	// block, if set, holds up the formatting of an image.
	block chan struct{}
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, socket: filepath.Join(t.TempDir(), "plugins", "blobfs.sock")}
	var err error
	r.reg, err = registry.Open(registry.Options{
		Root: filepath.Join(t.TempDir(), "root"),
		Format: func(path string, sizeBytes int64, label string) error {
			if r.block != nil {
				r.block <- struct{}{}
				<-r.block
			}
			return nil
		},
		Probe: func(path string) error { return errors.New("not a blobfs image") },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", r.socket)
		},
	}}
	t.Cleanup(r.client.CloseIdleConnections)
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

// testLog returns a logger to the output of a test.
func testLog(t *testing.T) logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(t.Output())
	return log
}

func (r *rig) start() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Serve(ctx, Options{Registry: r.reg, Socket: r.socket, Log: testLog(r.t), Ready: func() { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		r.t.Fatalf("Serve: %v", err)
	}
	var once sync.Once
	r.stop = func() (err error) {
		once.Do(func() {
			cancel()
			err = <-ended
		})
		return err
	}
}

// call posts body and returns the decoded answer. Every answer of the protocol is an object.
func (r *rig) call(method, body string) map[string]any {
	r.t.Helper()
	request, err := http.NewRequest("POST", "http://plugin/"+method, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header.Set("Accept", "application/vnd.docker.plugins.v1.1+json")
	request.Header.Set("Content-Type", "application/vnd.docker.plugins.v1.1+json")
	response, err := r.client.Do(request)
	if err != nil {
		r.t.Fatalf("%s: %v", method, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	var answer map[string]any
	if err := json.Unmarshal(data, &answer); err != nil {
		r.t.Fatalf("%s: answer %q: %v", method, data, err)
	}
	failed := response.StatusCode != http.StatusOK
	if text, _ := answer["Err"].(string); failed != (text != "") {
		r.t.Fatalf("%s: status %d with answer %s", method, response.StatusCode, data)
	}
	return answer
}

func (r *rig) succeed(method, body string) map[string]any {
	r.t.Helper()
	answer := r.call(method, body)
	if answer["Err"] != nil && answer["Err"] != "" {
		r.t.Fatalf("%s %s: %v", method, body, answer["Err"])
	}
	return answer
}

func (r *rig) fail(method, body, want string) {
	r.t.Helper()
	if got, _ := r.call(method, body)["Err"].(string); !strings.Contains(got, want) || strings.Contains(got, "\n") {
		r.t.Fatalf("%s %s: error %q, want one line with %q", method, body, got, want)
	}
}

func TestProtocol(t *testing.T) {
	r := newRig(t)
	if got := r.succeed("Plugin.Activate", "")["Implements"].([]any); len(got) != 1 || got[0] != "VolumeDriver" {
		t.Fatalf("Activate: %v", got)
	}
	capabilities := r.succeed("VolumeDriver.Capabilities", "{}")["Capabilities"].(map[string]any)
	if capabilities["Scope"] != "local" {
		t.Fatalf("Capabilities: %v", capabilities)
	}
	if list := r.succeed("VolumeDriver.List", "{}")["Volumes"].([]any); len(list) != 0 {
		t.Fatalf("List of nothing: %v", list)
	}
	r.fail("VolumeDriver.Get", `{"Name":"vx"}`, `volume "vx" does not exist`)

	r.succeed("VolumeDriver.Create", `{"Name":"vx","Opts":{"size":"1G"}}`)
	r.succeed("VolumeDriver.Create", `{"Name":"vx","Opts":{"size":"1G"}}`)
	r.succeed("VolumeDriver.Create", `{"Name":"vx","Opts":null}`)
	r.fail("VolumeDriver.Create", `{"Name":"vx","Opts":{"size":"2G"}}`, `volume "vx" exists already`)
	r.succeed("VolumeDriver.Create", `{"Name":"vy","Opts":null}`)
	r.succeed("VolumeDriver.Create", `{"Name":"vz"}`)
	r.succeed("VolumeDriver.Create", `{"Name":"vm","Opts":{"memory":"","size":"64MiB"}}`)

	x, err := r.reg.Get("vx")
	if err != nil {
		t.Fatal(err)
	}
	got := r.succeed("VolumeDriver.Get", `{"Name":"vx"}`)["Volume"].(map[string]any)
	status := got["Status"].(map[string]any)
	if got["Name"] != "vx" || got["Mountpoint"] != x.Mountpoint() || status["sizeBytes"] != float64(1<<30) || status["inUse"] != false {
		t.Fatalf("Get: %v", got)
	}
	if _, err := time.Parse(time.RFC3339, got["CreatedAt"].(string)); err != nil {
		t.Fatal(err)
	}
	if list := r.succeed("VolumeDriver.List", "{}")["Volumes"].([]any); len(list) != 4 {
		t.Fatalf("List: %v", list)
	}
	if y, err := r.reg.Get("vy"); err != nil || y.SizeBytes() != registry.DefaultImageSizeBytes {
		t.Fatalf("y: %v, %v", y, err)
	}
	if m, err := r.reg.Get("vm"); err != nil || m.Kind() != registry.KindMemory || m.SizeBytes() != 64<<20 {
		t.Fatalf("m: %v, %v", m, err)
	}

	mounts := func() any {
		volume := r.succeed("VolumeDriver.Get", `{"Name":"vx"}`)["Volume"].(map[string]any)
		return volume["Status"].(map[string]any)["mounts"]
	}
	for _, id := range []string{"a", "b", "b"} {
		if answer := r.succeed("VolumeDriver.Mount", `{"Name":"vx","ID":"`+id+`"}`); answer["Mountpoint"] != x.Mountpoint() {
			t.Fatalf("Mount: %v", answer)
		}
	}
	if mounts() != 2.0 {
		t.Fatalf("mounts: %v, want 2", mounts())
	}
	if answer := r.succeed("VolumeDriver.Path", `{"Name":"vx"}`); answer["Mountpoint"] != x.Mountpoint() {
		t.Fatalf("Path: %v", answer)
	}
	r.succeed("VolumeDriver.Unmount", `{"Name":"vx","ID":"a"}`)
	r.succeed("VolumeDriver.Unmount", `{"Name":"vx","ID":"a"}`)
	if mounts() != 1.0 {
		t.Fatalf("mounts: %v, want 1", mounts())
	}

	held, err := x.Acquire("c0ffee")
	if err != nil {
		t.Fatal(err)
	}
	r.fail("VolumeDriver.Remove", `{"Name":"vx"}`, `volume "vx" is in use by container c0ffee`)
	if status := r.succeed("VolumeDriver.Get", `{"Name":"vx"}`)["Volume"].(map[string]any)["Status"].(map[string]any); status["inUseBy"] != "c0ffee" {
		t.Fatalf("status: %v", status)
	}
	held.Close()
	r.succeed("VolumeDriver.Remove", `{"Name":"vx"}`)
	r.fail("VolumeDriver.Remove", `{"Name":"vx"}`, `volume "vx" does not exist`)
	r.fail("VolumeDriver.Mount", `{"Name":"vx","ID":"a"}`, `volume "vx" does not exist`)
	r.fail("VolumeDriver.Path", `{"Name":"vx"}`, `volume "vx" does not exist`)
}

func TestClones(t *testing.T) {
	reg, err := registry.Open(registry.Options{
		Root:        t.TempDir(),
		Format:      func(string, int64, string) error { return nil },
		CreateLayer: func(path string, _ []string, _ int64) error { return os.WriteFile(path, nil, 0o600) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reg.Create(registry.CreateSpec{Name: "pg", SizeBytes: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, err := reg.TakeSnapshot("pg", "a"); err != nil {
		t.Fatal(err)
	}
	d := NewDriver(reg, testLog(t))
	clone := func(options map[string]string) error {
		return d.Create(&volume.CreateRequest{Name: "trial", Options: options})
	}
	for _, options := range []map[string]string{{"clone": "pg@a"}, {"clone": "pg@a", "size": "64M"}, nil} { // Docker may ask twice
		if err := clone(options); err != nil {
			t.Error(err)
		}
	}
	got, err := d.Get(&volume.GetRequest{Name: "trial"})
	if err != nil || got.Volume.Status["origin"] != "pg@a" {
		t.Errorf("Get: %+v, %v", got, err)
	}
	if got, err := d.Get(&volume.GetRequest{Name: "pg"}); err != nil || len(got.Volume.Status["snapshots"].([]registry.SnapshotInfo)) != 1 {
		t.Errorf("Get: %+v, %v", got, err)
	}
	for value, want := range map[string]string{"pg@b": `volume "trial" exists already`, "pg": "VOLUME@TAG", "": "VOLUME@TAG", "pg@": "tag"} {
		if err := clone(map[string]string{"clone": value}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("clone=%s: %v, want %q", value, err, want)
		}
	}
	if err := d.Remove(&volume.RemoveRequest{Name: "pg"}); err == nil || !strings.Contains(err.Error(), "has snapshots") {
		t.Errorf("removing a volume with snapshots: %v", err)
	}
}

func TestDeviceOptions(t *testing.T) {
	spec, err := parseCreateOptions("vv", map[string]string{"device": "0000:0A:00.0", "namespace": "3"})
	if err != nil || spec.Device == nil || *spec.Device != (registry.Device{Address: "0000:0a:00.0", Namespace: 3}) {
		t.Errorf("%+v, %v", spec, err)
	}
	reg, err := registry.Open(registry.Options{Root: t.TempDir(), PrepareDevice: func(d registry.Device, _ string, _, _ bool) (registry.Device, int64, error) {
		return d, 64 << 20, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	d := NewDriver(reg, testLog(t))
	for _, namespace := range []string{"3", "3"} { // Docker may ask twice
		if err := d.Create(&volume.CreateRequest{Name: "vv", Options: map[string]string{"device": "0000:0a:00.0", "namespace": namespace}}); err != nil {
			t.Error(err)
		}
	}
	if err := d.Create(&volume.CreateRequest{Name: "vv", Options: map[string]string{"device": "0000:0a:00.0"}}); err == nil {
		t.Error("namespace 1 is not namespace 3")
	}
}

func TestCreateRefuses(t *testing.T) {
	r := newRig(t)
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, make([]byte, 16<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ body, want string }{
		{`{"Name":"vv","Opts":{"sice":"1G"}}`, `unknown option "sice"`},
		{`{"Name":"vv","Opts":{"size":"1X"}}`, `size "1X" is not valid`},
		{`{"Name":"vv","Opts":{"size":"1K"}}`, `too small`},
		{`{"Name":"vv","Opts":{"kind":"disk"}}`, `kind="disk" is not valid`},
		{`{"Name":"vv","Opts":{"memory":"4G"}}`, `memory="4G" is not valid`},
		{`{"Name":"vv","Opts":{"memory":"true","kind":"image"}}`, `contradict`},
		{`{"Name":"vv","Opts":{"memory":"true","image":"/tmp/x"}}`, `a memory volume has no image`},
		{`{"Name":"vv","Opts":{"image":"x"}}`, `absolute path`},
		{`{"Name":"vv","Opts":{"image":"` + image + `"}}`, `not a blobfs image`},
		{`{"Name":"vv","Opts":{"device":"nvme0"}}`, `"nvme0" is not the address of a PCI device`},
		{`{"Name":"vv","Opts":{"device":"0000:03:00.0","namespace":"0"}}`, `namespace="0" is not valid`},
		{`{"Name":"vv","Opts":{"namespace":"2"}}`, `goes with device=`},
		{`{"Name":"vv","Opts":{"device":"0000:03:00.0","image":"/x"}}`, `has no image`},
		{`{"Name":"vv","Opts":{"device":"0000:03:00.0","kind":"memory"}}`, `has no device`},
		{`{"Name":"../v","Opts":null}`, `volume name "../v" is not valid`},
		{`{"Name":"v","Opts":null}`, `volume name "v" is too short`},
		{`{"Opts":null}`, `the volume name is empty`},
	} {
		r.fail("VolumeDriver.Create", test.body, test.want)
	}
	if volumes, err := r.reg.List(); err != nil || len(volumes) != 0 {
		t.Fatalf("left behind: %v, %v", volumes, err)
	}
}

func TestMalformedCallsDoNotEndTheService(t *testing.T) {
	r := newRig(t)
	for _, body := range []string{"", "{", "[]", `{"Name":7}`, "\x00\xff"} {
		response, err := r.client.Post("http://plugin/VolumeDriver.Create", "", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			t.Errorf("body %q: status 200", body)
		}
	}
	r.succeed("VolumeDriver.List", "{}")
}

func TestSocketLife(t *testing.T) {
	r := newRig(t)
	if err := Serve(context.Background(), Options{Registry: r.reg, Socket: r.socket}); !errors.Is(err, ErrRunning) {
		t.Fatalf("second service: %v, want ErrRunning", err)
	}
	r.succeed("VolumeDriver.Create", `{"Name":"vx"}`)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(r.socket); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("socket after the end: %v", err)
	}

	if files, err := os.ReadDir(filepath.Dir(r.socket)); err != nil || len(files) != 0 {
		t.Fatalf("left behind: %v, %v", files, err)
	}

	// A killed service leaves its socket, bound by nobody.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	r.start()
	r.succeed("VolumeDriver.Unmount", `{"Name":"vx","ID":"from before"}`)
	r.succeed("VolumeDriver.Get", `{"Name":"vx"}`)
	info, err := os.Stat(r.socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("socket: %v, %v", info, err)
	}
	r.stop()

	if err := os.WriteFile(r.socket, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Serve(context.Background(), Options{Registry: r.reg, Socket: r.socket}); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Fatalf("regular file in place of the socket: %v", err)
	}
	if data, _ := os.ReadFile(r.socket); string(data) != "precious" {
		t.Fatal("the regular file was changed")
	}
}

func TestForeignServiceIsLeftAlone(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "blobfs.sock")
	foreign, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	reg, err := registry.Open(registry.Options{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := Serve(context.Background(), Options{Registry: reg, Socket: socket}); !errors.Is(err, ErrRunning) {
		t.Fatalf("got %v, want ErrRunning", err)
	}
	if _, err := net.Dial("unix", socket); err != nil {
		t.Fatalf("the other service's socket: %v", err)
	}
}

// TestShutdownFinishesCalls ends the service in the middle of a Create and wants its answer all the same.
func TestShutdownFinishesCalls(t *testing.T) {
	r := newRig(t)
	r.block = make(chan struct{})
	r.succeed("VolumeDriver.List", "{}") // leaves an idle connection, which must not hold up the end
	answered := make(chan map[string]any, 1)
	go func() { answered <- r.call("VolumeDriver.Create", `{"Name":"slow"}`) }()
	<-r.block
	ended := make(chan error, 1)
	go func() { ended <- r.stop() }()
	for { // until the service takes no calls any more
		c, err := net.Dial("unix", r.socket)
		if err != nil {
			break
		}
		c.Close()
		time.Sleep(time.Millisecond)
	}
	r.block <- struct{}{}
	if answer := <-answered; answer["Err"] != nil {
		t.Fatalf("answer: %v", answer)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if _, err := r.reg.Get("slow"); err != nil {
		t.Fatal(err)
	}
}

func TestConcurrentCalls(t *testing.T) {
	r := newRig(t)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 5 {
				r.call("VolumeDriver.Create", `{"Name":"vx"}`)
				r.call("VolumeDriver.Mount", `{"Name":"vx","ID":"i"}`)
				r.call("VolumeDriver.Unmount", `{"Name":"vx","ID":"i"}`)
				r.call("VolumeDriver.List", `{}`)
				r.call("VolumeDriver.Remove", `{"Name":"vx"}`)
			}
		})
	}
	group.Wait()
	if _, err := r.reg.Get("vx"); !errors.Is(err, registry.ErrNotExist) {
		t.Fatalf("after the last removal: %v", err)
	}
}
