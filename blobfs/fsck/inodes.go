package fsck

import (
	"fmt"
	"sort"

	"runsc-fs/blobfs/format"
)

// inodeTable keeps of each inode what the link counts need, ordered by number.
type inodeTable struct {
	ino   []uint64
	refs  []uint32 // directory entries that name it
	state []uint32 // link count, type and the flags below
}

// Parts of inodeTable.state. A link count is at most format.MaxLinkCount.
const (
	stateNlink     = 1<<20 - 1
	stateTypeShift = 20 // four bits: the type bits of the mode, shifted right by 12
	stateBad       = 1 << 24
	stateOrphan    = 1 << 25 // an OrphanUnlinked record exists
)

func (t *inodeTable) add(ino uint64, state uint32) {
	t.ino = append(t.ino, ino)
	t.refs = append(t.refs, 0)
	t.state = append(t.state, state)
}

// find returns the index of an inode, -1 if there is none.
func (t *inodeTable) find(ino uint64) int {
	i := sort.Search(len(t.ino), func(i int) bool { return t.ino[i] >= ino })
	if i < len(t.ino) && t.ino[i] == ino {
		return i
	}
	return -1
}

func (t *inodeTable) typ(i int) uint8    { return uint8(t.state[i] >> stateTypeShift & 15) }
func (t *inodeTable) nlink(i int) uint32 { return t.state[i] & stateNlink }
func (t *inodeTable) bad(i int) bool     { return t.state[i]&stateBad != 0 }
func (t *inodeTable) orphan(i int) bool  { return t.state[i]&stateOrphan != 0 }

// dirState is what is kept of each directory.
type dirState struct {
	ino, parent uint64
	reach       reach
}

const typeDir = format.ModeDir >> 12

func typeName(t uint8) string {
	switch uint32(t) << 12 {
	case format.ModeSocket:
		return "socket"
	case format.ModeSymlink:
		return "symbolic link"
	case format.ModeRegular:
		return "regular file"
	case format.ModeBlock:
		return "block device"
	case format.ModeDir:
		return "directory"
	case format.ModeChar:
		return "character device"
	case format.ModeFIFO:
		return "FIFO"
	}
	return fmt.Sprintf("type %#o", uint32(t)<<12)
}

// checkItems looks at every item once. What concerns one inode only is
// checked here; the tables for the rest are filled.
func (c *checker) checkItems() {
	it := c.newItems()
	it.missing = func(k format.Key) {
		if !c.damaged(k, k) {
			c.found(Error, CodeLogDelete, "log", "deletes item %v, which does not exist", k)
		}
	}
	orphans := newOrphanWalk(c)
	o := &object{c: c}
	it.seek(format.Key{})
	for it.next() {
		c.rep.Counters.countItem(it.key.Kind)
		if it.key.Object == 0 {
			c.checkVolumeItem(it)
			continue
		}
		if it.key.Object != o.ino {
			o.finish()
			o.begin(it.key.Object, orphans.kindOf(it.key.Object))
		}
		o.item(it)
	}
	o.finish()
	orphans.finish()
	c.checkRoot()
}

// checkVolumeItem checks an item of object 0, except the values of orphan and
// group items, which orphanWalk and checkSpace decode.
func (c *checker) checkVolumeItem(it *items) {
	switch it.key.Kind {
	case format.KindOrphan, format.KindGroup:
	case format.KindRefcount:
		c.refcounts.item(c, it)
	case format.KindSnapshot, format.KindQuota:
		c.found(Error, CodeReserved, "item "+it.key.String(), "no volume of format version %d has items of kind %v", format.Version, it.key.Kind)
	default:
		c.found(Error, CodeItemKey, "item "+it.key.String(), "cannot belong to the volume as a whole")
	}
}

// orphanWalk moves over the orphan records in step with the inodes: both are
// ordered by inode number.
type orphanWalk struct {
	c    *checker
	it   *items
	more bool
}

func newOrphanWalk(c *checker) *orphanWalk {
	w := &orphanWalk{c: c, it: c.newItems()}
	w.it.seek(format.Key{Kind: format.KindOrphan})
	w.next()
	return w
}

func (w *orphanWalk) next() {
	w.more = w.it.next() && w.it.key.Object == 0 && w.it.key.Kind == format.KindOrphan
	if w.more {
		w.c.rep.Counters.Orphans++
	}
}

