package registry

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kind says where the data of a volume lies.
type Kind string

const (
	// KindImage keeps the data in an image file on the host.
	KindImage Kind = "image"
	// KindMemory keeps the data in the memory of the sandbox: every sandbox starts with an empty volume.
	KindMemory Kind = "memory"
	// KindDevice keeps the data on a namespace of an NVMe device, which the volume has for itself.
	KindDevice Kind = "device"
)

// Device is a namespace of an NVMe device.
type Device struct {
	Address   string `json:"address"` // on the PCI bus: 0000:03:00.0
	Namespace uint32 `json:"namespace"`
	Model     string `json:"model,omitempty"`
	Serial    string `json:"serial,omitempty"` // of the controller, by which another device at the address is recognised
}

// Versions of volume.json. The second one is that of volumes with layers, which a program that knows
// only the first must not touch.
const (
	specVersion        = 1
	layeredSpecVersion = 2
)

// Spec describes a volume: the content of its volume.json.
type Spec struct {
	Version   int       `json:"version"`
	Name      string    `json:"name"`
	ID        string    `json:"id"` // 32 hex digits, never used again, also not by a later volume of the same name
	Kind      Kind      `json:"kind"`
	SizeBytes int64     `json:"sizeBytes"`
	Image     string    `json:"image,omitempty"` // absolute path of an image outside the registry
	Device    *Device   `json:"device,omitempty"`
	CreatedAt time.Time `json:"createdAt"`
	// Populated says that the volume has taken over what lay in its mountpoint directory.
	Populated bool `json:"populated,omitempty"`
	// Discard mounts the volume with the option discard, unless a mount says nodiscard.
	Discard bool `json:"discard,omitempty"`
	// Layers are the files in the registry that the volume consists of, the base first and the one that is
	// written to last. None: the volume has an image.
	Layers    []string   `json:"layers,omitempty"`
	Snapshots []Snapshot `json:"snapshots,omitempty"` // in the order in which they were taken
	Origin    *Origin    `json:"origin,omitempty"`    // of a clone
}

// Volume is a handle on one volume as it was when Get, List or Create returned it. It is immutable and
// safe for concurrent use; it holds no lock and nothing open.
type Volume struct {
	reg  *Registry
	dir  string
	spec Spec
}

// Spec returns the description of the volume.
func (v *Volume) Spec() Spec { return v.spec }

// Name returns the name of the volume.
func (v *Volume) Name() string { return v.spec.Name }

// Kind returns where the data lies.
func (v *Volume) Kind() Kind { return v.spec.Kind }

// SizeBytes returns the size of the volume as a block device.
func (v *Volume) SizeBytes() int64 { return v.spec.SizeBytes }

// Device returns the device of the volume, the zero value if it has none.
func (v *Volume) Device() Device {
	if v.spec.Kind != KindDevice || v.spec.Device == nil {
		return Device{}
	}
	return *v.spec.Device
}

// ImagePath returns the absolute path of the image file, "" for a volume without one. With ParentPaths it
// is a layer, and no image by itself.
func (v *Volume) ImagePath() string {
	switch {
	case v.spec.Kind != KindImage:
		return ""
	case v.spec.Image != "":
		return v.spec.Image
	case len(v.spec.Layers) > 0:
		return v.reg.layerPath(v.spec.Layers[len(v.spec.Layers)-1])
	}
	return filepath.Join(v.dir, imageFile)
}

// External tells whether the image lies outside the registry, where the user put it: Remove keeps it.
func (v *Volume) External() bool { return v.spec.Image != "" }

// LockPath returns the path of the volume's lock file.
//
// Whoever uses the volume holds an exclusive flock(2) on an open file description of it for as long as
// it does so, and writes two lines into the file: the name of the container and where the runtime keeps its state (see AcquireFor). The lock
// passes to another process with the descriptor and is freed by the kernel when the last copy of the descriptor is
// closed. The content says who held the lock last; only the lock itself says that it is held.
//
// Holder takes the lock in shared mode for an instant. So a taker that finds the lock held must try
// again for LockRetry before it concludes that the volume is in use.
//
// The lock file covers the name. An external image may be registered in two registries: who opens one
// takes an exclusive flock on the image as well.
func (v *Volume) LockPath() string { return filepath.Join(v.dir, lockFile) }

