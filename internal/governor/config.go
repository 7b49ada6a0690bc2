package governor

import (
	"fmt"
	"time"
)

// Bounds of the settings, as in cGPU's files.
const (
	maxInstLimit  = 25
	prioRatioMin  = 20
	prioRatioMax  = 99
	cycleMin      = 4 * time.Millisecond
	cycleMax      = time.Second
	sliceMax      = time.Second
	callMax       = 20 * time.Millisecond
	defaultCycle  = 40 * time.Millisecond
	cycleCapTimes = 4 // a cycle with many slots is at most so many Cycles long
)

// Config is how one card is governed: what the user chose and what was measured.
type Config struct {
	// Policy says how the card is shared.
	Policy Policy
	// MaxInst is the largest number of tenants (1–25) and the denominator of
	// Fair and of weights under Fixed. Default 20.
	MaxInst int
	// PrioRatio (20–99) is the percentage of an engine that a higher class gets
	// while a lower class competes with it. Default 80.
	PrioRatio int
	// Cycle is the time in which everybody has had a turn: the sum of the slices
	// of all sharing tenants, and the length of a cycle of two slots (each
	// further slot adds half a Cycle). Default 40 ms.
	Cycle time.Duration
	// LowSlice is the slice of each low tenant beside a high one. Default 50 µs.
	LowSlice time.Duration
	// HighSlice is the least slice of a high tenant beside a low one. Default 20 ms.
	HighSlice time.Duration
	// MinSlice: when a slice would be shorter, all are stretched (at most four
	// times). Default 2 ms.
	MinSlice time.Duration

	// Hardware holds the measured constants of the card.
	Hardware Hardware
}

// Hardware is what was measured on a card: how long the calls take and when they
// bite. Zero fields take the figures of an H200 with driver 580.
type Hardware struct {
	// SwitchCost is the time from the last work of one TSG to the first of the
	// next on the same runlist.
	SwitchCost time.Duration
	// SliceLoss is the part of each slice that does no work.
	SliceLoss time.Duration
	// FreezeCost is how long the call that freezes a tenant takes.
	FreezeCost time.Duration
	// FreezeLag is the time from the start of that call to the tenant's last work.
	FreezeLag time.Duration
	// ThawCost is how long the call that thaws a tenant takes.
	ThawCost time.Duration
	// ThawLag is the time from the start of that call to the tenant's first work
	// on a card where nobody else runs.
	ThawLag time.Duration
	// ContestedThaw is how much longer the thaw of a tenant with work takes while
	// somebody else runs. It lets the length of a reported thaw (Done) tell whether
	// the tenant that is about to be frozen was running; negative: it does not.
	ContestedThaw time.Duration
	// NativeSlice and NativeCopySlice are what the driver gives a TSG of the
	// graphics engine and of any other engine.
	NativeSlice, NativeCopySlice time.Duration
}

// H200 is what was measured on an H200 with driver 580.159.04, for tenants of one
// CUDA context, which has 20 channels (testdata/lags.c).
func H200() Hardware {
	return Hardware{
		SwitchCost:      180 * time.Microsecond,
		SliceLoss:       33 * time.Microsecond,
		FreezeCost:      640 * time.Microsecond,
		FreezeLag:       435 * time.Microsecond,
		ThawCost:        375 * time.Microsecond,
		ThawLag:         315 * time.Microsecond,
		ContestedThaw:   105 * time.Microsecond,
		NativeSlice:     2048 * time.Microsecond,
		NativeCopySlice: 1024 * time.Microsecond,
	}
}

// withDefaults fills the fields that were left zero.
func (c Config) withDefaults() Config {
	orInt(&c.MaxInst, 20)
	orInt(&c.PrioRatio, 80)
	orDur(&c.Cycle, defaultCycle)
	orDur(&c.LowSlice, 50*time.Microsecond)
	orDur(&c.HighSlice, 20*time.Millisecond)
	orDur(&c.MinSlice, 2*time.Millisecond)
	h, std := &c.Hardware, H200()
	orDur(&h.SwitchCost, std.SwitchCost)
	orDur(&h.SliceLoss, std.SliceLoss)
	orDur(&h.FreezeCost, std.FreezeCost)
	orDur(&h.FreezeLag, std.FreezeLag)
	orDur(&h.ThawCost, std.ThawCost)
	orDur(&h.ThawLag, std.ThawLag)
	orDur(&h.ContestedThaw, std.ContestedThaw)
	orDur(&h.NativeSlice, std.NativeSlice)
	orDur(&h.NativeCopySlice, std.NativeCopySlice)
	return c
}

func orInt(v *int, def int) {
	if *v == 0 {
		*v = def
	}
}

func orDur(v *time.Duration, def time.Duration) {
	if *v == 0 {
		*v = def
	}
}

// Validate reports the first setting that is out of bounds, after defaults.
func (c Config) Validate() error {
	c = c.withDefaults()
	if int(c.Policy) >= len(policyNames) {
		_, err := ParsePolicy(fmt.Sprint(uint8(c.Policy)))
		return err
	}
	if c.MaxInst < 1 || c.MaxInst > maxInstLimit {
		return fmt.Errorf("max_inst is %d: must be 1–%d", c.MaxInst, maxInstLimit)
	}
	if c.PrioRatio < prioRatioMin || c.PrioRatio > prioRatioMax {
		return fmt.Errorf("prio_ratio is %d: must be %d–%d percent", c.PrioRatio, prioRatioMin, prioRatioMax)
	}
	h := c.Hardware
	for _, f := range []struct {
		name     string
		v        time.Duration
		min, max time.Duration
	}{
		{"cycle", c.Cycle, cycleMin, cycleMax},
		{"low slice", c.LowSlice, time.Microsecond, sliceMax},
		{"high slice", c.HighSlice, time.Microsecond, sliceMax},
		{"min slice", c.MinSlice, time.Microsecond, sliceMax},
		{"switch cost", h.SwitchCost, 0, callMax},
		{"slice loss", h.SliceLoss, 0, callMax},
		{"freeze cost", h.FreezeCost, 0, callMax},
		{"freeze lag", h.FreezeLag, 0, callMax},
		{"thaw cost", h.ThawCost, 0, callMax},
		{"thaw lag", h.ThawLag, 0, callMax},
		{"contested thaw", h.ContestedThaw, -callMax, callMax},
		{"native slice", h.NativeSlice, time.Microsecond, sliceMax},
		{"native copy slice", h.NativeCopySlice, time.Microsecond, sliceMax},
	} {
		if f.v < f.min || f.v > f.max {
			return fmt.Errorf("%s is %v: must be %v–%v", f.name, f.v, f.min, f.max)
		}
	}
	return nil
}
