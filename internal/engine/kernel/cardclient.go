package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// cardClient is the engine's own client of the resource manager on one card.
// Per-object controls need the file of the object's owner; what takes lists
// (freezing) or asks about the card goes through here.
type cardClient struct {
	mu     sync.Mutex
	driver Driver
	ctl    File
	table  *nvidia.Table
	arena  *sys.Arena

	client, device, subdevice nvidia.Handle
}

// Handles that the engine gives its own objects; any non-zero value serves.
const (
	ownDevice    nvidia.Handle = 0xcaf00080
	ownSubdevice nvidia.Handle = 0xcaf02080
)

// StatusError is a call that the driver executed and answered with a status.
type StatusError struct {
	What   string
	Status nvidia.Status
}

func (e *StatusError) Error() string { return e.What + ": " + e.Status.String() }

// openCardClient makes a client with a device and a subdevice for the card
// that the resource manager counts as instance.
func openCardClient(d Driver, ctl File, table *nvidia.Table, instance uint32) (*cardClient, error) {
	arena, err := sys.NewArena(64 << 10)
	if err != nil {
		return nil, err
	}
	c := &cardClient{driver: d, ctl: ctl, table: table, arena: arena}
	if err := c.build(instance); err != nil {
		arena.Close()
		return nil, fmt.Errorf("open a client on the card: %w", err)
	}
	return c, nil
}

func (c *cardClient) build(instance uint32) error {
	root, err := c.alloc(nvidia.Alloc{Class: nvidia.ClassRootClient}, nil)
	if err != nil {
		return err
	}
	c.client = root
	device := make([]byte, sizeDeviceParams)
	binary.LittleEndian.PutUint32(device, instance)
	c.device, err = c.alloc(nvidia.Alloc{Root: root, Parent: root, New: ownDevice, Class: nvidia.ClassDevice}, device)
	if err != nil {
		return err
	}
	c.subdevice, err = c.alloc(nvidia.Alloc{Root: root, Parent: c.device, New: ownSubdevice, Class: nvidia.ClassSubdevice}, make([]byte, sizeSubdeviceParams))
	return err
}

// Sizes of NV0080_ALLOC_PARAMETERS and NV2080_ALLOC_PARAMETERS.
const (
	sizeDeviceParams    = 56
	sizeSubdeviceParams = 4
)

func (c *cardClient) alloc(a nvidia.Alloc, params []byte) (nvidia.Handle, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arena.Reset()
	arg, _, _ := c.arena.Take(nvidia.SizeAlloc64)
	if len(params) > 0 {
		p, at, ok := c.arena.Take(len(params))
		if !ok {
			return 0, errTooBig
		}
		copy(p, params)
		a.Params, a.ParamsSize = at, uint32(len(params))
	}
	if err := a.Put(arg); err != nil {
		return 0, err
	}
	if _, err := c.driver.Ioctl(c.ctl, nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64), arg); err != nil {
		return 0, fmt.Errorf("allocate class %#x: %w", uint32(a.Class), err)
	}
	done, err := nvidia.DecodeAlloc(arg)
	if err == nil && done.Status != nvidia.StatusOK {
		err = &StatusError{fmt.Sprintf("allocate class %#x", uint32(a.Class)), done.Status}
	}
	return done.New, err
}

// controlOn issues a control on a file; params is both question and answer.
// object belongs to client, which the file must own unless the driver does
// not check that for this command.
func (c *cardClient) controlOn(f File, client, object nvidia.Handle, cmd uint32, params []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arena.Reset()
	arg, _, _ := c.arena.Take(nvidia.SizeControl)
	p, at, ok := c.arena.Take(len(params))
	if !ok {
		return errTooBig
	}
	copy(p, params)
	q := nvidia.Control{Client: client, Object: object, Cmd: cmd, Params: at, ParamsSize: uint32(len(params))}
	if err := q.Put(arg); err != nil {
		return err
	}
	if _, err := c.driver.Ioctl(f, nvidia.Cmd(nvidia.EscControl, nvidia.SizeControl), arg); err != nil {
		return fmt.Errorf("control %#x: %w", cmd, err)
	}
	copy(params, p)
	done, err := nvidia.DecodeControl(arg)
	if err == nil && done.Status != nvidia.StatusOK {
		err = &StatusError{fmt.Sprintf("control %#x", cmd), done.Status}
	}
	return err
}

