package hostile

import (
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// argumentAttacks give addresses and counts that nobody should follow.
func argumentAttacks() []attack {
	return []attack{
		{name: "argument/bad-addresses", setup: setup{probing: true}, run: badAddresses},
		{name: "argument/bad-parameter-addresses", setup: setup{probing: true}, run: badParameters},
		{name: "argument/read-only-answers", run: readOnly},
		{name: "argument/huge-counts", setup: setup{probing: true}, run: hugeCounts},
		{name: "argument/every-control-with-noise", setup: setup{probing: true}, run: everyControl},
		{name: "argument/every-class-with-noise", setup: setup{probing: true}, run: everyClassNoise},
		{name: "argument/descriptor-numbers", run: descriptorNumbers},
		{name: "argument/supervisors-addresses", run: supervisorsMemory},
	}
}

// badPlaces maps pages around a hole and returns addresses that should not be followed.
func badPlaces() ([]uint64, error) {
	p, err := mmap(0, 3*4096, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
	if err != nil {
		return nil, err
	}
	if err := munmap(p+4096, 4096); err != nil {
		return nil, err
	}
	ro, _, e := unix.Syscall6(unix.SYS_MMAP, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0)
	if e != 0 {
		return nil, e
	}
	none, _, e := unix.Syscall6(unix.SYS_MMAP, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0)
	if e != 0 {
		return nil, e
	}
	return []uint64{
		0, 1, p + 4096, p + 4096 - 8, p + 4096 - 20, p + 4096 - 47, uint64(ro), uint64(none), 0xffff_8880_0000_0000, 0xffff_ffff_8000_0000,
		0xffff_ffff_ffff_fff0, 1 << 63, 0x7fff_ffff_f000, 0x7fff_ffff_fff8, 0xffff_ffff_ff60_0000, 1 << 47,
	}, nil
}

func badAddresses(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	u, err := c.unified()
	if err != nil {
		return err
	}
	places, err := badPlaces()
	if err != nil {
		return err
	}
	for _, at := range places {
		for _, row := range mustTable().Escapes() {
			for _, n := range append(row.Sizes, row.Unit) {
				if n != 0 {
					_ = t.try(rawIoctl(c.fd, nvidia.Cmd(row.Nr, n), at))
				}
			}
		}
		for _, row := range mustTable().UVMs() {
			if row.Cmd != nvidia.UVMCmdDeinitialize {
				_ = t.try(rawIoctl(u.FD, row.Cmd, at))
			}
		}
	}
	return t.hold("after bad addresses")
}

// badParameters puts bad addresses where a structure points on.
func badParameters(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	places, err := badPlaces()
	if err != nil {
		return err
	}
	h := handleFirst
	for _, at := range places {
		for _, class := range []nvidia.Class{nvidia.ClassMemoryLocalUser, nvidia.ClassTSG, nvidia.ClassChannelHopper, nvidia.ClassVASpace, nvidia.ClassEventOSEvent} {
			for _, n := range []uint32{0, 1, 128, 368, 1 << 20, 1 << 31, ^uint32(0)} {
				h++
				a := nvidia.Alloc{Root: c.root, Parent: c.device, New: h, Class: class, Params: at, ParamsSize: n, Rights: at}
				_, err := t.issue(c.fd, nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64), nvidia.SizeAlloc64, a)
				_ = t.try(err)
				t.Reset()
			}
		}
		for _, cmd := range []uint32{nvidia.CtrlFBGetInfoV2, nvidia.CtrlFBGetInfo, nvidia.CtrlGetPids, 0x20801201, 0x3d05} {
			for _, n := range []uint32{0, 1, 16, 1028, 1 << 20, 1 << 31, ^uint32(0)} {
				k := nvidia.Control{Client: c.root, Object: c.subdevice, Cmd: cmd, Params: at, ParamsSize: n}
				_, err := t.issue(c.fd, nvidia.Cmd(nvidia.EscControl, nvidia.SizeControl), nvidia.SizeControl, k)
				_ = t.try(err)
				t.Reset()
			}
		}
	}
	c.fill(handleFirst + 0x10000)
	return t.hold("after bad parameter addresses")
}

// readOnly makes allocations whose answer cannot be written: what was made must be charged all the same.
func readOnly(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	h := handleFirst
	for range 12 {
		page, err := mmap(0, 4096, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, -1, 0)
		if err != nil {
			return err
		}
		h++
		params, paddr, err := t.Take(nvidia.SizeMemoryParams)
		if err != nil {
			return err
		}
		copy(params, memoryParams(nvidia.MemoryParams{Size: 200 * mib}))
		b := make([]byte, nvidia.SizeAlloc64)
		a := nvidia.Alloc{Root: c.root, Parent: c.device, New: h, Class: nvidia.ClassMemoryLocalUser, Params: paddr, ParamsSize: nvidia.SizeMemoryParams}
		_ = a.Put(b) // it fits
		if err := poke(page, b); err != nil {
			return err
		}
		if _, _, e := unix.Syscall(unix.SYS_MPROTECT, uintptr(page), 4096, unix.PROT_READ); e != 0 {
			return e
		}
		_ = t.try(rawIoctl(c.fd, nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64), page))
		t.Reset()
	}
	if err := t.hold("after unwritable answers"); err != nil {
		return err
	}
	c.fill(handleFirst + 0x1000)
	return t.hold("after filling up")
}

