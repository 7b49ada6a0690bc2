package rm

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/doorbell"
)

// private makes a call of package doorbell on a file and leaves the answer in b.
func private(p Port, fd int, nr uint8, b []byte) error {
	defer p.Reset()
	there, addr, err := p.Take(len(b))
	if err != nil {
		return err
	}
	copy(there, b)
	if err := p.Ioctl(fd, doorbell.Cmd(nr, uint32(len(b))), addr); err != nil {
		return err
	}
	copy(b, there)
	return nil
}

// Submit queues n pieces of work on a channel and returns the channel's total. It works on a mounted card only.
func (c *Client) Submit(channel nvidia.Handle, each time.Duration, n int64) (int64, error) {
	b := make([]byte, doorbell.SizeSubmit)
	doorbell.Submit{Client: uint32(c.Handle), Channel: uint32(channel), Each: each, Count: n}.Put(b)
	if err := private(c.port, c.FD, doorbell.NrSubmit, b); err != nil {
		return 0, fmt.Errorf("submit %d × %v to channel %#x: %w", n, each, uint32(channel), err)
	}
	return doorbell.GetSubmit(b).Submitted, nil
}

// Wait blocks until n pieces of a channel have completed, or for the timeout (0: none).
func (c *Client) Wait(channel nvidia.Handle, n int64, timeout time.Duration) (doorbell.Wait, error) {
	b := make([]byte, doorbell.SizeWait)
	doorbell.Wait{Client: uint32(c.Handle), Channel: uint32(channel), Target: n, Timeout: timeout}.Put(b)
	if err := private(c.port, c.FD, doorbell.NrWait, b); err != nil {
		return doorbell.Wait{}, fmt.Errorf("wait for piece %d of channel %#x: %w", n, uint32(channel), err)
	}
	return doorbell.GetWait(b), nil
}

// Progress asks how far a channel is.
func (c *Client) Progress(channel nvidia.Handle) (doorbell.Progress, error) {
	b := make([]byte, doorbell.SizeProgress)
	doorbell.Progress{Client: uint32(c.Handle), Channel: uint32(channel)}.Put(b)
	if err := private(c.port, c.FD, doorbell.NrProgress, b); err != nil {
		return doorbell.Progress{}, fmt.Errorf("progress of channel %#x: %w", uint32(channel), err)
	}
	return doorbell.GetProgress(b), nil
}

// Managed is a managed allocation: a shared mapping of nvidia-uvm at an offset equal to its address.
type Managed struct {
	x     *Context
	base  uint64
	unmap func() error
}

// MapManaged allocates managed memory as cudaMallocManaged does — reserve addresses, then map nvidia-uvm over
// them at the offset equal to the address — and touches all of it on the card.
func (x *Context) MapManaged(size int) (*Managed, error) {
	base, unmap, err := mapAtOwnOffset(x.UVM.FD, size)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of managed memory: %w", size, err)
	}
	m := &Managed{x: x, base: base, unmap: unmap}
	b := make([]byte, doorbell.SizeManaged)
	doorbell.Managed{Base: base, Length: uint64(size)}.Put(b)
	if err := private(x.port, x.UVM.FD, doorbell.NrManaged, b); err != nil {
		return nil, errors.Join(fmt.Errorf("touch managed memory: %w", err), m.unmap())
	}
	return m, nil
}

// Address is where the memory lies, for the processor and the card.
func (m *Managed) Address() uint64 { return m.base }

// Free frees the allocation.
func (m *Managed) Free() error { return errors.Join(m.x.UVM.Free(m.base), m.unmap()) }

// mapAtOwnOffset maps size bytes of fd, shared, at an address that is also the offset.
func mapAtOwnOffset(fd, size int) (base uint64, unmap func() error, err error) {
	length := uintptr(size)
	hole, err := unix.MmapPtr(-1, 0, nil, length, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return 0, nil, err
	}
	unmap = func() error { return unix.MunmapPtr(hole, length) }
	p, err := unix.MmapPtr(fd, int64(uintptr(hole)), hole, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		return 0, nil, errors.Join(err, unmap())
	}
	return uint64(uintptr(p)), unmap, nil
}
