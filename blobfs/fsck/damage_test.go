package fsck

import (
	"bytes"
	"strings"
	"testing"

	"runsc-fs/blobfs/format"
)

// A damage is one way to hurt the sample volume, and what the checker must say.
type damage struct {
	name   string
	before func(im *image) // changes items
	after  func(im *image) // changes the volume
	want   string          // codes, sorted
}

func TestDamage(t *testing.T) {
	for _, group := range [][]damage{superblockDamage, treeDamage, logDamage, inodeDamage, xattrDamage, extentDamage, directoryDamage, spaceDamage, sharedDamage} {
		for _, d := range group {
			t.Run(d.name, func(t *testing.T) {
				im := sample()
				if d.before != nil {
					d.before(im)
				}
				im.build(3)
				if d.after != nil {
					d.after(im)
				}
				r := check(t, im.dev, Options{})
				if got := strings.Join(codes(r), " "); got != d.want {
					t.Errorf("found %q, not %q", got, d.want)
					for i := range r.Findings {
						t.Logf("%v", &r.Findings[i])
					}
				}
			})
		}
	}
}

func setInode(ino uint64, change func(n *format.Inode)) func(im *image) {
	return func(im *image) {
		n, err := format.DecodeInode(im.items[inodeKey(ino)])
		if err != nil {
			panic(err)
		}
		change(&n)
		im.inode(ino, n)
	}
}

func setItem(k format.Key, change func(v []byte) []byte) func(im *image) {
	return func(im *image) { im.items[k] = change(bytes.Clone(im.items[k])) }
}

func remove(keys ...format.Key) func(im *image) {
	return func(im *image) {
		for _, k := range keys {
			if im.items[k] == nil {
				panic("no item " + k.String())
			}
			delete(im.items, k)
		}
	}
}

func both(fns ...func(im *image)) func(im *image) {
	return func(im *image) {
		for _, fn := range fns {
			fn(im)
		}
	}
}

func entryKey(dir uint64, name string) format.Key {
	k, _ := direntItem(dir, name, 1, format.ModeRegular)
	return k
}

func extentKey(ino, block uint64) format.Key {
	return format.Key{Object: ino, Kind: format.KindExtent, Offset: block}
}

func xattrKey(name string) format.Key {
	return format.Key{Object: inoFile, Kind: format.KindXattr, Offset: format.XattrOffset(format.NameHash(&imageSeed, []byte(name)))}
}

func orphanKey(ino uint64) format.Key { return format.Key{Kind: format.KindOrphan, Offset: ino} }

func flipSlot(slot int) func(im *image) {
	return func(im *image) { im.dev.block(format.SuperblockAddr(slot))[300] ^= 1 }
}

var superblockDamage = []damage{
	{"other copy", nil, flipSlot(2), "(superblock-copy)"},
	{"older pair", nil, both(flipSlot(1), flipSlot(3)), "(superblock-copy) (superblock-copy)"},
	{"all but one", nil, both(flipSlot(1), flipSlot(2), flipSlot(3)), "(superblock-copy) (superblock-copy) (superblock-copy) superblock-few?"},
	{"all", nil, both(flipSlot(0), flipSlot(1), flipSlot(2), flipSlot(3)), "superblock"},
	{"unreadable", nil, func(im *image) { im.dev.failing[4] = true }, "superblock-io?"},
	{"interrupted pair", nil, func(im *image) {
		im.sb.Generation--
		im.sb.Encode(im.dev.block(format.SuperblockAddr(2)), 2)
	}, "(superblock-copy)"},
	{"differing copies", nil, func(im *image) {
		im.sb.Label = "other"
		im.sb.Encode(im.dev.block(format.SuperblockAddr(2)), 2)
	}, "superblock-differs"},
	{"foreign", nil, func(im *image) {
		im.sb.UUID[3]++
		im.sb.Generation--
		im.sb.Root.Generation--
		im.sb.Encode(im.dev.block(format.SuperblockAddr(1)), 1)
	}, "superblock-foreign?"},
	{"reserved", nil, func(im *image) {
		im.patch(format.SuperblockAddr(0), 400, 1)
		im.patch(format.SuperblockAddr(2), 400, 1)
	}, "reserved?"},
	{"read-only feature", func(im *image) { im.sb.ReadOnlyCompat = 1 << 7 }, nil, "(feature)"},
	{"node count", nil, func(im *image) { im.sb.Nodes++; im.superblocks() }, "node-count"},
	{"closed with a log", func(im *image) { im.sb.Flags = format.FlagClean }, func(im *image) { im.record(newTx()) }, "log-clean"},
}

