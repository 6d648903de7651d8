package hooks

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"runsc-fs/gofer"
	"runsc-fs/nvme/pcie"
	"runsc-fs/oci"
	"runsc-fs/oci/registry"
)

// volumeRoot is set while flags are parsed, before any other function is called.
var volumeRoot string

// SetVolumeRoot chooses the directory of the volume registry; empty means the
// default.
func SetVolumeRoot(root string) { volumeRoot = root }

// VolumeRoot returns what SetVolumeRoot has set.
func VolumeRoot() string { return volumeRoot }

// OpenRegistry opens the registry that this command works with.
func OpenRegistry() (*registry.Registry, error) {
	return registry.Open(registry.Options{Root: volumeRoot, Format: gofer.Format, Probe: gofer.Probe, PrepareDevice: prepareDevice, CreateLayer: gofer.CreateLayer, Flatten: gofer.Flatten,
		GrowImage: gofer.GrowImage, GrowVolume: growVolume, AskUser: askUser})
}

// prepareDevice makes or checks the file system of a device volume.
func prepareDevice(d registry.Device, label string, existing, force bool) (registry.Device, int64, error) {
	addr, err := pcie.ParseAddress(d.Address)
	if err != nil {
		return d, 0, err
	}
	d.Address = string(addr)
	var info gofer.DeviceInfo
	if existing {
		info, err = gofer.ProbeDevice(DeviceSpec(d))
	} else {
		info, err = gofer.FormatDevice(DeviceSpec(d), label, force)
	}
	d.Model, d.Serial = info.Model, info.Serial
	return d, info.SizeBytes, err
}

// DeviceSpec is a device as package gofer wants it.
func DeviceSpec(d registry.Device) gofer.DeviceSpec {
	return gofer.DeviceSpec{Address: d.Address, Namespace: d.Namespace, Serial: d.Serial}
}

// openVolume is a volume that this process has opened for a container.
type openVolume struct {
	arg   VolumeArg
	files []*os.File
}

func (v *openVolume) close() {
	for _, f := range v.files {
		f.Close()
	}
}

// opened has the volumes of containers that are being started.
var opened struct {
	mu sync.Mutex
	by map[string][]openVolume // by container ID
}

func openedFor(containerID string) []openVolume {
	opened.mu.Lock()
	defer opened.mu.Unlock()
	return opened.by[containerID]
}

// OpenVolumes opens and locks the volumes that a container mounts, copies the
// first files into new ones, and keeps them for DonateVolumes or SendVolumes.
// Nothing stays open or locked if it fails. The error is one line.
func OpenVolumes(runtimeRoot string, spec *specs.Spec, containerID, sandboxID string) error {
	reg, mounts, err := volumeMounts(spec)
	if err != nil || len(mounts) == 0 {
		return err
	}
	if m := oci.RootMount(oci.WithRootVolume(spec, rootVolume)); m != nil && containerID != sandboxID {
		return fmt.Errorf("volume %q: only the first container of a sandbox can have a root volume; mount it below the root directory", m.Source)
	}
	pod := containerID != sandboxID || isPod(spec)
	var list []openVolume
	for name, use := range mounts {
		v, err := open(reg, use, runtimeRoot, containerID, sandboxID, pod)
		if err != nil {
			for i := range list {
				list[i].close()
			}
			return withName(name, err)
		}
		list = append(list, *v)
	}
	if err := checkFileCount(list, containerID, sandboxID); err != nil {
		for i := range list {
			list[i].close()
		}
		return err
	}
	opened.mu.Lock()
	defer opened.mu.Unlock()
	if opened.by == nil {
		opened.by = map[string][]openVolume{}
	}
	opened.by[containerID] = list
	return nil
}

// maxSentFiles is how many files of volumes fit into the request that starts a
// further container. The request carries 128 files, the container's own among
// them.
const maxSentFiles = 100

