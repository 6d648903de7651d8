package format

// A log record is a batch of whole transactions, written in one piece at a
// block of the log region:
//
//	 0        40      48       52    56        64       72       80     96
//	┌────────┬───────┬────────┬─────┬─────────┬────────┬────────┬──────┬─────────────────────┬───────┐
//	│ header │ sequ- │ length │ txs │ first   │ last   │ next   │ zero │ transactions …      │ zero  │
//	│        │ ence  │ bytes  │     │ LSN     │ LSN    │ object │      │                     │       │
//	└────────┴───────┴────────┴─────┴─────────┴────────┴────────┴──────┴─────────────────────┴───────┘
//	└──────────────── length, covered by the CRC ────────────────────────────────────────────┘ block end
//
// The header's generation is the log epoch. The next record begins at the
// next block, or at the start of the region if it does not fit there; it has
// the next sequence number and the same epoch. A record is valid only if it
// stands where the chain leads, so nothing stale is ever replayed.
//
// A transaction:
//
//	 0        4      8      16
//	┌────────┬──────┬──────┬────────┬────────┬───┐
//	│ length │ ops  │ LSN  │ op     │ op     │ … │
//	└────────┴──────┴──────┴────────┴────────┴───┘
//
// An op is a code byte and its operands:
//
//	put     key [17]  length u16  value [length]
//	delete  key [17]
//	claim   address u64  blocks u32
//	free    address u64  blocks u32
type Record struct {
	Header
	Seq        uint64
	Length     uint32 // bytes, including the header
	Txs        uint32
	FirstLSN   uint64
	LastLSN    uint64
	NextObject uint64
}

// Sizes of a record.
const (
	RecordHeaderBytes = 96
	TxHeaderBytes     = 16
	// MaxRecordBlocks bounds a record and so the memory of a reader.
	MaxRecordBlocks = 256

	recSeq    = 40
	recLength = 48
	recTxs    = 52
	recFirst  = 56
	recLast   = 64
	recNext   = 72
	recEnd    = 80
)

// Blocks returns how many blocks the record takes.
func (r *Record) Blocks() uint32 { return (r.Length + BlockSizeBytes - 1) / BlockSizeBytes }

// OpCode is the kind of a logged operation.
type OpCode uint8

// The logged operations.
const (
	OpPut    OpCode = 1
	OpDelete OpCode = 2
	OpClaim  OpCode = 3
	OpFree   OpCode = 4
)

// Op is one decoded operation; Value is a part of the record.
type Op struct {
	Code  OpCode
	Key   Key
	Value []byte
	Run   Run
}