// fileLeaf is the leaf with the inode of /file.
func fileLeaf(im *image) builtNode { return im.leafOf(inodeKey(inoFile)) }

const (
	nodeLevelOff = 40
	nodeBodyOff  = 64
)

var treeDamage = []damage{
	{"checksum", nil, func(im *image) { im.dev.block(fileLeaf(im).addr)[1000] ^= 1 }, "(incomplete) node-corrupt"},
	{"unreadable", nil, func(im *image) { im.dev.failing[uint64(fileLeaf(im).addr)] = true }, "(incomplete) node-io"},
	{"never written", nil, func(im *image) { clear(im.dev.block(fileLeaf(im).addr)) }, "(incomplete) node-corrupt"},
	{"misplaced", nil, func(im *image) {
		copy(im.dev.block(fileLeaf(im).addr), im.levels[0][0].node[:])
	}, "(incomplete) node-corrupt"},
	{"lost write", nil, func(im *image) {
		n := fileLeaf(im)
		n.node.SetIdentity(im.sb.UUID, n.addr, imageGen-1)
		im.reseal(n)
	}, "(incomplete) node-generation"},
	{"younger than its parent", nil, func(im *image) {
		root := im.levels[len(im.levels)-1][0]
		n := im.levels[len(im.levels)-2][0]
		n.node.SetIdentity(im.sb.UUID, n.addr, imageGen+1)
		root.node.SetChild(0, format.ChildPtr{Addr: n.addr, Generation: imageGen + 1})
		im.reseal(n)
		im.reseal(root)
	}, "node-generation"},
	{"level", nil, func(im *image) { im.patch(fileLeaf(im).addr, nodeLevelOff, 1) }, "(incomplete) node-level"},
	{"key order", nil, func(im *image) {
		n := im.levels[0][2]
		n.node.SetKey(1, n.node.Key(0))
		im.reseal(n)
	}, "(incomplete) node-content"},
	{"key bounds", nil, func(im *image) {
		n := im.levels[0][2]
		n.node.SetKey(0, format.Key{Object: 1})
		im.reseal(n)
	}, "(incomplete) node-content"},
	{"values overlap", nil, func(im *image) {
		// Two items share a value; that of the second counts for nothing.
		for _, n := range im.levels[0] {
			for i := 1; i < n.node.Count(); i++ {
				if len(n.node.Value(i)) == 0 || len(n.node.Value(i)) != len(n.node.Value(i-1)) {
					continue
				}
				slot := nodeBodyOff + i*format.ItemOverheadBytes + format.KeyBytes
				copy(n.node[slot:slot+4], n.node[slot-format.ItemOverheadBytes:])
				im.reseal(n)
				return
			}
		}
		panic("no two values of one size")
	}, "node-content orphan-linked"},
	{"pointer outside", nil, func(im *image) { im.setChild(format.Addr(imageBlocks) + 9) }, "(incomplete) node-pointer"},
	{"pointer to a fixed block", nil, func(im *image) { im.setChild(format.BitmapAddr(1, 0)) }, "(incomplete) node-pointer"},
	{"pointer to another layer", nil, func(im *image) { im.setChild(1<<48 | 600) }, "(incomplete) node-pointer"},
	{"child twice", nil, func(im *image) { im.setChild(im.levels[0][0].addr) }, "(incomplete) block-twice node-content"},
	{"wrong root", nil, func(im *image) { im.sb.RootCRC++; im.superblocks() }, "node-corrupt"},
	{"root gone", nil, func(im *image) { im.dev.block(im.sb.Root.Addr)[9] ^= 1 }, "(incomplete) node-corrupt"},
	{"reserved", nil, func(im *image) { im.patch(fileLeaf(im).addr, 50, 1) }, "reserved?"},
}

