package hostile

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
)

// processAttacks use that a file outlives the process that opened it, and the other way round.
func processAttacks() []attack {
	return []attack{
		{name: "process/creator-dies", run: creatorDies("memory", true)},
		{name: "process/creator-dies-in-new-session", run: creatorDies("memory", true, &syscall.SysProcAttr{Setsid: true})},
		{name: "process/exporter-dies", run: creatorDies("export", false)},
		{name: "process/mapper-dies", run: creatorDies("mapping", false)},
		{name: "process/first-user-dies-memory", run: firstUserDies(false)},
		{name: "process/first-user-dies-compute", run: firstUserDies(true)},
		{name: "process/creator-dies-compute", setup: lowPriority(), run: creatorDiesCompute},
		{name: "process/import-in-sibling", run: importInSibling},
		{name: "process/shared-memory-child-maps", run: cloneMaps},
		{name: "process/shared-memory-child-manages", run: cloneManages},
		{name: "process/shared-memory-child-allocates", run: cloneAllocates},
		{name: "process/file-passed-to-sibling", run: passedFile},
		{name: "process/exec-without-environment", run: execBare},
		{name: "process/new-pid-namespace", run: inNamespace(syscall.CLONE_NEWPID)},
		{name: "process/new-user-namespace", run: inNamespace(syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS)},
		{name: "process/two-processes-at-once", run: stormOf(2)},
		{name: "process/eight-processes-at-once", run: stormOf(8)},
		{name: "process/eight-threads-at-once", run: threadStorm(8)},
		{name: "process/two-threads-at-once", run: threadStorm(2)},
		{name: "process/kill-in-allocation", run: killed("allocate")},
		{name: "process/kill-in-free", run: killed("free")},
		{name: "process/death-during-free", run: deathDuringFree},
		{name: "process/not-dumpable", run: notDumpable},
	}
}

// creation is what a helper made before it died.
// processHelpers are the parts of other processes.
// helpCreate makes memory, hands the file that holds it to its parent, and ends.
// create runs a creator to its end and returns the file it left.
func (t *tenant) create(what string, attr *syscall.SysProcAttr) (int, creation, error) {
	var made creation
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, made, err
	}
	s, err := spawn(t.Hints, "helper-creator", what, attr, fds[1])
	closeAll(fds[1])
	if err != nil {
		return -1, made, err
	}
	defer closeAll(fds[0])
	b, oob := make([]byte, 4096), make([]byte, 64)
	n, on, _, _, err := unix.Recvmsg(fds[0], b, oob, unix.MSG_CMSG_CLOEXEC)
	s.wait()
	if err != nil || n == 0 {
		return -1, made, errors.Join(errPeerGone, err)
	}
	m, err := unix.ParseSocketControlMessage(oob[:on])
	if err != nil || len(m) == 0 {
		return -1, made, errors.Join(errPeerGone, err)
	}
	got, err := unix.ParseUnixRights(&m[0])
	if err != nil || len(got) == 0 {
		return -1, made, errors.Join(errPeerGone, err)
	}
	return got[0], made, json.Unmarshal(b[:n], &made)
}

// creatorDies collects files whose makers are dead.
func creatorDies(what string, _ bool, attr ...*syscall.SysProcAttr) func(*tenant) error {
	return func(t *tenant) error {
		c, err := t.client()
		if err != nil {
			return err
		}
		var a *syscall.SysProcAttr
		if len(attr) > 0 {
			a = attr[0]
		}
		for range 5 {
			if _, _, err := t.create(what, a); t.try(err) != nil {
				break
			}
		}
		// The supervisor looks again at what it promised to within a second, and with every call.
		time.Sleep(1100 * time.Millisecond)
		_ = c.control(c.fd, c.root, c.subdevice, 0x20801303, make([]byte, 1028))
		if err := t.hold("with the files of the dead"); err != nil {
			return err
		}
		c.fill(handleFirst)
		return t.hold("after filling up")
	}
}

// helpFirstUse is the first to use a client that its parent made, and ends.
// firstUserDies makes clients that a child uses first; with the child's end the ledger may believe them gone.
func firstUserDies(compute bool) func(*tenant) error {
	return func(t *tenant) error {
		c, err := t.client()
		if err != nil {
			return err
		}
		for range 3 {
			fd, err := t.Open(card.KindCtl)
			if err != nil {
				return err
			}
			root, err := t.object(fd, nvidia.Alloc{Class: nvidia.ClassRootClient}, nil)
			if err != nil {
				return err
			}
			b, err := json.Marshal(root)
			if err != nil {
				return err
			}
			s, err := spawn(t.Hints, "helper-first-user", string(b), nil, fd)
			if err != nil {
				return err
			}
			s.wait()
			_ = t.try(t.submit(fd, root, handleFirst+2, victimKernel, plenty))
		}
		time.Sleep(50 * time.Millisecond)
		_ = c.control(c.fd, c.root, c.subdevice, 0x20801303, make([]byte, 1028))
		if compute {
			return t.measure(measureFor)
		}
		if err := t.hold("after the first user's end"); err != nil {
			return err
		}
		c.fill(handleFirst)
		return t.hold("after filling up")
	}
}

