package kernel

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/governor"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// DefaultContextOverhead is the device memory, in bytes, that the driver takes
// for one graphics TSG beside what the tenant's own calls allocate:
// context-switch and page-table memory. Measured on an H200 with driver
// 580.159.04: 8 MiB for a CUDA and a PyTorch process alike, beside about
// 520 MiB that a CUDA context allocates by calls and is charged for as such.
const DefaultContextOverhead = 8 << 20

// Options configure an engine.
type Options struct {
	Paths
	Log *slog.Logger
	// AnyDriver accepts a driver version that the tables do not know, with the
	// nearest older line. It is reported in every status.
	AnyDriver bool
	// StateDir is where journals lie, on a memory file system; empty for none.
	StateDir string
	// ContextOverhead is charged for each graphics TSG, in bytes; negative
	// means DefaultContextOverhead.
	ContextOverhead int64
}

// Engine is the kernel-mode engine on one machine.
type Engine struct {
	opt    Options
	files  *locator
	driver Driver
	table  *nvidia.Table
	brave  bool // the driver version is not one the tables know
	cards  []CardInfo
}

// New finds the driver and refuses one it does not know.
func New(opt Options) (*Engine, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.ContextOverhead < 0 {
		opt.ContextOverhead = DefaultContextOverhead
	}
	if err := sys.CheckNotifySizes(); err != nil {
		return nil, err
	}
	cards, err := Discover(opt.Paths)
	if err != nil {
		return nil, err
	}
	e := &Engine{opt: opt, driver: systemDriver{}, cards: cards}
	if e.table, err = nvidia.Lookup(cards[0].Driver); err != nil {
		if !opt.AnyDriver {
			return nil, err
		}
		e.table, e.brave = nvidia.Nearest(cards[0].Driver), true
	}
	if e.files, err = newLocator(opt.Paths); err != nil {
		return nil, err
	}
	return e, nil
}

// Cards lists what was found.
func (e *Engine) Cards() []CardInfo { return e.cards }

// UnknownDriver reports that the driver runs on the tables of another line.
func (e *Engine) UnknownDriver() bool { return e.brave }

// Line is the driver line whose tables are in use.
func (e *Engine) Line() string { return e.table.Line }

// Open takes a card under control.
func (e *Engine) Open(index int, gc governor.Config) (*Card, error) {
	if index < 0 || index >= len(e.cards) {
		return nil, fmt.Errorf("card %d: there are %d", index, len(e.cards))
	}
	info := e.cards[index]
	gov, err := governor.New(gc)
	if err != nil {
		return nil, err
	}
	ctl, err := e.openOwn("nvidiactl")
	if err != nil {
		return nil, err
	}
	// The driver powers a card down when nobody has its file open.
	if _, err := e.openOwn("nvidia" + strconv.Itoa(info.Minor)); err != nil {
		unix.Close(ctl.FD)
		return nil, err
	}
	control, err := openCardClient(e.driver, ctl, e.table, uint32(info.Index))
	if err != nil {
		unix.Close(ctl.FD)
		return nil, err
	}
	c := newCard(info, control, gov, e.opt.Log, e.opt.ContextOverhead)
	if c.info.TotalBytes, _, err = c.Memory(); err != nil {
		return nil, err
	}
	return c, nil
}

func newCard(info CardInfo, control *cardClient, gov *governor.Governor, log *slog.Logger, overhead int64) *Card {
	start := time.Now()
	c := &Card{
		info: info, log: log, control: control, overhead: overhead, gov: gov,
		clock:    func() time.Duration { return time.Since(start) },
		groups:   map[governor.GroupID]*group{},
		owner:    map[governor.GroupID]*Session{},
		sessions: map[governor.TenantID]*Session{},
		poke:     make(chan struct{}, 1),
	}
	c.turn = sync.NewCond(&c.mu)
	return c
}

func (e *Engine) openOwn(name string) (File, error) {
	path := filepath.Join(e.opt.Dev, name)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return File{}, fmt.Errorf("open %s: %w", path, err)
	}
	f, err := e.files.identify(fd)
	if err != nil {
		unix.Close(fd)
		return File{}, err
	}
	return f, nil
}

// Grant is what a tenant was given.
type Grant struct {
	ID          string
	Cards       []*Card // exactly one for now
	MemoryLimit int64   // bytes; 0 = no limit of its own
	Tenant      governor.Tenant
	Level       Level
	UID         uint32
	Recorder    *Recorder // records the calls, or nil
}

// Attach takes over a tenant's listener. If a journal of this grant exists the
// session continues where its predecessor stopped: the ledger is rebuilt, and
// calls that were taken from the kernel and never answered are answered with
// EINTR, on which the driver's libraries repeat them.
func (e *Engine) Attach(listener *os.File, g Grant) (*Session, error) {
	if len(g.Cards) != 1 {
		return nil, fmt.Errorf("grant %s: %d cards, want one", g.ID, len(g.Cards))
	}
	arena, err := sys.NewArena(arenaBytes)
	if err != nil {
		return nil, err
	}
	s := newSession(e, g, arena)
	s.listener = listener
	if s.poll, err = newPoller(int(listener.Fd())); err != nil {
		return nil, err
	}
	if err := s.card.admit(s, g.Tenant); err != nil {
		return nil, err
	}
	if e.opt.StateDir != "" {
		if err := s.recover(filepath.Join(e.opt.StateDir, g.ID+".journal")); err != nil {
			s.card.leave(s.tenant)
			s.card.forget(s)
			return nil, err
		}
	}
	return s, nil
}

func newSession(e *Engine, g Grant, arena *sys.Arena) *Session {
	s := &Session{
		table: e.table, driver: e.driver, files: e.files, card: g.Cards[0], log: e.opt.Log,
		tenant: g.Tenant.ID, arena: arena, recorder: g.Recorder, level: g.Level,
		threads: threads{byID: map[int]*thread{}},
		ledger:  newLedger(g.MemoryLimit),
		procs:   map[int]*process{},
		ops:     systemFiles{},
		refusal: map[string]uint64{},
	}
	return s
}

// Update changes a tenant's grant while it runs. A memory limit below what is
// charged only stops further allocations.
func (s *Session) Update(g Grant) error {
	if err := s.card.admit(s, g.Tenant); err != nil {
		return err
	}
	s.mu.Lock()
	s.ledger.limit = g.MemoryLimit
	s.mu.Unlock()
	return nil
}

// Close releases what the session holds in this process. The tenant's calls
// wait for whoever holds the listener.
func (s *Session) Close() error {
	s.poll.close()
	var err error
	if s.journal != nil {
		err = s.journal.close()
	}
	return errors.Join(err, s.arena.Close())
}