// setChild changes a pointer of the last node above the leaves.
func (im *image) setChild(a format.Addr) {
	n := im.levels[1][len(im.levels[1])-1]
	n.node.SetChild(n.node.Count()-1, format.ChildPtr{Addr: a, Generation: imageGen})
	im.reseal(n)
}

func logs(txs ...*tx) func(im *image) {
	return func(im *image) { im.record(txs...) }
}

var logDamage = []damage{
	{"middle record torn", nil, func(im *image) {
		im.record(newTx())
		im.dev.block(im.sb.LogStart + format.Addr(im.log))[90] = 0
		torn := im.log
		im.record(newTx())
		im.record(newTx())
		im.dev.block(im.sb.LogStart + format.Addr(torn))[99] ^= 1
	}, "log-broken"},
	{"unreadable", nil, func(im *image) {
		im.record(newTx())
		im.dev.failing[uint64(im.sb.LogStart)+uint64(im.log)] = true
	}, "log-io"},
	{"newer epoch", nil, func(im *image) {
		im.sb.LogEpoch += 2
		im.record(newTx())
		im.sb.LogEpoch -= 2
	}, "log-broken"},
	{"older epoch", nil, func(im *image) {
		im.sb.LogEpoch--
		im.record(newTx())
		im.sb.LogEpoch++
	}, ""},
	{"earlier lap", nil, func(im *image) {
		im.log, im.seq = 100, im.seq-3
		im.record(newTx())
	}, ""},
	{"transactions missing", nil, func(im *image) { im.lsn += 2; im.record(newTx()) }, "log-gap"},
	{"transactions twice", nil, func(im *image) {
		im.record(newTx(), newTx())
		im.lsn--
		im.record(newTx())
	}, "log-gap"},
	{"bad operation", nil, func(im *image) {
		bad := newTx()
		bad.b, bad.ops = append(bad.b, 77), 1
		im.record(bad)
	}, "log-record"},
	{"reserved", nil, func(im *image) {
		im.record(newTx())
		b := im.dev.block(im.sb.LogStart + 5)
		b[85] = 1
		r, _ := format.DecodeRecordHeader(b, im.sb.UUID, im.sb.LogStart+5, im.sb.LogEpoch)
		format.Seal(b[:r.Length])
	}, "reserved?"},
	{"group item", nil, logs(newTx().del(format.GroupKey(0))), "log-key"},
	{"deletes nothing", nil, logs(newTx().del(format.Key{Object: 500, Kind: format.KindInode})), "log-delete"},
	{"deletes twice", nil, logs(newTx().del(orphanKey(inoShrinking)), newTx().del(orphanKey(inoShrinking))), "extent-size log-delete orphan-flag"},
	{"claims what is in use", nil, logs(newTx().claim(dataStart+3, 1)), "log-claim"},
	{"claims a node", nil, func(im *image) { logs(newTx().claim(im.sb.Root.Addr, 1))(im) }, "log-claim"},
	{"claims without an owner", nil, logs(newTx().claim(dataStart+700, 2)), "block-leaked?"},
	{"claims the log", nil, logs(newTx().claim(100, 2)), "log-run"},
	{"claims outside", nil, logs(newTx().claim(imageBlocks-1, 5)), "log-run"},
	{"claims far too much", nil, logs(newTx().claim(dataStart+1000, 1<<32-1)), "log-run"},
	{"claims over a bitmap", nil, logs(newTx().claim(format.GroupBlocks+10, 20)), "log-run"},
	{"frees what is free", nil, logs(newTx().release(dataStart+700, 2)), "log-free"},
	{"frees what is owned", nil, logs(newTx().release(dataStart, 2)), "block-unmarked"},
}

