package sys

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ioctl issues cmd on fd with arg as its in/out argument and returns the
// call's own result, which some drivers use, and the errno as error.
func Ioctl(fd int, cmd uint32, arg []byte) (int, error) {
	r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(cmd), uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
	runtime.KeepAlive(arg)
	if e != 0 {
		return -1, e
	}
	return int(r), nil
}

// IoctlPtr issues cmd on fd with a plain address or number as its argument.
func IoctlPtr(fd int, cmd uint32, arg uint64) (int, error) {
	r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(cmd), uintptr(arg))
	if e != 0 {
		return -1, e
	}
	return int(r), nil
}
