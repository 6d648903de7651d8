package nvme

// Geometry describes one namespace: what Identify Namespace and Identify
// Controller say that a store needs to know.
type Geometry struct {
	LBASizeBytes       int64 // size of one logical block: 512 or 4096
	Blocks             int64 // NSZE: size of the namespace in logical blocks
	MaxTransferBytes   int   // from MDTS; Do splits longer requests itself
	AtomicWriteBytes   int   // from AWUPF: what power loss never tears; at least LBASizeBytes
	VolatileWriteCache bool  // completed writes need a Flush (or FUA) to survive power loss
	BoundaryBytes      int64 // from NOIOB: commands that cross a multiple of it are slower, so Do splits there; 0: none
	Deallocate         bool  // Dataset Management deallocate is offered
	WriteZeroes        bool  // Write Zeroes is offered
	Compare            bool  // Namespace.Compare is offered
	Verify             bool  // Namespace.Verify is offered
	Copy               bool  // Namespace.Copy is offered
}

// SizeBytes is the capacity of the namespace.
func (g Geometry) SizeBytes() int64 { return g.LBASizeBytes * g.Blocks }

// Op is the kind of a Request.
type Op uint8

// The operations of the NVM Command Set that a store uses.
const (
	OpRead Op = iota + 1
	OpWrite
	OpFlush
	OpWriteZeroes
	OpDeallocate
)

// Request is one operation on a namespace. Offsets and lengths are in bytes
// and multiples of the logical block size.
type Request struct {
	Op          Op
	FUA         bool     // OpWrite, OpWriteZeroes: durable when complete
	OffsetBytes int64    // first byte in the namespace; unused by OpFlush
	LengthBytes int64    // OpWriteZeroes and OpDeallocate; reads and writes take the sum of Vec
	Vec         [][]byte // data of OpRead and OpWrite: pieces of the device's Arena, in order
	Err         error    // result of this request, set by Do
}

// BlockDevice is a namespace as a store sees it. All methods may be called
// concurrently.
type BlockDevice interface {
	Geometry() Geometry
	// Arena is the only memory that Vec of a request may point into.
	Arena() *Arena
	// Do carries out all requests, in no order among each other, and returns
	// when each has completed or failed, with the first error. It polls for
	// completions on the calling thread and allocates nothing.
	Do(reqs []Request) error
	// Close waits for outstanding requests and shuts the controller down.
	Close() error
}
