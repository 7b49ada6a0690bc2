package hostile

import (
	"errors"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
)

// objectAttacks try to have memory that the ledger thinks is gone, or that is somebody else's.
func objectAttacks() []attack {
	return []attack{
		{name: "object/double-free", run: doubleFree},
		{name: "object/free-of-parent", run: freeParent},
		{name: "object/free-of-root", run: freeRoot},
		{name: "object/free-across-paths", run: freeAcross},
		{name: "object/duplicate-own", run: dupOwn},
		{name: "object/duplicate-neighbours", run: dupNeighbour},
		{name: "object/adopt-neighbours-client", run: adoptNeighbour},
		{name: "object/share-with-everybody", run: shareNeighbour},
		{name: "object/descriptor-over-allocation", run: descriptorOver(descriptorByAlloc)},
		{name: "object/descriptor-over-allocation-heap", run: descriptorOver(descriptorByHeap)},
		{name: "object/descriptor-over-allocation-memory", run: descriptorOver(descriptorByMemory)},
		{name: "object/handle-taken-twice", run: handleTwice},
		{name: "object/second-client-one-file", run: secondClient},
		{name: "object/export-then-free", run: exportFree},
		{name: "object/export-list", run: exportList},
		{name: "object/export-dmabuf", run: exportDmabuf},
		{name: "object/group-overhead", run: groupOverhead},
		{name: "object/descriptor-over-group-overhead", run: descriptorOverheads},
		{name: "object/limbo-paid-by-groups", run: limboByGroups},
		{name: "object/other-card", run: otherCard},
	}
}

func doubleFree(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for range 8 {
		if _, err := c.vram(handleFirst, 128*mib); err != nil {
			return err
		}
		if err := c.release(handleFirst); err != nil {
			return err
		}
		_ = t.try(c.release(handleFirst))
		_, err := c.heap(c.fd, nvidia.VidHeap{Root: c.root, Parent: c.device, Function: nvidia.HeapFree, Memory: handleFirst})
		_ = t.try(err)
	}
	c.fill(handleFirst + 1)
	return t.hold("after freeing twice")
}

func freeParent(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for range 3 {
		c.fill(handleFirst)
		// Memory below a channel group and below memory, where a driver allows it.
		for _, parent := range []nvidia.Handle{handleFirst, c.subdevice} {
			a := nvidia.Alloc{Root: c.root, Parent: parent, New: handleFirst + 0x5000, Class: nvidia.ClassMemoryLocalUser}
			_, err := c.object(c.fd, a, memoryParams(nvidia.MemoryParams{Size: mib}))
			_ = t.try(err)
		}
		if err := c.release(c.device); err != nil {
			return err
		}
		if c, err = c.clientOn(c.fd, c.root); err != nil {
			return err
		}
	}
	c.fill(handleFirst)
	return t.hold("after freeing parents")
}

func freeRoot(t *tenant) error {
	for range 3 {
		c, err := t.client()
		if err != nil {
			return err
		}
		c.fill(handleFirst)
		if err := c.release(c.root); err != nil {
			return err
		}
		_ = t.try(c.release(c.root))
	}
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	return t.hold("after freeing roots")
}

// freeAcross frees what one call made with the other's.
func freeAcross(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for range 4 {
		v, err := c.heap(c.fd, nvidia.VidHeap{Root: c.root, Parent: c.device, Function: nvidia.HeapAllocSize, Memory: handleFirst, Size: 256 * mib})
		if err != nil {
			return err
		}
		if err := c.release(v.Memory); err != nil {
			return err
		}
		if _, err := c.vram(handleFirst, 256*mib); err != nil {
			return err
		}
		// With the root or the device as the memory to be freed.
		for _, h := range []nvidia.Handle{c.root, handleFirst, handleFirst} {
			_, err := c.heap(c.fd, nvidia.VidHeap{Root: c.root, Parent: c.device, Function: nvidia.HeapFree, Memory: h})
			_ = t.try(err)
		}
	}
	c.fill(handleFirst)
	return t.hold("after freeing across")
}

