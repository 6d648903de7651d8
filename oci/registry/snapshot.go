package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Snapshot is the state that a volume had once. It never changes.
type Snapshot struct {
	Tag       string    `json:"tag"`
	Layers    []string  `json:"layers"` // its files, all frozen, the base first
	SizeBytes int64     `json:"sizeBytes"`
	CreatedAt time.Time `json:"createdAt"`
	Populated bool      `json:"populated,omitempty"` // as in Spec
}

// Origin says of which snapshot a volume is a clone.
type Origin struct {
	Snapshot string `json:"snapshot"` // NAME@TAG, as it was called then
	Layer    string `json:"layer"`    // the snapshot's last layer
}

// ParseSnapshotName splits NAME@TAG. ErrInvalidName unless both are valid.
func ParseSnapshotName(text string) (name, tag string, err error) {
	name, tag, ok := strings.Cut(text, "@")
	if !ok {
		return "", "", failf(ErrInvalidName, "%q is not the name of a snapshot; write VOLUME@TAG", text)
	}
	if err := CheckName(name); err != nil {
		return "", "", err
	}
	return name, tag, checkTag(tag)
}

// IsSnapshotName tells whether a name is that of a snapshot rather than of a volume.
func IsSnapshotName(text string) bool { return strings.Contains(text, "@") }

func checkTag(tag string) error {
	if len(tag) > maxNameBytes || !nameRE.MatchString(tag) {
		return failf(ErrInvalidName, "snapshot tag %.140q is not valid; use up to %d letters, digits, '_', '.' and '-', beginning with a letter or digit", tag, maxNameBytes)
	}
	return nil
}

// Snapshot returns the snapshot with the tag, ErrNotExist if there is none.
func (v *Volume) Snapshot(tag string) (*Snapshot, error) {
	for i := range v.spec.Snapshots {
		if v.spec.Snapshots[i].Tag == tag {
			return &v.spec.Snapshots[i], nil
		}
	}
	if len(v.spec.Snapshots) == 0 {
		return nil, failf(ErrNotExist, "snapshot %q does not exist; volume %q has none", v.Name()+"@"+tag, v.Name())
	}
	return nil, failf(ErrNotExist, "snapshot %q does not exist; volume %q has: %s", v.Name()+"@"+tag, v.Name(), strings.Join(v.spec.tags(), ", "))
}

func (s *Spec) tags() []string {
	var tags []string
	for i := range s.Snapshots {
		tags = append(tags, s.Snapshots[i].Tag)
	}
	return tags
}

// SnapshotPaths returns the files of a snapshot, the base first.
func (v *Volume) SnapshotPaths(s *Snapshot) []string { return v.reg.layerPaths(s.Layers) }

// change is the frame of operations that give a volume other layers: under the
// lock of the registry, with the volume held so that no sandbox can take it, do
// makes the new description. It is there in one step, or the old one stays.
func (r *Registry) change(name, what string, do func(v *Volume, spec *Spec) error) (*Volume, error) {
	unlock, err := r.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := r.clearLeftoversLocked(); err != nil {
		return nil, err
	}
	v, err := r.Get(name)
	if err != nil {
		return nil, err
	}
	switch {
	case v.Kind() == KindMemory:
		return nil, failf(ErrInvalidSpec, "volume %q is in memory; only volumes with an image can %s", name, what)
	case v.Kind() != KindImage:
		return nil, failf(ErrInvalidSpec, "volume %q is a device; only volumes with an image can %s", name, what)
	case v.External():
		return nil, failf(ErrInvalidSpec, "volume %q has its image outside the registry, at %s, where others may change it; only volumes with an image in the registry can %s",
			name, v.ImagePath(), what)
	}
	held, err := v.holdUnused()
	if err != nil {
		return nil, err
	}
	defer held.Close()
	spec := v.spec
	spec.Layers, spec.Snapshots = slices.Clone(spec.Layers), slices.Clone(spec.Snapshots)
	err = do(v, &spec)
	if err == nil {
		spec.Version = layeredSpecVersion
		err = r.replaceSpecLocked(v, &spec)
	}
	if err != nil {
		// What was made is removed, unless the new description is there after all.
		var own *failure
		if !errors.As(err, &own) {
			err = fmt.Errorf("volume %q: %w", name, err)
		}
		return nil, errors.Join(err, r.clearLeftoversLocked())
	}
	changed := &Volume{reg: r, dir: v.dir, spec: spec}
	r.step()
	// The change is done. What remains of before is removed by the next command if
	// it cannot be removed now.
	if changed.clearLocked() == nil {
		r.settleLocked()
	}
	return changed, nil
}

