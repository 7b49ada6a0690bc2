package kernel

// giveBack forwards a call that may release device memory. book makes the
// ledger's change, with the session's lock held.
//
// In strict the refund is checked against the card: memory that something the
// ledger does not know of still holds (a mapping made by a racing thread, a
// reference inside the driver) does not come back, and stays charged as limbo
// until it does.
func (s *Session) giveBack(k *call, book func()) answer {
	if s.level != Strict {
		return s.forward(k, &staged{}, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			book()
		})
	}
	c := s.card
	c.memory.Lock()
	defer c.memory.Unlock()
	_, before, errBefore := c.control.memory()
	return s.forward(k, &staged{}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		held := s.ledger.objects
		book()
		due := held - s.ledger.objects
		if due == 0 && s.ledger.limbo == 0 {
			return
		}
		_, after, errAfter := c.control.memory()
		if errBefore != nil || errAfter != nil {
			return // the ledger's own figure stands; the reconciler reports drift
		}
		s.ledger.limbo = max(0, s.ledger.limbo+due-max(0, before-after))
	})
}

// holdMemory keeps other tenants' releases from being measured while this
// purchase is made, and returns what ends that.
func (s *Session) holdMemory(p *purchase) func() {
	if s.level != Strict || (!p.vram && p.overhead == 0) {
		return func() {}
	}
	s.card.memory.Lock()
	return s.card.memory.Unlock
}

// Drift is how the card's own figure compares with what tenants are charged.
type Drift struct {
	UsedBytes     int64 // on the card, by whomever
	BaselineBytes int64 // of that, by others than tenants
	ChargedBytes  int64 // objects, overhead and limbo of all tenants
	ManagedBytes  int64 // managed ranges, whose pages may be anywhere
	DriftBytes    int64 // used − baseline − charged: what no charge explains
}

// Reconcile compares charges with the card, and gives limbo back as far as the
// card shows that it is not in use any more. baseline is what the card held
// when no tenant was there.
func (c *Card) Reconcile(baseline int64) (Drift, error) {
	c.memory.Lock()
	defer c.memory.Unlock()
	_, used, err := c.control.memory()
	if err != nil {
		return Drift{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	d := Drift{UsedBytes: used, BaselineBytes: baseline}
	var sure int64
	for _, s := range c.sessions {
		s.mu.Lock()
		sure += s.ledger.objects + s.ledger.overhead
		d.ManagedBytes += s.ledger.managed
		s.mu.Unlock()
	}
	unexplained := max(0, used-baseline-sure)
	d.ChargedBytes = sure
	for _, s := range c.sessions {
		s.mu.Lock()
		s.ledger.limbo = min(s.ledger.limbo, unexplained)
		unexplained -= s.ledger.limbo
		d.ChargedBytes += s.ledger.limbo
		s.mu.Unlock()
	}
	d.DriftBytes = used - baseline - d.ChargedBytes
	return d, nil
}