var inodeDamage = []damage{
	{"root missing", remove(inodeKey(inoRoot)), nil,
		"inode-lost inode-lost inode-lost inode-lost inode-lost item-owner link-count root"},
	{"root is a file", setInode(inoRoot, func(n *format.Inode) { n.Mode, n.Parent, n.Size = format.ModeRegular, 0, 0 }), nil,
		"inode-lost inode-lost inode-lost inode-lost inode-lost item-kind link-count root"},
	{"root removed", setInode(inoRoot, func(n *format.Inode) { n.Nlink = 0 }), nil, "dir-links root"},
	{"root's parent", setInode(inoRoot, func(n *format.Inode) { n.Parent = inoDir }), nil, "root"},
	{"item too short", setItem(inodeKey(inoFIFO), func(v []byte) []byte { return v[:50] }), nil, "inode-item"},
	{"unknown flags", setItem(inodeKey(inoDev), func(v []byte) []byte { v[3] = 0x80; return v }), nil, "inode-item"},
	{"second inode", func(im *image) { im.items[format.Key{Object: inoDev, Kind: format.KindInode, Offset: 4}] = nil }, nil, "item-key"},
	{"kind of the volume", func(im *image) { im.items[format.Key{Object: inoDev, Kind: format.KindOrphan}] = nil }, nil, "item-key"},
	{"unknown kind", func(im *image) { im.items[format.Key{Object: inoDev, Kind: 99}] = nil }, nil, "item-key"},
	{"inode of the volume", func(im *image) { im.items[format.Key{Kind: format.KindInode}] = nil }, nil, "item-key"},
	{"reserved kind", func(im *image) { im.items[format.Key{Kind: format.KindSnapshot, Offset: 1}] = nil }, nil, "reserved"},
	{"number to come", func(im *image) { im.sb.NextObject = inoDev }, nil, "inode-number"},
	{"reserved number", func(im *image) {
		im.inode(5, format.Inode{Mode: format.ModeFIFO, Nlink: 1})
		im.dirent(inoDir, "five", 5, format.ModeFIFO)
		setInode(inoDir, func(n *format.Inode) { n.Size++ })(im)
	}, nil, "inode-number"},
	{"blocks of a FIFO", setInode(inoFIFO, func(n *format.Inode) { n.Blocks, n.Size, n.Rdev = 1, 1, 1 }), nil, "inode-field inode-field? inode-field?"},
	{"inline file", setInode(inoFile, func(n *format.Inode) { n.Internal |= format.InodeInlineData }), nil, "inode-field"},
	{"link not inline", setInode(inoLink, func(n *format.Inode) { n.Internal = 0 }), nil, "inode-field"},
	{"link too long", setInode(inoLink, func(n *format.Inode) { n.Size++ }), nil, "symlink"},
	{"link with a gap", remove(format.Key{Object: inoLink, Kind: format.KindInline}), nil, "symlink"},
	{"link with NUL", setItem(format.Key{Object: inoLink, Kind: format.KindInline}, func(v []byte) []byte { v[7] = 0; return v }), nil, "symlink"},
	{"inline items of a file", func(im *image) { im.items[format.Key{Object: inoFile, Kind: format.KindInline}] = []byte("x") }, nil, "item-kind"},
	{"orphan record lost", remove(orphanKey(inoDeleted)), nil, "inode-leaked orphan-flag"},
	{"orphan record invalid", setItem(orphanKey(inoDeleted), func(v []byte) []byte { v[1] = 9; return v }), nil, "inode-leaked orphan-flag orphan-item"},
	{"orphan with a name", both(setInode(inoDev, func(n *format.Inode) { n.Internal |= format.InodeOrphan }),
		func(im *image) { im.orphan(inoDev, format.OrphanUnlinked) }), nil, "orphan-linked"},
	{"orphan not flagged", setInode(inoDeleted, func(n *format.Inode) { n.Internal = 0 }), nil, "orphan-flag"},
	{"orphan without inode", func(im *image) { im.orphan(555, format.OrphanUnlinked) }, nil, "orphan-inode"},
	{"orphan behind all inodes", func(im *image) { im.orphan(1<<64-1, format.OrphanUnlinked) }, nil, "orphan-inode"},
	{"orphan to truncate", func(im *image) { im.orphan(inoDeleted, format.OrphanTruncate) }, nil, "inode-leaked orphan-kind"},
}

