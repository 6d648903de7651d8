package vfio

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"runsc-fs/tests/lab"
)

//go:embed init.sh
var initScript string

//go:embed second.sh
var secondScript string

//go:embed lib.sh
var scriptLibrary string

// baseModules are what each guest loads.
var baseModules = []string{"virtio_pci", "virtio_blk", "vfio_iommu_type1", "vfio-pci"}

// Spec describes a guest. Script is the only field that has to be set.
type Spec struct {
	// Script is run by busybox's shell with -eu. Besides busybox it has Programs and the
	// functions of lib.sh. The descriptor 0 gives it the lines of Guest.Send.
	Script string
	// Programs are static programs by their name in /disk/bin: files of the host.
	Programs map[string]string
	// Files are further files below /disk, by their path there.
	Files map[string][]byte
	// Base mounts the root file system of the end-to-end tests at /base.
	Base bool
	// Controllers of NVMe. Default: none.
	Controllers []Controller
	// Kernel to boot. Default: StockKernel.
	Kernel *Kernel
	// Modules to load besides those for VFIO and the disks.
	Modules []string
	// Boot is appended to the kernel's command line.
	Boot string
	// MemoryMiB is the guest's memory. Default 1024.
	MemoryMiB int
	// CPUs of the guest. Default 2.
	CPUs int
	// Timeout is how long the guest may run. Default 2 minutes.
	Timeout time.Duration
	// Logf reports the slow steps of preparing the guest. Default: nothing.
	Logf lab.Logf
}

// Controller describes an NVMe controller. The zero value has one namespace.
type Controller struct {
	// Namespaces are numbered from 1. Default: one.
	Namespaces []Namespace
	// MDTS is Identify Controller, MDTS. Default 7.
	MDTS int
	// QueuePairs is the number of I/O queue pairs. Default 64.
	QueuePairs int
	// Multipath puts it into a subsystem that says it may have more controllers, as that of
	// many a server's disk does: the kernel then hides its block devices behind those of
	// the subsystem.
	Multipath bool
	// HotPlug puts the controller behind a root port, from which it can be removed.
	HotPlug bool
	// Device are further properties of QEMU's device nvme.
	Device string
}

// Namespace describes a namespace. The zero value has 512-byte blocks.
type Namespace struct {
	SizeBytes    int64  // default 64 MiB; ignored for an Image that exists
	LBASizeBytes int    // default 512
	Image        string // default: a file in the guest's directory, which goes with it
	Drive        string // further options of QEMU's -drive
	Device       string // further properties of QEMU's device nvme-ns
}

// firstSlot is where controllers begin on the root bus: 00:03.0 is the first.
const firstSlot = 3

// maxControllers is what fits between firstSlot and the disks.
const maxControllers = 8

// Serial is the serial number of a controller of a Spec.
func Serial(controller int) string { return fmt.Sprintf("rig%04d", controller+1) }

// Address is the PCI address of a controller in the guest.
func (s *Spec) Address(controller int) string {
	if !s.Controllers[controller].HotPlug {
		return fmt.Sprintf("0000:00:%02x.0", firstSlot+controller)
	}
	bus := 1 // the firmware numbers the buses behind root ports in their order
	for _, c := range s.Controllers[:controller] {
		if c.HotPlug {
			bus++
		}
	}
	return fmt.Sprintf("0000:%02x:00.0", bus)
}

// DeviceID is the name of a controller for QMP.
func DeviceID(controller int) string { return fmt.Sprintf("nvme%d", controller) }

func (s *Spec) setDefaults() error {
	if s.Script == "" {
		return errors.New("the guest has no script to run")
	}
	if len(s.Controllers) > maxControllers {
		return fmt.Errorf("%d controllers are more than the guest's %d slots", len(s.Controllers), maxControllers)
	}
	if s.MemoryMiB == 0 {
		s.MemoryMiB = 1024
	}
	if s.CPUs == 0 {
		s.CPUs = 2
	}
	if s.Timeout == 0 {
		s.Timeout = 2 * time.Minute
	}
	if s.Logf == nil {
		s.Logf = func(string, ...any) {}
	}
	name := regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	for p := range s.Programs {
		if !name.MatchString(p) {
			return fmt.Errorf("%q cannot be the name of a program in the guest", p)
		}
	}
	return nil
}

// bootOptions are the kernel's command line. A busy host makes a guest slow, which must
// be taken neither for a broken timer, at boot, nor for a stalled processor.
const bootOptions = "console=ttyS0 panic=-1 quiet intel_iommu=on no_timer_check rcupdate.rcu_cpu_stall_suppress=1 nowatchdog"

