package blobfstest

import (
	"bytes"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"runsc-fs/blobfs"
)

func (r *Runner) make(dir *Node, s string, n *Node, spec blobfs.NewInode) error {
	spec.Mode = n.Mode
	real, err := r.real(dir)
	if err != nil {
		return err
	}
	i, got := real.Create(s, spec)
	if err := r.mirror(got, func(h *host) error { return h.create(dir, s, n) }); err != nil {
		return err
	}
	if err := same(got, r.model.create(dir, s, n)); err != nil || got != nil {
		return err
	}
	return r.adopt(n, i)
}

func (r *Runner) opCreate() error {
	dir, s := r.pickDir(), r.pickName()
	r.describe("create %q", s)
	n := newNode(blobfs.ModeRegular | 0o644)
	spec := blobfs.NewInode{}
	if r.rng.IntN(4) == 0 {
		n.Xattrs["security.label"] = r.bytes(20)
		spec.Xattrs = []blobfs.Xattr{{Name: "security.label", Value: n.Xattrs["security.label"]}}
	}
	return r.make(dir, s, n, spec)
}

func (r *Runner) opMkdir() error {
	dir, s := r.pickDir(), r.pickName()
	r.describe("mkdir %q", s)
	return r.make(dir, s, newNode(blobfs.ModeDir|0o755), blobfs.NewInode{})
}

func (r *Runner) opSymlink() error {
	dir, s := r.pickDir(), r.pickName()
	r.describe("symlink %q", s)
	n := newNode(blobfs.ModeSymlink | 0o777)
	n.Target = string(bytes.Repeat([]byte("t/"), 1+r.rng.IntN(2000)))
	return r.make(dir, s, n, blobfs.NewInode{Target: n.Target})
}

func (r *Runner) opMknod() error {
	dir, s := r.pickDir(), r.pickName()
	r.describe("mknod %q", s)
	types := []uint32{blobfs.ModeFIFO, blobfs.ModeSocket, blobfs.ModeChar, blobfs.ModeBlock}
	n := newNode(types[r.rng.IntN(4)] | 0o600)
	if n.typ() == blobfs.ModeChar || n.typ() == blobfs.ModeBlock {
		n.Rdev = 0x1234
	}
	return r.make(dir, s, n, blobfs.NewInode{Rdev: n.Rdev})
}

func (r *Runner) opTmpfile() error {
	dir := r.pickDir()
	r.describe("tmpfile")
	real, err := r.real(dir)
	if err != nil {
		return err
	}
	n := newNode(blobfs.ModeRegular | 0o600)
	n.Nlink = 0
	i, got := real.CreateUnlinked(blobfs.NewInode{Mode: n.Mode})
	if err := r.mirror(got, func(h *host) error { return h.tmpfile(dir, n) }); err != nil {
		return err
	}
	if err := same(got, nil); err != nil || got != nil {
		return err
	}
	r.open = append(r.open, n)
	r.tmp[n] = true
	return r.adopt(n, i)
}

func (r *Runner) opLink() error {
	dir, s := r.pickDir(), r.pickName()
	n := r.pick(func(*Node) bool { return true })
	r.describe("link %q", s)
	real, err := r.real(dir)
	if err != nil {
		return err
	}
	target, err := r.real(n)
	if err != nil {
		return err
	}
	was := n.Nlink
	got := real.Link(s, target)
	if err := r.mirror(got, func(h *host) error { return h.link(dir, s, n) }); err != nil {
		return err
	}
	if err := same(got, r.model.link(dir, s, n, r.tmp[n])); err != nil {
		return err
	}
	if was == 0 && n.Nlink > 0 {
		delete(r.tmp, n)
		r.open = slices.DeleteFunc(r.open, func(o *Node) bool { return o == n })
	}
	return nil
}

func (r *Runner) opUnlink() error { return r.removeOp(false) }
func (r *Runner) opRmdir() error  { return r.removeOp(true) }

func (r *Runner) removeOp(rmdir bool) error {
	dir := r.pickDir()
	s := r.pickExisting(dir)
	r.describe("remove %q, directory %v", s, rmdir)
	real, err := r.real(dir)
	if err != nil {
		return err
	}
	victim := dir.Children[s]
	var got error
	if rmdir {
		got = real.Rmdir(s, nil)
	} else {
		got = real.Unlink(s, nil)
	}
	if err := r.mirror(got, func(h *host) error { return h.remove(dir, s, rmdir) }); err != nil {
		return err
	}
	if err := same(got, r.model.remove(dir, s, rmdir)); err != nil {
		return err
	}
	r.afterDrop(victim)
	return nil
}