// Mountpoint returns the directory on the host that stands for the volume towards Docker. It is never
// the data of the volume; see MarkPopulated.
func (v *Volume) Mountpoint() string { return filepath.Join(v.dir, mountpointDir) }

// PopulateFrom returns the directory whose owner, mode and content a sandbox copies into the root of
// the volume when it mounts a volume that has never been mounted: the mountpoint, into which Docker
// copies what the image has there. It is "" once MarkPopulated was called.
func (v *Volume) PopulateFrom() string {
	if v.spec.Populated {
		return ""
	}
	return v.Mountpoint()
}

// UsedBytes returns what the image takes on the host's disk, 0 for a volume without one. What a volume
// shares with snapshots does not count.
func (v *Volume) UsedBytes() (int64, error) {
	path := v.ImagePath()
	if path == "" {
		return 0, nil
	}
	if len(v.spec.Layers) > 0 {
		return v.ownBytes(v.spec.Layers)
	}
	used, err := usedBytes(path)
	if err != nil {
		return 0, fmt.Errorf("volume %q: %w", v.Name(), err)
	}
	return used, nil
}

// Info is what inspect prints about a volume.
type Info struct {
	Spec
	// Layers and Snapshots take the place of those in Spec.
	Layers    []LayerInfo    `json:"layers,omitempty"`
	Snapshots []SnapshotInfo `json:"snapshots,omitempty"`

	Image      string `json:"image,omitempty"` // also for an image inside the registry
	External   bool   `json:"external,omitempty"`
	UsedBytes  int64  `json:"usedBytes"`
	Mountpoint string `json:"mountpoint"`
	InUse      bool   `json:"inUse"`
	InUseBy    string `json:"inUseBy,omitempty"` // container, if it is known
}

// Info gathers everything about the volume at this moment. A missing image counts as no space used.
func (v *Volume) Info() (Info, error) {
	holder, inUse, err := v.Holder()
	if err != nil {
		return Info{}, err
	}
	used, err := v.UsedBytes()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Info{}, err
	}
	snapshots, err := v.SnapshotInfos()
	if err != nil {
		return Info{}, err
	}
	return Info{
		Spec:       v.spec,
		Layers:     v.layerInfos(),
		Snapshots:  snapshots,
		Image:      v.ImagePath(),
		External:   v.External(),
		UsedBytes:  used,
		Mountpoint: v.Mountpoint(),
		InUse:      inUse,
		InUseBy:    holder,
	}, nil
}

// Holder tells whether a sandbox uses the volume, and which container's it is as far as that is known.
func (v *Volume) Holder() (container string, inUse bool, err error) {
	user, inUse, err := v.User()
	return user.Container, inUse, err
}

// User is who uses a volume, as far as that is known.
type User struct {
	Container string // its sandbox's, and which one
	// RuntimeRoot is the directory in which the runtime keeps the state of that
	// container, by which its sandbox can be reached; "" if it did not say.
	RuntimeRoot string
}

// User is Holder with all that is known about it.
func (v *Volume) User() (user User, inUse bool, err error) {
	file, err := os.Open(v.LockPath())
	if errors.Is(err, fs.ErrNotExist) {
		return User{}, false, nil
	}
	if err != nil {
		return User{}, false, fmt.Errorf("volume %q: %w", v.Name(), err)
	}
	defer file.Close()
	err = flock(file, unix.LOCK_SH|unix.LOCK_NB)
	if err == nil {
		return User{}, false, nil
	}
	if err != unix.EWOULDBLOCK {
		return User{}, false, fmt.Errorf("volume %q: lock %s: %w", v.Name(), v.LockPath(), err)
	}
	return readUser(file), true, nil
}

// LockRetry is how long a taker of a volume's lock tries again when it finds the lock held: Holder
// holds it for an instant, and a sandbox that was killed until the kernel has taken its memory apart.
const LockRetry = 2 * time.Second

