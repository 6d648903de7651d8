// Package dockerplugin serves the volumes of a registry to Docker, by the legacy volume plugin protocol:
// HTTP with JSON over a Unix socket that Docker finds by its name in its plugin directory.
//
// What Docker is given for a volume is its mountpoint, an ordinary directory on the host. Docker copies into it
// what the image has at the volume's path and passes it to the runtime as the source of a bind mount, by which
// the runtime recognises the volume. The directory is never the volume's data.
//
// The service keeps no state that matters: which volumes exist stands in the registry, and which are in
// use is said by their locks. It may be restarted at any time, and so may Docker.
//
// Lock order: Driver.mu and listener.mu are leaves, no other lock is taken while one of them is held.
package dockerplugin

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/docker/go-plugins-helpers/volume"
	"github.com/sirupsen/logrus"

	"runsc-fs/oci/registry"
)

// Driver answers Docker's calls. It is safe for concurrent use; errors are one line and reach the user as they are.
type Driver struct {
	reg *registry.Registry
	log logrus.FieldLogger

	mu sync.Mutex
	// mounts has the ids of the mounts that Docker has asked for and not given back, by volume. It is
	// for information only: Docker forgets to give back what it mounted before it was killed.
	mounts map[string]map[string]struct{}
}

var _ volume.Driver = (*Driver)(nil)

// NewDriver returns a driver for the volumes of reg. log gets one line per event worth knowing, calls that
// failed as warnings; nil drops them.
func NewDriver(reg *registry.Registry, log logrus.FieldLogger) *Driver {
	if log == nil {
		log = discard()
	}
	return &Driver{reg: reg, log: log, mounts: make(map[string]map[string]struct{})}
}

// Create makes a volume. A volume that is there already and fits the options is a success, because Docker may ask twice.
func (d *Driver) Create(req *volume.CreateRequest) error {
	spec, err := parseCreateOptions(req.Name, req.Options)
	if err != nil {
		return err
	}
	created, err := d.reg.Create(spec)
	if errors.Is(err, registry.ErrExist) {
		if existing, getErr := d.reg.Get(req.Name); getErr == nil && fits(existing, spec) {
			return nil
		}
	}
	if err != nil {
		d.log.Warnf("create volume %q: %v", req.Name, err)
		return err
	}
	d.log.Infof("created volume %q: %s, %s", created.Name(), created.Kind(), registry.FormatSize(created.SizeBytes()))
	return nil
}

// fits tells whether creating spec would have made a volume such as this one.
func fits(existing *registry.Volume, spec registry.CreateSpec) bool {
	kind := spec.Kind
	switch {
	case spec.Device != nil:
		d := existing.Device()
		return d.Address == spec.Device.Address && d.Namespace == max(spec.Device.Namespace, 1)
	case kind == "":
		kind = registry.KindImage
	}
	return existing.Kind() == kind && existing.Spec().Discard == spec.Discard && (spec.Clone == "" || originOf(existing) == spec.Clone) && existing.Spec().Image == spec.Image &&
		(spec.SizeBytes == 0 || existing.SizeBytes() == spec.SizeBytes)
}

// originOf names the snapshot of which a volume is a clone, if it is one.
func originOf(v *registry.Volume) string {
	if origin := v.Spec().Origin; origin != nil {
		return origin.Snapshot
	}
	return ""
}

// parseCreateOptions reads the options of "docker volume create -o". options may be nil.
func parseCreateOptions(name string, options map[string]string) (registry.CreateSpec, error) {
	spec := registry.CreateSpec{Name: name}
	if len(name) == 1 {
		// As Docker does for its own volumes: it takes "x:/path" for a path with a drive letter.
		return spec, fmt.Errorf("volume name %q is too short; Docker's volumes have names of at least two characters", name)
	}
	for _, key := range slices.Sorted(maps.Keys(options)) { // in order, for the same error each time
		value := options[key]
		switch key {
		case "size":
			sizeBytes, err := registry.ParseSize(value)
			if err != nil {
				return spec, err
			}
			spec.SizeBytes = sizeBytes
		case "kind":
			if spec.Kind = registry.Kind(value); spec.Kind != registry.KindImage && spec.Kind != registry.KindMemory {
				return spec, fmt.Errorf("option kind=%q is not valid; it is kind=image or kind=memory", value)
			}
		case "clone":
			if _, _, err := registry.ParseSnapshotName(value); err != nil {
				return spec, fmt.Errorf("option clone=%q is not valid: %w", value, err)
			}
			spec.Clone = value
		case "image":
			if !strings.HasPrefix(value, "/") {
				return spec, fmt.Errorf("option image=%q is not valid; it must be an absolute path", value)
			}
			spec.Image = value
		case "device":
			if spec.Device == nil {
				spec.Device = &registry.Device{}
			}
			spec.Device.Address = strings.ToLower(value)
		case "namespace":
			n, err := strconv.ParseUint(value, 10, 32)
			if err != nil || n == 0 || options["device"] == "" {
				return spec, fmt.Errorf("option namespace=%q is not valid; it is a number from 1 on and goes with device=", value)
			}
			spec.Device.Namespace = uint32(n)
		case "discard":
			var err error
			if spec.Discard, err = parseFlag(key, value); err != nil {
				return spec, err
			}
		case "memory":
			inMemory, err := parseFlag(key, value)
			if err != nil {
				return spec, err
			}
			if inMemory && options["kind"] != "" && options["kind"] != string(registry.KindMemory) {
				return spec, fmt.Errorf("options kind=%s and memory=true contradict each other", options["kind"])
			}
			if inMemory {
				spec.Kind = registry.KindMemory
			}
		default:
			return spec, fmt.Errorf("unknown option %q; a blobfs volume has size=, kind=, memory=, image=, device=, namespace=, discard= and clone=", key)
		}
	}
	return spec, nil
}

