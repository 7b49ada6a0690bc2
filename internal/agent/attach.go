package agent

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// attachFrame is one step of an attach conversation, after the upgrade:
//
//	agent   granted     the share and the cards
//	client  listener    with the seccomp listener as the only file
//	agent   attached    the listener is held by two processes and served
//	client  probed      it has made a driver call on no file
//	agent   supervised  the call arrived: calls of this process are supervised
//
// In place of any of its steps the agent may say failed and close. A client
// whose agent died on the way asks again with ?resume=ID and starts over; when
// the successor serves the listener already, it drops the one it is sent.
type attachFrame struct {
	Op     string        `json:"op"`
	ID     string        `json:"id,omitempty"`
	Cards  []GrantedCard `json:"cards,omitempty"`
	Others int           `json:"others,omitempty"` // cards of the machine that were not granted
	Memory int64         `json:"memory,omitempty"`
	Error  string        `json:"error,omitempty"`
}

// GrantedCard names one card of a grant.
type GrantedCard struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	Name  string `json:"name"`
}

// Steps of the conversation.
const (
	opGranted    = "granted"
	opListener   = "listener"
	opAttached   = "attached"
	opProbed     = "probed"
	opSupervised = "supervised"
	opFailed     = "failed"
)

// converse leads an admitted tenant to the point where it may exec. On an
// error the grant is gone.
func (s *server) converse(c *net.UnixConn, p Promise, resumed bool) error {
	fds, err := s.takeListener(c, p)
	if resumed {
		closeAll(fds)
	} else {
		if err == nil {
			err = s.serveListener(p, fds[0])
		}
		if err != nil {
			s.w.forget(p.ID)
		}
	}
	if err != nil {
		return err
	}
	// From here the session decides when the tenant is gone: the listener
	// hangs up with its last task.
	if err := exchange(c, attachFrame{Op: opAttached}, opProbed); err != nil {
		return err
	}
	if err := s.sawCall(p.ID); err != nil {
		return err
	}
	return writeFrame(c, attachFrame{Op: opSupervised})
}

// takeListener tells the client what it was granted and receives its listener,
// one descriptor.
func (s *server) takeListener(c *net.UnixConn, p Promise) ([]int, error) {
	granted := attachFrame{Op: opGranted, ID: p.ID, Memory: p.Memory, Others: len(s.w.cards) - len(p.Cards)}
	for _, i := range p.Cards {
		info := s.w.cards[i].info
		granted.Cards = append(granted.Cards, GrantedCard{Index: info.Index, UUID: info.UUID, Name: info.Name})
	}
	_ = c.SetDeadline(time.Now().Add(stepTimeout))
	if err := writeFrame(c, granted); err != nil {
		return nil, err
	}
	var f attachFrame
	fds, err := readFrame(c, &f)
	if err != nil {
		return nil, fmt.Errorf("the client left: %w", err)
	}
	if f.Op != opListener || len(fds) != 1 || !isListener(fds[0]) {
		closeAll(fds)
		return nil, errors.New("want one frame with the seccomp listener")
	}
	return fds, nil
}

// serveListener starts the session. It owns fd.
func (s *server) serveListener(p Promise, fd int) error {
	if err := s.w.keep.Park(p.ID, fd); err != nil {
		closeAll([]int{fd})
		return fmt.Errorf("park the listener: %w", err)
	}
	return s.w.attach(s.ctx, p, fd)
}

// exchange sends a frame and waits for the answer, which must be want.
func exchange(c *net.UnixConn, f attachFrame, want string) error {
	_ = c.SetDeadline(time.Now().Add(stepTimeout))
	if err := writeFrame(c, f); err != nil {
		return err
	}
	var got attachFrame
	fds, err := readFrame(c, &got)
	closeAll(fds)
	switch {
	case err != nil:
		return fmt.Errorf("the client left: %w", err)
	case got.Op != want:
		return fmt.Errorf("the client said %q in place of %q", got.Op, want)
	}
	return nil
}

// sawCall reports whether any call of the tenant has arrived.
func (s *server) sawCall(id string) error {
	for range 100 {
		s.w.mu.Lock()
		t := s.w.tenants[id]
		s.w.mu.Unlock()
		if t == nil {
			return errors.New("the tenant is gone")
		}
		if t.session.Usage().Calls > 0 {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return errors.New("its driver calls do not reach the agent: they would not be supervised")
}

// peerUID asks the kernel whose process is at the other end.
func peerUID(c *net.UnixConn) (int, error) {
	cred, err := peerCred(c)
	if err != nil {
		return 0, err
	}
	return int(cred.Uid), nil
}