// kindOf returns the kind of the orphan record of ino, 0 if it has none, and
// reports the records of inodes that were passed over. It is called with
// ascending numbers.
func (w *orphanWalk) kindOf(ino uint64) format.OrphanKind {
	for w.more && w.it.key.Offset <= ino {
		at := w.it.key.Offset
		record, err := format.DecodeOrphan(w.it.value)
		if err != nil {
			w.c.foundInode(Error, CodeOrphanItem, at, "its orphan record is invalid: %s", reason(err))
		} else if at < ino {
			w.noInode(at)
		}
		w.next()
		if at == ino && err == nil {
			return record.Kind
		}
	}
	return 0
}

func (w *orphanWalk) noInode(ino uint64) {
	if k := (format.Key{Object: ino, Kind: format.KindInode}); !w.c.damaged(k, k) {
		w.c.foundInode(Error, CodeOrphanInode, ino, "has an orphan record but does not exist")
	}
}

func (w *orphanWalk) finish() {
	const last = 1<<64 - 1
	if w.kindOf(last) != 0 {
		w.noInode(last)
	}
}

// object checks the items of one inode as they come in the order of their keys.
type object struct {
	c      *checker
	ino    uint64
	orphan format.OrphanKind
	has    bool // there is an inode item
	good   bool // and it is valid
	node   format.Inode
	strays int // items without an inode or of a kind that its type cannot have

	inline  inlineState
	xattr   xattrState
	entries entryState
	extents extentState
}

func (o *object) begin(ino uint64, orphan format.OrphanKind) {
	o.ino, o.orphan = ino, orphan
	o.has, o.good, o.strays = false, false, 0
	o.inline, o.extents = inlineState{}, extentState{}
	o.entries.reset()
	o.xattr.reset()
}

func (o *object) found(s Severity, code Code, text string, args ...any) int {
	return o.c.foundInode(s, code, o.ino, text, args...)
}

func (o *object) typ() uint32 { return o.node.Mode & format.ModeTypeMask }

func (o *object) item(it *items) {
	if it.key.Kind == format.KindInode {
		o.inodeItem(it.key, it.value)
		return
	}
	if it.key.Kind < format.KindInode || it.key.Kind > format.KindExtent {
		o.found(Error, CodeItemKey, "has an item of kind %v, %v", it.key.Kind, it.key)
		return
	}
	if !o.has {
		if o.strays++; o.strays == 1 && !o.c.damaged(inodeKey(o.ino), inodeKey(o.ino)) {
			o.found(Error, CodeItemOwner, "does not exist, but has items, the first of kind %v", it.key.Kind)
		}
	}
	// Extents own blocks whatever is wrong with their inode.
	switch it.key.Kind {
	case format.KindExtent:
		o.extentItem(it)
	case format.KindXattr:
		o.xattrItem(it)
	case format.KindDirent:
		o.direntItem(it)
	case format.KindInline:
		o.inlineItem(it)
	}
}

func inodeKey(ino uint64) format.Key { return format.Key{Object: ino, Kind: format.KindInode} }

func (o *object) inodeItem(k format.Key, v []byte) {
	if k.Offset != 0 {
		o.found(Error, CodeItemKey, "has a second inode item at offset %d", k.Offset)
		return
	}
	o.has = true
	n, err := format.DecodeInode(v)
	if err != nil {
		o.found(Error, CodeInodeItem, "%s", reason(err))
		o.c.inodes.add(o.ino, stateBad)
		return
	}
	o.good, o.node = true, n
	state := n.Nlink | uint32(n.Mode>>12)<<stateTypeShift
	if o.orphan == format.OrphanUnlinked {
		state |= stateOrphan
	}
	o.c.inodes.add(o.ino, state)
	o.checkNumber()
	o.checkFields()
	o.checkOrphan()
	o.count()
}

func (o *object) count() {
	ctr := &o.c.rep.Counters
	ctr.Inodes++
	switch o.typ() {
	case format.ModeDir:
		ctr.Directories++
		o.c.dirs = append(o.c.dirs, dirState{ino: o.ino, parent: o.node.Parent})
	case format.ModeRegular:
		ctr.Files++
	case format.ModeSymlink:
		ctr.Symlinks++
	default:
		ctr.Special++
	}
}

func (o *object) checkNumber() {
	switch {
	case o.ino >= o.c.nextObject:
		o.found(Error, CodeInodeNumber, "has a number that was not given out yet (the next one is %d) and will be given out again", o.c.nextObject)
	case o.ino < format.FirstFreeObject && o.ino != format.RootObject:
		o.found(Error, CodeInodeNumber, "has a reserved number")
	}
}

