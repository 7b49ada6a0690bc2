package kernel

import (
	"os"
	"slices"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// giveBack forwards a call that may release device memory. book makes the
// ledger's change, with the session's lock held; mayRelease says beforehand
// whether memory is due, so that calls that only drop one of several
// references are not measured.
//
// In strict the refund is checked against the card: memory that something the
// ledger does not know of still holds (a mapping made by a racing thread, a
// reference inside the driver) does not come back, and stays charged as limbo
// until it does.
func (s *Session) giveBack(k *call, mayRelease func(*ledger) bool, book func()) answer {
	s.mu.Lock()
	measured := s.level == Strict && (s.ledger.limbo > 0 || mayRelease(s.ledger))
	s.mu.Unlock()
	if !measured {
		return s.forward(k, &staged{}, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			book()
		})
	}
	return s.measuredRelease(k, book)()
}

// measuredRelease makes the call between two looks at the card and books what
// really came back. The memory lock is held for that, not for the delivery.
func (s *Session) measuredRelease(k *call, book func()) func() answer {
	c := s.card
	c.memory.Lock()
	defer c.memory.Unlock()
	_, before, errBefore := c.control.memory()
	return s.execute(k, &staged{}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		held := s.ledger.objects + s.ledger.overhead
		book()
		due := held - s.ledger.objects - s.ledger.overhead
		_, after, errAfter := c.control.memory()
		if errBefore != nil || errAfter != nil {
			return // the ledger's own figure stands; the reconciler reports drift
		}
		s.ledger.limbo = max(0, s.ledger.limbo+due-max(0, before-after))
	})
}

// lastReference reports whether freeing a handle, or what hangs under it,
// drops the last reference to some memory.
func (l *ledger) lastReference(ch, h nvidia.Handle) bool {
	c := l.clients[ch]
	if c == nil {
		return false
	}
	if h == ch {
		return true // a whole client: measure rather than search
	}
	o := c.objects[h]
	if o == nil {
		return false
	}
	return len(o.children) > 0 || (o.mem != nil && o.mem.refs == 1)
}

// lastMapping reports whether an external range that lies in [base,
// base+length), or starts at base, holds the last reference to some memory.
func (l *ledger) lastMapping(held int, base, length uint64) bool {
	for k, x := range l.external {
		if k.held != held || k.base < base || k.base-base >= max(length, 1) {
			continue
		}
		for _, list := range x.mapped {
			for _, m := range list {
				if m.refs <= len(x.mapped) {
					return true
				}
			}
		}
	}
	return false
}

// purchaseCall makes an allocation while no release is being measured. judge
// settles the reservation with the driver's answer; a call that the driver
// does not execute gives it back.
func (s *Session) purchaseCall(k *call, st *staged, p *purchase, judge func()) func() answer {
	if s.level == Strict && (p.vram || p.overhead != 0) {
		s.card.memory.Lock()
		defer s.card.memory.Unlock()
	}
	executed := false
	finish := s.execute(k, st, func() {
		executed = true
		judge()
	})
	if !executed {
		s.cancel(p)
	}
	return finish
}

// Drift is how the card's own figure compares with what tenants are charged.
type Drift struct {
	UsedBytes     int64 // on the card, by whomever
	BaselineBytes int64 // of that, by others than tenants: what was there before them, or what processes that are none hold now
	ChargedBytes  int64 // objects, overhead and limbo of all tenants
	ManagedBytes  int64 // managed ranges, whose pages may be anywhere
	DriftBytes    int64 // used − baseline − charged: what no charge explains
}

// Reconcile compares charges with the card, and gives limbo back as far as the
// card shows that it is not in use any more. baseline is what the card held
// when no tenant was there, in bytes; it is remembered for audits in between.
func (c *Card) Reconcile(baseline int64) (Drift, error) {
	c.exorcise()
	c.memory.Lock()
	defer c.memory.Unlock()
	c.baseline = &baseline
	return c.compare()
}

// settleLimbo is Reconcile with the baseline that is known.
func (c *Card) settleLimbo() {
	c.memory.Lock()
	defer c.memory.Unlock()
	if c.baseline != nil {
		_, _ = c.compare()
	}
}

// others returns the device memory of processes that are no tenants': the
// machine's owner may use the card beside them.
func (c *Card) others() (int64, error) {
	pids, err := c.control.holders()
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	tenants := map[int]bool{os.Getpid(): true}
	for _, s := range c.sessions {
		s.mu.Lock()
		for pid := range s.procs {
			tenants[pid] = true
		}
		s.mu.Unlock()
	}
	c.mu.Unlock()
	pids = slices.DeleteFunc(pids, func(p uint32) bool { return tenants[int(p)] })
	return c.control.heldBy(pids)
}

// compare does the work of Reconcile. The memory lock is held.
func (c *Card) compare() (Drift, error) {
	_, used, err := c.control.memory()
	if err != nil {
		return Drift{}, err
	}
	others, err := c.others()
	if err != nil {
		return Drift{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	d := Drift{UsedBytes: used, BaselineBytes: max(*c.baseline, others)}
	var sure int64
	for _, s := range c.sessions {
		s.mu.Lock()
		sure += s.ledger.objects + s.ledger.overhead
		d.ManagedBytes += s.ledger.managed()
		s.mu.Unlock()
	}
	unexplained := max(0, used-d.BaselineBytes-sure)
	d.ChargedBytes = sure
	for _, s := range c.sessions {
		s.mu.Lock()
		s.ledger.limbo = min(s.ledger.limbo, unexplained)
		unexplained -= s.ledger.limbo
		d.ChargedBytes += s.ledger.limbo
		s.mu.Unlock()
	}
	d.DriftBytes = used - d.BaselineBytes - d.ChargedBytes
	return d, nil
}

// unexplained is the device memory that neither charges nor others explain, in
// bytes: the drift, less what managed ranges may hold of it. Tenants' own
// allocations do not change it: each is booked while the memory lock is held.
func (c *Card) unexplained() int64 {
	c.memory.Lock()
	defer c.memory.Unlock()
	if c.baseline == nil {
		c.baseline = new(int64)
	}
	d, err := c.compare()
	if err != nil {
		return 0
	}
	return d.DriftBytes - d.ManagedBytes
}
