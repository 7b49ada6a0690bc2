package rm

import (
	"encoding/binary"
	"fmt"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// UVM is one open nvidia-uvm file.
type UVM struct {
	port Port
	FD   int
	ctl  int
	// freeSize is the size of UVM_FREE's structure in this driver.
	freeSize int
}

// uvmCall makes a command with a structure of the given size; the status lies at statusAt.
func uvmCall(p Port, fd int, cmd uint32, size, statusAt int, s putter) error {
	defer p.Reset()
	b, addr, err := p.Take(size)
	if err != nil {
		return err
	}
	if s != nil {
		if err := s.Put(b); err != nil {
			return err
		}
	}
	if err := p.Ioctl(fd, cmd, addr); err != nil {
		return fmt.Errorf("uvm command %d: %w", cmd, err)
	}
	if st := nvidia.Status(binary.LittleEndian.Uint32(b[statusAt:])); st != nvidia.StatusOK {
		return fmt.Errorf("uvm command %d: %w", cmd, st)
	}
	return nil
}

// raw is a structure given as bytes.
type raw []byte

func (r raw) Put(b []byte) error { copy(b, r); return nil }

// NewUVM initialises an open nvidia-uvm file for use with a control file.
func NewUVM(p Port, fd, ctl int) (*UVM, error) {
	if err := uvmCall(p, fd, nvidia.UVMCmdInitialize, 16, 8, nil); err != nil {
		return nil, err
	}
	return &UVM{port: p, FD: fd, ctl: ctl, freeSize: nvidia.SizeUVMFree580}, nil
}

// Register registers the GPU and a client's address space.
func (u *UVM) Register(gpu nvidia.UUID, c *Client, space nvidia.Handle) error {
	b := make(raw, nvidia.SizeUVMRegisterGPU)
	copy(b, gpu[:])
	binary.LittleEndian.PutUint32(b[24:], uint32(u.ctl))
	binary.LittleEndian.PutUint32(b[28:], uint32(c.Handle))
	if err := uvmCall(u.port, u.FD, nvidia.UVMCmdRegisterGPU, len(b), 36, b); err != nil {
		return err
	}
	b = make(raw, nvidia.SizeUVMRegisterGPUVASpace)
	copy(b, gpu[:])
	binary.LittleEndian.PutUint32(b[16:], uint32(u.ctl))
	binary.LittleEndian.PutUint32(b[20:], uint32(c.Handle))
	binary.LittleEndian.PutUint32(b[24:], uint32(space))
	return uvmCall(u.port, u.FD, nvidia.UVMCmdRegisterGPUVASpace, len(b), 28, b)
}

// CreateRange reserves addresses for external memory.
func (u *UVM) CreateRange(base, length uint64) error {
	return uvmCall(u.port, u.FD, nvidia.UVMCmdCreateExternalRange, nvidia.SizeUVMRange, 16, nvidia.UVMRange{Base: base, Length: length})
}

// Map maps a client's memory object at base; the mapping keeps the memory.
func (u *UVM) Map(base, length uint64, c *Client, memory nvidia.Handle) error {
	m := nvidia.UVMMapExternal{
		Base: base, Length: length, GPUs: make([]nvidia.UUID, 1), CtrlFD: int32(u.ctl), Client: c.Handle, Memory: memory,
	}
	return uvmCall(u.port, u.FD, nvidia.UVMCmdMapExternal, nvidia.SizeUVMMapExternal, 9260, m)
}

// Unmap drops mappings inside a range.
func (u *UVM) Unmap(base, length uint64) error {
	return uvmCall(u.port, u.FD, nvidia.UVMCmdUnmapExternal, nvidia.SizeUVMUnmapExternal, 32, nvidia.UVMUnmapExternal{Base: base, Length: length})
}

// Free frees a whole range.
func (u *UVM) Free(base uint64) error {
	statusAt := 16
	if u.freeSize < nvidia.SizeUVMFree580 {
		statusAt = 8
	}
	return uvmCall(u.port, u.FD, nvidia.UVMCmdFree, u.freeSize, statusAt, nvidia.UVMFree{Base: base})
}