func dupOwn(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	h := handleFirst
	for range 4 {
		if _, err := c.vram(h, 200*mib); t.try(err) != nil {
			break
		}
		for i := range nvidia.Handle(8) {
			if _, err := c.dup(c.fd, nvidia.Dup{Dst: c.root, Parent: c.device, Object: h + 1 + i, SrcClient: c.root, SrcObject: h}); err != nil {
				return err
			}
		}
		// All but the last copy go: the memory stays, and must stay charged.
		for i := range nvidia.Handle(8) {
			if err := c.release(h + i); err != nil {
				return err
			}
		}
		h += 16
	}
	c.fill(handleFirst + 0x1000)
	return t.hold("with duplicates")
}

// keepNeighbours holds on to what it may have got of the neighbour, and lets the neighbour die.
func (t *tenant) keepNeighbours() error {
	if err := t.killVictim(); err != nil {
		return err
	}
	return t.hold("after the neighbour's end")
}

func dupNeighbour(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	v := t.Victim
	for i, h := range []nvidia.Handle{v.Memory, v.Device, v.Subdevice, v.Client, v.Group, v.Channels[0]} {
		_, err := c.dup(c.fd, nvidia.Dup{Dst: c.root, Parent: c.device, Object: handleFirst + nvidia.Handle(i), SrcClient: v.Client, SrcObject: h})
		_ = t.try(err)
		_, err = c.dup(c.fd, nvidia.Dup{Dst: v.Client, Parent: v.Device, Object: handleFirst, SrcClient: v.Client, SrcObject: h})
		_ = t.try(err)
	}
	u, err := c.unified()
	if err != nil {
		return err
	}
	if err := u.CreateRange(uvmBase, gib); err != nil {
		return err
	}
	m := nvidia.UVMMapExternal{Base: uvmBase, Length: 64 * mib, GPUs: make([]nvidia.UUID, 1), CtrlFD: int32(c.fd), Client: v.Client, Memory: v.Memory}
	_ = t.try(t.uvmMap(u.FD, m))
	m.CtrlFD = int32(u.FD)
	_ = t.try(t.uvmMap(u.FD, m))
	return t.keepNeighbours()
}

// adoptNeighbour makes the ledger believe that the neighbour's client is its own, by an OS descriptor that names it.
func adoptNeighbour(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	v := t.Victim
	for _, parent := range []nvidia.Handle{v.Client, v.Device} {
		for _, h := range []nvidia.Handle{v.Device, v.Memory} {
			_, err := c.object(c.fd, nvidia.Alloc{Root: v.Client, Parent: parent, New: h, Class: nvidia.ClassOSDescriptor}, make([]byte, 40))
			_ = t.try(err)
			b := nvidia.VidHeap{Root: v.Client, Parent: parent, Function: nvidia.HeapAllocOSDesc, Memory: h, Limit: 4095}
			_, err = c.heap(c.fd, b)
			_ = t.try(err)
			m := nvidia.AllocMemory{Root: v.Client, Parent: parent, New: h, Class: nvidia.ClassOSDescriptor, Limit: 4095, FD: -1}
			_, err = c.allocMemory(c.fd, m)
			_ = t.try(err)
		}
	}
	_, err = c.dup(c.fd, nvidia.Dup{Dst: c.root, Parent: c.device, Object: handleFirst, SrcClient: v.Client, SrcObject: v.Memory})
	_ = t.try(err)
	return t.keepNeighbours()
}

// shareNeighbour asks the driver to share the neighbour's object, then takes it.
func shareNeighbour(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	b := make(raw, 24)
	_ = nvidia.PutU32At(b, 0, uint32(t.Victim.Client))
	_ = nvidia.PutU32At(b, 4, uint32(t.Victim.Memory))
	_, err = c.issue(c.fd, nvidia.Cmd(nvidia.EscShare, 24), len(b), b)
	_ = t.try(err)
	c.Reset()
	return dupNeighbour(t)
}

