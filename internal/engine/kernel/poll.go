package kernel

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// poller waits for calls, for the tenant's end and for exits of its processes.
type poller struct {
	epoll    int
	wakeup   int // eventfd
	listener int
}

// events is what one wait found.
type events struct {
	call, hangup bool
	exited       []int
}

func newPoller(listener int) (poller, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return poller{}, fmt.Errorf("make an epoll set: %w", err)
	}
	ev, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(ep)
		return poller{}, fmt.Errorf("make an eventfd: %w", err)
	}
	p := poller{epoll: ep, wakeup: ev, listener: listener}
	err = errors.Join(p.add(ev, unix.EPOLLIN, 0), p.add(listener, unix.EPOLLIN, 0))
	if err != nil {
		p.close()
	}
	return p, err
}

func (p poller) add(fd int, what uint32, pid int) error {
	ev := unix.EpollEvent{Events: what, Fd: int32(fd), Pad: int32(pid)}
	if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("watch descriptor %d: %w", fd, err)
	}
	return nil
}

func (p poller) addProcess(pidfd, pid int) error { return p.add(pidfd, unix.EPOLLIN, pid) }

func (p poller) removeProcess(pidfd int) {
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, pidfd, nil)
}

func (p poller) interrupt() {
	_, _ = unix.Write(p.wakeup, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

func (p poller) wait(d time.Duration) (events, error) {
	var buf [16]unix.EpollEvent
	n, err := unix.EpollWait(p.epoll, buf[:], int(max(d, time.Millisecond)/time.Millisecond))
	if errors.Is(err, unix.EINTR) {
		return events{}, nil
	}
	if err != nil {
		return events{}, fmt.Errorf("wait for calls: %w", err)
	}
	var e events
	for _, ev := range buf[:n] {
		switch {
		case int(ev.Fd) == p.wakeup:
			var b [8]byte
			_, _ = unix.Read(p.wakeup, b[:])
		case int(ev.Fd) == p.listener:
			e.call = e.call || ev.Events&unix.EPOLLIN != 0
			e.hangup = e.hangup || ev.Events&unix.EPOLLHUP != 0
		default:
			e.exited = append(e.exited, int(ev.Pad))
		}
	}
	return e, nil
}

// state reports whether a call waits to be taken, and whether the tenant's last
// task is gone.
func (p poller) state() (pending, over bool) {
	fds := []unix.PollFd{{Fd: int32(p.listener), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 0); err != nil || n == 0 {
		return false, false
	}
	return fds[0].Revents&unix.POLLIN != 0, fds[0].Revents&unix.POLLHUP != 0
}

func (p poller) close() {
	unix.Close(p.epoll)
	unix.Close(p.wakeup)
}
