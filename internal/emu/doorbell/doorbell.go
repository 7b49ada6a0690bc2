// Package doorbell holds the calls an emulated card has beyond the driver's: they stand for what a program does
// on a real card without any system call, such as ringing a doorbell. Their numbers (low byte 0xe0 to 0xef) lie
// outside the driver's, so that a supervisor's filter lets them pass untrapped.
package doorbell

import (
	"encoding/binary"
	"time"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// Numbers and sizes. All are _IOWR('F', nr, size) with plain structures, no pointers.
const (
	NrSubmit   = 0xe0
	NrWait     = 0xe1
	NrProgress = 0xe2
	NrManaged  = 0xe3
	NrIdentify = 0xef

	SizeSubmit   = 32
	SizeWait     = 48
	SizeProgress = 40
	SizeManaged  = 24
	SizeIdentify = 8
)

// Cmd is the ioctl command of a number of this package.
func Cmd(nr uint8, size uint32) uint32 { return nvidia.Cmd(nr, size) }

// Is reports whether a command belongs to this package.
func Is(cmd uint32) bool { return cmd&0xf0 == 0xe0 && cmd>>8&0xff == 'F' }

var le = binary.LittleEndian

// Submit queues Count pieces of work, each Each long on the whole engine: client 0, channel 4, each 8, count 16;
// submitted 24 answers the channel's total.
type Submit struct {
	Client, Channel uint32
	Each            time.Duration
	Count           int64
	Submitted       int64
}

// Put writes the call; b holds at least SizeSubmit bytes.
func (s Submit) Put(b []byte) {
	le.PutUint32(b[0:], s.Client)
	le.PutUint32(b[4:], s.Channel)
	le.PutUint64(b[8:], uint64(s.Each))
	le.PutUint64(b[16:], uint64(s.Count))
	le.PutUint64(b[24:], uint64(s.Submitted))
}

// GetSubmit reads the call.
func GetSubmit(b []byte) Submit {
	return Submit{
		le.Uint32(b[0:]), le.Uint32(b[4:]), time.Duration(le.Uint64(b[8:])), int64(le.Uint64(b[16:])), int64(le.Uint64(b[24:])),
	}
}

// Wait blocks until Target pieces of a channel have completed, or the timeout (0: none) has passed: client 0,
// channel 4, target 8, timeout 40; completed 16 answers the channel's total, submitted 24 and finished 32 the
// card times of the piece waited for, if it has completed.
type Wait struct {
	Client, Channel     uint32
	Target              int64
	Completed           int64
	Submitted, Finished time.Duration
	Timeout             time.Duration
}

// Put writes the call; b holds at least SizeWait bytes.
func (w Wait) Put(b []byte) {
	le.PutUint32(b[0:], w.Client)
	le.PutUint32(b[4:], w.Channel)
	for i, v := range []int64{w.Target, w.Completed, int64(w.Submitted), int64(w.Finished), int64(w.Timeout)} {
		le.PutUint64(b[8+8*i:], uint64(v))
	}
}

// GetWait reads the call.
func GetWait(b []byte) Wait {
	return Wait{
		le.Uint32(b[0:]), le.Uint32(b[4:]), int64(le.Uint64(b[8:])), int64(le.Uint64(b[16:])),
		time.Duration(le.Uint64(b[24:])), time.Duration(le.Uint64(b[32:])), time.Duration(le.Uint64(b[40:])),
	}
}

// Progress asks how far a channel is: client 0, channel 4; submitted 8, completed 16, busy 24, card time 32.
type Progress struct {
	Client, Channel      uint32
	Submitted, Completed int64
	Busy, Now            time.Duration
}

// Put writes the call; b holds at least SizeProgress bytes.
func (p Progress) Put(b []byte) {
	le.PutUint32(b[0:], p.Client)
	le.PutUint32(b[4:], p.Channel)
	for i, v := range []int64{p.Submitted, p.Completed, int64(p.Busy), int64(p.Now)} {
		le.PutUint64(b[8+8*i:], uint64(v))
	}
}

// GetProgress reads the call.
func GetProgress(b []byte) Progress {
	return Progress{
		le.Uint32(b[0:]), le.Uint32(b[4:]), int64(le.Uint64(b[8:])), int64(le.Uint64(b[16:])),
		time.Duration(le.Uint64(b[24:])), time.Duration(le.Uint64(b[32:])),
	}
}

// Managed touches a managed range on nvidia-uvm, as page faults of a kernel would: base 0, length 8; resident
// 16 answers the bytes that are on the card. The range is made by the first touch.
type Managed struct {
	Base, Length uint64
	Resident     int64
}

// Put writes the call; b holds at least SizeManaged bytes.
func (m Managed) Put(b []byte) {
	le.PutUint64(b[0:], m.Base)
	le.PutUint64(b[8:], m.Length)
	le.PutUint64(b[16:], uint64(m.Resident))
}

// GetManaged reads the call.
func GetManaged(b []byte) Managed {
	return Managed{le.Uint64(b[0:]), le.Uint64(b[8:]), int64(le.Uint64(b[16:]))}
}
