package blobfs

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
	"runsc-fs/nvme"
	"runsc-fs/nvme/crashdev"
)

var (
	hostileSeed   = flag.Uint64("hostile.seed", 0, "seed of the hostile image test; 0: from the clock")
	hostileImages = flag.Int("hostile.images", 60, "images that the hostile image test makes")
)

// hostileBase makes a file system with some of everything.
func hostileBase(t testing.TB, arena *nvme.Arena) *crashdev.Disk {
	disk, err := crashdev.New(crashdev.Options{SizeBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	e := &env{t: t, dev: disk.Device(arena), now: 1 << 60}
	e.must(Mkfs(e.dev, MkfsOptions{}))
	e.mount()
	root := e.fs.Root()
	d := e.create(root, "d", ModeDir|0o755)
	sub := e.create(d, "sub", ModeDir|0o755)
	for n := range 4 {
		f := e.create(sub, fmt.Sprintf("f%d", n), ModeRegular|0o644)
		for k := range int64(5) {
			e.write(f, k*3*BlockSizeBytes, pattern(byte(n), 5000), 0)
		}
		e.must(f.Fallocate(FallocKeepSize, 1<<20, 100000))
		e.must(f.SetXattr("user.small", []byte("x"), 0))
		e.must(f.SetXattr("user.big", pattern(1, 3000), 0))
		e.must(d.Link(fmt.Sprintf("link%d", n), f))
		// Blocks with one to three owners, counted by several items.
		clone := e.create(root, fmt.Sprintf("clone%d", n), ModeRegular)
		e.must(clone.CloneRange(f, 0, 0, 0))
		e.must(clone.CloneRange(f, 3*BlockSizeBytes, 20*BlockSizeBytes, BlockSizeBytes))
		e.write(clone, 6*BlockSizeBytes, pattern(9, 1000), 0)
		clone.DecRef()
		f.DecRef()
	}
	l, err := d.Create("l", NewInode{Mode: ModeSymlink, Target: string(pattern(2, 3000))})
	e.must(err)
	l.DecRef()
	orphan := e.create(root, "o", ModeRegular)
	e.write(orphan, 0, pattern(3, 9000), 0)
	e.must(root.Unlink("o", nil))
	e.must(e.fs.Sync(nil))
	sub.DecRef()
	d.DecRef()
	root.DecRef()
	e.must(e.fs.Close())
	disk.Restart()
	return disk
}

type storeItem struct {
	key   format.Key
	value []byte
}

// damage changes, removes or adds a few items of the file system; what the
// store needs for itself stays intact.
func damage(s *store.Store, rng *rand.Rand) error {
	var items []storeItem
	err := s.View(func(r *store.Reader) error {
		return r.Scan(format.Key{}, format.MaxKey, func(k format.Key, v []byte) (bool, error) {
			if k.Kind != format.KindGroup {
				items = append(items, storeItem{k, append([]byte(nil), v...)})
			}
			return true, nil
		})
	})
	if err != nil {
		return err
	}
	_, err = s.Update(func(tx *store.Tx) error {
		for range 1 + rng.IntN(3) {
			it := items[rng.IntN(len(items))]
			switch rng.IntN(10) {
			case 0:
				_ = tx.Delete(it.key) // may be gone already
				continue
			case 1: // another object's item under this key
				it.value = items[rng.IntN(len(items))].value
			case 2: // the item under another key
				other := items[rng.IntN(len(items))].key
				it.key.Object = other.Object
				if rng.IntN(2) == 0 {
					it.key.Offset = other.Offset
				}
			case 3:
				it.value = it.value[:rng.IntN(len(it.value)+1)]
			case 4:
				it.key.Offset += uint64(rng.IntN(5))
			default:
				for range 1 + rng.IntN(3) {
					if len(it.value) == 0 {
						break
					}
					k := rng.IntN(len(it.value))
					switch rng.IntN(4) {
					case 0:
						it.value[k] ^= 1 << rng.IntN(8)
					case 1:
						it.value[k] = 0xff
					case 2:
						it.value[k] = byte(rng.IntN(20))
					case 3:
						it.value[k]++
					}
				}
			}
			if it.key.Kind == format.KindGroup {
				continue
			}
			if err := tx.Put(it.key, it.value); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// exercise uses everything that can be reached. Only the test's own deadline
// and panics are failures; errors are what we want to see.
func exercise(fs *FS, rng *rand.Rand) {
	budget := 500 // a damaged directory may lead in circles
	var walk func(dir *Inode, depth int)
	walk = func(dir *Inode, depth int) {
		var list []Dirent
		_ = dir.ReadDir(0, func(d Dirent) bool { list = append(list, d); return len(list) < 1000 })
		for _, d := range list {
			if budget--; budget < 0 || depth > 20 {
				return
			}
			i, err := dir.Lookup(d.Name)
			if err != nil {
				_ = dir.Unlink(d.Name, nil)
				continue
			}
			useInode(i, rng)
			if i.typ == ModeDir {
				walk(i, depth+1)
			}
			switch rng.IntN(5) {
			case 0:
				_ = dir.Unlink(d.Name, i)
			case 1:
				_ = dir.Rmdir(d.Name, i)
			case 2:
				_ = fs.Rename(dir, d.Name, dir, "renamed", 0)
			case 3:
				_ = fs.Rename(dir, d.Name, fs.root, "moved", RenameFlags(rng.IntN(5)))
			}
			i.DecRef()
		}
	}
	root := fs.Root()
	walk(root, 0)
	if f, err := root.Create("new", NewInode{Mode: ModeRegular}); err == nil {
		useInode(f, rng)
		f.DecRef()
	}
	root.DecRef()
	_ = fs.Sync(nil)
}

func useInode(i *Inode, rng *rand.Rand) {
	i.Attr()
	_, _ = i.Readlink()
	names, _ := i.ListXattr()
	for _, n := range append(names, "user.big") {
		_, _ = i.GetXattr(n)
		if rng.IntN(4) == 0 {
			_ = i.RemoveXattr(n)
		}
	}
	_ = i.SetXattr("user.new", make([]byte, rng.IntN(3000)), 0)
	_, _ = i.ReadAt(&nullSink{}, 0, 64<<10, 0)
	_, _ = i.ReadAt(&nullSink{}, 0, 64<<10, IODirect)
	_, _ = i.SeekData(0)
	_, _ = i.SeekHole(0)
	_, _ = i.WriteAt(&fillSource{}, rng.Int64N(100000), 5000, 0)
	_, _ = i.WriteAt(&fillSource{}, 8192, 8192, IODirect)
	_, _ = i.Fault(0, 4096, true)
	_ = i.Fsync(nil, false)
	if clone, err := i.fs.root.Lookup(fmt.Sprintf("clone%d", rng.IntN(4))); err == nil {
		_ = clone.CloneRange(i, 0, rng.Int64N(4)*BlockSizeBytes, 0)
		_, _ = i.DedupeRange(clone, 0, 0, 8192)
		_, _ = i.CopyRange(clone, 5, 3, 9000)
		clone.DecRef()
	}
	_ = i.Fallocate(FallocUnshare, 0, 40000)
	_ = i.Fallocate(FallocPunchHole|FallocKeepSize, 5000, 20000)
	_ = i.Fallocate(0, 0, 30000)
	_ = i.Truncate(rng.Int64N(60000))
	_ = i.Truncate(i.Size() + 5000)
}

// TestHostileImages mounts and uses images with damaged items. There may be
// errors, but no panic, no hang and no failed store because of our own bugs.
func TestHostileImages(t *testing.T) {
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 48 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	base := hostileBase(t, arena)
	seed := *hostileSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-hostile.seed %d", seed)
	for n := range *hostileImages {
		runHostile(t, base, arena, seed+uint64(n))
	}
}

func runHostile(t testing.TB, base *crashdev.Disk, arena *nvme.Arena, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	dev := base.Clone().Device(arena)
	s, err := store.Open(dev, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := damage(s, rng); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	e := &env{t: t, dev: dev, now: 1 << 61}
	opts := e.testOptions()
	opts.CacheBytes = 2 << 20
	opts.Logf = func(string, ...any) {}
	fs, err := Mount(dev, opts)
	if err != nil {
		return
	}
	start := time.Now()
	exercise(fs, rng)
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("seed %d: took %v", seed, took)
	}
	_ = fs.Close()
}

func FuzzHostileItems(f *testing.F) {
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 48 << 20})
	if err != nil {
		f.Fatal(err)
	}
	base := hostileBase(f, arena)
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { runHostile(t, base, arena, seed) })
}
