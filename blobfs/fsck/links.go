package fsck

import (
	"bytes"
	"fmt"
	"sort"

	"runsc-fs/blobfs/format"
)

// entryState follows the entries of one directory.
type entryState struct {
	entries uint64
	subdirs uint64
	hash    uint64                      // of the names below, as a key offset
	names   [format.DirentProbes][]byte // entries of this hash so far
	n       int                         // how many
}

func (s *entryState) reset() { s.entries, s.subdirs, s.n = 0, 0, 0 }

func (o *object) direntItem(it *items) {
	if o.good && o.typ() != format.ModeDir {
		o.misplaced(it.key.Kind)
		return
	}
	c, s, off := o.c, &o.entries, it.key.Offset
	s.entries++
	d, err := format.DecodeDirent(it.value)
	if err != nil {
		o.found(Error, CodeEntryItem, "entry %#x: %s", off, reason(err))
		return
	}
	c.rep.Counters.Entries++
	if d.Type == typeDir {
		s.subdirs++
	}
	hash := format.DirentOffset(format.NameHash(&c.sb.HashSeed, d.Name))
	if off&^(format.DirentProbes-1) != hash {
		o.found(Error, CodeEntryPlace, "entry %q is at %#x, but would be looked for at %#x", d.Name, off, hash)
		return
	}
	if s.n == 0 || s.hash != hash {
		s.hash, s.n = hash, 0
	}
	for _, name := range s.names[:s.n] {
		if bytes.Equal(name, d.Name) {
			o.found(Error, CodeEntryTwice, "has two entries %q", d.Name)
		}
	}
	if s.n < len(s.names) {
		s.names[s.n] = append(s.names[s.n][:0], d.Name...)
		s.n++
	}
}

func (o *object) finishDir(complete bool) {
	s, n := &o.entries, &o.node
	if !complete {
		return
	}
	if s.entries != n.Size {
		o.found(Error, CodeDirCount, "has %d entries, but says %d", s.entries, n.Size)
	}
	if n.Nlink == 0 {
		if s.entries > 0 {
			o.found(Error, CodeDirLinks, "is a removed directory with %d entries", s.entries)
		}
	} else if uint64(n.Nlink) != 2+s.subdirs {
		o.found(Error, CodeDirLinks, "has %d subdirectories, and so should have %d links, but says %d", s.subdirs, 2+s.subdirs, n.Nlink)
	}
}

// checkLinks compares directory entries with inodes.
func (c *checker) checkLinks() {
	c.eachEntry(c.checkEntry)
	for i := range c.inodes.ino {
		c.checkLinkCount(i)
	}
	c.checkReach()
}

// eachEntry calls fn for every valid entry of every directory.
func (c *checker) eachEntry(fn func(dir *dirState, d *format.Dirent)) {
	it := c.newItems()
	for i := range c.dirs {
		c.eachEntryOf(it, &c.dirs[i], func(d *format.Dirent) bool {
			fn(&c.dirs[i], d)
			return true
		})
	}
}

// eachEntryOf calls fn for the valid entries of a directory until it returns false.
func (c *checker) eachEntryOf(it *items, dir *dirState, fn func(d *format.Dirent) bool) {
	it.seek(format.Key{Object: dir.ino, Kind: format.KindDirent})
	for it.next() && it.key.Object == dir.ino && it.key.Kind == format.KindDirent {
		if d, err := format.DecodeDirent(it.value); err == nil && !fn(&d) {
			return
		}
	}
}

func (c *checker) checkEntry(dir *dirState, d *format.Dirent) {
	i := c.inodes.find(d.Ino)
	if i < 0 {
		if k := inodeKey(d.Ino); !c.damaged(k, k) {
			c.foundInode(Error, CodeEntryDangling, dir.ino, "entry %q names inode %d, which does not exist", d.Name, d.Ino)
		}
		return
	}
	c.inodes.refs[i]++
	if c.inodes.bad(i) {
		return
	}
	if t := c.inodes.typ(i); t != d.Type {
		c.foundInode(Error, CodeEntryType, dir.ino, "entry %q says that inode %d is a %s, but it is a %s", d.Name, d.Ino, typeName(d.Type), typeName(t))
		return
	}
	if d.Type != typeDir {
		return
	}
	if d.Ino == format.RootObject {
		c.foundInode(Error, CodeEntryRoot, dir.ino, "entry %q names the root directory", d.Name)
		return
	}
	if child := c.findDir(d.Ino); child != nil && child.parent != dir.ino {
		c.foundInode(Error, CodeDirParent, d.Ino, "says that its parent is inode %d, but entry %q of inode %d names it", child.parent, d.Name, dir.ino)
	}
}

// checkLinkCount compares the link count of an inode with its names.
func (c *checker) checkLinkCount(i int) {
	t := &c.inodes
	ino, refs, nlink := t.ino[i], t.refs[i], t.nlink(i)
	if t.bad(i) || ino == format.RootObject {
		return
	}
	what := typeName(t.typ(i))
	// With unreadable metadata, names may be missing.
	whole := len(c.damage) == 0
	switch {
	case refs == 0 && nlink > 0:
		if whole {
			c.foundInode(Error, CodeInodeLost, ino, "is a %s that no directory names, although it should have %s", what, names(nlink, t.typ(i)))
		}
	case nlink == 0 && refs == 0:
		if key := (format.Key{Kind: format.KindOrphan, Offset: ino}); !t.orphan(i) && !c.damaged(key, key) {
			c.foundInode(Error, CodeInodeLeaked, ino, "is a %s without a name and without an orphan record: its space is never freed", what)
		}
	case t.typ(i) == typeDir:
		if nlink == 0 {
			c.foundInode(Error, CodeLinkCount, ino, "is a removed directory, but has %d names", refs)
		} else if refs > 1 {
			c.foundInode(Error, CodeDirTwice, ino, "is a directory with %d names", refs)
		}
	case refs > nlink || refs < nlink && whole:
		c.foundInode(Error, CodeLinkCount, ino, "is a %s with %s, but says %d", what, names(refs, 0), nlink)
	}
}

func names(n uint32, typ uint8) string {
	if n == 1 || typ == typeDir {
		return "one name"
	}
	return fmt.Sprintf("%d names", n)
}

// reach says whether the root is among a directory's ancestors.
type reach uint8

const (
	reachUnknown reach = iota
	reachOnPath        // on the path that is being followed
	reachYes
	reachNo
)

// checkReach follows each directory's ancestors to the root. A directory that
// has a name in its parent can miss the root only through a circle, or below
// something that was reported already.
func (c *checker) checkReach() {
	for i := range c.dirs {
		d := &c.dirs[i]
		end := reachNo
		for d != nil && d.reach == reachUnknown {
			d.reach = reachOnPath
			if d.ino == format.RootObject {
				end = reachYes
				break
			}
			d = c.findDir(d.parent)
		}
		switch {
		case d == nil || end == reachYes:
		case d.reach == reachOnPath:
			c.foundInode(Error, CodeDirCycle, d.ino, "is a directory among its own ancestors: nothing in it can be reached")
		default:
			end = d.reach
		}
		for d = &c.dirs[i]; d != nil && d.reach == reachOnPath; d = c.findDir(d.parent) {
			d.reach = end
		}
	}
}

// findDir returns the state of a directory, nil if there is none.
func (c *checker) findDir(ino uint64) *dirState {
	i := sort.Search(len(c.dirs), func(i int) bool { return c.dirs[i].ino >= ino })
	if i < len(c.dirs) && c.dirs[i].ino == ino {
		return &c.dirs[i]
	}
	return nil
}
