package hostile

import (
	"errors"
	"fmt"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// pathAttacks try each way to device memory, with every form of its parameters, when the quota is used up.
func pathAttacks() []attack {
	out := []attack{
		{name: "memory/fill-and-more", run: func(t *tenant) error {
			return t.over(func(c *client, h nvidia.Handle) error { _, err := c.vram(h, 64*mib); return err })
		}},
		{name: "memory/alloc-short-form", run: func(t *tenant) error { return t.over(shortForm) }},
		{name: "memory/alloc-memory", run: func(t *tenant) error {
			return t.over(func(c *client, h nvidia.Handle) error {
				_, err := c.allocMemory(c.fd, nvidia.AllocMemory{Root: c.root, Parent: c.device, New: h, Class: nvidia.ClassMemoryLocalUser, Limit: 64*mib - 1, FD: -1})
				return err
			})
		}},
		{name: "memory/alloc-memory-other-classes", run: func(t *tenant) error { return t.over(allocMemoryClasses) }},
		{name: "memory/fabric", run: func(t *tenant) error { return t.over(fabric) }},
		{name: "memory/every-class-as-memory", run: everyClass},
	}
	for _, class := range []nvidia.Class{nvidia.ClassMemoryLocalUser, nvidia.ClassMemoryLocalPriv, nvidia.ClassMemoryExtended, nvidia.ClassMemorySystem, nvidia.ClassVirtualRange} {
		out = append(out, attack{name: fmt.Sprintf("memory/class-%#x-every-attribute", uint32(class)), run: func(t *tenant) error {
			return t.over(func(c *client, h nvidia.Handle) error { return attributes(c, h, class) })
		}})
	}
	for _, fn := range []nvidia.VidHeapFunction{nvidia.HeapAllocSize, nvidia.HeapAllocTiled, nvidia.HeapAllocSizeRange} {
		out = append(out, attack{name: fmt.Sprintf("memory/heap-function-%d-every-attribute", fn), run: func(t *tenant) error {
			return t.over(func(c *client, h nvidia.Handle) error { return heapAttributes(c, h, fn) })
		}})
	}
	return append(out, attack{name: "memory/every-heap-function", run: func(t *tenant) error { return t.over(heapFunctions) }})
}

// over fills the quota and then asks for more in some way.
func (t *tenant) over(ask func(c *client, h nvidia.Handle) error) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	for i := range nvidia.Handle(2) {
		_ = t.try(ask(c, handleFirst+0x10000+i*0x1000))
	}
	return t.hold("after asking for more")
}

// shortForm is RM_ALLOC in its 32-byte form.
func shortForm(c *client, h nvidia.Handle) error {
	defer c.Reset()
	p, addr, err := c.Take(nvidia.SizeMemoryParams)
	if err != nil {
		return err
	}
	copy(p, memoryParams(nvidia.MemoryParams{Size: 64 * mib}))
	a := nvidia.Alloc{Root: c.root, Parent: c.device, New: h, Class: nvidia.ClassMemoryLocalUser, Params: addr, ParamsSize: nvidia.SizeMemoryParams}
	_, err = c.issue(c.fd, nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc21), nvidia.SizeAlloc21, a)
	return err
}

// sweep makes a call for every value of the attribute bits that say where memory lies, with several flags.
func sweep(fn func(i nvidia.Handle, attr, flags uint32) error) error {
	var last error
	i := nvidia.Handle(0)
	ok := false
	for loc := range uint32(4) {
		for _, more := range []uint32{0, 1 << 16, 1 << 24, 0xf << 28, ^uint32(3 << 25)} {
			for _, flags := range []uint32{0, 0x1, 0x100, 0x8000, 0x10000, 0x40000, 0x00080000, 0x01000000, 0xfff7ffff} {
				if err := fn(i, loc<<25|more&^(3<<25), flags); err != nil {
					last = err
				} else {
					ok = true
				}
				i++
			}
		}
	}
	if ok {
		return nil
	}
	return last
}

func attributes(c *client, h nvidia.Handle, class nvidia.Class) error {
	return sweep(func(i nvidia.Handle, attr, flags uint32) error {
		a := nvidia.Alloc{Root: c.root, Parent: c.device, New: h + i, Class: class}
		_, err := c.object(c.fd, a, memoryParams(nvidia.MemoryParams{Size: 4 * mib, Attr: attr, Flags: flags}))
		return err
	})
}

func heapAttributes(c *client, h nvidia.Handle, fn nvidia.VidHeapFunction) error {
	return sweep(func(i nvidia.Handle, attr, flags uint32) error {
		_, err := c.heap(c.fd, nvidia.VidHeap{Root: c.root, Parent: c.device, Function: fn, Memory: h + i, Size: 4 * mib, Attr: attr, Flags: flags})
		return err
	})
}

// heapFunctions tries every function number, with a size at every place where one may be.
func heapFunctions(c *client, h nvidia.Handle) error {
	var last error
	for fn := range uint32(64) {
		b := make(raw, nvidia.SizeVidHeap)
		_ = nvidia.VidHeap{Root: c.root, Parent: c.device, Function: nvidia.VidHeapFunction(fn)}.Put(b) // it fits
		for off := 80; off <= 120; off += 8 {
			_ = nvidia.PutU64At(b, uint32(off), 64*mib)
		}
		_ = nvidia.PutU32At(b, 44, uint32(h)+fn)
		if fn == uint32(nvidia.HeapFree) {
			continue
		}
		if _, err := c.issue(c.fd, nvidia.Cmd(nvidia.EscVidHeap, nvidia.SizeVidHeap), len(b), b); err != nil {
			last = err
		}
		c.Reset()
	}
	return last
}

