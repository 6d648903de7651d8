package fsck

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// ErrDump says that Dump does not know what to show.
var ErrDump = errors.New("fsck: show one of: superblock, tree, log, items, node=BLOCK, group=NUMBER, inode=NUMBER")

// Dump writes a structure of the volume on dev to w as text, for developers.
// What can be:
//
//	superblock      all slots
//	tree            one line for each node of the published tree
//	items           one line for each item, the log's changes included
//	log             the records that a mount replays, with their operations
//	node=BLOCK      one node
//	group=NUMBER    item and bitmap of one group
//	inode=NUMBER    the items of one inode, the log's changes included
//
// The text has no stable form. Damaged structures are shown as far as they can
// be. Errors: ErrDump, those of Check, and those of w.
func Dump(dev nvme.BlockDevice, what string, w io.Writer) error {
	verb, arg, hasArg := strings.Cut(what, "=")
	var n uint64
	if hasArg {
		var err error
		if n, err = strconv.ParseUint(arg, 10, 48); err != nil {
			return fmt.Errorf("%w (%q is no number)", ErrDump, arg)
		}
	}
	if strings.Contains(" node group inode ", " "+verb+" ") != hasArg {
		return ErrDump
	}
	br, err := newBlockReader(dev)
	if err != nil {
		return err
	}
	defer br.close()
	c := &checker{io: br, rep: &Report{}}
	c.rep.Counters.Items = map[string]uint64{}
	d := &dumper{printer: printer{w: w}, c: c}
	if verb == "superblock" {
		d.superblocks()
		return d.err
	}
	ok, err := c.checkSuperblocks()
	switch {
	case err != nil:
		return err
	case !ok:
		return format.Corruptf("no superblock slot is valid")
	}
	switch verb {
	case "tree":
		d.tree(c.sb.Root, int(c.sb.RootLevel), wholeTree)
	case "log":
		d.log()
	case "items":
		d.items(wholeTree)
	case "node":
		d.node(format.Addr(n))
	case "group":
		d.group(n)
	case "inode":
		d.items(objectRange(n))
	default:
		return ErrDump
	}
	return d.err
}

type dumper struct {
	printer
	c *checker
}

func (d *dumper) superblocks() {
	for slot, b := range d.c.readSlots(false) {
		d.printf("slot %d at block %v: ", slot, format.SuperblockAddr(slot))
		if b == nil {
			d.printf("unreadable\n")
			continue
		}
		s, err := format.DecodeSuperblock(b, slot, d.c.io.blocks)
		if err != nil {
			d.printf("%v\n", err)
			continue
		}
		d.printf("generation %d, written %s\n", s.Generation, timeText(s.WrittenNs))
		d.printf("  uuid %v, label %q, %d blocks, features %#x/%#x/%#x, flags %#x\n",
			s.UUID, s.Label, s.VolumeBlocks, s.Compat, s.ReadOnlyCompat, s.Incompat, s.Flags)
		d.printf("  root: block %v, generation %d, checksum %#08x, level %d; %d nodes\n",
			s.Root.Addr, s.Root.Generation, s.RootCRC, s.RootLevel, s.Nodes)
		d.printf("  log: %d blocks at %v; next record %d at %d, epoch %d; last transaction %d; next object %d\n",
			s.LogBlocks, s.LogStart, s.LogSeq, s.LogPos, s.LogEpoch, s.LSN, s.NextObject)
		d.printf("  created %s, mounted %s, %d mounts\n", timeText(s.CreatedNs), timeText(s.MountedNs), s.Mounts)
	}
}

func timeText(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }

// tree shows the nodes from the root down. Recursion is bounded by the level.
func (d *dumper) tree(ptr format.ChildPtr, level int, keys keyRange) {
	indent := strings.Repeat("  ", int(d.c.sb.RootLevel)-level)
	n := new(format.Node)
	if code, text := d.c.loadNode(n, ptr, level, keys); code != "" {
		d.printf("%sblock %v generation %d: %s: %s\n", indent, ptr.Addr, ptr.Generation, code, text)
		return
	}
	d.printf("%sblock %v generation %d level %d: %d entries, %d bytes, keys %v to %v\n",
		indent, ptr.Addr, ptr.Generation, level, n.Count(), n.UsedBytes(), keys.low, keys.high)
	for i := 0; level > 0 && i < n.Count() && d.err == nil; i++ {
		d.tree(n.Child(i), level-1, childRange(n, i, keys))
	}
}

// node shows a node wherever it is in the tree, or whether it is in it at all.
func (d *dumper) node(a format.Addr) {
	n := new(format.Node)
	if err := d.c.io.read(a, n[:]); err != nil {
		d.printf("%v\n", err)
		return
	}
	h := format.ReadHeader(n[:])
	d.printf("block %v: magic %#08x, checksum %#08x (computed %#08x), uuid %v, address %v, generation %d\n",
		a, h.Magic, h.CRC, format.Checksum(n[:]), h.UUID, h.Addr, h.Generation)
	ptr := format.ChildPtr{Addr: a, Generation: h.Generation}
	if n.Level() > format.MaxLevel {
		d.printf("level %d is impossible\n", n.Level())
		return
	}
	if err := n.Validate(d.c.sb.UUID, ptr, n.Level(), format.Key{}, format.MaxKey); err != nil {
		d.printf("%v\n", err)
		return
	}
	d.printf("level %d, %d entries, %d bytes\n", n.Level(), n.Count(), n.UsedBytes())
	for i := range n.Count() {
		if n.Level() == 0 {
			d.item(n.Key(i), n.Value(i))
		} else {
			d.printf("%v -> block %v generation %d\n", n.Key(i), n.Child(i).Addr, n.Child(i).Generation)
		}
	}
}

