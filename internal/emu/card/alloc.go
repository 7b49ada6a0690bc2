package card

import "syscall"

// Byte sizes of the allocation parameters the card reads.
const (
	sizeMemParams     = 128 // NV_MEMORY_ALLOCATION_PARAMS
	sizeTSGParams     = 20  // NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS
	sizeChannelParams = 368 // NV_CHANNEL_ALLOC_PARAMS

	sizeChannelParams550 = 360 // the same before 570
)

// paramsSize is what RM copies for a class; zero means that the card does not look at the parameters.
func paramsSize(class uint32) uint32 {
	switch {
	case class == clsMemLocal || class == clsMemPriv:
		return sizeMemParams
	case class == clsTSG:
		return sizeTSGParams
	case isChannel(class):
		return sizeChannelParams
	}
	return 0
}

// alloc is RM_ALLOC in both its layouts: root 0, parent 4, new 8, class 12, params 16; then paramsSize 24 and
// status 28, or rights 24, paramsSize 32, flags 36 and status 40.
func alloc(k *call) syscall.Errno {
	sizeAt, statusAt := 24, 28
	if len(k.buf) == sizeAllocRights {
		sizeAt, statusAt = 32, 40
	}
	class, ptr := u32(k.buf, 12), u64(k.buf, 16)
	want, given := paramsSize(class), u32(k.buf, sizeAt)
	if isChannel(class) && given == sizeChannelParams550 {
		want = given
	}
	var params []byte
	if want != 0 && ptr != 0 {
		if given != 0 && given != want {
			put32(k.buf, statusAt, stInvalidParams)
			return 0
		}
		params = make([]byte, want)
		if k.who.Mem.ReadAt(params, ptr) != nil {
			put32(k.buf, statusAt, stInvalidAddress)
			return 0
		}
	}
	st := k.locked(func() uint32 { return k.allocObject(class, params) })
	if st == stOK && params != nil && k.who.Mem.WriteAt(params, ptr) != nil {
		st = stInvalidAddress
	}
	put32(k.buf, statusAt, st)
	return 0
}

func (k *call) allocObject(class uint32, params []byte) uint32 {
	if isRoot(class) {
		cl, st := k.c.newClient(k.f.owner(), k.who.PID, u32(k.buf, 8))
		if st == stOK {
			put32(k.buf, 0, cl.handle)
			put32(k.buf, 8, cl.handle)
		}
		return st
	}
	cl, st := k.c.lookup(k.f, u32(k.buf, 0))
	if st != stOK {
		return st
	}
	parent := cl.objects[u32(k.buf, 4)]
	if parent == nil {
		return stInvalidParent
	}
	want := u32(k.buf, 8)
	if want != 0 && cl.objects[want] != nil {
		return stDuplicateName
	}
	o, st := k.c.build(cl, parent, want, class, params)
	if st == stOK {
		put32(k.buf, 8, o.handle)
	}
	return st
}

// build makes an object of a class; nothing of it stays when it fails.
func (c *Card) build(cl *client, parent *object, want, class uint32, params []byte) (*object, uint32) {
	switch {
	case class == clsDevice && parent != cl.root:
		return nil, stInvalidParent
	case class == clsSubdevice && parent.class != clsDevice:
		return nil, stInvalidParent
	case class == clsMemLocal || class == clsMemPriv:
		return c.buildMemory(cl, parent, want, class, params)
	case class == clsTSG:
		return c.buildTSG(cl, parent, want, params)
	case isChannel(class):
		return c.buildChannel(cl, parent, want, class, params)
	case !c.hasClass(class):
		return nil, stInvalidClass
	}
	return cl.insert(parent, want, class)
}

// hasClass refuses the engine objects of engines the card lacks; any other class is an opaque object.
func (c *Card) hasClass(class uint32) bool {
	switch class & 0xff {
	case 0xb7, 0xcf: // NVxxB7 and NVC9CF-like video encoders
		return c.cfg.Encoders > 0 || class>>8 < 0xa0
	case 0xb0:
		return c.cfg.Decoders > 0 || class>>8 < 0xa0
	}
	return true
}

// buildMemory reads NV_MEMORY_ALLOCATION_PARAMS: flags 8, attr 24, size 64. The size written back is what was
// taken.
func (c *Card) buildMemory(cl *client, parent *object, want, class uint32, params []byte) (*object, uint32) {
	if len(params) < sizeMemParams {
		return nil, stInvalidParams
	}
	size, flags, attr := u64(params, 64), u32(params, 8), u32(params, 24)
	if size == 0 {
		return nil, stInvalidArg
	}
	if elsewhere(attr, flags) {
		return cl.insert(parent, want, class)
	}
	o, st := c.newMemory(cl, parent, want, class, size)
	if st == stOK {
		put64(params, 64, uint64(o.mem.size))
		put64(params, 88, uint64(o.mem.size)-1)
	}
	return o, st
}

