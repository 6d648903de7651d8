package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// childFlag makes the program a child of a check instead of running checks.
const childFlag = "-child"

// runChild does what a check wants of a process of its own and returns the exit
// status. It prints a line when it is ready, and ends when its input does.
//
//	wait            nothing
//	ids             print the effective user and group
//	lock PATH N M   lock M bytes from N on for writing with fcntl(2), print the outcome
//	store PATH N    store '!' at N through a shared mapping, print the outcome
func runChild(args []string) int {
	switch {
	case len(args) == 1 && args[0] == "wait":
		fmt.Println("ready")
	case len(args) == 1 && args[0] == "ids":
		fmt.Println(os.Geteuid(), os.Getegid())
	case len(args) == 4 && args[0] == "lock":
		fmt.Println(errName(lockFile(args[1], number(args[2]), number(args[3]))))
	case len(args) == 3 && args[0] == "store":
		fmt.Println(errName(storeInFile(args[1], number(args[2]))))
	default:
		fmt.Fprintf(os.Stderr, "abi: no such child: %q\n", args)
		return 2
	}
	io.Copy(io.Discard, os.Stdin)
	return 0
}

func number(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// lockFile locks a range of a file until the process ends.
func lockFile(path string, start, length int64) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return lock(fd, unix.F_SETLK, unix.F_WRLCK, start, length)
}

// storeInFile stores a byte through a mapping that stays until the process ends.
func storeInFile(path string, at int64) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	m, err := unix.Mmap(fd, 0, int(at)+1, readWrite, unix.MAP_SHARED)
	if err == nil {
		m[at] = '!'
	}
	return err
}

// program puts an executable copy of this program into the check's directory.
func (t *T) program(name string) {
	self, err := os.ReadFile("/proc/self/exe")
	t.ok(err)
	t.file(name, string(self))
	t.chmod(name, 0o755)
}

// child is a process that a check has started.
type child struct {
	t     *T
	cmd   *exec.Cmd
	stdin io.Closer
	said  string // its first line
}

// start runs a program of the check's directory as a child, and returns when the
// child has said its first line.
func (t *T) start(name string, args ...string) *child {
	cmd := exec.Command(t.p(name), append([]string{childFlag}, args...)...)
	return t.startCmd(cmd)
}

// startSelf runs this program, from where it lies, as a child.
func (t *T) startSelf(args ...string) *child {
	return t.startCmd(exec.Command("/proc/self/exe", append([]string{childFlag}, args...)...))
}

func (t *T) startCmd(cmd *exec.Cmd) *child {
	stdin, err := cmd.StdinPipe()
	t.ok(err)
	stdout, err := cmd.StdoutPipe()
	t.ok(err)
	t.ok(cmd.Start())
	c := &child{t: t, cmd: cmd, stdin: stdin}
	t.cleanup(func() { stdin.Close(); cmd.Process.Kill(); cmd.Wait() })
	line := make(chan string, 1)
	go func() {
		s, _ := bufio.NewReader(stdout).ReadString('\n')
		line <- strings.TrimSpace(s)
	}()
	select {
	case c.said = <-line:
	case <-time.After(20 * time.Second):
		t.failf("the child has said nothing")
	}
	return c
}

// end lets the child end and waits for it.
func (c *child) end() {
	c.stdin.Close()
	c.t.ok(c.cmd.Wait())
}
