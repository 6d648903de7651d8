package sentry

import (
	"strings"

	"golang.org/x/sys/unix"
	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// struct open_how: flags, mode and resolve, 64 bits each.
const openHowBytes = 24

// resolveCached is RESOLVE_CACHED: succeed at once or not at all.
const resolveCached = 0x20

// maxFollowed is how many symbolic links a path may lead through.
const maxFollowed = 40

// openat2 opens files of any file system, see openat2(2).
func openat2(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	how, err := copyInOpenHow(t, args[2].Pointer(), args[3].Uint64())
	if err != nil {
		return 0, nil, err
	}
	path, err := t.CopyInString(args[1].Pointer(), abi.PATH_MAX)
	if err != nil {
		return 0, nil, err
	}
	if path == "" {
		return 0, nil, linuxerr.ENOENT
	}
	if how.resolve&resolveCached != 0 {
		return 0, nil, linuxerr.EAGAIN // nothing promises that a lookup does not wait
	}
	w := pathWalk{t: t, resolve: how.resolve, opts: vfs.OpenOptions{
		Flags: uint32(how.flags) | abi.O_LARGEFILE,
		Mode:  abi.FileMode(how.mode) &^ abi.FileMode(t.FSContext().Umask()),
	}}
	defer w.release()
	if err := w.begin(args[0].Int(), path); err != nil {
		return 0, nil, err
	}
	file, err := w.open(path)
	if err != nil {
		return 0, nil, err
	}
	defer file.DecRef(t)
	fd, err := t.NewFDFrom(0, file, kernel.FDFlags{CloseOnExec: how.flags&abi.O_CLOEXEC != 0})
	return uintptr(fd), nil, err
}

type openHow struct{ flags, mode, resolve uint64 }

func copyInOpenHow(t *kernel.Task, addr hostarch.Addr, size uint64) (how openHow, err error) {
	switch {
	case size < openHowBytes:
		return how, linuxerr.EINVAL
	case size > hostarch.PageSize:
		return how, linuxerr.E2BIG
	}
	b := make([]byte, size)
	if _, err := t.CopyInBytes(addr, b); err != nil {
		return how, err
	}
	for _, c := range b[openHowBytes:] {
		if c != 0 {
			return how, linuxerr.E2BIG // asks for what later versions may know
		}
	}
	le := hostarch.ByteOrder
	how = openHow{flags: le.Uint64(b), mode: le.Uint64(b[8:]), resolve: le.Uint64(b[16:])}
	return how, how.check()
}

// check is stricter than open(2), which ignores what it does not know.
func (h *openHow) check() error {
	const (
		knownFlags = abi.O_ACCMODE | abi.O_CREAT | abi.O_EXCL | abi.O_NOCTTY | abi.O_TRUNC | abi.O_APPEND | abi.O_NONBLOCK |
			abi.O_DSYNC | abi.O_ASYNC | abi.O_DIRECT | abi.O_LARGEFILE | abi.O_DIRECTORY | abi.O_NOFOLLOW | abi.O_NOATIME |
			abi.O_CLOEXEC | abi.O_SYNC | abi.O_PATH | abi.O_TMPFILE
		pathFlags    = abi.O_DIRECTORY | abi.O_NOFOLLOW | abi.O_PATH | abi.O_CLOEXEC
		tmpfile      = abi.O_TMPFILE &^ abi.O_DIRECTORY
		knownResolve = unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH |
			unix.RESOLVE_IN_ROOT | resolveCached
		bothRoots = unix.RESOLVE_BENEATH | unix.RESOLVE_IN_ROOT
	)
	creates := h.flags&(abi.O_CREAT|tmpfile) != 0
	switch {
	case h.flags&^uint64(knownFlags) != 0, h.resolve&^knownResolve != 0, h.resolve&bothRoots == bothRoots:
		return linuxerr.EINVAL
	case creates && h.mode&^0o7777 != 0, !creates && h.mode != 0:
		return linuxerr.EINVAL
	case h.flags&tmpfile != 0 && (h.flags&abi.O_TMPFILE != abi.O_TMPFILE || h.flags&abi.O_ACCMODE == abi.O_RDONLY):
		return linuxerr.EINVAL
	case h.flags&abi.O_PATH != 0 && h.flags&^uint64(pathFlags) != 0:
		return linuxerr.EINVAL
	case h.resolve&resolveCached != 0 && (creates || h.flags&abi.O_TRUNC != 0):
		return linuxerr.EAGAIN
	}
	return nil
}

// pathWalk resolves a path one name at a time, as the resolve flags say: VFS has
// no walk that stops at a link, at a mount point, or at a directory other than
// the root.
type pathWalk struct {
	t        *kernel.Task
	resolve  uint64
	opts     vfs.OpenOptions
	root     vfs.VirtualDentry // the process's
	scope    vfs.VirtualDentry // where the path starts; with BENEATH and IN_ROOT also what it must not leave
	at       vfs.VirtualDentry // how far the path was followed
	followed int
}

func (w *pathWalk) scoped() bool { return w.resolve&(unix.RESOLVE_BENEATH|unix.RESOLVE_IN_ROOT) != 0 }

// begin finds where the path starts.
func (w *pathWalk) begin(dirfd int32, path string) error {
	w.root = w.t.FSContext().RootDirectory()
	switch {
	case path[0] == '/' && !w.scoped():
		w.scope = w.root
		w.scope.IncRef()
	case dirfd == abi.AT_FDCWD:
		w.scope = w.t.FSContext().WorkingDirectory()
	default:
		file := w.t.GetFile(dirfd)
		if file == nil {
			return linuxerr.EBADF
		}
		defer file.DecRef(w.t)
		w.scope = file.VirtualDentry()
		w.scope.IncRef()
	}
	w.at = w.scope
	w.at.IncRef()
	if path[0] == '/' && w.resolve&unix.RESOLVE_BENEATH != 0 {
		return linuxerr.EXDEV
	}
	return nil
}

func (w *pathWalk) release() {
	for _, vd := range []vfs.VirtualDentry{w.root, w.scope, w.at} {
		if vd.Ok() {
			vd.DecRef(w.t)
		}
	}
}

// operation is a step from where the walk is.
func (w *pathWalk) operation(name string) *vfs.PathOperation {
	root := w.root
	if w.resolve&unix.RESOLVE_IN_ROOT != 0 {
		root = w.scope
	}
	return &vfs.PathOperation{Root: root, Start: w.at, Path: fspath.Parse(name)}
}

// moveTo makes vd, whose reference it takes over, the place where the walk is.
func (w *pathWalk) moveTo(vd vfs.VirtualDentry) error {
	crosses := vd.Mount() != w.at.Mount()
	w.at.DecRef(w.t)
	w.at = vd
	if crosses && w.resolve&unix.RESOLVE_NO_XDEV != 0 {
		return linuxerr.EXDEV
	}
	return nil
}

// open follows the path to its last name and opens that.
func (w *pathWalk) open(path string) (*vfs.FileDescription, error) {
	if w.resolve&^unix.RESOLVE_IN_ROOT == 0 {
		// A root of its own is all that is asked for, if anything.
		pop := w.operation(path)
		pop.FollowFinalSymlink = w.opts.Flags&abi.O_NOFOLLOW == 0
		if w.resolve == 0 {
			return w.t.Kernel().VFS().OpenAt(w.t, w.t.Credentials(), pop, &w.opts)
		}
	}
	mustBeDir := strings.HasSuffix(path, "/")
	rest := names(path)
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		last := len(rest) == 0
		switch name {
		case ".":
			continue
		case "..":
			if err := w.up(); err != nil {
				return nil, err
			}
			continue
		}
		target, isLink, err := w.link(name)
		switch {
		case err != nil && !(last && linuxerr.Equals(linuxerr.ENOENT, err)):
			return nil, err
		case isLink && !(last && !mustBeDir && w.opts.Flags&abi.O_NOFOLLOW != 0):
			more, err := w.follow(target)
			if err != nil {
				return nil, err
			}
			mustBeDir = mustBeDir || last && strings.HasSuffix(target, "/")
			rest = append(more, rest...)
			continue
		case last:
			if mustBeDir {
				name += "/"
			}
			return w.openLast(name)
		}
		vd, err := w.t.Kernel().VFS().GetDentryAt(w.t, w.t.Credentials(), w.operation(name), &vfs.GetDentryOptions{CheckSearchable: true})
		if err != nil {
			return nil, err
		}
		if err := w.moveTo(vd); err != nil {
			return nil, err
		}
	}
	return w.openLast(".")
}

