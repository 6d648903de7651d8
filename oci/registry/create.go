package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// CreateSpec describes a volume to be made.
type CreateSpec struct {
	Name string

	// Kind is KindImage unless given.
	Kind Kind

	// SizeBytes is rounded up to SizeAlignBytes. 0 means the size of the existing image, else
	// DefaultImageSizeBytes or DefaultMemorySizeBytes.
	SizeBytes int64

	// Image is the path of an image outside the registry: an existing one is used as it is, otherwise
	// it is made there. Empty means an image inside the registry.
	Image string

	// Device is the device of a KindDevice volume. Its namespace is 1 unless given.
	Device *Device

	// Existing takes the file system that the device holds instead of making one.
	Existing bool

	// Force formats a device that is not empty.
	Force bool

	// Discard is that of Spec.
	Discard bool

	// Clone is the snapshot, NAME@TAG, that the volume begins with, from which it has its size.
	Clone string
}

func (s *CreateSpec) validate() error {
	if err := CheckName(s.Name); err != nil {
		return err
	}
	if s.Device != nil && s.Kind == "" {
		s.Kind = KindDevice
	}
	switch s.Kind {
	case "":
		s.Kind = KindImage
	case KindImage, KindMemory, KindDevice:
	default:
		return failf(ErrInvalidSpec, "volume %q: kind %q is not known; it is %q, %q or %q", s.Name, s.Kind, KindImage, KindMemory, KindDevice)
	}
	if err := s.validateDevice(); err != nil {
		return err
	}
	if s.Kind == KindMemory && s.Image != "" {
		return failf(ErrInvalidSpec, "volume %q: a memory volume has no image; give one or the other", s.Name)
	}
	if s.SizeBytes != 0 {
		if err := CheckSize(s.SizeBytes); err != nil {
			return err
		}
		s.SizeBytes = roundUp(s.SizeBytes)
	}
	if s.Image != "" {
		path, err := filepath.Abs(s.Image)
		if err != nil {
			return failf(ErrImage, "image %q: %v", s.Image, err)
		}
		s.Image = path
	}
	return nil
}

// addressRE has the addresses of PCI functions in the form that sysfs uses.
var addressRE = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

func (s *CreateSpec) validateDevice() error {
	if s.Kind != KindDevice {
		switch {
		case s.Device != nil:
			return failf(ErrInvalidSpec, "volume %q: a volume of kind %q has no device; give one or the other", s.Name, s.Kind)
		case s.Existing || s.Force:
			return failf(ErrInvalidSpec, "volume %q: only a volume on a device is made by force or of what exists", s.Name)
		}
		return nil
	}
	switch {
	case s.Device == nil:
		return failf(ErrInvalidSpec, "volume %q: the address of its device is missing", s.Name)
	case !addressRE.MatchString(s.Device.Address):
		// One device has one name, so that two volumes cannot have it.
		return failf(ErrInvalidSpec, "volume %q: %q is not the address of a PCI device; it looks like 0000:03:00.0", s.Name, s.Device.Address)
	case s.Image != "":
		return failf(ErrInvalidSpec, "volume %q: a volume on a device has no image; give one or the other", s.Name)
	case s.SizeBytes != 0:
		return failf(ErrInvalidSize, "volume %q: a volume on a device takes all of its namespace; leave out the size", s.Name)
	case s.Existing && s.Force:
		return failf(ErrInvalidSpec, "volume %q: either the file system that exists is used or a new one made by force", s.Name)
	}
	device := *s.Device
	if device.Namespace == 0 {
		device.Namespace = 1
	}
	s.Device = &device
	return nil
}

