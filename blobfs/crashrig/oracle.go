package crashrig

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
)

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

// compare says whether a snapshot may be what a power cut at a point leaves.
func (h *History) compare(point int, s *snapshot) error {
	if h.blind {
		return nil
	}
	for _, g := range h.grown {
		if g.point <= point && s.blocks < g.value {
			return fmt.Errorf("the file system has %d blocks after it grew to %d", s.blocks, g.value)
		}
	}
	m := h.model
	least := 0
	for _, mark := range h.marks {
		if mark.point <= point {
			least = max(least, mark.names)
		}
	}
	// Operations that began later have left no trace.
	begun, _ := slices.BinarySearch(h.begins, point+1)
	var why error
	for k := len(m.names) - 1; k >= least; k-- {
		state := &m.names[k]
		if state.op >= begun || state.text != s.text {
			continue
		}
		err := h.compareFiles(point, begun, k, s)
		if err == nil {
			return nil
		}
		why = err
	}
	if why == nil {
		why = fmt.Errorf("names are those of no state that could be there; promised was the one after operation %d:\n%sthere are:\n%s",
			m.names[least].op, m.names[least].text, s.text)
	}
	return why
}

func (h *History) compareFiles(point, begun, names int, s *snapshot) error {
	state := &h.model.names[names]
	if len(state.files) != len(s.files) {
		return errors.New("files are missing")
	}
	for path, f := range state.files {
		if err := f.compare(point, begun, names, s.files[path]); err != nil {
			return fmt.Errorf("%s, names as after operation %d: %w\n%s", path, state.op, err, h.lately(f, point, begun, names))
		}
	}
	return nil
}

// lately tells what was done to a file, for messages.
func (h *History) lately(f *mfile, point, begun, names int) string {
	w, _ := f.window(point, begun, names)
	text := ""
	for n := max(w.least, w.most-20); n <= w.most; n++ {
		v := &f.versions[n]
		text += fmt.Sprintf("version %d, %d bytes, modified at %d: operation %d, %.100v\n", n, v.size, v.mtime, v.op, h.steps[v.op].Op)
	}
	return text
}

// window is what may be there of a file: versions from least to most, and
// promises about parts of it.
type window struct {
	f           *mfile
	least, most int
	parts       []dataMark
}

func (f *mfile) window(point, begun, names int) (w window, leastAttrs int) {
	w.f = f
	for _, m := range f.marks {
		switch {
		case m.point > point:
		case m.whole:
			w.least = max(w.least, m.version)
			if m.attrs {
				leastAttrs = max(leastAttrs, m.version)
			}
		default:
			w.parts = append(w.parts, m)
		}
	}
	for _, m := range f.settled {
		if m.names <= names {
			w.least = max(w.least, m.version)
		}
	}
	for w.most = len(f.versions) - 1; w.most > w.least && f.versions[w.most].op >= begun; w.most-- {
	}
	return w, leastAttrs
}

func (f *mfile) compare(point, begun, names int, r *realFile) error {
	w, leastAttrs := f.window(point, begun, names)
	size := int64(len(r.data))
	if !w.sizeMayBe(size) {
		return fmt.Errorf("%d bytes, as in no version from %d to %d", size, w.least, w.most)
	}
	for k := int64(0); k*pageBytes < size; k++ {
		if err := w.page(k, r.data[k*pageBytes:min((k+1)*pageBytes, size)]); err != nil {
			return err
		}
	}
	attrs := slices.ContainsFunc(f.versions[leastAttrs:w.most+1], func(v version) bool { return v.mode == r.mode })
	if !attrs {
		return fmt.Errorf("mode %#o, as in no version from %d to %d", r.mode, leastAttrs, w.most)
	}
	if !f.timeMayBe(leastAttrs, w.most, r.mtime) {
		return fmt.Errorf("modified at %d, as in no version from %d to %d", r.mtime, leastAttrs, w.most)
	}
	return nil
}

// timeMayBe accepts the times of versions, and for a store through a mapping those
// before its last: each page that it begins to write gives the file a time, and a
// commit may come between two of them.
func (f *mfile) timeMayBe(least, most int, mtime int64) bool {
	for n := least; n <= most; n++ {
		v := &f.versions[n]
		if v.mtime == mtime || v.stored && n > 0 && f.versions[n-1].mtime < mtime && mtime < v.mtime {
			return true
		}
	}
	return false
}

// sizeMayBe accepts the sizes of versions, and block boundaries in between:
// write-back may have come that far.
func (w *window) sizeMayBe(size int64) bool {
	least, most, equal := int64(1)<<62, int64(0), false
	for _, v := range w.f.versions[w.least : w.most+1] {
		least, most, equal = min(least, v.size), max(most, v.size), equal || v.size == size
	}
	if !equal && !(size%pageBytes == 0 && least < size && size < most) {
		return false
	}
	for _, m := range w.parts {
		shrunk := slices.ContainsFunc(w.f.versions[m.version:max(w.most+1, m.version)], func(v version) bool { return v.size < m.end })
		if size < m.end && !shrunk {
			return false
		}
	}
	return true
}

// page checks one page of a file.
func (w *window) page(k int64, got []byte) error {
	off := k * pageBytes
	var zeroes [pageBytes]byte
	var candidates [][]byte // one for each version; those short of it are shorter
	var versions []int
	for n := w.least; n <= w.most; n++ {
		v := &w.f.versions[n]
		var b []byte
		if off < v.size {
			b = zeroes[:]
			if v.pages[k] != nil {
				b = v.pages[k][:]
			}
			b = b[:min(pageBytes, v.size-off)]
		}
		candidates, versions = append(candidates, b), append(versions, n)
	}
	whole := true
	for _, m := range w.parts {
		whole = whole && (m.end <= off || m.off >= off+pageBytes)
	}
	if whole {
		for _, b := range candidates {
			if len(b) >= len(got) && bytes.Equal(b[:len(got)], got) {
				return nil
			}
		}
	}
	for j := range got {
		at := off + int64(j)
		least := w.least
		for _, m := range w.parts {
			if m.off <= at && at < m.end {
				least = max(least, m.version)
			}
		}
		ok := got[j] == 0 && w.cutBefore(at)
		for c, b := range candidates {
			ok = ok || (versions[c] >= least && j < len(b) && b[j] == got[j])
		}
		if !ok {
			return fmt.Errorf("byte %d is %#x, as in no version from %d to %d", at, got[j], least, w.most)
		}
	}
	return nil
}

// cutBefore says whether a version was cut in the block of a byte, before it.
// That block may be written, with zeroes behind the cut, before the cut itself is
// durable.
func (w *window) cutBefore(at int64) bool {
	for n := w.least + 1; n <= w.most; n++ {
		size := w.f.versions[n].size
		if size < w.f.versions[n-1].size && size <= at && at < (size+pageBytes-1)&^(pageBytes-1) {
			return true
		}
	}
	return false
}
