package hostile

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

// hiddenAttacks put the control file where no descriptor table shows it, with work queued on its channels. The
// supervisor must go on to charge and to govern what the card still has.
func hiddenAttacks() []attack {
	return []attack{
		{name: "hidden/message-in-flight", run: hidden(inFlight)},
		{name: "hidden/behind-the-card-file", run: hidden(behindCardFile)},
		{name: "hidden/behind-a-mapping", run: hidden(behindMapping)},
		{name: "hidden/registered-with-io-uring", run: hidden(inRing)},
		{name: "hidden/with-an-unshared-thread", run: hiddenUnshared},
		{name: "hidden/leader-exits", run: hidden(leaderExits)},
		{name: "hidden/in-another-session", run: hidden(inOtherProcess)},
		{name: "hidden/inherited-from-a-dead-tenant", run: inherited},
	}
}

// hidden makes a client with memory and busy channels, hides its file, and closes it.
func hidden(hide func(t *tenant, c *client) (back func() (int, error), err error)) func(*tenant) error {
	return func(t *tenant) error {
		probe, err := t.client()
		if err != nil {
			return err
		}
		c, err := t.client()
		if err != nil {
			return err
		}
		if _, err := c.vram(handleFirst, 400*mib); err != nil {
			return err
		}
		if err := c.groups(4); err != nil {
			return err
		}
		back, err := hide(t, c)
		if err != nil {
			return err
		}
		t.tries++
		closeAll(c.fd)
		time.Sleep(sweepWait)
		_ = t.control(probe.fd, probe.root, probe.subdevice, nvidia.CtrlFBGetInfoV2, make([]byte, 1028))
		if err := t.hold("with a hidden file"); err != nil {
			return err
		}
		if err := t.measure(measureFor); err != nil || back == nil {
			return err
		}
		// Taken out again, it is used as before.
		if c.fd, err = back(); err != nil {
			return err
		}
		_ = t.try(c.groups(2))
		if err := t.measure(measureFor); err != nil {
			return err
		}
		probe.fill(handleFirst)
		return t.hold("after filling up")
	}
}

// inFlight sends the descriptor to itself and leaves it in the queue.
func inFlight(_ *tenant, c *client) (func() (int, error), error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return func() (int, error) {
		fd := receiveFile(fds[1])
		if fd < 0 {
			return -1, errPeerGone
		}
		return fd, nil
	}, unix.Sendmsg(fds[0], []byte{1}, unix.UnixRights(c.fd), nil, 0)
}

// behindCardFile registers a card file with the control file: the driver keeps the one for the other.
func behindCardFile(t *tenant, c *client) (func() (int, error), error) {
	fd, err := rootOnCardFile(t, c)
	return func() (int, error) { return fd, nil }, err
}

// behindMapping maps the file, which keeps it.
func behindMapping(_ *tenant, c *client) (func() (int, error), error) {
	_, err := mmap(0, 4096, unix.MAP_PRIVATE, c.fd, 0)
	if err != nil {
		return nil, fmt.Errorf("map the control file: %w: %w", err, errSkip)
	}
	return nil, nil
}

// inRing registers the file with io_uring.
func inRing(t *tenant, c *client) (func() (int, error), error) {
	defer t.Reset()
	_, addr, err := t.Take(120)
	if err != nil {
		return nil, err
	}
	r, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, ringEntries, uintptr(addr), 0)
	if e != 0 {
		return nil, fmt.Errorf("io_uring: %w: %w", e, errSkip)
	}
	list, at, err := t.Take(8)
	if err != nil {
		return nil, err
	}
	_ = nvidia.PutU32At(list, 0, uint32(c.fd))
	const registerFiles = 2
	if _, _, e := unix.Syscall6(unix.SYS_IO_URING_REGISTER, r, registerFiles, uintptr(at), 1, 0, 0); e != 0 {
		return nil, fmt.Errorf("register a file with io_uring: %w", e)
	}
	return nil, nil
}