func (d *dumper) items(keys keyRange) {
	d.c.checkLog()
	it := d.c.newItems()
	it.seek(keys.low)
	for it.next() && !keys.high.Less(it.key) && d.err == nil {
		d.item(it.key, it.value)
	}
}

// item shows one item; what cannot be decoded in hexadecimal.
func (d *dumper) item(k format.Key, v []byte) {
	d.printf("%v ", k)
	blocks := d.c.sb.VolumeBlocks
	switch k.Kind {
	case format.KindInode:
		if n, err := format.DecodeInode(v); err == nil {
			d.printf("%+v\n", n)
			return
		}
	case format.KindDirent:
		if e, err := format.DecodeDirent(v); err == nil {
			d.printf("%q -> inode %d, %s\n", e.Name, e.Ino, typeName(e.Type))
			return
		}
	case format.KindXattr:
		if h, err := format.DecodeXattrHead(v); err == nil && k.Offset%format.XattrProbeStep == 0 {
			d.printf("%q = %d bytes, begins %.32q\n", h.Name, h.ValueBytes, h.Value)
			return
		}
	case format.KindExtent:
		if e, err := format.DecodeExtentItem(k, v, blocks); err == nil {
			d.printf("blocks %v to %v, flags %#x, birth %d\n", e.Start, e.Run().End()-1, e.Flags, e.Birth)
			return
		}
	case format.KindRefcount:
		if r, err := format.DecodeRefcountItem(k, v, blocks); err == nil {
			run := format.Run{Start: format.Addr(k.Offset), Blocks: uint64(r.Blocks)}
			d.printf("%s have %d owners\n", blocksName(run), r.Owners)
			return
		}
	case format.KindOrphan:
		if o, err := format.DecodeOrphan(v); err == nil {
			d.printf("orphan of kind %d\n", o.Kind)
			return
		}
	case format.KindGroup:
		if g, err := format.DecodeGroupItem(k, v, blocks); err == nil {
			d.printf("%d free, bitmap in slot %d, generation %d, checksum %#08x\n", g.Free, g.Slot, g.Generation, g.CRC)
			return
		}
	}
	d.printf("%d bytes %.64x\n", len(v), v)
}

func (d *dumper) group(g uint64) {
	c := d.c
	if g >= format.Groups(c.sb.VolumeBlocks) {
		d.printf("group %d: the volume has %d groups\n", g, format.Groups(c.sb.VolumeBlocks))
		return
	}
	d.printf("group %d: %d blocks from %v on\n", g, format.GroupSize(g, c.sb.VolumeBlocks), format.GroupStart(g))
	c.win.init(g, 1, c.sb.VolumeBlocks)
	c.rep.limit = defaultMaxFindings
	st := c.readGroupItems()[0]
	if st.has {
		d.item(format.GroupKey(g), st.item.Append(nil))
	} else {
		d.printf("no item: pristine\n")
	}
	var b bitmap
	if c.readBitmap(g, &st, &b) {
		b.runs(format.GroupBlocks, func(i, n int) {
			d.printf("in use: %s\n", blocksName(format.Run{Start: format.GroupStart(g) + format.Addr(i), Blocks: uint64(n)}))
		})
	}
	for i := range c.rep.Findings {
		d.printf("%v\n", &c.rep.Findings[i])
	}
}

func (d *dumper) log() {
	l := d.c.newLogChain()
	for d.err == nil {
		ok, err := l.next()
		if err != nil {
			d.printf("%v\n", err)
			return
		}
		if !ok {
			d.printf("end of the log: no record %d at position %d\n", l.seq, l.pos)
			return
		}
		r := &l.rec
		d.printf("record %d at position %d: %d bytes, transactions %d to %d, next object %d\n",
			r.Seq, l.at, r.Length, r.FirstLSN, r.LastLSN, r.NextObject)
		err = r.Transactions(l.record(), func(lsn uint64) error {
			d.printf("transaction %d\n", lsn)
			return d.err
		}, func(o *format.Op) error {
			switch o.Code {
			case format.OpPut:
				d.printf("  put ")
				d.item(o.Key, o.Value)
			case format.OpDelete:
				d.printf("  delete %v\n", o.Key)
			case format.OpClaim:
				d.printf("  claim %s\n", blocksName(o.Run))
			case format.OpFree:
				d.printf("  free %s\n", blocksName(o.Run))
			}
			return d.err
		})
		if err != nil {
			d.printf("%v\n", err)
			return
		}
	}
}
