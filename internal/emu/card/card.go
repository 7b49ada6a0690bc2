package card

import (
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// FileID names one open file of the card: one struct file, however many descriptors share it.
type FileID uint64

// Kind says which device file was opened.
type Kind uint8

// The card's device files.
const (
	KindCtl Kind = iota + 1 // nvidiactl
	KindGPU                 // nvidia0
	KindUVM                 // nvidia-uvm
)

// Memory is the address space of the thread that makes a call.
type Memory interface {
	ReadAt(b []byte, addr uint64) error
	WriteAt(b []byte, addr uint64) error
}

// Caller is whoever executes an ioctl: a tenant, or a supervisor on the tenant's file.
type Caller struct {
	// PID is the process; clients made by it are listed under it.
	PID int
	// Mem holds the call's structures and everything their pointers name.
	Mem Memory
	// File resolves a descriptor of the caller to the card's file. A nil File knows none.
	File func(fd int) (FileID, bool)
}

func (w Caller) file(fd int32) (FileID, bool) {
	if w.File == nil || fd < 0 {
		return 0, false
	}
	return w.File(int(fd))
}

// file is the driver's private data of one struct file.
type file struct {
	id   FileID
	kind Kind
	// ctl is the control file a device file was registered to; calls on it act as that file.
	ctl *file
	// refs counts the struct file itself and the device files registered to it: RM cleans up when the
	// last of them is closed.
	refs    int
	clients []*client
	// exports are the objects attached to this descriptor, held until it closes.
	exports []export
	uvm     *vaSpace
}

// Card is one emulated GPU. Its methods are safe for concurrent use: callers' memory is touched outside the
// lock, so that a caller whose memory blocks holds up nobody else.
type Card struct {
	mu     sync.Mutex
	cfg    Config
	now    time.Duration
	files  map[FileID]*file
	nextID FileID

	clients    map[uint32]*client
	nextClient uint32
	nextTSG    uint32
	major      int // of the driver version

	used     int64
	runlists []*runlist
	effects  []effect
	// controlBusy is when the last of the slow, serialised controls will have finished.
	controlBusy time.Duration
	usage       map[int]*Usage
}

// New makes a card at time zero.
func New(cfg Config) *Card {
	if cfg.TotalBytes == 0 {
		cfg = H200()
	}
	if cfg.SmallPage <= 0 {
		cfg.SmallPage = 64 * kib
	}
	if cfg.LargePage < cfg.SmallPage {
		cfg.LargePage = 2 * mib
	}
	c := &Card{
		cfg:        cfg,
		files:      map[FileID]*file{},
		clients:    map[uint32]*client{},
		nextClient: 0xc1d00000,
		usage:      map[int]*Usage{},
	}
	major, _, _ := strings.Cut(cfg.Version, ".")
	c.major, _ = strconv.Atoi(major) // an odd version reads as 0, the oldest layouts
	for _, e := range cfg.engines() {
		slice := cfg.OtherSlice
		if e == engGR0 {
			slice = cfg.GraphicsSlice
		}
		c.runlists = append(c.runlists, &runlist{card: c, engine: e, slice: max(slice, time.Microsecond)})
	}
	return c
}

// Config returns what the card was made from, defaults filled in.
func (c *Card) Config() Config { return c.cfg }

// Open makes a new struct file of the given kind.
func (c *Card) Open(kind Kind) FileID {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextID++
	f := &file{id: c.nextID, kind: kind, refs: 1}
	if kind == KindUVM {
		f.uvm = newVASpace()
	}
	c.files[f.id] = f
	return f.id
}

// CloseFile is the last close of a file: its clients are freed, unless a device file registered to it still
// holds it. Closing an unknown file does nothing.
func (c *Card) CloseFile(id FileID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.files[id]
	if f == nil {
		return
	}
	delete(c.files, id)
	c.unref(f)
	c.settle()
}

func (c *Card) unref(f *file) {
	f.refs--
	if f.refs > 0 {
		return
	}
	for len(f.clients) > 0 {
		c.freeClient(f.clients[len(f.clients)-1])
	}
	for _, e := range f.exports {
		c.drop(e.mem)
	}
	f.exports = nil
	if f.uvm != nil {
		f.uvm.close(c)
	}
	if f.ctl != nil {
		c.unref(f.ctl)
		f.ctl = nil
	}
}

// owner is the file that RM takes the caller for.
func (f *file) owner() *file {
	if f.ctl != nil {
		return f.ctl
	}
	return f
}

// call is one ioctl in flight.
type call struct {
	c    *Card
	f    *file
	who  Caller
	nr   uint32
	buf  []byte
	done time.Duration
	// named is the card's file behind a descriptor in the parameters, resolved before the lock is taken.
	named FileID
}

// Ioctl executes one call made on a file by a caller. The errno is what ioctl(2) returns; RM's own verdict is
// in the status field of the structure in the caller's memory. done is the card time at which the call
// returns: the present, except for the slow controls, whose effect comes then. Call Advance first.
func (c *Card) Ioctl(id FileID, who Caller, cmd uint32, arg uint64) (done time.Duration, errno syscall.Errno) {
	c.mu.Lock()
	f, now := c.files[id], c.now
	c.mu.Unlock()
	if f == nil {
		return now, syscall.EBADF
	}
	if who.Mem == nil {
		return now, syscall.EFAULT
	}
	if f.kind == KindUVM {
		return now, c.uvmIoctl(f, who, cmd, arg)
	}
	return c.rmIoctl(f, who, cmd, arg)
}

// rmIoctl copies the structure in, runs the escape, and copies the structure out, as nvidia_ioctl does: the
// number and the size come from the command, its type byte is not looked at.
func (c *Card) rmIoctl(f *file, who Caller, cmd uint32, arg uint64) (time.Duration, syscall.Errno) {
	nr, size := cmd&0xff, cmd>>16&0x3fff
	if nr == escXfer {
		var x [sizeXfer]byte
		if size != sizeXfer {
			return c.Now(), syscall.EINVAL
		}
		if who.Mem.ReadAt(x[:], arg) != nil {
			return c.Now(), syscall.EFAULT
		}
		nr, size, arg = u32(x[:], 0), u32(x[:], 4), u64(x[:], 8)
		if size > maxCallSize || nr > 0xff || nr == escXfer {
			return c.Now(), syscall.EINVAL
		}
	}
	h, ok := escapes[nr]
	if !ok || (h.size != nil && !h.size(size)) {
		return c.Now(), syscall.EINVAL
	}
	k := &call{c: c, f: f, who: who, nr: nr, buf: make([]byte, size), done: c.Now()}
	if who.Mem.ReadAt(k.buf, arg) != nil {
		return k.done, syscall.EFAULT
	}
	errno := h.run(k)
	if errno != syscall.EFAULT && who.Mem.WriteAt(k.buf, arg) != nil {
		errno = syscall.EFAULT
	}
	return k.done, errno
}

// locked runs fn with the card locked and settles the engines afterwards.
func (k *call) locked(fn func() uint32) uint32 {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	st := fn()
	k.c.settle()
	return st
}

// Now is the time the card was last advanced to.
func (c *Card) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}