func names(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// openLast opens a name that is no link to be followed, or was none a moment ago.
func (w *pathWalk) openLast(name string) (*vfs.FileDescription, error) {
	file, err := w.t.Kernel().VFS().OpenAt(w.t, w.t.Credentials(), w.operation(name), &w.opts)
	if err == nil && w.resolve&unix.RESOLVE_NO_XDEV != 0 && file.Mount() != w.at.Mount() {
		file.DecRef(w.t)
		return nil, linuxerr.EXDEV
	}
	return file, err
}

// up follows "..", which must not lead out of the scope, and if somebody moves
// directories meanwhile does not.
func (w *pathWalk) up() error {
	if w.scoped() && w.at == w.scope {
		if w.resolve&unix.RESOLVE_BENEATH != 0 {
			return linuxerr.EXDEV
		}
		return nil
	}
	vd, err := w.t.Kernel().VFS().GetDentryAt(w.t, w.t.Credentials(), w.operation(".."), &vfs.GetDentryOptions{CheckSearchable: true})
	if err != nil {
		return err
	}
	if err := w.moveTo(vd); err != nil {
		return err
	}
	if !w.scoped() || w.at == w.scope {
		return nil
	}
	inside, err := w.t.Kernel().VFS().PathnameReachable(w.t, w.scope, w.at)
	if err == nil && inside == "" {
		err = linuxerr.EAGAIN
	}
	return err
}

// link says whether name is a symbolic link, and where it leads.
func (w *pathWalk) link(name string) (target string, is bool, err error) {
	target, err = w.t.Kernel().VFS().ReadlinkAt(w.t, w.t.Credentials(), w.operation(name))
	switch {
	case err == nil:
		return target, true, nil
	case linuxerr.Equals(linuxerr.EINVAL, err):
		return "", false, nil
	}
	return "", false, err
}

// follow goes to where a link's target starts and returns its names.
func (w *pathWalk) follow(target string) ([]string, error) {
	if w.followed++; w.followed > maxFollowed || w.resolve&unix.RESOLVE_NO_SYMLINKS != 0 {
		return nil, linuxerr.ELOOP
	}
	if w.at.Mount().Filesystem().FilesystemType().Name() == "proc" && w.resolve&^unix.RESOLVE_NO_XDEV != 0 {
		return nil, linuxerr.ELOOP // some of its links are magic, and none is worth the doubt
	}
	if target == "" {
		return nil, linuxerr.ENOENT
	}
	if target[0] != '/' {
		return names(target), nil
	}
	start := w.root
	switch {
	case w.resolve&unix.RESOLVE_BENEATH != 0:
		return nil, linuxerr.EXDEV
	case w.resolve&unix.RESOLVE_IN_ROOT != 0:
		start = w.scope
	}
	start.IncRef()
	return names(target), w.moveTo(start)
}
