package alloc

import (
	"cmp"
	"fmt"
	"slices"
)

// Quota is what one tenant is guaranteed, and how far it may borrow what others leave idle.
type Quota struct {
	Tenant     string
	Guaranteed int64 // thousandths of a card
	Limit      int64 // guaranteed and borrowed together; 0: no limit
	Weight     int64 // of the tenant's claim to idle capacity; 0 counts as its guarantee, or 1
}

// Ledger counts compute by tenant against quotas. It is a value of the caller's: the fleet knows grants, the ledger
// knows whose turn it is.
type Ledger struct {
	quotas map[string]Quota
	used   map[string]int64
	total  int64
}

// NewLedger makes a ledger for a cluster of total thousandths of a card. It fails when tenants repeat, amounts are
// negative, a limit is below its guarantee, or the guarantees exceed the cluster.
func NewLedger(total int64, quotas []Quota) (*Ledger, error) {
	l := &Ledger{quotas: map[string]Quota{}, used: map[string]int64{}, total: total}
	sum := int64(0)
	for _, q := range quotas {
		if _, dup := l.quotas[q.Tenant]; dup {
			return nil, fmt.Errorf("quota of %q appears twice", q.Tenant)
		}
		if q.Guaranteed < 0 || q.Weight < 0 || q.Limit != 0 && q.Limit < q.Guaranteed {
			return nil, fmt.Errorf("quota of %q: guaranteed %d, limit %d, weight %d: expected none negative and the limit 0 or at least the guarantee",
				q.Tenant, q.Guaranteed, q.Limit, q.Weight)
		}
		q.Weight = max(1, cmp.Or(q.Weight, q.Guaranteed))
		sum += q.Guaranteed
		l.quotas[q.Tenant] = q
	}
	if sum > total {
		return nil, fmt.Errorf("guarantees add up to %d: expected at most the cluster's %d", sum, total)
	}
	return l, nil
}

// Charge books a grant (or, negative, its release).
func (l *Ledger) Charge(tenant string, compute int64) { l.used[tenant] += compute }

// Used is what a tenant holds.
func (l *Ledger) Used(tenant string) int64 { return l.used[tenant] }

// Admission is how a request stands against its tenant's quota.
type Admission uint8

// Admissions.
const (
	Within   Admission = iota // the guarantee covers it: it may take back what others borrowed
	Borrowed                  // beyond the guarantee: it runs on what is idle, and may be taken back
	Refused                   // beyond the limit, or an unknown tenant
)

// Admit judges a request of so much compute.
func (l *Ledger) Admit(tenant string, compute int64) (Admission, Reason) {
	q, ok := l.quotas[tenant]
	now := l.used[tenant] + compute
	switch {
	case !ok:
		return Refused, Reason{Node: -1, Device: -1, Code: QuotaExceeded, Want: compute}
	case now <= q.Guaranteed:
		return Within, Reason{Node: -1, Device: -1}
	case q.Limit != 0 && now > q.Limit:
		return Refused, Reason{Node: -1, Device: -1, Code: QuotaExceeded, Want: now, Have: q.Limit}
	}
	return Borrowed, Reason{Node: -1, Device: -1}
}

// borrowed is how much of what a tenant holds is beyond its guarantee, per unit of its weight: the DRF order of those
// who borrow (dominant share over compute, the one resource that is metered here).
func (l *Ledger) borrowed(tenant string) float64 {
	q := l.quotas[tenant]
	return float64(max(0, l.used[tenant]-q.Guaranteed)) / float64(max(1, q.Weight))
}

// Next picks the tenant to serve among those that wait: who is furthest below its guarantee first, relative to it;
// then who has borrowed least for its weight; ties by name.
func (l *Ledger) Next(waiting []string) (string, bool) {
	if len(waiting) == 0 {
		return "", false
	}
	return slices.MinFunc(waiting, func(a, b string) int {
		return cmp.Or(cmp.Compare(l.level(a), l.level(b)), cmp.Compare(a, b))
	}), true
}

// level is used/guaranteed − 1 below the guarantee (negative), and the borrowed share above it.
func (l *Ledger) level(tenant string) float64 {
	q := l.quotas[tenant]
	if q.Guaranteed > 0 && l.used[tenant] < q.Guaranteed {
		return float64(l.used[tenant])/float64(q.Guaranteed) - 1
	}
	return l.borrowed(tenant)
}

// Reclaimable reports whether a grant of that tenant and size may be taken back for someone within its guarantee: only
// what is borrowed, so that a tenant is never pushed below its own guarantee.
func (l *Ledger) Reclaimable(tenant string, compute int64) bool {
	return l.used[tenant]-compute >= l.quotas[tenant].Guaranteed
}
