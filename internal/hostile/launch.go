package hostile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/engine/kernel"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// Arguments by which a program that embeds this package becomes a tenant: see Tenant.
const (
	argHostile = "hostile"
	argTenant  = "tenant"
	argBare    = "bare" // without the filter
	argRun     = "run"  // behind the filter
	roleVictim = "victim"
	// roleAccomplice is a tenant with a grant of its own that works for the attacker.
	roleAccomplice = "accomplice"
)

// IsTenant reports whether the command line is that of a tenant process.
func IsTenant(args []string) bool {
	return len(args) >= 4 && args[1] == argHostile && args[2] == argTenant
}

// Tenant is the main function of a tenant process. It returns its exit status.
func Tenant(args []string) int {
	if len(args) < 5 {
		return fatal(errors.New("arguments are missing"))
	}
	if args[3] == argTenant {
		return fatal(install(args[4]))
	}
	return runMain(func() int { return fatal(runRole(args[4], args[5:])) })
}

// leaderExit, when closed, ends the main thread of a tenant process and leaves the others running.
var leaderExit = make(chan struct{})

// runMain keeps the process's first thread free for leaderExit.
func runMain(fn func() int) int {
	runtime.LockOSThread()
	status := make(chan int, 1)
	go func() { status <- fn() }()
	select {
	case s := <-status:
		return s
	case <-leaderExit:
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // this thread only
	}
	select {}
}

func fatal(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "hostile tenant:", err)
	return 1
}

// install puts the filter in front of this process, hands the listener to the judge and goes on as the tenant.
func install(role string) error {
	runtime.LockOSThread()
	prog, err := kernel.Filter()
	if err != nil {
		return err
	}
	l, err := sys.InstallFilter(prog)
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(wireFD, []byte{1}, unix.UnixRights(l), nil, 0); err != nil {
		return fmt.Errorf("hand over the listener: %w", err)
	}
	if err := unix.Close(l); err != nil {
		return err
	}
	var b [1]byte
	if _, err := unix.Read(wireFD, b[:]); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", []string{os.Args[0], argHostile, argTenant, argRun, role}, os.Environ())
}

// child is a tenant process as the judge sees it.
type child struct {
	cmd      *exec.Cmd
	wire     int
	lifeline *os.File // closed: every helper of the tenant ends
	session  *kernel.Session
	ended    chan error // of the session's loop
	exited   chan struct{}
	listener *os.File
}

// start starts a tenant process; listener is nil without supervision.
func start(role string, supervised bool) (*child, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	mode := argBare
	if supervised {
		mode = argTenant
	}
	theirs := os.NewFile(uintptr(fds[1]), "wire")
	c := &child{wire: fds[0], lifeline: w, ended: make(chan error, 1), exited: make(chan struct{})}
	c.cmd = exec.Command("/proc/self/exe", argHostile, argTenant, mode, role)
	c.cmd.Stdin, c.cmd.Stderr = r, os.Stderr
	c.cmd.ExtraFiles = []*os.File{theirs}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = c.cmd.Start()
	_ = theirs.Close()
	_ = r.Close()
	if err != nil {
		return nil, nil, fmt.Errorf("start a tenant: %w", err)
	}
	go func() { _ = c.cmd.Wait(); close(c.exited) }()
	if !supervised {
		return c, nil, nil
	}
	l, err := receiveListener(fds[0])
	return c, l, err
}

func receiveListener(fd int) (*os.File, error) {
	b, oob := make([]byte, 1), make([]byte, 64)
	_, n, _, _, err := unix.Recvmsg(fd, b, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("receive the listener: %w", err)
	}
	m, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(m) != 1 {
		return nil, fmt.Errorf("receive the listener: %d parts: %w", len(m), errors.Join(err, errPeerGone))
	}
	fds, err := unix.ParseUnixRights(&m[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("receive the listener: %d descriptors: %w", len(fds), err)
	}
	return os.NewFile(uintptr(fds[0]), "listener"), nil
}

// endWait is how long the processes of a tenant may take to go once they are told to.
const endWait = 10 * time.Second

// errStuck says that a process cannot end: the emulated card waits for a page that only the process can give.
var errStuck = errors.New("a tenant process does not end")

// stop ends the tenant with all its helpers and waits for the end of its session.
func (c *child) stop() error {
	_ = c.lifeline.Close()
	_ = unix.Kill(-c.cmd.Process.Pid, unix.SIGKILL)
	select {
	case <-c.exited:
	case <-time.After(endWait):
		return errStuck
	}
	var err error
	if c.session != nil {
		select {
		case err = <-c.ended:
			err = errors.Join(err, c.session.Close())
		case <-time.After(endWait):
			err = fmt.Errorf("the session of tenant %d does not end", c.cmd.Process.Pid)
		}
	}
	_ = unix.Close(c.wire)
	if c.listener != nil {
		_ = c.listener.Close()
	}
	return err
}
