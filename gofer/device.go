package gofer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"runsc-fs/blobfs/format"
	"runsc-fs/gofer/device"
	"runsc-fs/nvme"
	"runsc-fs/nvme/pcie"
)

// ErrDevice is the class of errors of a device that is not as it should be.
var ErrDevice = errors.New("device cannot be used")

// deviceArenaBytes is the memory for work on a device outside a sandbox. All of it is
// taken at once.
const deviceArenaBytes = 24 << 20

// DeviceSpec names a namespace of an NVMe device.
type DeviceSpec struct {
	Address   string
	Namespace uint32
	// Serial is the controller's serial number as it was when the volume was made:
	// another device at the same address is refused. "" accepts any.
	Serial string
}

func (s DeviceSpec) String() string { return fmt.Sprintf("%s namespace %d", s.Address, s.Namespace) }

func (s DeviceSpec) failf(class error, text string, args ...any) error {
	return &classError{class: class, text: fmt.Sprintf("device %v %s", s, fmt.Sprintf(text, args...))}
}

// DeviceInfo is what a namespace says about itself.
type DeviceInfo struct {
	Model, Serial string
	SizeBytes     int64
}

// openTransport opens a device for this process. Tests replace it.
var openTransport = func(addr pcie.Address, arena *nvme.Arena) (nvme.Transport, error) {
	return pcie.Open(addr, arena, pcie.Options{})
}

// openDevice opens a device to be handed over. Tests replace it.
var openDevice = func(addr pcie.Address) (*pcie.Device, error) { return pcie.OpenDevice(addr, pcie.Options{}) }

// openDeviceOffline serves a namespace in this process, and nothing but that.
func openDeviceOffline(spec DeviceSpec) (*offline, error) {
	addr, err := pcie.ParseAddress(spec.Address)
	if err != nil {
		return nil, err
	}
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: deviceArenaBytes})
	if err != nil {
		return nil, err
	}
	transport, err := openTransport(addr, arena)
	if errors.Is(err, pcie.ErrInUse) {
		err = &classError{class: ErrInUse, text: err.Error()}
	}
	if err != nil {
		return nil, errors.Join(err, arena.Close())
	}
	ns, err := nvme.OpenNamespace(transport, spec.Namespace, nvme.Options{OnlyNamespace: spec.Namespace, QueuePairs: 4})
	if err != nil {
		if errors.Is(err, nvme.ErrNoNamespace) {
			err = spec.failf(ErrDevice, "does not exist; 'runsc-fs device ls --json' shows a device's namespaces")
		} else {
			err = spec.failf(ErrDevice, "cannot be opened: %v", err)
		}
		return nil, errors.Join(err, arena.Close())
	}
	o := &offline{arena: arena, device: ns}
	if serial := ns.Controller().Info().Serial; spec.Serial != "" && serial != spec.Serial {
		return nil, errors.Join(spec.failf(ErrDevice, "is another one, with serial number %q instead of %q; "+
			"'runsc-fs device ls' shows where the volume's device is now", serial, spec.Serial), o.close())
	}
	return o, nil
}

func (o *offline) deviceInfo() DeviceInfo {
	info := DeviceInfo{SizeBytes: o.device.Geometry().SizeBytes()}
	if ns, ok := o.device.(*nvme.Namespace); ok {
		c := ns.Controller().Info()
		info.Model, info.Serial = c.Model, c.Serial
	}
	// What is behind the last whole block of the file system is not used.
	info.SizeBytes &^= format.BlockSizeBytes - 1
	return info
}

// FormatDevice makes an empty file system on a namespace. Unless force is set it
// refuses one that holds anything.
func FormatDevice(spec DeviceSpec, label string, force bool) (info DeviceInfo, err error) {
	o, err := openDeviceOffline(spec)
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	info = o.deviceInfo()
	if !force {
		what, err := o.content(info.SizeBytes)
		if err != nil {
			return info, spec.failf(ErrDevice, "cannot be read: %v", err)
		}
		if what != "" {
			return info, spec.failf(ErrDevice, "holds %s; --force destroys it", what)
		}
	}
	if err := o.mkfs(label); err != nil {
		return info, spec.failf(ErrDevice, "cannot be formatted: %v", err)
	}
	return info, nil
}

