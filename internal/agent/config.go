package agent

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/penstock-gpu/penstock/internal/engine/kernel"
	"github.com/penstock-gpu/penstock/internal/governor"
)

// Config is what an agent needs to know. The zero value of a field takes its
// default.
type Config struct {
	Socket     string        // unix socket to serve
	StateDir   string        // grants and journals; default: "state" beside the socket
	Emulated   string        // directory of an emulated card; empty for the machine's own cards
	AnyDriver  bool          // accept a driver version that this build does not know
	IdleExit   time.Duration // leave when no tenant was there for so long; 0: never
	Force      bool          // SIGTERM ends the agent even while tenants run
	Reserve    Memory        // of each card, never promised; default: what is in use when the agent starts
	MaxInst    int           // most tenants on a card, and the parts of policy fair; default 20
	PrioRatio  int           // percent for the higher class; default 80
	Cycle      time.Duration // default cycle of a card; default 48 ms
	Overhead   int64         // bytes charged per context; 0: the engine's measured constant
	Record     string        // write the calls of tenants to this file; for one tenant at a time
	DriftAlarm int64         // difference between charges and the card's own figure that is logged
}

// DefaultDriftAlarm is the difference that is logged: more than a context's
// overhead, less than a model.
const DefaultDriftAlarm = 1 << 30

// withDefaults fills what was left zero.
func (c Config) withDefaults() Config {
	if c.StateDir == "" {
		c.StateDir = filepath.Join(filepath.Dir(c.Socket), "state")
	}
	if c.DriftAlarm == 0 {
		c.DriftAlarm = DefaultDriftAlarm
	}
	return c
}

// Validate reports the first setting that cannot work.
func (c Config) Validate() error {
	switch {
	case c.Socket == "":
		return fmt.Errorf("no socket given")
	case len(c.Socket) > maxSocketPath:
		return fmt.Errorf("socket path %s is longer than %d bytes", c.Socket, maxSocketPath)
	case c.IdleExit < 0:
		return fmt.Errorf("idle exit %v: want a positive time, or 0 for never", c.IdleExit)
	}
	return c.governor().Validate()
}

// maxSocketPath is the room in sockaddr_un.
const maxSocketPath = 107

// governor is how cards are governed until a tenant chooses.
func (c Config) governor() governor.Config {
	return governor.Config{Policy: governor.Native, MaxInst: c.MaxInst, PrioRatio: c.PrioRatio, Cycle: c.Cycle}
}

// paths says where the cards are.
func (c Config) paths() kernel.Paths {
	if c.Emulated != "" {
		return kernel.Paths{Dev: c.Emulated, Emulated: true}
	}
	return kernel.SystemPaths()
}
