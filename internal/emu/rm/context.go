package rm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
)

// Context is what a CUDA process has made by the time its first kernel can run: [H] a client, a device with
// its subdevice and address space, one compute group with eight channels, and three copy groups with four.
type Context struct {
	port Port
	*Client
	Device, Subdevice, Space nvidia.Handle
	Compute                  nvidia.Handle   // the compute group
	Channels                 []nvidia.Handle // of the compute group
	CopyGroups               []nvidia.Handle
	CopyChannels             []nvidia.Handle
	UVM                      *UVM
	gpuFD                    int
	files                    []int
	buffers                  []buffer
	next                     uint64 // address of the next mapping
}

// buffer is one device allocation with its mapping.
type buffer struct {
	memory       nvidia.Handle
	base, length uint64
}

// Classes of the objects a context makes, beside those internal/abi/nvidia names.
const (
	classHopperCompute nvidia.Class = 0xcbc0
	classHopperCopy    nvidia.Class = 0xc8b5
	classHopperDecode  nvidia.Class = 0xb8b0

	ctrlAttachedIDs  = 0x201
	ctrlClassListV2  = 0x800292
	ctrlNameString   = 0x20800110
	computeChannels  = 8
	copyGroups       = 3
	channelsPerCopy  = 4
	firstCopyEngine  = nvidia.EngineCopy0 + 2
	firstMappingBase = 0x7f00_0000_0000
	mappingAlign     = 2 << 20
)

// Version is what CHECK_VERSION's query answers: the driver version behind a control file.
func Version(p Port, fd int) (string, error) {
	defer p.Reset()
	b, addr, err := p.Take(nvidia.SizeCheckVersion)
	if err != nil {
		return "", err
	}
	binary.LittleEndian.PutUint32(b, '2')
	if err := p.Ioctl(fd, nvidia.Cmd(nvidia.EscCheckVersion, uint32(len(b))), addr); err != nil {
		return "", fmt.Errorf("ask the driver version: %w", err)
	}
	n := 8
	for n < len(b) && b[n] != 0 {
		n++
	}
	return string(b[8:n]), nil
}

// Start makes the calls of a CUDA start-up. What was made is torn down when it fails.
func Start(p Port) (_ *Context, err error) {
	x := &Context{port: p, gpuFD: -1, next: firstMappingBase}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start a context: %w", err), x.closeFiles())
		}
	}()
	ctl, err := x.open(card.KindCtl)
	if err != nil {
		return nil, err
	}
	version, err := Version(p, ctl)
	if err != nil {
		return nil, err
	}
	table, err := nvidia.Lookup(version)
	if err != nil {
		return nil, err
	}
	if err := x.plain(ctl, nvidia.EscSysParams, 8, nil); err != nil {
		return nil, err
	}
	if err := x.plain(ctl, nvidia.EscCardInfo, 32*nvidia.SizeCardInfo, nil); err != nil {
		return nil, err
	}
	if x.Client, err = NewClient(p, ctl); err != nil {
		return nil, err
	}
	x.table = table
	if x.gpuFD, err = x.open(card.KindGPU); err != nil {
		return nil, err
	}
	fd := binary.LittleEndian.AppendUint32(nil, uint32(ctl))
	if err := x.plain(x.gpuFD, nvidia.EscRegisterFD, nvidia.SizeRegisterFD, fd); err != nil {
		return nil, err
	}
	if err := x.makeDevice(); err != nil {
		return nil, err
	}
	return x, x.makeChannels()
}

// plain makes a call that has no status.
func (x *Context) plain(fd int, nr uint8, size uint32, in []byte) error {
	defer x.port.Reset()
	b, addr, err := x.port.Take(int(size))
	if err != nil {
		return err
	}
	copy(b, in)
	if err := x.port.Ioctl(fd, nvidia.Cmd(nr, size), addr); err != nil {
		return fmt.Errorf("escape %d: %w", nr, err)
	}
	return nil
}

// ask makes a control with parameters of the size this driver has, the given bytes first.
func (x *Context) ask(object nvidia.Handle, cmd uint32, in []byte) ([]byte, error) {
	row, ok := x.table.Control(cmd)
	if !ok {
		return nil, fmt.Errorf("control %#x: not in the tables", cmd)
	}
	p := make([]byte, max(row.Size, uint32(len(in))))
	copy(p, in)
	return p, x.Control(object, cmd, p)
}

// object allocates an object whose parameters, if the class has any, are zeros.
func (x *Context) object(parent nvidia.Handle, class nvidia.Class) (nvidia.Handle, error) {
	return x.Alloc(parent, class, x.zeros(class))
}

func (x *Context) open(kind card.Kind) (int, error) {
	fd, err := x.port.Open(kind)
	if err == nil {
		x.files = append(x.files, fd)
	}
	return fd, err
}

