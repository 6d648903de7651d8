package qtest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme"
)

// program is QEMU, in the Debian package of packageName.
const (
	program     = "qemu-system-x86_64"
	packageName = "qemu-system-x86"
)

// The arena begins above what a PC uses of its lowest memory; file offsets and
// physical addresses are the same there.
const arenaOffset = 16 << 20

// maxRAMBytes is where the memory of a q35 machine has its hole.
const maxRAMBytes = 2 << 30

// replyTimeout bounds every exchange with QEMU.
const replyTimeout = 20 * time.Second

// ErrNoQEMU: the program is not installed.
var ErrNoQEMU = errors.New("qtest: there is no " + program + "; Debian has it in the package " + packageName)

// Available tells whether QEMU is installed: nil or ErrNoQEMU.
func Available() error {
	if _, err := exec.LookPath(program); err != nil {
		return ErrNoQEMU
	}
	return nil
}

// Namespace describes one namespace of a controller. The zero value has 512-byte
// blocks and the default size.
type Namespace struct {
	SizeBytes    int64  // default 16 MiB
	LBASizeBytes int    // default 512
	Device       string // further properties of the device nvme-ns
	Drive        string // further options of its -drive
	// Fault makes some I/O fail: options of blkdebug's inject-error without
	// their prefix, as "iotype=write" and "sector=8".
	Fault []string
}

// Options are the parameters of a machine. The zero value gives a controller
// with one namespace.
type Options struct {
	// Dir takes the image files of the namespaces. They have to go with it.
	Dir string
	// ArenaBytes is the size of the arena. Default 64 MiB.
	ArenaBytes int64
	// Namespaces are numbered from 1. Default: one.
	Namespaces []Namespace
	// MDTS is Identify Controller, MDTS. Default 7.
	MDTS int
	// QueuePairs is the number of I/O queue pairs. Default 64.
	QueuePairs int
	// Device are further properties of the device nvme.
	Device string
}

func (o *Options) setDefaults() error {
	if o.ArenaBytes == 0 {
		o.ArenaBytes = 64 << 20
	}
	if len(o.Namespaces) == 0 {
		o.Namespaces = []Namespace{{}}
	}
	if o.MDTS == 0 {
		o.MDTS = 7
	}
	if o.QueuePairs == 0 {
		o.QueuePairs = 64
	}
	if o.Dir == "" || o.ArenaBytes < 0 || o.ArenaBytes > maxRAMBytes-arenaOffset {
		return fmt.Errorf("qtest: directory %q, arena of %d bytes", o.Dir, o.ArenaBytes)
	}
	return nil
}

// Machine is a running QEMU with an NVMe controller. It is an nvme.Transport.
type Machine struct {
	cmd    *exec.Cmd
	arena  *nvme.Arena
	stderr bytes.Buffer // to be read when exited is closed
	exited chan struct{}

	mu     sync.Mutex
	conn   net.Conn
	out    []byte // the line being sent
	in     [256]byte
	broken error // why nothing more can be said to QEMU
	closed bool
}

// Start starts QEMU and makes its controller reachable; the controller is not
// enabled. The machine ends with Close, or with this process.
func Start(opts Options) (*Machine, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	if err := Available(); err != nil {
		return nil, err
	}
	ramBytes := (arenaOffset + opts.ArenaBytes + 1<<20 - 1) &^ (1<<20 - 1)
	ram, err := makeRAM(ramBytes)
	if err != nil {
		return nil, err
	}
	defer ram.Close()
	arena, err := nvme.NewArenaFromFile(ram, arenaOffset, opts.ArenaBytes&^(nvme.PageSizeBytes-1))
	if err != nil {
		return nil, err
	}
	m := &Machine{arena: arena, exited: make(chan struct{})}
	if err := m.launch(opts, ram, ramBytes); err != nil {
		return nil, errors.Join(err, m.Close(), arena.Close())
	}
	if err := m.enablePCI(); err != nil {
		return nil, errors.Join(err, m.Close(), arena.Close())
	}
	return m, nil
}