// newMemory takes video memory and makes its object.
func (c *Card) newMemory(cl *client, parent *object, want, class uint32, size uint64) (*object, uint32) {
	mem := c.take(size, cl.pid)
	if mem == nil {
		return nil, stNoMemory
	}
	o, st := cl.insert(parent, want, class)
	if st != stOK {
		c.drop(mem)
		return nil, st
	}
	o.mem = mem
	return o, stOK
}

// allocMemory is ALLOC_MEMORY: root 0, parent 4, new 8, class 12, flags 16, pMem 24, limit 32 (size−1),
// status 40.
func allocMemory(k *call) syscall.Errno {
	st := k.locked(func() uint32 {
		cl, st := k.c.lookup(k.f, u32(k.buf, 0))
		if st != stOK {
			return st
		}
		parent := cl.objects[u32(k.buf, 4)]
		if parent == nil {
			return stInvalidParent
		}
		class, limit := u32(k.buf, 12), u64(k.buf, 32)
		var o *object
		if class == clsMemLocal || class == clsMemPriv {
			if limit == ^uint64(0) {
				return stInvalidArg
			}
			o, st = k.c.newMemory(cl, parent, u32(k.buf, 8), class, limit+1)
		} else {
			o, st = cl.insert(parent, u32(k.buf, 8), class)
		}
		if st == stOK {
			put32(k.buf, 8, o.handle)
		}
		return st
	})
	put32(k.buf, 40, st)
	return 0
}

// Functions of VID_HEAP_CONTROL that the card has (NVOS32_FUNCTION_*).
const (
	heapAllocSize  = 2
	heapFree       = 3
	heapInfo       = 5
	heapAllocTiled = 6
	heapAllocRange = 14
	heapOSDesc     = 27
)

// vidHeap is VID_HEAP_CONTROL: root 0, parent 4, fn 8, status 20, total 24, free 32; FREE has hMemory 44.
func vidHeap(k *call) syscall.Errno {
	st := k.locked(func() uint32 {
		cl, st := k.c.lookup(k.f, u32(k.buf, 0))
		if st != stOK {
			return st
		}
		defer func() {
			put64(k.buf, 24, uint64(k.c.cfg.TotalBytes-k.c.cfg.ReservedBytes))
			put64(k.buf, 32, uint64(k.c.free()))
		}()
		switch u32(k.buf, 8) {
		case heapAllocSize:
			return k.heapAlloc(cl, 56, 88)
		case heapAllocTiled:
			return k.heapAlloc(cl, 64, 88)
		case heapAllocRange:
			return k.heapAlloc(cl, 56, 80)
		case heapFree:
			o := cl.objects[u32(k.buf, 44)]
			if o == nil || o == cl.root {
				return stNotFound
			}
			k.c.freeObject(o)
			return stOK
		case heapOSDesc:
			return k.heapDescribe(cl)
		case heapInfo:
			return stOK
		}
		return stNotSupported
	})
	put32(k.buf, 20, st)
	return 0
}

// heapAlloc is the allocating functions: hMemory 44, flags 52; attr and size lie where the function puts them.
func (k *call) heapAlloc(cl *client, attrAt, sizeAt int) uint32 {
	parent := cl.objects[u32(k.buf, 4)]
	if parent == nil {
		return stInvalidParent
	}
	want, flags, attr, size := u32(k.buf, 44), u32(k.buf, 52), u32(k.buf, attrAt), u64(k.buf, sizeAt)
	if size == 0 {
		return stInvalidArg
	}
	var o *object
	var st uint32
	if elsewhere(attr, flags) {
		o, st = cl.insert(parent, want, clsMemSystem)
	} else if o, st = k.c.newMemory(cl, parent, want, clsMemLocal, size); st == stOK {
		put64(k.buf, sizeAt, uint64(o.mem.size))
	}
	if st == stOK {
		put32(k.buf, 44, o.handle)
	}
	return st
}

// heapDescribe makes an object of the caller's own pages, hMemory 40; it costs the card nothing.
func (k *call) heapDescribe(cl *client) uint32 {
	parent := cl.objects[u32(k.buf, 4)]
	if parent == nil {
		return stInvalidParent
	}
	o, st := cl.insert(parent, u32(k.buf, 40), clsOSDesc)
	if st == stOK {
		put32(k.buf, 40, o.handle)
	}
	return st
}

// elsewhere reports that a request is for addresses only, or for the host's memory.
func elsewhere(attr, flags uint32) bool {
	const pci = 1
	return flags&allocFlagVirtual != 0 || attr>>attrLocationShift&attrLocationMask == pci
}