// Create makes a volume and returns it. When it returns, the volume is on disk for good; if it fails or
// the machine stops in between, there is no volume and no image of it.
func (r *Registry) Create(spec CreateSpec) (_ *Volume, err error) {
	if err := spec.validate(); err != nil {
		return nil, err
	}
	unlock, err := r.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := r.clearLeftoversLocked(); err != nil {
		return nil, err
	}
	dir := r.volumePath(spec.Name)
	if _, err := os.Lstat(dir); err == nil {
		return nil, failf(ErrExist, "volume %q exists already; choose another name, or remove it first with 'runsc-fs volume rm %s'", spec.Name, spec.Name)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("volume %q: %w", spec.Name, err)
	}

	var undo func()
	if spec.Image != "" {
		if undo, err = r.adoptImageLocked(&spec); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				undo()
			}
		}()
	}
	if spec.Kind == KindDevice {
		if err := r.prepareDevice(&spec); err != nil {
			return nil, err
		}
	}
	var snapshot *Snapshot
	if spec.Clone != "" {
		if snapshot, err = r.cloneSource(&spec); err != nil {
			return nil, err
		}
	}
	if spec.SizeBytes == 0 {
		spec.SizeBytes = DefaultImageSizeBytes
		if spec.Kind == KindMemory {
			spec.SizeBytes = DefaultMemorySizeBytes
		}
	}

	temp := filepath.Join(r.volumesPath(), tempPrefix+spec.Name)
	defer os.RemoveAll(temp) // nothing is left there on success
	full := &Spec{
		Version:   specVersion,
		Name:      spec.Name,
		ID:        newID(),
		Kind:      spec.Kind,
		SizeBytes: spec.SizeBytes,
		Image:     spec.Image,
		Device:    spec.Device,
		Discard:   spec.Discard,
		CreatedAt: r.opts.Now().UTC(),
	}
	if snapshot != nil {
		full.Origin = &Origin{Snapshot: spec.Clone, Layer: snapshot.Layers[len(snapshot.Layers)-1]}
		defer r.settleLocked() // its layer has a volume then, or is not needed
		if err := r.fillClone(full, snapshot); err != nil {
			return nil, asOneOf(err, spec.Name, temp, dir)
		}
	}
	r.step()
	if err := r.fill(temp, full); err != nil {
		return nil, asOneOf(err, spec.Name, temp, dir)
	}
	r.step()
	if err := os.Rename(temp, dir); err != nil {
		return nil, asOneOf(err, spec.Name, temp, dir)
	}
	r.step()
	if err := syncDir(r.volumesPath()); err != nil {
		os.RemoveAll(dir) // whether the volume would last is not known
		return nil, asOneOf(err, spec.Name, temp, dir)
	}
	return &Volume{reg: r, dir: dir, spec: *full}, nil
}

