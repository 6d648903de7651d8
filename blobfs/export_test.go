package blobfs

// SpaceOf is the number of blocks that are free or hold nodes of the tree.
func SpaceOf(fs *FS) uint64 {
	st := fs.store.StatFS()
	return st.FreeBlocks + st.NodeBlocks
}

// Verify checks the store below.
func Verify(fs *FS) error { return fs.store.Verify() }
