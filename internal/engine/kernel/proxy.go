package kernel

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// answer is what a trapped call gets: run it in the caller, or a result.
type answer struct {
	cont  bool
	value int64
	errno unix.Errno
}

var continueCall = answer{cont: true}

func fail(e unix.Errno) answer { return answer{errno: e} }

// Driver makes one call on an open device file. The real one is ioctl(2);
// tests put an emulated resource manager here.
type Driver interface {
	Ioctl(f File, cmd uint32, arg []byte) (int, error)
}

// systemDriver makes calls on real descriptors.
type systemDriver struct{}

func (systemDriver) Ioctl(f File, cmd uint32, arg []byte) (int, error) {
	return sys.Ioctl(f.FD, cmd, arg)
}

// arenaBytes bounds everything that one call copies: its structure, the
// parameters and what pointers in them lead to.
const arenaBytes = 1 << 20

// maxParams bounds one parameter block. The largest in use are tens of KiB.
const maxParams = 256 << 10

// call is one ioctl under judgement: where it came from, and the single copy
// of its argument that every decision is made on.
type call struct {
	caller
	file       File
	descriptor int // its number in the tenant
	cmd        uint32
	addr       uint64 // of the argument, in the tenant
	arg        []byte // the copy, in the arena

	wrapped bool // came inside an XFER
}

func (k *call) nr() uint8 { return nvidia.Nr(k.cmd) }

// block is one piece of the tenant's memory that a call points to, with the
// copy that the driver sees instead.
type block struct {
	slot []byte // 8 bytes of the containing copy that hold the pointer
	addr uint64 // in the tenant
	data []byte
	dir  nvidia.Dir
}

// swap is one descriptor number inside a call, replaced by our duplicate's.
type swap struct {
	slot []byte
	fd   uint32
	file File
}

// staged collects the replacements made for one proxied call, so that they
// are undone in what the tenant gets back.
type staged struct {
	blocks []block
	swaps  []swap
}

// errTooBig says that a call wants more copied than the bounds allow.
var errTooBig = errors.New("call exceeds the copy bound")

// stage copies the n bytes that the 8-byte pointer at slot leads to and lets
// slot point at the copy. A null pointer stays.
func (s *Session) stage(k *call, st *staged, slot []byte, n uint32, dir nvidia.Dir) ([]byte, error) {
	addr, err := nvidia.U64At(slot, 0)
	if err != nil {
		return nil, err
	}
	if addr == 0 || n == 0 {
		return nil, nil
	}
	if n > maxParams {
		return nil, fmt.Errorf("%d bytes behind a pointer: %w", n, errTooBig)
	}
	data, here, ok := s.arena.Take(int(n))
	if !ok {
		return nil, fmt.Errorf("%d bytes behind a pointer: %w", n, errTooBig)
	}
	// Also what only comes back is read first: the driver may leave a part of
	// it untouched, and the tenant must find its own bytes there.
	if err := k.read(addr, data); err != nil {
		return nil, err
	}
	if err := nvidia.PutU64At(slot, 0, here); err != nil {
		return nil, err
	}
	st.blocks = append(st.blocks, block{slot: slot, addr: addr, data: data, dir: dir})
	return data, nil
}

// stageAll follows the pointers and descriptors that a row lists in params.
func (s *Session) stageAll(k *call, st *staged, params []byte, ptrs []nvidia.Ptr, fds []nvidia.FD) error {
	for _, p := range ptrs {
		n, err := p.Bytes(params)
		if err != nil {
			return err
		}
		if uint64(p.Offset)+8 > uint64(len(params)) {
			return fmt.Errorf("pointer at %d of %d bytes: %w", p.Offset, len(params), errTooBig)
		}
		slot := params[p.Offset : p.Offset+8]
		if p.MaxBytes == 0 {
			// Never followed: the driver must not get the tenant's address.
			if err := st.hide(slot); err != nil {
				return err
			}
			continue
		}
		data, err := s.stage(k, st, slot, n, p.Dir)
		if err != nil {
			return err
		}
		if p.Clients {
			if err := s.ownClients(data, everyWord(len(data))); err != nil {
				return err
			}
		}
	}
	for _, d := range fds {
		if err := s.swapFD(k, st, params, d); err != nil {
			return err
		}
	}
	return nil
}

// everyWord lists the offsets of the 32-bit words in n bytes.
func everyWord(n int) []uint32 {
	var out []uint32
	for off := 0; off+4 <= n; off += 4 {
		out = append(out, uint32(off))
	}
	return out
}

// hide puts a null pointer in a slot for the time of the call.
func (st *staged) hide(slot []byte) error {
	addr, err := nvidia.U64At(slot, 0)
	if err != nil {
		return err
	}
	st.blocks = append(st.blocks, block{slot: slot, addr: addr})
	return nvidia.PutU64At(slot, 0, 0)
}

// errWrongFile says that a descriptor inside a call is not what it must be.
var errWrongFile = errors.New("not a driver file of that kind")

