// Package dockercfg puts the blobfs runtime into the configuration of a Docker daemon and takes it out again.
//
// The file belongs to the owner of the machine. So one member is changed and every other byte stays, a file that
// cannot be understood is left alone, the file before the change is kept beside it, and a crash leaves the
// old or the new one. Only what Install put there is removed by Uninstall.
//
// The package takes no locks. Two installations at the same time both succeed or one of them
// overwrites the other's change of the same member.
package dockercfg

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

const (
	DefaultConfig    = "/etc/docker/daemon.json"
	DefaultPidFile   = "/var/run/docker.pid"
	DefaultAPISocket = "/var/run/docker.sock"
	DefaultRuntime   = "blobfs"

	// backupSuffix names the file as it was before the last change.
	backupSuffix = ".before-runsc-fs"
)

// Errors of the configuration file. Their text is one line that names the file.
var (
	// ErrConfig says that the file cannot be understood; it is unchanged.
	ErrConfig = errors.New("Docker's configuration cannot be used")
	// ErrForeign says that the runtime's name is taken by another program; the file is unchanged.
	ErrForeign = errors.New("the runtime's name is taken")
	// ErrDefaultRuntime says that the daemon would not start without the runtime; the file is unchanged.
	ErrDefaultRuntime = errors.New("the runtime is the daemon's default")
)

// Options says which daemon, and what to put into its configuration.
type Options struct {
	Config    string // configuration file of the daemon; empty means DefaultConfig
	PidFile   string // of the daemon; empty means DefaultPidFile
	APISocket string // of the daemon; empty means DefaultAPISocket

	Runtime     string   // name of the runtime; empty means DefaultRuntime
	RuntimePath string   // absolute path of this program. Required
	RuntimeArgs []string // arguments that the daemon gives to it before its own
}

func (o *Options) setDefaults() error {
	for _, field := range []struct {
		value    *string
		fallback string
	}{
		{&o.Config, DefaultConfig}, {&o.PidFile, DefaultPidFile}, {&o.APISocket, DefaultAPISocket}, {&o.Runtime, DefaultRuntime},
	} {
		if *field.value == "" {
			*field.value = field.fallback
		}
	}
	if !filepath.IsAbs(o.RuntimePath) {
		return fmt.Errorf("Docker's configuration: the path of the runtime %q is not absolute", o.RuntimePath)
	}
	return nil
}

// runtimeEntry is a member of "runtimes".
type runtimeEntry struct {
	Path string   `json:"path"`
	Args []string `json:"runtimeArgs,omitempty"`
}

// Result says what was done.
type Result struct {
	Changed bool   // the file is another one now
	Config  string // path of the file, symbolic links resolved
	Backup  string // path of the file before the change; "" if there was none
	Reload  Reload // what the running daemon has taken over
}

// Install adds the runtime and tells the running daemon. Doing it twice changes nothing the second time. The
// error of a daemon that does not take the configuration over comes with a Result.
func Install(ctx context.Context, opts Options) (Result, error) {
	if err := opts.setDefaults(); err != nil {
		return Result{}, err
	}
	want := runtimeEntry{Path: opts.RuntimePath, Args: opts.RuntimeArgs}
	result, err := change(opts, true, func(doc *document) error { return addRuntime(doc, opts, want) })
	if err != nil {
		return result, err
	}
	result.Reload, err = reload(ctx, opts, result.Changed, &want)
	return result, err
}

// Uninstall takes the runtime out, if it is this program, and tells the running daemon.
func Uninstall(ctx context.Context, opts Options) (Result, error) {
	if err := opts.setDefaults(); err != nil {
		return Result{}, err
	}
	emptied := false
	result, err := change(opts, true, func(doc *document) (err error) {
		emptied, err = removeRuntime(doc, opts)
		return err
	})
	if err != nil {
		return result, err
	}
	// The daemon goes on with the runtimes that it has if the file says nothing about them. So it reads a
	// file with none in it first.
	result.Reload, err = reload(ctx, opts, result.Changed, nil)
	if emptied {
		_, changeErr := change(opts, false, removeEmptyRuntimes)
		err = errors.Join(err, changeErr)
	}
	return result, err
}

// runtimes returns the "runtimes" object; ok is false if there is none.
func runtimes(doc *document) (object, *member, bool, error) {
	root := doc.root()
	found, err := root.find("runtimes")
	if err != nil || found == nil {
		return object{}, nil, false, err
	}
	switch value := doc.value(found); {
	case bytes.Equal(value, []byte("null")):
		return object{}, found, false, nil
	case value[0] != '{':
		return object{}, nil, false, errors.New(`its "runtimes" is not an object in braces`)
	}
	return doc.objectAt(found.valueStart), found, true, nil
}

