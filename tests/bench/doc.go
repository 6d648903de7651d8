// Command bench measures blobfs volumes side by side with what else there is:
// stock runsc over a gofer, over directfs and on its own tmpfs, runc on the host's
// file system and on its tmpfs, and FUSE.
//
// A contender is one way to give a container a directory; a job is one piece of
// work in that directory. In each round every job runs once under every contender,
// one after the other, and the contender that begins changes from round to round.
// So whatever slows the machine down for a while meets all of them. What is reported
// is the median of the rounds with its spread, and ratios of medians of one run.
//
// Nothing is reported that was not measured by the run that reports it: a job that
// a contender cannot do is shown as such, with the reason.
//
// Run it with make bench, make bench-quick, or, for some of the jobs:
//
//	go run ./tests/bench -quick -jobs 'psync|libaio' -contenders 'blobfs.*|runsc-tmpfs'
package main
