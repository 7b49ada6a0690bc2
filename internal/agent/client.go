package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Client talks to an agent.
type Client struct{ socket string }

// NewClient returns a client of the agent at socket.
func NewClient(socket string) *Client { return &Client{socket} }

// Socket is where the agent serves.
func (c *Client) Socket() string { return c.socket }

// ErrNoAgent says that nobody answers at the socket.
var ErrNoAgent = errors.New("no agent answers")

// dial connects, and makes sure that the agent is root's or this user's own:
// it will answer for this process's driver calls.
func (c *Client) dial(ctx context.Context) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.socket)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
			return nil, fmt.Errorf("%w at %s", ErrNoAgent, c.socket)
		}
		return nil, fmt.Errorf("connect to the agent: %w", err)
	}
	u := conn.(*net.UnixConn)
	uid, err := peerUID(u)
	if err == nil && uid != 0 && uid != os.Geteuid() {
		err = fmt.Errorf("the agent at %s belongs to user %d, neither to root nor to this user", c.socket, uid)
	}
	if err != nil {
		_ = u.Close()
		return nil, err
	}
	return u, nil
}

// roundTrip sends one request and returns the answer with what it may be
// followed by. The caller closes the connection.
func (c *Client) roundTrip(ctx context.Context, req *http.Request) (*net.UnixConn, *bufio.Reader, *http.Response, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(2 * stepTimeout)
	}
	_ = conn.SetDeadline(deadline)
	r := bufio.NewReader(conn)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var resp *http.Response
	if err = req.Write(conn); err == nil {
		resp, err = http.ReadResponse(r, req)
	}
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			return nil, nil, nil, ctx.Err()
		}
		return nil, nil, nil, fmt.Errorf("%w: it closed the connection: %w", ErrNoAgent, err)
	}
	return conn, r, resp, nil
}

// Status asks for the agent's status.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://penstock/v1/status", nil)
	if err != nil {
		return s, err
	}
	req.Close = true
	conn, _, resp, err := c.roundTrip(ctx, req)
	if err != nil {
		return s, err
	}
	defer conn.Close()
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return s, readProblem(resp)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&s); err != nil {
		return s, fmt.Errorf("read the agent's status: %w", err)
	}
	return s, nil
}

func readProblem(resp *http.Response) error {
	var p Problem
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxMessage)).Decode(&p); err != nil {
		return fmt.Errorf("the agent answered %s", resp.Status)
	}
	switch {
	case p.Refusal != nil:
		return p.Refusal
	case resp.StatusCode == http.StatusServiceUnavailable:
		return fmt.Errorf("%w: %s", ErrNoAgent, p.Error)
	}
	return errors.New(p.Error)
}

// Attachment is a granted share whose tenant is not supervised yet.
type Attachment struct {
	ID     string
	Cards  []GrantedCard
	Others int // cards of the machine that were not granted
	Memory int64
	client *Client
	req    Request
	conn   *net.UnixConn
	r      *bufio.Reader
	stop   func() bool // ends the watch over the context
}

// Attach asks for a share. The error is a *Refusal when it does not fit.
func (c *Client) Attach(ctx context.Context, r Request) (*Attachment, error) {
	return c.attach(ctx, r, "")
}

// attach asks for a share, or for the one that an agent had granted before it
// died in the middle of the conversation.
func (c *Client) attach(ctx context.Context, r Request, resume string) (*Attachment, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://penstock/v1/attach?resume="+resume, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", attachProtocol)
	conn, br, resp, err := c.roundTrip(ctx, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer conn.Close()
		defer resp.Body.Close()
		return nil, readProblem(resp)
	}
	a := &Attachment{client: c, req: r, conn: conn, r: br, stop: context.AfterFunc(ctx, func() { _ = conn.Close() })}
	f, err := a.receive(opGranted)
	if err != nil {
		_ = a.Close()
		return nil, err
	}
	a.ID, a.Cards, a.Others, a.Memory = f.ID, f.Cards, f.Others, f.Memory
	return a, nil
}

// Close gives the share up unless the listener was sent.
func (a *Attachment) Close() error {
	a.stop()
	return a.conn.Close()
}

// superviseTries bounds how many deaths of the agent one start outlives.
const superviseTries = 20

// Supervise hands the listener over and makes sure that the agent sees the
// calls of this process, of which probe makes one. If the agent dies meanwhile
// the conversation goes on with its successor.
func (a *Attachment) Supervise(ctx context.Context, listener int, probe func() error) error {
	var err error
	for range superviseTries {
		if err = a.supervise(listener, probe); !errors.Is(err, ErrNoAgent) {
			return err
		}
		_ = a.Close()
		next, again := a.client.attach(ctx, a.req, a.ID)
		if again == nil {
			*a = *next
		} else if !errors.Is(again, ErrNoAgent) {
			return again
		}
	}
	return err
}

func (a *Attachment) supervise(listener int, probe func() error) error {
	if err := a.send(attachFrame{Op: opListener}, listener); err != nil {
		return fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	if _, err := a.receive(opAttached); err != nil {
		return err
	}
	if err := probe(); err != nil {
		return err
	}
	if err := a.send(attachFrame{Op: opProbed}); err != nil {
		return fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	_, err := a.receive(opSupervised)
	return err
}

func (a *Attachment) send(f attachFrame, fds ...int) error {
	_ = a.conn.SetDeadline(time.Now().Add(2 * stepTimeout))
	return writeFrame(a.conn, f, fds...)
}

// receive reads the agent's next step. The agent sends no files, so the
// buffered reader serves.
func (a *Attachment) receive(want string) (attachFrame, error) {
	var f attachFrame
	var head [4]byte
	if _, err := io.ReadFull(a.r, head[:]); err != nil {
		return f, fmt.Errorf("%w: it closed the connection: %w", ErrNoAgent, err)
	}
	size := uint32(head[0])<<24 | uint32(head[1])<<16 | uint32(head[2])<<8 | uint32(head[3])
	if err := readBody(a.r, size, &f); err != nil {
		return f, err
	}
	switch f.Op {
	case want:
		return f, nil
	case opFailed:
		return f, fmt.Errorf("the agent refused to attach: %s", f.Error)
	}
	return f, fmt.Errorf("the agent said %q in place of %q", f.Op, want)
}