// checkFileCount refuses a container whose volumes consist of more files than can
// be sent to a sandbox that runs.
func checkFileCount(list []openVolume, containerID, sandboxID string) error {
	if containerID == sandboxID {
		return nil
	}
	files := 0
	for i := range list {
		files += len(list[i].files)
	}
	if files > maxSentFiles {
		return fmt.Errorf("the volumes of container %q consist of %d files, and %d is the most for a container that joins a sandbox; 'runsc-fs volume flatten' joins the layers of a volume",
			containerID, files, maxSentFiles)
	}
	return nil
}

// withName makes sure that an error names its volume.
func withName(name string, err error) error {
	if strings.Contains(err.Error(), fmt.Sprintf("volume %q", name)) {
		return err
	}
	return fmt.Errorf("volume %q: %w", name, err)
}

// volumeUse is how a container uses one volume.
type volumeUse struct {
	volume   *registry.Volume
	readOnly bool // in all its mounts
}

// volumeMounts finds the volumes in a specification and checks the options of
// their mounts.
func volumeMounts(spec *specs.Spec) (*registry.Registry, map[string]volumeUse, error) {
	reg, err := OpenRegistry()
	if err != nil {
		return nil, nil, err
	}
	with := *oci.WithRootVolume(spec, rootVolume)
	mounts, err := oci.ResolveMounts(&with, reg)
	if err != nil {
		return nil, nil, err
	}
	uses := map[string]volumeUse{}
	for _, m := range mounts {
		name := m.Volume.Name()
		if _, err := mountOptions(name, m.Options.Strings()); err != nil {
			return nil, nil, fmt.Errorf("mount %s: %w", m.Destination, err)
		}
		use, again := uses[name]
		use.volume = m.Volume
		use.readOnly = m.Options.ReadOnly && (use.readOnly || !again)
		uses[name] = use
	}
	return reg, uses, nil
}

// holderName is what a volume's lock file says about who has it. For a pod it
// names the sandbox, too.
func holderName(containerID, sandboxID string) string {
	if containerID == sandboxID {
		return containerID
	}
	return containerID + podMark + sandboxID
}

const podMark = " of pod "

// heldBySandbox tells whether the volume is held by that sandbox.
func heldBySandbox(v *registry.Volume, sandboxID string) bool {
	holder, inUse, err := v.Holder()
	if err != nil || !inUse {
		return false
	}
	if _, pod, ok := strings.Cut(holder, podMark); ok {
		holder = pod
	}
	return holder == sandboxID
}

