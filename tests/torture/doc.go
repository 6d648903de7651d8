// Command torture runs inside a container and treats a file system badly. The
// tests in tests/e2e run it, kill the sandbox under it, and judge what it says.
//
//	torture synced DIR ACKED...   verify, then change files durably until killed
//	torture storm DIR SECONDS SEED do everything at once to a few files
//	torture hash DIR              print what storm has left, to compare later
//	torture full DIR              every operation on a full volume
//	torture extreme DIR           deep, long, huge and many
//	torture pressure DIR          more mapped than fits in the cache
//	torture many DIR              more files than fit in memory
//	torture coherent DIR          mappings, reads, writes and sizes, step by step
//
// A command that finds something wrong says so in lines that begin with LOST or
// WRONG and exits with 1. What it changes follows from its seed alone; only the
// order in which threads run does not.
package main

import (
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
)

func main() {
	if len(os.Args) < 3 {
		fatal("usage: torture COMMAND DIR [ARGUMENT]...")
	}
	dir, args := os.Args[2], os.Args[3:]
	switch os.Args[1] {
	case "synced":
		synced(dir, args)
	case "storm":
		storm(dir, number(args, 0, 20), uint64(number(args, 1, 1)))
	case "hash":
		hashTree(dir)
	case "full":
		full(dir)
	case "extreme":
		extreme(dir)
	case "many":
		many(dir)
	case "coherent":
		coherent(dir)
	case "pressure":
		pressure(dir)
	default:
		fatal("unknown command %q", os.Args[1])
	}
	if wrongs.Load() > 0 {
		os.Exit(1)
	}
	fmt.Println("done")
}

var wrongs atomic.Int64

// wrong reports a broken promise. Only the first ones are printed.
func wrong(format string, args ...any) {
	if wrongs.Add(1) <= 50 {
		fmt.Printf("WRONG "+format+"\n", args...)
	}
}

// fatal ends the program because the test itself cannot go on.
func fatal(format string, args ...any) {
	fmt.Printf("torture: "+format+"\n", args...)
	os.Exit(2)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func number(args []string, k, missing int) int {
	if k >= len(args) {
		return missing
	}
	n, err := strconv.Atoi(args[k])
	if err != nil {
		fatal("%v", err)
	}
	return n
}