// memory returns the card's size and what is in use, in bytes.
func (c *cardClient) memory() (total, used int64, err error) {
	row, ok := c.table.Control(nvidia.CtrlFBGetInfoV2)
	if !ok {
		return 0, 0, errors.New("memory of the card: FB_GET_INFO_V2 is not in the table")
	}
	params := make([]byte, max(row.Size, row.MaxSize))
	list := []nvidia.FBInfo{{Index: nvidia.FBTotalRAMSize}, {Index: nvidia.FBHeapFree}, {Index: nvidia.FBHeapSize}}
	binary.LittleEndian.PutUint32(params, uint32(len(list)))
	if err := nvidia.PutFBInfoV2(params, list); err != nil {
		return 0, 0, fmt.Errorf("memory of the card: %w", err)
	}
	if err := c.controlOn(c.ctl, c.client, c.subdevice, nvidia.CtrlFBGetInfoV2, params); err != nil {
		return 0, 0, fmt.Errorf("memory of the card: %w", err)
	}
	if list, err = nvidia.DecodeFBInfoV2(params); err != nil || len(list) < 3 {
		return 0, 0, fmt.Errorf("memory of the card: %w", err)
	}
	total = int64(list[0].Value) * kib
	return total, int64(list[2].Value)*kib - int64(list[1].Value)*kib, nil
}

// disable freezes or thaws channels. One dead channel in a list makes the
// driver refuse the whole list, so a refused list is halved until the dead
// ones are found: nobody stays frozen because a neighbour died. They are
// returned, so that they are not listed again.
func (c *cardClient) disable(freeze bool, list []nvidia.ChannelRef) ([]nvidia.ChannelRef, error) {
	var dead []nvidia.ChannelRef
	var errs []error
	for len(list) > 0 {
		n := min(len(list), nvidia.MaxFifoDisableChannels)
		d, err := c.disableList(freeze, list[:n])
		dead, errs = append(dead, d...), append(errs, err)
		list = list[n:]
	}
	return dead, errors.Join(errs...)
}

func (c *cardClient) disableList(freeze bool, list []nvidia.ChannelRef) ([]nvidia.ChannelRef, error) {
	params, err := nvidia.FifoDisableChannels{Disable: freeze, Channels: list}.Encode()
	if err != nil {
		return nil, err
	}
	err = c.controlOn(c.ctl, c.client, c.subdevice, nvidia.CtrlFifoDisableChannels, params)
	var st *StatusError
	switch {
	case err == nil:
		return nil, nil
	case !errors.As(err, &st):
		return nil, err
	case len(list) > 1:
		left, err1 := c.disableList(freeze, list[:len(list)/2])
		right, err2 := c.disableList(freeze, list[len(list)/2:])
		return append(left, right...), errors.Join(err1, err2)
	case st.Status == nvidia.StatusInvalidChannel || st.Status == nvidia.StatusInvalidClient:
		return list, nil
	}
	return nil, err
}

// holders returns the processes that the driver has clients of on the card.
func (c *cardClient) holders() ([]uint32, error) {
	params := make([]byte, nvidia.SizeGetPids)
	if err := (nvidia.GetPids{ID: uint32(nvidia.ClassSubdevice)}).Put(params); err != nil {
		return nil, err
	}
	if err := c.controlOn(c.ctl, c.client, c.subdevice, nvidia.CtrlGetPids, params); err != nil {
		return nil, fmt.Errorf("processes on the card: %w", err)
	}
	g, err := nvidia.DecodeGetPids(params)
	if err != nil {
		return nil, fmt.Errorf("processes on the card: %w", err)
	}
	return g.Pids, nil
}

// heldBy returns the device memory that the driver attributes to some
// processes, in bytes.
func (c *cardClient) heldBy(pids []uint32) (int64, error) {
	var sum int64
	for len(pids) > 0 {
		n := min(len(pids), nvidia.MaxPidInfos)
		list := make([]nvidia.PidInfo, n)
		for i, p := range pids[:n] {
			list[i].Pid = p
		}
		params := make([]byte, nvidia.SizeGetPidInfo)
		if err := nvidia.PutPidInfos(params, list); err != nil {
			return 0, err
		}
		if err := c.controlOn(c.ctl, c.client, c.subdevice, nvidia.CtrlGetPidInfo, params); err != nil {
			return 0, fmt.Errorf("memory of processes on the card: %w", err)
		}
		list, err := nvidia.DecodePidInfos(params)
		if err != nil {
			return 0, fmt.Errorf("memory of processes on the card: %w", err)
		}
		for _, p := range list {
			sum += int64(p.Private + p.Shared)
		}
		pids = pids[n:]
	}
	return sum, nil
}