type describe func(c *client, h nvidia.Handle) error

func descriptorByAlloc(c *client, h nvidia.Handle) error {
	_, err := c.object(c.fd, nvidia.Alloc{Root: c.root, Parent: c.device, New: h, Class: nvidia.ClassOSDescriptor}, make([]byte, 40))
	return err
}

func descriptorByHeap(c *client, h nvidia.Handle) error {
	_, err := c.heap(c.fd, nvidia.VidHeap{Root: c.root, Parent: c.device, Function: nvidia.HeapAllocOSDesc, Memory: h, Limit: 4095})
	return err
}

func descriptorByMemory(c *client, h nvidia.Handle) error {
	_, err := c.allocMemory(c.fd, nvidia.AllocMemory{Root: c.root, Parent: c.device, New: h, Class: nvidia.ClassOSDescriptor, Limit: 4095, FD: -1})
	return err
}

// descriptorOver asks for an OS descriptor with the handle of a live allocation. The driver refuses; the ledger
// must not forget the allocation over it.
func descriptorOver(fn describe) func(*tenant) error {
	return func(t *tenant) error {
		c, err := t.client()
		if err != nil {
			return err
		}
		for i := range nvidia.Handle(4) {
			h := handleFirst + i
			if _, err := c.vram(h, 400*mib); t.try(err) != nil {
				break
			}
			_ = t.try(fn(c, h))
		}
		return t.hold("with a descriptor over it")
	}
}

// handleTwice allocates twice with one handle.
func handleTwice(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for range 4 {
		_, err := c.vram(handleFirst, 300*mib)
		_ = t.try(err)
		_, err = c.heap(c.fd, nvidia.VidHeap{Root: c.root, Parent: c.device, Function: nvidia.HeapAllocSize, Memory: handleFirst, Size: 64 << 10})
		_ = t.try(err)
		a := nvidia.Alloc{Root: c.root, Parent: c.device, New: handleFirst, Class: nvidia.ClassVirtualRange}
		_, err = c.object(c.fd, a, memoryParams(nvidia.MemoryParams{Size: mib, Flags: 0x00080000}))
		_ = t.try(err)
		_, err = c.dup(c.fd, nvidia.Dup{Dst: c.root, Parent: c.device, Object: handleFirst, SrcClient: c.root, SrcObject: c.subdevice})
		_ = t.try(err)
	}
	c.fill(handleFirst + 1)
	return t.hold("after taking a handle twice")
}

// secondClient makes clients without end on one file, and one with the neighbour's handle.
func secondClient(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for range 64 {
		_, err := c.object(c.fd, nvidia.Alloc{Class: nvidia.ClassRootClient}, nil)
		_ = t.try(err)
	}
	fd, err := t.Open(card.KindCtl)
	if err != nil {
		return err
	}
	_, err = t.object(fd, nvidia.Alloc{New: t.Victim.Client, Root: t.Victim.Client, Class: nvidia.ClassRootClient}, nil)
	_ = t.try(err)
	c.fill(handleFirst)
	return t.hold("after many clients")
}

// export makes EXPORT_OBJECT_TO_FD.
func (c *client) export(h nvidia.Handle, fd int) error {
	p := make([]byte, 24)
	for i, v := range []uint32{1, uint32(c.device), uint32(c.device), uint32(h), uint32(fd)} {
		_ = nvidia.PutU32At(p, uint32(4*i), v)
	}
	return c.control(c.fd, c.root, c.root, 0x3d05, p)
}

func exportFree(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for i := range nvidia.Handle(4) {
		h := handleFirst + i
		if _, err := c.vram(h, 300*mib); t.try(err) != nil {
			break
		}
		fd, err := t.Open(card.KindCtl)
		if err != nil {
			return err
		}
		if err := c.export(h, fd); err != nil {
			return err
		}
		if err := c.release(h); err != nil {
			return err
		}
	}
	return t.hold("with exported memory")
}

