package nvidia

import "fmt"

// Handle names an object inside an RM client; Class names what kind of object it is.
type (
	Handle uint32
	Class  uint32
)

// Status is the verdict RM writes into a call's status field; the ioctl itself returns 0.
type Status uint32

// From nvstatuscodes.h; the ones the project answers with or tells apart.
const (
	StatusOK                      Status = 0x00
	StatusBufferTooSmall          Status = 0x02
	StatusBusyRetry               Status = 0x03
	StatusGPUIsLost               Status = 0x0f
	StatusGPUUUIDNotFound         Status = 0x12
	StatusIllegalAction           Status = 0x16
	StatusInUse                   Status = 0x17
	StatusInsertDuplicateName     Status = 0x19
	StatusInsufficientResources   Status = 0x1a
	StatusInsufficientPermissions Status = 0x1b
	StatusInvalidAddress          Status = 0x1e
	StatusInvalidArgument         Status = 0x1f
	StatusInvalidChannel          Status = 0x21
	StatusInvalidClass            Status = 0x22
	StatusInvalidClient           Status = 0x23
	StatusInvalidCommand          Status = 0x24
	StatusInvalidDevice           Status = 0x26
	StatusInvalidEvent            Status = 0x28
	StatusInvalidFlags            Status = 0x29
	StatusInvalidFunction         Status = 0x2a
	StatusInvalidIndex            Status = 0x2c
	StatusInvalidLimit            Status = 0x2e
	StatusInvalidObject           Status = 0x31
	StatusInvalidObjectHandle     Status = 0x33
	StatusInvalidObjectNew        Status = 0x34
	StatusInvalidObjectOld        Status = 0x35
	StatusInvalidObjectParent     Status = 0x36
	StatusInvalidOffset           Status = 0x37
	StatusInvalidOperation        Status = 0x38
	StatusInvalidParamStruct      Status = 0x3a
	StatusInvalidParameter        Status = 0x3b
	StatusInvalidPointer          Status = 0x3d
	StatusInvalidRequest          Status = 0x3f
	StatusInvalidState            Status = 0x40
	StatusNoFreeFifos             Status = 0x4f
	StatusNoMemory                Status = 0x51
	StatusNotCompatible           Status = 0x54
	StatusNotReady                Status = 0x55
	StatusNotSupported            Status = 0x56
	StatusObjectNotFound          Status = 0x57
	StatusObjectTypeMismatch      Status = 0x58
	StatusOperatingSystem         Status = 0x59
	StatusOutOfRange              Status = 0x5b
	StatusPIDNotFound             Status = 0x5e
	StatusRCError                 Status = 0x60
	StatusResetRequired           Status = 0x62
	StatusStateInUse              Status = 0x63
	StatusTimeout                 Status = 0x65
	StatusUVMAddressInUse         Status = 0x68
	StatusMaxSessionLimitReached  Status = 0x69
	StatusLibRMVersionMismatch    Status = 0x6a
	StatusGeneric                 Status = 0xffff
)

