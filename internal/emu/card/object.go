package card

import "slices"

// client is one RM client: a handle that only the file which made it may use.
type client struct {
	handle  uint32
	file    *file
	pid     int
	objects map[uint32]*object
	root    *object
	next    uint32
}

// object is one node of a client's tree.
type object struct {
	handle   uint32
	class    uint32
	client   *client
	parent   *object
	children []*object

	mem *region  // memory objects, and a channel group's context buffers
	tsg *tsg     // channel groups, and channels that hang under a device
	ch  *channel // channels
}

// export is one object attached to a descriptor.
type export struct {
	class uint32
	mem   *region
}

// newClient makes a client for a file. A requested handle is taken when nobody has it.
func (c *Card) newClient(f *file, pid int, want uint32) (*client, uint32) {
	if f.refs <= 0 {
		return nil, stInvalidClient // closed while the call was under way
	}
	if want != 0 && c.clients[want] != nil {
		return nil, stDuplicateName
	}
	for want == 0 || c.clients[want] != nil {
		c.nextClient++
		want = c.nextClient
	}
	cl := &client{handle: want, file: f, pid: pid, objects: map[uint32]*object{}, next: 0xcaf00000}
	cl.root = &object{handle: want, class: clsRootClient, client: cl}
	cl.objects[want] = cl.root
	c.clients[want] = cl
	f.clients = append(f.clients, cl)
	return cl, stOK
}

// lookup finds a client that the file may use.
func (c *Card) lookup(f *file, handle uint32) (*client, uint32) {
	cl := c.clients[handle]
	if cl == nil || cl.file != f.owner() {
		return nil, stInvalidClient
	}
	return cl, stOK
}

// insert adds an object under a parent. A zero handle asks for a fresh one.
func (cl *client) insert(parent *object, handle, class uint32) (*object, uint32) {
	if handle != 0 && cl.objects[handle] != nil {
		return nil, stDuplicateName
	}
	for handle == 0 || cl.objects[handle] != nil {
		cl.next++
		handle = cl.next
	}
	o := &object{handle: handle, class: class, client: cl, parent: parent}
	cl.objects[handle] = o
	parent.children = append(parent.children, o)
	return o, stOK
}

// freeObject frees an object and everything below it, the youngest first.
func (c *Card) freeObject(o *object) {
	for len(o.children) > 0 {
		c.freeObject(o.children[len(o.children)-1])
	}
	if o.ch != nil {
		o.ch.remove()
		o.ch = nil
	}
	if o.tsg != nil {
		o.tsg.remove()
		o.tsg = nil
	}
	c.drop(o.mem)
	o.mem = nil
	delete(o.client.objects, o.handle)
	if p := o.parent; p != nil {
		if i := slices.Index(p.children, o); i >= 0 {
			p.children = slices.Delete(p.children, i, i+1)
		}
	}
}

// freeClient frees a client and all it has.
func (c *Card) freeClient(cl *client) {
	c.freeObject(cl.root)
	delete(c.clients, cl.handle)
	if i := slices.Index(cl.file.clients, cl); i >= 0 {
		cl.file.clients = slices.Delete(cl.file.clients, i, i+1)
	}
}
