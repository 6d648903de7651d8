package main

import (
	"context"
	"fmt"
)

// manyFiles makes the directory that the jobs of listing work in.
func manyFiles(ctx context.Context, x *box) error {
	_, err := x.sh(ctx, fmt.Sprintf("mkdir /data/many; perl /inputs/files.pl create /data/many %d", x.b.scale.files))
	return err
}

// listing is a job over the directory with many files. It is done once before it is
// measured, so that the figure is that of a warm cache.
func listing(name string, quick bool, script string) job {
	j := timed(name, quick, script+" >/dev/null", script, "")
	j.needs, j.needsName = manyFiles, "many"
	return j
}

// cold is a listing right after the start of a container.
func cold(name, script string) job {
	warm := timed(name, false, "", script, "")
	j := warm
	j.needs, j.needsName = manyFiles, "many"
	j.skip = func(c contender) string {
		if !c.keeps {
			return "its files do not outlive the container"
		}
		return ""
	}
	j.run = func(ctx context.Context, x *box) (float64, error) {
		if err := x.restart(ctx); err != nil {
			return 0, err
		}
		return warm.run(ctx, x)
	}
	return j
}

// perFiles is a job of files.pl on a directory of its own.
func perFiles(name, before, operation string) job {
	return job{name: name, unit: "s", dir: lower, quick: true, run: func(ctx context.Context, x *box) (float64, error) {
		n := x.b.scale.files
		script := "rm -rf /data/own; mkdir /data/own\n"
		if before != "" {
			script += fmt.Sprintf("perl /inputs/files.pl %s /data/own %d >/dev/null\n", before, n)
		}
		script += fmt.Sprintf("perl /inputs/files.pl %s /data/own %d\n", operation, n)
		out, err := x.sh(ctx, script)
		if err != nil {
			return 0, err
		}
		return lastNumber(out)
	}}
}

// sourceTree unpacks a source tree for the jobs that look at one.
func sourceTree(ctx context.Context, x *box) error {
	_, err := x.sh(ctx, `mkdir /data/tree; cd /data/tree; tar xf /inputs/source.tar
		git init -q .; git add .; git -c user.name=bench -c user.email=bench@localhost commit -qm all`)
	return err
}

// inTree is a job in the unpacked source tree, warm.
func inTree(name, script string) job {
	j := timed(name, false, script+" >/dev/null", script, "")
	j.needs, j.needsName = sourceTree, "tree"
	return j
}

// fileJobs are the jobs of names and inodes.
func fileJobs() []job {
	return []job{
		perFiles("create $N files", "", "create"),
		perFiles("stat $N files", "create", "stat"),
		perFiles("rename $N files", "create", "rename"),
		perFiles("unlink $N files", "create", "unlink"),
		listing("ls of $N files", false, "ls /data/many"),
		listing("ls -R of $N files", false, "ls -R /data/many"),
		listing("ls -l of $N files", true, "ls -l /data/many"),
		listing("ls --color of $N files", false, "ls --color=always /data/many"),
		cold("ls -l of $N files, cold", "ls -l /data/many"),
		timed("untar a source tree", true, "rm -rf /data/untar; mkdir /data/untar", "tar xf /inputs/source.tar -C /data/untar", ""),
		timed("rm -rf of a source tree", false, "rm -rf /data/untar; mkdir /data/untar; tar xf /inputs/source.tar -C /data/untar", "rm -rf /data/untar", ""),
		inTree("find in a source tree", "find /data/tree -name \"*.go\" -newer /inputs/source.tar"),
		inTree("git status", "git -C /data/tree status"),
		timed("compile many small files", false, "rm -rf /data/c; cp -r /inputs/c /data/c", "cd /data/c; for f in *.c; do cc -O1 -c $f; done; cc -o all *.o", ""),
	}
}
