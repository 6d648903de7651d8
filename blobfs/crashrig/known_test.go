package crashrig

import (
	"fmt"
	"testing"

	"runsc-fs/blobfs"
)

// Failures that other file systems and block stores are known for. Each is a
// program of which all crash points are looked at.

// known explores a program, and at its end checks what is promised.
func known(t *testing.T, p promise) {
	t.Helper()
	var stats Stats
	w := newWorker(t, Options{Setup: SequenceSetup, SpareBytes: SequenceSpare}, &stats)
	w.Random = 20
	program, err := Parse(p.program)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.explore(program, 1); err != nil {
		t.Errorf("%v\n%s", err, replay(fmt.Sprintf("crash.program='%v'", program), err))
	}
	w.checkPromise(t, &p)
}

// TestTwoWritesToOneHole acknowledges two writes to a block that neither of
// them finds allocated: the second must not count on metadata of the first that
// is not durable yet.
func TestTwoWritesToOneHole(t *testing.T) {
	known(t, promise{
		program: "creat /new; write /new 0 512 direct,dsync; write /new 512 512 direct,dsync; write /new 65536 4096 dsync; write /new 69632 4096 direct,dsync",
		surely:  []fact{written("/new", 1, 0, 512), written("/new", 2, 512, 512), written("/new", 3, 65536, 4096), written("/new", 4, 69632, 4096)},
	})
}

// TestNewDirectoryAfterFsyncOfItsParent makes a directory and syncs its parent.
func TestNewDirectoryAfterFsyncOfItsParent(t *testing.T) {
	known(t, promise{
		program: "mkdir /A/D; mkdir /A/D/E; creat /A/D/E/f; fsync /A; fsync /A/D/E",
		surely:  []fact{listed("/A/D", ""), listed("/A/D/E", ""), listed("/A/D/E/f", "")},
	})
}

// TestSyncedFileWhenItsDirectoryIsReplaced has another directory take the name
// of the one in which a synced file lies, and syncs that.
func TestSyncedFileWhenItsDirectoryIsReplaced(t *testing.T) {
	known(t, promise{
		program: "mkdir /x; creat /x/f; append /x/f 5000; fsync /x/f; mkdir /z; rename /x /y; rename /z /x; fsync /x",
		surely:  []fact{written("/y/f", 2, 0, 5000), listed("/x", "")},
	})
	known(t, promise{
		program: "mkdir /x; creat /x/f; append /x/f 5000; fsync /x/f; mkdir /z; exchange /x /z; creat /x/g; fsync /x/g",
		surely:  []fact{written("/z/f", 2, 0, 5000), listed("/x/g", "")},
	})
}

// TestDirectoryIsEmptyAfterItsLastOrphan removes the last name of a file that
// stays open: after a crash its directory can be removed.
func TestDirectoryIsEmptyAfterItsLastOrphan(t *testing.T) {
	var stats Stats
	w := newWorker(t, Options{Setup: SequenceSetup, SpareBytes: SequenceSpare}, &stats)
	program, err := Parse("creat /A/C/f; open @f /A/C/f; append @f 9000; fsync @f; unlink /A/C/f; fsync /A/C; append @f 9000; fsync @f")
	if err != nil {
		t.Fatal(err)
	}
	removed := 0
	w.Extra = func(fs *blobfs.FS, _ int) error {
		root := fs.Root()
		defer root.DecRef()
		a, err := root.Lookup("A")
		if err != nil {
			return err
		}
		defer a.DecRef()
		c, err := a.Lookup("C")
		if err != nil {
			return err
		}
		_, err = c.Lookup("f")
		c.DecRef()
		if err == nil {
			return nil // not yet removed
		}
		removed++
		return a.Rmdir("C", nil)
	}
	errorIf(t, w.explore(program, 1))
	if removed == 0 {
		t.Error("no image had the directory empty")
	}
}

// TestTruncateUnderALog cuts a file through a second descriptor while a
// log is being written to it with O_DSYNC at the writer's own offset.
func TestTruncateUnderALog(t *testing.T) {
	known(t, promise{
		program: "creat /wal; open @log /wal; open @cut /wal; write @log 0 4096 dsync; write @log 4096 3000 dsync; truncate @cut 0; write @log 7096 5000 dsync; write @log 12096 100 dsync",
		surely:  []fact{zeroes("/wal", 0, 7096), written("/wal", 6, 7096, 5000), written("/wal", 7, 12096, 100), size("/wal", 12196)},
	})
}

// TestOverwriteAfterShift writes to blocks in place that a shift has moved in the
// file: nothing of that may show in the places that they had before.
func TestOverwriteAfterShift(t *testing.T) {
	for _, shift := range []string{"insert /f 4096 8192", "collapse /f 0 4096"} {
		known(t, promise{
			program: "creat /f; write /f 0 40960; sync; " + shift + "; write /f 16384 8192; fdatasync /f; write /f 28672 4096 direct; store /f 20480 4096; fsync /f",
			surely:  []fact{written("/f", 7, 20480, 4096), written("/f", 6, 28672, 4096), written("/f", 4, 16384, 4096)},
		})
		known(t, promise{
			program: "creat /f; write /f 0 40960; sync; " + shift,
			surely:  []fact{size("/f", map[byte]int{'i': 49152, 'c': 36864}[shift[0]])},
		})
	}
}