// ProbeDevice tells whether a namespace holds a file system that can be mounted. It does
// not change it.
func ProbeDevice(spec DeviceSpec) (info DeviceInfo, err error) {
	o, err := openDeviceOffline(spec)
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	info = o.deviceInfo()
	return info, spec.probe(o, info.SizeBytes)
}

// probe reads the superblocks.
func (s DeviceSpec) probe(o *offline, sizeBytes int64) error {
	var slots [format.SuperblockSlots][]byte
	for i := range slots {
		block := make([]byte, format.BlockSizeBytes)
		if _, err := (&deviceReader{o}).ReadAt(block, format.SuperblockAddr(i).OffsetBytes()); err == nil {
			slots[i] = block
		}
	}
	_, _, err := format.BestSuperblock(slots, uint64(sizeBytes)/format.BlockSizeBytes)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, format.ErrNotBlobfs):
		return s.failf(errors.Join(ErrDevice, format.ErrNotBlobfs), "holds no blobfs")
	}
	return s.failf(ErrDevice, "cannot be mounted: %v; 'runsc-fs fsck' shows more", err)
}

// emptyBytes is how much of a device must be zero for it to count as empty.
const emptyBytes = 1 << 20

// content says what a namespace holds; "" if it is empty.
func (o *offline) content(sizeBytes int64) (string, error) {
	r := &deviceReader{o}
	if what, err := device.Signature(r, sizeBytes); what != "" || err != nil {
		return what, err
	}
	head := make([]byte, min(emptyBytes, sizeBytes))
	if _, err := r.ReadAt(head, 0); err != nil {
		return "", err
	}
	if !bytes.Equal(head, make([]byte, len(head))) {
		return "data of an unknown kind", nil
	}
	return "", nil
}

// deviceReader reads any bytes of a namespace.
type deviceReader struct{ o *offline }

// ReadAt implements io.ReaderAt.
func (r *deviceReader) ReadAt(b []byte, off int64) (int, error) {
	const chunk = 64 << 10
	size := r.o.device.Geometry().SizeBytes()
	mem, err := r.o.arena.Alloc(chunk / nvme.PageSizeBytes)
	if err != nil {
		return 0, err
	}
	defer r.o.arena.Free(mem)
	n := 0
	for n < len(b) {
		at := off + int64(n)
		first := at &^ (format.BlockSizeBytes - 1)
		length := min(chunk, size-first)
		if at >= size || length <= 0 {
			return n, io.EOF
		}
		if err := r.o.device.Do([]nvme.Request{{Op: nvme.OpRead, OffsetBytes: first, Vec: [][]byte{mem[:length]}}}); err != nil {
			return n, err
		}
		n += copy(b[n:], mem[at-first:length])
	}
	return n, nil
}

// InspectDevice serves a namespace while do runs. Nobody else can have the device
// meanwhile; one that a sandbox has is ErrInUse.
func InspectDevice(spec DeviceSpec, do func(nvme.BlockDevice) error) error {
	o, err := openDeviceOffline(spec)
	if err != nil {
		return err
	}
	return errors.Join(do(o.device), o.close())
}

// checkDevice makes sure that the volume's device is the one that it was made on and
// still holds a file system.
func (v *Volume) checkDevice() error {
	info, err := ProbeDevice(v.Device)
	if err == nil && info.SizeBytes != v.SizeBytes {
		err = v.Device.failf(ErrDevice, "has %d bytes instead of %d: it was changed from outside", info.SizeBytes, v.SizeBytes)
	}
	return err
}

// HandOver returns the files that the sandbox gets, which are the volume's no longer. A
// device is opened only now, as the host itself has used it until here; its handle goes with
// its two files. Those below an image follow it, the base first.
func (v *Volume) HandOver() ([]*os.File, *pcie.Handle, error) {
	if v.Kind != KindDevice {
		files := append([]*os.File{v.File}, v.ParentFiles...)
		v.File, v.ParentFiles = nil, nil
		return files, nil, nil
	}
	addr, err := pcie.ParseAddress(v.Device.Address)
	if err != nil {
		return nil, nil, err
	}
	d, err := openDevice(addr)
	if err != nil {
		return nil, nil, fmt.Errorf("volume %q: %w", v.Name, err)
	}
	dev, space := d.Files()
	handle := d.Handle()
	return []*os.File{dev, space}, &handle, nil
}
