package fsck

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"runsc-fs/blobfs/format"
)

// Severity says how bad a finding is.
type Severity uint8

// The severities.
const (
	// Note is worth knowing and no defect: a healthy volume can have it.
	Note Severity = iota + 1
	// Warning is a defect that harms no data, such as lost space.
	Warning
	// Error is a defect by which data or metadata is lost, wrong or in danger.
	Error
)

var severityNames = [...]string{Note: "note", Warning: "warning", Error: "error"}

func (s Severity) String() string {
	if int(s) < len(severityNames) && s > 0 {
		return severityNames[s]
	}
	return fmt.Sprintf("severity%d", uint8(s))
}

// MarshalText makes the name the JSON form.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is one thing that is not as it should be.
type Finding struct {
	Severity Severity `json:"severity"`
	Code     Code     `json:"code"`
	// Object names what has the defect: "inode 17", "group 3", "log record 12".
	Object string `json:"object"`
	// Ino is the inode concerned, and Path a path name of it, as far as known.
	Ino  uint64 `json:"inode,omitempty"`
	Path string `json:"path,omitempty"`
	// Message says in words what is wrong.
	Message string `json:"message"`
	// Repair says what a repair does about it; "" if nothing.
	Repair string `json:"repair,omitempty"`
}

// repairable notes what a repair does about the finding that add has numbered.
func (r *Report) repairable(finding int, text string) {
	if finding >= 0 {
		r.Findings[finding].Repair = text
	}
}

func (f *Finding) String() string {
	object := f.Object
	if f.Path != "" {
		object += fmt.Sprintf(" (%q)", f.Path)
	}
	return fmt.Sprintf("%v: %s: %s [%s]", f.Severity, object, f.Message, f.Code)
}

// Counters summarise what was read.
type Counters struct {
	Nodes           uint64            `json:"nodes"`      // of the published tree
	TreeLevels      int               `json:"treeLevels"` // 1: only a leaf
	LogRecords      uint64            `json:"logRecords"` // that a mount would replay
	LogTransactions uint64            `json:"logTransactions"`
	LogOperations   uint64            `json:"logOperations"`
	Items           map[string]uint64 `json:"items"` // by kind, log included
	Inodes          uint64            `json:"inodes"`
	Directories     uint64            `json:"directories"`
	Files           uint64            `json:"files"`
	Symlinks        uint64            `json:"symlinks"`
	Special         uint64            `json:"special"` // devices, FIFOs, sockets
	Entries         uint64            `json:"entries"` // of directories
	Xattrs          uint64            `json:"xattrs"`
	Orphans         uint64            `json:"orphans"` // inodes that a mount cleans up
	Extents         uint64            `json:"extents"`
	DataBlocks      uint64            `json:"dataBlocks"`    // blocks of files, shared ones once
	SharedBlocks    uint64            `json:"sharedBlocks"`  // of them with several owners
	UsedBlocks      uint64            `json:"usedBlocks"`    // by the bitmaps, log included
	FreeBlocks      uint64            `json:"freeBlocks"`    // likewise
	LeakedBlocks    uint64            `json:"leakedBlocks"`  // in use by nothing
	UnknownGroups   uint64            `json:"unknownGroups"` // without a bitmap that can be trusted
}

// Report is the result of a check.
type Report struct {
	UUID         string `json:"uuid"`
	Label        string `json:"label"`
	Version      int    `json:"version"`
	Generation   uint64 `json:"generation"`
	VolumeBlocks uint64 `json:"volumeBlocks"`
	// Closed says that the volume was unmounted; if not, a mount replays the log.
	Closed bool `json:"closed"`
	// Clean says that there is neither an error nor a warning.
	Clean bool `json:"clean"`
	// Complete says that all passes ran over all of the volume.
	Complete bool      `json:"complete"`
	Counters Counters  `json:"counters"`
	Findings []Finding `json:"findings"`
	// Errors, Warnings and Notes count all findings. Omitted is how many of
	// them are not in Findings because there were too many.
	Errors   int `json:"errors"`
	Warnings int `json:"warnings"`
	Notes    int `json:"notes"`
	Omitted  int `json:"omitted"`
	// Repaired are the findings before a repair, when the others are those
	// after it, and UndoFile is what takes the repair back.
	Repaired []Finding `json:"repaired,omitempty"`
	UndoFile string    `json:"undoFile,omitempty"`

	limit int
}

// add counts a finding and keeps it if there is room. It returns its index in
// Findings, or -1.
func (r *Report) add(f Finding) int {
	switch f.Severity {
	case Error:
		r.Errors++
	case Warning:
		r.Warnings++
	default:
		r.Notes++
	}
	if len(r.Findings) >= r.limit {
		r.Omitted++
		return -1
	}
	r.Findings = append(r.Findings, f)
	return len(r.Findings) - 1
}

// finish completes the report after the last finding.
func (r *Report) finish() {
	r.Clean = r.Errors == 0 && r.Warnings == 0
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
}

// WriteJSON writes the report as one indented JSON object.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteText writes the report for a person: a line for each finding, the worst
// first, and a summary.
func (r *Report) WriteText(w io.Writer) error {
	p := printer{w: w}
	for i := range r.Repaired {
		p.printf("repaired: %v\n", &r.Repaired[i])
	}
	for i := range r.Findings {
		p.printf("%v\n", &r.Findings[i])
	}
	if r.Omitted > 0 {
		p.printf("… and %d findings more\n", r.Omitted)
	}
	if r.UUID == "" {
		p.printf("nothing of the volume could be read\n")
		return p.err
	}
	c := &r.Counters
	state := "not closed: the next mount replays the log"
	if r.Closed {
		state = "closed"
	}
	p.printf("volume %s %q: format version %d, generation %d, %s\n", r.UUID, r.Label, r.Version, r.Generation, state)
	p.printf("tree: %d nodes in %d levels; log: %d records, %d transactions, %d operations\n",
		c.Nodes, c.TreeLevels, c.LogRecords, c.LogTransactions, c.LogOperations)
	p.printf("%d inodes: %d files, %d directories with %d entries, %d symbolic links, %d special files, %d orphans; %d extended attributes\n",
		c.Inodes, c.Files, c.Directories, c.Entries, c.Symlinks, c.Special, c.Orphans, c.Xattrs)
	p.printf("%d of %d blocks in use, %d of them by files in %d extents, %d blocks shared\n",
		c.UsedBlocks, r.VolumeBlocks, c.DataBlocks, c.Extents, c.SharedBlocks)
	if c.UnknownGroups > 0 {
		p.printf("the use of blocks in %d groups is unknown\n", c.UnknownGroups)
	}
	switch {
	case r.Clean && r.Complete:
		p.printf("clean\n")
	case r.Clean:
		p.printf("incomplete: not everything could be checked\n")
	default:
		p.printf("errors: %d, warnings: %d\n", r.Errors, r.Warnings)
	}
	return p.err
}

// printer remembers the first error of writing.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(text string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, text, args...)
	}
}

// countItem counts an item by its kind.
func (c *Counters) countItem(k format.Kind) { c.Items[k.String()]++ }