// afterDrop deals with a node that may have lost its last name.
func (r *Runner) afterDrop(n *Node) {
	if n == nil || !n.removed() || slices.Contains(r.open, n) {
		return
	}
	if n.handle != nil {
		r.open = append(r.open, n)
	}
}

func (r *Runner) opRename() error {
	oldDir, newDir := r.pickDir(), r.pickDir()
	if r.rng.IntN(3) == 0 {
		newDir = oldDir
	}
	oldName, newName := r.pickExisting(oldDir), r.pickExisting(newDir)
	flags := []blobfs.RenameFlags{0, 0, 0, blobfs.RenameNoReplace, blobfs.RenameExchange, blobfs.RenameWhiteout}[r.rng.IntN(6)]
	r.describe("rename %q %q flags %d", oldName, newName, flags)
	od, err := r.real(oldDir)
	if err != nil {
		return err
	}
	nd, err := r.real(newDir)
	if err != nil {
		return err
	}
	victim := newDir.Children[newName]
	got := r.fs.Rename(od, oldName, nd, newName, flags)
	if err := r.mirror(got, func(h *host) error { return h.rename(oldDir, oldName, newDir, newName, flags) }); err != nil {
		return err
	}
	if err := same(got, r.model.rename(oldDir, oldName, newDir, newName, flags)); err != nil {
		return err
	}
	r.afterDrop(victim)
	if r.host != nil && got == nil && flags == blobfs.RenameWhiteout && oldDir.Children[oldName] != nil && r.host.fds[oldDir.Children[oldName]] == 0 {
		return r.host.adopt(oldDir, oldName, oldDir.Children[oldName])
	}
	return nil
}

// direct chooses between buffered and direct I/O and aligns the span for the latter.
func (r *Runner) direct(off, n *int64) blobfs.IOFlags {
	if r.rng.IntN(4) > 0 {
		return 0
	}
	align := r.fs.DirectAlignBytes()
	if r.rng.IntN(2) == 0 {
		align = blobfs.BlockSizeBytes
	}
	*off &^= align - 1
	*n = (*n + align - 1) &^ (align - 1)
	return blobfs.IODirect
}

func (r *Runner) opWrite() error {
	n := r.pickFile()
	if n == nil {
		return nil
	}
	off, count := r.span(r.opts.MaxFileBytes)
	flags := r.direct(&off, &count)
	if r.rng.IntN(10) == 0 {
		flags |= blobfs.IODSync
	}
	r.describe("write %d bytes at %d of %d, flags %d", count, off, len(n.Data), flags)
	real, err := r.real(n)
	if err != nil {
		return err
	}
	data := r.bytes(int(count))
	got, err := real.WriteAt(&source{data}, off, count, flags)
	if err != nil || got != count {
		return fmt.Errorf("wrote %d: %w", got, err)
	}
	n.write(off, data)
	return r.mirror(err, func(h *host) error { return h.write(n, off, data) })
}

func (r *Runner) opAppend() error {
	n := r.pickFile()
	if n == nil || int64(len(n.Data)) > r.opts.MaxFileBytes {
		return nil
	}
	count := 1 + r.rng.IntN(3000)
	r.describe("append %d bytes at %d", count, len(n.Data))
	real, err := r.real(n)
	if err != nil {
		return err
	}
	data := r.bytes(count)
	off, got, err := real.Append(&source{data}, int64(count), 0)
	if err != nil || got != int64(count) || off != int64(len(n.Data)) {
		return fmt.Errorf("appended %d at %d: %w", got, off, err)
	}
	n.write(off, data)
	return r.mirror(err, func(h *host) error { return h.write(n, off, data) })
}

func (r *Runner) opRead() error {
	n := r.pickFile()
	if n == nil {
		return nil
	}
	off, count := r.span(r.opts.MaxFileBytes)
	flags := r.direct(&off, &count)
	r.describe("read %d bytes at %d of %d, flags %d", count, off, len(n.Data), flags)
	return r.compare(n, off, count, flags)
}

// compare reads a part of a file and compares it with the model.
func (r *Runner) compare(n *Node, off, count int64, flags blobfs.IOFlags) error {
	real, err := r.real(n)
	if err != nil {
		return err
	}
	var s sink
	got, err := real.ReadAt(&s, off, count, flags)
	if err != nil {
		return err
	}
	off = min(off, int64(len(n.Data)))
	want := n.Data[off:min(off+count, int64(len(n.Data)))]
	if got != int64(len(s.b)) || got != int64(len(want)) {
		return fmt.Errorf("read %d bytes (%d), not %d", got, len(s.b), len(want))
	}
	return sameBytes(off, s.b, want)
}

