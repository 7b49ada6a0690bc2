//go:build !amd64

package hostile

import "golang.org/x/sys/unix"

const haveRaw = false

func int80(_, _, _, _ uintptr) uintptr { return errnoValue(unix.ENOSYS) }

func cloneScript(_, _ uintptr, _ *[8]uintptr, _ uintptr) uintptr { return errnoValue(unix.ENOSYS) }

func errnoValue(e unix.Errno) uintptr { return ^uintptr(e) + 1 }
