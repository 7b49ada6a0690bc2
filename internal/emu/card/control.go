package card

import (
	"slices"
	"syscall"
	"time"
)

// controlRow is one control: its parameter sizes (RM insists on the one of its version, the card takes those of
// all), the class of object it is called on, and what it does. A row's run is called with the card locked.
type controlRow struct {
	size  func(uint32) bool
	class uint32 // 0: the client itself or any object
	fd    bool   // the parameters begin with a descriptor of the caller
	run   func(k *call, cl *client, o *object, p []byte) uint32
}

var controls = map[uint32]controlRow{
	ctlAttachedIDs:     {exactly(128), 0, false, attachedIDs},
	ctlProbedIDs:       {exactly(256), 0, false, attachedIDs},
	ctlImportObject:    {exactly(20), 0, true, importObject},
	ctlImportObjects:   {exactly(sizeImportObjects), 0, true, importObjects},
	ctlClassListV2:     {listOf(4, 250), clsDevice, false, classList},
	ctlNameString:      {exactly(68, 132), clsSubdevice, false, nameString},
	ctlGIDInfo:         {exactly(268), clsSubdevice, false, gidInfo},
	ctlGetPIDs:         {exactly(12 + 4*maxPIDs), clsSubdevice, false, getPIDs},
	ctlGetPIDInfo:      {exactly(8 + 72*maxPIDInfo), clsSubdevice, false, getPIDInfo},
	ctlDisableChannels: {exactly(536), clsSubdevice, false, disableChannels},
	ctlFBInfoV2:        {listOf(8, maxFBInfo), clsSubdevice, false, fbInfoV2},
	ctlSchedule:        {exactly(2, 3), clsTSG, false, func(*call, *client, *object, []byte) uint32 { return stOK }},
	ctlInterleave:      {exactly(4), clsTSG, false, func(*call, *client, *object, []byte) uint32 { return stOK }},
	ctlSetSlice:        {exactly(8), clsTSG, false, setSlice},
	ctlGetSlice:        {exactly(8), clsTSG, false, getSlice},
	ctlPreempt:         {exactly(8), clsTSG, false, preempt},
	ctlTSGInfo:         {exactly(4), clsTSG, false, tsgInfo},
}

// listOf takes a count and at most n entries: drivers differ in how many there is room for.
func listOf(entry, n uint32) func(uint32) bool {
	return func(size uint32) bool { return size >= 4 && size <= 4+entry*n && (size-4)%entry == 0 }
}

// control is RM_CONTROL: client 0, object 4, cmd 8, flags 12, params 16, paramsSize 24, status 28.
func control(k *call) syscall.Errno {
	cmd, ptr, size := u32(k.buf, 8), u64(k.buf, 16), u32(k.buf, 24)
	status := func(st uint32) syscall.Errno { put32(k.buf, 28, st); return 0 }
	if st, ok := k.c.cfg.ControlStatus[cmd]; ok {
		return status(k.withObject(0, func(*client, *object) uint32 { return st }))
	}
	switch cmd {
	case ctlFBInfo:
		fill := func(_ *object, n uint32, pairs []byte) uint32 { return k.c.fillFBInfo(n, pairs) }
		return status(pairControl(k, clsSubdevice, ptr, size, fill))
	case ctlSurfaceInfo:
		return status(pairControl(k, 0, ptr, size, surfaceInfo))
	case ctlExportObject, ctlExportObjects:
		return status(exportControl(k, cmd, ptr, size))
	}
	row, known := controls[cmd]
	if !known {
		if size > maxParams {
			return status(stInvalidArg)
		}
		return status(k.withObject(0, func(*client, *object) uint32 { return stOK }))
	}
	return status(k.runControl(row, ptr, size))
}

// runControl copies the parameters in, runs the row and copies them out.
func (k *call) runControl(row controlRow, ptr uint64, size uint32) uint32 {
	if !row.size(size) {
		return stInvalidParams
	}
	p := make([]byte, size)
	if k.who.Mem.ReadAt(p, ptr) != nil {
		return stInvalidAddress
	}
	if row.fd {
		k.named, _ = k.who.file(int32(u32(p, 0)))
	}
	st := k.withObject(row.class, func(cl *client, o *object) uint32 { return row.run(k, cl, o, p) })
	if st == stOK && k.who.Mem.WriteAt(p, ptr) != nil {
		return stInvalidAddress
	}
	return st
}

// withObject finds the object a control names and runs fn with the card locked.
func (k *call) withObject(class uint32, fn func(*client, *object) uint32) uint32 {
	return k.locked(func() uint32 {
		cl, st := k.c.lookup(k.f, u32(k.buf, 0))
		if st != stOK {
			return st
		}
		o := cl.objects[u32(k.buf, 4)]
		if o == nil {
			return stNotFound
		}
		if class != 0 && o.class != class {
			return stNotSupported
		}
		return fn(cl, o)
	})
}

func attachedIDs(_ *call, _ *client, _ *object, p []byte) uint32 {
	for i := 0; i < 128; i += 4 {
		put32(p, i, 0xffffffff)
	}
	put32(p, 0, gpuID)
	return stOK
}