func sameBytes(off int64, got, want []byte) error {
	for k := range want {
		if got[k] != want[k] {
			return fmt.Errorf("byte %d is %#x, not %#x", off+int64(k), got[k], want[k])
		}
	}
	return nil
}

func (r *Runner) opTruncate() error {
	n := r.pickFile()
	if n == nil {
		return nil
	}
	size, _ := r.span(r.opts.MaxFileBytes)
	if r.rng.IntN(3) == 0 {
		size = max(int64(len(n.Data))-r.rng.Int64N(5000), 0)
	}
	r.describe("truncate from %d to %d", len(n.Data), size)
	real, err := r.real(n)
	if err != nil {
		return err
	}
	if err := real.Truncate(size); err != nil {
		return err
	}
	n.resize(size)
	if err := r.mirror(nil, func(h *host) error { return h.truncate(n, size) }); err != nil {
		return err
	}
	r.mapsMu.Lock()
	defer r.mapsMu.Unlock()
	for _, m := range r.maps {
		if m.node == n && m.page*blobfs.BlockSizeBytes >= size {
			return fmt.Errorf("page %d is still mapped", m.page)
		}
	}
	return nil
}

func (r *Runner) opFallocate() error {
	n := r.pickFile()
	if n == nil {
		return nil
	}
	off, count := r.span(r.opts.MaxFileBytes)
	mode := []blobfs.FallocateMode{
		0, blobfs.FallocKeepSize, blobfs.FallocUnshare, blobfs.FallocUnshare | blobfs.FallocKeepSize, blobfs.FallocPunchHole | blobfs.FallocKeepSize,
		blobfs.FallocPunchHole | blobfs.FallocKeepSize, blobfs.FallocZeroRange, blobfs.FallocZeroRange | blobfs.FallocKeepSize,
	}[r.rng.IntN(8)]
	r.describe("fallocate mode %#x, %d bytes at %d of %d", mode, count, off, len(n.Data))
	real, err := r.real(n)
	if err != nil {
		return err
	}
	if err := real.Fallocate(mode, off, count); err != nil {
		return err
	}
	if err := r.mirror(nil, func(h *host) error { return h.fallocate(n, mode, off, count) }); err != nil {
		return err
	}
	if mode&(blobfs.FallocPunchHole|blobfs.FallocZeroRange) != 0 {
		n.zero(off, off+count)
	}
	if end := off + count; mode&blobfs.FallocKeepSize == 0 && end > int64(len(n.Data)) {
		n.resize(end)
	}
	return nil
}

// opSeek checks that what is not zero is never in a hole.
func (r *Runner) opSeek() error {
	n := r.pickFile()
	if n == nil || len(n.Data) == 0 {
		return nil
	}
	off := r.rng.Int64N(int64(len(n.Data)))
	r.describe("seek from %d of %d", off, len(n.Data))
	real, err := r.real(n)
	if err != nil {
		return err
	}
	data, err := real.SeekData(off)
	if err != nil {
		if err := same(err, blobfs.ErrNoData); err != nil {
			return err
		}
		data = int64(len(n.Data))
	}
	if k := bytes.IndexFunc(n.Data[off:data], func(c rune) bool { return c != 0 }); k >= 0 {
		return fmt.Errorf("data at %d, but byte %d is not zero", data, off+int64(k))
	}
	hole, err := real.SeekHole(off)
	if err != nil || hole < off || hole > int64(len(n.Data)) {
		return fmt.Errorf("hole at %d: %w", hole, err)
	}
	if _, err := real.SeekHole(int64(len(n.Data))); err == nil {
		return fmt.Errorf("found a hole at the end of the file")
	}
	return nil
}

