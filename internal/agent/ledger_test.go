package agent

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-gpu/penstock/internal/engine/kernel"
	"github.com/penstock-gpu/penstock/internal/governor"
)

const gi = int64(1) << 30

func testLedger(cards int) *Ledger {
	var slots []Slot
	for i := range cards {
		slots = append(slots, Slot{
			Info:    kernel.CardInfo{Index: i, UUID: fmt.Sprintf("GPU-%d", i), TotalBytes: 16 * gi},
			Reserve: gi,
		})
	}
	return NewLedger(slots, governor.Config{Policy: governor.Native, MaxInst: 20})
}

func policy(p governor.Policy) *governor.Policy { return &p }

func mem(g int64) Memory { return Memory{Bytes: g * gi} }

// admitted puts requests on a ledger one after the other; a step is the policy in force after it, or a part of
// the refusal.
func TestAdmissionStories(t *testing.T) {
	type step struct {
		r      Request
		policy governor.Policy
		refuse string
	}
	for name, steps := range map[string][]step{
		"memory": {
			{r: Request{Memory: mem(10)}, policy: governor.Native},
			{r: Request{Memory: mem(6)}, refuse: "6Gi of memory does not fit: 5Gi of 16Gi is free; --mem 5Gi would fit"},
			{r: Request{}, refuse: "needs one too: add --mem, up to 5Gi is free"},
			{r: Request{Memory: Memory{Percent: 25}}, policy: governor.Native},
			{r: Request{Memory: mem(1)}, policy: governor.Native},
			{r: Request{Memory: mem(1)}, refuse: "3 tenants hold all of it, nothing is free"},
			{r: Request{}, refuse: "nothing is free"},
		},
		"without limits": {
			{r: Request{}, policy: governor.Native},
			{r: Request{}, policy: governor.Native},
			{r: Request{Memory: mem(1)}, refuse: "cannot be kept beside t-0, which runs without one"},
		},
		"more than the card": {{r: Request{Memory: mem(16)}, refuse: "15Gi of 16Gi is free"}},
		"fixed": {
			{r: Request{Memory: mem(1), Compute: 600}, policy: governor.Fixed},
			{r: Request{Memory: mem(1), Compute: 500}, refuse: "up to 40% would fit"},
			{r: Request{Memory: mem(1), Compute: 300}, policy: governor.Fixed},
			{r: Request{Memory: mem(1), Policy: policy(governor.Weighted), Weight: 2}, refuse: "shared by policy fixed and this tenant wants weighted"},
			{r: Request{Memory: mem(1)}, policy: governor.Mixed},
			{r: Request{Memory: mem(1), Compute: 50}, policy: governor.Mixed},
			{r: Request{Memory: mem(1), Weight: 3}, policy: governor.Mixed},
		},
		"weighted": {
			{r: Request{Memory: mem(1), Weight: 2}, policy: governor.Weighted},
			{r: Request{Memory: mem(1)}, policy: governor.Weighted},
			{r: Request{Memory: mem(1), Priority: "high"}, policy: governor.Weighted},
			{r: Request{Memory: mem(1), Compute: 300}, refuse: "wants fixed"},
		},
		"indifferent first": {
			{r: Request{Memory: mem(1)}, policy: governor.Native},
			{r: Request{Memory: mem(1), Compute: 300}, policy: governor.Mixed},
		},
		"burst": {
			{r: Request{Memory: mem(1), Policy: policy(governor.Burst), Compute: 500}, policy: governor.Burst},
			{r: Request{Memory: mem(1), Compute: 300}, policy: governor.Burst},
			{r: Request{Memory: mem(1), Policy: policy(governor.Fixed), Compute: 100}, refuse: "wants fixed"},
		},
		"cycle": {
			{r: Request{Memory: mem(1), Compute: 300, Cycle: 20 * time.Millisecond}, policy: governor.Fixed},
			{r: Request{Memory: mem(1), Compute: 300, Cycle: 30 * time.Millisecond}, refuse: "its cycle is 20ms"},
			{r: Request{Memory: mem(1), Compute: 300, Cycle: 20 * time.Millisecond}, policy: governor.Fixed},
		},
		"cycle out of bounds": {{r: Request{Cycle: time.Microsecond}, refuse: "cycle is 1µs"}},
		"by weight of 20":     {{r: Request{Policy: policy(governor.Fixed), Weight: 5}, policy: governor.Fixed}},
	} {
		t.Run(name, func(t *testing.T) {
			l := testLedger(1)
			for i, s := range steps {
				a, err := l.Admit(fmt.Sprintf("t-%d", i), 0, s.r)
				if s.refuse != "" {
					if err == nil || !strings.Contains(err.Error(), s.refuse) {
						t.Fatalf("step %d: %v, want a refusal with %q", i, err, s.refuse)
					}
					continue
				}
				if err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
				l.Commit(a)
				if got := l.Config(0).Policy; got != s.policy {
					t.Fatalf("step %d: policy %v, want %v", i, got, s.policy)
				}
			}
		})
	}
}

func TestPolicyEndsWithItsTenants(t *testing.T) {
	l := testLedger(1)
	for _, r := range []Request{{Memory: mem(1), Compute: 300}, {Memory: mem(1), Weight: 2}} {
		a, err := l.Admit("t-1", 0, r)
		if err != nil {
			t.Fatal(err)
		}
		l.Commit(a)
		l.Release("t-1")
	}
}

