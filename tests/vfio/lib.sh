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