func exportList(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	fd, err := t.Open(card.KindCtl)
	if err != nil {
		return err
	}
	const objects, first, count = 76, 2126, 2124
	for i := range nvidia.Handle(4) {
		h := handleFirst + i
		if _, err := c.vram(h, 300*mib); t.try(err) != nil {
			break
		}
		p := make([]byte, 2128)
		_ = nvidia.PutU32At(p, 0, uint32(fd))
		_ = nvidia.PutU32At(p, objects, uint32(h))
		p[count], p[first] = 1, byte(i)
		if err := c.control(c.fd, c.root, c.root, 0x3d0b, p); err != nil {
			return err
		}
		if err := c.release(h); err != nil {
			return err
		}
	}
	return t.hold("with a list of exported memory")
}

func exportDmabuf(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	if _, err := c.vram(handleFirst, 300*mib); err != nil {
		return err
	}
	for nr, size := range map[uint8]int{nvidia.EscExportDmabuf: 2608, nvidia.EscExportObjectToFD: 32, nvidia.EscImportObjectFromFD: 32} {
		for _, n := range []int{size, 2600, 16} {
			b := make(raw, n)
			_ = nvidia.PutU32At(b, 4, uint32(c.root))
			_, err := c.issue(c.fd, nvidia.Cmd(nr, uint32(n)), n, b)
			_ = t.try(err)
			c.Reset()
		}
	}
	if err := c.release(handleFirst); err != nil {
		return err
	}
	c.fill(handleFirst)
	return t.hold("after exports")
}

// groupOverhead makes channel groups until nothing is given: each takes memory that no call names.
func groupOverhead(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	if err := c.release(handleFirst); err != nil {
		return err
	}
	for range 400 {
		if _, err := c.group(nvidia.EngineGR0); t.try(err) != nil {
			break
		}
	}
	return t.hold("with many groups")
}

func descriptorOverheads(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for range 40 {
		g, err := c.group(nvidia.EngineGR0)
		if t.try(err) != nil {
			break
		}
		_ = t.try(descriptorByAlloc(c, g))
	}
	return t.hold("with descriptors over groups")
}

// limboByGroups frees memory that a mapping still holds, which the ledger books as not come back, and then gives
// back something else that it takes for the same.
func limboByGroups(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	var groups []nvidia.Handle
	for range 20 {
		g, err := c.group(nvidia.EngineGR0)
		if err != nil {
			return err
		}
		groups = append(groups, g)
	}
	if err := t.hideInLimbo(c, 256*mib); err != nil {
		return err
	}
	for _, g := range groups {
		if err := t.try(c.release(g)); err != nil {
			return err
		}
	}
	if err := t.hold("after paying limbo with groups"); err != nil {
		return err
	}
	c.fill(handleFirst + 0x100)
	return t.hold("after filling up")
}

// hideInLimbo frees an object whose mapping the ledger believes replaced: two files map at one address.
func (t *tenant) hideInLimbo(c *client, n uint64) error {
	u1, err1 := c.unified()
	u2, err2 := c.unified()
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	_, err1 = c.vram(handleFirst, n)
	_, err2 = c.vram(handleFirst+1, 2*mib)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if err := errors.Join(c.mapped(u1, uvmBase, n, handleFirst), c.mapped(u2, uvmBase, 2*mib, handleFirst+1)); err != nil {
		return err
	}
	return c.release(handleFirst)
}

// otherCard asks for the device of a card that the tenant was not given.
func otherCard(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for n := range byte(8) {
		p := make([]byte, 56)
		p[0] = n + 1
		_, err := c.object(c.fd, nvidia.Alloc{Root: c.root, Parent: c.root, Class: nvidia.ClassDevice}, p)
		_ = t.try(err)
	}
	return t.hold("after other cards")
}
