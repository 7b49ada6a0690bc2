package hostile

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// Parts of linux/io_uring.h.
const (
	ringEntries  = 4
	ringOffSQ    = 0
	ringOffSQEs  = 0x10000000
	sqeBytes     = 64
	opOpenat     = 18
	opURingCmd   = 46
	opSendMsg    = 9
	ringEnterGet = 1
)

// byRing sends driver commands through io_uring, which no seccomp filter sees.
func byRing(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	params, addr, err := t.Take(120)
	if err != nil {
		return err
	}
	r, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, ringEntries, uintptr(addr), 0)
	if e != 0 {
		return fmt.Errorf("io_uring: %w: %w", e, errSkip)
	}
	ring := int(r)
	at := func(off uint32) uint64 { v, _ := nvidia.U32At(params, off); return uint64(v) }
	tail, array := at(44), at(64)
	sq, err1 := mmap(0, 1<<16, unix.MAP_SHARED, ring, ringOffSQ)
	sqes, err2 := mmap(0, ringEntries*sqeBytes, unix.MAP_SHARED, ring, ringOffSQEs)
	if t.try(err1) != nil || t.try(err2) != nil {
		return t.hold("after io_uring")
	}
	call, _, err := t.allocCall(c, handleFirst+0x10000)
	if err != nil {
		return err
	}
	for i, op := range []byte{opURingCmd, opOpenat, opSendMsg} {
		sqe := make([]byte, sqeBytes)
		sqe[0] = op
		_ = nvidia.PutU32At(sqe, 4, uint32(c.fd))
		_ = nvidia.PutU32At(sqe, 8, nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64)) // cmd_op
		_ = nvidia.PutU64At(sqe, 16, call)
		_ = nvidia.PutU64At(sqe, 48, call)
		pid := os.Getpid()
		for _, w := range []struct {
			at uint64
			b  []byte
		}{{sqes + uint64(i)*sqeBytes, sqe}, {sq + array + uint64(4*i), []byte{byte(i), 0, 0, 0}}, {sq + tail, []byte{byte(i + 1), 0, 0, 0}}} {
			if err := sys.WriteMemory(pid, w.at, w.b); err != nil {
				return err
			}
		}
		_, _, e := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(ring), 1, 1, ringEnterGet, 0, 0)
		if e != 0 {
			_ = t.try(e)
		}
		t.tries++
	}
	return t.hold("after io_uring")
}