func makeRAM(size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("qtest-ram", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("qtest: creating the machine's memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "qtest-ram")
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(fmt.Errorf("qtest: sizing the machine's memory: %w", err), f.Close())
	}
	return f, nil
}

// launch starts the process with the memory as descriptor 3 and one end of a
// socket pair as descriptor 4.
func (m *Machine) launch(opts Options, ram *os.File, ramBytes int64) error {
	args := []string{
		"-machine", "q35,memory-backend=ram", "-accel", "tcg", "-S", "-nodefaults", "-display", "none",
		"-m", strconv.FormatInt(ramBytes>>20, 10) + "M",
		"-object", fmt.Sprintf("memory-backend-file,id=ram,size=%d,mem-path=/proc/self/fd/3,share=on", ramBytes),
		"-chardev", "socket,id=qtest,fd=4", "-qtest", "chardev:qtest", "-qtest-log", "none",
		"-device", "nvme-subsys,id=subsys,nqn=qtest",
		"-device", join(fmt.Sprintf("nvme,id=nvme,serial=qtest0001,subsys=subsys,mdts=%d,max_ioqpairs=%d", opts.MDTS, opts.QueuePairs), opts.Device),
	}
	for i, ns := range opts.Namespaces {
		if ns.SizeBytes == 0 {
			ns.SizeBytes = 16 << 20
		}
		if ns.LBASizeBytes == 0 {
			ns.LBASizeBytes = 512
		}
		image := filepath.Join(opts.Dir, fmt.Sprintf("namespace%d", i+1))
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			return fmt.Errorf("qtest: %w", err)
		}
		if err := os.Truncate(image, ns.SizeBytes); err != nil {
			return fmt.Errorf("qtest: %w", err)
		}
		image = strings.ReplaceAll(image, ",", ",,")
		file := "file=" + image
		if len(ns.Fault) > 0 {
			file = "file.driver=blkdebug,file.image.driver=file,file.image.filename=" + image + ",file.inject-error.0.event=none"
			for _, f := range ns.Fault {
				file += ",file.inject-error.0." + f
			}
		}
		args = append(args,
			"-drive", join(fmt.Sprintf("id=drive%d,%s,if=none,format=raw,discard=unmap,cache=unsafe", i, file), ns.Drive),
			"-device", join(fmt.Sprintf("nvme-ns,drive=drive%d,bus=nvme,nsid=%d,logical_block_size=%d,physical_block_size=%d", i, i+1, ns.LBASizeBytes, ns.LBASizeBytes), ns.Device))
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("qtest: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "qtest"), os.NewFile(uintptr(pair[1]), "qtest")
	defer ours.Close() // FileConn has a duplicate
	defer theirs.Close()
	if m.conn, err = net.FileConn(ours); err != nil {
		return fmt.Errorf("qtest: %w", err)
	}
	cmd := exec.Command(program, args...)
	cmd.ExtraFiles = []*os.File{ram, theirs}
	cmd.Stdout, cmd.Stderr = &m.stderr, &m.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("qtest: starting %s: %w", program, err)
	}
	m.cmd = cmd
	go func() {
		_ = cmd.Wait() // how it ended is in the output
		close(m.exited)
	}()
	return nil
}

// join appends further properties to an argument.
func join(arg, more string) string {
	if more == "" {
		return arg
	}
	return arg + "," + more
}

// Arena implements nvme.Transport.
func (m *Machine) Arena() *nvme.Arena { return m.arena }

// DMABase implements nvme.Transport.
func (m *Machine) DMABase() uint64 { return arenaOffset }

// Kill ends QEMU at once, as if the device were pulled out.
func (m *Machine) Kill() {
	if m.cmd != nil {
		_ = m.cmd.Process.Kill()
		<-m.exited
	}
}

// Close ends QEMU. It implements nvme.Transport. The arena is left to whoever
// started the machine, who closes it afterwards.
func (m *Machine) Close() error {
	m.mu.Lock()
	closed := m.closed
	m.closed = true
	m.mu.Unlock()
	if closed {
		return nil
	}
	m.Kill()
	if m.conn != nil {
		return m.conn.Close()
	}
	return nil
}

// fault is the error of an exchange, with what QEMU had to say.
func (m *Machine) fault(err error) error {
	select {
	case <-m.exited:
		return fmt.Errorf("qtest: QEMU has ended: %w: %s", err, strings.TrimSpace(m.stderr.String()))
	case <-time.After(100 * time.Millisecond):
		return fmt.Errorf("qtest: %w", err)
	}
}