func allocMemoryClasses(c *client, h nvidia.Handle) error {
	var last error
	for i, class := range []nvidia.Class{0x3e, 0x3f, 0x40, 0x42, 0x70, 0x71, 0x82, 0x83, 0xc2, 0xf8, 0xf9, 0x50a0, 0x90ce} {
		m := nvidia.AllocMemory{Root: c.root, Parent: c.device, New: h + nvidia.Handle(i), Class: class, Limit: 64*mib - 1, FD: -1}
		if _, err := c.allocMemory(c.fd, m); err != nil {
			last = err
		}
	}
	return last
}

func fabric(c *client, h nvidia.Handle) error {
	p := make([]byte, 48)
	_ = nvidia.PutU64At(p, 8, 64*mib)
	_, err := c.object(c.fd, nvidia.Alloc{Root: c.root, Parent: c.device, New: h, Class: nvidia.ClassMemoryFabric}, p)
	return err
}

// everyClass asks for every class number that there may be, with parameters that would make it memory.
func everyClass(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	for class := range nvidia.Class(0x110) {
		if class.IsRootClient() {
			continue
		}
		a := nvidia.Alloc{Root: c.root, Parent: c.device, New: handleFirst + 0x20000 + nvidia.Handle(class), Class: class}
		for _, p := range [][]byte{memoryParams(nvidia.MemoryParams{Size: 16 * mib}), nil} {
			_, err := c.object(c.fd, a, p)
			_ = t.try(err)
		}
	}
	return t.hold("after every class")
}

// sizeAttacks are sizes that no program asks for.
func sizeAttacks() []attack {
	return []attack{
		{name: "size/absurd", run: absurdSizes},
		{name: "size/rounding-at-the-edge", run: roundingEdge(func(c *client, h nvidia.Handle, n uint64) error { _, err := c.vram(h, n); return err })},
		{name: "size/rounding-at-the-edge-heap", run: roundingEdge(func(c *client, h nvidia.Handle, n uint64) error {
			_, err := c.heap(c.fd, nvidia.VidHeap{Root: c.root, Parent: c.device, Function: nvidia.HeapAllocSize, Memory: h, Size: n})
			return err
		})},
		{name: "size/rounding-of-alloc-memory", run: roundingEdge(func(c *client, h nvidia.Handle, n uint64) error {
			m := nvidia.AllocMemory{Root: c.root, Parent: c.device, New: h, Class: nvidia.ClassMemoryLocalUser, Limit: n - 1, FD: -1}
			_, err := c.allocMemory(c.fd, m)
			return err
		})},
		{name: "size/tiny-pieces", setup: setup{quota: 96 * mib}, run: tinyPieces},
	}
}

func absurdSizes(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	h := handleFirst
	for _, n := range []uint64{0, 1, ^uint64(0), 1 << 63, ^uint64(0) - 64<<10 + 1, 1<<63 - 1, 1 << 50, 1<<50 + 1, 1 << 40, 1 << 32, 1<<32 - 1, gib + 1} {
		h += 8
		_, err := c.vram(h, n)
		_ = t.try(err)
		_, err = c.allocMemory(c.fd, nvidia.AllocMemory{Root: c.root, Parent: c.device, New: h + 1, Class: nvidia.ClassMemoryLocalUser, Limit: n - 1, FD: -1})
		_ = t.try(err)
		for i, fn := range []nvidia.VidHeapFunction{nvidia.HeapAllocSize, nvidia.HeapAllocTiled, nvidia.HeapAllocSizeRange} {
			_, err = c.heap(c.fd, nvidia.VidHeap{Root: c.root, Parent: c.device, Function: fn, Memory: h + 2 + nvidia.Handle(i), Size: n})
			_ = t.try(err)
		}
	}
	return t.hold("after absurd sizes")
}

// roundingEdge asks for sizes that the card rounds up most, until nothing more is given.
func roundingEdge(ask func(c *client, h nvidia.Handle, n uint64) error) func(*tenant) error {
	return func(t *tenant) error {
		c, err := t.client()
		if err != nil {
			return err
		}
		for h := handleFirst; t.tries < 2000; h++ {
			if t.try(ask(c, h, 2*mib+64<<10)) != nil {
				break
			}
		}
		for h := handleFirst + 0x8000; h < handleFirst+0x8040; h++ {
			if t.try(ask(c, h, 64<<10)) != nil {
				break
			}
		}
		return t.hold("at the edge")
	}
}

// tinyPieces asks for single bytes: each takes a page of the card.
func tinyPieces(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	if c.fill(handleFirst) == nil {
		return errors.New("no memory at all")
	}
	if err := c.release(handleFirst); err != nil {
		return err
	}
	for h := handleFirst + 0x10000; t.tries < 2000; h++ {
		if _, err := c.vram(h, 1); t.try(err) != nil {
			break
		}
	}
	return t.hold("after tiny pieces")
}