// fill makes the directory of a volume at temp and everything in it, durably.
func (r *Registry) fill(temp string, spec *Spec) error {
	if err := os.Mkdir(temp, 0o700); err != nil {
		return err
	}
	// The mode is what the root directory of the volume begins with, see PopulateFrom.
	mountpoint := filepath.Join(temp, mountpointDir)
	if err := os.Mkdir(mountpoint, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(mountpoint, 0o755); err != nil { // whatever the umask is
		return err
	}
	if err := os.WriteFile(filepath.Join(temp, lockFile), nil, 0o600); err != nil {
		return err
	}
	if spec.Populated {
		if err := writeNote(mountpoint, spec.Name); err != nil {
			return err
		}
	}
	if spec.Kind == KindImage && spec.Image == "" && len(spec.Layers) == 0 {
		if err := r.makeImage(filepath.Join(temp, imageFile), spec.SizeBytes, spec.Name); err != nil {
			return err
		}
	}
	return writeSpec(temp, spec)
}

// prepareDevice makes or checks the file system on a device and completes spec from it.
func (r *Registry) prepareDevice(spec *CreateSpec) error {
	if r.opts.PrepareDevice == nil {
		return errors.New("this program cannot use devices")
	}
	volumes, err := r.List()
	if err != nil && !errors.Is(err, ErrDamaged) {
		return err
	}
	for _, v := range volumes {
		if d := v.Device(); d.Address == spec.Device.Address && d.Namespace == spec.Device.Namespace {
			return failf(ErrDevice, "device %s namespace %d is volume %q already; 'runsc-fs volume rm %s' gives that up first", d.Address, d.Namespace, v.Name(), v.Name())
		}
	}
	device, sizeBytes, err := r.opts.PrepareDevice(*spec.Device, spec.Name, spec.Existing, spec.Force)
	if err != nil {
		return failf(ErrDevice, "%v", err)
	}
	if err := CheckSize(sizeBytes); err != nil {
		return failf(ErrInvalidSize, "device %s: %v", device.Address, err)
	}
	spec.Device, spec.SizeBytes = &device, sizeBytes
	return nil
}

// makeImage creates and formats a sparse image, durably but for its name in the directory.
func (r *Registry) makeImage(path string, sizeBytes int64, label string) error {
	if r.opts.Format == nil {
		return errors.New("this program cannot format images")
	}
	if err := makeSparse(path, sizeBytes); err != nil {
		return err
	}
	err := r.opts.Format(path, sizeBytes, label)
	if err == nil {
		err = checkFormatted(path, sizeBytes)
	}
	if err == nil {
		err = syncFile(path)
	}
	if err != nil {
		os.Remove(path)
	}
	return err
}

// checkFormatted notices a formatter that cut or extended the image.
func checkFormatted(path string, sizeBytes int64) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() != sizeBytes {
		return fmt.Errorf("formatting changed the image from %d to %d bytes", sizeBytes, info.Size())
	}
	return nil
}

// resolveImage returns the path of the image file itself, to which the registry keeps it: links to it may
// change. info is nil if the file is not there yet.
func (r *Registry) resolveImage(given string) (path string, info fs.FileInfo, err error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(given))
	if err != nil {
		return "", nil, failf(ErrImage, "image %s: its directory cannot be used: %v; make the directory first, or correct the path", given, reason(err))
	}
	path = filepath.Join(dir, filepath.Base(given))
	info, err = os.Lstat(path)
	if err == nil && info.Mode().Type() == fs.ModeSymlink {
		path, err = filepath.EvalSymlinks(path)
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil, failf(ErrImage, "image %s is a symbolic link to nothing; name the file itself", given)
		}
		if err != nil {
			return "", nil, failf(ErrImage, "image %s is a symbolic link that leads nowhere; name the file itself", given)
		}
		info, err = os.Lstat(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		info, err = nil, nil
	}
	if err != nil {
		return "", nil, failf(ErrImage, "image %s: %v", given, reason(err))
	}
	root, err := filepath.EvalSymlinks(r.opts.Root)
	if err != nil {
		return "", nil, fmt.Errorf("volume root %s: %w", r.opts.Root, err)
	}
	if _, inside := relativeTo(root, path); inside {
		return "", nil, failf(ErrImage, "image %s lies in the volume root %s; keep it elsewhere, or leave out the path to have one made there", given, root)
	}
	return path, info, nil
}

