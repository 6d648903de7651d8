package fsck

// Code identifies a kind of finding. docs/fsck.md explains each. Codes are
// stable: programs may depend on them.
type Code string

// Superblocks.
const (
	CodeSuperblock        Code = "superblock"         // no slot holds a valid one
	CodeSuperblockIO      Code = "superblock-io"      // a slot cannot be read
	CodeSuperblockCopy    Code = "superblock-copy"    // a slot holds none, or an old one
	CodeSuperblockFew     Code = "superblock-few"     // only one valid slot
	CodeSuperblockDiffers Code = "superblock-differs" // copies of one generation differ
	CodeSuperblockForeign Code = "superblock-foreign" // a slot belongs to another volume
	CodeFeature           Code = "feature"            // read-only features we do not know
)

// The tree.
const (
	CodeNodePointer    Code = "node-pointer"    // leads outside the volume or onto a fixed structure
	CodeNodeIO         Code = "node-io"         // cannot be read
	CodeNodeCorrupt    Code = "node-corrupt"    // magic, checksum, UUID or address
	CodeNodeGeneration Code = "node-generation" // another generation than its parent says, or younger than it
	CodeNodeLevel      Code = "node-level"      // another level than its parent says
	CodeNodeContent    Code = "node-content"    // order and range of keys, places of values
	CodeNodeCount      Code = "node-count"      // the superblock says another number
	CodeReserved       Code = "reserved"        // reserved bytes, kinds or objects are in use
)

// The log.
const (
	CodeLogIO     Code = "log-io"     // cannot be read
	CodeLogRecord Code = "log-record" // sound by its checksum, not by its content
	CodeLogGap    Code = "log-gap"    // transactions are missing
	CodeLogBroken Code = "log-broken" // ends although later records exist
	CodeLogClean  Code = "log-clean"  // not empty although the volume was closed
	CodeLogKey    Code = "log-key"    // changes what only checkpoints change
	CodeLogDelete Code = "log-delete" // deletes what does not exist
	CodeLogClaim  Code = "log-claim"  // claims blocks that are in use
	CodeLogFree   Code = "log-free"   // frees blocks that are not in use
	CodeLogRun    Code = "log-run"    // claims or frees what cannot be file data
)

// Items and inodes.
const (
	CodeItemKey       Code = "item-key"       // an item where none can be
	CodeItemOwner     Code = "item-owner"     // items of an inode that does not exist
	CodeItemKind      Code = "item-kind"      // items that this type of inode cannot have
	CodeInodeItem     Code = "inode-item"     // the inode's item is invalid
	CodeInodeField    Code = "inode-field"    // a field does not fit the type
	CodeInodeNumber   Code = "inode-number"   // reserved, or not given out yet
	CodeRoot          Code = "root"           // the root directory is missing or none
	CodeSymlink       Code = "symlink"        // target incomplete or impossible
	CodeXattrItem     Code = "xattr-item"     // invalid chunk
	CodeXattrChunk    Code = "xattr-chunk"    // chunks missing, superfluous or of wrong size
	CodeXattrPlace    Code = "xattr-place"    // not where its name is looked for
	CodeXattrTwice    Code = "xattr-twice"    // two of one name
	CodeXattrFlag     Code = "xattr-flag"     // the inode says that it has none
	CodeXattrACL      Code = "xattr-acl"      // an access control list is invalid, or the mode differs
	CodeExtentItem    Code = "extent-item"    // invalid
	CodeExtentOverlap Code = "extent-overlap" // two extents for one block of a file
	CodeExtentBounds  Code = "extent-bounds"  // beyond the largest file, too long, or on a fixed structure
	CodeExtentBirth   Code = "extent-birth"   // born in a generation to come
	CodeExtentSize    Code = "extent-size"    // written blocks beyond the end of the file
	CodeBlockCount    Code = "block-count"    // the inode says another number
)

// Directories and links.
const (
	CodeEntryItem     Code = "entry-item"     // invalid
	CodeEntryPlace    Code = "entry-place"    // not where its name is looked for
	CodeEntryTwice    Code = "entry-twice"    // two of one name
	CodeEntryDangling Code = "entry-dangling" // names an inode that does not exist
	CodeEntryType     Code = "entry-type"     // says another type than the inode
	CodeEntryRoot     Code = "entry-root"     // names the root directory
	CodeDirCount      Code = "dir-count"      // the directory says another number of entries
	CodeDirLinks      Code = "dir-links"      // the link count does not fit the subdirectories
	CodeDirParent     Code = "dir-parent"     // says another parent than the one that names it
	CodeDirTwice      Code = "dir-twice"      // has several names
	CodeDirCycle      Code = "dir-cycle"      // its ancestors are a circle
	CodeLinkCount     Code = "link-count"     // the inode says another number of names
	CodeInodeLost     Code = "inode-lost"     // has no name, though it should
	CodeInodeLeaked   Code = "inode-leaked"   // has no name, and nothing will remove it
	CodeOrphanItem    Code = "orphan-item"    // invalid
	CodeOrphanInode   Code = "orphan-inode"   // the inode does not exist
	CodeOrphanLinked  Code = "orphan-linked"  // the inode has names and would be removed
	CodeOrphanKind    Code = "orphan-kind"    // the inode has no names, and the record is of another kind
	CodeOrphanFlag    Code = "orphan-flag"    // inode and record disagree on whether there is one
)

// Blocks.
const (
	CodeGroupItem     Code = "group-item"     // invalid
	CodeBitmapIO      Code = "bitmap-io"      // cannot be read
	CodeBitmapCorrupt Code = "bitmap-corrupt" // magic, checksum, UUID, address or generation
	CodeBitmapCount   Code = "bitmap-count"   // the group's item says another number of free blocks
	CodeBitmapFixed   Code = "bitmap-fixed"   // fixed structures are marked free, or blocks behind the end used
	CodeBlockTwice    Code = "block-twice"    // several owners
	CodeBlockUnmarked Code = "block-unmarked" // has an owner and is marked free
	CodeBlockLeaked   Code = "block-leaked"   // marked in use without an owner
	CodeRefcountItem  Code = "refcount-item"  // invalid
	CodeRefcountWrong Code = "refcount-wrong" // another number of owners than there are
	CodeSharedFeature Code = "shared-feature" // shared blocks that the superblock does not announce
	CodeIncomplete    Code = "incomplete"     // checks left out because metadata is unreadable
)
