# What scripts of guests share. A device is named as 0000:00:03.0.

# vfio_bind DEVICE: takes a device from its driver and gives it to vfio-pci.
vfio_bind() {
	echo vfio-pci >/sys/bus/pci/devices/$1/driver_override
	[ ! -e /sys/bus/pci/devices/$1/driver ] || echo $1 >/sys/bus/pci/devices/$1/driver/unbind
	echo $1 >/sys/bus/pci/drivers_probe
	[ "$(driver_of $1)" = vfio-pci ]
}

# driver_of DEVICE: prints the driver's name, or "none".
driver_of() {
	if [ -e /sys/bus/pci/devices/$1/driver ]; then
		basename "$(readlink /sys/bus/pci/devices/$1/driver)"
	else
		echo none
	fi
}

# group_of DEVICE: prints the number of its IOMMU group.
group_of() { basename "$(readlink /sys/bus/pci/devices/$1/iommu_group)"; }

# wait_for SECONDS COMMAND...: runs the command until it succeeds.
wait_for() {
	left=$(($1 * 5))
	shift
	until "$@"; do
		left=$((left - 1))
		if [ $left -le 0 ]; then
			echo "waited in vain for: $*"
			return 1
		fi
		sleep 0.2
	done
}

# refused TEXT COMMAND...: wants a command to fail with one line that has the text.
refused() {
	want=$1
	shift
	if said=$("$@" 2>&1 </dev/null); then
		echo "succeeded instead of being refused: $*: $said"
		return 1
	fi
	case $said in
	*"$want"*) ;;
	*)
		echo "refused without '$want': $*: $said"
		return 1
		;;
	esac
	if [ "$(echo "$said" | wc -l)" != 1 ]; then
		echo "said more than one line: $*: $said"
		return 1
	fi
}

# driven DEVICE DRIVER: wants a device to have that driver.
driven() {
	if [ "$(driver_of $1)" != $2 ]; then
		echo "$1 has the driver $(driver_of $1) instead of $2"
		return 1
	fi
}

# runtime ARGUMENT...: runsc-fs as the tests of containers use it.
# A command that hangs ends the script, well before the guest's own time is over.
runtime() { timeout 400 runsc-fs --root=/run/runsc --ignore-cgroups --network=none --debug-log=/tmp/log/ "$@"; }

# contain NAME COMMAND: runs a shell command in a container on the volume, in the foreground.
# It does not get the script's terminal, which a sandbox would make non-blocking for all.
contain() {
	bundle $1 "$2"
	status=0
	runtime run --bundle /tmp/bundle-$1 $1 </dev/null >/tmp/output-$1 2>&1 || status=$?
	cat /tmp/output-$1
	return $status
}

# background NAME COMMAND: starts a container whose output goes to /tmp/output-NAME.
background() {
	bundle $1 "$2"
	runtime run --detach --bundle /tmp/bundle-$1 $1 </dev/null >/tmp/output-$1 2>&1 || {
		cat /tmp/output-$1
		return 1
	}
}

# bundle NAME COMMAND: makes a bundle; its config.json is /disk/config-head, the command
# and /disk/config-tail.
bundle() {
	mkdir -p /tmp/bundle-$1 /tmp/log
	{
		cat /disk/config-head
		printf '%s\n' "$2" | sed 's/\\/\\\\/g; s/"/\\"/g; s/	/ /g; s/$/\\n/' | tr -d '\n'
		cat /disk/config-tail
	} >/tmp/bundle-$1/config.json
}

# sandbox NAME: prints the process id of a container's sandbox.
sandbox() {
	for process in /proc/[0-9]*; do
		if { tr '\0' ' ' <$process/cmdline; } 2>/dev/null | grep -q "^runsc-sandbox .* $1 $"; then
			basename $process
			return
		fi
	done
	echo "no sandbox of $1" >&2
	return 1
}

# idle NAME SECONDS: prints the processor time that the sandbox of a container uses
# meanwhile, in hundredths of a second.
idle() {
	process=$(sandbox $1)
	before=$(ticks $process)
	sleep $2
	echo $(($(ticks $process) - before))
}

# ticks PROCESS: prints the processor time it has used, in hundredths of a second.
ticks() { sed 's/.*) //' /proc/$1/stat | awk '{ print $12 + $13 }'; }

# watch_calls PROCESS SECONDS: counts calls that can move file data, by thread and
# descriptor, and prints the counts with the threads and descriptors of the process.
watch_calls() {
	events=/sys/kernel/tracing/events/syscalls
	by_descriptor="read write pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2"
	by_thread="sendfile64 splice copy_file_range io_submit io_uring_enter"
	for call in $by_descriptor; do echo hist:keys=common_pid,fd >$events/sys_enter_$call/trigger; done
	for call in $by_thread; do echo hist:keys=common_pid >$events/sys_enter_$call/trigger; done
	sleep $2
	echo "@@ threads" $(ls /proc/$1/task)
	for descriptor in /proc/$1/fd/*; do
		echo "@@ descriptor $(basename $descriptor) $(readlink $descriptor || true)"
	done
	for call in $by_descriptor $by_thread; do
		echo "@@ call $call"
		cat $events/sys_enter_$call/hist
	done
}

# pull DEVICE: cuts a device behind a root port off, as if it were pulled out of its slot:
# turns the slot's power off behind the kernel's back, by the register Slot Control of the port's
# PCI Express capability (bit 10 power, bits 9 and 8 indicator).
pull() {
	port=$(dirname "$(readlink -f /sys/bus/pci/devices/$1)")
	at=$(byte $port 52)
	while [ $(byte $port $at) != 16 ]; do
		at=$(byte $port $((at + 1)))
	done
	printf "\\x$(printf %02x $(byte $port $((at + 24))))\\x07" |
		dd of=$port/config bs=2 seek=$(((at + 24) / 2)) conv=notrunc 2>/dev/null
}

# byte DEVICE OFFSET: prints a byte of a device's configuration space.
byte() { od -An -tu1 -j$2 -N1 $1/config | tr -d ' '; }