// adoptImageLocked checks the image at spec.Image and completes spec from it, or makes it if it is not
// there. undo takes back what it made.
func (r *Registry) adoptImageLocked(spec *CreateSpec) (undo func(), err error) {
	path, info, err := r.resolveImage(spec.Image)
	if err != nil {
		return nil, err
	}
	spec.Image = path
	if info == nil {
		if err := CheckNewImage(path); err != nil {
			return nil, err
		}
		return r.makeExternal(spec)
	}
	if !info.Mode().IsRegular() {
		return nil, failf(ErrImage, "image %s exists and is not a regular file; name an image file, or a new name in a directory to have one made", spec.Image)
	}
	if spec.SizeBytes != 0 && spec.SizeBytes != info.Size() {
		return nil, failf(ErrInvalidSize, "image %s exists and has %d bytes, not %d; leave out the size to use it as it is", spec.Image, info.Size(), spec.SizeBytes)
	}
	if err := r.checkNotRegistered(spec.Image, info); err != nil {
		return nil, err
	}
	if r.opts.Probe == nil {
		return nil, errors.New("this program cannot check images")
	}
	if err := r.opts.Probe(spec.Image); err != nil {
		if strings.Contains(err.Error(), spec.Image) {
			return nil, failf(ErrImage, "%v", err)
		}
		return nil, failf(ErrImage, "image %s cannot be used: %v", spec.Image, err)
	}
	if err := CheckSize(info.Size()); err != nil {
		return nil, failf(ErrInvalidSize, "image %s: %v", spec.Image, err)
	}
	spec.SizeBytes = info.Size()
	return func() {}, nil
}

// checkNotRegistered refuses a file that is the image of another volume, under whatever path.
func (r *Registry) checkNotRegistered(path string, info fs.FileInfo) error {
	volumes, err := r.List()
	if err != nil && !errors.Is(err, ErrDamaged) {
		return err
	}
	for _, volume := range volumes {
		for _, other := range volume.FilePaths() {
			if otherInfo, err := os.Stat(other); err == nil && os.SameFile(info, otherInfo) {
				return failf(ErrImage, "image %s is the image of volume %q already; use that volume, or give it up first with 'runsc-fs volume rm %s'", path, volume.Name(), volume.Name())
			}
		}
	}
	return nil
}

// makeExternal makes a new image at spec.Image: under another name first, so that the path holds a
// whole image or nothing.
func (r *Registry) makeExternal(spec *CreateSpec) (undo func(), err error) {
	if spec.SizeBytes == 0 {
		spec.SizeBytes = DefaultImageSizeBytes
	}
	temp := fmt.Sprintf("%s.tmp-%s", spec.Image, newID()[:8])
	if err := r.makeImage(temp, spec.SizeBytes, spec.Name); err != nil {
		return nil, asOneOf(err, spec.Name, temp, spec.Image)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, spec.Image, unix.RENAME_NOREPLACE); err != nil {
		os.Remove(temp)
		return nil, failf(ErrImage, "image %s: %v", spec.Image, err)
	}
	undo = func() { os.Remove(spec.Image) }
	if err := syncDir(filepath.Dir(spec.Image)); err != nil {
		undo()
		return nil, failf(ErrImage, "image %s: %v", spec.Image, err)
	}
	return undo, nil
}

// CheckNewImage refuses to make an image where the host keeps its devices: who
// names a device that is not there does not want a file of that name, which
// would lie in memory and be gone after a restart.
func CheckNewImage(path string) error {
	path = filepath.Clean(path)
	for _, place := range []string{"/dev", "/proc", "/sys"} {
		if _, inside := relativeTo(place, path); inside && !strings.HasPrefix(path, "/dev/shm/") {
			return failf(ErrImage, "image %s does not exist, and none can be made in %s; name a file on a disk", path, place)
		}
	}
	return nil
}

// asOneOf makes err one line that names the volume and says what to do about
// it, if it does not yet. What was made at temp would have become path.
func asOneOf(err error, name, temp, path string) error {
	if isFull(err) {
		return failf(err, "volume %q cannot be made: there is no space left on the file system of %s; free some, or choose another place with --image PATH or --volume-root DIR", name, filepath.Dir(path))
	}
	text := strings.ReplaceAll(err.Error(), temp, path)
	var own *failure
	if !errors.As(err, &own) {
		text = fmt.Sprintf("volume %q cannot be made: %s", name, text)
	}
	if errors.Is(err, fs.ErrPermission) {
		text += "; run this as root"
	}
	return failf(err, "%s", text)
}

// isFull tells whether a file system or a quota is used up.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// reason strips the operation and the path that the caller names already from an error of package os.
func reason(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
