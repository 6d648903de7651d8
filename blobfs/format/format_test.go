package format

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

var testUUID = UUID{0xaa, 1: 1, 15: 0xff}

func randKey(rnd *rand.Rand) Key {
	k := Key{Object: uint64(rnd.IntN(4)), Kind: Kind(rnd.IntN(4)), Offset: uint64(rnd.IntN(4))}
	if rnd.IntN(4) == 0 {
		k = Key{rnd.Uint64(), Kind(rnd.Uint32()), rnd.Uint64()}
	}
	return k
}

func TestKeyOrder(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 10000 {
		a, b := randKey(rnd), randKey(rnd)
		var ea, eb [KeyBytes]byte
		PutKey(ea[:], a)
		PutKey(eb[:], b)
		if GetKey(ea[:]) != a {
			t.Fatalf("%v does not survive encoding", a)
		}
		if a.Compare(b) != bytes.Compare(ea[:], eb[:]) {
			t.Fatalf("%v and %v sort differently encoded", a, b)
		}
		if n, ok := a.Next(); ok {
			if p, ok := n.Prev(); !ok || p != a || !a.Less(n) {
				t.Fatalf("%v, next %v, previous %v", a, n, p)
			}
		}
	}
	if _, ok := MaxKey.Next(); ok {
		t.Error("a key behind the last")
	}
	if _, ok := (Key{}).Prev(); ok {
		t.Error("a key before the first")
	}
	if n, ok := (Key{1, 255, ^uint64(0)}).Next(); !ok || n != (Key{2, 0, 0}) {
		t.Errorf("carry gives %v", n)
	}
}

type item struct {
	key   Key
	value []byte
}

// checkLeaf compares a leaf with a sorted list and validates it.
func checkLeaf(t *testing.T, n *Node, items []item) {
	t.Helper()
	c := *n
	c.SetIdentity(testUUID, 100, 5)
	Seal(c[:])
	if err := c.Validate(testUUID, ChildPtr{100, 5}, 0, Key{}, MaxKey); err != nil {
		t.Fatal(err)
	}
	if n.Count() != len(items) {
		t.Fatalf("%d items, want %d", n.Count(), len(items))
	}
	used := 0
	for i, it := range items {
		if n.Key(i) != it.key || !bytes.Equal(n.Value(i), it.value) {
			t.Fatalf("item %d is %v, want %v", i, n.Key(i), it.key)
		}
		used += ItemOverheadBytes + len(it.value)
	}
	if n.UsedBytes() != used {
		t.Fatalf("%d bytes used, want %d", n.UsedBytes(), used)
	}
}

// TestLeaf changes a leaf at random next to a sorted list.
func TestLeaf(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 2))
	for range 30 {
		var n Node
		n.Init(0)
		var items []item
		maxValue := []int{8, 100, MaxValueBytes}[rnd.IntN(3)]
		for range 400 {
			k := randKey(rnd)
			v := make([]byte, rnd.IntN(maxValue+1))
			for i := range v {
				v[i] = byte(rnd.Uint32())
			}
			i, found := n.Search(k)
			wantI, wantFound := slices.BinarySearchFunc(items, k, func(it item, k Key) int { return it.key.Compare(k) })
			if i != wantI || found != wantFound {
				t.Fatalf("search %v: %d %v, want %d %v", k, i, found, wantI, wantFound)
			}
			switch {
			case found && rnd.IntN(2) == 0:
				n.Remove(i)
				items = slices.Delete(items, i, i+1)
			case found:
				fits := n.UsedBytes()-len(items[i].value)+len(v) <= NodeBodyBytes
				if n.Replace(i, v) != fits {
					t.Fatalf("replace: fits %v", fits)
				}
				if fits {
					items[i].value = v
				}
			default:
				fits := n.UsedBytes()+ItemOverheadBytes+len(v) <= NodeBodyBytes
				if n.Insert(i, k, v) != fits {
					t.Fatalf("insert: fits %v", fits)
				}
				if fits {
					items = slices.Insert(items, i, item{k, v})
					break
				}
				// Split as the tree does, and go on with one of the halves.
				from, right := n.SplitPoint(i, ItemOverheadBytes+len(v))
				var upper Node
				upper.Init(0)
				n.CopyTail(&upper, from)
				n.Truncate(from)
				target, at := &n, i
				if right {
					target, at = &upper, i-from
				}
				if !target.Insert(at, k, v) {
					t.Fatalf("item of %d bytes does not fit after a split", len(v))
				}
				items = slices.Insert(items, i, item{k, v})
				cut := n.Count()
				checkLeaf(t, &n, items[:cut])
				checkLeaf(t, &upper, items[cut:])
				if items = items[:cut]; upper.Count() > 0 && rnd.IntN(2) == 0 {
					n = upper
					items = nil
					for i := range n.Count() {
						items = append(items, item{n.Key(i), slices.Clone(n.Value(i))})
					}
				}
			}
			checkLeaf(t, &n, items)
		}
	}
}

