package crashdev

import (
	"encoding/gob"
	"io"
)

// saved is a Disk with its history, for a file.
type saved struct {
	Options Options
	Origin  map[int64][]byte // pages that are not all zeroes, by number
	Events  []savedEvent
}

type savedEvent struct {
	Event Event
	Data  []byte
}

// Save writes the disk with its history, so that Load gives one of which the
// same crashes leave the same images.
func (d *Disk) Save(w io.Writer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := saved{Options: d.opts, Origin: map[int64][]byte{}}
	s.Options.Sabotage = nil
	for p := range d.opts.SizeBytes / pageBytes {
		if !d.origin.present(p) {
			continue
		}
		b := make([]byte, pageBytes)
		d.origin.read(b, p*pageBytes)
		s.Origin[p] = b
	}
	for _, e := range d.events {
		s.Events = append(s.Events, savedEvent{e, e.data})
	}
	return gob.NewEncoder(w).Encode(&s)
}

// Load reads what Save has written.
func Load(r io.Reader) (*Disk, error) {
	var s saved
	if err := gob.NewDecoder(r).Decode(&s); err != nil {
		return nil, err
	}
	d, err := New(s.Options)
	if err != nil {
		return nil, err
	}
	for p, b := range s.Origin {
		d.content.write(b, p*pageBytes)
	}
	d.Restart()
	for _, e := range s.Events {
		e.Event.data = e.Data
		apply(&d.content, &e.Event, 0, e.Event.LengthBytes)
		d.events = append(d.events, e.Event)
	}
	return d, nil
}