func (r *Runner) opMap() error {
	n := r.pickFile()
	if n == nil {
		return nil
	}
	page := r.rng.Int64N(r.opts.MaxFileBytes / blobfs.BlockSizeBytes)
	if len(n.Data) > 0 && r.rng.IntN(4) > 0 {
		page = r.rng.Int64N(int64(len(n.Data)+blobfs.BlockSizeBytes-1) / blobfs.BlockSizeBytes)
	}
	write := r.rng.IntN(2) == 0
	r.describe("map page %d of %d bytes, write %v", page, len(n.Data), write)
	real, err := r.real(n)
	if err != nil {
		return err
	}
	var want error
	if page*blobfs.BlockSizeBytes >= int64(len(n.Data)) {
		want = blobfs.ErrBeyondEOF
	}
	r.mapsMu.Lock()
	defer r.mapsMu.Unlock()
	run, got := real.Fault(page*blobfs.BlockSizeBytes, 8*blobfs.BlockSizeBytes, write)
	if err := same(got, want); err != nil || got != nil {
		return err
	}
	if run.FileOffset != page*blobfs.BlockSizeBytes || run.Length%blobfs.BlockSizeBytes != 0 || write && !run.Writable {
		return fmt.Errorf("got %+v", run)
	}
	r.fs.Pages().IncRef(run.ArenaOffset, run.Length)
	m := &mapping{
		node: n, page: page, arenaOff: run.ArenaOffset, writable: run.Writable,
		mem: r.dev.Arena().Bytes()[run.ArenaOffset : run.ArenaOffset+run.Length],
	}
	r.maps = append(r.maps, m)
	if len(r.maps) > 64 {
		old := r.maps[0]
		r.fs.Pages().DecRef(old.arenaOff, int64(len(old.mem)))
		r.maps = r.maps[1:]
	}
	return r.checkMapping(m)
}

// checkMapping compares a mapping with the model. What lies beyond the end of
// the file in its last page is zero unless a mapping has written there.
func (r *Runner) checkMapping(m *mapping) error {
	off := m.page * blobfs.BlockSizeBytes
	if off >= int64(len(m.node.Data)) {
		return fmt.Errorf("page %d is mapped beyond the end", m.page)
	}
	want := m.node.Data[off:min(off+int64(len(m.mem)), int64(len(m.node.Data)))]
	return sameBytes(off, m.mem[:len(want)], want)
}

func (r *Runner) opMapped() error {
	r.mapsMu.Lock()
	defer r.mapsMu.Unlock()
	if len(r.maps) == 0 {
		return nil
	}
	m := r.maps[r.rng.IntN(len(r.maps))]
	r.describe("use of mapped page %d of %d bytes", m.page, len(m.node.Data))
	if err := r.checkMapping(m); err != nil {
		return err
	}
	if !m.writable {
		return nil
	}
	first := r.rng.IntN(blobfs.BlockSizeBytes)
	data := r.bytes(1 + r.rng.IntN(blobfs.BlockSizeBytes-first))
	copy(m.mem[first:], data) // also beyond the end of the file
	off := m.page*blobfs.BlockSizeBytes + int64(first)
	if off < int64(len(m.node.Data)) {
		n := copy(m.node.Data[off:], data)
		return r.mirror(nil, func(h *host) error { return h.write(m.node, off, data[:n]) })
	}
	return nil
}

func (r *Runner) opFsync() error {
	n := r.pick(func(*Node) bool { return true })
	r.describe("fsync")
	real, err := r.real(n)
	if err != nil {
		return err
	}
	return real.Fsync(nil, r.rng.IntN(2) == 0)
}

func (r *Runner) opSync() error {
	r.describe("sync")
	return r.fs.Sync(nil)
}

func (r *Runner) opReadDir() error {
	dir := r.pickDir()
	r.describe("readdir")
	return r.compareDir(dir)
}

func (r *Runner) compareDir(dir *Node) error {
	real, err := r.real(dir)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	cookie := int64(0)
	for {
		got := 0
		err := real.ReadDir(cookie, func(d blobfs.Dirent) bool {
			n := dir.Children[d.Name]
			if n == nil || seen[d.Name] || uint32(d.Type)<<12 != n.typ() || n.number != 0 && n.number != d.Ino || d.NextCookie <= cookie {
				err = fmt.Errorf("lists %+v", d)
			}
			seen[d.Name] = true
			cookie = d.NextCookie
			got++
			return got < 3
		})
		if err != nil {
			return err
		}
		if got == 0 {
			break
		}
	}
	if err != nil {
		return err
	}
	if len(seen) != len(dir.Children) {
		return fmt.Errorf("lists %d names, not %d", len(seen), len(dir.Children))
	}
	return nil
}

