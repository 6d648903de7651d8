package vfio

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// replyTimeout bounds each exchange with QEMU's monitor.
const replyTimeout = 20 * time.Second

// monitor speaks QEMU's monitor protocol (QMP).
type monitor struct {
	mu    sync.Mutex
	conn  net.Conn
	in    *bufio.Reader
	ready bool // capabilities were negotiated
}

// newMonitor makes a connection; theirs is QEMU's end.
func newMonitor() (m *monitor, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "monitor"), os.NewFile(uintptr(pair[1]), "monitor")
	defer ours.Close() // FileConn has a duplicate
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return &monitor{conn: conn, in: bufio.NewReader(conn)}, theirs, nil
}

func (m *monitor) close() error { return m.conn.Close() }

// run runs one command.
func (m *monitor) run(command string, arguments map[string]any) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ready {
		if _, err := m.exchangeLocked("qmp_capabilities", nil); err != nil {
			return nil, err
		}
		m.ready = true
	}
	return m.exchangeLocked(command, arguments)
}

func (m *monitor) exchangeLocked(command string, arguments map[string]any) ([]byte, error) {
	request := map[string]any{"execute": command}
	if len(arguments) > 0 {
		request["arguments"] = arguments
	}
	line, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	if err := m.conn.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return nil, err
	}
	if _, err := m.conn.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("QEMU's monitor: %w", err)
	}
	for {
		line, err := m.in.ReadBytes('\n')
		if err != nil {
			return nil, fmt.Errorf("QEMU's monitor: no answer to %s: %w", command, err)
		}
		var reply struct {
			Return json.RawMessage
			Error  *struct{ Desc string }
		}
		if err := json.Unmarshal(line, &reply); err != nil {
			return nil, fmt.Errorf("QEMU's monitor: %s: %w", line, err)
		}
		switch {
		case reply.Error != nil:
			return nil, fmt.Errorf("QEMU's monitor: %s: %s", command, reply.Error.Desc)
		case reply.Return != nil:
			return reply.Return, nil
		}
		// The greeting or an event: nobody waits for it.
	}
}
