package agent

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/penstock-gpu/penstock/internal/engine/kernel"
	"github.com/penstock-gpu/penstock/internal/governor"
)

// Request is what a tenant asks for. It is what the flags of penstock run
// say, and the body of POST /v1/attach.
type Request struct {
	Name     string           `json:"name,omitempty"`
	Memory   Memory           `json:"memory,omitzero"`
	Compute  governor.Milli   `json:"compute,omitempty"`
	Policy   *governor.Policy `json:"policy,omitempty"`
	Weight   int              `json:"weight,omitempty"`
	Priority string           `json:"priority,omitempty"` // high, normal (default) or low
	Cards    []string         `json:"cards,omitempty"`    // indexes or UUIDs, or "all"; none: the agent chooses one
	Level    string           `json:"level,omitempty"`    // strict (default) or compatible
	Cycle    time.Duration    `json:"cycle,omitempty"`    // nanoseconds
}

// Bounds of a request.
const (
	maxName   = 64
	maxCards  = 64
	maxWeight = 1000
)

// takes says which parts of a request a policy gives a meaning to.
type takes struct{ share, needShare, weight, priority bool }

var policyTakes = map[governor.Policy]takes{
	governor.Fair:       {},
	governor.Preemptive: {priority: true},
	governor.Weighted:   {weight: true, priority: true},
	governor.Fixed:      {share: true, needShare: true, weight: true},
	governor.Soft:       {},
	governor.Native:     {},
	governor.Burst:      {share: true, weight: true, priority: true},
	governor.Mixed:      {share: true, weight: true, priority: true},
}

// Validate reports the first part of the request that makes no sense by
// itself, whatever the card looks like.
func (r Request) Validate() error {
	switch {
	case len(r.Name) > maxName || strings.ContainsFunc(r.Name, func(c rune) bool { return !unicode.IsPrint(c) }):
		return fmt.Errorf("name %.80q: want at most %d printable characters", r.Name, maxName)
	case len(r.Cards) > maxCards:
		return fmt.Errorf("%d cards asked for: at most %d", len(r.Cards), maxCards)
	case r.Compute < 0 || r.Compute > governor.Card:
		return fmt.Errorf("compute %d: want 1 to %d thousandths of a card", r.Compute, governor.Card)
	case r.Weight < 0 || r.Weight > maxWeight:
		return fmt.Errorf("weight %d: want 1 to %d", r.Weight, maxWeight)
	case r.Memory.Bytes < 0 || r.Memory.Percent < 0 || r.Memory.Percent > 100:
		return fmt.Errorf("memory %v: want a size or a percentage of the card", r.Memory)
	case r.Cycle < 0:
		return fmt.Errorf("cycle %v: want a positive time", r.Cycle)
	}
	if _, err := r.priority(); err != nil {
		return err
	}
	if _, err := kernel.ParseLevel(r.Level); err != nil {
		return err
	}
	if r.Policy != nil {
		return r.fits(*r.Policy)
	}
	return nil
}

func (r Request) priority() (governor.Priority, error) {
	if r.Priority == "" {
		return governor.Normal, nil
	}
	return governor.ParsePriority(r.Priority)
}

// ranked reports that the request asks for a class of its own.
func (r Request) ranked() bool {
	p, _ := r.priority()
	return p != governor.Normal
}

// tenant is the request as the governor takes it.
func (r Request) tenant(id string) governor.Tenant {
	p, _ := r.priority() // judged by Validate
	return governor.Tenant{ID: governor.TenantID(id), Share: r.Compute, Weight: r.Weight, Priority: p}
}

// fits says whether the policy gives everything that was asked a meaning.
func (r Request) fits(p governor.Policy) error {
	t, known := policyTakes[p]
	switch {
	case !known:
		return fmt.Errorf("unknown policy %d", p)
	case r.Compute > 0 && !t.share:
		return fmt.Errorf("policy %v gives no fixed share: leave --compute out, or use fixed, burst or mixed", p)
	case r.Weight > 0 && !t.weight:
		return fmt.Errorf("policy %v has no weights: leave --weight out, or use weighted", p)
	case r.ranked() && !t.priority:
		return fmt.Errorf("policy %v has no priorities: leave --priority out, or use preemptive or weighted", p)
	case t.needShare && r.Compute == 0 && r.Weight == 0:
		return fmt.Errorf("policy %v needs a share: add --compute, such as 30%%", p)
	}
	return nil
}

// wants is the policy that a request implies when it names none; ok is false
// when any policy will do.
func (r Request) wants() (p governor.Policy, ok bool) {
	switch {
	case r.Policy != nil:
		return *r.Policy, true
	case r.Compute > 0:
		return governor.Fixed, true
	case r.Weight > 0:
		return governor.Weighted, true
	case r.ranked():
		return governor.Preemptive, true
	}
	return governor.Native, false
}