// replaceSpecLocked is the step that counts.
func (r *Registry) replaceSpecLocked(v *Volume, spec *Spec) error {
	if gone := r.onlyIn(v.spec.allLayers(), spec); len(gone) > 0 {
		if err := r.markLocked(gone...); err != nil {
			return err
		}
	}
	r.step()
	if err := writeSpec(v.dir, spec); err != nil {
		return err
	}
	r.step()
	return nil
}

// holdUnused takes the lock of the volume, so that no sandbox can take it.
func (v *Volume) holdUnused() (*os.File, error) {
	file, err := os.OpenFile(v.LockPath(), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w", v.Name(), err)
	}
	err = retryUntil(time.Now().Add(LockRetry), func() error { return flock(file, unix.LOCK_EX|unix.LOCK_NB) })
	if err != nil {
		defer file.Close()
		if err == unix.EWOULDBLOCK {
			return nil, inUseError(v.Name(), readHolder(file))
		}
		return nil, fmt.Errorf("volume %q: lock %s: %w", v.Name(), v.LockPath(), err)
	}
	return file, nil
}

// TakeSnapshot freezes what the volume holds under a tag, and gives the volume a
// new layer for what is written from now on. ErrInUse if a sandbox has the volume.
func (r *Registry) TakeSnapshot(name, tag string) (*Volume, error) {
	if err := checkTag(tag); err != nil {
		return nil, err
	}
	return r.change(name, "have snapshots", func(v *Volume, spec *Spec) error {
		if _, err := v.Snapshot(tag); err == nil {
			return failf(ErrExist, "snapshot %q exists already", name+"@"+tag)
		}
		if err := r.checkDepth(name, len(spec.Layers)+1); err != nil {
			return err
		}
		if len(spec.Layers) == 0 {
			base, err := r.shareImageLocked(v)
			if err != nil {
				return err
			}
			spec.Layers = []string{base}
		}
		spec.Snapshots = append(spec.Snapshots, Snapshot{
			Tag: tag, Layers: slices.Clone(spec.Layers), SizeBytes: spec.SizeBytes, CreatedAt: r.opts.Now().UTC(), Populated: spec.Populated,
		})
		top, err := r.createLayerLocked(spec.Layers, spec.SizeBytes)
		spec.Layers = append(spec.Layers, top)
		return err
	})
}

// checkDepth refuses a volume of more than MaxLayers layers.
func (r *Registry) checkDepth(name string, layers int) error {
	if layers > MaxLayers {
		return failf(ErrInvalidSpec, "volume %q consists of %d layers already, as many as possible; 'runsc-fs volume flatten %s' makes one of them", name, MaxLayers, name)
	}
	return nil
}

// shareImageLocked gives the image of a volume a second name, as a layer.
func (r *Registry) shareImageLocked(v *Volume) (layer string, err error) {
	layer = newID()
	if err := r.markLocked(layer); err != nil {
		return "", err
	}
	r.step()
	if err := os.Link(v.ImagePath(), r.layerPath(layer)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", failf(ErrImage, "volume %q: image %s is missing", v.Name(), v.ImagePath())
		}
		return "", err
	}
	return layer, nil
}

// Rollback gives the volume the state of a snapshot again. What was written since
// the last snapshot is lost; all snapshots stay. ErrInUse if a sandbox has the
// volume.
func (r *Registry) Rollback(name, tag string) (*Volume, error) {
	return r.change(name, "be rolled back", func(v *Volume, spec *Spec) error {
		snapshot, err := v.Snapshot(tag)
		if err != nil {
			return err
		}
		if spec.Populated && !snapshot.Populated {
			// Its mountpoint has taken the state of a used volume.
			return failf(ErrInvalidSpec, "snapshot %q was taken before the volume was used for the first time; make a new volume of it with 'runsc-fs volume clone'", name+"@"+tag)
		}
		top, err := r.createLayerLocked(snapshot.Layers, snapshot.SizeBytes)
		spec.Layers = append(slices.Clone(snapshot.Layers), top)
		spec.SizeBytes = snapshot.SizeBytes
		return err
	})
}