// current returns the entry of the runtime in the object, nil if there is none. ErrForeign if it is not
// this program.
func current(doc *document, o *object, opts Options) (*member, error) {
	found, err := o.find(opts.Runtime)
	if err != nil || found == nil {
		return nil, err
	}
	var entry runtimeEntry
	if err := json.Unmarshal(doc.value(found), &entry); err != nil {
		return nil, fmt.Errorf("its runtime %q cannot be read: %v", opts.Runtime, err)
	}
	// The same program at another path is an earlier installation.
	if !sameProgram(entry.Path, opts.RuntimePath) {
		return nil, fmt.Errorf("%w: %q is %s there, not %s", ErrForeign, opts.Runtime, entry.Path, opts.RuntimePath)
	}
	return found, nil
}

func addRuntime(doc *document, opts Options, want runtimeEntry) error {
	list, _, ok, err := runtimes(doc)
	if err != nil {
		return err
	}
	if !ok {
		return doc.set(doc.root(), "runtimes", map[string]runtimeEntry{opts.Runtime: want})
	}
	found, err := current(doc, &list, opts)
	if err != nil {
		return err
	}
	if found != nil && sameEntry(doc.value(found), want) {
		return nil
	}
	return doc.set(list, opts.Runtime, want)
}

// sameEntry tells whether the text says want and nothing else.
func sameEntry(text []byte, want runtimeEntry) bool {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	var have runtimeEntry
	return decoder.Decode(&have) == nil && have.Path == want.Path && slices.Equal(have.Args, want.Args)
}

// removeRuntime removes the entry and reports whether it was the last one, so that "runtimes" is empty now.
func removeRuntime(doc *document, opts Options) (emptied bool, err error) {
	list, _, ok, err := runtimes(doc)
	if err != nil || !ok {
		return false, err
	}
	found, err := current(doc, &list, opts)
	if errors.Is(err, ErrForeign) {
		return false, nil // not ours: there is nothing to remove
	}
	if err != nil || found == nil {
		return false, err
	}
	root := doc.root()
	fallback, err := root.find("default-runtime")
	if err != nil {
		return false, err
	}
	var name string
	if fallback != nil && json.Unmarshal(doc.value(fallback), &name) == nil && name == opts.Runtime {
		return false, fmt.Errorf(`%w: "default-runtime" is %q; set another one or remove the line first`, ErrDefaultRuntime, name)
	}
	doc.remove(list, found)
	return len(list.members) == 1, nil
}

// removeEmptyRuntimes removes "runtimes" if there is nothing in it.
func removeEmptyRuntimes(doc *document) error {
	list, whole, ok, err := runtimes(doc)
	if err != nil || !ok || len(list.members) > 0 {
		return err
	}
	root := doc.root()
	for i := range root.members {
		if root.members[i].keyStart == whole.keyStart {
			doc.remove(root, &root.members[i])
		}
	}
	return nil
}

// change reads the file, edits it, and writes it back if that made a difference. With backup it keeps the
// file as it was.
func change(opts Options, backup bool, edit func(*document) error) (Result, error) {
	path := opts.Config
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	result := Result{Config: path}
	before, err := os.ReadFile(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return result, fmt.Errorf("Docker's configuration: %w", err)
	}
	doc, err := parseDocument(before)
	if err != nil {
		return result, fmt.Errorf("%w: %s is not valid JSON: %w; repair it first, nothing was changed", ErrConfig, path, err)
	}
	start := doc.text
	if err := edit(doc); err != nil {
		if errors.Is(err, ErrForeign) || errors.Is(err, ErrDefaultRuntime) {
			return result, fmt.Errorf("%s: %w; nothing was changed", path, err)
		}
		return result, fmt.Errorf("%w: %s: %w; nothing was changed", ErrConfig, path, err)
	}
	if bytes.Equal(doc.text, start) {
		return result, nil
	}
	if !json.Valid(doc.text) {
		return result, fmt.Errorf("%w: %s: the change would not be valid JSON; nothing was changed", ErrConfig, path)
	}
	if missing {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return result, fmt.Errorf("Docker's configuration: %w", err)
		}
	} else if backup {
		if err := replaceFile(path+backupSuffix, before, path); err != nil {
			return result, fmt.Errorf("Docker's configuration: %w; nothing was changed", err)
		}
		result.Backup = path + backupSuffix
	}
	if err := replaceFile(path, doc.text, path); err != nil {
		return result, fmt.Errorf("Docker's configuration: %w; nothing was changed", err)
	}
	result.Changed = true
	return result, nil
}

// replaceFile writes data to path so that a crash leaves the old or the new content, with owner and mode of the file
// like if that is there.
func replaceFile(path string, data []byte, like string) (err error) {
	mode, uid, gid, err := attributes(like)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(file.Name())
		}
	}()
	_, err = file.Write(data)
	err = errors.Join(err, file.Chmod(mode))
	if uid != os.Geteuid() || gid != os.Getegid() {
		err = errors.Join(err, file.Chown(uid, gid))
	}
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
