package main

import (
	"fmt"
	"strings"

	"runsc-fs/gofer"
	"runsc-fs/runsc-fs/hooks"
)

// imagePath returns the image that an argument names: the path of a file, which
// has a slash, or the name of a volume. Unless force is set a volume in use is
// a gofer.ErrInUse.
func imagePath(argument string, force bool) (string, error) {
	if strings.Contains(argument, "/") {
		return argument, nil
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return "", err
	}
	volume, err := reg.Get(argument)
	if err != nil {
		return "", err
	}
	path := volume.ImagePath()
	if path == "" {
		return "", fmt.Errorf("volume %q is in memory and has no image", argument)
	}
	if force {
		return path, nil
	}
	if holder, inUse, err := volume.Holder(); err == nil && inUse && holder != "" {
		return "", inUseError{fmt.Sprintf("volume %q is in use by container %s", argument, holder)}
	}
	return path, nil
}

// inUseError is a gofer.ErrInUse that names the container.
type inUseError struct{ text string }

func (e inUseError) Error() string        { return e.text }
func (e inUseError) Is(target error) bool { return target == gofer.ErrInUse }
