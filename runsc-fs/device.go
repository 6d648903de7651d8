package main

import (
	"runsc-fs/gofer/device"
	"runsc-fs/nvme/pcie"
)

// host is the machine that the device commands work on.
var host = &device.Host{}

func newDeviceGroup() *group {
	return &group{
		word:  "device",
		about: "list NVMe devices and move them between the host and volumes",
		verbs: []verb{&deviceLs{}, &deviceBind{}, &deviceUnbind{}},
	}
}

// addresses parses the operands of a command, all before it does anything.
func addresses(args []string) ([]pcie.Address, error) {
	if len(args) == 0 {
		return nil, usagef("the PCI address of a device is needed; 'runsc-fs device ls' shows them")
	}
	var list []pcie.Address
	for _, a := range args {
		addr, err := pcie.ParseAddress(a)
		if err != nil {
			return nil, usagef("%v", err)
		}
		list = append(list, addr)
	}
	return list, nil
}
