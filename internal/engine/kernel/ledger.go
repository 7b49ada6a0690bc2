package kernel

import (
	"fmt"
	"maps"
	"slices"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// memory is one piece of device memory. It is charged once, however many
// handles, mappings and exports refer to it, until the last of them is gone.
type memory struct {
	bytes int64
	refs  int
}

// object is one handle of a driver client.
type object struct {
	handle   nvidia.Handle
	parent   nvidia.Handle
	class    nvidia.Class
	mem      *memory // nil for what holds no device memory
	overhead int64   // device memory the driver takes for the object itself
	group    *group  // scheduling group or bare channel set, nil otherwise
	unvetted bool    // made in the caller; look at it before its first use
	foreign  bool    // a device that was not granted
	children []nvidia.Handle
}

// client is one driver client (root object). A process may have several: the
// decoder's is its own.
type client struct {
	handle  nvidia.Handle
	held    int // the file that owns it
	objects map[nvidia.Handle]*object
}

// rangeKey names a range of a unified address space, by the file that the
// space belongs to.
type rangeKey struct {
	held int
	base uint64
}

// external is an external range: device memory mapped into a process's
// unified address space, which holds a reference of its own.
type external struct {
	length uint64
	mapped map[nvidia.UUID][]*memory
}

// QuotaError is the refusal of device memory.
type QuotaError struct{ Want, Charged, Limit int64 }

func (e *QuotaError) Error() string {
	return fmt.Sprintf("%d bytes asked with %d of %d charged", e.Want, e.Charged, e.Limit)
}

// ledger is what one tenant is charged for on one card. It is pure: no calls,
// no clock, no lock (the session's lock guards it).
type ledger struct {
	limit    int64 // bytes; 0 = no limit
	objects  int64 // bytes held by driver objects, their mappings and exports
	overhead int64 // bytes the driver takes for scheduling groups
	reserved int64 // bytes of allocations that are being made
	limbo    int64 // bytes that should have come back and were not seen to
	clients  map[nvidia.Handle]*client
	external map[rangeKey]*external
	exported map[int][]*memory // by the exporting file: a descriptor may outlive the handle
	mapped   map[int]int64     // managed ranges of a process, by length, as last seen
	pending  []pendingMap      // mappings that were let through and not seen yet
	count    int               // objects
}

// pendingMap is a mapping that may be, or become, a managed range.
type pendingMap struct {
	pid, tid int
	base     uint64
	bytes    int64
	left     bool // the thread has left the call: what it made is in mapped
}

func newLedger(limit int64) *ledger {
	return &ledger{
		limit:    limit,
		clients:  map[nvidia.Handle]*client{},
		external: map[rangeKey]*external{},
		exported: map[int][]*memory{},
		mapped:   map[int]int64{},
	}
}

// charged is the sum that counts against the limit, in bytes.
func (l *ledger) charged() int64 { return l.objects + l.overhead + l.reserved + l.managed() + l.limbo }

// managed is what managed ranges are charged, in bytes: their length, wherever
// their pages are, since the driver may move all of them to the device.
func (l *ledger) managed() int64 {
	var sum int64
	for _, n := range l.mapped {
		sum += n
	}
	for _, p := range l.pending {
		sum += p.bytes
	}
	return sum
}

// room returns nil when want more bytes fit.
func (l *ledger) room(want int64) error {
	if l.limit > 0 && (want > l.limit || l.charged() > l.limit-want) {
		return &QuotaError{Want: want, Charged: l.charged(), Limit: l.limit}
	}
	return nil
}

// free is what the tenant may still allocate out of total card bytes.
func (l *ledger) free(total int64) int64 {
	limit := total
	if l.limit > 0 && l.limit < limit {
		limit = l.limit
	}
	return max(0, limit-l.charged())
}

// addClient registers a root object. A handle seen before belongs to a client
// that went away with its file, so what it held is refunded first.
func (l *ledger) addClient(h nvidia.Handle, held int) *client {
	l.dropClient(h)
	c := &client{handle: h, held: held, objects: map[nvidia.Handle]*object{}}
	l.clients[h] = c
	return c
}

// addObject books an object and charges its memory.
func (l *ledger) addObject(c *client, o *object) {
	if old := c.objects[o.handle]; old != nil {
		l.freeTree(c, old, nil)
	}
	c.objects[o.handle] = o
	l.count++
	if p := c.objects[o.parent]; p != nil {
		p.children = append(p.children, o.handle)
	}
	l.retain(o.mem)
	l.overhead += o.overhead
}

func (l *ledger) retain(m *memory) {
	if m == nil {
		return
	}
	if m.refs == 0 {
		l.objects += m.bytes
	}
	m.refs++
}

func (l *ledger) release(m *memory) {
	if m == nil {
		return
	}
	m.refs--
	if m.refs == 0 {
		l.objects -= m.bytes
	}
}

// freed reports the objects that a free took away, groups first of interest.
type freed []*object

// free removes handle and everything below it; the client itself when handle
// is the client's.
func (l *ledger) freeHandle(ch, h nvidia.Handle) freed {
	c := l.clients[ch]
	if c == nil {
		return nil
	}
	if h == ch {
		return l.dropClient(ch)
	}
	o := c.objects[h]
	if o == nil {
		return nil
	}
	if p := c.objects[o.parent]; p != nil {
		p.children = slices.DeleteFunc(p.children, func(x nvidia.Handle) bool { return x == h })
	}
	return l.freeTree(c, o, nil)
}

func (l *ledger) freeTree(c *client, o *object, out freed) freed {
	delete(c.objects, o.handle)
	l.count--
	for _, h := range o.children {
		if child := c.objects[h]; child != nil && child.parent == o.handle {
			out = l.freeTree(c, child, out)
		}
	}
	l.release(o.mem)
	l.overhead -= o.overhead
	return append(out, o)
}

func (l *ledger) dropClient(h nvidia.Handle) freed {
	c := l.clients[h]
	if c == nil {
		return nil
	}
	delete(l.clients, h)
	l.count -= len(c.objects)
	var out freed
	for _, k := range slices.Sorted(maps.Keys(c.objects)) {
		o := c.objects[k]
		l.release(o.mem)
		l.overhead -= o.overhead
		out = append(out, o)
	}
	return out
}

// dropHeld refunds everything that hung on one file.
func (l *ledger) dropHeld(id int) freed {
	var out freed
	for _, h := range slices.Sorted(maps.Keys(l.clients)) {
		if l.clients[h].held == id {
			out = append(out, l.dropClient(h)...)
		}
	}
	for k, x := range l.external {
		if k.held == id {
			l.dropExternal(k, x)
		}
	}
	for _, m := range l.exported[id] {
		l.release(m)
	}
	delete(l.exported, id)
	return out
}

// dropProcess refunds what hung on a process's address space.
func (l *ledger) dropProcess(pid int) {
	delete(l.mapped, pid)
	l.pending = slices.DeleteFunc(l.pending, func(p pendingMap) bool { return p.pid == pid })
}

// lookup returns the device memory behind a handle, nil when it has none.
func (l *ledger) lookup(ch, h nvidia.Handle) *memory {
	if c := l.clients[ch]; c != nil {
		if o := c.objects[h]; o != nil {
			return o.mem
		}
	}
	return nil
}

// mapExternal adds the reference that a unified-memory mapping holds.
func (l *ledger) mapExternal(k rangeKey, length uint64, gpus []nvidia.UUID, m *memory) {
	if m == nil {
		return
	}
	x := l.external[k]
	if x == nil {
		x = &external{mapped: map[nvidia.UUID][]*memory{}}
		l.external[k] = x
	}
	x.length = max(x.length, length)
	for _, g := range gpus {
		// What is mapped there already stays charged until the range goes: this
		// call is booked before the driver has agreed to it.
		if !slices.Contains(x.mapped[g], m) {
			l.retain(m)
			x.mapped[g] = append(x.mapped[g], m)
		}
	}
}

// unmapExternal drops the references of the mappings that lie wholly inside
// [base, base+length) for one GPU. A partly unmapped one stays charged.
func (l *ledger) unmapExternal(held int, base, length uint64, gpu nvidia.UUID) {
	for k, x := range l.external {
		if k.held != held || k.base < base || k.base-base > length || x.length > length-(k.base-base) {
			continue
		}
		for _, m := range x.mapped[gpu] {
			l.release(m)
		}
		delete(x.mapped, gpu)
		if len(x.mapped) == 0 {
			delete(l.external, k)
		}
	}
}

// freeRange drops what UVM_FREE of the range at base destroys. A managed range
// stays charged until it is seen to be unmapped.
func (l *ledger) freeRange(held int, base uint64) {
	k := rangeKey{held, base}
	if x := l.external[k]; x != nil {
		l.dropExternal(k, x)
	}
}

func (l *ledger) dropExternal(k rangeKey, x *external) {
	for _, list := range x.mapped {
		for _, m := range list {
			l.release(m)
		}
	}
	delete(l.external, k)
}

// export keeps m charged until the exporting file is gone, and longer if the
// card then does not show it as free: the file descriptor that now refers to
// it cannot be followed.
func (l *ledger) export(held int, m *memory) {
	if m != nil {
		l.retain(m)
		l.exported[held] = append(l.exported[held], m)
	}
}
