package pcie

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernel is what this package asks of VFIO's and iommufd's files beyond reading,
// writing and mapping. Tests have another one.
type kernel interface {
	// open opens a device file for reading and writing.
	open(path string) (*os.File, error)
	// ioctl makes a request whose argument is a structure or a string.
	ioctl(f *os.File, request uintptr, arg unsafe.Pointer) (int, error)
	// ioctlInt makes a request whose argument is a number.
	ioctlInt(f *os.File, request, arg uintptr) (int, error)
}

// host is the kernel of this machine.
type host struct{}

func (host) open(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func (host) ioctl(f *os.File, request uintptr, arg unsafe.Pointer) (int, error) {
	for {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg))
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(r), nil
	}
}

func (h host) ioctlInt(f *os.File, request, arg uintptr) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, arg)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

// failed names the request that failed.
func failed(request string, err error) error { return fmt.Errorf("%s: %w", request, err) }
