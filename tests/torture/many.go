package main

import (
	"fmt"
	"os"
	"path/filepath"
)

const manyFiles = 40000

// many makes more small files than a small sandbox can remember, looks at them all
// and removes them.
func many(dir string) {
	path := func(n int) string {
		return filepath.Join(dir, fmt.Sprintf("dir%d", n/1000), fmt.Sprintf("file%d", n))
	}
	for n := range manyFiles {
		if n%1000 == 0 {
			must(os.Mkdir(filepath.Dir(path(n)), 0o755))
		}
		must(os.WriteFile(path(n), cells(cellBytes, uint64(n), 0, 1), 0o644))
	}
	for n := range manyFiles {
		b, err := os.ReadFile(path(n))
		must(err)
		if r, err := checkCells(b, uint64(n), 0); err != nil || r.min != 1 {
			wrong("%s: %+v, %v", path(n), r, err)
		}
	}
	for n := 0; n < manyFiles; n += 1000 {
		must(os.RemoveAll(filepath.Dir(path(n))))
	}
}
