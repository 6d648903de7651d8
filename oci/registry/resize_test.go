package registry

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// TestResize makes volumes larger, used and unused, and keeps to the order that an
// interruption relies on: image, description, file system.
func TestResize(t *testing.T) {
	var asked, grown []string
	refusal := errors.New("it does not want to")
	r := open(t, func(o *Options) {
		withLayers(o)
		o.GrowVolume = func(v *Volume) error {
			info, err := os.Stat(v.ImagePath())
			if err != nil || info.Size() != v.SizeBytes() {
				t.Errorf("the image has %d bytes, the volume %d (%v)", info.Size(), v.SizeBytes(), err)
			}
			grown = append(grown, v.Name())
			return nil
		}
		o.AskUser = func(user User, name string, sizeBytes int64) error {
			asked = append(asked, user.Container+" in "+user.RuntimeRoot)
			if sizeBytes == 64<<20 {
				return refusal
			}
			return nil
		}
	})
	create(t, r, CreateSpec{Name: "v", SizeBytes: 32 << 20})
	create(t, r, CreateSpec{Name: "m", Kind: KindMemory, SizeBytes: 32 << 20})
	size := func(name string) int64 { return get(t, r, name).SizeBytes() }

	for _, sizeBytes := range []int64{40<<20 - 1, 40 << 20} {
		v, err := r.Resize("v", sizeBytes)
		must(t, err)
		if v.SizeBytes() != 40<<20 || size("v") != 40<<20 {
			t.Errorf("it has %d bytes", size("v"))
		}
	}
	if len(grown) != 2 { // the second time makes up for what may have been missing
		t.Errorf("the file system was asked %d times to grow", len(grown))
	}
	held, err := get(t, r, "v").AcquireFor(User{Container: "c1", RuntimeRoot: "/run/x"})
	must(t, err)
	defer held.Close()
	_, err = r.Resize("v", 50<<20)
	must(t, err)
	if len(asked) != 1 || asked[0] != "c1 in /run/x" || len(grown) != 2 || size("v") != 50<<20 {
		t.Errorf("in use: asked %q, grown %q, %d bytes", asked, grown, size("v"))
	}
	if _, err := r.Resize("v", 64<<20); !errors.Is(err, refusal) || !strings.Contains(err.Error(), "from its next mount on") || size("v") != 64<<20 {
		t.Errorf("the sandbox refused: %v; %d bytes", err, size("v"))
	}
	for sizeBytes, want := range map[int64]error{32 << 20: ErrInvalidSize, 1 << 10: ErrInvalidSize, MaxSizeBytes + 1: ErrInvalidSize} {
		if _, err := r.Resize("v", sizeBytes); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v", sizeBytes, err)
		}
	}
	_, err = r.Resize("m", 48<<20)
	must(t, err)
	heldMemory, err := get(t, r, "m").Acquire("c2")
	must(t, err)
	defer heldMemory.Close()
	if _, err := r.Resize("m", 56<<20); !errors.Is(err, ErrInUse) || size("m") != 48<<20 {
		t.Errorf("memory in use: %v, %d bytes", err, size("m"))
	}
	if _, err := r.Resize("none", 56<<20); !errors.Is(err, ErrNotExist) {
		t.Errorf("no volume: %v", err)
	}
}
