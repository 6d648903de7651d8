package crashrig

import (
	"fmt"
	"math/rand/v2"
)

// RandomSetup is what is there before a random program begins.
const RandomSetup = `
	mkdir /a; mkdir /b; mkdir /a/c
	creat /f0; creat /f1; write /f1 0 300000; creat /a/f2; append /a/f2 5000
	open @0 /f0; open @1 /f1; open @2 /a/f2
`

// RandomSpare is what the disk of random programs needs behind the volume.
const RandomSpare = 16 << 20

// Random returns a program of n random operations. Some of them fail.
func Random(seed uint64, n int) Program {
	g := generator{rand.New(rand.NewPCG(seed, 0x9c))}
	var p Program
	for len(p) < n {
		p = append(p, g.op())
	}
	return p
}

type generator struct{ *rand.Rand }

func (g generator) path() string {
	dir := []string{"/", "/", "/a/", "/b/", "/a/c/", "/b/d0/"}[g.IntN(6)]
	return fmt.Sprint(dir, []string{"f", "f", "d"}[g.IntN(3)], g.IntN(3))
}

// file is a path or an open file, mostly the latter.
func (g generator) file() string {
	if g.IntN(4) == 0 {
		return g.path()
	}
	return fmt.Sprint("@", g.IntN(4))
}

// span is a range, as often as not at the edges of blocks.
func (g generator) span() (off, n int64) {
	off, n = g.Int64N(200_000), 1+g.Int64N(9000)
	if g.IntN(8) == 0 {
		n *= 12
	}
	switch g.IntN(3) {
	case 0:
		off &^= pageBytes - 1
		n = (n + pageBytes - 1) &^ (pageBytes - 1)
	case 1:
		off &^= pageBytes - 1
	}
	return off, n
}

func (g generator) syncFlags() Flags { return []Flags{0, 0, 0, 0, DSync, Sync}[g.IntN(6)] }

func (g generator) op() Op {
	off, n := g.span()
	switch k := g.IntN(100); {
	case k < 20:
		o := Op{Kind: "write", Path: g.file(), Off: off, Len: n, Flags: g.syncFlags()}
		if g.IntN(3) == 0 {
			o.Off, o.Len = off&^(pageBytes-1), (n+pageBytes-1)&^(pageBytes-1)
			o.Flags |= Direct
		}
		return o
	case k < 30:
		return Op{Kind: "append", Path: g.file(), Len: 1 + g.Int64N(6000), Flags: g.syncFlags()}
	case k < 36:
		return Op{Kind: "store", Path: g.file(), Off: off / 4, Len: min(n, 9000)}
	case k < 41:
		return Op{Kind: "truncate", Path: g.file(), Len: off}
	case k < 49:
		return Op{Kind: []string{"falloc", "punch", "zero"}[g.IntN(3)], Path: g.file(), Off: off, Len: n}.with(g, KeepSize)
	case k < 52:
		const mask = pageBytes - 1
		kind := []string{"clone", "clone", "clone", "dedupe"}[g.IntN(4)]
		return Op{Kind: kind, Path: g.file(), Path2: g.file(), Off: off &^ mask, Len: max((n*4)&^mask, pageBytes)}
	case k < 54:
		return Op{Kind: "creat", Path: g.path()}
	case k < 57:
		return Op{Kind: "mkdir", Path: g.path()}
	case k < 59:
		return Op{Kind: "symlink", Path: g.path(), Path2: "../somewhere"}
	case k < 62:
		return Op{Kind: "link", Path: g.file(), Path2: g.path()}
	case k < 68:
		return Op{Kind: []string{"rename", "rename", "exchange"}[g.IntN(3)], Path: g.path(), Path2: g.path()}
	case k < 73:
		return Op{Kind: []string{"unlink", "rmdir"}[g.IntN(2)], Path: g.path()}
	case k < 76:
		return Op{Kind: []string{"setxattr", "setxattr", "rmxattr"}[g.IntN(3)], Path: g.file(), Path2: fmt.Sprint("user.", g.IntN(3)), Len: g.Int64N(3000)}
	case k < 78:
		return Op{Kind: "chmod", Path: g.file(), Len: g.Int64N(0o1000)}
	case k < 81:
		return Op{Kind: []string{"open", "open", "tmpfile"}[g.IntN(3)], Path: fmt.Sprint("@", g.IntN(4)), Path2: g.path()}
	case k < 84:
		const mask = pageBytes - 1
		return Op{Kind: []string{"collapse", "insert"}[g.IntN(2)], Path: g.file(), Off: (off / 4) &^ mask, Len: (n + mask) &^ mask}
	case k < 85:
		return Op{Kind: "discard"}
	case k < 86:
		return Op{Kind: "resize", Len: 8<<20 + g.Int64N(RandomSpare/pageBytes)*pageBytes}
	case k < 98:
		return Op{Kind: []string{"fsync", "fdatasync", "msync"}[g.IntN(3)], Path: g.file()}
	default:
		return Op{Kind: "sync"}
	}
}

// with adds flags to every second operation that has them.
func (o Op) with(g generator, f Flags) Op {
	if o.Kind != "punch" && g.IntN(2) == 0 {
		o.Flags |= f
	}
	return o
}
