package kernel

import (
	"maps"
	"slices"
	"time"
)

// Usage is what a session reports.
type Usage struct {
	ChargedBytes  int64 // counts against the limit
	LimitBytes    int64 // 0 = none
	ManagedBytes  int64 // part of ChargedBytes: managed ranges by length
	LimboBytes    int64 // part of ChargedBytes: freed, but not seen to come back
	OverheadBytes int64 // part of ChargedBytes: taken by the driver for contexts
	PIDs          []int
	Calls         uint64 // trapped
	Proxied       uint64
	Continued     uint64 // run in the tenant
	Refused       uint64
	OverQuota     uint64 // part of Refused
	// UnknownContinued counts calls that no rule covers and that were let
	// through: always 0 in strict.
	UnknownContinued uint64
	// Serving is the supervisor's time from taking a call to having answered
	// it, Driving the part of it that the driver took.
	Serving, Driving time.Duration
	RefusedCalls     map[string]uint64 // by reason
	Violation        string            // why the tenant was killed, if it was
	Level            Level
}

// Usage returns the present figures.
func (s *Session) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Usage{
		ChargedBytes:  s.ledger.charged(),
		LimitBytes:    s.ledger.limit,
		ManagedBytes:  s.ledger.managed(),
		LimboBytes:    s.ledger.limbo,
		OverheadBytes: s.ledger.overhead,
		PIDs:          slices.Sorted(maps.Keys(s.procs)),
		Calls:         s.count.calls.Load(), Proxied: s.count.proxied.Load(),
		Continued: s.count.continued.Load(), Refused: s.count.refused.Load(),
		OverQuota: s.count.overQuota.Load(), UnknownContinued: s.count.unknown.Load(),
		Serving: time.Duration(s.count.serving.Load()), Driving: time.Duration(s.count.driving.Load()),
		RefusedCalls: maps.Clone(s.refusal), Violation: s.broken, Level: s.level,
	}
}