func (s *Session) swapFD(k *call, st *staged, params []byte, d nvidia.FD) error {
	fd, err := nvidia.U32At(params, d.Offset)
	if err != nil {
		return err
	}
	if int32(fd) < 0 {
		return nil
	}
	f, err := k.open(int(fd))
	if err != nil {
		return err
	}
	st.swaps = append(st.swaps, swap{slot: params[d.Offset : d.Offset+4], fd: fd, file: f})
	if !fdFits(d.Kind, f.Kind) {
		return fmt.Errorf("descriptor %d in call %#x: %w", fd, k.cmd, errWrongFile)
	}
	return nvidia.PutU32At(params, d.Offset, uint32(f.FD))
}

func fdFits(want nvidia.FDKind, have FileKind) bool {
	switch want {
	case nvidia.FDControl:
		return have == ControlFile || have == GPUFile
	case nvidia.FDUVM:
		return have == UVMFile
	}
	return false
}

// unstage puts the tenant's own pointers and descriptor numbers back into the
// copies and closes the duplicates.
func (st *staged) unstage(k *call) {
	for _, w := range st.swaps {
		_ = nvidia.PutU32At(w.slot, 0, w.fd)
		k.close(w.file)
	}
	st.swaps = nil
	for _, b := range st.blocks {
		_ = nvidia.PutU64At(b.slot, 0, b.addr)
	}
}

// deliver writes what the driver changed back to the tenant, inner blocks
// first, the call structure with its status last.
func (st *staged) deliver(k *call) error {
	if !k.waiting() {
		return errStale
	}
	for i := len(st.blocks) - 1; i >= 0; i-- {
		if b := st.blocks[i]; b.dir&nvidia.Out != 0 {
			if err := k.write(b.addr, b.data); err != nil {
				return err
			}
		}
	}
	return k.write(k.addr, k.arg)
}

// forward makes the staged call on the tenant's own file and delivers the
// answer. judge, when not nil, sees the answer before the tenant does and may
// change it.
func (s *Session) forward(k *call, st *staged, judge func()) answer {
	return s.execute(k, st, judge)()
}

// execute makes the staged call and lets judge see its answer. What it returns
// delivers the answer, and must be called without any lock of a card: the
// tenant decides how long a write to its memory takes (userfaultfd, FUSE). A
// driver that does not execute the call at all (an errno) leaves the tenant's
// memory alone.
func (s *Session) execute(k *call, st *staged, judge func()) func() answer {
	if s.again && k.file.Kind != UVMFile && k.nr() == nvidia.EscAlloc {
		s.undo(k)
	}
	if s.journal != nil {
		s.journal.issued()
	}
	start := time.Now()
	value, err := s.driver.Ioctl(k.file, k.cmd, k.arg)
	s.count.driving.Add(int64(time.Since(start)))
	st.unstage(k)
	if s.again {
		repeated(k)
		if k.file.Kind != UVMFile && k.nr() == nvidia.EscRegisterFD && errors.Is(err, unix.EINVAL) {
			value, err = 0, nil // the first execution tied the file; a second is refused
		}
	}
	s.count.proxied.Add(1)
	if err != nil {
		var e unix.Errno
		if !errors.As(err, &e) {
			e = unix.EIO
		}
		return func() answer { return fail(e) }
	}
	if judge != nil {
		judge()
	}
	return func() answer {
		if err := st.deliver(k); err != nil {
			return s.undelivered(err)
		}
		return answer{value: int64(value)}
	}
}

// abort gives up a call before it was made.
func (s *Session) abort(k *call, st *staged, err error) answer {
	st.unstage(k)
	var e unix.Errno
	switch {
	case errors.Is(err, errStale):
		return fail(unix.EINTR)
	case errors.As(err, &e):
		return fail(e)
	}
	s.refused(fmt.Sprintf("call %#x: %v", k.cmd, err))
	return fail(unix.EINVAL)
}

// undelivered handles an answer that could not be written: the tenant gave a
// read-only or vanished address, so it hears EFAULT as from the driver.
func (s *Session) undelivered(err error) answer {
	if errors.Is(err, errStale) {
		return fail(unix.EINTR)
	}
	return fail(unix.EFAULT)
}

// deny answers the call with a status word and forwards nothing.
func (s *Session) deny(k *call, status nvidia.Status, off int, why string) answer {
	s.refused(why)
	if off < 0 || off+4 > len(k.arg) {
		return fail(unix.EPERM)
	}
	if err := nvidia.PutU32At(k.arg, uint32(off), uint32(status)); err != nil {
		return fail(unix.EINVAL)
	}
	if err := (&staged{}).deliver(k); err != nil {
		return s.undelivered(err)
	}
	return answer{}
}

// satisfy answers the call with success and forwards nothing.
func (s *Session) satisfy(k *call, st *staged, off int) answer {
	st.unstage(k)
	if err := nvidia.PutU32At(k.arg, uint32(off), uint32(nvidia.StatusOK)); err != nil {
		return fail(unix.EINVAL)
	}
	if err := st.deliver(k); err != nil {
		return s.undelivered(err)
	}
	return answer{}
}