var xattrDamage = []damage{
	{"not flagged", setInode(inoFile, func(n *format.Inode) { n.Internal = 0 }), nil, "xattr-flag"},
	{"chunk missing", remove(addOffset(xattrKey("user.big"), 1)), nil, "xattr-chunk"},
	{"last chunk missing", remove(addOffset(xattrKey("user.big"), 2)), nil, "xattr-chunk"},
	{"chunk short", setItem(addOffset(xattrKey("user.big"), 1), func(v []byte) []byte { return v[:9] }), nil, "xattr-chunk"},
	{"chunk too many", func(im *image) { im.items[addOffset(xattrKey("user.big"), 3)] = []byte("x") }, nil, "xattr-chunk"},
	{"head missing", remove(xattrKey("user.big")), nil, "xattr-chunk"},
	{"head invalid", setItem(xattrKey("user.small"), func(v []byte) []byte { v[2] = 1; return v }), nil, "xattr-item"},
	{"misplaced", func(im *image) {
		k := xattrKey("user.small")
		im.items[addOffset(k, 1<<20)] = im.items[k]
		delete(im.items, k)
	}, nil, "xattr-place"},
	{"behind a gap", func(im *image) {
		k := xattrKey("user.small")
		im.items[addOffset(k, format.XattrProbeStep)] = im.items[k]
		delete(im.items, k)
	}, nil, "xattr-place"},
	{"twice", func(im *image) {
		k := xattrKey("user.small")
		im.items[addOffset(k, format.XattrProbeStep)] = im.items[k]
	}, nil, "xattr-twice"},
	{"access control list", setList(format.XattrAccessACL, 6, 4, 0), nil, ""},
	{"access control list is not the mode", setList(format.XattrAccessACL, 6, 6, 0), nil, "xattr-acl"},
	{"access control list without others", func(im *image) {
		im.xattr(inoFile, format.XattrAccessACL, format.EncodeACL([]format.ACLEntry{{Tag: format.ACLUserObj}, {Tag: format.ACLGroupObj}}))
	}, nil, "xattr-acl"},
	{"access control list without entries", func(im *image) {
		im.xattr(inoFile, format.XattrAccessACL, format.EncodeACL(nil))
	}, nil, "xattr-acl"},
	{"default list of a file", setList(format.XattrDefaultACL, 7, 7, 7), nil, "xattr-acl"},
	{"access control list in several chunks", func(im *image) {
		list := []format.ACLEntry{{Tag: format.ACLUserObj, Perm: 6}}
		for id := range uint32(300) {
			list = append(list, format.ACLEntry{Tag: format.ACLUser, Perm: 7, ID: id})
		}
		list = append(list, format.ACLEntry{Tag: format.ACLGroupObj}, format.ACLEntry{Tag: format.ACLMask, Perm: 4}, format.ACLEntry{Tag: format.ACLOther, Perm: 1})
		im.xattr(inoFile, format.XattrAccessACL, format.EncodeACL(list))
		setInode(inoFile, func(n *format.Inode) { n.Mode = format.ModeRegular | 0o641 })(im)
	}, nil, ""},
}

