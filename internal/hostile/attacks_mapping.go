package hostile

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

// mappingAttacks let unified mappings hold memory whose object is gone.
func mappingAttacks() []attack {
	return []attack{
		{name: "mapping/map-then-free", run: mapThenFree(func(t *tenant, c *client, u *rm.UVM, base uint64, h nvidia.Handle) error { return nil })},
		{name: "mapping/map-then-free-root", run: mapFreeRoot},
		{name: "mapping/map-then-close", run: mapClose},
		{name: "mapping/twice-at-one-address", run: mapTwice},
		{name: "mapping/without-a-card", run: mapThenFree(mapAgain(func(m *nvidia.UVMMapExternal) { m.GPUs = nil }))},
		{name: "mapping/replaced-by-failing-call", run: mapThenFree(mapAgain(func(m *nvidia.UVMMapExternal) { m.Memory++; m.Length = 1 << 40 }))},
		{name: "mapping/other-card-identity", run: mapThenFree(mapAgain(func(m *nvidia.UVMMapExternal) { m.GPUs[0][0]++ }))},
		{name: "mapping/unmap-of-nothing", run: mapThenFree(unmapTricks)},
		{name: "mapping/free-with-huge-length", run: mapThenFree(freeTricks)},
		{name: "mapping/unmap-part", run: unmapPart},
		{name: "mapping/many-addresses", run: manyAddresses},
		{name: "mapping/control-file-of-another-kind", run: mapKinds},
		{name: "mapping/limbo-then-fill", run: limboThenFill},
	}
}

// mapThenFree maps pieces, plays a trick on each, frees the objects and asks for more.
func mapThenFree(trick func(t *tenant, c *client, u *rm.UVM, base uint64, h nvidia.Handle) error) func(*tenant) error {
	return func(t *tenant) error {
		c, err := t.client()
		if err != nil {
			return err
		}
		u, err := c.unified()
		if err != nil {
			return err
		}
		const n = 256 * mib
		for i := range nvidia.Handle(8) {
			h, base := handleFirst+2*i, uvmBase+uint64(i)*uvmStep
			if _, err := c.vram(h, n); t.try(err) != nil {
				break
			}
			if err := c.mapped(u, base, n, h); err != nil {
				return err
			}
			if err := trick(t, c, u, base, h); err != nil {
				return err
			}
			if err := c.release(h); err != nil {
				return err
			}
		}
		if err := t.hold("with mappings of freed memory"); err != nil {
			return err
		}
		c.fill(handleFirst + 0x1000)
		return t.hold("after filling up")
	}
}

// mapAgain makes another mapping call for the same address with something wrong in it.
func mapAgain(spoil func(m *nvidia.UVMMapExternal)) func(t *tenant, c *client, u *rm.UVM, base uint64, h nvidia.Handle) error {
	return func(t *tenant, c *client, u *rm.UVM, base uint64, h nvidia.Handle) error {
		if _, err := c.vram(h+1, 64<<10); err != nil {
			return nil
		}
		m := nvidia.UVMMapExternal{Base: base, Length: 64 << 10, GPUs: make([]nvidia.UUID, 1), CtrlFD: int32(c.fd), Client: c.root, Memory: h}
		spoil(&m)
		_ = t.try(t.uvmMap(u.FD, m))
		return nil
	}
}

func unmapTricks(t *tenant, c *client, u *rm.UVM, base uint64, _ nvidia.Handle) error {
	other, err := c.unified()
	if err != nil {
		return err
	}
	// The same addresses in another file, where nothing is mapped but the range exists.
	if err := other.CreateRange(base, 256*mib); err != nil {
		return err
	}
	_ = t.try(other.Unmap(base, 256*mib))
	_ = t.try(other.Free(base))
	for _, s := range []struct{ base, length uint64 }{{0, ^uint64(0)}, {base - uvmStep, 1 << 62}, {base + 4096, 4096}, {base, 0}} {
		b := nvidia.UVMUnmapExternal{Base: s.base, Length: s.length}
		_ = t.try(t.uvmCall(u.FD, nvidia.UVMCmdUnmapExternal, 32, b, nvidia.SizeUVMUnmapExternal))
	}
	return nil
}

func freeTricks(t *tenant, _ *client, u *rm.UVM, base uint64, _ nvidia.Handle) error {
	// A small range in front, freed with a length that covers everything.
	front := base - 64<<20
	if err := u.CreateRange(front, 64<<10); err != nil {
		return err
	}
	_ = t.try(t.uvmFree(u.FD, front, 1<<46))
	_ = t.try(t.uvmFree(u.FD, 0, ^uint64(0)))
	return nil
}

// mapFreeRoot frees the whole client under its mappings.
func mapFreeRoot(t *tenant) error {
	for i := range uint64(8) {
		c, err := t.client()
		if t.try(err) != nil {
			break // with the memory used up, some supervisors give no client either
		}
		u, err := c.unified()
		if err != nil {
			return err
		}
		if _, err := c.vram(handleFirst, 256*mib); t.try(err) != nil {
			break
		}
		if err := c.mapped(u, uvmBase+i*uvmStep, 256*mib, handleFirst); err != nil {
			return err
		}
		if err := c.release(c.root); err != nil {
			return err
		}
	}
	return t.hold("with mappings of freed clients")
}

