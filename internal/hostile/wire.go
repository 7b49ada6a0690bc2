package hostile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// wireFD is the descriptor of the socket to the judge in every tenant process.
const wireFD = 3

// Hints is what a tenant is told: its grant, and the handles of its neighbour. Handles count up from a known
// base, so that guessing them is no obstacle to an attacker.
type Hints struct {
	Dir    string
	Quota  uint64
	Race   time.Duration // how long a race is tried
	Probe  bool          // victim: allocate and free all the time
	Memory uint64        // victim: bytes to hold
	Socket string        // accomplice: where the attacker listens
	Victim Handles
}

// Handles are what a victim has.
type Handles struct {
	Client, Device, Subdevice, Memory, Group nvidia.Handle
	Channels                                 []nvidia.Handle
	PID                                      int
}

// message is one packet between a tenant and the judge. The tenant asks, the judge answers with an empty one.
type message struct {
	Hints *Hints `json:",omitempty"`

	// Hold: look at the card now, while nothing moves.
	Hold string `json:",omitempty"`
	// Measure: compare engine time for so long.
	Measure time.Duration `json:",omitempty"`
	// KillVictim: end the victim and wait until what was its own alone is free.
	KillVictim bool `json:",omitempty"`
	// Accomplice: start another tenant, which hands something over at this socket, and wait for its end.
	Accomplice string `json:",omitempty"`
	// Ready: the victim runs.
	Ready *Handles `json:",omitempty"`

	Done  *Outcome `json:",omitempty"`
	Error string   `json:",omitempty"`
	Skip  string   `json:",omitempty"`
}

// Outcome is what the attacker itself saw. It decides nothing.
type Outcome struct {
	Tries   int
	Refused int
	Detail  string
}

const maxMessage = 64 << 10

var errPeerGone = errors.New("the other process is gone")

func sendMessage(fd int, m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	for {
		err = unix.Send(fd, b, unix.MSG_NOSIGNAL)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func receiveMessage(fd int) (message, error) {
	b := make([]byte, maxMessage)
	for {
		n, err := unix.Read(fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil && !errors.Is(err, unix.ECONNRESET) {
			return message{}, fmt.Errorf("read from the other process: %w", err)
		}
		if err != nil || n == 0 {
			return message{}, errors.Join(errPeerGone, io.EOF)
		}
		var m message
		return m, json.Unmarshal(b[:n], &m)
	}
}
