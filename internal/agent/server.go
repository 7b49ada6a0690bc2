package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of the server: whoever may connect must not be able to keep others
// from being served.
const (
	maxConnsPerUser = 64
	requestTimeout  = 5 * time.Second
	stepTimeout     = 10 * time.Second // of one step of an attach conversation
)

// attachProtocol is what POST /v1/attach upgrades to.
const attachProtocol = "penstock-attach/1"

// server is the socket API of a worker.
type server struct {
	ctx  context.Context // of the worker, for the sessions
	w    *Worker
	http *http.Server

	talks  context.Context // ends the attach conversations
	hangUp context.CancelFunc
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup // attach conversations: nobody waits for a hijacked handler
}

type credKey struct{}

func newServer(ctx context.Context, w *Worker) *server {
	s := &server{ctx: ctx, w: w}
	s.talks, s.hangUp = context.WithCancel(ctx)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", s.status)
	mux.HandleFunc("POST /v1/attach", s.attach)
	s.http = &http.Server{
		Handler:           http.MaxBytesHandler(mux, maxMessage),
		ReadHeaderTimeout: requestTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      requestTimeout,
		IdleTimeout:       requestTimeout,
		MaxHeaderBytes:    maxMessage,
		ErrorLog:          slog.NewLogLogger(w.log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, credKey{}, c.(*userConn).cred)
		},
	}
	return s
}

func (s *server) serve(lis *net.UnixListener) error {
	return s.http.Serve(&userListener{UnixListener: lis, open: map[uint32]int{}})
}

func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.hangUp()
	_ = s.http.Close()
	s.wg.Wait()
}

// enter counts an attach conversation in; false when it comes too late.
func (s *server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.wg.Add(1)
	}
	return !s.closed
}

func (s *server) status(rw http.ResponseWriter, r *http.Request) {
	cred := r.Context().Value(credKey{}).(*unix.Ucred)
	reply(rw, http.StatusOK, s.w.status(cred.Uid))
}

// Problem is the body of every answer that is no success.
type Problem struct {
	Error   string   `json:"error"`
	Refusal *Refusal `json:"refusal,omitempty"`
}

func reply(rw http.ResponseWriter, code int, v any) {
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(code)
	_ = json.NewEncoder(rw).Encode(v) // a client that left needs no answer
}

func problem(rw http.ResponseWriter, err error) {
	p, code := Problem{Error: err.Error()}, http.StatusBadRequest
	switch {
	case errors.As(err, &p.Refusal):
		code = http.StatusConflict
	case errors.Is(err, errLeaving):
		code = http.StatusServiceUnavailable
	}
	reply(rw, code, p)
}

// attach admits a tenant and then talks to it in frames: it sends the
// listener, proves that its calls are supervised, and may exec.
func (s *server) attach(rw http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		problem(rw, errLeaving)
		return
	}
	defer s.wg.Done()
	cred := r.Context().Value(credKey{}).(*unix.Ucred)
	if !strings.EqualFold(r.Header.Get("Upgrade"), attachProtocol) {
		rw.Header().Set("Upgrade", attachProtocol)
		reply(rw, http.StatusUpgradeRequired, Problem{Error: "attach needs Upgrade: " + attachProtocol})
		return
	}
	var req Request
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = decodeStrict(body, &req)
	}
	p, resumed := s.w.promised(r.URL.Query().Get("resume"), cred.Uid)
	if err == nil && !resumed {
		p, err = s.admit(cred, req)
	}
	if err != nil {
		problem(rw, err)
		return
	}
	if err := s.talk(rw, p, resumed); err != nil {
		s.w.log.Info("attach failed", "tenant", p.ID, "uid", cred.Uid, "pid", cred.Pid, "error", err)
	}
}

// A tenant that has just died holds its share until the kernel has told, some
// milliseconds later: a refusal is not final before that.
const (
	refusePatience = 300 * time.Millisecond
	refuseEvery    = 10 * time.Millisecond
)

// admit promises a share, or refuses it when it does not fit for a while.
func (s *server) admit(cred *unix.Ucred, r Request) (Promise, error) {
	for end := time.Now().Add(refusePatience); ; time.Sleep(refuseEvery) {
		p, err := s.w.admit(cred.Uid, int(cred.Pid), r)
		var refusal *Refusal
		if !errors.As(err, &refusal) || time.Now().After(end) {
			return p, err
		}
	}
}

// talk upgrades the connection and converses on it. The session of a resumed
// tenant runs already and decides by itself when it ends.
func (s *server) talk(rw http.ResponseWriter, p Promise, resumed bool) error {
	giveUp := func() {
		if !resumed {
			s.w.forget(p.ID)
		}
	}
	c, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		giveUp()
		problem(rw, err)
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(s.talks, func() { _ = c.Close() })
	defer stop()
	_ = c.SetDeadline(time.Now().Add(stepTimeout))
	const head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + attachProtocol + "\r\n\r\n"
	if _, err = io.WriteString(c, head); err != nil {
		giveUp()
		return err
	}
	conn := c.(*userConn).UnixConn
	if err = s.converse(conn, p, resumed); err != nil {
		_ = writeFrame(conn, attachFrame{Op: opFailed, Error: err.Error()})
	}
	return err
}

// userListener counts connections by user and closes those above the bound.
type userListener struct {
	*net.UnixListener
	mu   sync.Mutex
	open map[uint32]int
}

// userConn is a connection whose peer the kernel has named.
type userConn struct {
	*net.UnixConn
	cred *unix.Ucred
	once sync.Once
	done func()
}

func (c *userConn) Close() error {
	c.once.Do(c.done)
	return c.UnixConn.Close()
}

// Accept waits for the next connection of a user who has not too many.
func (l *userListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		cred, err := peerCred(c)
		if err != nil || !l.enter(cred.Uid) {
			_ = c.Close()
			continue
		}
		return &userConn{UnixConn: c, cred: cred, done: func() { l.leave(cred.Uid) }}, nil
	}
}

func (l *userListener) enter(uid uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[uid] >= maxConnsPerUser {
		return false
	}
	l.open[uid]++
	return true
}

func (l *userListener) leave(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[uid]--; l.open[uid] == 0 {
		delete(l.open, uid)
	}
}
