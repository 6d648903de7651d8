package blobfstest

import (
	"bytes"
	"fmt"

	"runsc-fs/blobfs"
)

func (r *Runner) opSetAttr() error {
	n := r.pick(func(*Node) bool { return true })
	r.describe("setattr")
	real, err := r.real(n)
	if err != nil {
		return err
	}
	perm := r.rng.Uint32() & blobfs.ModePermission
	n.Mode = n.typ() | perm
	n.UID, n.GID = r.rng.Uint32(), r.rng.Uint32()
	a := blobfs.Attr{Mode: perm, UID: n.UID, GID: n.GID, Mtime: 12345}
	const mask = blobfs.AttrMode | blobfs.AttrUID | blobfs.AttrGID | blobfs.AttrMtime
	if r.rng.IntN(2) == 0 {
		return real.SetAttr(mask, &a)
	}
	// One attribute is set and one is gone, whether it was there or not.
	set, gone := fmt.Sprintf("user.x%d", r.rng.IntN(3)), fmt.Sprintf("user.x%d", 3+r.rng.IntN(3))
	value := r.bytes(1 + r.rng.IntN(2000))
	_, had := n.Xattrs[gone]
	n.Xattrs[set] = value
	delete(n.Xattrs, gone)
	err = real.SetAttrAndXattrs(mask, &a, blobfs.Xattr{Name: set, Value: value}, blobfs.Xattr{Name: gone})
	if err == nil && had {
		err = r.mirrorXattr(n, nil, gone, nil, 0, true)
	}
	if err == nil {
		err = r.mirrorXattr(n, nil, set, value, 0, false)
	}
	return err
}

func (r *Runner) opSetXattr() error {
	n := r.pick(func(*Node) bool { return true })
	s := fmt.Sprintf("user.x%d", r.rng.IntN(6))
	r.describe("setxattr %s", s)
	real, err := r.real(n)
	if err != nil {
		return err
	}
	_, exists := n.Xattrs[s]
	if r.rng.IntN(3) == 0 {
		var want error
		if !exists {
			want = blobfs.ErrNoXattr
		}
		delete(n.Xattrs, s)
		got := real.RemoveXattr(s)
		if err := r.mirrorXattr(n, got, s, nil, 0, true); err != nil {
			return err
		}
		return same(got, want)
	}
	size := r.rng.IntN(200)
	if r.rng.IntN(5) == 0 {
		size = r.rng.IntN(blobfs.MaxXattrValueBytes + 2)
	}
	flags := []blobfs.XattrFlags{0, 0, blobfs.XattrCreate, blobfs.XattrReplace}[r.rng.IntN(4)]
	value := r.bytes(size)
	var want error
	switch {
	case size > blobfs.MaxXattrValueBytes:
		want = blobfs.ErrXattrTooBig
	case flags == blobfs.XattrCreate && exists:
		want = blobfs.ErrExist
	case flags == blobfs.XattrReplace && !exists:
		want = blobfs.ErrNoXattr
	default:
		n.Xattrs[s] = value
	}
	got := real.SetXattr(s, value, flags)
	if err := r.mirrorXattr(n, got, s, value, flags, false); err != nil {
		return err
	}
	return same(got, want)
}

func (r *Runner) opGetXattr() error {
	n := r.pick(func(*Node) bool { return true })
	r.describe("getxattr")
	return r.compareXattrs(n)
}

func (r *Runner) compareXattrs(n *Node) error {
	real, err := r.real(n)
	if err != nil {
		return err
	}
	names, err := real.ListXattr()
	if err != nil || len(names) != len(n.Xattrs) {
		return fmt.Errorf("lists xattrs %q, not %d: %w", names, len(n.Xattrs), err)
	}
	for s, want := range n.Xattrs {
		got, err := real.GetXattr(s)
		if err != nil || !bytes.Equal(got, want) {
			return fmt.Errorf("xattr %s: %d bytes, not %d: %w", s, len(got), len(want), err)
		}
	}
	_, err = real.GetXattr("user.none")
	return same(err, blobfs.ErrNoXattr)
}
