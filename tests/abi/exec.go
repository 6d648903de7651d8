package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	gosyscall "syscall"

	"golang.org/x/sys/unix"
)

// run starts a program of the check's directory to no end and gives the error of execve(2).
func (t *T) run(name string, as *user) error {
	cmd := exec.Command(t.p(name), childFlag, "ids")
	if as != nil {
		cmd.SysProcAttr = &gosyscall.SysProcAttr{Credential: &gosyscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.gid)}}
	}
	err := cmd.Run()
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

var execChecks = []check{
	{"exec/program-on-the-volume", func(t *T) {
		t.program("program")
		t.ok(t.run("program", nil))
	}},
	{"exec/program-just-written-and-renamed", func(t *T) {
		// As compilers and package managers do.
		for range 3 {
			t.program("new")
			t.ok(t.rename("new", "program"))
			t.ok(t.run("program", nil))
		}
	}},
	{"exec/script", func(t *T) {
		t.program("interpreter")
		t.file("script", "#!"+t.p("interpreter")+" -list\n")
		t.chmod("script", 0o755)
		out, err := exec.Command(t.p("script")).Output()
		t.ok(err)
		t.that(len(out) > 1000, "the interpreter said %q", out)
	}},
	{"exec/script-without-interpreter", func(t *T) {
		t.file("script", "#!"+t.p("none")+"\n")
		t.chmod("script", 0o755)
		t.fails(t.run("script", nil), unix.ENOENT)
	}},
	{"exec/errors", func(t *T) {
		t.program("program")
		t.chmod("program", 0o644)
		t.mkdir("dir")
		t.file("garbage", "neither ELF nor script")
		t.chmod("garbage", 0o755)
		t.file("empty", "")
		t.chmod("empty", 0o755)
		t.fails(t.run("program", nil), unix.EACCES)
		t.fails(t.run("dir", nil), unix.EACCES)
		t.fails(t.run("garbage", nil), unix.ENOEXEC)
		t.fails(t.run("empty", nil), unix.ENOEXEC)
	}},
	{"exec/needs-execute-not-read-permission", func(t *T) {
		t.program("program")
		t.chmod("program", 0o711)
		t.ok(t.run("program", &alice))
		t.chmod("program", 0o766)
		t.fails(t.run("program", &alice), unix.EACCES)
	}},
	{"exec/set-user-id", func(t *T) {
		t.program("program")
		t.own("program", bob)
		t.chmod("program", 0o6755)
		child := t.startAs("program", alice)
		t.eqText("effective user and group", child.said, fmt.Sprint(bob.uid, bob.gid))
		t.chmod("program", 0o755)
		child = t.startAs("program", alice)
		t.eqText("effective user and group", child.said, fmt.Sprint(alice.uid, alice.gid))
	}},
	{"exec/file-open-for-writing", func(t *T) {
		// execve(2), ETXTBSY: the executable is open for writing.
		t.program("program")
		t.open("program", unix.O_WRONLY)
		t.fails(t.run("program", nil), unix.ETXTBSY)
	}},
	{"exec/removed-program-runs-on", func(t *T) {
		t.program("program")
		child := t.start("program", "wait")
		t.ok(unix.Unlink(t.p("program")))
		t.program("program")
		child.end()
	}},
	{"exec/by-descriptor", func(t *T) {
		t.program("program")
		fd := t.open("program", unix.O_RDONLY)
		child := t.startCmd(exec.Command(fmt.Sprintf("/proc/self/fd/%d", fd), childFlag, "wait"))
		t.eqText("output", child.said, "ready")
	}},
	{"exec/proc-exe-names-the-file", func(t *T) {
		t.program("program")
		child := t.start("program", "wait")
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", child.cmd.Process.Pid))
		t.ok(err)
		t.eqText("/proc/PID/exe", path, t.p("program"))
	}},
}

// startAs is start as another user, and has the child print its effective ids.
func (t *T) startAs(name string, u user) *child {
	cmd := exec.Command(t.p(name), childFlag, "ids")
	cmd.SysProcAttr = &gosyscall.SysProcAttr{Credential: &gosyscall.Credential{Uid: uint32(u.uid), Gid: uint32(u.gid)}}
	return t.startCmd(cmd)
}