// hiddenUnshared opens the file in a thread that shares its descriptors with nobody.
func hiddenUnshared(t *tenant) error {
	return onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return err
		}
		c, err := t.client()
		if err != nil {
			return err
		}
		if _, err := c.vram(handleFirst, 400*mib); err != nil {
			return err
		}
		if err := c.groups(4); err != nil {
			return err
		}
		t.tries++
		time.Sleep(sweepWait)
		_ = t.control(c.fd, c.root, c.subdevice, nvidia.CtrlFBGetInfoV2, make([]byte, 1028))
		if err := t.hold("with a file of one thread"); err != nil {
			return err
		}
		_ = t.try(c.groups(2))
		if err := t.measure(measureFor); err != nil {
			return err
		}
		c.fill(handleFirst + 1)
		return t.hold("after filling up")
	})
}

// endLeader ends the first thread of this process.
func endLeader() {
	close(leaderExit)
	time.Sleep(20 * time.Millisecond)
}

// leaderExits keeps a copy of the file and ends the thread that the process's numbers stand for.
func leaderExits(_ *tenant, c *client) (func() (int, error), error) {
	fd, err := unix.Dup(c.fd)
	if err != nil {
		return nil, err
	}
	endLeader()
	return func() (int, error) { return fd, nil }, nil
}

// leaderExitsManaged does the same with managed memory mapped.
func leaderExitsManaged(t *tenant, _ *client, u *rm.UVM) error {
	for i := range uint64(3) {
		_ = t.try(managedAt(u.FD, managedBase+i*uvmStep, 300*mib))
	}
	endLeader()
	time.Sleep(sweepWait)
	for i := range uint64(6) {
		_ = t.try(managedAt(u.FD, managedBase+(i+8)*uvmStep, 300*mib))
	}
	return nil
}

// inOtherProcess gives the file to a process that has never made a call, in a session of its own.
func inOtherProcess(t *tenant, c *client) (func() (int, error), error) {
	s, err := spawn(t.Hints, "helper-victimless", "", nil, c.fd)
	if err != nil {
		return nil, err
	}
	s.await()
	return nil, nil
}

// accompliceQuota is the grant of an accomplice.
const accompliceQuota = 512 * mib

// inherited takes over the file of a tenant that ends, with memory and busy channels on it: nobody's grant covers
// those any more.
func inherited(t *tenant) error {
	probe, err := t.client()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("@penstock-hostile-%d", unix.Getpid())
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Bind(l, &unix.SockaddrUnix{Name: name}), unix.Listen(l, 1)); err != nil {
		return err
	}
	got := make(chan int, 1)
	go func() {
		fd, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
		if err != nil {
			got <- -1
			return
		}
		got <- receiveFile(fd)
	}()
	if err := t.helpedBy(name); err != nil {
		return err
	}
	select {
	case fd := <-got:
		if fd < 0 {
			_ = t.try(errPeerGone)
		}
	case <-time.After(sweepWait):
		_ = t.try(errPeerGone)
	}
	t.tries++
	time.Sleep(sweepWait)
	_ = t.control(probe.fd, probe.root, probe.subdevice, nvidia.CtrlFBGetInfoV2, make([]byte, 1028))
	probe.fill(handleFirst)
	if err := t.hold("with the file of a dead tenant"); err != nil {
		return err
	}
	return t.measure(measureFor)
}

// receiveFile takes one descriptor from a socket; -1 when there is none.
func receiveFile(fd int) int {
	b, oob := make([]byte, 1), make([]byte, 64)
	_, n, _, _, err := unix.Recvmsg(fd, b, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1
	}
	m, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(m) == 0 {
		return -1
	}
	got, err := unix.ParseUnixRights(&m[0])
	if err != nil || len(got) == 0 {
		return -1
	}
	return got[0]
}

// accomplice makes memory and work, hands the file over, and ends.
func (t *tenant) accomplice() error {
	c, err := t.client()
	if err != nil {
		return err
	}
	if _, err := c.vram(handleFirst, 400*mib); err != nil {
		return err
	}
	if err := c.groups(4); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: t.Socket}); err != nil {
		return err
	}
	return unix.Sendmsg(fd, []byte{1}, unix.UnixRights(c.fd), nil, 0)
}
