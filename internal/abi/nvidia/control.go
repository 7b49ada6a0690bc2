package nvidia

// Control numbers the project treats by name; the full list is in the table.
const (
	CtrlFBGetInfo           uint32 = 0x20801301
	CtrlFBGetInfoV2         uint32 = 0x20801303
	CtrlFifoDisableChannels uint32 = 0x2080110b
	CtrlGetPids             uint32 = 0x2080018d
	CtrlGetPidInfo          uint32 = 0x2080018e
	CtrlGpuGetGIDInfo       uint32 = 0x2080014a
	CtrlTSGSchedule         uint32 = 0xa06c0101
	CtrlTSGBind             uint32 = 0xa06c0102
	CtrlTSGSetTimeslice     uint32 = 0xa06c0103
	CtrlTSGGetTimeslice     uint32 = 0xa06c0104
	CtrlTSGPreempt          uint32 = 0xa06c0105
	CtrlTSGGetInfo          uint32 = 0xa06c0106
	CtrlTSGSetInterleave    uint32 = 0xa06c0107
	CtrlTSGGetInterleave    uint32 = 0xa06c0108
	CtrlTSGMakeRealtime     uint32 = 0xa06c0110
	CtrlChannelSchedule     uint32 = 0xa06f0103
	CtrlChannelBind         uint32 = 0xa06f0104
)

// FBInfo indices: NV2080_CTRL_FB_INFO_INDEX_* of ctrl2080fb.h. The values are in KiB.
const (
	FBRAMSize           uint32 = 0x07
	FBTotalRAMSize      uint32 = 0x08
	FBHeapSize          uint32 = 0x09
	FBMappableHeapSize  uint32 = 0x0a
	FBLargestFreeRegion uint32 = 0x12
	FBHeapFree          uint32 = 0x16
	FBUsableRAMSize     uint32 = 0x20
	FBHeapOffline       uint32 = 0x27
)

// FBInfo is NV2080_CTRL_FB_INFO, one entry of either form of FB_GET_INFO: 8 bytes.
type FBInfo struct {
	Index uint32
	Value uint32 // KiB for the memory sizes
}

// SizeFBInfo is the size of one entry.
const SizeFBInfo = 8

// FBInfoMax returns how many entries fit NV2080_CTRL_FB_GET_INFO_V2_PARAMS of the given size: the list became
// longer in 570 and in 580.
func FBInfoMax(size int) int {
	if size < 4 {
		return 0
	}
	return (size - 4) / SizeFBInfo
}

// DecodeFBInfoV2 reads the entries of FB_GET_INFO_V2 that its count names.
func DecodeFBInfoV2(b []byte) ([]FBInfo, error) {
	if err := need(b, 4, "FB_GET_INFO_V2"); err != nil {
		return nil, err
	}
	n := u32(b, 0)
	if uint64(n) > uint64(FBInfoMax(len(b))) {
		return nil, &CountError{What: "FB_GET_INFO_V2", Count: uint64(n), Max: uint64(FBInfoMax(len(b)))}
	}
	return DecodeFBInfoList(b[4:], int(n))
}

// PutFBInfoV2 writes the count and the entries.
func PutFBInfoV2(b []byte, list []FBInfo) error {
	if err := need(b, 4+SizeFBInfo*len(list), "FB_GET_INFO_V2"); err != nil {
		return err
	}
	put32(b, 0, uint32(len(list)))
	return PutFBInfoList(b[4:], list)
}

// DecodeFBInfoList reads n entries: the array that FB_GET_INFO (V1) points to.
func DecodeFBInfoList(b []byte, n int) ([]FBInfo, error) {
	if n < 0 || n > len(b)/SizeFBInfo {
		return nil, &CountError{What: "FB_INFO list", Count: uint64(n), Max: uint64(len(b) / SizeFBInfo)}
	}
	list := make([]FBInfo, n)
	for i := range list {
		list[i] = FBInfo{Index: u32(b, i*SizeFBInfo), Value: u32(b, i*SizeFBInfo+4)}
	}
	return list, nil
}

// PutFBInfoList writes entries.
func PutFBInfoList(b []byte, list []FBInfo) error {
	if err := need(b, SizeFBInfo*len(list), "FB_INFO list"); err != nil {
		return err
	}
	for i, e := range list {
		put32(b, i*SizeFBInfo, e.Index)
		put32(b, i*SizeFBInfo+4, e.Value)
	}
	return nil
}

