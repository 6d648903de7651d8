package crashrig

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Op is one operation. A path that begins with @ is a file that was opened
// under that name.
type Op struct {
	Kind  string // a key of syntax
	Path  string
	Path2 string // second path; target of a symlink; name of an attribute
	Off   int64
	Len   int64 // length, size, mode or number
	Flags Flags
	Data  []byte // what is written; nil: bytes that tell operation and place
}

// Flags modify writes and allocation.
type Flags uint8

// Values of Flags.
const (
	Direct   Flags = 1 << iota // O_DIRECT
	DSync                      // O_DSYNC
	Sync                       // O_SYNC
	KeepSize                   // FALLOC_FL_KEEP_SIZE
)

var flagNames = []string{"direct", "dsync", "sync", "keep"}

// syntax says which operands follow each kind: p, q paths or names, o, n
// numbers, f flags (may be missing), d data (may be missing).
var syntax = map[string]string{
	"creat": "p", "mkdir": "p", "symlink": "pq", "link": "pq", "rename": "pq", "exchange": "pq", "unlink": "p", "rmdir": "p",
	"open": "pq", "close": "p", "tmpfile": "pq",
	"write": "ponfd", "append": "pnfd", "store": "pon", "truncate": "pn", "falloc": "ponf", "punch": "pon", "zero": "ponf",
	"clone": "pqon", "dedupe": "pqon", "collapse": "pon", "insert": "pon", "resize": "n", "discard": "",
	"setxattr": "pqn", "rmxattr": "pq", "chmod": "pn",
	"fsync": "p", "fdatasync": "p", "msync": "p", "sync": "", "ack": "n",
}

// String is the operation as Parse reads it.
func (o Op) String() string {
	b := []byte(o.Kind)
	for _, c := range syntax[o.Kind] {
		switch c {
		case 'p':
			b = append(append(b, ' '), o.Path...)
		case 'q':
			b = append(append(b, ' '), o.Path2...)
		case 'o':
			b = strconv.AppendInt(append(b, ' '), o.Off, 10)
		case 'n':
			b = strconv.AppendInt(append(b, ' '), o.Len, 10)
		case 'f':
			sep := " "
			for k, name := range flagNames {
				if o.Flags&(1<<k) != 0 {
					b = append(append(b, sep...), name...)
					sep = ","
				}
			}
		case 'd':
			if o.Data != nil {
				b = append(append(b, ' '), encodeData(o.Data)...)
			}
		}
	}
	return string(b)
}

// Program is a sequence of operations.
type Program []Op

func (p Program) String() string {
	lines := make([]string, len(p))
	for k, o := range p {
		lines[k] = o.String()
	}
	return strings.Join(lines, "; ")
}

// Parse reads operations, one a line or separated by semicolons. Lines that
// begin with # are left out.
func Parse(text string) (Program, error) {
	var p Program
	for n, line := range strings.FieldsFunc(text, func(c rune) bool { return c == '\n' || c == ';' }) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		o, err := parseOp(fields)
		if err != nil {
			return nil, fmt.Errorf("operation %d, %q: %w", n+1, strings.TrimSpace(line), err)
		}
		p = append(p, o)
	}
	return p, nil
}

func parseOp(fields []string) (o Op, err error) {
	o.Kind = fields[0]
	operands, ok := syntax[o.Kind]
	if !ok {
		return o, fmt.Errorf("no such operation")
	}
	rest := fields[1:]
	for _, c := range operands {
		if c == 'f' {
			if len(rest) > 0 && rest[0][0] != '=' && rest[0][0] != '~' {
				if o.Flags, err = parseFlags(rest[0]); err != nil {
					return o, err
				}
				rest = rest[1:]
			}
			continue
		}
		if c == 'd' && len(rest) == 0 {
			continue
		}
		if len(rest) == 0 {
			return o, fmt.Errorf("too few operands")
		}
		word := rest[0]
		rest = rest[1:]
		switch c {
		case 'p':
			o.Path = word
		case 'q':
			o.Path2 = word
		case 'o':
			o.Off, err = strconv.ParseInt(word, 10, 64)
		case 'n':
			o.Len, err = strconv.ParseInt(word, 10, 64)
		case 'd':
			if o.Data, err = decodeData(word); err == nil && int64(len(o.Data)) > o.Len {
				return o, fmt.Errorf("more than %d bytes", o.Len)
			}
		}
		if err != nil {
			return o, err
		}
	}
	if len(rest) > 0 {
		return o, fmt.Errorf("too many operands")
	}
	return o, nil
}

func parseFlags(word string) (f Flags, err error) {
next:
	for _, s := range strings.Split(word, ",") {
		for k, name := range flagNames {
			if s == name {
				f |= 1 << k
				continue next
			}
		}
		return 0, fmt.Errorf("no such flag: %q", s)
	}
	return f, nil
}

// encodeData gives bytes as one word: base64 after =, or after ~ if they were
// deflated, whichever is shorter.
func encodeData(b []byte) string {
	var packed bytes.Buffer
	w, _ := flate.NewWriter(&packed, flate.BestCompression) // fails for levels only
	w.Write(b)
	w.Close()
	if packed.Len() < len(b) {
		return "~" + base64.RawStdEncoding.EncodeToString(packed.Bytes())
	}
	return "=" + base64.RawStdEncoding.EncodeToString(b)
}

func decodeData(word string) ([]byte, error) {
	b, err := base64.RawStdEncoding.DecodeString(word[1:])
	switch {
	case err != nil:
		return nil, err
	case word[0] == '=':
		return b, nil
	case word[0] == '~':
		return io.ReadAll(flate.NewReader(bytes.NewReader(b)))
	}
	return nil, fmt.Errorf("%.20q is no data", word)
}

// payload is what operation number n writes: recorded data, with zeroes up to
// the length, or bytes that are never zero and tell number and place.
func (o *Op) payload(n int, off int64) []byte {
	b := make([]byte, o.Len)
	if o.Data != nil {
		copy(b, o.Data)
		return b
	}
	for k := range b {
		at := off + int64(k)
		b[k] = byte(n*37+int(at>>9)*11+int(at&7)) | 1
	}
	return b
}
