package registry

import "fmt"

// Sentinel errors, to be recognised with errors.Is. The text that a user sees comes from the error that
// wraps them and is one line that names the volume or the value and says what to do.
var (
	// Of names and arguments.
	ErrInvalidName = fmt.Errorf("invalid volume name")
	ErrInvalidSize = fmt.Errorf("invalid volume size")
	ErrInvalidSpec = fmt.Errorf("invalid volume description")

	// Of the state of the registry.
	ErrNotExist = fmt.Errorf("volume does not exist")
	ErrExist    = fmt.Errorf("volume exists already")
	ErrInUse    = fmt.Errorf("volume is in use")
	ErrBusy     = fmt.Errorf("volume registry is busy")
	ErrDepends  = fmt.Errorf("other volumes or snapshots depend on it")
	ErrDamaged  = fmt.Errorf("volume registry is damaged")

	// Of an image file named by the user.
	ErrImage = fmt.Errorf("image cannot be used")

	// Of a device named by the user.
	ErrDevice = fmt.Errorf("device cannot be used")
)

// failure is an error whose text is complete by itself and whose class is a sentinel.
type failure struct {
	class error
	text  string
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.class }

func failf(class error, format string, args ...any) error {
	return &failure{class: class, text: fmt.Sprintf(format, args...)}
}
