package crashrig

import (
	"bufio"
	"compress/gzip"
	"encoding/gob"
	"errors"
	"fmt"
	"os"

	"runsc-fs/nvme/crashdev"
)

// savedHistory is what a History is made of again.
type savedHistory struct {
	Base  string
	Steps []step
}

// SaveHistories writes a disk and what was done on it into a file, for runs
// that cannot be repeated because several programs ran side by side.
func SaveHistories(path string, disk *crashdev.Disk, hs ...*History) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z := gzip.NewWriter(f)
	var list []savedHistory
	for _, h := range hs {
		list = append(list, savedHistory{h.base, h.steps})
	}
	if err := gob.NewEncoder(z).Encode(list); err != nil {
		return err
	}
	return errors.Join(disk.Save(z), z.Close())
}

// LoadHistories reads what SaveHistories has written. The histories serve
// Explorers only.
func LoadHistories(path string) (*crashdev.Disk, []*History, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	r := bufio.NewReader(z) // one for both decoders, which would read ahead otherwise
	var list []savedHistory
	if err := gob.NewDecoder(r).Decode(&list); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	disk, err := crashdev.Load(r)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	var hs []*History
	for _, s := range list {
		h := newHistory(disk, nil, nil, nil, s.Base)
		for _, st := range s.Steps {
			if err := h.note(st); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		hs = append(hs, h)
	}
	return disk, hs, nil
}