// Flatten gives the volume all of its data in one file of its own, so that it
// depends on no other layer. Its snapshots stay as they are.
func (r *Registry) Flatten(name string) (*Volume, error) {
	return r.change(name, "be flattened", func(v *Volume, spec *Spec) error {
		if len(spec.Layers) < 2 {
			return failf(ErrInvalidSpec, "volume %q consists of one file already", name)
		}
		if r.opts.Flatten == nil {
			return errors.New("this program cannot flatten layers")
		}
		layer := newID()
		if err := r.markLocked(layer); err != nil {
			return err
		}
		r.step()
		if err := r.opts.Flatten(r.layerPath(layer), v.ImagePath(), v.ParentPaths()); err != nil {
			return err
		}
		r.step()
		spec.Layers, spec.Origin = []string{layer}, nil
		return syncDir(r.layersPath())
	})
}

// RemoveSnapshot removes a snapshot. Its data goes too, as far as the volume and
// other snapshots do not need it. ErrDepends while clones of it exist.
func (r *Registry) RemoveSnapshot(name, tag string) error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.clearLeftoversLocked(); err != nil {
		return err
	}
	v, err := r.Get(name)
	if err != nil {
		return err
	}
	snapshot, err := v.Snapshot(tag)
	if err != nil {
		return err
	}
	clones, err := r.clonesOf(v, snapshot)
	if err != nil {
		return err
	}
	if len(clones) > 0 {
		return failf(ErrDepends, "snapshot %q is the base of %s; remove them first, or 'runsc-fs volume flatten' each of them", name+"@"+tag, quoteAll("volume", clones))
	}
	spec := v.spec
	spec.Snapshots = slices.DeleteFunc(slices.Clone(spec.Snapshots), func(s Snapshot) bool { return s.Tag == tag })
	if err := r.replaceSpecLocked(v, &spec); err != nil {
		return errors.Join(fmt.Errorf("remove snapshot %q: %w", name+"@"+tag, err), r.clearLeftoversLocked())
	}
	if err := r.settleLocked(); err != nil {
		return fmt.Errorf("snapshot %q is removed, but not all of its files: %w", name+"@"+tag, err)
	}
	return nil
}

// clonesOf names the other volumes that need the last layer of a snapshot.
func (r *Registry) clonesOf(v *Volume, s *Snapshot) ([]string, error) {
	volumes, err := r.List()
	if err != nil {
		return nil, err // one that cannot be read may be a clone
	}
	var names []string
	last := s.Layers[len(s.Layers)-1]
	for _, other := range volumes {
		if other.Name() != v.Name() && slices.Contains(other.spec.allLayers(), last) {
			names = append(names, other.Name())
		}
	}
	return names, nil
}

// quoteAll lists names behind what they are, in the plural if there are several.
func quoteAll(what string, names []string) string {
	if len(names) > 1 {
		what += "s"
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%q", name)
	}
	return what + " " + strings.Join(names, ", ")
}

// checkNoSnapshots refuses the removal of a volume that has snapshots.
func (v *Volume) checkNoSnapshots() error {
	if len(v.spec.Snapshots) == 0 {
		return nil
	}
	var names []string
	for _, tag := range v.spec.tags() {
		names = append(names, v.Name()+"@"+tag)
	}
	return failf(ErrDepends, "volume %q has snapshots; remove them first with 'runsc-fs volume rm %s'", v.Name(), strings.Join(names, " "))
}

// fillClone completes the description of a clone and makes its layer.
func (r *Registry) fillClone(spec *Spec, from *Snapshot) error {
	if err := r.checkDepth(spec.Origin.Snapshot, len(from.Layers)+1); err != nil {
		return err
	}
	top, err := r.createLayerLocked(from.Layers, from.SizeBytes)
	if err != nil {
		return err
	}
	spec.Version = layeredSpecVersion
	spec.Layers = append(slices.Clone(from.Layers), top)
	spec.Populated = from.Populated
	return nil
}

