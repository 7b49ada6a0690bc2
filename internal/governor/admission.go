package governor

import "fmt"

// remainderMin is the least that must be left for those who share beside hard or
// guaranteed shares.
const remainderMin Milli = 10

// maxWeight bounds weights.
const maxWeight = 1000

// FullError says why a tenant does not fit on the card, and what would.
type FullError struct {
	Tenant TenantID
	// Asked and Free are shares of the card; Free would fit.
	Asked, Free Milli
	// Reason is the whole story in one line.
	Reason string
}

// Error returns the reason.
func (e *FullError) Error() string { return e.Reason }

// Percent formats a share.
func (m Milli) Percent() string {
	if m%10 == 0 {
		return fmt.Sprintf("%d%%", m/10)
	}
	return fmt.Sprintf("%d.%d%%", m/10, m%10)
}

// derive says what a policy makes of one grant: whether the share is a hard cap,
// the share (0: none promised) and the weight among those who share.
func derive(cfg Config, t Tenant) (hard bool, share Milli, weight int64) {
	w := int64(max(t.Weight, 1))
	switch cfg.Policy {
	case Fair:
		return true, Card / Milli(cfg.MaxInst), w
	case Fixed:
		if t.Share > 0 {
			return true, t.Share, w
		}
		return true, Milli(int64(Card) * w / int64(cfg.MaxInst)), w
	case Mixed:
		return t.Share > 0, t.Share, w
	case Burst:
		return false, t.Share, w
	case Weighted:
		return false, 0, w
	default: // Preemptive, Soft, Native
		return false, 0, 1
	}
}

// lendRemainder turns the guarantees of Burst into weights: those without one
// share by weight what nobody was promised.
func lendRemainder(cfg Config, ts []*tenant) {
	if cfg.Policy != Burst {
		return
	}
	rest, weights := int64(Card), int64(0)
	for _, t := range ts {
		rest -= int64(t.share)
		if t.share == 0 {
			weights += t.weight
		}
	}
	for _, t := range ts {
		if t.share > 0 {
			t.weight = int64(t.share) * max(weights, 1)
		} else {
			t.weight *= rest
		}
	}
}

// admit says whether the tenants fit together; the last one is to blame if not.
func admit(cfg Config, ts []Tenant) error {
	if len(ts) == 0 {
		return nil
	}
	for _, t := range ts {
		switch {
		case t.ID == "":
			return fmt.Errorf("a tenant needs an id")
		case t.Share < 0 || t.Share > Card:
			return fmt.Errorf("tenant %q: share is %d: must be 0–%d thousandths", t.ID, t.Share, Card)
		case t.Weight < 0 || t.Weight > maxWeight:
			return fmt.Errorf("tenant %q: weight is %d: must be 0–%d", t.ID, t.Weight, maxWeight)
		case int(t.Priority) >= len(priorityNames):
			return fmt.Errorf("tenant %q: unknown priority %d", t.ID, t.Priority)
		}
	}
	last := ts[len(ts)-1]
	if len(ts) > cfg.MaxInst {
		return &FullError{Tenant: last.ID, Reason: fmt.Sprintf(
			"tenant %q does not fit: the card takes %d tenants (max_inst) and has %d", last.ID, cfg.MaxInst, len(ts)-1)}
	}
	return admitShares(cfg, ts)
}

// admitShares checks that the promised shares fit on the card, with something
// left for those who share.
func admitShares(cfg Config, ts []Tenant) error {
	last := ts[len(ts)-1]
	var promised, asked Milli
	var owners, sharing int
	for i, t := range ts {
		_, share, _ := derive(cfg, t)
		if share == 0 {
			sharing++
			continue
		}
		if i == len(ts)-1 {
			asked = share
			break
		}
		promised += share
		owners++
	}
	free := Card - promised
	if promised == 0 && asked == 0 {
		return nil // nothing was promised to anybody
	}
	if sharing > 0 {
		free -= remainderMin
	}
	switch {
	case asked == 0 && free < 0:
		return &FullError{Tenant: last.ID, Reason: fmt.Sprintf(
			"tenant %q shares the remainder, but %s of the card is promised to %d tenants and %s must be left",
			last.ID, promised.Percent(), owners, remainderMin.Percent())}
	case asked > free:
		reason := fmt.Sprintf("tenant %q: a share of %s does not fit: %s of the card is promised to %d tenants",
			last.ID, asked.Percent(), promised.Percent(), owners)
		if sharing > 0 {
			reason += fmt.Sprintf(" and %s is kept for %d who share the remainder", remainderMin.Percent(), sharing)
		}
		if free > 0 {
			reason += fmt.Sprintf("; up to %s would fit", free.Percent())
		} else {
			reason += "; nothing is free"
		}
		return &FullError{Tenant: last.ID, Asked: asked, Free: max(free, 0), Reason: reason}
	}
	return nil
}
