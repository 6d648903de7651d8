package sentry

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/blobfs"
	"runsc-fs/blobfs/format"
)

// accessList is a POSIX access control list, see acl(5). Its IDs are KUIDs and
// KGIDs, as in the attributes on the volume.
type accessList []format.ACLEntry

// noList stands for the list of a file that is known to have none.
var noList = new(accessList)

// isACL says whether an extended attribute holds a list.
func isACL(name string) bool { return name == format.XattrAccessACL || name == format.XattrDefaultACL }

// list returns the list that the attribute called name holds, or nil.
func (i *inode) list(name string) (accessList, error) {
	cached := i.cachedList(name)
	if l := cached.Load(); l != nil {
		return *l, nil
	}
	i.attrMu.Lock()
	defer i.attrMu.Unlock()
	return i.listLocked(name)
}

// listLocked is list for those who hold attrMu, which keeps lists from changing.
func (i *inode) listLocked(name string) (accessList, error) {
	cached := i.cachedList(name)
	if l := cached.Load(); l != nil {
		return *l, nil
	}
	l := noList
	raw, err := i.blob.GetXattr(name)
	switch {
	case err == nil:
		entries, err := format.DecodeACL(raw)
		if err != nil {
			return nil, errno(err)
		}
		list := accessList(entries)
		l = &list
	case !isNoXattr(err):
		return nil, errno(err)
	}
	cached.Store(l)
	return *l, nil
}

func (i *inode) cachedList(name string) *atomic.Pointer[accessList] {
	if name == format.XattrDefaultACL {
		return &i.defaultACL
	}
	return &i.accessACL
}

// checkPermissions says with EACCES that creds may not access the file.
func (i *inode) checkPermissions(creds *auth.Credentials, ats vfs.AccessTypes) error {
	if ats.MayWrite() && i.has(immutableFlag) {
		return linuxerr.EPERM
	}
	mode := linux.FileMode(i.mode.Load())
	kuid, kgid := i.kuid(), i.kgid()
	list, err := i.listFor(creds)
	switch {
	case err != nil:
		return err
	case list == nil:
		return vfs.GenericCheckPermissions(creds, ats, mode, kuid, kgid)
	case list.allows(creds, ats, kgid):
		return nil
	}
	// What capabilities allow does not depend on the list.
	if mode.IsDir() && !ats.MayWrite() || ats.OnlyRead() {
		if creds.HasCapabilityOnFile(linux.CAP_DAC_READ_SEARCH, kuid, kgid) {
			return nil
		}
	}
	if mode.IsDir() || !ats.MayExec() || mode.Permissions()&0111 != 0 {
		if creds.HasCapabilityOnFile(linux.CAP_DAC_OVERRIDE, kuid, kgid) {
			return nil
		}
	}
	return linuxerr.EACCES
}

// listFor returns the list that decides what creds may do with the file, or nil
// if its mode decides: for the owner, without a list, and where the list can give
// nobody anything, since the bits of the group are the list's mask.
func (i *inode) listFor(creds *auth.Credentials) (accessList, error) {
	if i.accessACL.Load() == noList || i.mode.Load()&0070 == 0 || creds.EffectiveKUID == i.kuid() {
		return nil, nil
	}
	return i.list(format.XattrAccessACL)
}

// modeFor is a mode that gives creds what the list of the file does, for checks
// of VFS that know modes only.
func (i *inode) modeFor(creds *auth.Credentials, ats vfs.AccessTypes) (linux.FileMode, error) {
	mode := linux.FileMode(i.mode.Load())
	list, err := i.listFor(creds)
	if err != nil || list == nil {
		return mode, err
	}
	mode &^= 0077
	if list.allows(creds, ats, i.kgid()) {
		mode |= linux.FileMode(ats)<<3 | linux.FileMode(ats)
	}
	return mode, nil
}

// allows says whether the list gives creds all of ats, by the algorithm of
// acl(5) from its second step on: the owner is no case of it.
func (l accessList) allows(creds *auth.Credentials, ats vfs.AccessTypes, kgid auth.KGID) bool {
	want := uint16(ats)
	mask := uint16(7)
	for _, e := range l {
		if e.Tag == format.ACLMask {
			mask = e.Perm
		}
	}
	inGroup := false
	for _, e := range l {
		switch e.Tag {
		case format.ACLUser:
			if auth.KUID(e.ID) == creds.EffectiveKUID {
				return e.Perm&mask&want == want
			}
		case format.ACLGroupObj, format.ACLGroup:
			group := auth.KGID(e.ID)
			if e.Tag == format.ACLGroupObj {
				group = kgid
			}
			if creds.InGroup(group) {
				inGroup = true
				if e.Perm&want == want {
					return mask&want == want
				}
			}
		case format.ACLOther:
			return !inGroup && e.Perm&want == want
		}
	}
	return false
}

// mode gives the permission bits that show a list, and whether they say all
// that is in it.
func (l accessList) mode() (perm uint32, equal bool) {
	var group, mask uint32
	equal = true
	for _, e := range l {
		p := uint32(e.Perm)
		switch e.Tag {
		case format.ACLUserObj:
			perm |= p << 6
		case format.ACLGroupObj:
			group = p
		case format.ACLMask:
			mask, equal = p, false
		case format.ACLOther:
			perm |= p
		default:
			equal = false
		}
	}
	if !equal && l.hasMask() {
		group = mask
	}
	return perm | group<<3, equal
}

