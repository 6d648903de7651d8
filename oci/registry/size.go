package registry

import (
	"regexp"

	"github.com/docker/go-units"
)

const (
	// MinSizeBytes is the smallest volume: below it the log and the superblocks leave no room to speak of.
	MinSizeBytes = 16 * units.MiB
	// MaxSizeBytes is the largest volume. The host's file system may allow less for one image file.
	MaxSizeBytes = 64 * units.TiB

	// DefaultImageSizeBytes is the size of an image volume for which none is given. The image is sparse
	// and takes space on the host only as data is written.
	DefaultImageSizeBytes = 10 * units.GiB
	// DefaultMemorySizeBytes is the size of a memory volume for which none is given.
	DefaultMemorySizeBytes = 1 * units.GiB

	// SizeAlignBytes is the granularity of sizes: the block of the file system.
	SizeAlignBytes = 4096
)

var sizeRE = regexp.MustCompile(`^([0-9]{1,18}(\.[0-9]{1,6})?) ?([kKmMgGtTpP]([iI]?[bB])?|[bB])?$`)

// ParseSize reads a size such as 512MiB, 10G, 1.5T or 1073741824. Units are powers of 1024 with and
// without the "i", as everywhere in Docker's commands. The result is rounded up to SizeAlignBytes and
// lies between MinSizeBytes and MaxSizeBytes; otherwise the error is ErrInvalidSize.
func ParseSize(text string) (int64, error) {
	sizeBytes, err := ParseBytes(text)
	if err != nil {
		return 0, err
	}
	if err := CheckSize(sizeBytes); err != nil {
		return 0, err
	}
	return roundUp(sizeBytes), nil
}

// ParseBytes reads a number of bytes in the notation of ParseSize, without rounding or volume limits.
func ParseBytes(text string) (int64, error) {
	if !sizeRE.MatchString(text) {
		return 0, failf(ErrInvalidSize, "size %q is not valid; write a number and a unit, such as 512M, 10G or 1.5T", text)
	}
	sizeBytes, err := units.RAMInBytes(text)
	// The float that the parser goes through has no sensible integer beyond this; no volume is near it.
	if err != nil || sizeBytes < 0 || sizeBytes > 1<<60 {
		return 0, failf(ErrInvalidSize, "size %q is too large; a volume has at most %s", text, FormatSize(MaxSizeBytes))
	}
	return sizeBytes, nil
}

// CheckSize returns ErrInvalidSize unless a volume can have this size.
func CheckSize(sizeBytes int64) error {
	switch {
	case sizeBytes < MinSizeBytes:
		return failf(ErrInvalidSize, "size %s is too small; a volume has at least %s", FormatSize(sizeBytes), FormatSize(MinSizeBytes))
	case sizeBytes > MaxSizeBytes:
		return failf(ErrInvalidSize, "size %s is too large; a volume has at most %s", FormatSize(sizeBytes), FormatSize(MaxSizeBytes))
	}
	return nil
}

// FormatSize prints a number of bytes for people, in units of powers of 1024: "10GiB".
func FormatSize(sizeBytes int64) string { return units.BytesSize(float64(sizeBytes)) }

func roundUp(sizeBytes int64) int64 {
	return (sizeBytes + SizeAlignBytes - 1) &^ (SizeAlignBytes - 1)
}