// Acquire takes the volume for the named container and returns the open lock file, which holds the
// volume until every copy of its descriptor is closed. ErrInUse if another has it.
func (v *Volume) Acquire(container string) (*os.File, error) {
	return v.AcquireFor(User{Container: container})
}

// AcquireFor is Acquire with all that others may want to know about the user.
func (v *Volume) AcquireFor(user User) (*os.File, error) {
	file, err := os.OpenFile(v.LockPath(), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failf(ErrNotExist, "volume %q has been removed", v.Name())
	}
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w", v.Name(), err)
	}
	if err := v.acquire(file, user); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func (v *Volume) acquire(file *os.File, user User) error {
	err := retryUntil(time.Now().Add(LockRetry), func() error {
		return flock(file, unix.LOCK_EX|unix.LOCK_NB)
	})
	if err == unix.EWOULDBLOCK {
		return inUseError(v.Name(), readHolder(file))
	}
	if err != nil {
		return fmt.Errorf("volume %q: lock %s: %w", v.Name(), v.LockPath(), err)
	}
	// Remove holds this lock while it takes the volume away, so whoever waited for it looks again.
	var held, named unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &held); err != nil {
		return fmt.Errorf("volume %q: %w", v.Name(), err)
	}
	if err := unix.Stat(v.LockPath(), &named); err != nil || held.Ino != named.Ino || held.Dev != named.Dev {
		return failf(ErrNotExist, "volume %q has been removed", v.Name())
	}
	// No lock depends on what is written. A host whose disk is full must not keep a container from its data.
	if file.Truncate(0) == nil {
		file.WriteAt([]byte(user.Container+"\n"+user.RuntimeRoot+"\n"), 0)
	}
	return nil
}

// CheckFree returns ErrInUse if a sandbox uses the volume. One that is just
// ending is given LockRetry to let go.
func (v *Volume) CheckFree() error {
	var holder string
	err := retryUntil(time.Now().Add(LockRetry), func() error {
		by, inUse, err := v.Holder()
		if err == nil && inUse {
			holder, err = by, unix.EWOULDBLOCK
		}
		return err
	})
	if err == unix.EWOULDBLOCK {
		return inUseError(v.Name(), holder)
	}
	return err
}

func inUseError(name, holder string) error {
	if holder == "" {
		return failf(ErrInUse, "volume %q is in use by another process; end that first", name)
	}
	return failf(ErrInUse, "volume %q is in use by container %s; stop that first", name, holder)
}

// readHolder returns the first line of a lock file, "" if there is none.
func readHolder(file *os.File) string { return readUser(file).Container }

// maxUserBytes bounds what is read of a lock file: two names and a path.
const maxUserBytes = 8 << 10

// readUser returns what a lock file says.
func readUser(file *os.File) User {
	var buf [maxUserBytes]byte
	n, err := file.ReadAt(buf[:], 0)
	if err != nil && err != io.EOF {
		return User{}
	}
	container, rest, _ := strings.Cut(string(buf[:n]), "\n")
	root, _, _ := strings.Cut(rest, "\n")
	return User{Container: strings.TrimSpace(container), RuntimeRoot: strings.TrimSpace(root)}
}

var nameRE = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// maxNameBytes is far below what a file name holds, with room for the prefixes of a volume in transit.
const maxNameBytes = 128

// CheckName returns ErrInvalidName unless name is a volume name, by the rule that Docker has for its own.
func CheckName(name string) error {
	switch {
	case IsSnapshotName(name):
		return failf(ErrInvalidName, "%.140q names a snapshot, where a volume is needed; 'runsc-fs volume clone' makes a volume of a snapshot", name)
	case name == "":
		return failf(ErrInvalidName, "the volume name is empty")
	case len(name) > maxNameBytes:
		return failf(ErrInvalidName, "volume name %.20q... has %d bytes; the longest allowed has %d", name, len(name), maxNameBytes)
	case !nameRE.MatchString(name):
		return failf(ErrInvalidName, "volume name %q is not valid; use letters, digits, '_', '.' and '-', beginning with a letter or digit", name)
	}
	return nil
}
