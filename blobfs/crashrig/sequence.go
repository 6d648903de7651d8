package crashrig

import "fmt"

// SequenceSetup is what is there before a sequence begins. Files are changed
// through descriptors, so that they can be renamed and removed meanwhile.
const SequenceSetup = `
	mkdir /A; mkdir /B; mkdir /A/C
	creat /foo; write /foo 0 8292; creat /A/bar; write /A/bar 0 4196; setxattr /A/bar user.x 20
	open @foo /foo; open @bar /A/bar; tmpfile @tmp /
`

// SequenceSpare is what the disk of sequences needs behind the volume.
const SequenceSpare = 2 << 20

// kind is one kind of operation in sequences, and what syncing it means.
type kind struct {
	ops    string
	file   string // to fsync after it
	parent string // directory to fsync after it
}

// coreKinds are those of which all triples are tried.
var coreKinds = []kind{
	{"creat /A/new", "/A/new", "/A"},
	{"mkdir /A/D", "/A/D", "/A"},
	{"falloc @foo 8192 8192", "@foo", "/"},
	{"append @foo 5000", "@foo", "/"},
	{"write @foo 4000 4200", "@foo", "/"},
	{"write @bar 0 4096 direct", "@bar", "/A"},
	{"store @foo 100 5000", "@foo", "/"},
	{"link @foo /A/ln", "@foo", "/A"},
	{"symlink /A/sl ../foo", "/A", "/A"},
	{"unlink /A/bar", "@bar", "/A"},
	{"rmdir /A/C", "/A", "/A"},
	{"rename /foo /A/moved", "@foo", "/A"},
	{"rename /A/bar /foo", "@bar", "/"},
	{"truncate @foo 3000", "@foo", "/"},
	{"punch @foo 0 4096", "@foo", "/"},
	{"setxattr @foo user.y 50", "@foo", "/"},
	{"rmxattr @bar user.x", "@bar", "/A"},
	{"append @foo 4000 dsync", "@foo", "/"},
}

// moreKinds join them in pairs.
var moreKinds = []kind{
	{"creat /A/new; append /A/new 9000", "/A/new", "/A"},
	{"write @foo 100 200 sync", "@foo", "/"},
	{"write @foo 16384 4096 direct,dsync", "@foo", "/"},
	{"append @tmp 5000; link @tmp /A/tmp", "@tmp", "/A"},
	{"append @tmp 6000; fsync @tmp; link @tmp /B/tmp", "@tmp", "/B"},
	{"exchange /foo /A/bar", "@foo", "/A"},
	{"rename /A /B/A", "/B/A", "/B"},
	{"zero @foo 1000 9000", "@foo", "/"},
	{"falloc @bar 4096 20000 keep", "@bar", "/A"},
	{"truncate @bar 20000", "@bar", "/A"},
	{"chmod @foo 384", "@foo", "/"},
	{"unlink /foo", "@foo", "/"},
	{"truncate @foo 0; append @foo 8000", "@foo", "/"},
	{"collapse @foo 0 4096", "@foo", "/"},
	{"insert @foo 4096 8192", "@foo", "/"},
	{"resize 10485760", "@foo", "/"},
	{"unlink /A/bar; close @bar; sync; discard; append @foo 30000", "@foo", "/A"},
}

// persistence is what may follow an operation.
const persistence = 5

func (k *kind) persist(n int) string {
	switch n % persistence {
	case 1:
		return "; fsync " + k.file
	case 2:
		return "; fdatasync " + k.file
	case 3:
		return "; fsync " + k.parent
	case 4:
		return "; sync"
	}
	return ""
}

// Sequences is the number of sequences: all triples of the core kinds, all
// pairs of all kinds, and each kind alone.
func Sequences() int {
	core, all := len(coreKinds), len(coreKinds)+len(moreKinds)
	return core*core*core + all*all + all
}

// Sequence returns sequence number n. What persists between and after its
// operations depends on n and on round; persistence^3 rounds have all there are.
func Sequence(n, round int) Program {
	core := len(coreKinds)
	all := append(coreKinds[:core:core], moreKinds...)
	number := n
	var picked []kind
	pick := func(from []kind, count int) {
		for range count {
			picked = append(picked, from[n%len(from)])
			n /= len(from)
		}
	}
	switch triples, pairs := core*core*core, len(all)*len(all); {
	case n < triples:
		pick(coreKinds, 3)
	case n < triples+pairs:
		n -= triples
		pick(all, 2)
	default:
		n -= triples + pairs
		pick(all, 1)
	}
	text, pattern := "", number*7+round
	for _, k := range picked {
		text += k.ops + k.persist(pattern) + "\n"
		pattern /= persistence
	}
	p, err := Parse(text)
	if err != nil {
		panic(fmt.Sprintf("crashrig: sequence %d: %v", number, err))
	}
	return p
}
