package nvidia

// Sizes of the parameters of channel groups and channels.
const (
	SizeGroupParams      = 20  // NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS
	SizeChannelParams    = 368 // NV_CHANNEL_ALLOC_PARAMS since 570
	SizeChannelParams550 = 360 // NV_CHANNEL_ALLOC_PARAMS of 550
	maxSubdevices        = 8   // NV_MAX_SUBDEVICES
)

// GroupParams is NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS, the parameters of a TSG (class 0xa06c).
type GroupParams struct {
	Error, EccError, VASpace Handle
	EngineType               EngineType
}

// DecodeGroupParams reads the parameters.
func DecodeGroupParams(b []byte) (GroupParams, error) {
	if err := need(b, SizeGroupParams, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS"); err != nil {
		return GroupParams{}, err
	}
	return GroupParams{Error: handle(b, 0), EccError: handle(b, 4), VASpace: handle(b, 8), EngineType: EngineType(u32(b, 12))}, nil
}

// Put writes the parameters.
func (g GroupParams) Put(b []byte) error {
	if err := need(b, SizeGroupParams, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS"); err != nil {
		return err
	}
	putHandle(b, 0, g.Error)
	putHandle(b, 4, g.EccError)
	putHandle(b, 8, g.VASpace)
	put32(b, 12, uint32(g.EngineType))
	return nil
}

// ChannelParams is NV_CHANNEL_ALLOC_PARAMS, the parameters of a GPFIFO channel. The fields a tenant can fill
// in lie at the same offsets in every driver line; 570 made the struct eight bytes longer at its end.
type ChannelParams struct {
	Error, Buffer         Handle
	GPFIFOOffset          uint64
	GPFIFOEntries, Flags  uint32
	ContextShare, VASpace Handle
	UserdMemory           [maxSubdevices]Handle
	EngineType            EngineType
	CID, SubdeviceID      uint32
	EccError              Handle
}

// DecodeChannelParams reads the parameters.
func DecodeChannelParams(b []byte) (ChannelParams, error) {
	if err := need(b, SizeChannelParams550, "NV_CHANNEL_ALLOC_PARAMS"); err != nil {
		return ChannelParams{}, err
	}
	c := ChannelParams{
		Error: handle(b, 0), Buffer: handle(b, 4), GPFIFOOffset: u64(b, 8), GPFIFOEntries: u32(b, 16), Flags: u32(b, 20),
		ContextShare: handle(b, 24), VASpace: handle(b, 28), EngineType: EngineType(u32(b, 128)), CID: u32(b, 132),
		SubdeviceID: u32(b, 136), EccError: handle(b, 140),
	}
	for i := range c.UserdMemory {
		c.UserdMemory[i] = handle(b, 32+4*i)
	}
	return c, nil
}

// Put writes the parameters; fields the project does not name are left alone.
func (c ChannelParams) Put(b []byte) error {
	if err := need(b, SizeChannelParams550, "NV_CHANNEL_ALLOC_PARAMS"); err != nil {
		return err
	}
	putHandle(b, 0, c.Error)
	putHandle(b, 4, c.Buffer)
	put64(b, 8, c.GPFIFOOffset)
	put32(b, 16, c.GPFIFOEntries)
	put32(b, 20, c.Flags)
	putHandle(b, 24, c.ContextShare)
	putHandle(b, 28, c.VASpace)
	for i, h := range c.UserdMemory {
		putHandle(b, 32+4*i, h)
	}
	put32(b, 128, uint32(c.EngineType))
	put32(b, 132, c.CID)
	put32(b, 136, c.SubdeviceID)
	putHandle(b, 140, c.EccError)
	return nil
}

// ChannelFlagPrivileged asks for a privileged channel (NVOS04_FLAGS_PRIVILEGED_CHANNEL); a tenant never gets one.
const ChannelFlagPrivileged = 1 << 5
