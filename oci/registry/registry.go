// Package registry keeps the volumes of a host: which exist, where their data lies, how large they
// are and whether a sandbox holds them.
//
// The registry is a directory tree, so that it needs no daemon and survives a crash at any moment:
//
//	ROOT/                         0700
//	├── registry.lock             flock: one writer of the registry at a time
//	├── layers/                   0700; files of volumes with snapshots and of clones
//	│   ├── ID                    0600; named by 32 hex digits
//	│   └── ID.unsettled          0600; a mark: to be removed unless a volume has it
//	└── volumes/                  0700
//	    └── NAME/                 0700; appears and disappears by one rename, so it is whole or absent
//	        ├── volume.json       0600; what Spec says
//	        ├── lock              0600; flock: held by the sandbox that uses the volume
//	        ├── image             0600; only for image volumes that have neither a path of their own nor layers
//	        └── mountpoint/       an ordinary directory, the path that Docker is given
//
// Names that begin with a dot are never volumes: they are volumes being made or being removed, and
// whatever a crash leaves of them is cleared by the next change to the registry.
//
// Lock order: registry.lock, then the lock of one volume. No operation holds the locks of two volumes.
// Reading (Get, List) takes no lock: volume.json is replaced by rename only.
package registry

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// DefaultRoot is where volumes live unless Options.Root or RootEnv says otherwise.
	DefaultRoot = "/var/lib/runsc-fs"

	// RootEnv is the environment variable that overrides DefaultRoot.
	RootEnv = "RUNSC_FS_VOLUME_ROOT"

	volumesDir    = "volumes"
	layersDir     = "layers"
	specFile      = "volume.json"
	lockFile      = "lock"
	imageFile     = "image"
	mountpointDir = "mountpoint"
	copiedInDir   = "copied-in"

	// tempPrefix marks a volume on its way in or out of the registry.
	tempPrefix = ".tmp-"
)

// Options configures a Registry.
type Options struct {
	// Root is the directory of the registry. Empty means the value of RootEnv, else DefaultRoot.
	Root string

	// Format writes an empty file system into the image file at path, which exists, is sparse and has
	// exactly sizeBytes. Create needs it for every image that it makes; nil is an error then.
	Format func(path string, sizeBytes int64, label string) error

	// Probe tells whether the existing file at path is an image that can be mounted. Its error reaches
	// the user in one line. Create needs it for images that exist already; nil is an error then.
	Probe func(path string) error

	// PrepareDevice makes an empty file system on a device, or checks the one that is there if existing is
	// set, and returns the device with model and serial number, and its size. Unless force is set it refuses to format what is not empty. Its error
	// reaches the user in one line. Create needs it for device volumes; nil is an error then.
	PrepareDevice func(device Device, label string, existing, force bool) (Device, int64, error)

	// CreateLayer makes the file at path, which is not there, an empty layer above the frozen files in
	// parents, base first, durably but for its name. Snapshots and clones need it.
	CreateLayer func(path string, parents []string, sizeBytes int64) error

	// Flatten makes the file at path, which is not there, a plain image with what the layer at top reads
	// as above its parents, durably but for its name. Flatten needs it.
	Flatten func(path, top string, parents []string) error

	// GrowImage makes the last file of an image volume long enough for sizeBytes, durably, whether or
	// not it is in use. GrowVolume then makes the file system as large, of a volume that is not in use.
	// AskUser has the sandbox of user do that. Resize needs them.
	GrowImage  func(path string, sizeBytes int64) error
	GrowVolume func(v *Volume) error
	AskUser    func(user User, name string, sizeBytes int64) error

	// LockTimeout bounds the wait for another process that is changing the registry. 0 means 30 s.
	LockTimeout time.Duration

	// Now is the clock for creation times. nil means time.Now.
	Now func() time.Time
}

func (o *Options) setDefaults() error {
	if o.Root == "" {
		o.Root = os.Getenv(RootEnv)
	}
	if o.Root == "" {
		o.Root = DefaultRoot
	}
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return fmt.Errorf("volume root %q: %w", o.Root, err)
	}
	o.Root = root
	if o.LockTimeout < 0 {
		return fmt.Errorf("volume registry: negative lock timeout %v", o.LockTimeout)
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = 30 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// Registry is a handle on the volumes of one root directory. It is safe for concurrent use, also by
// several processes on the same directory.
type Registry struct {
	opts Options

	// onStep is called before each change of the files of a layered volume; tests end the process there.
	onStep func()
}

func (r *Registry) step() {
	if r.onStep != nil {
		r.onStep()
	}
}

// Open returns the registry at opts.Root. It neither needs nor makes the directory: the first Create does.
func Open(opts Options) (*Registry, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	return &Registry{opts: opts}, nil
}

// Root returns the absolute path of the registry's directory.
func (r *Registry) Root() string { return r.opts.Root }

func (r *Registry) volumesPath() string { return filepath.Join(r.opts.Root, volumesDir) }

func (r *Registry) volumePath(name string) string { return filepath.Join(r.volumesPath(), name) }

// Get returns the volume called name, ErrInvalidName or ErrNotExist.
func (r *Registry) Get(name string) (*Volume, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	dir := r.volumePath(name)
	path := filepath.Join(dir, specFile)
	spec, err := readSpec(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, statErr := os.Lstat(dir); statErr != nil {
			return nil, notExist(name)
		}
		spec, err = readSpec(path) // it may have been created since the first look
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failf(ErrDamaged, "volume %q: %s is missing; 'runsc-fs volume rm %s' removes what is left of it", name, path, name)
	}
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w", name, err)
	}
	if spec.Name != name {
		return nil, failf(ErrDamaged, "volume %q: %s names volume %q; the directory was copied or renamed by hand: give it its name back, or remove it with 'runsc-fs volume rm %s'",
			name, path, spec.Name, name)
	}
	return &Volume{reg: r, dir: dir, spec: *spec}, nil
}