// checkFields checks the fields of the inode against its type.
func (o *object) checkFields() {
	n, typ := &o.node, o.typ()
	name := typeName(uint8(n.Mode >> 12))
	if n.Rdev != 0 && typ != format.ModeChar && typ != format.ModeBlock {
		o.found(Warning, CodeInodeField, "is a %s with a device number", name)
	}
	if n.Blocks != 0 && typ != format.ModeRegular {
		o.found(Error, CodeInodeField, "is a %s with %d blocks", name, n.Blocks)
	}
	switch typ {
	case format.ModeSocket, format.ModeFIFO, format.ModeChar, format.ModeBlock:
		if n.Size != 0 {
			o.found(Warning, CodeInodeField, "is a %s of %d bytes", name, n.Size)
		}
	case format.ModeSymlink:
		if n.Internal&format.InodeInlineData == 0 {
			o.found(Error, CodeInodeField, "is a symbolic link whose target is not inline")
		}
		return
	}
	if n.Internal&format.InodeInlineData != 0 {
		o.found(Error, CodeInodeField, "is a %s with inline data", name)
	}
}

// checkOrphan compares the inode with its orphan record.
func (o *object) checkOrphan() {
	flag := o.node.Internal&format.InodeOrphan != 0
	key := format.Key{Kind: format.KindOrphan, Offset: o.ino}
	switch {
	case flag && o.orphan == 0 && !o.c.damaged(key, key):
		o.found(Error, CodeOrphanFlag, "says that it has an orphan record, but has none")
	case !flag && o.orphan != 0:
		o.found(Error, CodeOrphanFlag, "has an orphan record, but says that it has none")
	}
	switch {
	case o.orphan == format.OrphanUnlinked && o.node.Nlink > 0:
		o.found(Error, CodeOrphanLinked, "has %d links and an orphan record: the next mount may remove it", o.node.Nlink)
	case o.orphan == format.OrphanTruncate && o.node.Nlink == 0:
		o.found(Error, CodeOrphanKind, "has no links, but its orphan record is for truncation: it will never be removed")
	case o.orphan == format.OrphanTruncate && o.typ() != format.ModeRegular:
		o.found(Error, CodeOrphanKind, "is a %s with an orphan record for truncation", typeName(uint8(o.node.Mode>>12)))
	}
}

// finish does what needs all items of the inode.
func (o *object) finish() {
	if o.ino == 0 {
		return
	}
	o.finishXattrs()
	if !o.good {
		return
	}
	complete := !o.c.damagedObject(o.ino)
	if n := o.xattr.attrs; n > 0 && o.node.Internal&format.InodeHasXattrs == 0 {
		o.found(Error, CodeXattrFlag, "has %d extended attributes, but says that it has none", n)
	}
	switch o.typ() {
	case format.ModeDir:
		o.finishDir(complete)
	case format.ModeSymlink:
		o.finishSymlink(complete)
	}
	if sum := o.extents.blocks; sum != o.node.Blocks && o.typ() == format.ModeRegular && complete {
		o.found(Error, CodeBlockCount, "has %d blocks in its extents, but says %d", sum, o.node.Blocks)
	}
}

// misplaced reports, once for each inode, items that its type cannot have.
func (o *object) misplaced(k format.Kind) {
	if o.strays++; o.strays == 1 {
		o.found(Error, CodeItemKind, "is a %s, but has items of kind %v", typeName(uint8(o.node.Mode>>12)), k)
	}
}

// checkRoot checks that there is a root directory.
func (c *checker) checkRoot() {
	i := c.inodes.find(format.RootObject)
	if i < 0 {
		if !c.damaged(inodeKey(format.RootObject), inodeKey(format.RootObject)) {
			c.foundInode(Error, CodeRoot, format.RootObject, "the root directory does not exist")
		}
		return
	}
	if c.inodes.bad(i) {
		return
	}
	switch {
	case c.inodes.typ(i) != typeDir:
		c.foundInode(Error, CodeRoot, format.RootObject, "should be the root directory, but is a %s", typeName(c.inodes.typ(i)))
	case c.inodes.nlink(i) == 0:
		c.foundInode(Error, CodeRoot, format.RootObject, "the root directory has been removed")
	case c.dirs[0].parent != format.RootObject:
		c.foundInode(Error, CodeRoot, format.RootObject, "the parent of the root directory is inode %d, not itself", c.dirs[0].parent)
	}
}
