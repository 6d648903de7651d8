// Command abi checks that a directory behaves as Linux's manual pages say that
// files and directories behave: some hundred small checks, each with a name such as
// rename/exchange-files and a fresh directory of its own.
//
//	abi -dir /data                       run all checks in /data, which must be writable by root
//	abi -dir /data -run 'rename|^mmap/'  run those whose names match
//	abi -list                            print the names
//
// Each check prints one line, "ok NAME" or "not ok NAME: FILE:LINE: got EINVAL, want
// EEXIST"; the exit status is 0 if all passed. More directories make more checks
// possible: see the flags. The program wants to be root with all capabilities of one.
//
// What is expected comes from the manual pages, so the program is itself tested by
// running it on the host's ext4. Checks that are known to fail somewhere stand in
// known-gaps.txt with the reason; the tests that run the program (abi_test.go, and
// tests/e2e) want exactly those to fail.
//
// Checks run one after the other, each on a goroutine that may be left behind: one
// that does not end in time has failed, and the program goes on.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// checkTimeout bounds one check.
const checkTimeout = 60 * time.Second

// seed is that of the one check that differs from run to run; it says it when it fails.
var seed uint64

// places are the directories that checks use.
type places struct {
	dir        string // where all checks run
	readOnly   string // the same file system as dir, mounted read-only; "" if there is none
	restricted string // the same file system, mounted with noexec, nosuid, nodev and noatime; "" if there is none
	other      string // a directory on another file system; "" if there is none
	shares     string // a directory on a file system whose files can share blocks; "" if there is none
	small      string // another file system of the same type, small enough to be filled; "" if there is none
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == childFlag {
		os.Exit(runChild(os.Args[2:]))
	}
	var at places
	flag.StringVar(&at.dir, "dir", "", "directory to check")
	flag.StringVar(&at.readOnly, "ro", "", "read-only mount of the same file system, with the same root as -dir")
	flag.StringVar(&at.restricted, "restricted", "", "mount of the same file system with noexec,nosuid,nodev,noatime, with the same root as -dir")
	flag.StringVar(&at.other, "other", "", "directory on another file system")
	flag.StringVar(&at.small, "small", "", "file system of the same type, of at most 64 MiB, that may be filled")
	flag.StringVar(&at.shares, "shares", "", "directory on a file system whose files can share blocks")
	run := flag.String("run", "", "regular expression: run only the checks whose names match")
	flag.Uint64Var(&seed, "seed", uint64(time.Now().UnixNano()), "seed of stress/file-everything-again")
	list := flag.Bool("list", false, "print the names of the checks and end")
	slow := flag.Duration("slow", 0, "add the time to the lines of checks that took longer than this")
	flag.Parse()

	filter, err := regexp.Compile(*run)
	if err != nil {
		fmt.Fprintf(os.Stderr, "abi: -run: %v\n", err)
		os.Exit(2)
	}
	if *list {
		for _, g := range groups() {
			for _, c := range g.checks {
				fmt.Println(c.name)
			}
		}
		return
	}
	if at.dir == "" {
		fmt.Fprintln(os.Stderr, "abi: -dir is needed: the directory to check")
		os.Exit(2)
	}
	unix.Umask(0)
	signal.Ignore(unix.SIGXFSZ, unix.SIGPIPE, unix.SIGIO)
	os.Exit(runAll(at, filter, *slow))
}

// runAll runs the checks that filter lets through and returns the exit status.
func runAll(at places, filter *regexp.Regexp, slow time.Duration) int {
	total, failed := 0, 0
	for _, g := range groups() {
		if !at.allow(g.needs) {
			continue
		}
		at := at
		if g.needs&needShares != 0 {
			at.dir = at.shares
		}
		for _, c := range g.checks {
			if !filter.MatchString(c.name) {
				continue
			}
			total++
			start := time.Now()
			text := c.execute(&at)
			took := ""
			if d := time.Since(start); slow > 0 && d > slow {
				took = fmt.Sprintf(" (%v)", d.Round(time.Millisecond))
			}
			if text == "" {
				fmt.Printf("ok %s%s\n", c.name, took)
			} else {
				failed++
				fmt.Printf("not ok %s: %s%s\n", c.name, text, took)
			}
		}
	}
	fmt.Printf("# %d checks, %d failed\n", total, failed)
	if failed > 0 || total == 0 {
		return 1
	}
	return 0
}

// allow says whether the places that checks need were given.
func (at *places) allow(needs need) bool {
	return (needs&needReadOnly == 0 || at.readOnly != "") &&
		(needs&needRestricted == 0 || at.restricted != "") &&
		(needs&needOther == 0 || at.other != "") &&
		(needs&needSmall == 0 || at.small != "") &&
		(needs&needShares == 0 || at.shares != "")
}
