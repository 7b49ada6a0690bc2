package card

import "encoding/binary"

// The calls as the card itself reads them: a second reading of the public headers, on purpose apart from the
// tables the engine decides with, so that a wrong offset there shows as a wrong answer here.

// Escape numbers (low byte of the ioctl command) and the byte sizes the driver insists on.
const (
	escAllocMemory  = 0x27
	escFree         = 0x29
	escControl      = 0x2a
	escAlloc        = 0x2b
	escDup          = 0x34
	escVidHeap      = 0x4a
	escCardInfo     = 200
	escRegisterFD   = 201
	escCheckVersion = 210
	escXfer         = 211
	escSysParams    = 214

	sizeAllocMemory = 56
	sizeFree        = 16
	sizeControl     = 32
	sizeAlloc       = 32
	sizeAllocRights = 48
	sizeDup         = 28
	sizeVidHeap     = 184
	sizeCardInfo    = 72
	sizeXfer        = 16

	// maxCallSize is NV_ABSOLUTE_MAX_IOCTL_SIZE; maxParams is RM's own bound for copied parameters.
	maxCallSize = 16384
	maxParams   = 1 << 20
)

// Status words (nvstatuscodes.h).
const (
	stOK             = 0x00
	stDuplicateName  = 0x19
	stNoPermission   = 0x1b
	stInvalidAddress = 0x1e
	stInvalidArg     = 0x1f
	stInvalidChannel = 0x21
	stInvalidClass   = 0x22
	stInvalidClient  = 0x23
	stIllegalAction  = 0x16
	stInvalidParent  = 0x36
	stInvalidParams  = 0x3a
	stInvalidPointer = 0x3d
	stInvalidState   = 0x40
	stNoMemory       = 0x51
	stNotSupported   = 0x56
	stNotFound       = 0x57
	stAddressInUse   = 0x68
)

// Classes.
const (
	clsRoot        = 0x0
	clsRootNonPriv = 0x1
	clsRootClient  = 0x41
	clsDevice      = 0x80
	clsSubdevice   = 0x2080
	clsMemSystem   = 0x3e
	clsMemPriv     = 0x3f
	clsMemLocal    = 0x40
	clsOSDesc      = 0x71
	clsTSG         = 0xa06c
	clsVASpace     = 0x90f1
)

// Engine types (cl2080_notification.h).
const (
	engGR0    = 0x01
	engCopy0  = 0x09
	engCopy9  = 0x12
	engNVDEC0 = 0x13
	engNVDEC7 = 0x1a
)

// Bits of NV_MEMORY_ALLOCATION_PARAMS: attr 26:25 is the location (0 is video memory), and the flag says that
// only addresses are wanted.
const (
	attrLocationShift = 25
	attrLocationMask  = 3
	allocFlagVirtual  = 0x00080000
)

// Controls the card knows.
const (
	ctlAttachedIDs     = 0x201
	ctlProbedIDs       = 0x214
	ctlExportObject    = 0x3d05
	ctlImportObject    = 0x3d06
	ctlExportObjects   = 0x3d0b
	ctlImportObjects   = 0x3d0c
	ctlSurfaceInfo     = 0x410110
	ctlClassListV2     = 0x800292
	ctlNameString      = 0x20800110
	ctlGIDInfo         = 0x2080014a
	ctlGetPIDs         = 0x2080018d
	ctlGetPIDInfo      = 0x2080018e
	ctlDisableChannels = 0x2080110b
	ctlFBInfo          = 0x20801301
	ctlFBInfoV2        = 0x20801303
	ctlSchedule        = 0xa06c0101
	ctlSetSlice        = 0xa06c0103
	ctlGetSlice        = 0xa06c0104
	ctlPreempt         = 0xa06c0105
	ctlTSGInfo         = 0xa06c0106
	ctlInterleave      = 0xa06c0107
)

// Commands of nvidia-uvm: bare integers, compared whole.
const (
	uvmInitialize     = 0x30000001
	uvmDeinitialize   = 0x30000002
	uvmRegisterVA     = 25
	uvmMapExternal    = 33
	uvmFree           = 34
	uvmRegisterGPU    = 37
	uvmUnmapExternal  = 66
	uvmCreateExternal = 73
	uvmMMInitialize   = 75
)

// isChannel reports whether a class is a GPFIFO channel of some generation.
func isChannel(class uint32) bool {
	switch class {
	case 0xc36f, 0xc46f, 0xc56f, 0xc86f, 0xc96f:
		return true
	}
	return false
}

// isMemory reports whether a class is memory of the card or the host.
func isMemory(class uint32) bool {
	return class == clsMemLocal || class == clsMemPriv || class == clsMemSystem || class == clsOSDesc
}

// isRoot reports whether a class makes a client.
func isRoot(class uint32) bool {
	return class == clsRoot || class == clsRootNonPriv || class == clsRootClient
}

var le = binary.LittleEndian

func u32(b []byte, off int) uint32      { return le.Uint32(b[off:]) }
func u64(b []byte, off int) uint64      { return le.Uint64(b[off:]) }
func put32(b []byte, off int, v uint32) { le.PutUint32(b[off:], v) }
func put64(b []byte, off int, v uint64) { le.PutUint64(b[off:], v) }
func putStr(b []byte, off, n int, s string) {
	clear(b[off : off+n])
	copy(b[off:off+n-1], s)
}
