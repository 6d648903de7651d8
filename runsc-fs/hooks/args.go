package hooks

import (
	"encoding/json"
	"fmt"
	"strings"

	"runsc-fs/nvme/pcie"
)

// VolumeArg describes one volume on its way into a sandbox: on the command
// line of the sandbox process, or in the request that starts a further
// container. The open files travel beside it, in the order of the arguments:
// the image if HasImage, what lies below it, the base first, the two files of the
// device if there is a Device, then the lock if HasLock.
type VolumeArg struct {
	Name string `json:"name"`
	// Kind is "image", "memory" or "device".
	Kind string `json:"kind"`
	// SizeBytes is the capacity of the volume.
	SizeBytes int64 `json:"sizeBytes"`
	// ReadOnly says that the image could not be opened for writing.
	ReadOnly bool `json:"readOnly,omitempty"`
	// HasImage says that an open image comes with the volume.
	HasImage bool `json:"hasImage,omitempty"`
	// Device says how an open NVMe device is reached, Namespace which part of it
	// is the volume.
	Device    *pcie.Handle `json:"device,omitempty"`
	Namespace uint32       `json:"namespace,omitempty"`
	// Parents is the number of frozen files below the image.
	Parents int `json:"parents,omitempty"`
	// HasLock says that the lock on the volume comes with it. Without it the
	// sandbox holds the volume already.
	HasLock bool `json:"hasLock,omitempty"`
	// Container is the one that brings the volume.
	Container string `json:"container"`
}

// files returns how many files travel with the volume.
func (a *VolumeArg) files() int {
	n := max(a.Parents, 0)
	if a.HasImage {
		n++
	}
	if a.Device != nil {
		n += 2
	}
	if a.HasLock {
		n++
	}
	return n
}

// volumeArgs is a flag value: a JSON list of volumes. Set(String()) keeps it
// as it is, which runsc needs when the sandbox process executes itself again.
type volumeArgs struct {
	list []VolumeArg
	// set says that the flag was given, if only with an empty list: volumes
	// may come later.
	set bool
}

// String implements flag.Value.
func (v *volumeArgs) String() string {
	if v == nil || !v.set {
		return ""
	}
	text, err := json.Marshal(v.list)
	if err != nil {
		return ""
	}
	return string(text)
}

// Set implements flag.Value.
func (v *volumeArgs) Set(text string) error {
	var list []VolumeArg
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return fmt.Errorf("list of volumes: %w", err)
	}
	v.list, v.set = list, true
	return nil
}

// Get implements flag.Getter, which runsc expects of its flags.
func (v *volumeArgs) Get() any { return v.list }

// intList is a flag value: file descriptor numbers. runsc passes one flag per
// descriptor; String gives them all at once.
type intList []int

// String implements flag.Value.
func (l *intList) String() string {
	if l == nil {
		return ""
	}
	words := make([]string, len(*l))
	for i, n := range *l {
		words[i] = fmt.Sprint(n)
	}
	return strings.Join(words, ",")
}

// Set implements flag.Value.
func (l *intList) Set(text string) error {
	for word := range strings.SplitSeq(text, ",") {
		var n int
		if _, err := fmt.Sscanf(word, "%d", &n); err != nil || n < 0 {
			return fmt.Errorf("file descriptor %q", word)
		}
		*l = append(*l, n)
	}
	return nil
}

// Get implements flag.Getter.
func (l *intList) Get() any { return []int(*l) }
