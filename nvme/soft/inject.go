package soft

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"runsc-fs/nvme/spec"
)

// Injector decides about every command that the controller fetches, before it
// is carried out. It is called with the queue locked, by many queues at once,
// and must not use the controller or its driver.
type Injector interface {
	Inject(CommandInfo) Action
	String() string
}

// CommandInfo describes a fetched command to an Injector.
type CommandInfo struct {
	QueueID uint16 // 0: admin queue
	CID     uint16
	Opcode  uint8
	NSID    uint32
	SLBA    uint64
	Blocks  uint64 // of commands that carry NLB
}

// Action is what happens to a command. The zero value carries it out.
type Action struct {
	Delay   time.Duration // wait first, in the thread that rang the doorbell
	Status  spec.Status   // complete with this status instead of carrying it out
	Hold    bool          // leave it outstanding until Release, Abort or a reset
	NoAbort bool          // with Hold: Abort does not find it
	Lose    bool          // carry it out, but never complete it
	Fatal   bool          // the controller fails: CSTS.CFS
}

// String names what is not zero.
func (a Action) String() string {
	var parts []string
	if a.Delay != 0 {
		parts = append(parts, fmt.Sprintf("delay %v", a.Delay))
	}
	if a.Status != 0 {
		parts = append(parts, fmt.Sprintf("status %v", a.Status))
	}
	for _, f := range []struct {
		set  bool
		name string
	}{{a.Hold, "hold"}, {a.NoAbort, "unabortable"}, {a.Lose, "lose completion"}, {a.Fatal, "controller fatal"}} {
		if f.set {
			parts = append(parts, f.name)
		}
	}
	if parts == nil {
		return "carry out"
	}
	return strings.Join(parts, ", ")
}

// injectLocked applies the injector's decision. It reports whether the command
// is still to be carried out. The caller holds sq.cq.mu.
func (c *Controller) injectLocked(sq *submissionQueue, cmd *spec.SubmissionEntry, inj Injector) bool {
	info := CommandInfo{QueueID: sq.id, CID: cmd.CID(), Opcode: cmd.OPC(), NSID: cmd.NSID, SLBA: cmd.SLBA(), Blocks: cmd.Blocks()}
	a := inj.Inject(info)
	if a.Delay > 0 {
		time.Sleep(a.Delay)
	}
	switch {
	case a.Fatal:
		c.fatal()
	case a.Status.Code() != spec.Success:
		if sq.id != 0 {
			c.logError(sq.id, info.CID, a.Status, info.NSID, info.SLBA)
		}
		c.postLocked(sq, info.CID, a.Status, 0)
	case a.Hold, a.Lose:
		if a.Lose && sq.id != 0 {
			c.io(sq, cmd)
		}
		c.mu.Lock()
		c.held = append(c.held, held{sq: sq, cmd: *cmd, noAbort: a.NoAbort || a.Lose, lost: a.Lose})
		c.mu.Unlock()
	default:
		return true
	}
	return false
}

// Held is the number of commands that the injector keeps outstanding.
func (c *Controller) Held() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.held)
}

// Release carries out and completes the commands that the injector holds, and
// returns how many they were. Lost completions stay lost.
func (c *Controller) Release() int {
	c.mu.Lock()
	all := c.held
	c.held = nil
	c.mu.Unlock()
	n := 0
	var keep []held
	for i := range all {
		h := &all[i]
		h.sq.cq.mu.Lock()
		switch {
		case h.sq.deleted: // reset meanwhile: the command is gone
		case h.lost || h.sq.cq.fullLocked():
			keep = append(keep, *h)
		default:
			c.executeLocked(h.sq, &h.cmd)
			n++
		}
		h.sq.cq.mu.Unlock()
	}
	if keep != nil {
		c.mu.Lock()
		c.held = append(c.held, keep...)
		c.mu.Unlock()
	}
	return n
}

// Rule is one line of Rules: which commands, and what happens to them.
type Rule struct {
	Opcode uint8
	Admin  bool   // Opcode is an admin command
	Any    bool   // every I/O opcode
	From   uint64 // only commands that touch LBAs from From …
	Until  uint64 // … up to but not including Until; 0: any
	Skip   int    // let this many matching commands pass first
	Count  int    // then act on this many; 0: on all
	Action Action
}

// String shows the rule on one line.
func (r Rule) String() string {
	what := fmt.Sprintf("I/O command %02xh", r.Opcode)
	if r.Admin {
		what = fmt.Sprintf("admin command %02xh", r.Opcode)
	} else if r.Any {
		what = "any I/O command"
	}
	if r.Until != 0 {
		what += fmt.Sprintf(" of LBA %d to %d", r.From, r.Until-1)
	}
	if r.Skip != 0 {
		what += fmt.Sprintf(" after %d", r.Skip)
	}
	if r.Count != 0 {
		what += fmt.Sprintf(", %d times", r.Count)
	}
	return what + ": " + r.Action.String()
}

// Rules is an Injector that goes by a list; the first rule that matches and is
// neither waiting nor used up decides.
type Rules struct {
	mu    sync.Mutex
	rules []Rule
	seen  []int
	hits  int
}

// NewRules makes an Injector of rules.
func NewRules(rules ...Rule) *Rules {
	return &Rules{rules: rules, seen: make([]int, len(rules))}
}

// Hits is the number of commands that a rule acted on.
func (r *Rules) Hits() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hits
}

// String implements Injector.
func (r *Rules) String() string {
	lines := make([]string, len(r.rules))
	for i, rule := range r.rules {
		lines[i] = rule.String()
	}
	return strings.Join(lines, "\n")
}

// Inject implements Injector.
func (r *Rules) Inject(cmd CommandInfo) Action {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, rule := range r.rules {
		if rule.Admin != (cmd.QueueID == 0) || (!rule.Any && rule.Opcode != cmd.Opcode) {
			continue
		}
		if rule.Until != 0 && (cmd.Opcode == spec.CmdFlush || cmd.Opcode == spec.CmdDSM || cmd.SLBA >= rule.Until || cmd.SLBA+cmd.Blocks <= rule.From) {
			continue
		}
		r.seen[i]++
		if n := r.seen[i] - rule.Skip; n <= 0 || (rule.Count != 0 && n > rule.Count) {
			continue
		}
		r.hits++
		return rule.Action
	}
	return Action{}
}
