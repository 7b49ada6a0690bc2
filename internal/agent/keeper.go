package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Keeper is the worker's end of the pair: what is parked here is held by
// another process too and comes back to the next worker. When the holder dies
// the keeper starts another one and gives it everything again.
type Keeper struct {
	log  *slog.Logger
	self Self

	mu    sync.Mutex // one exchange at a time; guards the fields below
	kept  map[string]int
	conn  *net.UnixConn
	acks  chan struct{} // one per answered request on conn; closed when conn ended
	child *exec.Cmd     // the holder, when this process started it
	tries int           // holders that failed in a row
	up    bool          // tell a new holder that this worker serves
	end   bool          // no new holder any more

	wg sync.WaitGroup
}

// NewKeeper takes what the holder hands to a new worker. The process must have
// been started by a holder.
func NewKeeper(log *slog.Logger, self Self) (*Keeper, error) {
	conn, err := inherited()
	if err != nil {
		return nil, err
	}
	k := &Keeper{log: log, self: self, kept: map[string]int{}}
	for {
		var m pairMessage
		fds, err := readFrame(conn, &m)
		switch {
		case err != nil:
			_ = conn.Close()
			return nil, fmt.Errorf("take over from the holder: %w", err)
		case m.Op == opReady:
			k.use(conn)
			return k, nil
		case m.Op == opItem && len(fds) == 1:
			k.kept[m.Name] = fds[0]
		default:
			closeAll(fds)
			_ = conn.Close()
			return nil, fmt.Errorf("the holder sent %q with %d files", m.Op, len(fds))
		}
	}
}

// Names lists what is kept.
func (k *Keeper) Names() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for n := range maps.Keys(k.kept) {
		names = append(names, n)
	}
	return names
}

// Take returns a duplicate of what is kept under name; false when nothing is.
func (k *Keeper) Take(name string) (int, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fd, ok := k.kept[name]
	if !ok {
		return -1, false, nil
	}
	n, err := dup(fd)
	return n, err == nil, err
}

// Park keeps a duplicate of fd under name; on return the holder has it.
func (k *Keeper) Park(name string, fd int) error {
	n, err := dup(fd)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if old, ok := k.kept[name]; ok {
		_ = unix.Close(old)
	}
	k.kept[name] = n
	if err := k.ask(pairMessage{Op: opPark, Name: name}, n); err == nil {
		return nil
	}
	return k.renew() // a new holder is given everything, so this file too
}

// Drop forgets name here and in the holder.
func (k *Keeper) Drop(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	fd, ok := k.kept[name]
	if !ok {
		return nil
	}
	_ = unix.Close(fd)
	delete(k.kept, name)
	if err := k.ask(pairMessage{Op: opDrop, Name: name}); err == nil {
		return nil
	}
	return k.renew()
}

// HolderPID is the holder's process id.
func (k *Keeper) HolderPID() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.child != nil {
		return k.child.Process.Pid
	}
	return os.Getppid() // it started this worker
}

// Up tells the holder that this worker serves, so that its later failure is a
// crash and not a start that cannot succeed.
func (k *Keeper) Up() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.up = true
	if err := writeFrame(k.conn, pairMessage{Op: opUp}); err == nil {
		return nil
	}
	return k.renew()
}

// Fail tells the holder why this worker cannot start, and ends the pair.
func (k *Keeper) Fail(err error) {
	k.mu.Lock()
	_ = writeFrame(k.conn, pairMessage{Op: opFail, Error: err.Error()})
	k.mu.Unlock()
	k.Close(false)
}

// Close ends the pair. With bye the holder ends too; without it starts another
// worker at once.
func (k *Keeper) Close(bye bool) {
	k.mu.Lock()
	k.end = true
	if bye {
		_ = writeFrame(k.conn, pairMessage{Op: opBye})
	}
	_ = k.conn.Close()
	for _, fd := range k.kept {
		_ = unix.Close(fd)
	}
	clear(k.kept)
	k.mu.Unlock()
	k.wg.Wait()
}

// ask sends one request and waits for its answer. Callers hold mu.
func (k *Keeper) ask(m pairMessage, fds ...int) error {
	if err := writeFrame(k.conn, m, fds...); err != nil {
		return err
	}
	if _, ok := <-k.acks; ok {
		return nil
	}
	return errors.New("the holder is gone")
}

// use makes conn the pair and starts reading its answers. Callers hold mu or
// are alone.
func (k *Keeper) use(conn *net.UnixConn) {
	acks := make(chan struct{}, 1)
	k.conn, k.acks = conn, acks
	k.wg.Go(func() {
		defer k.lost(conn)
		defer close(acks)
		for {
			var m pairMessage
			fds, err := readFrame(conn, &m)
			closeAll(fds)
			if err != nil {
				return
			}
			select {
			case acks <- struct{}{}:
			default: // an answer that nobody asked for
			}
		}
	})
}

// lost replaces the holder behind conn unless somebody did.
func (k *Keeper) lost(conn *net.UnixConn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.end || k.conn != conn {
		return
	}
	if err := k.renew(); err != nil {
		k.log.Error("no holder: a crash of the worker would now cut its tenants off", "error", err)
	}
}

// renew starts a holder and gives it everything. Callers hold mu.
func (k *Keeper) renew() error {
	if k.end {
		return errors.New("the agent is ending")
	}
	_ = k.conn.Close()
	if k.child != nil {
		_ = reap(k.child)
		k.child = nil
	}
	k.log.Warn("the holder died, starting another", "held", len(k.kept))
	time.Sleep(min(time.Duration(k.tries)*restartFirst, restartMost))
	k.tries++
	cmd, conn, err := k.self.start(k.self.Holder)
	if err != nil {
		return err
	}
	k.child = cmd
	k.use(conn)
	for name, fd := range k.kept {
		if err := k.ask(pairMessage{Op: opPark, Name: name}, fd); err != nil {
			return fmt.Errorf("park %s with a new holder: %w", name, err)
		}
	}
	k.tries = 0
	if k.up {
		return writeFrame(conn, pairMessage{Op: opUp})
	}
	return nil
}
