package kernel

import (
	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// enter books an object under its client, which the ledger learns of here:
// the driver has just accepted its handle from this file. If it cannot be
// booked, because it is larger than asked for and does not fit or because the
// tenant has too many, it is freed and false returned.
func (s *Session) enter(k *call, root nvidia.Handle, o *object) bool {
	s.mu.Lock()
	c, err := s.client(k, root)
	if err == nil && o.mem != nil {
		err = s.ledger.room(o.mem.bytes)
	}
	if err == nil && s.ledger.count >= maxObjects {
		err = errTooMany
	}
	if err == nil {
		s.ledger.addObject(c, o)
		s.record(entryObject(c, o))
	}
	s.mu.Unlock()
	if err == nil {
		return true
	}
	s.refused("object that cannot be booked: " + err.Error())
	s.discard(k, root, o)
	return false
}

// discard frees an object that the driver has made and the tenant must not
// have.
func (s *Session) discard(k *call, root nvidia.Handle, o *object) {
	arg, _, ok := s.arena.Take(nvidia.SizeFree)
	if !ok || (nvidia.Free{Root: root, Parent: o.parent, Object: o.handle}).Put(arg) != nil {
		return
	}
	ctl := k.file
	s.mu.Lock()
	if h := s.fileOf(root); h != nil {
		ctl = h.file // the call may have come on a card's file
	}
	s.mu.Unlock()
	if _, err := s.driver.Ioctl(ctl, nvidia.Cmd(nvidia.EscFree, nvidia.SizeFree), arg); err != nil {
		s.log.Error("free an object that cannot be booked", "tenant", s.tenant, "err", err)
	}
}

// client returns the ledger's client for a root handle that the driver has
// just accepted from the caller's file. The lock is held.
func (s *Session) client(k *call, root nvidia.Handle) (*client, error) {
	if c := s.ledger.clients[root]; c != nil {
		return c, nil
	}
	if k.file.Kind != ControlFile {
		return nil, errForeignClient
	}
	h, err := s.hold(k)
	if err != nil {
		return nil, err
	}
	c := s.ledger.addClient(root, h.id)
	s.record(entryClient(c))
	return c, nil
}

// free judges RM_FREE: forwarded, and refunded when the driver agrees.
func (s *Session) free(k *call) answer {
	var gone freed
	emptied := -1
	asked, err := nvidia.DecodeFree(k.arg)
	if err != nil {
		return s.abort(k, &staged{}, err)
	}
	last := func(l *ledger) bool { return l.lastReference(asked.Root, asked.Object) }
	a := s.giveBack(k, last, func() {
		f, err := nvidia.DecodeFree(k.arg)
		if err != nil || f.Status != nvidia.StatusOK {
			return
		}
		if f.Object == f.Root {
			emptied = 0
			if c := s.ledger.clients[f.Root]; c != nil {
				emptied = c.held
			}
		}
		gone = s.ledger.freeHandle(f.Root, f.Object)
		s.record(entryFree(f.Root, f.Object))
	})
	s.retire(gone)
	if emptied >= 0 {
		s.letGo(emptied, k)
	}
	return a
}

// letGo gives up a file whose client was freed, so that another may be made
// on it. The client may never have been seen in use.
func (s *Session) letGo(id int, k *call) {
	s.mu.Lock()
	var h *held
	for _, x := range s.held {
		if x.id == id || (id == 0 && x.file.Kind == ControlFile && !s.ledger.owned(x.id) && s.ops.same(x.file, k.file)) {
			h = x
		}
	}
	if h != nil && s.ledger.owned(h.id) {
		h = nil
	}
	s.mu.Unlock()
	if h != nil {
		s.release(h)
	}
}

// owned reports whether a client lives on a held file.
func (l *ledger) owned(id int) bool {
	for _, c := range l.clients {
		if c.held == id {
			return true
		}
	}
	return false
}

// dup judges DUP_OBJECT. Only objects of the tenant's own clients may be
// duplicated: with a leaked handle a neighbour's memory could be taken hold of.
func (s *Session) dup(k *call) answer {
	d, err := nvidia.DecodeDup(k.arg)
	if err != nil {
		return s.abort(k, &staged{}, err)
	}
	if !s.knows(d.SrcClient, d.SrcObject) || (s.level == Strict && d.Parent != d.Dst && !s.usable(d.Dst, d.Parent, k.file)) {
		return s.deny(k, nvidia.StatusInsufficientPermissions, dupStatus, "duplicate of an object that is not the tenant's")
	}
	if s.grouped(d.SrcClient, d.SrcObject) {
		return s.deny(k, nvidia.StatusNotSupported, dupStatus, "duplicate of a TSG or channel")
	}
	return s.forward(k, &staged{}, func() { s.duplicated(k) })
}

// duplicated books a successful duplicate: another handle on the same memory.
// A TSG or channel is not governed twice, but the group stays as long as either
// handle does only in the driver, so duplicating one is refused beforehand.
func (s *Session) duplicated(k *call) {
	d, err := nvidia.DecodeDup(k.arg)
	if err != nil || d.Status != nvidia.StatusOK {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &object{handle: d.Object, parent: d.Parent}
	if sc := s.ledger.clients[d.SrcClient]; sc != nil && sc.objects[d.SrcObject] != nil {
		src := sc.objects[d.SrcObject]
		o.class, o.mem, o.unvetted = src.class, src.mem, src.unvetted
	}
	c, err := s.client(k, d.Dst)
	if err != nil {
		s.log.Error("duplicate by an unknown client", "tenant", s.tenant, "err", err)
		return
	}
	s.ledger.addObject(c, o)
	s.record(entryDup(d))
}
