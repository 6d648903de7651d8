package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The files of volumes that have snapshots or are clones lie side by side in one
// directory, because volumes share them. Which of them a volume has says its
// volume.json. A file is frozen as soon as a snapshot has it or another lies on it.
//
// Beside a file that is being made or is no longer needed lies an empty file with
// the suffix below: the file is then removed by the next change to the registry,
// unless a volume has it. A file without that mark is never removed because
// nobody seems to have it: somebody may have moved a volume away by hand.
const unsettledSuffix = ".unsettled"

// MaxLayers bounds the files that a volume consists of.
const MaxLayers = 64

var layerRE = regexp.MustCompile(`^[0-9a-f]{32}$`)

func (r *Registry) layersPath() string { return filepath.Join(r.opts.Root, layersDir) }

func (r *Registry) layerPath(layer string) string { return filepath.Join(r.layersPath(), layer) }

func (r *Registry) layerPaths(layers []string) []string {
	paths := make([]string, len(layers))
	for i, layer := range layers {
		paths[i] = r.layerPath(layer)
	}
	return paths
}

// markLocked marks layers as unsettled, durably.
func (r *Registry) markLocked(layers ...string) error {
	if err := os.MkdirAll(r.layersPath(), 0o700); err != nil {
		return err
	}
	for _, layer := range layers {
		r.step()
		if err := os.WriteFile(r.layerPath(layer)+unsettledSuffix, nil, 0o600); err != nil {
			return err
		}
	}
	r.step()
	if err := syncDir(r.layersPath()); err != nil {
		return err
	}
	r.step()
	return syncDir(r.opts.Root)
}

// createLayerLocked makes an empty layer above others, durably, and marks it: the
// volume that gets it is not written yet.
func (r *Registry) createLayerLocked(below []string, sizeBytes int64) (layer string, err error) {
	if r.opts.CreateLayer == nil {
		return "", errors.New("this program cannot make layers")
	}
	layer = newID()
	if err := r.markLocked(layer); err != nil {
		return "", err
	}
	r.step()
	if err := r.opts.CreateLayer(r.layerPath(layer), r.layerPaths(below), sizeBytes); err != nil {
		return "", err
	}
	r.step()
	return layer, syncDir(r.layersPath())
}

// settleLocked removes marked layers that no volume has, and the marks of those
// that one has. As long as a volume cannot be read, nothing is known about what
// it has, and all stays.
func (r *Registry) settleLocked() error {
	marks, err := filepath.Glob(filepath.Join(r.layersPath(), "*"+unsettledSuffix))
	if err != nil || len(marks) == 0 {
		return err
	}
	volumes, err := r.List()
	if err != nil {
		return nil
	}
	had := map[string]bool{}
	for _, v := range volumes {
		for _, layer := range v.spec.allLayers() {
			had[layer] = true
		}
	}
	for _, mark := range marks {
		path := strings.TrimSuffix(mark, unsettledSuffix)
		if !had[filepath.Base(path)] {
			r.step()
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove %s, which no volume has: %w", path, err)
			}
		}
	}
	// The files are gone for good before the marks are.
	r.step()
	if err := syncDir(r.layersPath()); err != nil {
		return err
	}
	for _, mark := range marks {
		r.step()
		if err := os.Remove(mark); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", mark, err)
		}
	}
	return nil
}

// clearLocked removes what a crash left in the directory of a volume: the
// first name of an image that has become a layer, and files that did not get
// their names.
func (v *Volume) clearLocked() error {
	leftovers, err := filepath.Glob(filepath.Join(v.dir, tempPrefix+"[0-9]*"))
	if err != nil {
		return err
	}
	if len(v.spec.Layers) > 0 {
		leftovers = append(leftovers, filepath.Join(v.dir, imageFile))
	}
	for _, path := range leftovers {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("clear %s, left by a crash: %w", path, err)
		}
	}
	return nil
}

// allLayers are the layers of a volume and of its snapshots.
func (s *Spec) allLayers() []string {
	all := slices.Clone(s.Layers)
	for i := range s.Snapshots {
		all = append(all, s.Snapshots[i].Layers...)
	}
	return all
}

// onlyIn returns the layers of old that neither spec nor another volume has.
// Volumes that cannot be read do not count here: settleLocked waits for them.
func (r *Registry) onlyIn(old []string, spec *Spec) []string {
	volumes, _ := r.List()
	keep := map[string]bool{}
	for _, layer := range spec.allLayers() {
		keep[layer] = true
	}
	for _, v := range volumes {
		if v.Name() != spec.Name {
			for _, layer := range v.spec.allLayers() {
				keep[layer] = true
			}
		}
	}
	return slices.DeleteFunc(old, func(layer string) bool { return keep[layer] })
}

// checkLayers says whether the part of a volume.json about layers is valid.
func (s *Spec) checkLayers() error {
	if s.Version == specVersion && len(s.Layers) == 0 && len(s.Snapshots) == 0 {
		return nil
	}
	if s.Version != layeredSpecVersion || s.Kind != KindImage || s.Image != "" {
		return errors.New("only an image volume of version 2 has layers")
	}
	chains := [][]string{s.Layers}
	tags := map[string]bool{}
	for i := range s.Snapshots {
		snapshot := &s.Snapshots[i]
		if err := checkTag(snapshot.Tag); err != nil {
			return err
		}
		if tags[snapshot.Tag] {
			return fmt.Errorf("snapshot %q is there twice", snapshot.Tag)
		}
		tags[snapshot.Tag] = true
		chains = append(chains, snapshot.Layers)
	}
	for _, chain := range chains {
		if len(chain) == 0 || len(chain) > MaxLayers {
			return fmt.Errorf("it has from 1 to %d layers, not %d", MaxLayers, len(chain))
		}
		for _, layer := range chain {
			if !layerRE.MatchString(layer) {
				return fmt.Errorf("%q names no layer", layer)
			}
		}
	}
	return nil
}
