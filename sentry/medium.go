package sentry

import (
	"fmt"
	"slices"

	"runsc-fs/nvme"
	"runsc-fs/nvme/layers"
	"runsc-fs/nvme/pcie"
	"runsc-fs/nvme/soft"
)

// medium is what a volume lies on. It serves several mounts after each other.
type medium interface {
	// open starts a controller and the driver on it.
	open(opts nvme.Options) (nvme.BlockDevice, error)
	// close lets go of the medium. No device of it is open.
	close() error
}

func (v *volume) newMedium() (medium, error) {
	spec := &v.spec
	if spec.Kind == KindDevice {
		t, err := pcie.AdoptDevice(spec.Device, spec.File, spec.Space, v.logf).Attach(v.arena)
		if err != nil {
			return nil, err
		}
		return &deviceMedium{t, spec.Namespace}, nil
	}
	var backing soft.Backing
	var err error
	switch {
	case spec.Kind == KindMemory && spec.File != nil:
		backing, err = soft.NewMemfdBacking(spec.File)
	case spec.Kind == KindMemory:
		backing, err = soft.NewMemoryBacking(spec.SizeBytes)
	default:
		backing, err = layers.Open(append(slices.Clone(spec.Parents), spec.File), spec.ReadOnly)
	}
	if err != nil {
		return nil, err
	}
	return &softMedium{backing: lentBacking{backing}, arena: v.arena, serial: v.serial()}, nil
}

// softMedium is a medium of the controller in software.
type softMedium struct {
	backing lentBacking
	arena   *nvme.Arena
	serial  string

	controller *soft.Controller // the last one
}

func (m *softMedium) open(opts nvme.Options) (nvme.BlockDevice, error) {
	c, err := soft.New(m.arena, []soft.Backing{m.backing}, soft.Options{Serial: m.serial})
	if err != nil {
		return nil, err
	}
	device, err := nvme.OpenNamespace(c, 1, opts)
	if err != nil {
		return nil, fmt.Errorf("opening %v: %w", m.backing.Backing, err)
	}
	m.controller = c
	return device, nil
}

func (m *softMedium) close() error { return m.backing.Backing.Close() }

// lentBacking stays open when a controller closes it.
type lentBacking struct{ soft.Backing }

// Close implements soft.Backing.
func (lentBacking) Close() error { return nil }

// deviceMedium is a namespace of an NVMe controller, which stays in the sandbox between
// mounts.
type deviceMedium struct {
	transport *pcie.Transport
	namespace uint32
}

func (m *deviceMedium) open(opts nvme.Options) (nvme.BlockDevice, error) {
	opts.OnlyNamespace = m.namespace
	device, err := nvme.OpenNamespace(lentTransport{m.transport}, m.namespace, opts)
	if err != nil {
		return nil, err // not a nil device in an interface
	}
	return device, nil
}

func (m *deviceMedium) close() error { return m.transport.Close() }

// lentTransport stays open when a driver closes it.
type lentTransport struct{ *pcie.Transport }

// Close implements nvme.Transport.
func (lentTransport) Close() error { return nil }
