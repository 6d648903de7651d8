package dockerplugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/docker/go-plugins-helpers/volume"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"runsc-fs/oci/registry"
)

// DefaultSocket is where Docker looks for the plugin of the driver "blobfs".
const DefaultSocket = "/run/docker/plugins/blobfs.sock"

// ErrRunning says that another process serves the socket.
var ErrRunning = errors.New("the volume plugin is running already")

// Options configures the service.
type Options struct {
	// Registry has the volumes. Required.
	Registry *registry.Registry
	// Socket is the path of the socket. Its name without ".sock" is the name of the driver. Empty means DefaultSocket.
	Socket string
	// Log gets one line per event worth knowing. nil drops them.
	Log logrus.FieldLogger
	// Ready is called once the socket takes calls. May be nil.
	Ready func()
	// ShutdownTimeout bounds the wait for calls in progress when the service ends. 0 means 10 s.
	ShutdownTimeout time.Duration
}

func (o *Options) setDefaults() error {
	if o.Registry == nil {
		return errors.New("volume plugin: no registry")
	}
	if o.Socket == "" {
		o.Socket = DefaultSocket
	}
	if !filepath.IsAbs(o.Socket) {
		return fmt.Errorf("volume plugin: socket %q is not an absolute path", o.Socket)
	}
	if o.Log == nil {
		o.Log = discard()
	}
	if o.ShutdownTimeout < 0 {
		return fmt.Errorf("volume plugin: negative shutdown timeout %v", o.ShutdownTimeout)
	}
	if o.ShutdownTimeout == 0 {
		o.ShutdownTimeout = 10 * time.Second
	}
	return nil
}

// Serve answers Docker's calls until ctx ends; then it finishes the calls in progress, removes the
// socket and returns nil. The socket must not outlive the service: Docker's client would wait for it. One that a
// killed service left is replaced. ErrRunning if a living one serves it.
func Serve(ctx context.Context, opts Options) error {
	if err := opts.setDefaults(); err != nil {
		return err
	}
	listener, release, err := listen(opts.Socket)
	if err != nil {
		return err
	}
	defer release()
	opts.Log.Infof("volume plugin: serving %s, volumes in %s", opts.Socket, opts.Registry.Root())
	served := make(chan error, 1)
	go func() { served <- volume.NewHandler(NewDriver(opts.Registry, opts.Log)).Serve(listener) }()
	if opts.Ready != nil {
		opts.Ready()
	}
	select {
	case err := <-served:
		listener.shutdown(opts.ShutdownTimeout)
		return fmt.Errorf("volume plugin: %w", err)
	case <-ctx.Done():
	}
	if !listener.shutdown(opts.ShutdownTimeout) {
		opts.Log.Warnf("volume plugin: a call was still in progress after %v", opts.ShutdownTimeout)
	}
	<-served
	opts.Log.Infof("volume plugin: ended")
	return nil
}

// takeLock creates and locks the file at path; ErrRunning if it is locked. release removes it.
func takeLock(path string) (release func(), err error) {
	const tries = 10 // each lost to a service that ended between two system calls of ours
	for range tries {
		lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			lock.Close()
			return nil, ErrRunning
		}
		held, heldErr := lock.Stat()
		named, namedErr := os.Lstat(path)
		if heldErr == nil && namedErr == nil && os.SameFile(held, named) {
			return func() {
				os.Remove(path)
				lock.Close()
			}, nil
		}
		lock.Close()
	}
	return nil, ErrRunning
}

// listen binds the socket. A lock beside it, held until release, makes sure that a socket that is there
// belongs to nobody who lives.
func listen(path string) (_ *listener, release func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, nil, fmt.Errorf("volume plugin: %w", err)
	}
	unlock, err := takeLock(path + ".lock")
	if errors.Is(err, ErrRunning) {
		return nil, nil, fmt.Errorf("%w: it serves %s", err, path)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("volume plugin: %w", err)
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	if err := removeStale(path); err != nil {
		return nil, nil, err
	}
	unixListener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}) // removes the socket when closed
	if err != nil {
		return nil, nil, fmt.Errorf("volume plugin: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		unixListener.Close()
		return nil, nil, fmt.Errorf("volume plugin: %w", err)
	}
	return &listener{UnixListener: unixListener, conns: make(map[*conn]struct{})}, unlock, nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("volume plugin: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("volume plugin: %s exists and is not a socket; remove it", path)
	}
	if other, err := net.DialTimeout("unix", path, time.Second); err == nil {
		other.Close()
		return fmt.Errorf("%w: another program serves %s", ErrRunning, path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("volume plugin: %w", err)
	}
	return nil
}

// listener knows its connections, so that the service can end without cutting off an answer.
type listener struct {
	*net.UnixListener

	open sync.WaitGroup // one for each of conns

	mu     sync.Mutex // a leaf
	conns  map[*conn]struct{}
	ending bool
}

type conn struct {
	net.Conn
	listener *listener
	once     sync.Once
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.UnixListener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ending {
		accepted.Close()
		return nil, net.ErrClosed
	}
	c := &conn{Conn: accepted, listener: l}
	l.conns[c] = struct{}{}
	l.open.Add(1)
	return c, nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.listener.mu.Lock()
		delete(c.listener.conns, c)
		c.listener.mu.Unlock()
		c.listener.open.Done()
	})
	return c.Conn.Close()
}

// SetReadDeadline implements net.Conn. Once the service ends, the wait for a next call has no time left,
// whatever deadline the HTTP server sets between two calls.
func (c *conn) SetReadDeadline(deadline time.Time) error {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	if c.listener.ending {
		deadline = longAgo
	}
	return c.Conn.SetReadDeadline(deadline)
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// shutdown takes no new connection, reads no new call from those that are there, and waits until the
// answers are written. It reports whether they all were in time.
func (l *listener) shutdown(timeout time.Duration) bool {
	l.UnixListener.Close()
	l.mu.Lock()
	l.ending = true
	for c := range l.conns {
		// Ends the wait for the next call. An answer in progress is written all the same.
		c.Conn.SetReadDeadline(longAgo)
	}
	l.mu.Unlock()
	done := make(chan struct{})
	go func() {
		l.open.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(timeout):
		return false
	}
}

// discard returns a logger that drops everything.
func discard() logrus.FieldLogger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}