// FBInfoV1 is NV2080_CTRL_FB_GET_INFO_PARAMS: a count and a pointer into the tenant.
type FBInfoV1 struct {
	Count uint32
	List  uint64
}

// SizeFBInfoV1 is its size.
const SizeFBInfoV1 = 16

// DecodeFBInfoV1 reads the parameters.
func DecodeFBInfoV1(b []byte) (FBInfoV1, error) {
	if err := need(b, SizeFBInfoV1, "FB_GET_INFO"); err != nil {
		return FBInfoV1{}, err
	}
	return FBInfoV1{Count: u32(b, 0), List: u64(b, 8)}, nil
}

// ChannelRef names a channel by the client that owns it.
type ChannelRef struct{ Client, Channel Handle }

// FIFO_DISABLE_CHANNELS: NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS.
const (
	SizeFifoDisableChannels = 536
	MaxFifoDisableChannels  = 64
)

// FifoDisableChannels freezes (Disable) or thaws channels of any client. Disabling also preempts; with
// OnlyScheduling the running work is left to end.
type FifoDisableChannels struct {
	Disable        bool
	OnlyScheduling bool
	Channels       []ChannelRef // at most MaxFifoDisableChannels
}

// Put writes the parameters into b and clears the rest of the struct.
func (f FifoDisableChannels) Put(b []byte) error {
	if err := need(b, SizeFifoDisableChannels, "FIFO_DISABLE_CHANNELS"); err != nil {
		return err
	}
	if len(f.Channels) > MaxFifoDisableChannels {
		return &CountError{What: "FIFO_DISABLE_CHANNELS", Count: uint64(len(f.Channels)), Max: MaxFifoDisableChannels}
	}
	clear(b[:SizeFifoDisableChannels])
	b[0] = boolByte(f.Disable)
	put32(b, 4, uint32(len(f.Channels)))
	b[8] = boolByte(f.OnlyScheduling)
	for i, c := range f.Channels {
		putHandle(b, 24+4*i, c.Client)
		putHandle(b, 280+4*i, c.Channel)
	}
	return nil
}

// Encode returns the parameters as bytes.
func (f FifoDisableChannels) Encode() ([]byte, error) {
	b := make([]byte, SizeFifoDisableChannels)
	return b, f.Put(b)
}

// DecodeFifoDisableChannels reads the parameters.
func DecodeFifoDisableChannels(b []byte) (FifoDisableChannels, error) {
	if err := need(b, SizeFifoDisableChannels, "FIFO_DISABLE_CHANNELS"); err != nil {
		return FifoDisableChannels{}, err
	}
	n := u32(b, 4)
	if n > MaxFifoDisableChannels {
		return FifoDisableChannels{}, &CountError{What: "FIFO_DISABLE_CHANNELS", Count: uint64(n), Max: MaxFifoDisableChannels}
	}
	f := FifoDisableChannels{Disable: u8(b, 0) != 0, OnlyScheduling: u8(b, 8) != 0}
	for i := range int(n) {
		f.Channels = append(f.Channels, ChannelRef{Client: handle(b, 24+4*i), Channel: handle(b, 280+4*i)})
	}
	return f, nil
}

// SizeTimeslice is sizeof(NVA06C_CTRL_TIMESLICE_PARAMS).
const SizeTimeslice = 8

// Timeslice is NVA06C_CTRL_TIMESLICE_PARAMS: the time slice of a channel group in microseconds.
type Timeslice struct{ Micros uint64 }

// DecodeTimeslice reads the parameters.
func DecodeTimeslice(b []byte) (Timeslice, error) {
	if err := need(b, SizeTimeslice, "TIMESLICE"); err != nil {
		return Timeslice{}, err
	}
	return Timeslice{Micros: u64(b, 0)}, nil
}

// Put writes the parameters.
func (t Timeslice) Put(b []byte) error {
	if err := need(b, SizeTimeslice, "TIMESLICE"); err != nil {
		return err
	}
	put64(b, 0, t.Micros)
	return nil
}

// SizePreempt is sizeof(NVA06C_CTRL_PREEMPT_PARAMS).
const SizePreempt = 8

// Preempt is NVA06C_CTRL_PREEMPT_PARAMS.
type Preempt struct {
	Wait, ManualTimeout bool
	TimeoutMicros       uint32
}

// DecodePreempt reads the parameters.
func DecodePreempt(b []byte) (Preempt, error) {
	if err := need(b, SizePreempt, "PREEMPT"); err != nil {
		return Preempt{}, err
	}
	return Preempt{Wait: u8(b, 0) != 0, ManualTimeout: u8(b, 1) != 0, TimeoutMicros: u32(b, 4)}, nil
}