// cloneSource finds the snapshot that a new volume is to be made of.
func (r *Registry) cloneSource(spec *CreateSpec) (*Snapshot, error) {
	name, tag, err := ParseSnapshotName(spec.Clone)
	if err != nil {
		return nil, err
	}
	if spec.Kind != KindImage || spec.Image != "" {
		return nil, failf(ErrInvalidSpec, "volume %q: a clone has its image in the registry", spec.Name)
	}
	v, err := r.Get(name)
	if err != nil {
		return nil, err
	}
	snapshot, err := v.Snapshot(tag)
	if err != nil {
		return nil, err
	}
	if spec.SizeBytes != 0 && spec.SizeBytes != snapshot.SizeBytes {
		return nil, failf(ErrInvalidSize, "volume %q: snapshot %q has %s, and a clone of it has the same size; leave out the size", spec.Name, spec.Clone, FormatSize(snapshot.SizeBytes))
	}
	spec.SizeBytes = snapshot.SizeBytes
	return snapshot, nil
}

// LayerInfo is what inspect prints about one file of a volume.
type LayerInfo struct {
	Path      string `json:"path"`
	UsedBytes int64  `json:"usedBytes"`
	Snapshot  string `json:"snapshot,omitempty"` // tag of the volume's snapshot that ends with it
}

// SnapshotInfo is what inspect prints about a snapshot.
type SnapshotInfo struct {
	Tag       string    `json:"tag"`
	SizeBytes int64     `json:"sizeBytes"`
	UsedBytes int64     `json:"usedBytes"` // of the layers that no snapshot before has
	CreatedAt time.Time `json:"createdAt"`
	Clones    []string  `json:"clones,omitempty"`
}

// layerInfos describes the files of the volume, the base first.
func (v *Volume) layerInfos() []LayerInfo {
	var infos []LayerInfo
	for _, layer := range v.spec.Layers {
		info := LayerInfo{Path: v.reg.layerPath(layer)}
		info.UsedBytes, _ = usedBytes(info.Path) // what is missing takes no space
		for _, s := range v.spec.Snapshots {
			if s.Layers[len(s.Layers)-1] == layer {
				info.Snapshot = s.Tag
			}
		}
		infos = append(infos, info)
	}
	return infos
}

// ownBytes is the space of those layers at the end of a chain that no snapshot,
// other than the one that ends with the chain, has.
func (v *Volume) ownBytes(chain []string) (int64, error) {
	shared := map[string]bool{}
	if v.spec.Origin != nil {
		shared[v.spec.Origin.Layer] = true
	}
	for _, s := range v.spec.Snapshots {
		shared[s.Layers[len(s.Layers)-1]] = true
	}
	var total int64
	for i := len(chain) - 1; i >= 0; i-- {
		if i < len(chain)-1 && shared[chain[i]] {
			break
		}
		n, err := usedBytes(v.reg.layerPath(chain[i]))
		if err != nil {
			return 0, fmt.Errorf("volume %q: %w", v.Name(), err)
		}
		total += n
	}
	return total, nil
}

// SnapshotInfos describes the snapshots of the volume in the order in which they
// were taken.
func (v *Volume) SnapshotInfos() ([]SnapshotInfo, error) {
	infos := []SnapshotInfo{}
	for i := range v.spec.Snapshots {
		s := &v.spec.Snapshots[i]
		used, err := v.ownBytes(s.Layers)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		clones, err := v.reg.clonesOf(v, s)
		if err != nil && !errors.Is(err, ErrDamaged) {
			return nil, err
		}
		infos = append(infos, SnapshotInfo{Tag: s.Tag, SizeBytes: s.SizeBytes, UsedBytes: used, CreatedAt: s.CreatedAt, Clones: clones})
	}
	return infos, nil
}

func usedBytes(path string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Blocks * 512, nil
}

// ParentPaths returns the files below the image of a volume, all of them frozen,
// the base first. There are none if the image is a whole one.
func (v *Volume) ParentPaths() []string {
	if len(v.spec.Layers) == 0 {
		return nil
	}
	return v.reg.layerPaths(v.spec.Layers[:len(v.spec.Layers)-1])
}

// FilePaths returns all files of the volume and of its snapshots.
func (v *Volume) FilePaths() []string {
	if len(v.spec.Layers) > 0 {
		return v.reg.layerPaths(v.spec.allLayers())
	}
	if path := v.ImagePath(); path != "" {
		return []string{path}
	}
	return nil
}

// writeNote makes the mountpoint of a clone what that of a used volume is.
func writeNote(mountpoint, name string) error {
	return writeFileAtomic(filepath.Join(mountpoint, populatedNoteName), []byte(fmt.Sprintf(populatedNote, name)), 0o644)
}
