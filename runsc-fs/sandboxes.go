package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/container"

	"runsc-fs/runsc-fs/hooks"
)

// loadContainer finds a running container with volumes; id may be abbreviated.
func loadContainer(rootDir, id string) (*container.Container, error) {
	c, err := container.Load(rootDir, container.FullID{ContainerID: id}, container.LoadOpts{})
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("container %q does not exist under %s; 'runsc-fs list' shows those that do, and --root says where to look", id, rootDir)
	}
	if err != nil {
		return nil, fmt.Errorf("container %q: %w", id, err)
	}
	if !c.IsSandboxRunning() {
		return nil, fmt.Errorf("container %q is not running; start it first", c.ID)
	}
	if len(volumesOf(c)) == 0 {
		return nil, fmt.Errorf("container %q has no blobfs volumes", c.ID)
	}
	return c, nil
}

// volumesOf returns the names of the volumes that a container mounts.
func volumesOf(c *container.Container) (names []string) {
	if c.Spec == nil {
		return nil
	}
	for k := range c.Spec.Mounts {
		if m := &c.Spec.Mounts[k]; m.Type == hooks.FilesystemName {
			names = append(names, m.Source)
		}
	}
	return names
}

// errNoCall is the failure of a call that the sandbox does not know.
var errNoCall = errors.New("its sandbox was started by an older runsc-fs that cannot tell; restart it")

// askSandbox calls a method of the sandbox of a container over its control socket, and waits
// for the answer for no longer than patience.
func askSandbox(c *container.Container, method string, arg, result any, patience time.Duration) error {
	conn, err := connectSandbox(c)
	if err != nil {
		return fmt.Errorf("container %q: its sandbox cannot be reached: %w", c.ID, err)
	}
	done := make(chan error, 1)
	go func() { done <- conn.Call(method, arg, result) }()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err = <-done:
		conn.Close()
	case <-timer.C:
		// The call has result until the command ends, and so the connection.
		return fmt.Errorf("container %q: its sandbox does not answer for %v", c.ID, patience)
	}
	var remote urpc.RemoteError
	if errors.As(err, &remote) && strings.Contains(remote.Message, urpc.ErrUnknownMethod.Error()) {
		err = errNoCall
	}
	if err != nil {
		return fmt.Errorf("container %q: %w", c.ID, err)
	}
	return nil
}

// printable is a text from a sandbox without what a terminal would act upon.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

// connectSandbox connects to the control socket. Its path may be longer than an address
// can be.
func connectSandbox(c *container.Container) (*urpc.Client, error) {
	path := c.Sandbox.GetControlSocketPath()
	if path == "" {
		return nil, errors.New("no control socket")
	}
	if path[0] == 0 { // a name, not a path
		return client.ConnectTo(path)
	}
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return client.ConnectTo(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}