func (x *Context) makeDevice() (err error) {
	if _, err := x.ask(x.Handle, ctrlAttachedIDs, nil); err != nil {
		return err
	}
	if x.Device, err = x.object(x.Handle, nvidia.ClassDevice); err != nil {
		return err
	}
	if x.Subdevice, err = x.object(x.Device, nvidia.ClassSubdevice); err != nil {
		return err
	}
	if _, err := x.object(x.Subdevice, nvidia.ClassUserSharedData); err != nil {
		return err
	}
	if _, err := x.ask(x.Device, ctrlClassListV2, nil); err != nil {
		return err
	}
	if _, err := x.ask(x.Subdevice, ctrlNameString, nil); err != nil {
		return err
	}
	if _, err := x.MemoryInfo(x.Subdevice); err != nil {
		return err
	}
	gid, err := x.ask(x.Subdevice, nvidia.CtrlGpuGetGIDInfo, []byte{4: 2}) // binary form
	if err != nil {
		return err
	}
	if x.Space, err = x.object(x.Device, nvidia.ClassVASpace); err != nil {
		return err
	}
	fd, err := x.open(card.KindUVM)
	if err != nil {
		return err
	}
	if x.UVM, err = NewUVM(x.port, fd, x.FD); err != nil {
		return err
	}
	if row, ok := x.table.UVM(nvidia.UVMCmdFree); ok {
		x.UVM.freeSize = int(row.Size)
	}
	return x.UVM.Register(nvidia.UUID(gid[12:28]), x.Client, x.Space)
}

func (x *Context) makeChannels() (err error) {
	if x.Compute, x.Channels, err = x.group(nvidia.EngineGR0, computeChannels, classHopperCompute); err != nil {
		return err
	}
	for i := range nvidia.EngineType(copyGroups) {
		g, chs, err := x.group(firstCopyEngine+i, channelsPerCopy, classHopperCopy)
		if err != nil {
			return err
		}
		x.CopyGroups = append(x.CopyGroups, g)
		x.CopyChannels = append(x.CopyChannels, chs...)
	}
	return nil
}

// group makes a channel group with n channels and an engine object on each.
func (x *Context) group(e nvidia.EngineType, n int, class nvidia.Class) (nvidia.Handle, []nvidia.Handle, error) {
	g, err := x.Group(x.Device, e)
	if err != nil {
		return 0, nil, err
	}
	var list []nvidia.Handle
	for range n {
		ch, err := x.Channel(g, e)
		if err != nil {
			return 0, nil, err
		}
		if _, err := x.object(ch, class); err != nil {
			return 0, nil, err
		}
		list = append(list, ch)
	}
	return g, list, nil
}

// Malloc allocates and maps device memory, as cudaMalloc does: class 0x40, then an external mapping.
func (x *Context) Malloc(size uint64) error {
	h, got, err := x.Memory(x.Device, size)
	if err != nil {
		return err
	}
	length := (got + mappingAlign - 1) / mappingAlign * mappingAlign
	base := x.next
	if err := x.UVM.CreateRange(base, length); err != nil {
		return errors.Join(err, x.Client.Free(h))
	}
	if err := x.UVM.Map(base, got, x.Client, h); err != nil {
		return errors.Join(err, x.UVM.Free(base), x.Client.Free(h))
	}
	x.next += length
	x.buffers = append(x.buffers, buffer{h, base, length})
	return nil
}

// FreeAll frees what Malloc allocated, in the order CUDA does: the mapping, then the memory.
func (x *Context) FreeAll() error {
	var errs []error
	for _, b := range x.buffers {
		errs = append(errs, x.UVM.Free(b.base), x.Client.Free(b.memory))
	}
	x.buffers = nil
	return errors.Join(errs...)
}

// Decoder is a second client of the process, on a control file of its own, with bare channels on every decode
// engine, as nvcuvid makes it.
type Decoder struct {
	*Client
	Channels []nvidia.Handle
}

// Close frees the client and closes its file.
func (d *Decoder) Close() error {
	return errors.Join(d.Free(d.Handle), d.port.Close(d.FD))
}

// StartDecoder makes a decoder with a channel on each of the first n decode engines; its calls go through port.
func (x *Context) StartDecoder(port Port, n int) (_ *Decoder, err error) {
	fd, err := port.Open(card.KindCtl)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start a decoder: %w", err), port.Close(fd))
		}
	}()
	c, err := NewClient(port, fd)
	if err != nil {
		return nil, err
	}
	c.table = x.table
	d := &Decoder{Client: c}
	dev, err := c.Alloc(c.Handle, nvidia.ClassDevice, c.zeros(nvidia.ClassDevice))
	if err != nil {
		return nil, err
	}
	if _, err := c.Alloc(dev, nvidia.ClassSubdevice, c.zeros(nvidia.ClassSubdevice)); err != nil {
		return nil, err
	}
	for i := range nvidia.EngineType(n) {
		ch, err := c.Channel(dev, nvidia.EngineNVDEC0+i)
		if err != nil {
			return nil, err
		}
		if _, err := c.Alloc(ch, classHopperDecode, c.zeros(classHopperDecode)); err != nil {
			return nil, err
		}
		d.Channels = append(d.Channels, ch)
	}
	return d, nil
}

// Close frees the client and closes the files.
func (x *Context) Close() error {
	return errors.Join(x.FreeAll(), x.Client.Free(x.Handle), x.closeFiles())
}

func (x *Context) closeFiles() error {
	var errs []error
	for _, fd := range x.files {
		if err := x.port.Close(fd); err != nil && !errors.Is(err, unix.EBADF) {
			errs = append(errs, err)
		}
	}
	x.files = nil
	return errors.Join(errs...)
}
