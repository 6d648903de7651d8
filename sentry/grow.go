package sentry

import (
	"fmt"

	"runsc-fs/nvme/soft"
)

// GrowVolume makes a volume of the sandbox larger, mounted or not. Its image has
// been made longer before. When it returns, the file system has the space, or
// gets it with the next mount if the volume is not mounted. It makes one system
// call, fstat.
func GrowVolume(name string, sizeBytes int64) error {
	v, err := volumes.find(name)
	if err != nil {
		return err
	}
	if err := v.grow(sizeBytes); err != nil {
		return fmt.Errorf("volume %q: %w", name, err)
	}
	return nil
}

// grower is a medium that can become larger while it is in use.
type grower interface {
	grow(sizeBytes int64) error
}

func (v *volume) grow(sizeBytes int64) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return ErrShutDown
	}
	m, ok := v.medium.(grower)
	if !ok || v.spec.Kind != KindImage {
		return fmt.Errorf("a volume of kind %q cannot grow while a sandbox has it", v.spec.Kind)
	}
	if err := m.grow(sizeBytes); err != nil {
		return err
	}
	v.sizeBytes = max(v.sizeBytes, sizeBytes)
	if v.fs == nil || v.spec.ReadOnly {
		return nil
	}
	if ns, ok := v.device.(interface{ Refresh() error }); ok {
		if err := ns.Refresh(); err != nil {
			return err
		}
	}
	return v.fs.blob.Grow(sizeBytes)
}

// grow implements grower. The controller, if there is one, tells its driver.
func (m *softMedium) grow(sizeBytes int64) error {
	if m.controller != nil {
		return m.controller.Grow(1, sizeBytes)
	}
	return m.backing.Grow(sizeBytes)
}

// Grow implements soft.Grower.
func (b lentBacking) Grow(sizeBytes int64) error {
	g, ok := b.Backing.(soft.Grower)
	if !ok {
		return fmt.Errorf("%v cannot grow", b.Backing)
	}
	return g.Grow(sizeBytes)
}