// AppendPut, AppendDelete, AppendClaim and AppendFree encode operations.
func AppendPut(b []byte, k Key, value []byte) []byte {
	b = appendKeyOp(b, OpPut, k)
	b = le.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

// AppendDelete encodes the deletion of an item.
func AppendDelete(b []byte, k Key) []byte { return appendKeyOp(b, OpDelete, k) }

// AppendClaim encodes that a run of blocks is in use from now on.
func AppendClaim(b []byte, r Run) []byte { return appendRunOp(b, OpClaim, r) }

// AppendFree encodes that a run of blocks is no longer in use.
func AppendFree(b []byte, r Run) []byte { return appendRunOp(b, OpFree, r) }

func appendKeyOp(b []byte, code OpCode, k Key) []byte {
	var key [KeyBytes]byte
	PutKey(key[:], k)
	return append(append(b, byte(code)), key[:]...)
}

func appendRunOp(b []byte, code OpCode, r Run) []byte {
	b = le.AppendUint64(append(b, byte(code)), uint64(r.Start))
	return le.AppendUint32(b, uint32(r.Blocks))
}

// PutTxHeader completes a transaction: b begins with TxHeaderBytes of room,
// behind which the operations stand.
func PutTxHeader(b []byte, ops int, lsn uint64) {
	le.PutUint32(b, uint32(len(b)))
	le.PutUint32(b[4:], uint32(ops))
	le.PutUint64(b[8:], lsn)
}

// Encode completes a record in b, whose first RecordHeaderBytes are room for
// the header, behind which r.Length-RecordHeaderBytes bytes of transactions
// stand. It zeroes b to the end of the last block, seals the record and
// returns those blocks.
func (r *Record) Encode(b []byte) []byte {
	b = b[:r.Blocks()*BlockSizeBytes]
	clear(b[:RecordHeaderBytes])
	clear(b[r.Length:])
	r.Magic = MagicRecord
	putHeader(b, r.Header)
	le.PutUint64(b[recSeq:], r.Seq)
	le.PutUint32(b[recLength:], r.Length)
	le.PutUint32(b[recTxs:], r.Txs)
	le.PutUint64(b[recFirst:], r.FirstLSN)
	le.PutUint64(b[recLast:], r.LastLSN)
	le.PutUint64(b[recNext:], r.NextObject)
	r.CRC = Checksum(b[:r.Length])
	le.PutUint32(b[hdrCRC:], r.CRC)
	return b
}

// DecodeRecordHeader reads the header of what may be a record from its first
// block. It returns false unless magic, UUID, address and epoch are right and
// the lengths possible; the CRC, which needs the whole record, is not checked.
func DecodeRecordHeader(b []byte, uuid UUID, addr Addr, epoch uint64) (Record, bool) {
	r := Record{
		Header:     ReadHeader(b),
		Seq:        le.Uint64(b[recSeq:]),
		Length:     le.Uint32(b[recLength:]),
		Txs:        le.Uint32(b[recTxs:]),
		FirstLSN:   le.Uint64(b[recFirst:]),
		LastLSN:    le.Uint64(b[recLast:]),
		NextObject: le.Uint64(b[recNext:]),
	}
	ok := r.Magic == MagicRecord && r.UUID == uuid && r.Addr == addr && r.Generation == epoch &&
		r.Length > RecordHeaderBytes && r.Length <= MaxRecordBlocks*BlockSizeBytes
	return r, ok
}

// CheckCRC verifies the checksum over the whole record in b.
func (r *Record) CheckCRC(b []byte) bool {
	return uint64(len(b)) >= uint64(r.Length) && Checksum(b[:r.Length]) == r.CRC
}

// Transactions decodes a record whose CRC is right, calling begin for each
// transaction and op for each of its operations, in order. A record that is
// sound by its CRC but not by its content gives an error that wraps
// ErrCorrupt, perhaps after some calls.
func (r *Record) Transactions(b []byte, begin func(lsn uint64) error, op func(o *Op) error) error {
	if r.FirstLSN == 0 || r.LastLSN < r.FirstLSN || r.LastLSN > maxCounter || r.NextObject > maxCounter ||
		r.LastLSN-r.FirstLSN+1 != uint64(r.Txs) {
		return Corruptf("log record %d: %d transactions from LSN %d to %d", r.Seq, r.Txs, r.FirstLSN, r.LastLSN)
	}
	d := b[RecordHeaderBytes:r.Length]
	var o Op
	for lsn := r.FirstLSN; lsn <= r.LastLSN; lsn++ {
		if len(d) < TxHeaderBytes {
			return Corruptf("log record %d: ends before transaction %d", r.Seq, lsn)
		}
		size, ops, got := uint64(le.Uint32(d)), le.Uint32(d[4:]), le.Uint64(d[8:])
		if got != lsn || size < TxHeaderBytes || size > uint64(len(d)) {
			return Corruptf("log record %d: transaction %d of %d bytes in place of %d", r.Seq, got, size, lsn)
		}
		if err := begin(lsn); err != nil {
			return err
		}
		body := d[TxHeaderBytes:size]
		for range ops {
			rest, ok := o.decode(body)
			if !ok {
				return Corruptf("log record %d: bad operation in transaction %d", r.Seq, lsn)
			}
			if err := op(&o); err != nil {
				return err
			}
			body = rest
		}
		if len(body) != 0 {
			return Corruptf("log record %d: %d bytes too many in transaction %d", r.Seq, len(body), lsn)
		}
		d = d[size:]
	}
	if len(d) != 0 {
		return Corruptf("log record %d: %d bytes behind the last transaction", r.Seq, len(d))
	}
	return nil
}

// decode reads one operation and returns what follows it.
func (o *Op) decode(b []byte) (rest []byte, ok bool) {
	if len(b) == 0 {
		return nil, false
	}
	*o = Op{Code: OpCode(b[0])}
	b = b[1:]
	switch o.Code {
	case OpPut:
		if len(b) < KeyBytes+2 {
			return nil, false
		}
		o.Key = GetKey(b)
		size := int(le.Uint16(b[KeyBytes:]))
		b = b[KeyBytes+2:]
		if size > MaxValueBytes || size > len(b) {
			return nil, false
		}
		o.Value = b[:size:size]
		return b[size:], true
	case OpDelete:
		if len(b) < KeyBytes {
			return nil, false
		}
		o.Key = GetKey(b)
		return b[KeyBytes:], true
	case OpClaim, OpFree:
		if len(b) < 12 {
			return nil, false
		}
		o.Run = Run{Addr(le.Uint64(b)), uint64(le.Uint32(b[8:]))}
		return b[12:], o.Run.Blocks > 0
	}
	return nil, false
}
