package nvme_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"runsc-fs/nvme"
	"runsc-fs/nvme/soft"
	"runsc-fs/nvme/spec"
)

// resettable is a transport whose function somebody else can reset on the PCI bus: for a
// while its registers are not there, and afterwards it is as after power-on.
type resettable struct {
	*troubled

	mu      sync.Mutex
	until   time.Time // registers do not answer before that
	reads   uint32    // what they read as meanwhile
	enables []func()  // what happens when CC.EN is set, for the next times
}

// reset resets the function: its registers read as value for a while.
func (d *resettable) reset(value uint32, silence time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.resetLocked(value, silence)
}

func (d *resettable) resetLocked(value uint32, silence time.Duration) {
	d.troubled.Write32(spec.RegCC, 0)
	d.until, d.reads = time.Now().Add(silence), value
}

func (d *resettable) Read32(reg uint32) uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Now().Before(d.until) {
		return d.reads
	}
	return d.troubled.Read32(reg)
}

func (d *resettable) Read64(reg uint32) uint64 {
	return uint64(d.Read32(reg)) | uint64(d.Read32(reg+4))<<32
}

func (d *resettable) Write32(reg, v uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Now().Before(d.until) {
		return
	}
	d.troubled.Write32(reg, v)
	if reg == spec.RegCC && v&spec.CCEN != 0 && len(d.enables) > 0 {
		d.enables[0]()
		d.enables = d.enables[1:]
	}
}

func (d *resettable) Write64(reg uint32, v uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !time.Now().Before(d.until) {
		d.troubled.Write64(reg, v)
	}
}

// patient lets no command run out of time: what is done is done long before that.
var patient = nvme.Options{CommandTimeout: 5 * time.Minute, AdminTimeout: 5 * time.Minute, RemovalGrace: time.Minute}

// silence is how long registers do not answer.
const silence = 150 * time.Millisecond

// TestResetByOthers resets the controller behind the driver's back while a command is
// outstanding: it is carried out all the same, once the registers answer.
func TestResetByOthers(t *testing.T) {
	for _, c := range []struct {
		name    string
		value   uint32
		silence time.Duration
		again   int // resets while the driver brings it back
	}{
		{"at once", 0, 0, 0},
		{"zeroes", 0, silence, 0},
		{"ones", spec.Gone, silence, 0},
		{"at once and again", 0, 0, 2},
		{"zeroes and again", 0, silence, 2},
		{"ones and again", spec.Gone, silence, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := &resettable{troubled: newTroubled(t)}
			ns, err := nvme.OpenNamespace(d, 1, patient)
			if err != nil {
				t.Fatal(err)
			}
			defer ns.Close()
			page, err := d.Arena().Alloc(1)
			if err != nil {
				t.Fatal(err)
			}
			for range c.again {
				d.enables = append(d.enables, func() { d.resetLocked(c.value, c.silence) })
			}
			d.SetInjector(soft.NewRules(soft.Rule{Opcode: spec.CmdWrite, Count: 1, Action: soft.Action{Hold: true}}))
			go func() {
				for d.Held() == 0 {
					time.Sleep(time.Millisecond)
				}
				d.reset(c.value, c.silence)
			}()
			want := bytes.Repeat([]byte{0x5a}, len(page))
			copy(page, want)
			if err := ns.Do([]nvme.Request{{Op: nvme.OpWrite, Vec: [][]byte{page}}}); err != nil {
				t.Fatalf("outstanding command: %v", err)
			}
			clear(page)
			if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}); err != nil || !bytes.Equal(page, want) {
				t.Errorf("reading it back: %v, right: %v", err, bytes.Equal(page, want))
			}
		})
	}
}

// TestResetOfIdleController: what the controller is asked next is answered, be it data or
// an admin command, and events come again without being asked for.
func TestResetOfIdleController(t *testing.T) {
	for _, value := range []uint32{0, spec.Gone} {
		t.Run(fmt.Sprintf("%#x", value), func(t *testing.T) {
			t.Parallel()
			d := &resettable{troubled: newTroubled(t)}
			events := make(chan nvme.Event, 1)
			options := patient
			options.EventInterval = -1
			options.OnEvent = func(e nvme.Event) { events <- e }
			c, err := nvme.Open(d, options)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			d.reset(value, silence)
			if _, err := c.Health(); err != nil {
				t.Errorf("reading the health log: %v", err)
			}
			d.reset(value, silence)
			c.PollEvents()
			d.RaiseEvent(spec.EventTypeHealth | 1<<8 | spec.LogSMART<<16)
			c.PollEvents()
			<-events
		})
	}
}

// TestResetWithoutRetries: commands that may not be sent again fail with an error
// that says why, and the controller works afterwards.
func TestResetWithoutRetries(t *testing.T) {
	d := &resettable{troubled: newTroubled(t)}
	options := patient
	options.Retries = -1
	ns, err := nvme.OpenNamespace(d, 1, options)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	page, err := d.Arena().Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	d.SetInjector(soft.NewRules(soft.Rule{Opcode: spec.CmdRead, Count: 1, Action: soft.Action{Hold: true}}))
	go func() {
		for d.Held() == 0 {
			time.Sleep(time.Millisecond)
		}
		d.reset(0, 0)
	}()
	read := []nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}
	if err := ns.Do(read); !errors.Is(err, nvme.ErrStateLost) || !errors.Is(err, nvme.ErrIO) {
		t.Errorf("outstanding command: %v", err)
	}
	if err := ns.Do(read); err != nil {
		t.Errorf("next command: %v", err)
	}
}

