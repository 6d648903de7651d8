#!/bin/busybox sh
# The first program on the guest's final root: mounts what programs expect, runs
# the script and tells its exit status.
/bin/busybox --install -s /bin
export PATH=/disk/bin:/bin HOME=/
mkdir -p /dev/pts /dev/shm
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tracefs tracefs /sys/kernel/tracing
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t ext4 -o ro /dev/vda /disk
[ ! -b /dev/vdb ] || mount -t ext4 -o ro /dev/vdb /base
ln -s /proc/self/fd /dev/fd
ip link set lo up 2>/dev/null
hostname guest
stty -F /dev/ttyS1 raw -echo
exec </dev/ttyS1 >/dev/ttyS1 2>&1
sh -eu -c '. /disk/lib.sh; . /disk/script'
status=$?
printf '\n%s %d\n' "$(cat /disk/marker)" $status
# The host ends the machine; a first program that ends would be a panic.
while :; do sleep 3600; done