func (l accessList) hasMask() bool {
	for _, e := range l {
		if e.Tag == format.ACLMask {
			return true
		}
	}
	return false
}

// withMode is the list after chmod(2).
func (l accessList) withMode(perm uint32) accessList {
	return l.changed(func(_, bits uint32) uint32 { return bits }, perm)
}

// inherited is the access list of a new file in a directory with default list l,
// when the program asks for perm.
func (l accessList) inherited(perm uint32) accessList {
	return l.changed(func(old, bits uint32) uint32 { return old & bits }, perm)
}

// changed is the list with the entries that a mode shows replaced by what fn
// makes of them and of the mode's bits.
func (l accessList) changed(fn func(old, bits uint32) uint32, perm uint32) accessList {
	hasMask := l.hasMask()
	list := make(accessList, len(l))
	for n, e := range l {
		set := func(bits uint32) { e.Perm = uint16(fn(uint32(e.Perm), bits&7)) }
		switch {
		case e.Tag == format.ACLUserObj:
			set(perm >> 6)
		case e.Tag == format.ACLMask, e.Tag == format.ACLGroupObj && !hasMask:
			set(perm >> 3)
		case e.Tag == format.ACLOther:
			set(perm)
		}
		list[n] = e
	}
	return list
}

// parseACL reads a list as a program in user namespace ns gives it. A list
// without entries is nil.
func parseACL(ns *auth.UserNamespace, value string) (accessList, error) {
	if len(value) >= 4 && [4]byte([]byte(value)[:4]) != [4]byte{format.ACLVersion} {
		return nil, linuxerr.EOPNOTSUPP
	}
	entries, err := format.DecodeACL([]byte(value))
	if err != nil {
		return nil, linuxerr.EINVAL
	}
	for n := range entries {
		e := &entries[n]
		switch e.Tag {
		case format.ACLUser:
			kuid := ns.MapToKUID(auth.UID(e.ID))
			if !kuid.Ok() {
				return nil, linuxerr.EINVAL
			}
			e.ID = uint32(kuid)
		case format.ACLGroup:
			kgid := ns.MapToKGID(auth.GID(e.ID))
			if !kgid.Ok() {
				return nil, linuxerr.EINVAL
			}
			e.ID = uint32(kgid)
		}
	}
	if len(entries) == 0 {
		return nil, nil
	}
	return entries, nil
}

// show gives the list as programs in user namespace ns see it.
func (l accessList) show(ns *auth.UserNamespace) string {
	shown := make(accessList, len(l))
	for n, e := range l {
		switch e.Tag {
		case format.ACLUser:
			e.ID = uint32(ns.MapFromKUID(auth.KUID(e.ID)))
		case format.ACLGroup:
			e.ID = uint32(ns.MapFromKGID(auth.KGID(e.ID)))
		}
		shown[n] = e
	}
	return string(format.EncodeACL(shown))
}

// getACL is getxattr(2) of a list, which everybody may do who finds the file.
func (i *inode) getACL(creds *auth.Credentials, name string) (string, error) {
	if i.isSymlink() {
		return "", linuxerr.EOPNOTSUPP
	}
	list, err := i.list(name)
	if err != nil {
		return "", err
	}
	if list == nil {
		return "", linuxerr.ENODATA
	}
	return list.show(creds.UserNamespace), nil
}

// setACL is setxattr(2) of a list, whose flags do not count, and with value ""
// removexattr(2).
func (i *inode) setACL(creds *auth.Credentials, name, value string) error {
	var list accessList
	if value != "" {
		var err error
		if list, err = parseACL(creds.UserNamespace, value); err != nil {
			return err
		}
	}
	switch {
	case i.has(immutableFlag | appendFlag):
		return linuxerr.EPERM
	case i.isSymlink():
		return linuxerr.EOPNOTSUPP
	case name == format.XattrDefaultACL && !i.isDir():
		if list == nil {
			return nil
		}
		return linuxerr.EACCES
	case !vfs.CanActAsOwner(creds, i.kuid()):
		return linuxerr.EPERM
	}
	i.attrMu.Lock()
	defer i.attrMu.Unlock()
	if old, err := i.listLocked(name); err != nil || old == nil && list == nil {
		return err
	}
	attr := blobfs.Attr{Mode: i.mode.Load(), UID: i.uid.Load(), GID: i.gid.Load()}
	var mask blobfs.AttrMask
	if name == format.XattrAccessACL && list != nil {
		perm, equal := list.mode()
		mask = blobfs.AttrMode
		attr.Mode = attr.Mode&^0777 | perm
		if !creds.InGroup(i.kgid()) && !creds.HasCapabilityOnFile(linux.CAP_FSETID, i.kuid(), i.kgid()) {
			attr.Mode &^= linux.S_ISGID
		}
		if equal {
			list = nil // the mode says it all
		}
	}
	return i.setListLocked(mask, &attr, name, list)
}

// setListLocked changes attributes as setAttrLocked does, and the list called
// name with them.
//
// Preconditions: attrMu is held. attr's Mode, UID and GID are set.
func (i *inode) setListLocked(mask blobfs.AttrMask, attr *blobfs.Attr, name string, list accessList) error {
	cache, x := noList, blobfs.Xattr{Name: name}
	if list != nil {
		cache, x.Value = &list, format.EncodeACL(list)
	}
	if err := i.blob.SetAttrAndXattrs(mask, attr, x); err != nil {
		return errno(err)
	}
	i.cachedList(name).Store(cache)
	i.mirror(attr)
	return nil
}
