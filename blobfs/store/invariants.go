package store

import (
	"fmt"

	"runsc-fs/blobfs/format"
)

// checkPath panics if the nodes on the way to k are not as they should be
// after a change: sound, dirty as far as the change went, and linked.
func (s *Store) checkPath(k format.Key) {
	var p treePath
	if err := s.walk(&p, k); err != nil {
		return // a node that cannot be read is not the change's fault
	}
	for d := 0; d <= p.depth; d++ {
		n := p.steps[d].n
		c := *n.data
		c.SetIdentity(s.sb.UUID, n.addr, n.gen)
		format.Seal(c[:])
		sp := p.spanAt(d)
		if err := c.Validate(s.sb.UUID, n.ptr(), s.root.data.Level()-d, sp.low, sp.high); err != nil {
			panic(fmt.Sprintf("store: after a change at %v: %v", k, err))
		}
		if d > 0 && p.steps[d-1].n.data.Child(p.steps[d-1].i) != n.ptr() {
			panic(fmt.Sprintf("store: after a change at %v: node %v is not what its parent leads to", k, n.addr))
		}
	}
}