func TestInteriorNode(t *testing.T) {
	var n Node
	n.Init(3)
	for i := range MaxChildren {
		at, found := n.Search(Key{Object: uint64(i) * 10})
		if found || at != i || !n.InsertChild(at, Key{Object: uint64(i) * 10}, ChildPtr{Addr(i + 1000), uint64(i)}) {
			t.Fatalf("entry %d", i)
		}
	}
	if n.InsertChild(5, Key{Object: 45}, ChildPtr{}) {
		t.Fatal("a full node took another entry")
	}
	for object, want := range map[uint64]int{0: 0, 9: 0, 10: 1, 11: 1, 1209: 120, 1210: 121, 1 << 40: 121} {
		if got := n.ChildIndex(Key{Object: object}); got != want {
			t.Errorf("object %d leads to entry %d, want %d", object, got, want)
		}
	}
	n.Remove(0)
	if got := n.ChildIndex(Key{}); got != 0 || n.Child(0).Addr != 1001 {
		t.Errorf("after removal the first entry is %d, %v", got, n.Child(0))
	}
	n.SetIdentity(testUUID, 7, 9)
	Seal(n[:])
	ptr := ChildPtr{7, 9}
	if err := n.Validate(testUUID, ptr, 3, Key{}, MaxKey); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"uuid":       n.Validate(UUID{}, ptr, 3, Key{}, MaxKey),
		"address":    n.Validate(testUUID, ChildPtr{8, 9}, 3, Key{}, MaxKey),
		"generation": n.Validate(testUUID, ChildPtr{7, 8}, 3, Key{}, MaxKey),
		"level":      n.Validate(testUUID, ptr, 2, Key{}, MaxKey),
		"low":        n.Validate(testUUID, ptr, 3, Key{Object: 11}, MaxKey),
		"high":       n.Validate(testUUID, ptr, 3, Key{}, Key{Object: 1209}),
	} {
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("wrong %s: %v", name, err)
		}
	}
	n[2000] ^= 1
	if err := n.Validate(testUUID, ptr, 3, Key{}, MaxKey); !errors.Is(err, ErrCorrupt) {
		t.Errorf("flipped bit: %v", err)
	}
}

func testSuperblock() *Superblock {
	start, blocks := DefaultLog(100000, 0)
	return &Superblock{
		Header: Header{UUID: testUUID, Generation: 77}, VolumeBlocks: 100000, Root: ChildPtr{50000, 76}, RootCRC: 0x12345678, RootLevel: 2,
		Nodes: 5, LogStart: start, LogBlocks: blocks, LogPos: 3, LogEpoch: 4, LogSeq: 5, LSN: 6, NextObject: 7, CreatedNs: -8, MountedNs: 9,
		WrittenNs: 10, Mounts: 11, Label: "a label", HashSeed: [16]byte{1, 15: 2}, Flags: FlagClean, Compat: 1 << 63, ReadOnlyCompat: 1,
	}
}

