package fsck

import (
	"errors"
	"fmt"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// Options are the parameters of Check.
type Options struct {
	// MaxFindings bounds the findings that are kept; further ones are only
	// counted. 0: 1000.
	MaxFindings int
	// WindowGroups is the number of groups (of 126 MiB) whose blocks are
	// checked at a time, at up to 8 KiB of memory each; the volume is read once
	// more for each further window. 0: 32768, which are 4 TiB.
	WindowGroups int
}

const (
	defaultMaxFindings  = 1000
	defaultWindowGroups = 1 << 15
)

func (o *Options) setDefaults() error {
	if o.MaxFindings < 0 || o.WindowGroups < 0 {
		return errors.New("fsck: negative option")
	}
	if o.MaxFindings == 0 {
		o.MaxFindings = defaultMaxFindings
	}
	if o.WindowGroups == 0 {
		o.WindowGroups = defaultWindowGroups
	}
	return nil
}

// checker is the state of one check.
type checker struct {
	opts Options
	rep  *Report
	io   *blockReader
	sb   *format.Superblock

	damage  []keyRange // where the tree is unreadable, in order
	overlay []change   // the log's changes of items, one for each key, in order
	values  []byte     // the values that overlay refers to
	runs    []runOp    // the log's claims and frees, in their order

	nextObject uint64 // lowest object number never given out
	maxBirth   uint64 // highest generation an extent may be born in
	inodes     inodeTable
	dirs       []dirState // in order of their numbers
	win        window
	queries    []ownerQuery
	refcounts  refcountWalk
	// unannounced says that shared blocks have been met that the superblock
	// does not announce.
	unannounced bool
}

// Check checks the volume on dev and never writes to it. Defects are findings
// of the report. The error says why there is no report: it wraps
// format.ErrNotBlobfs, format.ErrVersion or format.ErrFeature if the device
// holds no volume that this program knows, nvme.ErrArenaFull if there is no
// memory for a block; unreadable blocks are findings.
func Check(dev nvme.BlockDevice, opts Options) (*Report, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	io, err := newBlockReader(dev)
	if err != nil {
		return nil, err
	}
	defer io.close()
	c := &checker{opts: opts, io: io, rep: &Report{limit: opts.MaxFindings}}
	c.rep.Counters.Items = map[string]uint64{}
	c.rep.Findings = []Finding{}
	ok, err := c.checkSuperblocks()
	if err != nil {
		return nil, err
	}
	if ok {
		c.checkTree()
		c.checkLog()
		c.win.init(0, c.opts.WindowGroups, c.sb.VolumeBlocks)
		c.checkItems()
		c.checkLinks()
		c.checkSpace()
		c.nameOwners()
		c.findPaths()
		if len(c.damage) > 0 {
			c.found(Note, CodeIncomplete, "tree",
				"part of the metadata is unreadable; lost inodes, too few names and leaked blocks are not looked for")
		}
	}
	c.rep.Complete = ok && len(c.damage) == 0 && c.rep.Counters.UnknownGroups == 0
	c.rep.finish()
	return c.rep, nil
}

func (c *checker) found(s Severity, code Code, object, text string, args ...any) int {
	return c.rep.add(Finding{Severity: s, Code: code, Object: object, Message: fmt.Sprintf(text, args...)})
}

// foundInode is found for something that belongs to an inode.
func (c *checker) foundInode(s Severity, code Code, ino uint64, text string, args ...any) int {
	return c.rep.add(Finding{
		Severity: s, Code: code, Object: fmt.Sprintf("inode %d", ino), Ino: ino, Message: fmt.Sprintf(text, args...),
	})
}

// reason is the text of an error without the words that every finding implies.
func reason(err error) string {
	text := err.Error()
	prefix := format.ErrCorrupt.Error() + ": "
	for len(text) > len(prefix) && text[:len(prefix)] == prefix {
		text = text[len(prefix):]
	}
	return text
}