func TestChoiceOfCard(t *testing.T) {
	l := testLedger(3)
	take := func(id string, r Request) int {
		t.Helper()
		a, err := l.Admit(id, 0, r)
		if err != nil {
			t.Fatal(err)
		}
		l.Commit(a)
		return a.Cards[0]
	}
	if got := take("t-a", Request{Memory: mem(4), Cards: []string{"GPU-1"}}); got != 1 {
		t.Errorf("by UUID: card %d, want 1", got)
	}
	if got := take("t-b", Request{Memory: mem(4)}); got != 0 {
		t.Errorf("the emptiest, first: card %d, want 0", got)
	}
	if got := take("t-c", Request{Memory: mem(4)}); got != 2 {
		t.Errorf("the emptiest: card %d, want 2", got)
	}
	if _, err := l.Admit("t-d", 0, Request{Cards: []string{"7"}}); err == nil || !strings.Contains(err.Error(), `no card "7": there are 0 (GPU-0)`) {
		t.Errorf("unknown card: %v", err)
	}
	var r *Refusal
	if _, err := l.Admit("t-d", 0, Request{Memory: mem(12)}); !errors.As(err, &r) || r.Free != 11*gi {
		t.Errorf("nowhere: %v, want the refusal of a card with 11Gi", err)
	}
	if _, err := l.Admit("t-d", 0, Request{Cards: []string{"all"}}); err == nil {
		t.Error("three cards for one program were granted")
	}
}

func TestSenselessRequests(t *testing.T) {
	for want, r := range map[string]Request{
		"has no weights":      {Policy: policy(governor.Fair), Weight: 2},
		"no fixed share":      {Policy: policy(governor.Weighted), Compute: 100},
		"has no priorities":   {Policy: policy(governor.Native), Priority: "high"},
		"needs a share":       {Policy: policy(governor.Fixed)},
		"unknown policy":      {Policy: policy(99)},
		"unknown priority":    {Priority: "urgent"},
		"level":               {Level: "loose"},
		"printable":           {Name: "a\x1b[2J"},
		"compute -1":          {Compute: -1},
		"weight 1001":         {Weight: 1001},
		"percentage":          {Memory: Memory{Percent: -3}},
		"cycle -1ns: want a ": {Cycle: -1},
	} {
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, want one line with %q", r, err, want)
		}
	}
}

// Whatever comes and goes, no card is promised twice, and a question changes nothing.
func TestNeverOversubscribed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := testLedger(rapid.IntRange(1, 3).Draw(t, "cards"))
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			if p := l.Promises(-1); len(p) > 0 && rapid.IntRange(0, 3).Draw(t, "leave") == 0 {
				l.Release(rapid.SampledFrom(p).Draw(t, "who").ID)
				continue
			}
			before := *l
			before.promises = slices.Clone(l.promises)
			before.slots = slices.Clone(l.slots)
			a, err := l.Admit(fmt.Sprintf("t-%d", i), 0, drawRequest(t))
			if !reflect.DeepEqual(before.promises, l.promises) && len(l.promises) > 0 || !reflect.DeepEqual(before.slots, l.slots) {
				t.Fatal("Admit changed the ledger")
			}
			if err == nil {
				l.Commit(a)
			}
			checkLedger(t, l)
		}
	})
}

func drawRequest(t *rapid.T) Request {
	r := Request{
		Memory:   Memory{Bytes: rapid.SampledFrom([]int64{0, gi, 3 * gi, 15 * gi, 20 * gi}).Draw(t, "mem")},
		Compute:  governor.Milli(rapid.SampledFrom([]int{0, 0, 1, 200, 300, 1000}).Draw(t, "compute")),
		Weight:   rapid.SampledFrom([]int{0, 0, 1, 7}).Draw(t, "weight"),
		Priority: rapid.SampledFrom([]string{"", "", "high", "low"}).Draw(t, "priority"),
	}
	if rapid.Bool().Draw(t, "named") {
		r.Policy = policy(governor.Policy(rapid.IntRange(0, 7).Draw(t, "policy")))
	}
	return r
}

func checkLedger(t *rapid.T, l *Ledger) {
	for i := range l.slots {
		here := l.Promises(i)
		var sum int64
		unlimited := 0
		g, err := governor.New(l.Config(i))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range here {
			sum += p.Memory
			if p.Memory == 0 {
				unlimited++
			}
			if err := g.Put(p.Tenant); err != nil {
				t.Fatalf("card %d: the governor would not take %+v: %v", i, p.Tenant, err)
			}
		}
		if sum > 15*gi || unlimited > 0 && unlimited < len(here) {
			t.Fatalf("card %d: %d promised to %d tenants, %d of them unlimited", i, sum, len(here), unlimited)
		}
	}
}

// A restarted agent has the same promises, and the same room left.
func TestRestore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := testLedger(2)
		for i := range 8 {
			if a, err := l.Admit(fmt.Sprintf("t-%d", i), 0, drawRequest(t)); err == nil {
				l.Commit(a)
			}
		}
		again := testLedger(2)
		for _, p := range l.Promises(-1) {
			if _, err := again.Restore(p); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 2 {
			if l.Free(i) != again.Free(i) || len(l.Promises(i)) != len(again.Promises(i)) {
				t.Fatalf("card %d: %d free and %d tenants, was %d and %d", i, again.Free(i), len(again.Promises(i)), l.Free(i), len(l.Promises(i)))
			}
		}
		checkLedger(t, again)
	})
}
