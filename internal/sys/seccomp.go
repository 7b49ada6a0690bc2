package sys

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Values of linux/seccomp.h that x/sys does not carry, and the notification
// ioctls ('!' is their type byte).
const (
	seccompSetModeFilter  = 1
	seccompGetNotifSizes  = 3
	seccompNewListener    = 1 << 3
	seccompWaitKillable   = 1 << 5
	notifRecv             = 0xc0502100
	notifSend             = 0xc0182101
	notifIDValid          = 0x40082102
	notifSetFlags         = 0x40082104
	notifSyncWakeUp       = 1
	notifFlagContinue     = 1
	notifBytes, respBytes = 80, 24
	dataBytes             = 64
)

// Notification is one trapped system call, as the kernel recorded it: the
// registers cannot change any more, what pointers among them lead to can.
type Notification struct {
	ID   uint64 // counts up by one per call and filter
	TID  int    // thread, in this process's pid namespace; 0 when not visible
	NR   int
	Arch uint32
	Args [6]uint64
}

type notif struct {
	id    uint64
	pid   uint32
	flags uint32
	data  struct {
		nr   int32
		arch uint32
		ip   uint64
		args [6]uint64
	}
}

type notifResp struct {
	id    uint64
	val   int64
	error int32
	flags uint32
}

var _ = [1]struct{}{}[unsafe.Sizeof(notif{})-notifBytes]
var _ = [1]struct{}{}[unsafe.Sizeof(notifResp{})-respBytes]

// InstallFilter puts prog in front of the calling thread's system calls and
// of all that it starts, and returns the listener that receives the trapped
// ones. The caller must have locked its goroutine to the thread and should
// exec soon. A killed waiter leaves at once, any other signal waits until the
// call is answered (WAIT_KILLABLE_RECV, Linux 5.19): otherwise a signal would
// restart a call that was already executed for it.
func InstallFilter(prog []unix.SockFilter) (int, error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, fmt.Errorf("set no_new_privs: %w", err)
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: unsafe.SliceData(prog)}
	r, _, e := unix.RawSyscall(unix.SYS_SECCOMP, seccompSetModeFilter,
		seccompNewListener|seccompWaitKillable, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(prog)
	switch e {
	case 0:
		return int(r), nil
	case unix.EINVAL:
		return -1, fmt.Errorf("install the call filter: %w (needs Linux 5.19 or newer with seccomp user notification)", e)
	case unix.EBUSY:
		return -1, fmt.Errorf("install the call filter: %w (this process already has a seccomp listener, as inside another penstock run)", e)
	}
	return -1, fmt.Errorf("install the call filter: %w", e)
}

// CheckNotifySizes fails when the kernel's notification structures are not
// the ones this build knows.
func CheckNotifySizes() error {
	var s [3]uint16
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, seccompGetNotifSizes, 0, uintptr(unsafe.Pointer(&s)))
	if e != 0 {
		return fmt.Errorf("ask for seccomp notification sizes: %w", e)
	}
	if s != [3]uint16{notifBytes, respBytes, dataBytes} {
		return fmt.Errorf("seccomp notification sizes are %v, this build knows %v", s, [3]uint16{notifBytes, respBytes, dataBytes})
	}
	return nil
}

// WakeInPlace asks the kernel to switch from a trapped thread to its
// supervisor and back on one processor (Linux 6.6). Without it each trapped
// call waits for another processor to wake up, twice. It reports false where
// the kernel does not offer it.
func WakeInPlace(listener int) bool {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), notifSetFlags, notifSyncWakeUp)
	return e == 0
}

// ErrGone is returned for a notification whose thread was killed, or for a
// listener that no task uses any more.
var ErrGone = errors.New("the calling thread is gone")

// Receive takes the next trapped call. It blocks; poll the listener first.
func Receive(listener int) (Notification, error) {
	var n notif
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), notifRecv, uintptr(unsafe.Pointer(&n)))
	switch e {
	case 0:
		return Notification{ID: n.id, TID: int(n.pid), NR: int(n.data.nr), Arch: n.data.arch, Args: n.data.args}, nil
	case unix.ENOENT:
		return Notification{}, ErrGone
	}
	return Notification{}, fmt.Errorf("receive a seccomp notification: %w", e)
}

// Valid reports whether the thread behind id still waits for its answer. Call
// it after opening anything by pid and before writing to the tenant.
func Valid(listener int, id uint64) bool {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), notifIDValid, uintptr(unsafe.Pointer(&id)))
	return e == 0
}

// Answer ends the trapped call id with a return value or, when errno is not
// zero, with that error.
func Answer(listener int, id uint64, value int64, errno unix.Errno) error {
	return send(listener, notifResp{id: id, val: value, error: -int32(errno)})
}

// Continue lets the trapped call id run in its own thread. The kernel reads
// its memory arguments again, so whatever was checked may have changed.
func Continue(listener int, id uint64) error {
	return send(listener, notifResp{id: id, flags: notifFlagContinue})
}

func send(listener int, r notifResp) error {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), notifSend, uintptr(unsafe.Pointer(&r)))
	switch e {
	case 0:
		return nil
	case unix.ENOENT:
		return ErrGone
	}
	return fmt.Errorf("answer seccomp notification %d: %w", r.id, e)
}
