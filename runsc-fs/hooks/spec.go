package hooks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"runsc-fs/oci"
)

// IsVolumeMount tells whether a mount names a volume as its source.
func IsVolumeMount(m *specs.Mount) bool { return m.Type == FilesystemName }

// KeepsSource tells whether the source of a mount is no path in the bundle: the
// name of a volume, or whatever stands in a mount that the runtime would leave
// out, which OpenVolumes looks at.
func KeepsSource(m *specs.Mount) bool { return IsVolumeMount(m) || oci.HasUnknownType(m) }

// OpenSpec opens the specification in a bundle. A bind mount of a volume's
// mountpoint, which is how Docker hands volumes over, is a mount of type blobfs
// in it; the gofer and the sandbox read the same file and need not know about
// the registry. It returns nil if the file in the bundle is good as it is.
//
// Mistakes in the mounts are left to OpenVolumes, whose errors reach the user
// as they are.
func OpenSpec(bundleDir string) (*os.File, error) {
	text, err := os.ReadFile(filepath.Join(bundleDir, "config.json"))
	if err != nil {
		return nil, err
	}
	text = rewriteSpec(text, bundleDir)
	if text == nil {
		return nil, nil
	}
	return memoryFile("config.json with volumes", text)
}

// rewriteSpec returns the specification with volume mounts in their final form,
// or nil if there are none or it is not valid. All else stays as it is, also
// what this program does not know.
func rewriteSpec(text []byte, bundleDir string) []byte {
	var whole map[string]json.RawMessage
	if json.Unmarshal(text, &whole) != nil {
		return nil
	}
	var raw []json.RawMessage
	spec := &specs.Spec{}
	for part, to := range map[string][]any{"mounts": {&raw, &spec.Mounts}, "annotations": {&spec.Annotations}} {
		for _, v := range to {
			if text := whole[part]; text != nil && json.Unmarshal(text, v) != nil {
				return nil
			}
		}
	}
	if with := oci.WithRootVolume(spec, rootVolume); with != spec {
		spec, raw = with, append([]json.RawMessage{nil}, raw...)
	}
	for i := range spec.Mounts {
		m := &spec.Mounts[i]
		if m.Source != "" && !filepath.IsAbs(m.Source) && !KeepsSource(m) {
			m.Source = filepath.Join(bundleDir, m.Source)
		}
	}
	reg, err := OpenRegistry()
	if err != nil {
		return nil
	}
	mounts, err := oci.ResolveMounts(spec, reg)
	if err != nil || len(mounts) == 0 {
		return nil
	}
	for _, m := range mounts {
		if raw[m.Index], err = json.Marshal(&spec.Mounts[m.Index]); err != nil {
			return nil
		}
	}
	if whole["mounts"], err = json.Marshal(raw); err != nil {
		return nil
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(whole) != nil {
		return nil
	}
	return out.Bytes()
}

// memoryFile returns an open file with the given content, at its beginning.
func memoryFile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(content, 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// CheckSavable refuses to save a container with volumes before anything is done
// to it: the sandbox would refuse too, but only after the container has been
// stopped for good.
func CheckSavable(containerID string, spec *specs.Spec) error {
	for i := range spec.Mounts {
		if m := &spec.Mounts[i]; IsVolumeMount(m) {
			return fmt.Errorf("container %q uses volume %q, and containers with volumes cannot be saved; nothing was done to it", containerID, m.Source)
		}
	}
	return nil
}

// isPod tells whether further containers may join the sandbox of this one.
func isPod(spec *specs.Spec) bool {
	return spec.Annotations["io.kubernetes.cri.container-type"] == "sandbox" ||
		spec.Annotations["io.kubernetes.cri-o.ContainerType"] == "sandbox"
}

// mayGetVolumes tells whether a sandbox without volumes of its own should be
// ready for those of containers that join it: it is a pod, and the host has
// volumes.
func mayGetVolumes(spec *specs.Spec) bool {
	if !isPod(spec) {
		return false
	}
	reg, err := OpenRegistry()
	if err != nil {
		return false
	}
	volumes, _ := reg.List()
	return len(volumes) > 0
}
