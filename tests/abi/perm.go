package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// who opens a file of alice, whose group is 3000.
var who = []struct {
	name  string
	user  user
	shift uint // of the permission bits that count
}{
	{"owner", alice, 6},
	{"owner-in-group", alice.in(3000), 6},
	{"main-group", user{uid: bob.uid, gid: 3000}, 3},
	{"supplementary-group", bob.in(3000), 3},
	{"others", bob, 0},
}

// permissionChecks tries all permission bits on each class of users.
func permissionChecks() []check {
	var list []check
	for _, w := range who {
		list = append(list,
			check{"permissions/file-for-" + w.name, func(t *T) {
				t.file("file", "")
				t.ok(unix.Chown(t.p("file"), alice.uid, 3000))
				for bits := range uint32(8) {
					// Everybody else has the opposite.
					mode := bits<<w.shift | (0o777&^(7<<w.shift))&^(bits*0o111)
					t.chmod("file", mode)
					t.as(w.user, func() {
						t.wants(opens(t.p("file"), unix.O_RDONLY), bits&4 != 0, mode)
						t.wants(opens(t.p("file"), unix.O_WRONLY), bits&2 != 0, mode)
						t.wants(opens(t.p("file"), unix.O_RDWR), bits&6 == 6, mode)
						t.wants(unix.Access(t.p("file"), unix.X_OK), bits&1 != 0, mode)
						t.wants(unix.Access(t.p("file"), unix.R_OK|unix.W_OK|unix.X_OK), bits == 7, mode)
					})
				}
			}},
			check{"permissions/directory-for-" + w.name, func(t *T) {
				t.mkdir("dir")
				t.file("dir/file", "")
				t.ok(unix.Chown(t.p("dir"), alice.uid, 3000))
				for bits := range uint32(8) {
					mode := bits<<w.shift | (0o777&^(7<<w.shift))&^(bits*0o111)
					t.chmod("dir", mode)
					t.as(w.user, func() {
						t.wants(opens(t.p("dir"), unix.O_RDONLY|unix.O_DIRECTORY), bits&4 != 0, mode)
						t.wants(unix.Stat(t.p("dir/file"), new(unix.Stat_t)), bits&1 != 0, mode)
						t.wants(unix.Mkdir(t.p("dir/new"), 0o755), bits&3 == 3, mode)
						t.wants(unix.Rename(t.p("dir/file"), t.p("dir/moved")), bits&3 == 3, mode)
					})
					if bits&3 == 3 {
						t.ok(unix.Rmdir(t.p("dir/new")))
						t.ok(t.rename("dir/moved", "dir/file"))
					}
				}
			}},
		)
	}
	return list
}

// wants wants success or EACCES.
func (t *T) wants(err error, success bool, mode uint32) {
	switch {
	case success && err != nil:
		t.failf("mode %#o: got %s, want success", mode, errName(err))
	case !success && errName(err) != "EACCES":
		t.failf("mode %#o: got %s, want EACCES", mode, errName(err))
	}
}

// stickyChecks try who may remove and rename what in a sticky directory.
func stickyChecks() []check {
	var list []check
	for _, c := range []struct {
		name           string
		dirOwner, file user
		may            bool
	}{
		{"own-file-in-own-directory", alice, alice, true},
		{"own-file-in-foreign-directory", bob, alice, true},
		{"foreign-file-in-own-directory", alice, bob, true},
		{"foreign-file-in-foreign-directory", bob, bob, false},
	} {
		for _, act := range []struct {
			name string
			act  func(t *T) error
		}{
			{"unlink", func(t *T) error { return unix.Unlink(t.p("sticky/file")) }},
			{"rmdir", func(t *T) error { return unix.Rmdir(t.p("sticky/dir")) }},
			{"rename-away", func(t *T) error { return t.rename("sticky/file", "free/file") }},
			{"rename-over", func(t *T) error { return t.rename("free/mine", "sticky/file") }},
			{"rename-within", func(t *T) error { return t.rename("sticky/file", "sticky/new") }},
			{"exchange", func(t *T) error { return t.rename2("free/mine", "sticky/file", unix.RENAME_EXCHANGE) }},
		} {
			list = append(list, check{fmt.Sprintf("sticky/%s-%s", act.name, c.name), func(t *T) {
				t.mkdir("free")
				t.own("free", alice)
				t.file("free/mine", "")
				t.own("free/mine", alice)
				t.mkdir("sticky")
				t.file("sticky/file", "")
				t.mkdir("sticky/dir")
				t.own("sticky/file", c.file)
				t.own("sticky/dir", c.file)
				t.own("sticky", c.dirOwner)
				t.chmod("sticky", 0o1777)
				t.as(alice, func() {
					if c.may {
						t.ok(act.act(t))
					} else {
						t.fails(act.act(t), unix.EPERM, unix.EACCES)
					}
				})
			}})
		}
	}
	return append(list, check{"sticky/root-may-all", func(t *T) {
		t.mkdir("sticky")
		t.file("sticky/file", "")
		t.own("sticky/file", alice)
		t.own("sticky", bob)
		t.chmod("sticky", 0o1777)
		t.ok(unix.Unlink(t.p("sticky/file")))
	}})
}

