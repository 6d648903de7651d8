package sentry

import (
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/blobfs"
)

// checkXattr decides whether creds may read or write the attribute called
// name, and whether there are such attributes at all.
func (i *inode) checkXattr(creds *auth.Credentials, name string, ats vfs.AccessTypes) error {
	isUser := strings.HasPrefix(name, linux.XATTR_USER_PREFIX)
	switch {
	case isUser, strings.HasPrefix(name, linux.XATTR_TRUSTED_PREFIX):
	case strings.HasPrefix(name, linux.XATTR_SECURITY_PREFIX):
	default:
		return linuxerr.EOPNOTSUPP
	}
	if ats.MayWrite() {
		if err := i.mutable(immutableFlag | appendFlag); err != nil {
			return err
		}
	}
	if strings.HasSuffix(name, ".") && strings.Count(name, ".") == 1 {
		return linuxerr.EINVAL // a namespace without a name
	}
	if err := vfs.CheckXattrPermissions(creds, ats, linux.FileMode(i.mode.Load()), i.kuid(), name); err != nil {
		return err
	}
	if isUser {
		// The other namespaces are guarded by capabilities alone.
		return i.checkPermissions(creds, ats)
	}
	return nil
}

func (i *inode) listXattr(creds *auth.Credentials, size uint64) ([]string, error) {
	names, err := i.blob.ListXattr()
	if err != nil {
		return nil, errno(err)
	}
	privileged := creds.HasRootCapability(linux.CAP_SYS_ADMIN)
	visible := names[:0]
	listSize := uint64(0)
	for _, name := range names {
		if !privileged && strings.HasPrefix(name, linux.XATTR_TRUSTED_PREFIX) {
			continue
		}
		visible = append(visible, name)
		listSize += uint64(len(name)) + 1
	}
	if size != 0 && listSize > size {
		return nil, linuxerr.ERANGE
	}
	return visible, nil
}

func (i *inode) getXattr(creds *auth.Credentials, opts *vfs.GetXattrOptions) (string, error) {
	if isACL(opts.Name) {
		value, err := i.getACL(creds, opts.Name)
		if opts.Size != 0 && uint64(len(value)) > opts.Size {
			return "", linuxerr.ERANGE
		}
		return value, err
	}
	if err := i.checkXattr(creds, opts.Name, vfs.MayRead); err != nil {
		return "", err
	}
	isCaps := opts.Name == linux.XATTR_SECURITY_CAPABILITY
	if isCaps && i.noFileCaps.Load() {
		return "", linuxerr.ENODATA
	}
	raw, err := i.blob.GetXattr(opts.Name)
	if err != nil {
		return "", errno(err)
	}
	value := string(raw)
	if opts.Size != 0 && uint64(len(value)) > opts.Size {
		return "", linuxerr.ERANGE
	}
	if isCaps {
		return auth.FixupVfsCapDataOnGet(creds, value)
	}
	return value, nil
}

func (i *inode) setXattr(creds *auth.Credentials, opts *vfs.SetXattrOptions) error {
	if isACL(opts.Name) {
		return i.setACL(creds, opts.Name, opts.Value)
	}
	if err := i.checkXattr(creds, opts.Name, vfs.MayWrite); err != nil {
		return err
	}
	value := opts.Value
	if opts.Name == linux.XATTR_SECURITY_CAPABILITY {
		var err error
		if value, err = auth.FixupVfsCapDataOnSet(creds, value, i.kuid(), i.kgid()); err != nil {
			return err
		}
		i.attrMu.Lock()
		defer i.attrMu.Unlock()
		i.noFileCaps.Store(false)
	}
	return errno(i.blob.SetXattr(opts.Name, []byte(value), blobfs.XattrFlags(opts.Flags)))
}

func (i *inode) removeXattr(creds *auth.Credentials, name string) error {
	if isACL(name) {
		return i.setACL(creds, name, "")
	}
	if err := i.checkXattr(creds, name, vfs.MayWrite); err != nil {
		return err
	}
	return errno(i.blob.RemoveXattr(name))
}