func TestSuperblock(t *testing.T) {
	want := testSuperblock()
	b := make([]byte, BlockSizeBytes)
	want.Encode(b, 2)
	got, err := DecodeSuperblock(b, 2, 100000)
	if err != nil {
		t.Fatal(err)
	}
	if *got != *want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if err := got.CheckWritable(); !errors.Is(err, ErrReadOnlyFeature) {
		t.Errorf("unknown read-only-compatible feature: %v", err)
	}
	for name, c := range map[string]struct {
		change func(s *Superblock)
		want   error
	}{
		"incompat":    {func(s *Superblock) { s.Incompat = 1 << 45 }, ErrFeature},
		"volume size": {func(s *Superblock) { s.VolumeBlocks = 100001 }, ErrCorrupt},
		"tiny":        {func(s *Superblock) { s.VolumeBlocks = 100 }, ErrCorrupt},
		"root":        {func(s *Superblock) { s.Root.Addr = 100000 }, ErrCorrupt},
		"root fixed":  {func(s *Superblock) { s.Root.Addr = BitmapAddr(1, 1) }, ErrCorrupt},
		"root layer":  {func(s *Superblock) { s.Root.Addr |= 1 << 48 }, ErrCorrupt},
		"root gen":    {func(s *Superblock) { s.Root.Generation = 78 }, ErrCorrupt},
		"level":       {func(s *Superblock) { s.RootLevel = MaxLevel + 1 }, ErrCorrupt},
		"log":         {func(s *Superblock) { s.LogBlocks = 1 << 20 }, ErrCorrupt},
		"log start":   {func(s *Superblock) { s.LogStart = 0 }, ErrCorrupt},
		"log pos":     {func(s *Superblock) { s.LogPos = s.LogBlocks }, ErrCorrupt},
		"nodes":       {func(s *Superblock) { s.Nodes = 0 }, ErrCorrupt},
		"counter":     {func(s *Superblock) { s.LSN = 1 << 63 }, ErrCorrupt},
	} {
		s := testSuperblock()
		c.change(s)
		s.Encode(b, 0)
		if _, err := DecodeSuperblock(b, 0, 100000); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	testSuperblock().Encode(b, 0)
	if _, err := DecodeSuperblock(b, 1, 100000); !errors.Is(err, ErrCorrupt) {
		t.Errorf("wrong slot: %v", err)
	}
	le.PutUint32(b[sbVersion:], 2)
	Seal(b)
	if _, err := DecodeSuperblock(b, 0, 100000); !errors.Is(err, ErrVersion) {
		t.Errorf("version: %v", err)
	}
}

func TestBestSuperblock(t *testing.T) {
	encode := func(slot int, change func(s *Superblock)) []byte {
		s := testSuperblock()
		change(s)
		b := make([]byte, BlockSizeBytes)
		s.Encode(b, slot)
		return b
	}
	zero := make([]byte, BlockSizeBytes)
	torn := encode(0, func(s *Superblock) { s.Generation = 99 })
	torn[1000] = 1
	old, now := encode(1, func(s *Superblock) {}), encode(2, func(s *Superblock) { s.Generation = 78 })
	newer := encode(3, func(s *Superblock) { s.Incompat = 1 << 45 })
	for name, c := range map[string]struct {
		slots [SuperblockSlots][]byte
		slot  int
		want  error
	}{
		"newest":         {[4][]byte{torn, old, now, zero}, 2, nil},
		"only old":       {[4][]byte{torn, old, nil, zero}, 1, nil},
		"nothing":        {[4][]byte{zero, zero, zero, zero}, -1, ErrNotBlobfs},
		"only torn":      {[4][]byte{torn, zero, zero, zero}, -1, ErrCorrupt},
		"unreadable":     {[4][]byte{}, -1, ErrCorrupt},
		"feature wins":   {[4][]byte{torn, old, now, newer}, -1, ErrFeature},
		"torn, readable": {[4][]byte{torn, zero, now, zero}, 2, nil},
	} {
		_, slot, err := BestSuperblock(c.slots, 100000)
		if slot != c.slot || !errors.Is(err, c.want) {
			t.Errorf("%s: slot %d, %v", name, slot, err)
		}
	}
}

func testRecord(txs int) (*Record, []byte) {
	b := make([]byte, 1<<20)
	n := RecordHeaderBytes
	for i := range txs {
		tx := make([]byte, TxHeaderBytes)
		tx = AppendPut(tx, Key{uint64(i), 2, 3}, bytes.Repeat([]byte{byte(i)}, i%100))
		tx = AppendDelete(tx, Key{uint64(i), 3, 3})
		tx = AppendClaim(tx, Run{Addr(i + 1), 5})
		tx = AppendFree(tx, Run{Addr(i + 1), 6})
		PutTxHeader(tx, 4, uint64(10+i))
		n += copy(b[n:], tx)
	}
	r := &Record{
		Header: Header{UUID: testUUID, Addr: 99, Generation: 3}, Seq: 8, Length: uint32(n), Txs: uint32(txs),
		FirstLSN: 10, LastLSN: uint64(9 + txs), NextObject: 1000,
	}
	return r, r.Encode(b)
}

func TestRecord(t *testing.T) {
	want, b := testRecord(300)
	if len(b)%BlockSizeBytes != 0 || len(b) != int(want.Blocks())*BlockSizeBytes {
		t.Fatalf("record takes %d bytes", len(b))
	}
	got, ok := DecodeRecordHeader(b, testUUID, 99, 3)
	if !ok || got != *want || !got.CheckCRC(b) {
		t.Fatalf("decoded %+v, want %+v", got, want)
	}
	txs, ops := 0, 0
	err := got.Transactions(b, func(lsn uint64) error {
		if lsn != uint64(10+txs) || ops != 4*txs {
			t.Errorf("transaction %d has LSN %d", txs, lsn)
		}
		txs++
		return nil
	}, func(o *Op) error {
		i := txs - 1
		want := []Op{
			{OpPut, Key{uint64(i), 2, 3}, bytes.Repeat([]byte{byte(i)}, i%100), Run{}}, {OpDelete, Key{uint64(i), 3, 3}, nil, Run{}},
			{OpClaim, Key{}, nil, Run{Addr(i + 1), 5}}, {OpFree, Key{}, nil, Run{Addr(i + 1), 6}},
		}[ops%4]
		if o.Code != want.Code || o.Key != want.Key || !bytes.Equal(o.Value, want.Value) || o.Run != want.Run {
			t.Errorf("operation %d is %+v, want %+v", ops, o, want)
		}
		ops++
		return nil
	})
	if err != nil || txs != 300 || ops != 1200 {
		t.Errorf("%d transactions, %d operations, %v", txs, ops, err)
	}
	for name, ok := range map[string]bool{
		"uuid":    second(DecodeRecordHeader(b, UUID{}, 99, 3)),
		"address": second(DecodeRecordHeader(b, testUUID, 98, 3)),
		"epoch":   second(DecodeRecordHeader(b, testUUID, 99, 4)),
	} {
		if ok {
			t.Errorf("record with another %s was taken", name)
		}
	}
	b[5000] ^= 4
	if got.CheckCRC(b) {
		t.Error("damage in the second block was not noticed")
	}
}

func second(_ Record, ok bool) bool { return ok }

// FuzzRecord decodes records whose checksum is right and whose content is not.
func FuzzRecord(f *testing.F) {
	_, b := testRecord(3)
	f.Add(b[RecordHeaderBytes:400], uint32(400), uint64(10), uint64(12))
	f.Fuzz(func(t *testing.T, body []byte, length uint32, first, last uint64) {
		if len(body) > 1<<16 {
			return
		}
		buf := make([]byte, 1<<17)
		copy(buf[RecordHeaderBytes:], body)
		r := Record{Length: min(max(length, RecordHeaderBytes+1), 1<<16), FirstLSN: first, LastLSN: last, Txs: uint32(last - first + 1)}
		ops := 0
		err := r.Transactions(buf, func(uint64) error { return nil }, func(o *Op) error {
			if ops++; ops > 1<<16 {
				t.Fatal("more operations than bytes")
			}
			return nil
		})
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	})
}

// FuzzNode validates arbitrary blocks and uses those that pass.
func FuzzNode(f *testing.F) {
	var leaf Node
	leaf.Init(0)
	leaf.Insert(0, Key{1, 2, 3}, []byte("value"))
	leaf.Insert(1, Key{4, 2, 3}, []byte("other value"))
	f.Add(leaf[nodeLevel:nodeBody], leaf[nodeBody:nodeBody+100], leaf[4000:])
	f.Fuzz(func(t *testing.T, head, slots, heap []byte) {
		var n Node
		copy(n[nodeLevel:nodeBody], head)
		copy(n[nodeBody:], slots)
		copy(n[max(BlockSizeBytes-len(heap), nodeBody):], heap)
		n.SetIdentity(testUUID, 9, 9)
		Seal(n[:])
		if err := n.Validate(testUUID, ChildPtr{9, 9}, n.Level(), Key{}, MaxKey); err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if n.Level() > 0 {
			for i := range n.Count() {
				n.Child(i)
			}
			n.InsertChild(n.ChildIndex(Key{Object: 5}), Key{Object: 5}, ChildPtr{})
			return
		}
		for i := 0; i < n.Count(); i++ {
			n.Replace(i, append(n.Value(i), 1, 2, 3))
		}
		for k := range uint64(40) {
			if i, found := n.Search(Key{Object: k}); !found && !n.Insert(i, Key{Object: k}, make([]byte, 50)) {
				var upper Node
				upper.Init(0)
				from, _ := n.SplitPoint(i, 71)
				n.CopyTail(&upper, from)
				n.Truncate(from)
			}
		}
		for n.Count() > 0 {
			n.Remove(n.Count() / 2)
		}
	})
}

func TestGroupsAndRuns(t *testing.T) {
	sb := testSuperblock()
	for _, c := range []struct{ device, usable uint64 }{
		{GroupBlocks, GroupBlocks}, {GroupBlocks + 63, GroupBlocks}, {GroupBlocks + 64, GroupBlocks + 64}, {1 << 50, MaxBlocks - MaxBlocks%GroupBlocks},
	} {
		if got := UsableBlocks(c.device); got != c.usable && c.device != 1<<50 {
			t.Errorf("device of %d blocks: %d usable, want %d", c.device, got, c.usable)
		}
		if got := UsableBlocks(UsableBlocks(c.device)); got != UsableBlocks(c.device) {
			t.Errorf("device of %d blocks: not stable", c.device)
		}
	}
	for a, fixed := range map[Addr]bool{
		0: true, 12: true, 15: true, 16: true, 17: true, sb.LogStart + Addr(sb.LogBlocks) - 1: true, sb.LogStart + Addr(sb.LogBlocks): false,
		GroupBlocks: false, GroupBlocks + 16: true, GroupBlocks + 17: true, GroupBlocks + 18: false,
	} {
		if sb.IsFixed(a) != fixed {
			t.Errorf("block %v: fixed %v", a, !fixed)
		}
	}
	item := GroupItem{Free: 7, Slot: 1, CRC: 8, Generation: 9}
	got, err := DecodeGroupItem(GroupKey(2), item.Append(nil), 100000)
	if err != nil || got != item {
		t.Errorf("group item: %+v, %v", got, err)
	}
	if _, err := DecodeGroupItem(GroupKey(4), item.Append(nil), 100000); !errors.Is(err, ErrCorrupt) {
		t.Errorf("group behind the end: %v", err)
	}
	e := ExtentItem{Start: 40000, Blocks: 10, Flags: ExtentUnwritten, Birth: 3}
	k := Key{9, KindExtent, 5}
	if got, err := DecodeExtentItem(k, e.Append(nil), 100000); err != nil || got != e || !got.Unwritten() {
		t.Errorf("extent: %+v, %v", got, err)
	}
	for _, bad := range []ExtentItem{
		{Start: 99995, Blocks: 10}, {Start: 0, Blocks: 1}, {Start: 5, Blocks: 0}, {Start: 1<<48 | 5, Blocks: 1}, {Start: 5, Blocks: 1, Flags: 4},
		{Start: 5, Blocks: 1, Flags: ExtentShared | ExtentUnwritten},
	} {
		if _, err := DecodeExtentItem(k, bad.Append(nil), 100000); !errors.Is(err, ErrCorrupt) {
			t.Errorf("extent %+v: %v", bad, err)
		}
	}
	if e.Flags = ExtentShared; !e.Shared() || e.Unwritten() {
		t.Errorf("extent %+v is not shared", e)
	}
	if _, err := DecodeExtentItem(k, e.Append(nil), 100000); err != nil {
		t.Errorf("shared extent: %v", err)
	}
	testRefcountItem(t)
	u, err := ParseUUID(testUUID.String())
	if err != nil || u != testUUID {
		t.Errorf("UUID %v: %v, %v", testUUID, u, err)
	}
	for _, bad := range []string{"", "aa010000-0000-0000-0000-0000000000fg", "aa0100000000-0000-0000-0000-0000000000f"} {
		if _, err := ParseUUID(bad); err == nil {
			t.Errorf("%q was taken for a UUID", bad)
		}
	}
}

func testRefcountItem(t *testing.T) {
	t.Helper()
	const blocks = 100000
	r := RefcountItem{Blocks: 10, Owners: 3}
	k := RefcountKey(40000)
	if got, err := DecodeRefcountItem(k, r.Append(nil), blocks); err != nil || got != r {
		t.Errorf("refcount item: %+v, %v", got, err)
	}
	reserved := r.Append(nil)
	reserved[5] = 1
	for name, bad := range map[string][]byte{
		"empty": RefcountItem{Owners: 2}.Append(nil), "one owner": RefcountItem{Blocks: 1, Owners: 1}.Append(nil),
		"too many owners": RefcountItem{Blocks: 1, Owners: 1 << 63}.Append(nil), "too long": RefcountItem{Blocks: 60001, Owners: 2}.Append(nil),
		"reserved bytes": reserved, "short": reserved[:15],
	} {
		if _, err := DecodeRefcountItem(k, bad, blocks); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
