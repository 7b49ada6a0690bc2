package hostile

import (
	"math/rand/v2"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

func (t *tenant) wrap(fd int, x nvidia.Xfer, inner []byte) error {
	b, addr, err := t.Take(nvidia.SizeXfer)
	if err != nil {
		return err
	}
	if err := x.Put(b); err != nil {
		return err
	}
	if err := rawIoctl(fd, nvidia.Cmd(nvidia.EscXfer, nvidia.SizeXfer), addr); err != nil {
		return err
	}
	return verdictOf(0, inner, uint8(x.Cmd))
}

func wrappedAllocations(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	h := handleFirst + 0x10000
	addr, b, err := t.allocCall(c, h)
	if err != nil {
		return err
	}
	_ = t.try(t.wrap(c.fd, nvidia.Xfer{Cmd: uint32(nvidia.EscAlloc), Size: nvidia.SizeAlloc64, Ptr: addr}, b))
	for _, s := range []struct {
		nr   uint8
		size int
		call put
	}{
		{nvidia.EscVidHeap, nvidia.SizeVidHeap, nvidia.VidHeap{Root: c.root, Parent: c.device, Function: nvidia.HeapAllocSize, Memory: h + 1, Size: 64 * mib}},
		{nvidia.EscAllocMemory, nvidia.SizeAllocMemory, nvidia.AllocMemory{Root: c.root, Parent: c.device, New: h + 2, Class: nvidia.ClassMemoryLocalUser, Limit: 64*mib - 1, FD: -1}},
		{nvidia.EscVidHeap, nvidia.SizeVidHeap, nvidia.VidHeap{Root: c.root, Parent: c.device, Function: nvidia.HeapAllocOSDesc, Memory: handleFirst, Limit: 4095}},
		{nvidia.EscAlloc, nvidia.SizeAlloc64, nvidia.Alloc{Class: nvidia.ClassRootClient}},
		{nvidia.EscAlloc, nvidia.SizeAlloc64, nvidia.Alloc{Root: c.root, Parent: c.device, New: handleFirst, Class: nvidia.ClassOSDescriptor}},
		{nvidia.EscFree, nvidia.SizeFree, nvidia.Free{Root: t.Victim.Client, Object: t.Victim.Memory}},
		{nvidia.EscDup, nvidia.SizeDup, nvidia.Dup{Dst: c.root, Parent: c.device, Object: h + 3, SrcClient: t.Victim.Client, SrcObject: t.Victim.Memory}},
	} {
		b, addr, err := t.Take(s.size)
		if err != nil {
			return err
		}
		if err := s.call.Put(b); err != nil {
			return err
		}
		_ = t.try(t.wrap(c.fd, nvidia.Xfer{Cmd: uint32(s.nr), Size: uint32(s.size), Ptr: addr}, b))
	}
	t.Reset()
	return t.hold("after wrapped calls")
}

func wrappedFreeze(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	return t.measured(func() error {
		addr, b, err := t.freezeCall(c)
		if err != nil {
			return err
		}
		_ = t.try(t.wrap(c.fd, nvidia.Xfer{Cmd: uint32(nvidia.EscControl), Size: nvidia.SizeControl, Ptr: addr}, b))
		// In two layers.
		x, at, err := t.Take(nvidia.SizeXfer)
		if err != nil {
			return err
		}
		_ = nvidia.Xfer{Cmd: uint32(nvidia.EscControl), Size: nvidia.SizeControl, Ptr: addr}.Put(x) // it fits
		_ = t.try(t.wrap(c.fd, nvidia.Xfer{Cmd: uint32(nvidia.EscXfer), Size: nvidia.SizeXfer, Ptr: at}, b))
		t.Reset()
		return nil
	})
}

func wrappedOdd(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	for _, cmd := range []uint32{uint32(nvidia.EscAlloc), 0x100 | uint32(nvidia.EscAlloc), nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64), 0x1002b, uint32(nvidia.EscXfer)} {
		for _, n := range []uint32{0, 1, 31, 32, 47, 48, 49, 184, 1 << 14, 1<<14 + 48, 1 << 31, ^uint32(0), 0x10030} {
			addr, b, err := t.allocCall(c, handleFirst+0x10000)
			if err != nil {
				return err
			}
			_ = t.try(t.wrap(c.fd, nvidia.Xfer{Cmd: cmd, Size: n, Ptr: addr}, b))
			_ = t.try(t.wrap(c.fd, nvidia.Xfer{Cmd: cmd, Size: n, Ptr: 0}, b))
			_ = t.try(t.wrap(c.fd, nvidia.Xfer{Cmd: cmd, Size: n, Ptr: 1<<63 | addr}, b))
			t.Reset()
		}
	}
	return t.hold("after odd wrappers")
}

func unknownControls(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	table, err := nvidia.Lookup(driverVersion)
	if err != nil {
		return err
	}
	n := min(600, 200+int(t.Race.Milliseconds())/2)
	for range n {
		cmd := []uint32{0x2080, 0x0080, 0xa06c, 0xa06f, 0x0000, 0x208f, 0x90e6}[rand.IntN(7)]<<16 | uint32(rand.IntN(0x40))<<8 | uint32(rand.IntN(0x30))
		if _, ok := table.Control(cmd); ok {
			continue
		}
		p := make([]byte, 536)
		for off := 0; off+8 <= len(p); off += 8 {
			_ = nvidia.PutU32At(p, uint32(off), uint32(t.Victim.Client))
			_ = nvidia.PutU32At(p, uint32(off+4), uint32(t.Victim.Channels[0]))
		}
		_ = t.try(t.control(c.fd, c.root, c.subdevice, cmd, p))
	}
	return t.hold("after unknown controls")
}

const driverVersion = "580.159.04"

func unknownClasses(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	table, err := nvidia.Lookup(driverVersion)
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	for range 400 {
		class := nvidia.Class(rand.IntN(0xd000))
		if row, ok := table.Class(class); ok && row.Verdict != nvidia.Refuse {
			continue
		}
		a := nvidia.Alloc{Root: c.root, Parent: c.device, New: handleFirst + 0x10000 + nvidia.Handle(class), Class: class}
		_, err := c.object(c.fd, a, memoryParams(nvidia.MemoryParams{Size: 4 * mib}))
		_ = t.try(err)
	}
	return t.hold("after unknown classes")
}

func unknownEscapes(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for nr := range uint32(0xe0) {
		for _, n := range []uint32{0, 1, 4, 16, 48, 56, 184, 1024} {
			_, addr, err := t.Take(1024)
			if err != nil {
				return err
			}
			if row, ok := mustTable().Escape(uint8(nr), n); !ok || row.Verdict == nvidia.Refuse {
				_ = t.try(rawIoctl(c.fd, nvidia.Cmd(uint8(nr), n), addr))
			}
			t.Reset()
		}
	}
	return t.hold("after unknown escapes")
}

func mustTable() *nvidia.Table {
	t, err := nvidia.Lookup(driverVersion)
	if err != nil {
		return nvidia.Nearest(driverVersion)
	}
	return t
}