// parseFlag reads an option that is true, false, or there without a value.
func parseFlag(key, value string) (bool, error) {
	if value == "" {
		return true, nil
	}
	set, err := strconv.ParseBool(value)
	if err != nil {
		return false, fmt.Errorf("option %s=%q is not valid; it is %s=true or %s=false", key, value, key, key)
	}
	return set, nil
}

// List returns all volumes that can be read.
func (d *Driver) List() (*volume.ListResponse, error) {
	volumes, err := d.reg.List()
	if err != nil {
		if volumes == nil {
			return nil, err
		}
		d.log.Warnf("list volumes: %s", oneLine(err))
	}
	response := &volume.ListResponse{Volumes: []*volume.Volume{}} // an empty list, not null
	for _, v := range volumes {
		response.Volumes = append(response.Volumes, &volume.Volume{
			Name:       v.Name(),
			Mountpoint: v.Mountpoint(),
			CreatedAt:  v.Spec().CreatedAt.Format(time.RFC3339),
		})
	}
	return response, nil
}

// Get returns one volume with its state.
func (d *Driver) Get(req *volume.GetRequest) (*volume.GetResponse, error) {
	v, err := d.reg.Get(req.Name)
	if err != nil {
		return nil, err
	}
	info, err := v.Info()
	if err != nil {
		return nil, err
	}
	status := map[string]any{
		"kind":      info.Kind,
		"sizeBytes": info.SizeBytes,
		"usedBytes": info.UsedBytes,
		"inUse":     info.InUse,
		"mounts":    d.mountCount(req.Name),
	}
	if info.Origin != nil {
		status["origin"] = info.Origin.Snapshot
	}
	if len(info.Snapshots) > 0 {
		status["snapshots"] = info.Snapshots
	}
	if info.Image != "" {
		status["image"] = info.Image
	}
	if info.InUseBy != "" {
		status["inUseBy"] = info.InUseBy
	}
	return &volume.GetResponse{Volume: &volume.Volume{
		Name:       v.Name(),
		Mountpoint: v.Mountpoint(),
		CreatedAt:  v.Spec().CreatedAt.Format(time.RFC3339),
		Status:     status,
	}}, nil
}

// Remove removes a volume, unless a sandbox holds it.
func (d *Driver) Remove(req *volume.RemoveRequest) error {
	removed, err := d.reg.Remove(req.Name)
	if err != nil {
		d.log.Warnf("remove volume %q: %v", req.Name, err)
		return err
	}
	d.mu.Lock()
	delete(d.mounts, req.Name)
	d.mu.Unlock()
	if removed.KeptImage != "" {
		d.log.Infof("removed volume %q; its image %s is kept", req.Name, removed.KeptImage)
	} else {
		d.log.Infof("removed volume %q", req.Name)
	}
	return nil
}

// Path returns the mountpoint.
func (d *Driver) Path(req *volume.PathRequest) (*volume.PathResponse, error) {
	v, err := d.reg.Get(req.Name)
	if err != nil {
		return nil, err
	}
	return &volume.PathResponse{Mountpoint: v.Mountpoint()}, nil
}

// Mount returns the mountpoint. Nothing is mounted on the host: the sandbox does that.
func (d *Driver) Mount(req *volume.MountRequest) (*volume.MountResponse, error) {
	v, err := d.reg.Get(req.Name)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(v.Mountpoint()); err != nil {
		return nil, fmt.Errorf("volume %q: its mountpoint directory cannot be used: %v", req.Name, err)
	}
	strays, err := v.Strays()
	if err != nil {
		return nil, err
	}
	if len(strays) > 0 {
		d.log.Warnf("volume %q: %s holds %q and perhaps more, written by a container without the blobfs runtime; the volume does not have it",
			req.Name, v.Mountpoint(), strays[0])
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mounts[req.Name] == nil {
		d.mounts[req.Name] = make(map[string]struct{})
	}
	d.mounts[req.Name][req.ID] = struct{}{}
	return &volume.MountResponse{Mountpoint: v.Mountpoint()}, nil
}

// Unmount forgets a mount. One that is not known was made before a restart of the service.
func (d *Driver) Unmount(req *volume.UnmountRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mounts[req.Name], req.ID)
	if len(d.mounts[req.Name]) == 0 {
		delete(d.mounts, req.Name)
	}
	return nil
}

// Capabilities says that the volumes are those of this host only.
func (d *Driver) Capabilities() *volume.CapabilitiesResponse {
	return &volume.CapabilitiesResponse{Capabilities: volume.Capability{Scope: "local"}}
}

func (d *Driver) mountCount(name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.mounts[name])
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
