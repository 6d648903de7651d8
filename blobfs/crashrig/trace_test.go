package crashrig

import (
	"embed"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"runsc-fs/blobfs"
)

//go:embed testdata
var testdata embed.FS

var (
	flagRecord = flag.String("crash.record", "", "TestRecord: trace of strace to record, and its directory, separated by a comma")
	flagOut    = flag.String("crash.out", "", "TestRecord: file to write")
)

// traces are the recorded ones and one that is made, and what looks at the files
// they leave.
var traces = map[string]func(files map[string][]byte, acked int) error{
	"sqlite-delete": checkSQLite,
	"sqlite-wal":    checkSQLite,
	"postgres":      checkPostgres,
}

// traceWorker returns a worker that looks at the content of a trace's files,
// and the trace.
func traceWorker(t *testing.T, name string, stats *Stats) (*worker, Program) {
	t.Helper()
	var p Program
	if name == "postgres" {
		p = postgresProgram()
	} else {
		text, err := testdata.ReadFile("testdata/" + name + ".trace")
		if err != nil {
			t.Fatal(err)
		}
		if p, err = Parse(string(text)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	w := newWorker(t, Options{SizeBytes: 16 << 20, Sabotage: replaySabotage(t)}, stats)
	w.Extra = func(fs *blobfs.FS, acked int) error { return checkTrace(fs, acked, traces[name]) }
	return w, p
}

func checkTrace(fs *blobfs.FS, acked int, check func(map[string][]byte, int) error) error {
	root := fs.Root()
	defer root.DecRef()
	s, err := takeSnapshot(root)
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	for path, f := range s.files {
		files[path] = f.data
	}
	if err := check(files, acked); err != nil {
		return fmt.Errorf("content: %w", err)
	}
	return nil
}

// TestTraces replays recorded runs of real programs, and looks at what power
// cuts leave with the model, and as those programs would.
func TestTraces(t *testing.T) {
	for name := range traces {
		t.Run(name, func(t *testing.T) {
			var stats Stats
			w, p := traceWorker(t, name, &stats)
			h, disk, err := w.rig.Run(p)
			if err != nil {
				t.Fatal(err)
			}
			if len(h.acks) < 10 {
				t.Errorf("the trace has %d acknowledgements", len(h.acks))
			}
			if err := w.Sample(disk, *flagSeed, int(*flagStates/8), h); err != nil {
				t.Errorf("%v\n%s", err, replay("crash.trace="+name, err))
			}
			t.Log(&stats)
		})
	}
}

// TestTraceCanary leaves out a flush of a trace, and looks at the content only:
// the readers of the content have to notice, too.
func TestTraceCanary(t *testing.T) {
	for name := range traces {
		noticed := false
		for n := 10; n < 60 && !noticed; n++ {
			var stats Stats
			w, p := traceWorker(t, name, &stats)
			var err error
			if w.rig.opts.Sabotage, err = ParseSabotage(fmt.Sprintf("flush:%d", n)); err != nil {
				t.Fatal(err)
			}
			h, disk, err := w.rig.Run(p)
			if err != nil {
				t.Fatal(err)
			}
			blind := &History{acks: h.acks, model: h.model}
			blind.blind = true
			err = w.Sample(disk, 1, 200, blind)
			noticed = err != nil
			t.Logf("%s without flush %d: %.200v", name, n, err)
		}
		if !noticed {
			t.Errorf("%s: nothing was noticed", name)
		}
	}
}

// TestRecord makes a program of a trace: of a small one, or of the one that the
// flags name.
func TestRecord(t *testing.T) {
	if *flagRecord != "" {
		file, dir, _ := strings.Cut(*flagRecord, ",")
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		p, err := Record(f, dir, func(path string) bool { return strings.HasSuffix(path, "-shm") })
		if err != nil {
			t.Fatal(err)
		}
		errorIf(t, os.WriteFile(*flagOut, []byte(strings.ReplaceAll(p.String(), "; ", "\n")+"\n"), 0o644))
		return
	}
	const trace = `77  openat(AT_FDCWD</d>, "\x2f\x64\x2f\x66", O_RDWR|O_CREAT|O_CLOEXEC, 0644) = 3</d/f>
77  openat(AT_FDCWD</d>, "\x2f\x65", O_RDWR|O_CREAT|O_CLOEXEC, 0644) = 4</e>
write(3</d/f>, "\x61\x2c\x00\x00", 4)    = 4
pwrite64(3</d/f>, "\x62", 1, 4096) = 1
write(4</e>, "\x62", 1) = 1
fdatasync(3</d/f>)                   = 0
fallocate(3</d/f>, 0, 0, 8192)                   = 0
write(1<pipe:[1]>, "\x61\x63\x6b\x20\x39\x0a", 6) = 6
rename("\x2f\x64\x2f\x66", "\x2f\x64\x2f\x67") = 0
unlink("\x2f\x64\x2f\x78") = -1 ENOENT (No such file or directory)
mkdir("\x2f\x64\x2f\x78", 0777) = 0
openat(AT_FDCWD</d>, "\x2f\x64\x2f\x67", O_WRONLY|O_DSYNC|O_APPEND|O_TRUNC) = 4</d/g>
write(4</d/g>, "\x62", 1) = 1
close(3</d/f>)                   = 0
`
	const want = "creat /f; open @1 /f; write @1 0 4 =YSw; write @1 4096 1 =Yg; fdatasync @1; falloc @1 0 8192; ack 9; " +
		"rename /f /g; mkdir /x; truncate /g 0; open @2 /g; append @2 1 dsync =Yg; close @1"
	p, err := Record(strings.NewReader(trace), "/d", func(string) bool { return false })
	if err != nil || p.String() != want {
		t.Errorf("%v\n%v\nwant\n%v", err, p, want)
	}
}
