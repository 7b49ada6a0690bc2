package rm

import (
	"fmt"
	"slices"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// Client is one RM client on one control file.
type Client struct {
	port Port
	// FD is the control file that owns the client; Handle is its root.
	FD     int
	Handle nvidia.Handle
	// table is that of the driver's version, in which the sizes of some structures differ; nil for the defaults.
	table *nvidia.Table
}

// sized returns the size of a control's parameters in this driver, or the default without a table.
func (c *Client) sized(cmd, otherwise uint32) []byte {
	if c.table != nil {
		if row, ok := c.table.Control(cmd); ok && row.Size > 0 {
			otherwise = row.Size
		}
	}
	return make([]byte, otherwise)
}

// zeros returns empty parameters of a class, nil when it has none.
func (c *Client) zeros(class nvidia.Class) []byte {
	if c.table == nil {
		return nil
	}
	row, ok := c.table.Class(class)
	if !ok || len(row.Sizes) == 0 {
		return nil
	}
	return make([]byte, slices.Max(row.Sizes))
}

// putter is a structure of internal/abi/nvidia.
type putter interface{ Put(b []byte) error }

// issue writes a call, makes it, and returns the bytes as the card left them. A verdict other than OK is an
// error of type nvidia.Status.
func issue(p Port, fd int, nr uint8, size uint32, s putter) ([]byte, error) {
	b, addr, err := p.Take(int(size))
	if err != nil {
		return nil, err
	}
	if err := s.Put(b); err != nil {
		return nil, err
	}
	if err := p.Ioctl(fd, nvidia.Cmd(nr, size), addr); err != nil {
		return nil, err
	}
	st, err := nvidia.GetStatus(b, nr, size)
	if err != nil {
		return nil, err
	}
	if st != nvidia.StatusOK {
		return nil, st
	}
	return b, nil
}

// NewClient allocates a root client on a control file.
func NewClient(p Port, fd int) (*Client, error) {
	defer p.Reset()
	b, err := issue(p, fd, nvidia.EscAlloc, nvidia.SizeAlloc64, nvidia.Alloc{Class: nvidia.ClassRootClient})
	if err != nil {
		return nil, fmt.Errorf("allocate root client: %w", err)
	}
	a, err := nvidia.DecodeAlloc(b)
	if err != nil {
		return nil, err
	}
	return &Client{port: p, FD: fd, Handle: a.New}, nil
}

// Alloc allocates an object; params are what the card reads, and get what it wrote back.
func (c *Client) Alloc(parent nvidia.Handle, class nvidia.Class, params []byte) (nvidia.Handle, error) {
	defer c.port.Reset()
	a := nvidia.Alloc{Root: c.Handle, Parent: parent, Class: class, ParamsSize: uint32(len(params))}
	var there []byte
	if len(params) > 0 {
		b, addr, err := c.port.Take(len(params))
		if err != nil {
			return 0, err
		}
		copy(b, params)
		there, a.Params = b, addr
	}
	b, err := issue(c.port, c.FD, nvidia.EscAlloc, nvidia.SizeAlloc64, a)
	if err != nil {
		return 0, fmt.Errorf("allocate class %#x: %w", uint32(class), err)
	}
	copy(params, there)
	a, err = nvidia.DecodeAlloc(b)
	return a.New, err
}

// Free frees an object; freeing the client's own handle frees all.
func (c *Client) Free(h nvidia.Handle) error {
	defer c.port.Reset()
	if _, err := issue(c.port, c.FD, nvidia.EscFree, nvidia.SizeFree, nvidia.Free{Root: c.Handle, Object: h}); err != nil {
		return fmt.Errorf("free %#x: %w", uint32(h), err)
	}
	return nil
}

// Control makes a control call; params get what the card wrote.
func (c *Client) Control(object nvidia.Handle, cmd uint32, params []byte) error {
	defer c.port.Reset()
	k := nvidia.Control{Client: c.Handle, Object: object, Cmd: cmd, ParamsSize: uint32(len(params))}
	b, addr, err := c.port.Take(len(params))
	if err != nil {
		return err
	}
	copy(b, params)
	if len(params) > 0 {
		k.Params = addr
	}
	if _, err := issue(c.port, c.FD, nvidia.EscControl, nvidia.SizeControl, k); err != nil {
		return fmt.Errorf("control %#x: %w", cmd, err)
	}
	copy(params, b)
	return nil
}

// Memory allocates video memory as CUDA does: RM_ALLOC of class 0x40. It returns the bytes the card took.
func (c *Client) Memory(device nvidia.Handle, size uint64) (nvidia.Handle, uint64, error) {
	params := make([]byte, nvidia.SizeMemoryParams)
	if err := (nvidia.MemoryParams{Size: size}).Put(params); err != nil {
		return 0, 0, err
	}
	h, err := c.Alloc(device, nvidia.ClassMemoryLocalUser, params)
	if err != nil {
		return 0, 0, err
	}
	m, err := nvidia.DecodeMemoryParams(params)
	return h, m.Size, err
}

// HeapMemory allocates video memory as graphics libraries do: VID_HEAP_CONTROL function 2.
func (c *Client) HeapMemory(device nvidia.Handle, size uint64) (nvidia.Handle, error) {
	defer c.port.Reset()
	v := nvidia.VidHeap{Root: c.Handle, Parent: device, Function: nvidia.HeapAllocSize, Size: size}
	b, err := issue(c.port, c.FD, nvidia.EscVidHeap, nvidia.SizeVidHeap, v)
	if err != nil {
		return 0, fmt.Errorf("heap allocation of %d bytes: %w", size, err)
	}
	v, err = nvidia.DecodeVidHeap(b)
	return v.Memory, err
}

// HeapFree frees memory with VID_HEAP_CONTROL function 3.
func (c *Client) HeapFree(device, memory nvidia.Handle) error {
	defer c.port.Reset()
	v := nvidia.VidHeap{Root: c.Handle, Parent: device, Function: nvidia.HeapFree, Memory: memory}
	if _, err := issue(c.port, c.FD, nvidia.EscVidHeap, nvidia.SizeVidHeap, v); err != nil {
		return fmt.Errorf("heap free of %#x: %w", uint32(memory), err)
	}
	return nil
}

// AllocMemory allocates video memory with ALLOC_MEMORY (0x27).
func (c *Client) AllocMemory(device, want nvidia.Handle, size uint64) (nvidia.Handle, error) {
	defer c.port.Reset()
	m := nvidia.AllocMemory{Root: c.Handle, Parent: device, New: want, Class: nvidia.ClassMemoryLocalUser, Limit: size - 1}
	b, err := issue(c.port, c.FD, nvidia.EscAllocMemory, nvidia.SizeAllocMemory, m)
	if err != nil {
		return 0, fmt.Errorf("allocate %d bytes: %w", size, err)
	}
	m, err = nvidia.DecodeAllocMemory(b)
	return m.New, err
}

// Dup duplicates another client's object under parent.
func (c *Client) Dup(parent nvidia.Handle, from *Client, object nvidia.Handle) (nvidia.Handle, error) {
	defer c.port.Reset()
	d := nvidia.Dup{Dst: c.Handle, Parent: parent, SrcClient: from.Handle, SrcObject: object}
	b, err := issue(c.port, c.FD, nvidia.EscDup, nvidia.SizeDup, d)
	if err != nil {
		return 0, fmt.Errorf("duplicate %#x: %w", uint32(object), err)
	}
	d, err = nvidia.DecodeDup(b)
	return d.Object, err
}

// MemoryInfo is what the card says about its memory, in bytes.
type MemoryInfo struct{ Total, Heap, Free uint64 }

// MemoryInfo asks with FB_GET_INFO_V2 on a subdevice.
func (c *Client) MemoryInfo(subdevice nvidia.Handle) (MemoryInfo, error) {
	p := c.sized(nvidia.CtrlFBGetInfoV2, 4+128*nvidia.SizeFBInfo)
	ask := []nvidia.FBInfo{{Index: nvidia.FBTotalRAMSize}, {Index: nvidia.FBHeapSize}, {Index: nvidia.FBHeapFree}}
	if err := nvidia.PutFBInfoV2(p, ask); err != nil {
		return MemoryInfo{}, err
	}
	if err := c.Control(subdevice, nvidia.CtrlFBGetInfoV2, p); err != nil {
		return MemoryInfo{}, err
	}
	got, err := nvidia.DecodeFBInfoV2(p)
	if err != nil || len(got) != len(ask) {
		return MemoryInfo{}, fmt.Errorf("memory information: %d entries: %w", len(got), err)
	}
	kib := func(i int) uint64 { return uint64(got[i].Value) << 10 }
	return MemoryInfo{Total: kib(0), Heap: kib(1), Free: kib(2)}, nil
}

// Group allocates a channel group on an engine.
func (c *Client) Group(device nvidia.Handle, e nvidia.EngineType) (nvidia.Handle, error) {
	p := make([]byte, nvidia.SizeGroupParams)
	if err := (nvidia.GroupParams{EngineType: e}).Put(p); err != nil {
		return 0, err
	}
	return c.Alloc(device, nvidia.ClassTSG, p)
}

// Channel allocates a channel under a group, or straight under a device.
func (c *Client) Channel(parent nvidia.Handle, e nvidia.EngineType) (nvidia.Handle, error) {
	p := c.zeros(nvidia.ClassChannelHopper)
	if p == nil {
		p = make([]byte, nvidia.SizeChannelParams)
	}
	if err := (nvidia.ChannelParams{EngineType: e, GPFIFOEntries: 1024}).Put(p); err != nil {
		return 0, err
	}
	return c.Alloc(parent, nvidia.ClassChannelHopper, p)
}

// SetTimeslice sets a channel group's time slice, in microseconds.
func (c *Client) SetTimeslice(group nvidia.Handle, micros uint64) error {
	p := make([]byte, 8)
	if err := (nvidia.Timeslice{Micros: micros}).Put(p); err != nil {
		return err
	}
	return c.Control(group, nvidia.CtrlTSGSetTimeslice, p)
}

// Timeslice returns a channel group's time slice, in microseconds.
func (c *Client) Timeslice(group nvidia.Handle) (uint64, error) {
	p := make([]byte, 8)
	if err := c.Control(group, nvidia.CtrlTSGGetTimeslice, p); err != nil {
		return 0, err
	}
	t, err := nvidia.DecodeTimeslice(p)
	return t.Micros, err
}

// Freeze disables (or enables) channels of any clients, with one FIFO_DISABLE_CHANNELS on a subdevice.
func (c *Client) Freeze(subdevice nvidia.Handle, disable bool, list []nvidia.ChannelRef) error {
	p, err := nvidia.FifoDisableChannels{Disable: disable, Channels: list}.Encode()
	if err != nil {
		return err
	}
	return c.Control(subdevice, nvidia.CtrlFifoDisableChannels, p)
}
