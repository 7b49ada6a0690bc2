package nvidia

// Ioctl numbers of /dev/nvidiactl and /dev/nvidiaN: the low byte of the command. The driver looks at this byte
// and the size only; the type byte may be anything, so a filter must compare the low byte.
//
// From nv_escape.h.
const (
	EscAllocMemory         uint8 = 0x27
	EscAllocObject         uint8 = 0x28
	EscFree                uint8 = 0x29
	EscControl             uint8 = 0x2a
	EscAlloc               uint8 = 0x2b
	EscDup                 uint8 = 0x34
	EscShare               uint8 = 0x35
	EscI2CAccess           uint8 = 0x39
	EscIdleChannels        uint8 = 0x41
	EscVidHeap             uint8 = 0x4a
	EscAccessRegistry      uint8 = 0x4d
	EscMapMemory           uint8 = 0x4e
	EscUnmapMemory         uint8 = 0x4f
	EscGetEventData        uint8 = 0x52
	EscAllocContextDma2    uint8 = 0x54
	EscAddVblankCallback   uint8 = 0x56
	EscMapMemoryDma        uint8 = 0x57
	EscUnmapMemoryDma      uint8 = 0x58
	EscBindContextDma      uint8 = 0x59
	EscExportObjectToFD    uint8 = 0x5c
	EscImportObjectFromFD  uint8 = 0x5d
	EscUpdateDeviceMapping uint8 = 0x5e
	EscLocklessDiagnostic  uint8 = 0x5f
)

// From nv-ioctl-numbers.h (base 200) and nv-ioctl-numa.h.
const (
	EscCardInfo         uint8 = 200
	EscRegisterFD       uint8 = 201
	EscAllocOSEvent     uint8 = 206
	EscFreeOSEvent      uint8 = 207
	EscStatusCode       uint8 = 209
	EscCheckVersion     uint8 = 210
	EscXfer             uint8 = 211
	EscAttachGPUs       uint8 = 212
	EscQueryDeviceIntr  uint8 = 213
	EscSysParams        uint8 = 214
	EscNumaInfo         uint8 = 215
	EscSetNumaStatus    uint8 = 216
	EscExportDmabuf     uint8 = 217
	EscWaitOpenComplete uint8 = 218
)

// The Linux ioctl encoding: number in bits 7:0, type in 15:8, size in 29:16, direction in 31:30.
const (
	iocType = uint32('F')
	iocRW   = uint32(3)
	// MaxIoctlSize is the largest size the encoding can carry; longer calls go through EscXfer.
	MaxIoctlSize = 1<<14 - 1
)

// Nr returns the number of a command, its low byte.
func Nr(cmd uint32) uint8 { return uint8(cmd) }

// Size returns the byte count that a command says its argument has.
func Size(cmd uint32) uint32 { return cmd >> 16 & MaxIoctlSize }

// Cmd returns _IOWR('F', nr, size).
func Cmd(nr uint8, size uint32) uint32 {
	return iocRW<<30 | size&MaxIoctlSize<<16 | iocType<<8 | uint32(nr)
}

// statusOffset returns where the status word of a call lies. Only MAP_MEMORY_DMA moved between driver lines,
// and its size tells which form it is.
func statusOffset(nr uint8, size uint32) (int, bool) {
	switch nr {
	case EscAllocMemory:
		return 40, size >= SizeAllocMemory
	case EscAllocObject:
		return 16, size >= 20
	case EscFree:
		return 12, size >= SizeFree
	case EscControl:
		return 28, size >= SizeControl
	case EscAlloc:
		if size >= SizeAlloc64 {
			return 40, true
		}
		return 28, size >= SizeAlloc21
	case EscDup:
		return 24, size >= SizeDup
	case EscShare:
		return 20, size >= 24
	case EscI2CAccess:
		return 24, size >= 32
	case EscIdleChannels:
		return 48, size >= 56
	case EscVidHeap:
		return 20, size >= SizeVidHeap
	case EscAccessRegistry:
		return 64, size >= 72
	case EscMapMemory:
		return 40, size >= SizeMapMemory
	case EscUnmapMemory:
		return 24, size >= SizeUnmapMemory
	case EscGetEventData:
		return 12, size >= 16
	case EscAllocContextDma2:
		return 48, size >= 56
	case EscMapMemoryDma:
		if size >= 64 { // NVOS46_PARAMETERS since 580
			return 56, true
		}
		return 48, size >= 56
	case EscUnmapMemoryDma:
		return 40, size >= 48
	case EscBindContextDma:
		return 12, size >= 16
	case EscUpdateDeviceMapping:
		return 32, size >= 40
	case EscAllocOSEvent, EscFreeOSEvent:
		return 12, size >= SizeOSEvent
	case EscStatusCode:
		return 8, size >= 12
	case EscQueryDeviceIntr, EscWaitOpenComplete:
		return 4, size >= 8
	case EscExportDmabuf:
		if size >= 2608 { // nv_ioctl_export_to_dma_buf_fd_t since 570
			return 2600, true
		}
		return 2592, size >= 2600
	}
	return -1, false
}

// PutStatus writes the status word of a call whose argument is b. It is an error when the call has none, such
// as CARD_INFO.
func PutStatus(b []byte, nr uint8, size uint32, s Status) error {
	off, ok := statusOffset(nr, size)
	if !ok {
		return &CommandError{Cmd: uint32(nr)}
	}
	return PutU32At(b, uint32(off), uint32(s))
}

// GetStatus reads the status word of a call whose argument is b.
func GetStatus(b []byte, nr uint8, size uint32) (Status, error) {
	off, ok := statusOffset(nr, size)
	if !ok {
		return 0, &CommandError{Cmd: uint32(nr)}
	}
	v, err := U32At(b, uint32(off))
	return Status(v), err
}