// hugeCounts puts huge numbers in every word of controls that carry lists.
func hugeCounts(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for _, row := range mustTable().Controls() {
		if len(row.Ptrs) == 0 && row.Cmd != nvidia.CtrlFBGetInfoV2 && row.Cmd != nvidia.CtrlGetPids && row.Cmd>>8 != 0x3d {
			continue
		}
		for _, n := range []uint32{0x10000, 0x7fffffff, 0xffffffff, 0x20000001} {
			p := make([]byte, max(row.Size, 16))
			for off := uint32(0); off+4 <= min(uint32(len(p)), 32); off += 4 {
				_ = nvidia.PutU32At(p, off, n)
			}
			for _, ptr := range row.Ptrs {
				_, addr, err := t.Take(64)
				if err != nil {
					return err
				}
				_ = nvidia.PutU64At(p, ptr.Offset, addr)
			}
			k := nvidia.Control{Client: c.root, Object: c.subdevice, Cmd: row.Cmd, ParamsSize: uint32(len(p))}
			b, addr, err := t.Take(len(p))
			if err != nil {
				return err
			}
			copy(b, p)
			k.Params = addr
			_, err = t.issue(c.fd, nvidia.Cmd(nvidia.EscControl, nvidia.SizeControl), nvidia.SizeControl, k)
			_ = t.try(err)
			t.Reset()
		}
	}
	return t.hold("after huge counts")
}

// everyControl makes every known control with all bits set, on each kind of object.
func everyControl(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for _, row := range mustTable().Controls() {
		p := make([]byte, min(max(row.Size, 64), 32<<10))
		for i := range p {
			p[i] = 0xff
		}
		o := c.subdevice
		switch row.Cmd >> 16 {
		case 0x0000:
			o = c.root
		case 0x0080:
			o = c.device
		}
		_ = t.try(t.control(c.fd, c.root, o, row.Cmd, p))
	}
	c.fill(handleFirst)
	return t.hold("after every control")
}

func everyClassNoise(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	h := handleFirst
	for _, row := range mustTable().Classes() {
		if row.Class.IsRootClient() {
			continue
		}
		for _, fill := range []byte{0, 0xff, 0x5a} {
			p := make([]byte, max(1, row.ParamsSize()))
			for i := range p {
				p[i] = fill
			}
			h++
			_, err := c.object(c.fd, nvidia.Alloc{Root: c.root, Parent: c.device, New: h, Class: row.Class}, p)
			_ = t.try(err)
		}
	}
	c.fill(handleFirst + 0x10000)
	return t.hold("after every class")
}

// descriptorNumbers gives descriptors that are not what they should be wherever a call takes one.
func descriptorNumbers(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	if _, err := c.vram(handleFirst, 300*mib); err != nil {
		return err
	}
	for _, fd := range []int{-1, 0, 1, 2, 3, 4, 5, 6, 7, 100, 1 << 20, 1<<31 - 1, -1 << 31} {
		_ = t.try(c.export(handleFirst, fd))
		p := make([]byte, 20)
		for i, v := range []uint32{uint32(fd), 1, uint32(c.device), uint32(c.device)} {
			_ = nvidia.PutU32At(p, uint32(4*i), v)
		}
		_ = t.try(c.control(c.fd, c.root, c.root, 0x3d06, p))
		b := make(raw, 4)
		_ = nvidia.PutU32At(b, 0, uint32(fd))
		_, err := t.issue(c.fd, nvidia.Cmd(nvidia.EscRegisterFD, 4), 4, b)
		_ = t.try(err)
		t.Reset()
	}
	if err := c.release(handleFirst); err != nil {
		return err
	}
	c.fill(handleFirst)
	return t.hold("after odd descriptors")
}

// supervisorsMemory puts addresses into fields that a proxied call would follow in the supervisor: answers that
// show another process's memory, or a supervisor that dies.
func supervisorsMemory(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for _, row := range mustTable().Controls() {
		if row.Verdict != nvidia.Plain && row.Verdict != nvidia.Deep || row.Size == 0 {
			continue
		}
		p := make([]byte, row.Size)
		for off := 0; off+8 <= len(p) && off < 64; off += 8 {
			_ = nvidia.PutU64At(p, uint32(off), 0xc000000000)
		}
		_ = t.try(t.control(c.fd, c.root, c.subdevice, row.Cmd, p))
	}
	return t.hold("after addresses of others")
}