var accessChecks = []check{
	{"access/root", func(t *T) {
		// access(2): for root, X_OK fails unless some execute bit is set; reading and writing succeed.
		t.file("file", "")
		t.chmod("file", 0)
		t.ok(unix.Access(t.p("file"), unix.R_OK|unix.W_OK))
		t.fails(unix.Access(t.p("file"), unix.X_OK), unix.EACCES)
		t.chmod("file", 0o001)
		t.ok(unix.Access(t.p("file"), unix.X_OK))
		t.mkdir("dir")
		t.chmod("dir", 0)
		t.ok(unix.Access(t.p("dir"), unix.R_OK|unix.W_OK|unix.X_OK))
	}},
	{"access/real-ids-count", func(t *T) {
		t.file("file", "")
		t.chmod("file", 0o600)
		t.aside(func() {
			t.ok(setIDs(unix.SYS_SETRESUID, alice.uid, 0, 0))
			t.fails(unix.Access(t.p("file"), unix.R_OK), unix.EACCES)
			t.ok(opens(t.p("file"), unix.O_RDONLY))
			t.ok(unix.Faccessat(unix.AT_FDCWD, t.p("file"), unix.R_OK, unix.AT_EACCESS))
		})
	}},
	{"access/effective-ids-count-for-open", func(t *T) {
		t.file("file", "")
		t.chmod("file", 0o600)
		t.aside(func() {
			t.ok(setIDs(unix.SYS_SETRESUID, -1, alice.uid, -1))
			t.fails(opens(t.p("file"), unix.O_RDONLY), unix.EACCES)
			t.ok(setIDs(unix.SYS_SETRESUID, -1, 0, -1))
			t.ok(opens(t.p("file"), unix.O_RDONLY))
		})
	}},
	{"access/setfsuid", func(t *T) {
		t.file("file", "")
		t.chmod("file", 0o600)
		t.chmod("", 0o777)
		t.aside(func() {
			unix.RawSyscall(unix.SYS_SETFSGID, uintptr(alice.gid), 0, 0)
			unix.RawSyscall(unix.SYS_SETFSUID, uintptr(alice.uid), 0, 0)
			t.fails(opens(t.p("file"), unix.O_RDONLY), unix.EACCES)
			t.ok(opens(t.p("new"), unix.O_CREAT|unix.O_WRONLY))
		})
		eq(t, "uid of the new file", t.stat("new").uid, uint32(alice.uid))
		eq(t, "gid of the new file", t.stat("new").gid, uint32(alice.gid))
	}},
	{"access/bad-mode", func(t *T) {
		t.file("file", "")
		t.fails(unix.Access(t.p("file"), 0o10), unix.EINVAL)
	}},
	{"access/permission-counts-at-open-only", func(t *T) {
		t.chmod("", 0o777)
		t.as(alice, func() {
			fd := must[int](t)(t.openWith("file", unix.O_CREAT|unix.O_RDWR, 0o600))
			t.ok(unix.Fchmod(fd, 0))
			t.write(fd, "content")
			t.eqText("content", t.pread(fd, 10, 0), "content")
		})
	}},
}
