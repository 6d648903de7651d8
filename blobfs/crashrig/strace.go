package crashrig

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// Record makes a program of what strace has seen a process do below a
// directory. The trace is that of
//
//	strace -xx -s 1000000 -e trace=file,desc -o FILE PROGRAM
//
// of one process (with -f, of its only one that changes files). What the process
// prints as "ack N", alone in a line, becomes an ack. Files for which leaveOut
// says so, and what it stores through mappings, are left out.
func Record(trace io.Reader, dir string, leaveOut func(path string) bool) (Program, error) {
	r := recorder{dir: path.Clean(dir), leaveOut: leaveOut, open: map[string]*openFile{}, there: map[string]bool{"/": true}}
	in := bufio.NewScanner(trace)
	in.Buffer(nil, 64<<20)
	for n := 1; in.Scan(); n++ {
		if err := r.line(in.Text()); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return r.program, in.Err()
}

type recorder struct {
	dir      string
	leaveOut func(path string) bool
	open     map[string]*openFile // by descriptor
	there    map[string]bool      // paths that exist
	program  Program
	handles  int
}

type openFile struct {
	handle   string
	off      int64
	appended bool
	flags    Flags
}

var (
	call      = regexp.MustCompile(`^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)`)
	argument  = regexp.MustCompile(`"((?:\\x[0-9a-f]{2})*)"(?:\.\.\.)?|[^,]+`)
	annotated = regexp.MustCompile(`<[^>]*>`)
)

func (r *recorder) emit(o Op) { r.program = append(r.program, o) }

// inside returns the path below the directory.
func (r *recorder) inside(arg string) (string, bool) {
	p, err := unquote(arg)
	if err != nil {
		return "", false
	}
	name := path.Clean(string(p))
	if !path.IsAbs(name) {
		name = path.Join(r.dir, name) // the process works in the directory
	}
	if name == r.dir {
		return "/", true
	}
	name, ok := strings.CutPrefix(name, r.dir+"/")
	name = "/" + name
	return name, ok && !r.leaveOut(name)
}

func unquote(arg string) ([]byte, error) {
	s := strings.Trim(arg, `"`)
	if s == arg {
		return nil, fmt.Errorf("%.40q is no string", arg)
	}
	return hex.DecodeString(strings.ReplaceAll(s, `\x`, ""))
}

func (r *recorder) line(text string) error {
	m := call.FindStringSubmatch(text)
	if m == nil || m[3][0] == '-' {
		return nil // a signal, an exit, or a call that failed
	}
	args := argument.FindAllString(annotated.ReplaceAllString(m[2], ""), -1)
	for k := range args {
		args[k] = strings.TrimSpace(args[k])
	}
	result, err := strconv.ParseInt(m[3], 10, 64)
	if err != nil {
		return err
	}
	if strings.HasSuffix(m[1], "at") && len(args) > 1 && args[0] == "AT_FDCWD" && m[1] != "openat" {
		args = args[1:] // unlinkat, mkdirat
		if m[1] == "renameat" || m[1] == "linkat" {
			args = []string{args[0], args[2]}
		}
	}
	return r.call(m[1], args, result)
}

func (r *recorder) call(name string, args []string, result int64) error {
	switch name {
	case "openat":
		return r.openat(args, result)
	case "open", "creat":
		return fmt.Errorf("%s is not expected of a modern program", name)
	case "mkdir", "mkdirat", "unlink", "unlinkat", "rmdir":
		if p, ok := r.inside(args[0]); ok {
			kind := strings.TrimSuffix(name, "at")
			if len(args) > 1 && args[1] == "AT_REMOVEDIR" {
				kind = "rmdir"
			}
			r.there[p] = kind == "mkdir"
			r.emit(Op{Kind: kind, Path: p})
		}
	case "rename", "renameat", "link", "linkat":
		a, ok := r.inside(args[0])
		b, ok2 := r.inside(args[1])
		if ok && ok2 {
			kind := strings.TrimSuffix(name, "at")
			r.there[a], r.there[b] = kind == "link", true
			r.emit(Op{Kind: kind, Path: a, Path2: b})
		}
	case "write", "pwrite64", "lseek", "ftruncate", "fallocate", "fsync", "fdatasync", "close":
		return r.descriptor(name, args, result)
	}
	return nil
}

func (r *recorder) openat(args []string, result int64) error {
	p, ok := r.inside(args[1])
	fd := strconv.FormatInt(result, 10)
	delete(r.open, fd)
	if !ok {
		return nil
	}
	if !r.there[p] {
		if !strings.Contains(args[2], "O_CREAT") {
			return fmt.Errorf("%s was there before", p)
		}
		r.there[p] = true
		r.emit(Op{Kind: "creat", Path: p})
	} else if strings.Contains(args[2], "O_TRUNC") {
		r.emit(Op{Kind: "truncate", Path: p})
	}
	r.handles++
	f := &openFile{handle: fmt.Sprint("@", r.handles), appended: strings.Contains(args[2], "O_APPEND")}
	if strings.Contains(args[2], "O_DSYNC") {
		f.flags = DSync
	} else if strings.Contains(args[2], "O_SYNC") {
		f.flags = Sync
	}
	r.open[fd] = f
	r.emit(Op{Kind: "open", Path: f.handle, Path2: p})
	return nil
}

func (r *recorder) descriptor(name string, args []string, result int64) error {
	f := r.open[args[0]]
	if f == nil {
		return r.printed(name, args)
	}
	number := func(k int) int64 {
		n, _ := strconv.ParseInt(args[k], 10, 64) // strace prints numbers
		return n
	}
	switch name {
	case "lseek":
		f.off = result
	case "write", "pwrite64":
		data, err := unquote(args[1])
		if err != nil {
			return err
		}
		if int64(len(data)) != number(2) {
			return fmt.Errorf("%d bytes of %d are in the trace", len(data), number(2))
		}
		o := Op{Kind: "write", Path: f.handle, Off: f.off, Len: result, Flags: f.flags, Data: bytes.TrimRight(data[:result], "\x00")}
		switch {
		case name == "pwrite64":
			o.Off = number(3)
		case f.appended:
			o.Kind = "append"
		default:
			f.off += result
		}
		r.emit(o)
	case "ftruncate":
		r.emit(Op{Kind: "truncate", Path: f.handle, Len: number(1)})
	case "fallocate":
		if args[1] != "0" {
			return fmt.Errorf("fallocate with mode %s", args[1])
		}
		r.emit(Op{Kind: "falloc", Path: f.handle, Off: number(2), Len: number(3)})
	case "close":
		delete(r.open, args[0])
		r.emit(Op{Kind: "close", Path: f.handle})
	default:
		r.emit(Op{Kind: name, Path: f.handle})
	}
	return nil
}

var acknowledged = regexp.MustCompile(`(?m)^\W*(?:\d+: \w+ = ")?ack (\d+)\b`)

// printed looks for acknowledgements in what is written elsewhere.
func (r *recorder) printed(name string, args []string) error {
	if name != "write" || args[0] != "1" {
		return nil
	}
	text, err := unquote(args[1])
	if err != nil {
		return err
	}
	for _, m := range acknowledged.FindAllSubmatch(text, -1) {
		n, err := strconv.ParseInt(string(m[1]), 10, 64)
		if err != nil {
			return err
		}
		r.emit(Op{Kind: "ack", Len: n})
	}
	return nil
}
