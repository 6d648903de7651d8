package format

import "encoding/binary"

// Names of the extended attributes that hold POSIX access control lists.
const (
	XattrAccessACL  = "system.posix_acl_access"
	XattrDefaultACL = "system.posix_acl_default" // of directories: what files made in it get
)

// ACLTag says whom an entry of an access control list is about.
type ACLTag uint16

// Tags, with the values of Linux's attributes.
const (
	ACLUserObj  ACLTag = 0x01 // the owner
	ACLUser     ACLTag = 0x02 // the user ID
	ACLGroupObj ACLTag = 0x04 // the group of the file
	ACLGroup    ACLTag = 0x08 // the group ID
	ACLMask     ACLTag = 0x10 // the most that users and groups get, the owner apart
	ACLOther    ACLTag = 0x20
)

// ACLNoID is the ID of entries that are not about one user or group.
const ACLNoID = 1<<32 - 1

// ACLVersion is the first word of the attributes.
const ACLVersion = 2

// ACLEntry is one entry of an access control list. Perm has the bits of one
// class of a mode: read 4, write 2, execute 1.
type ACLEntry struct {
	Tag  ACLTag
	Perm uint16
	ID   uint32
}

const (
	aclHeaderBytes = 4
	aclEntryBytes  = 8
)

// EncodeACL gives the value of the attribute for a list. It is what Linux shows
// to programs, but IDs are those of the volume:
//
//	 0               4       6       8              12      14      16
//	+---------------+-------+-------+---------------+-------+-------+----
//	| version = 2   | tag   | perm  | id            | tag   | perm  | …
//	+---------------+-------+-------+---------------+-------+-------+----
func EncodeACL(list []ACLEntry) []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, aclHeaderBytes+len(list)*aclEntryBytes)
	b = le.AppendUint32(b, ACLVersion)
	for _, e := range list {
		if e.Tag != ACLUser && e.Tag != ACLGroup {
			e.ID = ACLNoID
		}
		b = le.AppendUint16(b, uint16(e.Tag))
		b = le.AppendUint16(b, e.Perm)
		b = le.AppendUint32(b, e.ID)
	}
	return b
}

// DecodeACL reads a list and checks that it is complete and in order: the
// owner, users, the file's group, groups, a mask (which must be there if users
// or groups are), others. The error wraps ErrCorrupt. A value without entries
// is an empty list, which is stored nowhere.
func DecodeACL(b []byte) ([]ACLEntry, error) {
	le := binary.LittleEndian
	if len(b) < aclHeaderBytes || (len(b)-aclHeaderBytes)%aclEntryBytes != 0 {
		return nil, itemError("access control list", b, "length")
	}
	if le.Uint32(b) != ACLVersion {
		return nil, itemError("access control list", b, "version")
	}
	list := make([]ACLEntry, 0, len(b)/aclEntryBytes)
	for rest := b[aclHeaderBytes:]; len(rest) > 0; rest = rest[aclEntryBytes:] {
		list = append(list, ACLEntry{Tag: ACLTag(le.Uint16(rest)), Perm: le.Uint16(rest[2:]), ID: le.Uint32(rest[4:])})
	}
	if len(list) > 0 && !aclInOrder(list) {
		return nil, itemError("access control list", b, "entries")
	}
	return list, nil
}

// aclInOrder says whether a list has what every list must have, in the order
// of the tags' values.
func aclInOrder(list []ACLEntry) bool {
	var last ACLTag
	var seen ACLTag
	for _, e := range list {
		switch e.Tag {
		case ACLUser, ACLGroup:
			if e.Tag < last || e.ID == ACLNoID {
				return false
			}
		case ACLUserObj, ACLGroupObj, ACLMask, ACLOther:
			if e.Tag <= last {
				return false
			}
		default:
			return false
		}
		if e.Perm > 7 {
			return false
		}
		last = e.Tag
		seen |= e.Tag
	}
	const always = ACLUserObj | ACLGroupObj | ACLOther
	return seen&always == always && (seen&(ACLUser|ACLGroup) == 0 || seen&ACLMask != 0)
}
