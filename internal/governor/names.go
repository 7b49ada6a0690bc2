package governor

import (
	"fmt"
	"strconv"
	"strings"
)

// Policy says how the tenants of a card share its engines. The numbers 0–5 are
// those of cGPU's policy file.
type Policy uint8

const (
	// Fair gives each of at most MaxInst tenants exactly 1/MaxInst; what a
	// tenant does not use is wasted.
	Fair Policy = iota
	// Preemptive gives equal shares to those who have work.
	Preemptive
	// Weighted gives shares in the ratio of the weights to those who have work.
	Weighted
	// Fixed gives each tenant exactly Share (or Weight/MaxInst).
	Fixed
	// Soft is Preemptive with few calls and weaker isolation: slices change in
	// coarse steps and are not split over a tenant's groups.
	Soft
	// Native leaves the driver's own slices alone.
	Native
	// Burst guarantees Share while the tenant has work and lends it while not.
	Burst
	// Mixed is Fixed for tenants with a Share; the others share the remainder.
	Mixed
)

var policyNames = []string{"fair", "preemptive", "weighted", "fixed", "soft", "native", "burst", "mixed"}

// String returns the name of the policy.
func (p Policy) String() string { return nameOf(policyNames, uint8(p), "policy") }

// ParsePolicy reads a policy by name (any case) or by number.
func ParsePolicy(s string) (Policy, error) {
	n, err := parseName(policyNames, s, "policy")
	return Policy(n), err
}

// MarshalText and UnmarshalText make a Policy readable in files and flags.
func (p Policy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is the inverse of MarshalText; it also takes numbers.
func (p *Policy) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePolicy(string(text))
	return err
}

// Priority is the class of a tenant among those who share.
type Priority uint8

// The classes, from the one that waits to the one that is waited for. The zero
// value of Tenant.Priority is Normal so that a caller may leave it out.
const (
	Normal Priority = iota
	Low
	High
)

var priorityNames = []string{"normal", "low", "high"}

// String returns the name of the class.
func (p Priority) String() string { return nameOf(priorityNames, uint8(p), "priority") }

// ParsePriority reads a class by name (any case).
func ParsePriority(s string) (Priority, error) {
	n, err := parseName(priorityNames, s, "priority")
	return Priority(n), err
}

// Engine is a kind of engine; each has runlists of its own.
type Engine uint8

const (
	// Graphics is compute and 3D, which share one runlist.
	Graphics Engine = iota
	Copy
	Decode
	Encode
	JPEG
	OpticalFlow
	engineKinds // how many there are
)

var engineNames = []string{"graphics", "copy", "decode", "encode", "jpeg", "opticalflow"}

// String returns the name of the engine.
func (e Engine) String() string { return nameOf(engineNames, uint8(e), "engine") }

// Use is what is known about whether a tenant has work.
type Use uint8

const (
	// Unknown is the default and is always safe.
	Unknown Use = iota
	// Busy tenants have work whenever they are thawed.
	Busy
	// Idle tenants have none.
	Idle
)

var useNames = []string{"unknown", "busy", "idle"}

// String returns the name of the state.
func (u Use) String() string { return nameOf(useNames, uint8(u), "use") }

// Kind is what an Action does.
type Kind uint8

const (
	// Thaw enables all channels of the tenant.
	Thaw Kind = iota
	// Freeze disables all channels of the tenant and preempts them.
	Freeze
)

var kindNames = []string{"thaw", "freeze"}

// String returns the name of the action.
func (k Kind) String() string { return nameOf(kindNames, uint8(k), "action") }

func nameOf(names []string, n uint8, what string) string {
	if int(n) < len(names) {
		return names[n]
	}
	return fmt.Sprintf("%s(%d)", what, n)
}

func parseName(names []string, s, what string) (uint8, error) {
	want := strings.ToLower(strings.TrimSpace(s))
	for i, name := range names {
		if want == name || want == strconv.Itoa(i) {
			return uint8(i), nil
		}
	}
	valid := make([]string, len(names))
	for i, name := range names {
		valid[i] = fmt.Sprintf("%s (%d)", name, i)
	}
	return 0, fmt.Errorf("unknown %s %q: use one of %s", what, s, strings.Join(valid, ", "))
}