// setList gives the file, and the file the mode 0640, an access control list that
// would be shown as the mode of these digits.
func setList(name string, user, mask, other uint16) func(im *image) {
	return func(im *image) {
		im.xattr(inoFile, name, format.EncodeACL([]format.ACLEntry{
			{Tag: format.ACLUserObj, Perm: user}, {Tag: format.ACLUser, Perm: 7, ID: 5}, {Tag: format.ACLGroupObj, Perm: 1},
			{Tag: format.ACLMask, Perm: mask}, {Tag: format.ACLOther, Perm: other},
		}))
		setInode(inoFile, func(n *format.Inode) { n.Mode = format.ModeRegular | 0o640 })(im)
	}
}

func addOffset(k format.Key, n uint64) format.Key {
	k.Offset += n
	return k
}

func addExtent(block uint64, start format.Addr, blocks, flags uint32) func(im *image) {
	return func(im *image) {
		im.extent(inoFile, block, start, blocks, flags)
		if blocks < 1000 {
			setInode(inoFile, func(n *format.Inode) { n.Blocks += uint64(blocks) })(im)
		}
	}
}

var extentDamage = []damage{
	{"item", setItem(extentKey(inoFile, 8), func(v []byte) []byte { return v[:8] }), nil, "block-count extent-item"},
	{"unknown flag", setItem(extentKey(inoFile, 10), func(v []byte) []byte { v[12] |= 4; return v }), nil, "block-count extent-item"},
	{"overlap in the file", addExtent(3, dataStart+400, 2, 0), nil, "extent-overlap"},
	{"overlap of two files", addExtent(6, dataStart+300, 1, 0), nil, "block-twice"},
	{"overlap with a node", func(im *image) { addExtent(6, im.sb.LogStart+format.Addr(im.sb.LogBlocks)+4, 1, 0)(im) }, nil, "block-twice"},
	{"on the log", addExtent(6, 200, 1, 0), nil, "extent-bounds"},
	{"on a bitmap", addExtent(6, format.GroupBlocks+17, 1, 0), nil, "extent-bounds"},
	{"over a whole group", addExtent(1<<20, dataStart+500, format.GroupBlocks+500, format.ExtentUnwritten), nil, "block-count extent-bounds"},
	{"outside the volume", addExtent(6, imageBlocks, 1, 0), nil, "block-count extent-item"},
	{"beyond the largest file", addExtent(format.MaxFileBlocks, dataStart+400, 1, format.ExtentUnwritten), nil, "extent-bounds"},
	{"written beyond the end", addExtent(16, dataStart+400, 1, 0), nil, "extent-size"},
	{"born in the future", setItem(extentKey(inoFile, 0), func(v []byte) []byte { v[16]++; return v }), nil, "extent-birth"},
	{"block count", setInode(inoFile, func(n *format.Inode) { n.Blocks-- }), nil, "block-count"},
	{"extents of a directory", func(im *image) { im.extent(inoSub, 0, dataStart+400, 1, 0) }, nil, "item-kind"},
	{"no inode", remove(inodeKey(inoDeleted)), nil, "item-owner"},
}

