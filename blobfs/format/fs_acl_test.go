package format

import (
	"errors"
	"slices"
	"testing"
)

func TestACL(t *testing.T) {
	owner, group, other := ACLEntry{Tag: ACLUserObj, Perm: 6}, ACLEntry{Tag: ACLGroupObj, Perm: 4}, ACLEntry{Tag: ACLOther}
	user, named := ACLEntry{Tag: ACLUser, Perm: 7, ID: 1000}, ACLEntry{Tag: ACLGroup, Perm: 5, ID: 20}
	mask := ACLEntry{Tag: ACLMask, Perm: 6}
	for _, c := range []struct {
		what string
		list []ACLEntry
		ok   bool
	}{
		{"no entries", nil, true},
		{"smallest", []ACLEntry{owner, group, other}, true},
		{"everything, users in any order", []ACLEntry{owner, user, {Tag: ACLUser, ID: 3}, group, named, named, mask, other}, true},
		{"mask alone", []ACLEntry{owner, group, mask, other}, true},
		{"no owner", []ACLEntry{group, other}, false},
		{"no group", []ACLEntry{owner, other}, false},
		{"no others", []ACLEntry{owner, group}, false},
		{"two owners", []ACLEntry{owner, owner, group, other}, false},
		{"user without a mask", []ACLEntry{owner, user, group, other}, false},
		{"group without a mask", []ACLEntry{owner, group, named, other}, false},
		{"user behind the group", []ACLEntry{owner, group, user, mask, other}, false},
		{"mask behind others", []ACLEntry{owner, group, other, mask}, false},
		{"permission that is none", []ACLEntry{owner, {Tag: ACLGroupObj, Perm: 8}, other}, false},
		{"tag that is none", []ACLEntry{owner, group, {Tag: 0x18}, other}, false},
		{"user without an ID", []ACLEntry{owner, {Tag: ACLUser, ID: ACLNoID}, group, mask, other}, false},
	} {
		b := EncodeACL(c.list)
		got, err := DecodeACL(b)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if !c.ok {
			continue
		}
		if again := EncodeACL(got); !slices.Equal(again, b) {
			t.Errorf("%s: %x is read and written as %x", c.what, b, again)
		}
		for _, bad := range [][]byte{b[:len(b)-1], append([]byte{3}, b[1:]...), b[:2]} {
			if _, err := DecodeACL(bad); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: %x is read: %v", c.what, bad, err)
			}
		}
	}
}
