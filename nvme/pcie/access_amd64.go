package pcie

import "sync/atomic"

// Loads and stores of registers. Stores are plain, in functions that the
// compiler does not look into: one MOV, neither split nor left out, and ordered
// after all earlier stores by the processor. The stores of sync/atomic are
// exchanges here, which would read each doorbell before they write it, over
// the bus and back.

func load32(p *uint32) uint32 { return atomic.LoadUint32(p) }
func load64(p *uint64) uint64 { return atomic.LoadUint64(p) }

//go:noinline
func store32(p *uint32, v uint32) { *p = v }

//go:noinline
func store64(p *uint64, v uint64) { *p = v }