// creatorDiesCompute goes on with the client of a dead process, and makes new groups on it.
func creatorDiesCompute(t *tenant) error {
	fd, made, err := t.create("memory", nil)
	if err != nil {
		return err
	}
	c := &client{lib: t.lib, fd: fd, root: made.Root, device: made.Device}
	if err := c.groups(severalGroups); err != nil {
		return err
	}
	return t.measure(measureFor)
}

// helpImport takes memory out of a file and keeps it.
// importInSibling exports, lets another process import, and removes every other trace.
func importInSibling(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for range 5 {
		fd, _, err := t.create("export", nil)
		if t.try(err) != nil {
			break
		}
		s, err := spawn(t.Hints, "helper-import", "", nil, fd)
		if err != nil {
			return err
		}
		s.await()
		closeAll(fd)
	}
	time.Sleep(1100 * time.Millisecond)
	_ = c.control(c.fd, c.root, c.subdevice, 0x20801303, make([]byte, 1028))
	if err := t.hold("with imported memory"); err != nil {
		return err
	}
	c.fill(handleFirst)
	return t.hold("after filling up")
}

// shared is how a child shares memory and files without being a thread.
const shared = unix.CLONE_VM | unix.CLONE_FILES

// cloneMaps lets short-lived processes in the same memory make the mappings.
func cloneMaps(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	u, err := c.unified()
	if err != nil {
		return err
	}
	for i := range nvidia.Handle(5) {
		h, base := handleFirst+i, uvmBase+uint64(i)*uvmStep
		if _, err := c.vram(h, pieceOf); t.try(err) != nil {
			break
		}
		if err := u.CreateRange(base, pieceOf); err != nil {
			return err
		}
		b, addr, err := t.Take(nvidia.SizeUVMMapExternal)
		if err != nil {
			return err
		}
		m := nvidia.UVMMapExternal{Base: base, Length: pieceOf, GPUs: make([]nvidia.UUID, 1), CtrlFD: int32(c.fd), Client: c.root, Memory: h}
		if err := m.Put(b); err != nil {
			return err
		}
		var s script
		s.ioctl(u.FD, nvidia.UVMCmdMapExternal, addr)
		if err := s.through(shared); err != nil {
			return err
		}
		t.Reset()
		if err := c.release(h); err != nil {
			return err
		}
	}
	return t.afterClones(c)
}

func (t *tenant) afterClones(c *client) error {
	time.Sleep(1100 * time.Millisecond)
	_ = c.control(c.fd, c.root, c.subdevice, 0x20801303, make([]byte, 1028))
	if err := t.hold("after the children's end"); err != nil {
		return err
	}
	c.fill(handleFirst + 0x1000)
	return t.hold("after filling up")
}

// cloneManages lets them map managed memory.
func cloneManages(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	u, err := c.unified()
	if err != nil {
		return err
	}
	for i := range uint64(6) {
		at := managedBase + i*uvmStep
		var s script
		s.add(unix.SYS_MMAP, at, pieceOf, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED, uint64(u.FD), at)
		if err := s.through(shared); err != nil {
			return err
		}
		if t.try(s.result(0)) == nil {
			_ = t.touch(u.FD, at, pieceOf)
		}
	}
	return t.afterClones(c)
}

// cloneAllocates lets them make a client and memory on it.
func cloneAllocates(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for range 5 {
		fd, err := t.Open(card.KindCtl)
		if err != nil {
			return err
		}
		b, addr, err := t.Take(nvidia.SizeAlloc64)
		if err != nil {
			return err
		}
		if err := (nvidia.Alloc{Class: nvidia.ClassRootClient}).Put(b); err != nil {
			return err
		}
		var s script
		s.ioctl(fd, nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64), addr)
		if err := s.through(shared); err != nil {
			return err
		}
		a, err := nvidia.DecodeAlloc(b)
		t.Reset()
		if err != nil {
			return err
		}
		d, err := t.clientOn(fd, a.New)
		if t.try(err) != nil {
			continue
		}
		_, err = d.vram(handleFirst, pieceOf)
		_ = t.try(err)
	}
	return t.afterClones(c)
}

