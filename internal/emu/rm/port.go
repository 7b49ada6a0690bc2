// Package rm makes resource-manager calls the way a driver library does, on a real device file or on a card in
// the same process. It is the client half that the emulated tenant, the virtual-time driver and the tests
// share; its structures are written with the project's own tables (internal/abi/nvidia), and the emulated card
// reads them by itself, so that the two check each other.
package rm

import (
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// Port is how calls reach a card. A Port serves one goroutine.
type Port interface {
	// Open opens one of the card's device files and returns a descriptor.
	Open(kind card.Kind) (int, error)
	Close(fd int) error
	// Ioctl makes a call; arg is an address from Take, or a plain number.
	Ioctl(fd int, cmd uint32, arg uint64) error
	// Take returns n zeroed bytes that the card can read and write at the address; Reset gives all back.
	Take(n int) ([]byte, uint64, error)
	Reset()
}

// scratchBytes is the room for the structures of one call; the largest has some 14 KiB.
const scratchBytes = 64 << 10

// Device is a Port to the device files in a directory: /dev on a real machine, the mount of an emulated card
// elsewhere.
type Device struct {
	dir   string
	arena *sys.Arena
}

// NewDevice returns a Port to the device files in dir; close it with Release.
func NewDevice(dir string) (*Device, error) {
	a, err := sys.NewArena(scratchBytes)
	if err != nil {
		return nil, err
	}
	return &Device{dir: dir, arena: a}, nil
}

// Release gives the scratch memory back; descriptors stay open.
func (d *Device) Release() error { return d.arena.Close() }

// DeviceName is the file name of a kind of device file.
func DeviceName(kind card.Kind) string {
	switch kind {
	case card.KindCtl:
		return "nvidiactl"
	case card.KindGPU:
		return "nvidia0"
	case card.KindUVM:
		return "nvidia-uvm"
	}
	return fmt.Sprintf("kind-%d", kind)
}

// Open implements Port.
func (d *Device) Open(kind card.Kind) (int, error) {
	path := filepath.Join(d.dir, DeviceName(kind))
	for {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return -1, fmt.Errorf("open %s: %w", path, err)
		}
		return fd, nil
	}
}

// Close implements Port.
func (d *Device) Close(fd int) error { return unix.Close(fd) }

// Ioctl implements Port.
func (d *Device) Ioctl(fd int, cmd uint32, arg uint64) error {
	for {
		_, err := sys.IoctlPtr(fd, cmd, arg)
		if err != unix.EINTR {
			return err
		}
	}
}

// Take implements Port.
func (d *Device) Take(n int) ([]byte, uint64, error) {
	b, addr, ok := d.arena.Take(n)
	if !ok {
		return nil, 0, fmt.Errorf("take %d bytes of scratch memory: full", n)
	}
	return b, addr, nil
}

// Reset implements Port.
func (d *Device) Reset() { d.arena.Reset() }

// Local is a Port to a card in this process, with descriptors and memory of its own.
type Local struct {
	Card *card.Card
	// Done is when the latest call returned, in card time.
	Done time.Duration
	slab slab
	pid  int
	fds  map[int]card.FileID
	next int
}

// NewLocal returns a Port for a pretended process.
func NewLocal(c *card.Card, pid int) *Local {
	return &Local{Card: c, pid: pid, fds: map[int]card.FileID{}, next: 3, slab: slab{mem: make([]byte, scratchBytes)}}
}

// Memory is the pretended process's memory.
func (l *Local) Memory() card.Memory { return &l.slab }

// File resolves a descriptor to the card's file.
func (l *Local) File(fd int) (card.FileID, bool) {
	id, ok := l.fds[fd]
	return id, ok
}

// Open implements Port.
func (l *Local) Open(kind card.Kind) (int, error) {
	fd := l.next
	l.next++
	l.fds[fd] = l.Card.Open(kind)
	return fd, nil
}

// Close implements Port.
func (l *Local) Close(fd int) error {
	id, ok := l.fds[fd]
	if !ok {
		return unix.EBADF
	}
	delete(l.fds, fd)
	l.Card.CloseFile(id)
	return nil
}

// Kill closes every descriptor, as the death of a process does.
func (l *Local) Kill() {
	for fd := 3; fd < l.next; fd++ {
		if id, ok := l.fds[fd]; ok {
			delete(l.fds, fd)
			l.Card.CloseFile(id)
		}
	}
}

// Ioctl implements Port.
func (l *Local) Ioctl(fd int, cmd uint32, arg uint64) error {
	id, ok := l.fds[fd]
	if !ok {
		return unix.EBADF
	}
	done, errno := l.Card.Ioctl(id, card.Caller{PID: l.pid, Mem: &l.slab, File: l.File}, cmd, arg)
	l.Done = done
	if errno != 0 {
		return errno
	}
	return nil
}

// Take implements Port.
func (l *Local) Take(n int) ([]byte, uint64, error) { return l.slab.take(n) }

// Reset implements Port.
func (l *Local) Reset() { l.slab.used = 0 }

// slabBase is where the pretended memory begins; addresses below it fault, as zero should.
const slabBase = 0x10000

// slab is a flat piece of memory with addresses.
type slab struct {
	mu   sync.Mutex
	mem  []byte
	used int
}

func (s *slab) take(n int) ([]byte, uint64, error) {
	start := (s.used + 15) &^ 15
	if n < 0 || n > len(s.mem)-start {
		return nil, 0, fmt.Errorf("take %d bytes of scratch memory: full", n)
	}
	s.used = start + n
	b := s.mem[start : start+n : start+n]
	clear(b)
	return b, slabBase + uint64(start), nil
}

func (s *slab) at(n int, addr uint64) ([]byte, error) {
	off := addr - slabBase
	if addr < slabBase || off > uint64(len(s.mem)) || uint64(n) > uint64(len(s.mem))-off {
		return nil, unix.EFAULT
	}
	return s.mem[off:][:n], nil
}

// ReadAt implements card.Memory.
func (s *slab) ReadAt(b []byte, addr uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.at(len(b), addr)
	if err == nil {
		copy(b, m)
	}
	return err
}

// WriteAt implements card.Memory.
func (s *slab) WriteAt(b []byte, addr uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.at(len(b), addr)
	if err == nil {
		copy(m, b)
	}
	return err
}