// machine gives QEMU's arguments for the parts that every guest has.
func (s *Spec) machine(dir, initramfs string) []string {
	return []string{
		"-accel", "tcg,thread=multi", "-machine", "q35,kernel-irqchip=split", "-cpu", "max",
		"-smp", fmt.Sprint(s.CPUs), "-m", fmt.Sprintf("%dM", s.MemoryMiB),
		"-device", "intel-iommu,intremap=on,caching-mode=on",
		"-nodefaults", "-display", "none", "-vga", "none", "-nic", "none", "-no-reboot",
		"-chardev", "file,id=kernel,path=" + quote(filepath.Join(dir, "kernel.log")), "-serial", "chardev:kernel",
		"-chardev", "stdio,id=script,signal=off", "-serial", "chardev:script",
		"-chardev", "socket,id=qmp,fd=3", "-mon", "chardev=qmp,mode=control",
		"-kernel", s.Kernel.image, "-initrd", initramfs,
		"-append", strings.TrimSpace(bootOptions + " " + s.Boot),
	}
}

// disk gives QEMU's arguments for a read-only disk. The slots decide the order of /dev/vd*.
func disk(n int, image string) []string {
	return []string{
		"-drive", fmt.Sprintf("if=none,id=disk%d,format=raw,readonly=on,file=%s", n, quote(image)),
		"-device", fmt.Sprintf("virtio-blk-pci,drive=disk%d,addr=%02x.0", n, firstSlot+maxControllers+n),
	}
}

// controller gives QEMU's arguments for a controller and makes its images.
func (s *Spec) controller(dir string, n int) ([]string, error) {
	c := s.Controllers[n]
	if c.MDTS == 0 {
		c.MDTS = 7
	}
	if c.QueuePairs == 0 {
		c.QueuePairs = 64
	}
	if len(c.Namespaces) == 0 {
		c.Namespaces = []Namespace{{}}
	}
	id, slot := DeviceID(n), fmt.Sprintf("%02x.0", firstSlot+n)
	var args []string
	place := "addr=" + slot
	if c.HotPlug {
		args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=port%d,bus=pcie.0,chassis=%d,slot=%d,addr=%s", n, n+1, n+1, slot))
		place = fmt.Sprintf("bus=port%d", n)
	}
	if c.Multipath {
		args = append(args, "-device", fmt.Sprintf("nvme-subsys,id=subsys%d,nqn=rig%d", n, n))
		place += fmt.Sprintf(",subsys=subsys%d", n)
	}
	args = append(args, "-device", join(fmt.Sprintf("nvme,id=%s,serial=%s,mdts=%d,max_ioqpairs=%d,%s", id, Serial(n), c.MDTS, c.QueuePairs, place), c.Device))
	for i, ns := range c.Namespaces {
		if ns.SizeBytes == 0 {
			ns.SizeBytes = 64 << 20
		}
		if ns.LBASizeBytes == 0 {
			ns.LBASizeBytes = 512
		}
		if ns.Image == "" {
			ns.Image = filepath.Join(dir, fmt.Sprintf("%s-%d.img", id, i+1))
		}
		if err := makeImage(ns.Image, ns.SizeBytes); err != nil {
			return nil, err
		}
		drive := fmt.Sprintf("%s-drive%d", id, i+1)
		args = append(args,
			"-drive", join(fmt.Sprintf("if=none,id=%s,format=raw,discard=unmap,cache=unsafe,file=%s", drive, quote(ns.Image)), ns.Drive),
			"-device", join(fmt.Sprintf("nvme-ns,drive=%s,bus=%s,nsid=%d,logical_block_size=%d,physical_block_size=%[4]d", drive, id, i+1, ns.LBASizeBytes), ns.Device))
	}
	return args, nil
}

// makeImage makes an image of zeros unless it exists.
func makeImage(path string, sizeBytes int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(sizeBytes), f.Close())
}

// quote makes a path fit for an option of QEMU, where commas separate.
func quote(path string) string { return strings.ReplaceAll(path, ",", ",,") }

// join appends further properties to an argument.
func join(arg, more string) string {
	if more == "" {
		return arg
	}
	return arg + "," + more
}

// AddressesEnv tells a program in the guest the addresses of the controllers.
const AddressesEnv = "RUNSC_FS_NVME"

// Command makes a script that gives the controllers to vfio-pci, when bind is set,
// and runs one program with an environment and arguments.
func Command(s *Spec, bind bool, env []string, program string, args ...string) string {
	var script strings.Builder
	var addresses []string
	for n := range s.Controllers {
		addresses = append(addresses, s.Address(n))
		if bind {
			fmt.Fprintf(&script, "vfio_bind %s\n", s.Address(n))
		}
	}
	for _, e := range append(env, AddressesEnv+"="+strings.Join(addresses, " ")) {
		fmt.Fprintf(&script, "export %s\n", shellQuote(e))
	}
	fmt.Fprintf(&script, "cd /tmp\n%s", program)
	for _, a := range args {
		fmt.Fprintf(&script, " %s", shellQuote(a))
	}
	script.WriteByte('\n')
	return script.String()
}

// shellQuote makes one word of a text.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