// String returns the name of nvstatuscodes.h, or the number of a status that is not listed here.
func (s Status) String() string {
	switch s {
	case StatusOK:
		return "NV_OK"
	case StatusBufferTooSmall:
		return "NV_ERR_BUFFER_TOO_SMALL"
	case StatusBusyRetry:
		return "NV_ERR_BUSY_RETRY"
	case StatusGPUIsLost:
		return "NV_ERR_GPU_IS_LOST"
	case StatusGPUUUIDNotFound:
		return "NV_ERR_GPU_UUID_NOT_FOUND"
	case StatusIllegalAction:
		return "NV_ERR_ILLEGAL_ACTION"
	case StatusInUse:
		return "NV_ERR_IN_USE"
	case StatusInsertDuplicateName:
		return "NV_ERR_INSERT_DUPLICATE_NAME"
	case StatusInsufficientResources:
		return "NV_ERR_INSUFFICIENT_RESOURCES"
	case StatusInsufficientPermissions:
		return "NV_ERR_INSUFFICIENT_PERMISSIONS"
	case StatusInvalidAddress:
		return "NV_ERR_INVALID_ADDRESS"
	case StatusInvalidArgument:
		return "NV_ERR_INVALID_ARGUMENT"
	case StatusInvalidChannel:
		return "NV_ERR_INVALID_CHANNEL"
	case StatusInvalidClass:
		return "NV_ERR_INVALID_CLASS"
	case StatusInvalidClient:
		return "NV_ERR_INVALID_CLIENT"
	case StatusInvalidCommand:
		return "NV_ERR_INVALID_COMMAND"
	case StatusInvalidDevice:
		return "NV_ERR_INVALID_DEVICE"
	case StatusInvalidEvent:
		return "NV_ERR_INVALID_EVENT"
	case StatusInvalidFlags:
		return "NV_ERR_INVALID_FLAGS"
	case StatusInvalidFunction:
		return "NV_ERR_INVALID_FUNCTION"
	case StatusInvalidIndex:
		return "NV_ERR_INVALID_INDEX"
	case StatusInvalidLimit:
		return "NV_ERR_INVALID_LIMIT"
	case StatusInvalidObject:
		return "NV_ERR_INVALID_OBJECT"
	case StatusInvalidObjectHandle:
		return "NV_ERR_INVALID_OBJECT_HANDLE"
	case StatusInvalidObjectNew:
		return "NV_ERR_INVALID_OBJECT_NEW"
	case StatusInvalidObjectOld:
		return "NV_ERR_INVALID_OBJECT_OLD"
	case StatusInvalidObjectParent:
		return "NV_ERR_INVALID_OBJECT_PARENT"
	case StatusInvalidOffset:
		return "NV_ERR_INVALID_OFFSET"
	case StatusInvalidOperation:
		return "NV_ERR_INVALID_OPERATION"
	case StatusInvalidParamStruct:
		return "NV_ERR_INVALID_PARAM_STRUCT"
	case StatusInvalidParameter:
		return "NV_ERR_INVALID_PARAMETER"
	case StatusInvalidPointer:
		return "NV_ERR_INVALID_POINTER"
	case StatusInvalidRequest:
		return "NV_ERR_INVALID_REQUEST"
	case StatusInvalidState:
		return "NV_ERR_INVALID_STATE"
	case StatusNoFreeFifos:
		return "NV_ERR_NO_FREE_FIFOS"
	case StatusNoMemory:
		return "NV_ERR_NO_MEMORY"
	case StatusNotCompatible:
		return "NV_ERR_NOT_COMPATIBLE"
	case StatusNotReady:
		return "NV_ERR_NOT_READY"
	case StatusNotSupported:
		return "NV_ERR_NOT_SUPPORTED"
	case StatusObjectNotFound:
		return "NV_ERR_OBJECT_NOT_FOUND"
	case StatusObjectTypeMismatch:
		return "NV_ERR_OBJECT_TYPE_MISMATCH"
	case StatusOperatingSystem:
		return "NV_ERR_OPERATING_SYSTEM"
	case StatusOutOfRange:
		return "NV_ERR_OUT_OF_RANGE"
	case StatusPIDNotFound:
		return "NV_ERR_PID_NOT_FOUND"
	case StatusRCError:
		return "NV_ERR_RC_ERROR"
	case StatusResetRequired:
		return "NV_ERR_RESET_REQUIRED"
	case StatusStateInUse:
		return "NV_ERR_STATE_IN_USE"
	case StatusTimeout:
		return "NV_ERR_TIMEOUT"
	case StatusUVMAddressInUse:
		return "NV_ERR_UVM_ADDRESS_IN_USE"
	case StatusMaxSessionLimitReached:
		return "NV_ERR_MAX_SESSION_LIMIT_REACHED"
	case StatusLibRMVersionMismatch:
		return "NV_ERR_LIB_RM_VERSION_MISMATCH"
	case StatusGeneric:
		return "NV_ERR_GENERIC"
	}
	return fmt.Sprintf("NV_STATUS(%#x)", uint32(s))
}

// Error lets a status travel as an error. StatusOK is no error and must not be returned as one.
func (s Status) Error() string { return s.String() }
