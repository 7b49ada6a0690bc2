package hostile

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// traced lets one process of the tenant change another's calls at the kernel's door: a harmless call becomes an
// allocation over quota after the tracee has made it.
func traced(t *tenant) error {
	c, err := t.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	addr, _, err := t.allocCall(c, handleFirst+0x10000)
	if err != nil {
		return err
	}
	for _, what := range []uint64{unix.SYS_GETPID, unix.SYS_IOCTL} {
		if err := onOwnThread(func() error { return t.changeCalls(c.fd, what, addr) }); err != nil {
			return err
		}
	}
	return t.hold("after changed calls")
}

// changeCalls traces a child that makes harmless calls, and changes them at their entry and at their exit.
func (t *tenant) changeCalls(fd int, nr, addr uint64) error {
	var s script
	s.add(unix.SYS_POLL, 0, 0, 100)
	for range 8 {
		s.add(uintptr(nr), uint64(fd), 0x5401, addr)
	}
	pid, err := s.run(uintptr(unix.SIGCHLD))
	if err != nil {
		return err
	}
	if err := t.try(unix.PtraceSeize(pid)); err != nil {
		return reap(pid)
	}
	if err := unix.PtraceInterrupt(pid); err != nil {
		return err
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(pid, &ws, 0, nil); err != nil || ws.Exited() || ws.Signaled() {
			return nil
		}
		var r unix.PtraceRegs
		if err := unix.PtraceGetRegs(pid, &r); err == nil && r.Orig_rax == nr {
			r.Orig_rax, r.Rdi = unix.SYS_IOCTL, uint64(fd)
			r.Rsi, r.Rdx = uint64(nvidia.Cmd(nvidia.EscAlloc, nvidia.SizeAlloc64)), addr
			t.tries++
			_ = unix.PtraceSetRegs(pid, &r)
		}
		if unix.PtraceSyscall(pid, 0) != nil {
			return nil
		}
	}
	return nil
}