func notExist(name string) error {
	return failf(ErrNotExist, "volume %q does not exist; 'runsc-fs volume ls' shows those that do", name)
}

// List returns all volumes in the order of their names. A volume that cannot be read does not hide the
// others: the slice holds what could be read and the error joins what could not.
func (r *Registry) List() ([]*Volume, error) {
	entries, err := os.ReadDir(r.volumesPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	var volumes []*Volume
	var errs []error
	for _, entry := range entries {
		if CheckName(entry.Name()) != nil {
			continue
		}
		volume, err := r.Get(entry.Name())
		switch {
		case err == nil:
			volumes = append(volumes, volume)
		case errors.Is(err, ErrNotExist): // removed since ReadDir
		default:
			errs = append(errs, err)
		}
	}
	return volumes, errors.Join(errs...)
}

// Locate tells whether the host path lies in the mountpoint directory of a volume, after symbolic links
// and ".." are resolved. sub is the rest of the path below the mountpoint, "" for the mountpoint itself.
// ok is false for every other path; ErrNotExist says that the path belongs to a volume that is not there.
func (r *Registry) Locate(path string) (volume *Volume, sub string, ok bool, err error) {
	if !filepath.IsAbs(path) {
		return nil, "", false, nil
	}
	clean := filepath.Clean(path)
	rel, inside := relativeTo(r.volumesPath(), clean)
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		clean = resolved
		root, err := filepath.EvalSymlinks(r.volumesPath())
		if err != nil { // no registry yet: nothing can lie in it
			return nil, "", false, checkElsewhere(clean)
		}
		rel, inside = relativeTo(root, resolved)
	}
	if !inside {
		return nil, "", false, checkElsewhere(clean)
	}
	parts := strings.SplitN(rel, string(filepath.Separator), 3)
	if len(parts) < 2 || parts[1] != mountpointDir || CheckName(parts[0]) != nil {
		return nil, "", false, nil
	}
	volume, err = r.Get(parts[0])
	if err != nil {
		return nil, "", false, err
	}
	if len(parts) == 3 {
		sub = parts[2]
	}
	return volume, sub, true, nil
}

// checkElsewhere refuses the mountpoint of a volume of another registry: who takes it for an ordinary
// directory writes beside the volume, and loses that with it.
func checkElsewhere(path string) error {
	parts := strings.Split(path, string(filepath.Separator))
	for i := 2; i < len(parts); i++ {
		if parts[i] != mountpointDir || parts[i-2] != volumesDir || CheckName(parts[i-1]) != nil {
			continue
		}
		dir := string(filepath.Separator) + filepath.Join(parts[:i]...)
		if _, err := readSpec(filepath.Join(dir, specFile)); err == nil {
			root := filepath.Dir(filepath.Dir(dir))
			return failf(ErrNotExist, "%s belongs to volume %q of another registry, %s; start the runtime with --volume-root=%s", path, parts[i-1], root, root)
		}
	}
	return nil
}

// relativeTo returns path relative to root if it lies strictly below it. Both must be clean.
func relativeTo(root, path string) (string, bool) {
	rel, err := filepath.Rel(root, path)
	if err != nil || rel == "." || rel == ".." || strings.HasPrefix(rel, "../") {
		return "", false
	}
	return rel, true
}

func readSpec(path string) (*Spec, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	spec := &Spec{}
	if err := json.Unmarshal(data, spec); err != nil {
		return nil, failf(ErrDamaged, "%s is not valid: %v; repair it, or remove the volume", path, err)
	}
	if spec.Version != specVersion && spec.Version != layeredSpecVersion {
		return nil, failf(ErrDamaged, "%s has version %d, this program knows versions up to %d; use a newer runsc-fs", path, spec.Version, layeredSpecVersion)
	}
	switch spec.Kind {
	case KindImage, KindMemory:
	case KindDevice:
		if spec.Device == nil {
			return nil, failf(ErrDamaged, "%s names no device; repair it, or remove the volume", path)
		}
	default:
		return nil, failf(ErrDamaged, "%s has kind %q, which this program does not know; use a newer runsc-fs", path, spec.Kind)
	}
	if err := spec.checkLayers(); err != nil {
		return nil, failf(ErrDamaged, "%s is not valid: %v", path, err)
	}
	return spec, nil
}

// writeSpec puts volume.json into dir durably; a crash leaves the old or the new one.
func writeSpec(dir string, spec *Spec) error {
	data, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	return writeFileAtomic(filepath.Join(dir, specFile), append(data, '\n'), 0o600)
}

func newID() string {
	var id [16]byte
	rand.Read(id[:]) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(id[:])
}
