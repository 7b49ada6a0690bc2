package nvidia

// Classes the project treats by name; the full list is in the table. Names and numbers are those of the class
// headers (cl*.h) and g_allclasses.h.
const (
	ClassRoot             Class = 0x0000 // NV01_ROOT
	ClassRootNonPriv      Class = 0x0001 // NV01_ROOT_NON_PRIV
	ClassEvent            Class = 0x0005 // NV01_EVENT
	ClassMemorySystem     Class = 0x003e // NV01_MEMORY_SYSTEM
	ClassMemoryLocalPriv  Class = 0x003f // NV01_MEMORY_LOCAL_PRIVILEGED
	ClassMemoryLocalUser  Class = 0x0040 // NV01_MEMORY_LOCAL_USER
	ClassRootClient       Class = 0x0041 // NV01_ROOT_CLIENT
	ClassMemoryExtended   Class = 0x0042 // NV_MEMORY_EXTENDED_USER
	ClassMemoryVirtual    Class = 0x0070 // NV01_MEMORY_VIRTUAL
	ClassOSDescriptor     Class = 0x0071 // NV01_MEMORY_SYSTEM_OS_DESCRIPTOR
	ClassEventOSEvent     Class = 0x0079 // NV01_EVENT_OS_EVENT
	ClassDevice           Class = 0x0080 // NV01_DEVICE_0
	ClassMemoryListFB     Class = 0x0082 // NV01_MEMORY_LIST_FBMEM
	ClassMemoryListObject Class = 0x0083 // NV01_MEMORY_LIST_OBJECT
	ClassMemoryPhysical   Class = 0x00c2 // NV01_MEMORY_LOCAL_PHYSICAL
	ClassUserSharedData   Class = 0x00de // RM_USER_SHARED_DATA
	ClassMemoryMapper     Class = 0x00fe // NV_MEMORY_MAPPER
	ClassMemoryFabric     Class = 0x00f8 // NV_MEMORY_FABRIC
	ClassMemoryImport     Class = 0x00f9 // NV_MEMORY_FABRIC_IMPORT_V2
	ClassMemoryMulticast  Class = 0x00fd // NV_MEMORY_MULTICAST_FABRIC
	ClassSubdevice        Class = 0x2080 // NV20_SUBDEVICE_0
	ClassVirtualRange     Class = 0x50a0 // NV50_MEMORY_VIRTUAL
	ClassVASpace          Class = 0x90f1 // FERMI_VASPACE_A
	ClassContextShare     Class = 0x9067 // FERMI_CONTEXT_SHARE_A
	ClassTSG              Class = 0xa06c // KEPLER_CHANNEL_GROUP_A
	ClassChannelFermi     Class = 0x906f // GF100_CHANNEL_GPFIFO
	ClassChannelKepler    Class = 0xa06f // KEPLER_CHANNEL_GPFIFO_A
	ClassChannelKeplerB   Class = 0xa16f // KEPLER_CHANNEL_GPFIFO_B
	ClassChannelMaxwell   Class = 0xb06f // MAXWELL_CHANNEL_GPFIFO_A
	ClassChannelPascal    Class = 0xc06f // PASCAL_CHANNEL_GPFIFO_A
	ClassChannelVolta     Class = 0xc36f // VOLTA_CHANNEL_GPFIFO_A
	ClassChannelTuring    Class = 0xc46f // TURING_CHANNEL_GPFIFO_A
	ClassChannelAmpere    Class = 0xc56f // AMPERE_CHANNEL_GPFIFO_A
	ClassChannelHopper    Class = 0xc86f // HOPPER_CHANNEL_GPFIFO_A
	ClassChannelBlackwell Class = 0xc96f // BLACKWELL_CHANNEL_GPFIFO_A
	ClassChannelBlackwlB  Class = 0xca6f // BLACKWELL_CHANNEL_GPFIFO_B
)

// IsRootClient says whether allocating the class makes an RM client. RM ties a client to the file and the
// process that made the call, so these run in the caller.
func (c Class) IsRootClient() bool {
	return c == ClassRoot || c == ClassRootNonPriv || c == ClassRootClient
}

// IsChannel says whether the class is a GPFIFO channel of any generation.
func (c Class) IsChannel() bool {
	switch c {
	case ClassChannelFermi, ClassChannelKepler, ClassChannelKeplerB, ClassChannelMaxwell, ClassChannelPascal, ClassChannelVolta,
		ClassChannelTuring, ClassChannelAmpere, ClassChannelHopper, ClassChannelBlackwell, ClassChannelBlackwlB:
		return true
	}
	return false
}
