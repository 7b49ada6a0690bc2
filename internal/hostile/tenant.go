package hostile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

// attack is one thing a tenant tries.
type attack struct {
	name  string
	setup setup
	run   func(*tenant) error
	timed bool // it is about time: little else runs beside it
	// harmless is for what is no attack at all: a tenant that is ended for it was wronged.
	harmless bool
}

// errSkip says that this machine cannot try an attack.
var errSkip = errors.New("not possible on this machine")

// tenant is the attacker's side of one attack.
type tenant struct {
	Hints
	*lib
	tries, refused int
	detail         string
	faults         int // the userfaultfd of guarded pages
}

// runRole is a tenant process behind the filter.
func runRole(role string, args []string) error {
	go followLifeline()
	if h := helpers()[role]; h != nil {
		return runHelper(h, args)
	}
	unix.CloseOnExec(wireFD)
	m, err := receiveMessage(wireFD)
	if err != nil || m.Hints == nil {
		return fmt.Errorf("no instructions: %w", err)
	}
	l, err := newLib(m.Hints.Dir)
	if err != nil {
		return err
	}
	t := &tenant{Hints: *m.Hints, lib: l}
	switch role {
	case roleVictim:
		return t.answer(t.victim())
	case roleAccomplice:
		return t.accomplice()
	}
	for _, a := range attacks() {
		if a.name == role {
			return t.answer(a.run(t))
		}
	}
	return t.answer(fmt.Errorf("no attack %q", role))
}

// followLifeline ends the process when the judge does, or says so.
func followLifeline() {
	var b [1]byte
	_, _ = os.Stdin.Read(b[:])
	os.Exit(0)
}

// answer reports the end of an attack and waits to be ended.
func (t *tenant) answer(err error) error {
	m := message{Done: &Outcome{Tries: t.tries, Refused: t.refused, Detail: t.detail}}
	switch {
	case errors.Is(err, errSkip):
		m = message{Skip: err.Error()}
	case err != nil:
		m = message{Error: err.Error()}
	}
	if err := sendMessage(wireFD, m); err != nil {
		return err
	}
	select {}
}

func (t *tenant) ask(m message) error {
	if err := sendMessage(wireFD, m); err != nil {
		return err
	}
	_, err := receiveMessage(wireFD)
	return err
}

// hold lets the judge look while nothing moves.
func (t *tenant) hold(label string) error { return t.ask(message{Hold: label}) }

// measure lets the judge compare engine time for a while.
func (t *tenant) measure(d time.Duration) error { return t.ask(message{Measure: d}) }

// killVictim ends the neighbour.
func (t *tenant) killVictim() error { return t.ask(message{KillVictim: true}) }

// helpedBy lets another tenant, with a grant of its own, run to its end.
func (t *tenant) helpedBy(socket string) error { return t.ask(message{Accomplice: socket}) }

// try counts a call that should come to nothing, and returns its error.
func (t *tenant) try(err error) error {
	t.tries++
	if err != nil {
		t.refused++
		if t.detail == "" {
			t.detail = err.Error()
		}
	}
	return err
}

func (t *tenant) note(format string, args ...any) { t.detail = fmt.Sprintf(format, args...) }

// helper is another process of the tenant: it gets descriptors from 3 on, and a word to say it is ready.
type helper func(h *help) error

type help struct {
	Hints
	*lib
	Extra string
}

// descriptors that every helper has.
const (
	helperReady = 3 // write end: one byte when its part is done
	helperGo    = 4 // read end: one byte, or the end, when it may go on
	helperFiles = 5 // the first of the files given to it
)

type helpArgs struct {
	Hints Hints
	Extra string
}

func runHelper(fn helper, args []string) error {
	var a helpArgs
	if len(args) != 1 {
		return errors.New("helper without instructions")
	}
	if err := json.Unmarshal([]byte(args[0]), &a); err != nil {
		return err
	}
	l, err := newLib(a.Hints.Dir)
	if err != nil {
		return err
	}
	return fn(&help{Hints: a.Hints, lib: l, Extra: a.Extra})
}

// ready tells the parent and waits for its word.
func (h *help) ready() {
	_, _ = unix.Write(helperReady, []byte{1})
	var b [1]byte
	_, _ = unix.Read(helperGo, b[:])
}

// sibling is a running helper.
type sibling struct {
	cmd   *exec.Cmd
	ready *os.File
	goOn  *os.File
}

// spawn starts a helper with copies of some descriptors.
func spawn(hints Hints, name, extra string, attr *syscall.SysProcAttr, fds ...int) (*sibling, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	gr, gw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(helpArgs{hints, extra})
	if err != nil {
		return nil, err
	}
	s := &sibling{ready: r, goOn: gw, cmd: exec.Command("/proc/self/exe", argHostile, argTenant, argRun, name, string(b))}
	s.cmd.Stdin, s.cmd.Stderr, s.cmd.SysProcAttr = os.Stdin, os.Stderr, attr
	s.cmd.ExtraFiles = []*os.File{w, gr}
	for _, fd := range fds {
		d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, err
		}
		s.cmd.ExtraFiles = append(s.cmd.ExtraFiles, os.NewFile(uintptr(d), "passed"))
	}
	err = s.cmd.Start()
	for _, f := range s.cmd.ExtraFiles {
		_ = f.Close()
	}
	return s, err
}

// await waits until the helper says that it is ready, or is gone.
func (s *sibling) await() bool {
	var b [1]byte
	n, _ := s.ready.Read(b[:])
	return n == 1
}

func (s *sibling) release() { _ = s.goOn.Close() }

func (s *sibling) kill() { _ = s.cmd.Process.Kill(); _ = s.cmd.Wait() }

// wait lets the helper go on and end by itself.
func (s *sibling) wait() { s.release(); _ = s.cmd.Wait() }

// context starts what a CUDA process has.
func (t *tenant) context() (*rm.Context, error) { return rm.Start(t.Device) }

func attacks() []attack {
	var out []attack
	for _, part := range [][]attack{
		timeAttacks(), channelAttacks(), hiddenAttacks(), denialAttacks(), raceAttacks(),
	} {
		for _, a := range part {
			a.timed = !strings.HasPrefix(a.name, "denial/page") && !strings.HasPrefix(a.name, "denial/stopped")
			out = append(out, a)
		}
	}
	for _, part := range [][]attack{
		pathAttacks(), sizeAttacks(), objectAttacks(), mappingAttacks(), managedAttacks(), processAttacks(), entryAttacks(), argumentAttacks(),
	} {
		out = append(out, part...)
	}
	return out
}

func helpers() map[string]helper {
	out := map[string]helper{}
	for _, part := range []map[string]helper{processHelpers()} {
		for k, v := range part {
			out["helper-"+strings.TrimPrefix(k, "helper-")] = v
		}
	}
	return out
}
