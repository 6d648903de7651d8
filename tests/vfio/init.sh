#!/bin/busybox sh
# The first program of the guest: loads modules and moves to a tmpfs, because a
# container runtime cannot pivot away from the kernel's first root file system.
bb=/bin/busybox
$bb mount -t devtmpfs devtmpfs /dev
for m in $($bb cat /modules/order); do
	$bb insmod /modules/$m || echo "cannot load the module $m" >/dev/console
done
$bb mount -t tmpfs -o mode=755 root /root
$bb mkdir -p /root/bin /root/dev /root/proc /root/sys /root/tmp /root/run /root/var /root/etc /root/disk /root/base
$bb cp /bin/busybox /root/bin/
$bb cp /second /root/init
$bb mount -o move /dev /root/dev
exec $bb switch_root /root /init