var directoryDamage = []damage{
	{"entry invalid", setItem(entryKey(inoDir, "again"), func(v []byte) []byte { v[4] = 1; return v }), nil, "entry-item link-count"},
	{"entry misplaced", func(im *image) {
		k := entryKey(inoDir, "again")
		im.items[addOffset(k, 128)] = im.items[k]
		delete(im.items, k)
	}, nil, "entry-place"},
	{"entry at another probe", func(im *image) {
		k := entryKey(inoDir, "again")
		im.items[addOffset(k, 5)] = im.items[k]
		delete(im.items, k)
	}, nil, ""},
	{"entry twice", func(im *image) {
		k := entryKey(inoDir, "again")
		im.items[addOffset(k, 5)] = im.items[k]
		setInode(inoDir, func(n *format.Inode) { n.Size++ })(im)
		setInode(inoFile, func(n *format.Inode) { n.Nlink++ })(im)
	}, nil, "entry-twice"},
	{"entry lost", remove(entryKey(inoDir, "again")), nil, "dir-count link-count"},
	{"last entry lost", remove(entryKey(inoRoot, "dev")), nil, "dir-count inode-lost"},
	{"directory's entry lost", remove(entryKey(inoRoot, "dir")), nil, "dir-count dir-links inode-lost"},
	{"inode lost", remove(inodeKey(inoDev)), nil, "entry-dangling"},
	{"entry of another type", func(im *image) { im.dirent(inoRoot, "dev", inoDev, format.ModeFIFO) }, nil, "entry-type"},
	{"entry names the root", func(im *image) {
		im.dirent(inoSub, "up", inoRoot, format.ModeDir)
		setInode(inoSub, func(n *format.Inode) { n.Size, n.Nlink = 1, 3 })(im)
	}, nil, "entry-root"},
	{"entry names a removed file", func(im *image) {
		im.dirent(inoSub, "dead", inoDeleted, format.ModeRegular)
		setInode(inoSub, func(n *format.Inode) { n.Size = 1 })(im)
	}, nil, "link-count"},
	{"too many links", setInode(inoFile, func(n *format.Inode) { n.Nlink = 3 }), nil, "link-count"},
	{"too few links", setInode(inoFile, func(n *format.Inode) { n.Nlink = 1 }), nil, "link-count"},
	{"links of a directory", setInode(inoDir, func(n *format.Inode) { n.Nlink = 2 }), nil, "dir-links"},
	{"entries of a directory", setInode(inoDir, func(n *format.Inode) { n.Size = 3 }), nil, "dir-count"},
	{"entries of a file", func(im *image) { im.dirent(inoFile, "x", inoFile, format.ModeRegular) }, nil, "item-kind"},
	{"wrong parent", setInode(inoSub, func(n *format.Inode) { n.Parent = inoRoot }), nil, "dir-parent"},
	{"two parents", func(im *image) {
		im.dirent(inoRoot, "sub2", inoSub, format.ModeDir)
		setInode(inoRoot, func(n *format.Inode) { n.Size++; n.Nlink++ })(im)
	}, nil, "dir-parent dir-twice"},
	{"removed directory with entries", both(
		setInode(inoSub, func(n *format.Inode) { n.Nlink, n.Size, n.Internal = 0, 1, format.InodeOrphan }),
		setInode(inoDir, func(n *format.Inode) { n.Nlink, n.Size = 2, 1 }),
		remove(entryKey(inoDir, "sub")),
		setInode(inoDev, func(n *format.Inode) { n.Nlink = 2 }),
		func(im *image) {
			im.orphan(inoSub, format.OrphanUnlinked)
			im.dirent(inoSub, "dev", inoDev, format.ModeChar)
		}), nil, "dir-links"},
	{"removed directory with a name", both(
		setInode(inoSub, func(n *format.Inode) { n.Nlink, n.Internal = 0, format.InodeOrphan }),
		func(im *image) { im.orphan(inoSub, format.OrphanUnlinked) }), nil, "link-count"},
	{"circle", func(im *image) {
		im.inode(30, format.Inode{Mode: format.ModeDir, Nlink: 3, Size: 1, Parent: 32})
		im.inode(31, format.Inode{Mode: format.ModeDir, Nlink: 3, Size: 1, Parent: 30})
		im.inode(32, format.Inode{Mode: format.ModeDir, Nlink: 4, Size: 2, Parent: 31})
		im.inode(33, format.Inode{Mode: format.ModeDir, Nlink: 2, Parent: 32})
		im.dirent(30, "b", 31, format.ModeDir)
		im.dirent(31, "c", 32, format.ModeDir)
		im.dirent(32, "a", 30, format.ModeDir)
		im.dirent(32, "aside", 33, format.ModeDir)
	}, nil, "dir-cycle"},
}

func setGroup(change func(g *format.GroupItem)) func(im *image) {
	return func(im *image) {
		im.group = func(g *format.GroupItem, n uint64) {
			if n == 0 {
				change(g)
			}
		}
	}
}