// open locks and opens one volume for a container.
func open(reg *registry.Registry, use volumeUse, runtimeRoot, containerID, sandboxID string, pod bool) (_ *openVolume, err error) {
	v := use.volume
	out := &openVolume{arg: VolumeArg{
		Name: v.Name(), Kind: string(v.Kind()), SizeBytes: v.SizeBytes(), Container: containerID,
	}}
	lock, err := v.AcquireFor(registry.User{Container: holderName(containerID, sandboxID), RuntimeRoot: runtimeRoot})
	if errors.Is(err, registry.ErrInUse) && containerID != sandboxID && heldBySandbox(v, sandboxID) {
		return out, nil // the containers of a sandbox share their volumes
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	if v.Kind() == registry.KindDevice && containerID != sandboxID {
		err = errLateDevice(v.Name())
		return nil, err
	}
	if v, err = reg.Get(v.Name()); err != nil { // as it is now that nobody changes it
		return nil, err
	}
	image, err := openImage(v, use.readOnly && v.Kind() == registry.KindImage && v.PopulateFrom() == "", pod)
	if err != nil {
		return nil, err
	}
	if from := v.PopulateFrom(); from != "" {
		if err = gofer.Populate(image, from); err == nil {
			err = reg.MarkPopulated(v.Name())
		}
		if err != nil {
			image.Close()
			return nil, err
		}
	}
	out.arg.Parents = len(image.ParentFiles)
	files, device, err := image.HandOver()
	if err != nil {
		image.Close()
		return nil, err
	}
	out.arg.ReadOnly = image.ReadOnly
	out.arg.Device, out.arg.Namespace = device, v.Device().Namespace
	out.arg.HasImage, out.arg.HasLock = device == nil, true
	out.files = append(files, lock)
	return out, nil
}

// errLateDevice refuses a device for a running sandbox: it would have to be mapped for
// DMA, which a sandbox cannot do any more once it runs.
func errLateDevice(name string) error {
	return fmt.Errorf("volume %q is on a device, which only the first container of a sandbox can bring; mount it there, too", name)
}

// openImage opens a volume. Whoever mounts it read-only writes nothing to the
// image, not even the end of what a crash has interrupted: it may lie on a disk
// that is full or read-only. In a pod another container may mount it for
// writing later, so there it is opened for that if it can be.
func openImage(v *registry.Volume, readOnly, pod bool) (*gofer.Volume, error) {
	spec := gofer.VolumeSpec{
		Name: v.Name(), Kind: gofer.Kind(v.Kind()), Path: v.ImagePath(), Parents: v.ParentPaths(), SizeBytes: v.SizeBytes(), ReadOnly: readOnly && !pod,
		Device: DeviceSpec(v.Device()),
	}
	image, err := gofer.OpenVolume(spec)
	if readOnly && errors.Is(err, unix.EROFS) {
		spec.ReadOnly = true
		image, err = gofer.OpenVolume(spec)
	}
	return image, err
}

// CheckVolumes tells whether OpenVolumes would find the volumes of a container
// that joins a sandbox, and find them free.
func CheckVolumes(spec *specs.Spec, sandboxID string) error {
	_, uses, err := volumeMounts(spec)
	if err != nil {
		return err
	}
	for name, use := range uses {
		holder, inUse, err := use.volume.Holder()
		if err != nil {
			return err
		}
		if inUse && !heldBySandbox(use.volume, sandboxID) {
			return fmt.Errorf("volume %q is in use by container %s; stop that first", name, holder)
		}
		if !inUse && use.volume.Kind() == registry.KindDevice {
			return errLateDevice(name)
		}
	}
	return nil
}

// ForgetVolumes closes this process's copies of what OpenVolumes opened.
func ForgetVolumes(containerID string) {
	opened.mu.Lock()
	list := opened.by[containerID]
	delete(opened.by, containerID)
	opened.mu.Unlock()
	for i := range list {
		list[i].close()
	}
}

// fileDonor is runsc's way to give files to a child process.
type fileDonor interface {
	DonateAndClose(flag string, files ...*os.File)
}

// DonateVolumes gives the opened volumes to the sandbox process that cmd will
// start.
func DonateVolumes(containerID string, spec *specs.Spec, donor fileDonor, cmd *exec.Cmd) error {
	list := openedFor(containerID)
	if len(list) == 0 && !mayGetVolumes(spec) {
		return nil
	}
	args := []VolumeArg{}
	var files []*os.File
	for _, v := range list {
		if v.arg.Device != nil {
			if err := allowLockedMemory(); err != nil {
				return fmt.Errorf("volume %q: %w", v.arg.Name, err)
			}
		}
		args = append(args, v.arg)
		files = append(files, v.files...)
	}
	text, err := json.Marshal(args)
	if err != nil {
		return err
	}
	cmd.Args = append(cmd.Args, "--"+volumesFlag+"="+string(text))
	if traceVolumes {
		cmd.Args = append(cmd.Args, "--"+traceFlag)
	}
	if len(files) > 0 {
		donor.DonateAndClose(volumeFDsFlag, files...)
	}
	return nil
}

// allowLockedMemory lets the sandbox, which inherits the limit, map its arena for DMA.
func allowLockedMemory() error {
	all := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &all); err != nil {
		return fmt.Errorf("a device needs locked memory: %w; run this as root", err)
	}
	return nil
}

// SendVolumes adds the opened volumes to the request that starts a further
// container.
func SendVolumes(containerID string, args *[]VolumeArg, payload *[]*os.File) {
	for _, v := range openedFor(containerID) {
		*args = append(*args, v.arg)
		*payload = append(*payload, v.files...)
	}
}
