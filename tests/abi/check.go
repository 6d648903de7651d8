package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// check is one statement about the behaviour of a file system.
type check struct {
	name string // area/statement
	run  func(t *T)
}

// group is a list of checks with what they need.
type group struct {
	needs  need
	checks []check
}

// need names places without which checks cannot run.
type need int

const (
	needReadOnly need = 1 << iota
	needRestricted
	needOther
	needSmall
	needShares // checks run there instead of in the directory of the others
)

// groups are all checks in the order in which they run.
func groups() []group {
	return []group{
		{0, slices.Concat(
			pathChecks(), openChecks, openatChecks, mkdirChecks, mknodChecks, symlinkChecks, linkChecks,
			unlinkChecks, rmdirChecks, renameChecks, rename2Checks(), chmodChecks, chownChecks, privilegeChecks(),
			timesChecks(), utimeChecks, permissionChecks(), stickyChecks(), accessChecks, statChecks, statfsChecks,
			truncateChecks, readChecks, writeChecks, vectorChecks, offsetChecks, fallocateChecks, directChecks, copyChecks,
			direntChecks, xattrChecks(), aclChecks(), flockChecks, posixLockChecks, leaseChecks,
			inotifyChecks(), mmapChecks, mmapSizeChecks, execChecks, syncChecks, ioctlChecks,
			aioChecks, aioRingChecks, uringChecks, uringOpChecks, limitChecks, miscChecks, fsxChecks, treeChecks,
		)},
		{needReadOnly, readOnlyChecks()},
		{needRestricted, restrictedChecks()},
		{needOther, otherChecks()},
		{needSmall, spaceChecks},
		{needShares, reflinkChecks()},
	}
}

// failure is what a check panics with when it has failed.
type failure struct{ text string }

// T is a check under way.
type T struct {
	at       *places
	dir      string // fresh, empty, mode 0755
	cleanups []func()
}

// execute runs the check and returns why it failed, or "".
func (c check) execute(at *places) string {
	dir := filepath.Join(at.dir, strings.ReplaceAll(c.name, "/", "."))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err.Error()
	}
	t := &T{at: at, dir: dir}
	result := make(chan string, 1)
	go func() {
		var text string
		defer func() { result <- text }()
		defer t.clean()
		text = caught(func() { c.run(t) })
	}()
	select {
	case text := <-result:
		if err := os.RemoveAll(dir); err != nil && text == "" {
			text = fmt.Sprintf("cannot remove what the check left behind: %v", err)
		}
		return text
	case <-time.After(checkTimeout):
		return fmt.Sprintf("has not ended after %v", checkTimeout)
	}
}

// caught runs fn and returns the text of the failure that it panicked with, or "".
// Any other panic counts as a failure, too.
func caught(fn func()) (text string) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			text = r.text
		default:
			text = fmt.Sprintf("panic: %v", r)
		}
	}()
	fn()
	return ""
}

func (t *T) clean() {
	for _, fn := range slices.Backward(t.cleanups) {
		fn()
	}
}

// cleanup has fn run when the check has ended, last things first.
func (t *T) cleanup(fn func()) { t.cleanups = append(t.cleanups, fn) }

// failf ends the check as failed.
func (t *T) failf(format string, args ...any) {
	panic(failure{where() + fmt.Sprintf(format, args...)})
}

// where gives the place in a check that called a method of T.
func where() string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if base := filepath.Base(f.File); base != "check.go" && base != "files.go" {
			return fmt.Sprintf("%s:%d: ", base, f.Line)
		}
		if !more {
			return ""
		}
	}
}

// ok wants err to be nil.
func (t *T) ok(err error) {
	if err != nil {
		t.failf("got %s, want success", errName(err))
	}
}

// fails wants err to be one of the wanted errors, of which the manual allows any.
func (t *T) fails(err error, want ...unix.Errno) {
	for _, w := range want {
		if errors.Is(err, w) {
			return
		}
	}
	t.failf("got %s, want %s", errName(err), errNames(want))
}

// that wants a condition to hold.
func (t *T) that(holds bool, format string, args ...any) {
	if !holds {
		t.failf(format, args...)
	}
}

// eq wants two values to be equal.
func eq[V comparable](t *T, what string, got, want V) {
	if got != want {
		t.failf("%s: got %v, want %v", what, got, want)
	}
}

// eqText wants two texts to be equal and shows them shortened.
func (t *T) eqText(what, got, want string) {
	if got != want {
		t.failf("%s: got %s, want %s", what, shortened(got), shortened(want))
	}
}

func shortened(s string) string {
	if len(s) <= 40 {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q… (%d bytes)", s[:40], len(s))
}

// octal wants two modes to be equal.
func (t *T) octal(what string, got, want uint32) {
	if got != want {
		t.failf("%s: got %#o, want %#o", what, got, want)
	}
}

// errName gives the name of an error number.
func errName(err error) string {
	var errno unix.Errno
	switch {
	case err == nil:
		return "success"
	case errors.As(err, &errno):
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
	}
	return err.Error()
}

func errNames(errs []unix.Errno) string {
	var names []string
	for _, e := range errs {
		names = append(names, errName(e))
	}
	return strings.Join(names, " or ")
}

// errOf drops the value of a call that is only wanted for its error.
func errOf[V any](_ V, err error) error { return err }

// must gives the value of a call that has to succeed: value := must(t)(call()).
func must[V any](t *T) func(V, error) V {
	return func(v V, err error) V {
		t.ok(err)
		return v
	}
}