// classList is GPU_GET_CLASSLIST_V2: count 0, classes 4.
func classList(k *call, _ *client, _ *object, p []byte) uint32 {
	list := []uint32{0x40, 0x3f, 0x3e, 0x90f1, 0xa06c, 0xc86f, 0xcbc0, 0xcb97, 0x902d, 0xa140, 0xc8b5}
	if k.c.cfg.Decoders > 0 {
		list = append(list, 0xb8b0)
	}
	if k.c.cfg.Encoders > 0 {
		list = append(list, 0xc9b7)
	}
	if k.c.cfg.JPEGs > 0 {
		list = append(list, 0xb8d1)
	}
	if k.c.cfg.OpticalFlows > 0 {
		list = append(list, 0xb8fa)
	}
	list = list[:min(len(list), (len(p)-4)/4)]
	put32(p, 0, uint32(len(list)))
	for i, class := range list {
		put32(p, 4+4*i, class)
	}
	return stOK
}

// nameString is GPU_GET_NAME_STRING: flags 0 (0 asks for ASCII), string 4.
func nameString(k *call, _ *client, _ *object, p []byte) uint32 {
	if u32(p, 0) != 0 {
		return stNotSupported
	}
	putStr(p, 4, 64, k.c.cfg.Name)
	return stOK
}

// gidInfo is GPU_GET_GID_INFO: index 0, flags 4 (bits 1:0 = 2 ask for binary), length 8, data 12.
func gidInfo(k *call, _ *client, _ *object, p []byte) uint32 {
	const binaryForm = 2
	if u32(p, 4)&3 == binaryForm {
		id := uuidBytes(k.c.cfg.UUID)
		put32(p, 8, uint32(len(id)))
		copy(p[12:], id[:])
		return stOK
	}
	put32(p, 8, uint32(len(k.c.cfg.UUID)+1))
	putStr(p, 12, 256, k.c.cfg.UUID)
	return stOK
}

// uuidBytes reads the hexadecimal digits of a "GPU-…" name.
func uuidBytes(s string) (id [16]byte) {
	n := 0
	for _, r := range s[min(len(s), len("GPU-")):] {
		var d byte
		switch {
		case r >= '0' && r <= '9':
			d = byte(r - '0')
		case r >= 'a' && r <= 'f':
			d = byte(r-'a') + 10
		default:
			continue
		}
		if n < 32 {
			id[n/2] |= d << (4 * (1 - n%2))
		}
		n++
	}
	return id
}

// Bounds of the process lists (ctrl2080gpu.h).
const (
	maxPIDs    = 950
	maxPIDInfo = 200
)

// getPIDs is GPU_GET_PIDS: idType 0, id 4, count 8, pids 12. Processes that hold a device are listed.
func getPIDs(k *call, _ *client, _ *object, p []byte) uint32 {
	var pids []int
	for _, cl := range k.c.clients {
		if len(cl.root.children) > 0 && !slices.Contains(pids, cl.pid) {
			pids = append(pids, cl.pid)
		}
	}
	slices.Sort(pids)
	pids = pids[:min(len(pids), maxPIDs)]
	put32(p, 8, uint32(len(pids)))
	for i, pid := range pids {
		put32(p, 12+4*i, uint32(pid))
	}
	return stOK
}

// getPIDInfo is GPU_GET_PID_INFO: count 0, then entries of 72 bytes from 8: pid 0, index 4, result 8, private
// bytes 16, shared owned 24, shared duplicated 32.
func getPIDInfo(k *call, _ *client, _ *object, p []byte) uint32 {
	n := u32(p, 0)
	if n == 0 || n > maxPIDInfo {
		return stInvalidArg
	}
	for i := range int(n) {
		e := p[8+72*i:][:72]
		if u32(e, 4) != 0 {
			put32(e, 8, stInvalidArg)
			continue
		}
		clear(e[16:64])
		put32(e, 8, stOK)
		put64(e, 16, uint64(k.c.pidBytes(int(u32(e, 0)))))
	}
	return stOK
}

// pidBytes is the video memory of a process's own regions.
func (c *Card) pidBytes(pid int) (n int64) {
	seen := map[*region]bool{}
	for _, cl := range c.clients {
		for _, o := range cl.objects {
			if o.mem != nil && o.mem.pid == pid && !seen[o.mem] {
				seen[o.mem] = true
				n += o.mem.size
			}
		}
	}
	return n
}

// maxFBInfo bounds the list of FB_GET_INFO in its newest form.
const maxFBInfo = 128

// fbInfoV2 is FB_GET_INFO_V2: count 0, then {index, KiB} pairs from 4.
func fbInfoV2(k *call, _ *client, _ *object, p []byte) uint32 {
	return k.c.fillFBInfo(u32(p, 0), p[4:])
}

