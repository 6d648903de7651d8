package fsck

import (
	"runsc-fs/blobfs/format"
)

// maxPathDepth bounds the components of a path that are looked for.
const maxPathDepth = 64

// place is one name of an inode.
type place struct {
	dir  uint64
	name string
}

// findPaths finds path names for the inodes that findings are about.
func (c *checker) findPaths() {
	places := map[uint64]place{}
	wanted := map[uint64]bool{}
	scan := false
	for i := range c.rep.Findings {
		ino := c.rep.Findings[i].Ino
		if ino == 0 || ino == format.RootObject {
			continue
		}
		wanted[ino] = true
		scan = scan || c.findDir(ino) == nil
	}
	if scan { // files do not say who names them
		c.eachEntry(func(dir *dirState, d *format.Dirent) {
			if wanted[d.Ino] && c.findDir(d.Ino) == nil {
				places[d.Ino] = place{dir.ino, string(d.Name)}
			}
		})
	}
	dirs := map[uint64]bool{}
	for ino := range wanted {
		if p, ok := places[ino]; ok {
			dirs[p.dir] = true
		} else if c.findDir(ino) != nil {
			dirs[ino] = true
		}
	}
	for range maxPathDepth {
		if dirs = c.nameDirs(dirs, places); len(dirs) == 0 {
			break
		}
	}
	for i := range c.rep.Findings {
		if f := &c.rep.Findings[i]; f.Ino != 0 {
			f.Path = c.pathOf(f.Ino, places)
		}
	}
}

// nameDirs finds the names of directories, reading each of their parents once,
// and returns the parents whose names are not known yet.
func (c *checker) nameDirs(dirs map[uint64]bool, places map[uint64]place) map[uint64]bool {
	parents := map[uint64]bool{}
	for ino := range dirs {
		if _, known := places[ino]; known || ino == format.RootObject {
			continue
		}
		if d := c.findDir(ino); d != nil {
			parents[d.parent] = true
		}
	}
	it := c.newItems()
	next := map[uint64]bool{}
	for ino := range parents {
		parent := c.findDir(ino)
		if parent == nil {
			continue
		}
		c.eachEntryOf(it, parent, func(d *format.Dirent) bool {
			if dirs[d.Ino] {
				places[d.Ino] = place{ino, string(d.Name)}
			}
			return true
		})
		if _, known := places[ino]; !known && ino != format.RootObject {
			next[ino] = true
		}
	}
	return next
}

// pathOf puts a path together; "" if the inode has no name that is known.
func (c *checker) pathOf(ino uint64, places map[uint64]place) string {
	if ino == format.RootObject {
		return "/"
	}
	path := ""
	for range maxPathDepth {
		p, ok := places[ino]
		if !ok {
			break
		}
		path = "/" + p.name + path
		if ino = p.dir; ino == format.RootObject {
			return path
		}
	}
	if path == "" {
		return ""
	}
	return "…" + path
}
