package pcie

import (
	"fmt"
	"regexp"
	"strings"
)

// Address is the place of a PCI function, as "0000:03:00.0": domain, bus, device
// and function.
type Address string

// addressForm has what sysfs names are made of, with domains beyond 16 bits.
var addressForm = regexp.MustCompile(`^([0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-1][0-9a-f]\.[0-7]$`)

// ParseAddress takes an address with or without its domain.
func ParseAddress(s string) (Address, error) {
	a := strings.ToLower(s)
	m := addressForm.FindStringSubmatch(a)
	if m == nil {
		return "", fmt.Errorf("%q is not the address of a PCI device; it looks like 0000:03:00.0", s)
	}
	if m[1] == "" {
		a = "0000:" + a
	}
	return Address(a), nil
}
