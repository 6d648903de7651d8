package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/sandbox"

	"runsc-fs/sentry/volumestats"
)

// Fake answers like a sandbox of another version.
type Fake struct{ hang chan struct{} }

func (f *Fake) Answer(_ *struct{}, out *string) error { *out = "yes"; return nil }
func (f *Fake) Refuse(_ *struct{}, _ *string) error   { return errors.New("no reason") }
func (f *Fake) Hang(_ *struct{}, _ *string) error     { <-f.hang; return nil }

// TestAskSandbox asks sandboxes that answer, refuse, do not know the call, do not answer, and are
// not there. The path of the socket is longer than an address may be.
func TestAskSandbox(t *testing.T) {
	dir := t.TempDir()
	long := filepath.Join(dir, strings.Repeat("d", 100))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(long, "control.sock")
	t.Chdir(long)
	listener, err := unet.BindAndListen("control.sock", false)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	fake := &Fake{make(chan struct{})}
	server := urpc.NewServer()
	server.Register(fake)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			server.StartHandling(conn)
		}
	}()
	defer close(fake.hang)
	c := &container.Container{ID: "c", Sandbox: &sandbox.Sandbox{ID: "c", ControlSocketPath: path}}
	for _, test := range []struct {
		method, want string
		patience     time.Duration
	}{
		{"Fake.Answer", "", time.Minute},
		{"Fake.Refuse", `container "c": no reason`, time.Minute},
		{"Fake.Unknown", `container "c": its sandbox was started by an older runsc-fs that cannot tell; restart it`, time.Minute},
		{"Fake.Hang", `container "c": its sandbox does not answer for 10ms`, 10 * time.Millisecond},
	} {
		var answer string
		err := askSandbox(c, test.method, &struct{}{}, &answer, test.patience)
		if have := fmt.Sprint(err); have != test.want && (err != nil || answer != "yes") {
			t.Errorf("%s: %s\nwant %s", test.method, have, test.want)
		}
	}
	c.Sandbox.ControlSocketPath = filepath.Join(dir, "none")
	if err := askSandbox(c, "Fake.Answer", &struct{}{}, new(string), time.Minute); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("without a socket: %v", err)
	}
}

// TestDrawTrace draws names that are none in XML.
func TestDrawTrace(t *testing.T) {
	r := &traceResult{Container: "<c&>", Seconds: 1, Every: 64}
	for _, op := range []string{"read", "write"} {
		r.Calls = append(r.Calls, traceCalls{Volume: "v<", Op: op, Total: traceTimes{Count: 1, MeanUs: 3}, Stages: []traceStage{
			{"vfs", traceTimes{Count: 1, Share: 0.25}}, {"alloc", traceTimes{}}, {"copy", traceTimes{Count: 1, Share: 0.75}},
		}})
	}
	var text strings.Builder
	bars := 0
	d := xml.NewDecoder(strings.NewReader(string(drawTrace(r))))
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.CharData:
			text.Write(token)
		case xml.StartElement:
			if token.Name.Local == "title" {
				bars++
			}
		}
	}
	if bars != 4 || !strings.Contains(text.String(), "<c&>") || !strings.Contains(text.String(), "v< write") {
		t.Errorf("%d bars, and the text %s", bars, text.String())
	}
	drawTrace(&traceResult{}) // nothing to draw
}

// TestActivity takes two readings off each other; the sandbox was started again in between.
func TestActivity(t *testing.T) {
	key := volumeUser{"s", "c", "v"}
	at := time.Now()
	reading := func(after time.Duration, count, bytes uint64, latency volumestats.Histogram) *reading {
		return &reading{at.Add(after), map[volumeUser]volumestats.Report{key: {Calls: []volumestats.CallReport{{Op: "read", Count: count, Bytes: bytes, Latency: latency}}}}}
	}
	first := reading(0, 10, 100, volumestats.Histogram{{100, 5}})
	rows, err := activity(first, reading(2*time.Second, 30, 500, volumestats.Histogram{{100, 5}, {200, 7}}))
	if err != nil || len(rows) != 1 || rows[0].Calls["read"].PerSecond != 10 || rows[0].Calls["read"].BytesPerSecond != 200 || rows[0].Calls["read"].Timed != 7 {
		t.Errorf("%+v, %v", rows, err)
	}
	rows, err = activity(first, reading(time.Second, 4, 40, volumestats.Histogram{{100, 1}}))
	if err != nil || rows[0].Calls["read"].PerSecond != 4 || rows[0].Calls["read"].Timed != 1 {
		t.Errorf("%+v, %v", rows, err)
	}
	if _, err := activity(first, reading(time.Second, 40, 40, volumestats.Histogram{{-1, 1}})); err == nil {
		t.Error("a histogram that is none is taken")
	}
}