// opDrop gives up a reference, as closing a file does.
func (r *Runner) opDrop() error {
	n := r.pick(func(n *Node) bool { return n.handle != nil && n != r.model.Root })
	if n == nil {
		return nil
	}
	r.describe("drop")
	r.mapsMu.Lock()
	r.maps = slices.DeleteFunc(r.maps, func(m *mapping) bool {
		if m.node != n {
			return false
		}
		r.fs.Pages().DecRef(m.arenaOff, int64(len(m.mem)))
		return true
	})
	r.mapsMu.Unlock()
	r.forget(n)
	r.open = slices.DeleteFunc(r.open, func(o *Node) bool { return o == n })
	delete(r.tmp, n)
	return nil
}

func (r *Runner) opStat() error {
	n := r.pick(func(*Node) bool { return true })
	r.describe("stat")
	return r.compareAttr(n)
}

func (r *Runner) compareAttr(n *Node) error {
	real, err := r.real(n)
	if err != nil {
		return err
	}
	a := real.Attr()
	size := int64(len(n.Data))
	switch {
	case n.isDir():
		size = a.Size
	case n.typ() == blobfs.ModeSymlink:
		size = int64(len(n.Target))
	}
	if a.Mode != n.Mode || a.UID != n.UID || a.GID != n.GID || a.Nlink != n.Nlink || a.Rdev != n.Rdev || a.Size != size || a.Ino != n.number {
		return fmt.Errorf("has %+v; model: mode %#o, owner %d:%d, links %d, size %d, inode %d", a, n.Mode, n.UID, n.GID, n.Nlink, size, n.number)
	}
	if n.typ() == blobfs.ModeSymlink {
		if target, err := real.Readlink(); err != nil || target != n.Target {
			return fmt.Errorf("target of %d bytes, not %d: %w", len(target), len(n.Target), err)
		}
	}
	return nil
}

func (r *Runner) opLookup() error {
	dir := r.pickDir()
	s := r.pickExisting(dir)
	r.describe("lookup %q", s)
	real, err := r.real(dir)
	if err != nil {
		return err
	}
	want := checkDir(dir, s)
	if want == nil && dir.Children[s] == nil {
		want = blobfs.ErrNotExist
	}
	i, got := real.Lookup(s)
	if err := r.mirror(got, func(h *host) error {
		var st unix.Stat_t
		return unix.Fstatat(h.fds[dir], s, &st, unix.AT_SYMLINK_NOFOLLOW)
	}); err != nil {
		return err
	}
	if err := same(got, want); err != nil || got != nil {
		return err
	}
	defer i.DecRef()
	if n := dir.Children[s].number; n != 0 && n != i.Ino() {
		return fmt.Errorf("found inode %d, not %d", i.Ino(), n)
	}
	return nil
}

// CheckAll compares everything that has a name with the model.
func (r *Runner) CheckAll() error {
	for _, n := range r.model.nodes() {
		err := r.compareAttr(n)
		if err == nil {
			err = r.compareXattrs(n)
		}
		if err == nil {
			err = r.compareHost(n)
		}
		if err == nil && n.isDir() {
			err = r.compareDir(n)
		}
		if err == nil && n.isFile() {
			err = r.compare(n, 0, int64(len(n.Data))+1, 0)
		}
		if err != nil {
			return fmt.Errorf("seed %d, after operation %d, inode %d (type %#o): %w", r.opts.Seed, r.ops, n.number, n.typ(), err)
		}
	}
	return nil
}

// Remount unmounts, mounts again and compares everything.
func (r *Runner) Remount() error {
	if err := r.Close(); err != nil {
		return fmt.Errorf("seed %d, after operation %d: closing: %w", r.opts.Seed, r.ops, err)
	}
	if err := r.Mount(); err != nil {
		return fmt.Errorf("seed %d, after operation %d: mounting: %w", r.opts.Seed, r.ops, err)
	}
	return r.CheckAll()
}

// RemoveAll deletes every name.
func (r *Runner) RemoveAll() error {
	r.dropAll()
	r.model.Root.handle = r.fs.Root()
	return r.removeTree(r.model.Root)
}

func (r *Runner) removeTree(dir *Node) error {
	real, err := r.real(dir)
	if err != nil {
		return err
	}
	for s, n := range dir.Children {
		if n.isDir() {
			if err := r.removeTree(n); err != nil {
				return err
			}
			r.forget(n)
			err = real.Rmdir(s, nil)
		} else {
			r.forget(n)
			err = real.Unlink(s, nil)
		}
		if err != nil {
			return fmt.Errorf("removing %q: %w", s, err)
		}
		if err := r.model.remove(dir, s, n.isDir()); err != nil {
			return err
		}
	}
	return nil
}
