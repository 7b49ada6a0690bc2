package card

import "syscall"

// escape is one row of the card's call table: which argument sizes it takes and what runs.
type escape struct {
	size func(uint32) bool // nil takes any
	run  func(*call) syscall.Errno
}

func exactly(sizes ...uint32) func(uint32) bool {
	return func(n uint32) bool {
		for _, s := range sizes {
			if n == s {
				return true
			}
		}
		return false
	}
}

func atLeast(size uint32) func(uint32) bool { return func(n uint32) bool { return n >= size } }

// escapes is the driver's dispatch table. Rows that run accept answer OK and change nothing: mappings into the
// processor's address space, events, and the like have no part in the model.
var escapes = map[uint32]escape{
	escAllocMemory:  {exactly(sizeAllocMemory), allocMemory},
	escFree:         {exactly(sizeFree), free},
	escControl:      {exactly(sizeControl), control},
	escAlloc:        {exactly(sizeAlloc, sizeAllocRights), alloc},
	escDup:          {exactly(sizeDup), dup},
	escVidHeap:      {exactly(sizeVidHeap), vidHeap},
	escCardInfo:     {atLeast(sizeCardInfo), cardInfo},
	escRegisterFD:   {exactly(4), registerFD},
	escCheckVersion: {exactly(72), checkVersion},
	escSysParams:    {exactly(8), sysParams},

	0x41: {nil, accept}, // IDLE_CHANNELS
	0x4e: {nil, accept}, // MAP_MEMORY
	0x4f: {nil, accept}, // UNMAP_MEMORY
	0x57: {nil, accept}, // MAP_MEMORY_DMA
	0x58: {nil, accept}, // UNMAP_MEMORY_DMA
	0x59: {nil, accept}, // BIND_CONTEXT_DMA
	0x5e: {nil, accept}, // UPDATE_DEVICE_MAPPING_INFO
	206:  {nil, accept}, // ALLOC_OS_EVENT
	207:  {nil, accept}, // FREE_OS_EVENT
	212:  {nil, accept}, // ATTACH_GPUS_TO_FD
	213:  {nil, accept}, // QUERY_DEVICE_INTR
	215:  {nil, accept}, // NUMA_INFO
	218:  {nil, accept}, // WAIT_OPEN_COMPLETE
}

func accept(*call) syscall.Errno { return 0 }

// free is RM_FREE: root 0, parent 4, old 8, status 12.
func free(k *call) syscall.Errno {
	st := k.locked(func() uint32 {
		cl, st := k.c.lookup(k.f, u32(k.buf, 0))
		if st != stOK {
			return st
		}
		o := cl.objects[u32(k.buf, 8)]
		switch {
		case o == nil:
			return stNotFound
		case o == cl.root:
			k.c.freeClient(cl)
		default:
			k.c.freeObject(o)
		}
		return stOK
	})
	put32(k.buf, 12, st)
	return 0
}

// dup is DUP_OBJECT: dst 0, parent 4, object 8, srcClient 12, srcObject 16, flags 20, status 24. The source
// client may be anybody's, as with RM's default sharing inside one user; its memory is shared, not copied.
func dup(k *call) syscall.Errno {
	st := k.locked(func() uint32 {
		cl, st := k.c.lookup(k.f, u32(k.buf, 0))
		if st != stOK {
			return st
		}
		parent := cl.objects[u32(k.buf, 4)]
		if parent == nil {
			return stInvalidParent
		}
		from := k.c.clients[u32(k.buf, 12)]
		if from == nil {
			return stInvalidClient
		}
		src := from.objects[u32(k.buf, 16)]
		if src == nil {
			return stNotFound
		}
		if src.ch != nil || src.tsg != nil || src == from.root {
			return stNotSupported
		}
		o, st := cl.insert(parent, u32(k.buf, 8), src.class)
		if st != stOK {
			return st
		}
		o.mem = k.c.hold(src.mem)
		put32(k.buf, 8, o.handle)
		return stOK
	})
	put32(k.buf, 24, st)
	return 0
}

// cardInfo fills nv_ioctl_card_info_t[]: valid 0, pci 4..15, gpu_id 16, fb_size 48, minor 56.
func cardInfo(k *call) syscall.Errno {
	clear(k.buf)
	k.buf[0] = 1
	k.buf[8] = gpuBus
	le.PutUint16(k.buf[12:], 0x10de)
	le.PutUint16(k.buf[14:], 0x2335)
	put32(k.buf, 16, gpuID)
	put64(k.buf, 48, uint64(k.c.cfg.TotalBytes))
	return 0
}

// gpuBus and gpuID place the emulated card on the bus; RM derives the id from the address.
const (
	gpuBus = 0x1b
	gpuID  = gpuBus << 8
)

// registerFD ties a device file to a control file of the same caller: RM takes the one for the other from
// then on, and keeps the control file's clients until both are closed.
func registerFD(k *call) syscall.Errno {
	id, ok := k.who.file(int32(u32(k.buf, 0)))
	if !ok {
		return syscall.EINVAL
	}
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	ctl := k.c.files[id]
	if ctl == nil || ctl.kind != KindCtl || k.f.kind != KindGPU || k.f.ctl != nil || k.f.refs == 0 {
		return syscall.EINVAL
	}
	ctl.refs++
	k.f.ctl = ctl
	return 0
}

// checkVersion compares nv_ioctl_rm_api_version_t: cmd 0 ('2' asks only), reply 4, version string 8.
func checkVersion(k *call) syscall.Errno {
	const query = '2'
	same := cString(k.buf[8:72]) == k.c.cfg.Version
	ask := u32(k.buf, 0) == query
	putStr(k.buf, 8, 64, k.c.cfg.Version)
	put32(k.buf, 4, 0)
	if !same && !ask {
		return syscall.EINVAL
	}
	put32(k.buf, 4, 1)
	return 0
}

func sysParams(k *call) syscall.Errno {
	put64(k.buf, 0, 128<<20) // memblock_size of a usual x86-64 machine
	return 0
}

func cString(b []byte) string {
	for i, x := range b {
		if x == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
