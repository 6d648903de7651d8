package crashrig

import (
	"errors"
	"fmt"
	"sync"

	"runsc-fs/blobfs"
	"runsc-fs/nvme"
	"runsc-fs/nvme/crashdev"
)

// Options describe a Rig.
type Options struct {
	SizeBytes  int64  // of the volume. 0: 8 MiB
	SpareBytes int64  // what the disk has behind the volume
	CacheBytes int64  // page cache of the file system. 0: 2 MiB
	Setup      string // program that makes what is there, durably, before programs begin
	// Sabotage leaves one command of each program out; see ParseSabotage.
	Sabotage *Sabotage
}

// Rig runs programs, each on a new copy of one volume. It belongs to one
// goroutine.
type Rig struct {
	opts  Options
	base  *crashdev.Disk
	setup Program
	arena *nvme.Arena
}

// NewRig makes the volume.
func NewRig(opts Options) (*Rig, error) {
	if opts.SizeBytes == 0 {
		opts.SizeBytes = 8 << 20
	}
	if opts.CacheBytes == 0 {
		opts.CacheBytes = 2 << 20
	}
	setup, err := Parse(opts.Setup)
	if err != nil {
		return nil, err
	}
	r := &Rig{opts: opts, setup: setup}
	if r.base, err = crashdev.New(crashdev.Options{SizeBytes: opts.SizeBytes + opts.SpareBytes}); err != nil {
		return nil, err
	}
	if r.arena, err = nvme.NewArena(nvme.ArenaOptions{SizeBytes: opts.CacheBytes + 10<<20, KeepFreed: true}); err != nil {
		return nil, err
	}
	dev := shorter{r.base.Device(r.arena), opts.SizeBytes}
	uuid := [16]byte{15: 1}
	if err := blobfs.Mkfs(dev, blobfs.MkfsOptions{UUID: uuid, Now: clock()}); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// shorter is the beginning of a device.
type shorter struct {
	nvme.BlockDevice
	sizeBytes int64
}

// Geometry implements nvme.BlockDevice.
func (s shorter) Geometry() nvme.Geometry {
	g := s.BlockDevice.Geometry()
	g.Blocks = s.sizeBytes / g.LBASizeBytes
	return g
}

// Close gives the memory back.
func (r *Rig) Close() error { return r.arena.Close() }

// Mount mounts a new copy of the volume and returns it with its disk, whose
// history begins after the mount.
func (r *Rig) Mount() (*blobfs.FS, *crashdev.Disk, error) {
	disk := r.base.Clone()
	if s := r.opts.Sabotage; s != nil {
		s.begin(disk)
		disk = disk.With(func(o *crashdev.Options) { o.Sabotage = s.spoil })
	}
	fs, err := blobfs.Mount(disk.Device(r.arena), mountOptions(r.opts.CacheBytes))
	return fs, disk, err
}

// Begin carries out the setup below a directory of a mounted volume (the root
// if base is empty), durably, and returns the history that it is the beginning
// of. What it wrote is not forgotten: Restart the disk after it.
func (r *Rig) Begin(fs *blobfs.FS, disk *crashdev.Disk, base string) (*History, error) {
	root := fs.Root()
	if base != "" {
		dir, err := root.Create(base, blobfs.NewInode{Mode: blobfs.ModeDir | 0o755})
		root.DecRef()
		if err != nil {
			return nil, err
		}
		root = dir
	}
	h := newHistory(disk, r.arena, fs, root, base)
	for _, o := range append(r.setup, Op{Kind: "sync"}) {
		if err := h.Do(o); err != nil {
			return nil, fmt.Errorf("setup: %w", err)
		}
	}
	return h, nil
}

// Restart makes everything up to now the durable beginning of all histories
// on the disk.
func Restart(disk *crashdev.Disk, hs ...*History) {
	disk.Restart()
	for _, h := range hs {
		for k := range h.begins {
			h.begins[k] = 0
			h.steps[k].Begin, h.steps[k].End = 0, 0
		}
		for k := range h.marks {
			h.marks[k].point = 0
		}
		for _, f := range h.model.files() {
			for k := range f.marks {
				f.marks[k].point = 0
			}
		}
	}
}

// Run carries out a program on a copy of the volume, closes it (which is part of
// the history), and returns history and disk.
func (r *Rig) Run(p Program) (*History, *crashdev.Disk, error) {
	fs, disk, err := r.Mount()
	if err != nil {
		return nil, nil, err
	}
	h, err := r.Begin(fs, disk, "")
	if err != nil {
		return nil, nil, errors.Join(err, fs.Close())
	}
	Restart(disk, h)
	if r.opts.Sabotage != nil {
		r.opts.Sabotage.armed.Store(true)
	}
	for _, o := range p {
		if err = h.Do(o); err != nil {
			break
		}
	}
	h.release()
	return h, disk, errors.Join(err, fs.Close())
}

// RunTogether carries out programs side by side, each in a directory of its
// own, closes the volume, and returns their histories. What another run does
// differs.
func (r *Rig) RunTogether(programs []Program) ([]*History, *crashdev.Disk, error) {
	fs, disk, err := r.Mount()
	if err != nil {
		return nil, nil, err
	}
	var hs []*History
	for k := range programs {
		h, err := r.Begin(fs, disk, fmt.Sprint("writer", k))
		if err != nil {
			return nil, nil, errors.Join(err, fs.Close())
		}
		hs = append(hs, h)
	}
	Restart(disk, hs...)
	errs := make([]error, len(programs)+1)
	var group sync.WaitGroup
	for k, p := range programs {
		group.Go(func() {
			for _, o := range p {
				if errs[k] = hs[k].Do(o); errs[k] != nil {
					return
				}
			}
		})
	}
	group.Wait()
	for _, h := range hs {
		h.release()
	}
	errs[len(programs)] = fs.Close()
	return hs, disk, errors.Join(errs...)
}