// TestResetWithoutEnd: a controller that is reset whenever it is enabled is given up.
func TestResetWithoutEnd(t *testing.T) {
	d := &resettable{troubled: newTroubled(t)}
	ns, page := open(t, d)
	defer ns.Close()
	for range 100 {
		d.enables = append(d.enables, func() { d.resetLocked(0, 0) })
	}
	d.reset(0, 0)
	read := []nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}
	if err := ns.Do(read); !errors.Is(err, nvme.ErrIO) {
		t.Errorf("first command: %v", err)
	}
	if err := ns.Do(read); !errors.Is(err, nvme.ErrStateLost) || !errors.Is(err, nvme.ErrControllerFatal) {
		t.Errorf("next command: %v", err)
	}
}

// TestRegistersThatNeverAnswer: after its grace the device counts as removed, and is not waited
// for again.
func TestRegistersThatNeverAnswer(t *testing.T) {
	for _, value := range []uint32{0, spec.Gone} {
		d := &resettable{troubled: newTroubled(t)}
		ns, page := open(t, d)
		d.reset(value, time.Hour)
		read := []nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}
		for range 2 {
			if err := ns.Do(read); !errors.Is(err, nvme.ErrRemoved) && !errors.Is(err, nvme.ErrTimeout) {
				t.Errorf("registers read %#x: %v", value, err)
			}
		}
		if err := ns.Close(); !errors.Is(err, nvme.ErrRemoved) {
			t.Errorf("closing: %v", err)
		}
		if d.stopped.Load() == 0 {
			t.Error("a device that does not answer was not cut off from memory")
		}
	}
}

// cached is a medium with a volatile write cache.
type cached struct{ soft.Backing }

func (c cached) Properties() soft.Properties {
	p := c.Backing.Properties()
	p.VolatileWriteCache = true
	return p
}

// TestLossOfPower: a controller that lost its volatile write cache must not go on as if
// nothing had happened, while a reset loses nothing.
func TestLossOfPower(t *testing.T) {
	for _, c := range []struct {
		name          string
		cache, cycled bool
		want          error
	}{
		{"cache, reset", true, false, nil},
		{"cache, power cycle", true, true, nvme.ErrStateLost},
		{"no cache, power cycle", false, true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 16 << 20})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { arena.Close() })
			var backing soft.Backing
			if backing, err = soft.NewMemoryBacking(1 << 20); err != nil {
				t.Fatal(err)
			}
			if c.cache {
				backing = cached{backing}
			}
			d, err := soft.New(arena, []soft.Backing{backing}, soft.Options{})
			if err != nil {
				t.Fatal(err)
			}
			ns, err := nvme.OpenNamespace(d, 1, patient)
			if err != nil {
				t.Fatal(err)
			}
			defer ns.Close()
			page, err := arena.Alloc(1)
			if err != nil {
				t.Fatal(err)
			}
			if err := ns.Do([]nvme.Request{{Op: nvme.OpWrite, Vec: [][]byte{page}}}); err != nil {
				t.Fatal(err)
			}
			if c.cycled {
				d.CyclePower()
			} else {
				d.Write32(spec.RegCC, 0)
			}
			for range 2 { // a flush must not succeed by being tried again
				err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}, {Op: nvme.OpFlush}})
				if !errors.Is(err, c.want) || (c.want != nil) != errors.Is(err, nvme.ErrIO) {
					t.Errorf("reading and flushing: %v, want %v", err, c.want)
				}
			}
		})
	}
}

// amnesiac is a controller that forgets its queues when it is reset and does not say so: its
// status register goes on to show that it is ready.
type amnesiac struct {
	*troubled
	mu     sync.Mutex
	ready  bool // to forget a command that is held
	forgot bool
}

func (d *amnesiac) Read32(reg uint32) uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.troubled.Read32(reg)
	switch {
	case d.forgot && reg == spec.RegCSTS:
		v |= spec.CSTSRDY
	case d.forgot && reg == spec.RegCC:
		v |= spec.CCEN
	}
	return v
}

func (d *amnesiac) Write32(reg, v uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if reg == spec.RegCC {
		d.forgot = false
	}
	d.troubled.Write32(reg, v)
	if d.ready && d.Held() > 0 {
		d.troubled.Write32(spec.RegCC, 0)
		d.ready, d.forgot = false, true
	}
}

// TestSilentReset: a command that the controller has forgotten is carried out all the same.
func TestSilentReset(t *testing.T) {
	d := &amnesiac{troubled: newTroubled(t)}
	options := quick
	options.AdminTimeout = 5 * time.Minute // an Abort must not get that long
	ns, err := nvme.OpenNamespace(d, 1, options)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	page, err := d.Arena().Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	d.SetInjector(soft.NewRules(soft.Rule{Opcode: spec.CmdWrite, Count: 1, Action: soft.Action{Hold: true}}))
	d.mu.Lock()
	d.ready = true
	d.mu.Unlock()
	want := bytes.Repeat([]byte{0xa5}, len(page))
	copy(page, want)
	if err := ns.Do([]nvme.Request{{Op: nvme.OpWrite, Vec: [][]byte{page}}}); err != nil {
		t.Fatalf("outstanding command: %v", err)
	}
	clear(page)
	if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}); err != nil || !bytes.Equal(page, want) {
		t.Errorf("reading it back: %v, right: %v", err, bytes.Equal(page, want))
	}
}