// Put writes the parameters.
func (p Preempt) Put(b []byte) error {
	if err := need(b, SizePreempt, "PREEMPT"); err != nil {
		return err
	}
	b[0], b[1], b[2], b[3] = boolByte(p.Wait), boolByte(p.ManualTimeout), 0, 0
	put32(b, 4, p.TimeoutMicros)
	return nil
}

// GET_PIDS: NV2080_CTRL_GPU_GET_PIDS_PARAMS.
const (
	SizeGetPids = 3812
	MaxPids     = 950
)

// GetPids lists the processes that use a GPU (or, with IDType 1, a vGPU guest).
type GetPids struct {
	IDType, ID uint32
	Pids       []uint32
}

// DecodeGetPids reads the parameters.
func DecodeGetPids(b []byte) (GetPids, error) {
	if err := need(b, SizeGetPids, "GET_PIDS"); err != nil {
		return GetPids{}, err
	}
	n := u32(b, 8)
	if n > MaxPids {
		return GetPids{}, &CountError{What: "GET_PIDS", Count: uint64(n), Max: MaxPids}
	}
	g := GetPids{IDType: u32(b, 0), ID: u32(b, 4)}
	for i := range int(n) {
		g.Pids = append(g.Pids, u32(b, 12+4*i))
	}
	return g, nil
}

// Put writes the parameters and clears the unused part of the list.
func (g GetPids) Put(b []byte) error {
	if err := need(b, SizeGetPids, "GET_PIDS"); err != nil {
		return err
	}
	if len(g.Pids) > MaxPids {
		return &CountError{What: "GET_PIDS", Count: uint64(len(g.Pids)), Max: MaxPids}
	}
	clear(b[8:SizeGetPids])
	put32(b, 0, g.IDType)
	put32(b, 4, g.ID)
	put32(b, 8, uint32(len(g.Pids)))
	for i, p := range g.Pids {
		put32(b, 12+4*i, p)
	}
	return nil
}

// GET_PID_INFO: NV2080_CTRL_GPU_GET_PID_INFO_PARAMS, a list of NV2080_CTRL_GPU_PID_INFO.
const (
	SizeGetPidInfo = 14408
	MaxPidInfos    = 200
	sizePidInfo    = 72
)

// PidInfo is NV2080_CTRL_GPU_PID_INFO: device memory that a process holds, in bytes.
type PidInfo struct {
	Pid, Index, Result     uint32
	Private, Shared, Duped uint64
	ProtPrivate            uint64
	ProtShared, ProtDuped  uint64
	ComputeInstance        uint32
}

// DecodePidInfos reads the list of GET_PID_INFO.
func DecodePidInfos(b []byte) ([]PidInfo, error) {
	if err := need(b, SizeGetPidInfo, "GET_PID_INFO"); err != nil {
		return nil, err
	}
	n := u32(b, 0)
	if n > MaxPidInfos {
		return nil, &CountError{What: "GET_PID_INFO", Count: uint64(n), Max: MaxPidInfos}
	}
	list := make([]PidInfo, n)
	for i := range list {
		e := b[8+i*sizePidInfo:]
		list[i] = PidInfo{
			Pid: u32(e, 0), Index: u32(e, 4), Result: u32(e, 8), Private: u64(e, 16), Shared: u64(e, 24), Duped: u64(e, 32),
			ProtPrivate: u64(e, 40), ProtShared: u64(e, 48), ProtDuped: u64(e, 56), ComputeInstance: u32(e, 64),
		}
	}
	return list, nil
}

// PutPidInfos writes the list of GET_PID_INFO; bytes the project does not name are left alone.
func PutPidInfos(b []byte, list []PidInfo) error {
	if err := need(b, SizeGetPidInfo, "GET_PID_INFO"); err != nil {
		return err
	}
	if len(list) > MaxPidInfos {
		return &CountError{What: "GET_PID_INFO", Count: uint64(len(list)), Max: MaxPidInfos}
	}
	put32(b, 0, uint32(len(list)))
	for i, p := range list {
		e := b[8+i*sizePidInfo:]
		put32(e, 0, p.Pid)
		put32(e, 4, p.Index)
		put32(e, 8, p.Result)
		for j, v := range []uint64{p.Private, p.Shared, p.Duped, p.ProtPrivate, p.ProtShared, p.ProtDuped} {
			put64(e, 16+8*j, v)
		}
		put32(e, 64, p.ComputeInstance)
	}
	return nil
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}