// pairControl is the controls whose questions lie behind a pointer — count 0, pointer to {index, value} pairs 8 —
// such as the older FB_GET_INFO and GET_SURFACE_INFO.
func pairControl(k *call, class uint32, ptr uint64, size uint32, fill func(o *object, n uint32, pairs []byte) uint32) uint32 {
	var head [16]byte
	if size != uint32(len(head)) {
		return stInvalidParams
	}
	if k.who.Mem.ReadAt(head[:], ptr) != nil {
		return stInvalidAddress
	}
	n, list := u32(head[:], 0), u64(head[:], 8)
	if n > maxFBInfo {
		return stInvalidArg
	}
	pairs := make([]byte, 8*n)
	if k.who.Mem.ReadAt(pairs, list) != nil {
		return stInvalidPointer
	}
	st := k.withObject(class, func(_ *client, o *object) uint32 { return fill(o, n, pairs) })
	if st == stOK && k.who.Mem.WriteAt(pairs, list) != nil {
		return stInvalidPointer
	}
	return st
}

// surfaceInfo answers where an object's memory lies (index 9); other questions answer 0.
func surfaceInfo(o *object, n uint32, pairs []byte) uint32 {
	const (
		indexSpace         = 9
		systemMem, cardMem = 1, 2
	)
	if !isMemory(o.class) {
		return stNotSupported
	}
	for i := range int(n) {
		var v uint32
		if u32(pairs, 8*i) == indexSpace {
			v = systemMem
			if o.mem != nil {
				v = cardMem
			}
		}
		put32(pairs, 8*i+4, v)
	}
	return stOK
}

// fillFBInfo answers framebuffer questions in KiB; an index the card does not know answers 0.
func (c *Card) fillFBInfo(n uint32, pairs []byte) uint32 {
	if int(n) > min(maxFBInfo, len(pairs)/8) {
		return stInvalidArg
	}
	for i := range int(n) {
		var v int64
		switch u32(pairs, 8*i) {
		case 0x07, 0x08, 0x20: // RAM_SIZE, TOTAL_RAM_SIZE, USABLE_RAM_SIZE
			v = c.cfg.TotalBytes
		case 0x09, 0x0a: // HEAP_SIZE, MAPPABLE_HEAP_SIZE
			v = c.cfg.TotalBytes - c.cfg.ReservedBytes
		case 0x12, 0x16: // LARGEST_FREE_REGION, HEAP_FREE
			v = c.free()
		}
		put32(pairs, 8*i+4, uint32(v/kib))
	}
	return stOK
}

// setSlice takes effect when the call returns; the running slice is finished first.
func setSlice(k *call, _ *client, o *object, p []byte) uint32 {
	us := u64(p, 0)
	if us == 0 || us > uint64(time.Hour/time.Microsecond) {
		return stInvalidArg
	}
	t, slice := o.tsg, time.Duration(us)*time.Microsecond
	k.done = k.c.after(k.c.cfg.SliceCost, k.c.cfg.SliceCost, func() { t.slice = slice })
	return stOK
}

func getSlice(_ *call, _ *client, o *object, p []byte) uint32 {
	put64(p, 0, uint64(o.tsg.slice/time.Microsecond))
	return stOK
}

// preempt ends the group's current slice: u8 wait, u8 manualTimeout, u32 timeoutUs at 4.
func preempt(k *call, _ *client, o *object, _ []byte) uint32 {
	t := o.tsg
	k.done = k.c.after(k.c.cfg.SliceCost, k.c.cfg.SliceCost, func() { t.rl.preempt(t) })
	return stOK
}

func tsgInfo(_ *call, _ *client, o *object, p []byte) uint32 {
	put32(p, 0, o.tsg.id)
	return stOK
}

// disableChannels is FIFO_DISABLE_CHANNELS: bDisable 0, num 4, onlyScheduling 8, rewindGpPut 9, event 16,
// clients 24, channels 280. [H] Nobody checks whose channels are listed.
func disableChannels(k *call, _ *client, _ *object, p []byte) uint32 {
	const maxEntries = 64
	n := u32(p, 4)
	if n > maxEntries {
		return stInvalidArg
	}
	if u64(p, 16) != 0 {
		return stNoPermission // the event is a kernel pointer
	}
	disable, rewind := p[0] != 0, p[9] != 0
	var list []*channel
	st := uint32(stOK)
	for i := range int(n) {
		cl := k.c.clients[u32(p, 24+4*i)]
		if cl == nil {
			st = stInvalidClient
			continue
		}
		o := cl.objects[u32(p, 280+4*i)]
		if o == nil || o.ch == nil {
			st = stInvalidChannel
			continue
		}
		list = append(list, o.ch)
	}
	cost, lag := k.c.cfg.EnableCost, k.c.cfg.EnableLag
	if disable {
		cost, lag = k.c.cfg.DisableCost, k.c.cfg.DisableLag
	} else if contested(list) {
		cost += k.c.cfg.EnableContested
	}
	k.done = k.c.after(cost, lag, func() {
		for _, ch := range list {
			ch.enabled = !disable
			if disable && rewind {
				ch.queue = nil
			}
			ch.tsg.rl.evict()
		}
	})
	return st
}

// contested reports whether channels that have work are to be enabled while somebody else runs.
func contested(list []*channel) bool {
	for _, ch := range list {
		if cur := ch.tsg.rl.cur; len(ch.queue) > 0 && cur != nil && cur != ch.tsg {
			return true
		}
	}
	return false
}