// helpFill takes all that the quota gives.
// passedFile lets a sibling allocate on this process's client.
func passedFile(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for range 3 {
		b, err := json.Marshal(c.root)
		if err != nil {
			return err
		}
		s, err := spawn(t.Hints, "helper-first-user", string(b), nil, c.fd)
		if err != nil {
			return err
		}
		s.wait()
		t.tries++
	}
	c.fill(handleFirst + 0x100)
	return t.hold("after a sibling's calls")
}

// helpExec starts with a client and goes on as another program, without any environment.
func execBare(t *tenant) error {
	s, err := spawn(t.Hints, "helper-exec", "", nil)
	if err != nil {
		return err
	}
	if !s.await() {
		return errors.New("the helper did not come back from exec")
	}
	t.tries++
	if err := t.hold("after exec"); err != nil {
		return err
	}
	return t.measure(measureFor)
}

// inNamespace fills the quota from inside a namespace of its own.
func inNamespace(flags uintptr) func(*tenant) error {
	return func(t *tenant) error {
		attr := &syscall.SysProcAttr{Cloneflags: flags}
		if flags&syscall.CLONE_NEWUSER != 0 {
			attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		}
		s, err := spawn(t.Hints, "helper-fill", "", attr)
		if err != nil {
			return fmt.Errorf("%w: %w", errSkip, err)
		}
		s.await()
		if c, err := t.client(); t.try(err) == nil {
			c.fill(handleFirst)
		}
		return t.hold("with a process in namespaces of its own")
	}
}

// helpStorm allocates and frees without a pause.
// storm allocates and frees pieces of any size for as long as more says so.
func stormOf(n int) func(*tenant) error {
	return func(t *tenant) error {
		var all []*sibling
		for range n {
			s, err := spawn(t.Hints, "helper-storm", "", nil)
			if err != nil {
				return err
			}
			s.await()
			all = append(all, s)
		}
		time.Sleep(max(t.Race/2, 300*time.Millisecond))
		for _, s := range all {
			t.tries++
			_ = s.cmd.Process.Signal(unix.SIGSTOP)
		}
		time.Sleep(20 * time.Millisecond)
		return t.hold("after the storm")
	}
}

func threadStorm(n int) func(*tenant) error {
	return func(t *tenant) error {
		end := time.Now().Add(max(t.Race/2, 300*time.Millisecond))
		t.tries = n
		err := t.together(n, func(_ int, l *lib) error {
			c, err := l.client()
			if err != nil {
				return err
			}
			return storm(c, func() bool { return time.Now().Before(end) })
		})
		return errors.Join(err, t.hold("after the storm"))
	}
}

// killed ends processes at any moment of their calls.
func killed(_ string) func(*tenant) error {
	return func(t *tenant) error {
		for range 12 {
			s, err := spawn(t.Hints, "helper-storm", "", nil)
			if err != nil {
				return err
			}
			s.await()
			time.Sleep(time.Duration(rand.IntN(15_000)) * time.Microsecond)
			s.kill()
			t.tries++
		}
		c, err := t.client()
		if err != nil {
			return err
		}
		c.fill(handleFirst)
		return t.hold("after the killing")
	}
}

// helpWeight holds some memory until it is killed.
// deathDuringFree lets a process of its own die while memory is freed that does not come back: what the dead one
// gave back must not be taken for it.
func deathDuringFree(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	for i := range nvidia.Handle(10) {
		s, err := spawn(t.Hints, "helper-weight", "", nil)
		if err != nil {
			return err
		}
		if !s.await() {
			break
		}
		u1, err1 := c.unified()
		u2, err2 := c.unified()
		a, b := handleFirst+2*i, handleFirst+2*i+1
		base := uvmBase + uint64(i)*uvmStep
		_, err3 := c.vram(a, 32*mib)
		_, err4 := c.vram(b, 2*mib)
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			break
		}
		if err := errors.Join(c.mapped(u1, base, 32*mib, a), c.mapped(u2, base, 2*mib, b)); err != nil {
			return err
		}
		_ = s.cmd.Process.Kill()
		time.Sleep(time.Duration(i) * 150 * time.Microsecond)
		t.tries++
		if err := c.release(a); err != nil {
			return err
		}
		_ = s.cmd.Wait()
	}
	time.Sleep(1100 * time.Millisecond)
	_ = c.control(c.fd, c.root, c.subdevice, 0x20801303, make([]byte, 1028))
	return t.hold("after deaths during frees")
}

// notDumpable hides its memory and descriptors from its peers, and makes its groups then.
func notDumpable(t *tenant) error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	c, err := t.client()
	if t.try(err) != nil {
		return t.hold("not dumpable")
	}
	c.fill(handleFirst)
	if err := t.hold("not dumpable"); err != nil {
		return err
	}
	_ = c.release(handleFirst)
	if err := c.groups(4); err != nil {
		return err
	}
	return t.measure(measureFor)
}
