package lab

import (
	"encoding/json"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// BundleSpec describes a container for an OCI runtime run without Docker.
type BundleSpec struct {
	RootFS   string // directory; never written to: the root is read-only, unless
	Writable bool   // what is written goes to an upper layer
	Args     []string
	Env      []string // besides PATH and HOME
	Cwd      string   // default /
	UID, GID uint32
	// Capabilities of root besides those that Docker gives.
	Capabilities []string
	// Mounts come after /proc, /dev, /tmp and /run, which every bundle has.
	Mounts      []specs.Mount
	Annotations map[string]string
	// NetNS is the path of a network namespace as the runtime sees it; "" makes a new, empty one.
	NetNS string
	// CgroupsPath below the hierarchies; "" leaves cgroups alone.
	CgroupsPath string
	MemoryBytes int64 // cgroup limit; 0 is none. Needs CgroupsPath
	// PIDNS joins a PID namespace as the runtime sees it; "" makes a new one.
	PIDNS string
}

// VolumeMount is a mount of a blobfs volume.
func VolumeMount(volume, destination string, options ...string) specs.Mount {
	return specs.Mount{Type: "blobfs", Source: volume, Destination: destination, Options: options}
}

// BindMount is a bind mount of a host directory or file.
func BindMount(source, destination string, options ...string) specs.Mount {
	return specs.Mount{Type: "bind", Source: source, Destination: destination, Options: append([]string{"rbind"}, options...)}
}

// TmpfsMount is an empty memory file system of the sandbox.
func TmpfsMount(destination string, options ...string) specs.Mount {
	return specs.Mount{Type: "tmpfs", Source: "tmpfs", Destination: destination, Options: options}
}

// capabilities are those that Docker gives to containers.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// OCI gives the runtime specification of the bundle.
func (b BundleSpec) OCI() *specs.Spec {
	cwd := b.Cwd
	if cwd == "" {
		cwd = "/"
	}
	capabilities := append(capabilities[:len(capabilities):len(capabilities)], b.Capabilities...)
	spec := &specs.Spec{
		Version:  specs.Version,
		Hostname: "lab",
		Root:     &specs.Root{Path: b.RootFS, Readonly: !b.Writable},
		Process: &specs.Process{
			User: specs.User{UID: b.UID, GID: b.GID},
			Args: b.Args,
			Env:  append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp"}, b.Env...),
			Cwd:  cwd,
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
		},
		Mounts: append([]specs.Mount{
			{Type: "proc", Source: "proc", Destination: "/proc"},
			TmpfsMount("/dev"),
			TmpfsMount("/tmp", "mode=1777"),
			TmpfsMount("/run"),
		}, b.Mounts...),
		Annotations: b.Annotations,
		Linux: &specs.Linux{
			CgroupsPath: b.CgroupsPath,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace, Path: b.PIDNS},
				{Type: specs.NetworkNamespace, Path: b.NetNS},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
			},
		},
	}
	if b.UID != 0 {
		spec.Process.Capabilities.Effective, spec.Process.Capabilities.Permitted = nil, nil
	}
	if b.MemoryBytes != 0 {
		spec.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &b.MemoryBytes}}
	}
	return spec
}

// Write writes the bundle's config.json into dir, which is created.
func (b BundleSpec) Write(dir string) error {
	return WriteSpec(dir, b.OCI())
}

// WriteSpec writes a specification as config.json into dir, which is created.
func WriteSpec(dir string, spec *specs.Spec) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	j, err := json.MarshalIndent(spec, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), j, 0o644)
}
