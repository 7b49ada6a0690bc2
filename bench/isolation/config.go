package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// The sections, in the order they run.
const (
	secSolo    = "solo"
	secCaps    = "caps"
	secPairs   = "pairs"
	secFour    = "four"
	secThree   = "three"
	secIdle    = "idle"
	secLatency = "latency"
	secNative  = "native"
	secMPS     = "mps"
	secMemory  = "memory"
	secCalls   = "calls"
	secKill    = "kill"
)

func sectionNames() []string {
	return []string{secSolo, secCaps, secPairs, secFour, secThree, secIdle, secLatency,
		secNative, secMPS, secMemory, secCalls, secKill}
}

// Windows are whole numbers of cycles of two (48 ms), three (72 ms) and four
// (96 ms) slots at the default cycle: a cut slot would look like an error.
const (
	fullSeconds  = 2.88
	quickSeconds = 1.44
	emuSeconds   = 0.864
)

// config is everything that flags can say.
type config struct {
	penstock  string
	workloads string
	out       string
	emulated  string
	commit    string
	command   string
	sections  []string
	merge     []string
	quick     bool
	seconds   float64
	cycle     time.Duration
	level     string
	budget    time.Duration
	kills     int
}

// parseConfig reads the command line. The error is one line for the user.
func parseConfig(args []string, usage io.Writer) (config, error) {
	var c config
	var sections, merge string
	f := flag.NewFlagSet("isolation", flag.ContinueOnError)
	f.SetOutput(usage)
	f.StringVar(&c.penstock, "penstock", "penstock", "penstock `binary` under test")
	f.StringVar(&c.workloads, "workloads", "", "`folder` of the built workers")
	f.StringVar(&c.out, "out", "out", "`folder` for the result files")
	f.StringVar(&c.emulated, "emulated", "", "run on the emulated card served in `folder`, auto: on one of the bench's own, virtual: in virtual time")
	f.StringVar(&c.commit, "commit", "", "`commit` under test (default: what this binary was built from)")
	f.StringVar(&sections, "sections", "", "comma-separated `list` of "+strings.Join(sectionNames(), ",")+" (default all)")
	f.StringVar(&merge, "merge", "", "comma-separated result `files` to join into one; measures nothing")
	f.BoolVar(&c.quick, "quick", false, "fewer cases and shorter windows")
	f.Float64Var(&c.seconds, "seconds", 0, "length of a window (default 2.88, quick 1.44, emulated 0.864)")
	f.DurationVar(&c.cycle, "cycle", 0, "the agent's cycle (default: its own)")
	f.StringVar(&c.level, "level", "", "the tenants' `level`, strict or compatible (default: the agent's own)")
	f.DurationVar(&c.budget, "budget", 9*time.Minute, "cases that would start after this are skipped")
	f.IntVar(&c.kills, "kills", 0, "number of kill -9 (default 50; quick and emulated 10)")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if f.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	c.command = strings.Join(append([]string{"isolation"}, args...), " ")
	c.merge = list(merge)
	c.sections = list(sections)
	return c.withDefaults()
}

// withDefaults fills what was left out and reports what cannot work.
func (c config) withDefaults() (config, error) {
	if len(c.sections) == 0 {
		c.sections = sectionNames()
	}
	for _, s := range c.sections {
		if !slices.Contains(sectionNames(), s) {
			return c, fmt.Errorf("unknown section %q: use some of %s", s, strings.Join(sectionNames(), ","))
		}
	}
	if c.seconds == 0 {
		c.seconds = fullSeconds
		switch {
		case c.emulated != "" && c.emulated != inVirtual:
			c.seconds = emuSeconds
		case c.quick:
			c.seconds = quickSeconds
		}
	}
	if c.kills == 0 {
		c.kills = 50
		if c.quick || c.emulated != "" {
			c.kills = 10
		}
	}
	switch {
	case c.seconds < 0.1 || c.seconds > 600:
		return c, fmt.Errorf("-seconds %v: want 0.1 to 600", c.seconds)
	case c.kills < 1 || c.kills > 100000:
		return c, fmt.Errorf("-kills %d: want 1 to 100000", c.kills)
	case c.budget <= 0:
		return c, fmt.Errorf("-budget %v: want a positive time", c.budget)
	case len(c.merge) == 0 && c.emulated == "" && c.workloads == "":
		return c, errors.New("-workloads is missing (or -emulated, or -merge)")
	}
	return c, nil
}

// list splits at commas; empty parts are dropped.
func list(s string) []string {
	var out []string
	for p := range strings.SplitSeq(s, ",") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}