var spaceDamage = []damage{
	{"bitmap checksum", nil, func(im *image) { im.dev.block(format.BitmapAddr(1, 1))[2000] ^= 1 }, "bitmap-corrupt"},
	{"bitmap unreadable", nil, func(im *image) { im.dev.failing[16] = true }, "bitmap-io"},
	{"old bitmap", nil, func(im *image) { im.patch(format.BitmapAddr(0, 0), 32, imageGen-1) }, "bitmap-corrupt"},
	{"another bitmap", setGroup(func(g *format.GroupItem) { g.CRC++ }), nil, "bitmap-corrupt"},
	{"bitmap of the future", setGroup(func(g *format.GroupItem) { g.Generation++ }), nil, "group-item"},
	{"empty slot", setGroup(func(g *format.GroupItem) { g.Slot = 1 }), nil, "bitmap-corrupt"},
	{"free count", setGroup(func(g *format.GroupItem) { g.Free-- }), nil, "bitmap-count"},
	{"free count impossible", setGroup(func(g *format.GroupItem) { g.Free = 40000 }), nil, "group-item"},
	{"group too many", func(im *image) { im.items[format.GroupKey(3)] = make([]byte, format.GroupItemBytes) }, nil, "group-item"},
	{"fixed blocks free", func(im *image) { im.free = []format.Run{{Start: 50, Blocks: 3}} }, nil, "bitmap-fixed"},
	{"blocks behind the end", func(im *image) { im.used = []format.Run{{Start: imageBlocks, Blocks: 1}} }, nil, "bitmap-fixed"},
	{"leak", func(im *image) { im.used = []format.Run{{Start: dataStart + 4, Blocks: 60}} }, nil, "block-leaked?"},
	{"unmarked data", func(im *image) { im.free = []format.Run{{Start: dataStart + 1, Blocks: 1}} }, nil, "block-unmarked"},
	{"unmarked node", func(im *image) {
		im.free = []format.Run{{Start: im.sb.LogStart + format.Addr(im.sb.LogBlocks) + 5, Blocks: 1}}
	}, nil, "block-unmarked"},
	{"reserved", setGroup(func(*format.GroupItem) {}), func(im *image) {
		// The item names the checksum, so this one is built with the reserved byte set.
		addr := format.BitmapAddr(0, 0)
		im.dev.block(addr)[50] = 1
		crc := format.Seal(im.dev.block(addr))
		n := im.leafOf(format.GroupKey(0))
		i, _ := n.node.Search(format.GroupKey(0))
		copy(n.node.Value(i)[8:], le32(crc))
		im.reseal(n)
	}, "reserved?"},
}

// TestPristineGroups checks that groups without an item count as empty.
func TestPristineGroups(t *testing.T) {
	im := sample()
	im.build(3)
	delete(im.items, format.GroupKey(1))
	delete(im.items, format.GroupKey(2))
	im.layout(3)
	im.superblocks()
	r := check(t, im.dev, Options{})
	// The file at the end of group 1 is in nobody's bitmap then.
	if got := strings.Join(codes(r), " "); !strings.Contains(got, "block-unmarked") {
		t.Errorf("found %q", got)
	}
	for _, f := range r.Findings {
		if f.Code == CodeBlockUnmarked && !strings.Contains(f.Message, "inode 21 (file blocks 0 to 4)") {
			t.Errorf("%v", &f)
		}
	}
}

// TestOwnersAreNamed looks at the text for blocks with several owners.
func TestOwnersAreNamed(t *testing.T) {
	im := sample()
	addExtent(6, dataStart+300, 1, 0)(im)
	r := check(t, im.build(3).dev, Options{})
	if len(r.Findings) != 1 {
		t.Fatalf("found %v", codes(r))
	}
	f := r.Findings[0]
	if f.Object != "block 20300" || !strings.Contains(f.Message, "used by inode 16 (file blocks 6 to 6), inode 20 (file blocks 0 to 0)") || f.Ino != inoFile || f.Path == "" {
		t.Errorf("%+v", f)
	}
}
