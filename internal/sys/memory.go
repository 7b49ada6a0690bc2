package sys

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReadMemory fills b from the memory of process (or thread) pid at addr. It
// reads each byte once, so what the caller validates is what it got. It fails
// with EFAULT when any part is unmapped and EPERM without ptrace rights.
func ReadMemory(pid int, addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}
	n, err := unix.ProcessVMReadv(pid, local, remote, 0)
	if err != nil {
		return fmt.Errorf("read %d bytes at %#x of process %d: %w", len(b), addr, pid, err)
	}
	if n != len(b) {
		return fmt.Errorf("read %d bytes at %#x of process %d: only %d mapped: %w", len(b), addr, pid, n, unix.EFAULT)
	}
	return nil
}

// WriteMemory copies b to addr in process (or thread) pid. It may have written
// a part when it fails.
func WriteMemory(pid int, addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}
	n, err := unix.ProcessVMWritev(pid, local, remote, 0)
	if err != nil {
		return fmt.Errorf("write %d bytes at %#x of process %d: %w", len(b), addr, pid, err)
	}
	if n != len(b) {
		return fmt.Errorf("write %d bytes at %#x of process %d: only %d mapped: %w", len(b), addr, pid, n, unix.EFAULT)
	}
	return nil
}

// Arena is page memory outside the Go heap, so that the addresses of its parts
// can be put inside call structures that the kernel follows. It is not safe
// for concurrent use: one supervising thread owns one arena.
type Arena struct {
	mem  []byte
	used int
}

// NewArena maps size bytes, rounded up to whole pages.
func NewArena(size int) (*Arena, error) {
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map an arena of %d bytes: %w", size, err)
	}
	return &Arena{mem: mem}, nil
}

// Close unmaps the arena; slices taken from it must not be used any more.
func (a *Arena) Close() error { return unix.Munmap(a.mem) }

// Reset gives every slice back at once.
func (a *Arena) Reset() { a.used = 0 }

// Take returns n zeroed bytes, 16-byte aligned, and their address; false when
// the arena is full.
func (a *Arena) Take(n int) ([]byte, uint64, bool) {
	start := (a.used + 15) &^ 15
	if n < 0 || n > len(a.mem)-start {
		return nil, 0, false
	}
	a.used = start + n
	b := a.mem[start : start+n : start+n]
	clear(b)
	return b, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(a.mem)))) + uint64(start), true
}

// Address returns where b lies in this process. b must not be on a goroutine
// stack: take it from an Arena or keep it reachable from the heap.
func Address(b []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