// mapClose closes the control file under its mappings.
func mapClose(t *tenant) error {
	for i := range uint64(8) {
		c, err := t.client()
		if t.try(err) != nil {
			break // with the memory used up, some supervisors give no client either
		}
		u, err := c.unified()
		if err != nil {
			return err
		}
		if _, err := c.vram(handleFirst, 256*mib); t.try(err) != nil {
			break
		}
		if err := c.mapped(u, uvmBase+i*uvmStep, 256*mib, handleFirst); err != nil {
			return err
		}
		closeAll(c.fd)
	}
	return t.hold("with mappings of closed files")
}

// mapTwice maps different memory at one address of two files.
func mapTwice(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for i := range 6 {
		u, err := c.unified()
		if err != nil {
			return err
		}
		h := handleFirst + nvidia.Handle(i)
		if _, err := c.vram(h, 200*mib); t.try(err) != nil {
			break
		}
		if err := c.mapped(u, uvmBase, 200*mib, h); err != nil {
			return err
		}
		if err := c.release(h); err != nil {
			return err
		}
	}
	if err := t.hold("with mappings at one address"); err != nil {
		return err
	}
	c.fill(handleFirst + 0x100)
	return t.hold("after filling up")
}

// unmapPart maps several pieces into one range and unmaps and frees them in parts.
func unmapPart(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	u, err := c.unified()
	if err != nil {
		return err
	}
	const n = 128 * mib
	if err := u.CreateRange(uvmBase, 8*n); err != nil {
		return err
	}
	for i := range uint64(6) {
		h := handleFirst + nvidia.Handle(i)
		if _, err := c.vram(h, n); t.try(err) != nil {
			break
		}
		if err := u.Map(uvmBase+i*n, n, &rm.Client{Handle: c.root}, h); err != nil {
			return err
		}
		if err := c.release(h); err != nil {
			return err
		}
	}
	_ = t.try(u.Unmap(uvmBase+n/2, n/2))
	_ = t.try(u.Unmap(uvmBase+n/2, 2*n))
	_ = t.try(u.Unmap(uvmBase+3*n, n))
	if err := t.hold("after unmapping parts"); err != nil {
		return err
	}
	c.fill(handleFirst + 0x100)
	if err := t.hold("after filling up"); err != nil {
		return err
	}
	_ = t.try(u.Free(uvmBase))
	c.fill(handleFirst + 0x200)
	return t.hold("after freeing the range")
}

// manyAddresses maps one object over and over, so that references are counted often, then frees all but one.
func manyAddresses(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	u, err := c.unified()
	if err != nil {
		return err
	}
	for i := range nvidia.Handle(4) {
		h := handleFirst + i
		if _, err := c.vram(h, 300*mib); t.try(err) != nil {
			break
		}
		at := func(k uint64) uint64 { return uvmBase + uint64(i)*64*gib + k*gib }
		for k := range uint64(8) {
			if err := c.mapped(u, at(k), 300*mib, h); err != nil {
				return err
			}
		}
		if err := c.release(h); err != nil {
			return err
		}
		for k := range uint64(7) {
			err := u.Unmap(at(k), 300*mib)
			if k%2 == 0 {
				err = u.Free(at(k))
			}
			if err != nil {
				return err
			}
		}
	}
	return t.hold("with the last of many mappings")
}

// mapKinds names a file of another kind as the control file.
func mapKinds(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	u, err := c.unified()
	if err != nil {
		return err
	}
	gpu, err := t.Open(card.KindGPU)
	if err != nil {
		return err
	}
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	if _, err := c.vram(handleFirst, 512*mib); err != nil {
		return err
	}
	if err := u.CreateRange(uvmBase, 512*mib); err != nil {
		return err
	}
	for _, fd := range []int{gpu, null, u.FD, -1, 1 << 30, 0} {
		m := nvidia.UVMMapExternal{Base: uvmBase, Length: 512 * mib, GPUs: make([]nvidia.UUID, 1), CtrlFD: int32(fd), Client: c.root, Memory: handleFirst}
		_ = t.try(t.uvmMap(u.FD, m))
	}
	if err := c.release(handleFirst); err != nil {
		return err
	}
	c.fill(handleFirst + 1)
	return t.hold("after odd control files")
}

// limboThenFill hides memory in mappings and then tries to use its room again, many times.
func limboThenFill(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	if err := t.hideInLimbo(c, 512*mib); err != nil {
		return err
	}
	for range 6 {
		list := c.fill(handleFirst + 0x100)
		_ = t.try(fmt.Errorf("got %d pieces", len(list)))
		for _, h := range list {
			if err := c.release(h); err != nil {
				return err
			}
		}
	}
	c.fill(handleFirst + 0x100)
	return errors.Join(t.hold("after limbo and fill"))
}
