package agent

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// pairFD is where a started holder or worker finds its end of the pair: the
// first descriptor after the standard ones.
const pairFD = 3

// programName is what the processes of an agent are called.
const programName = "penstock"

// Self starts this program again in another role, with the same flags.
type Self struct {
	Path   string   // executable; /proc/self/exe survives the file's removal
	Holder []string // arguments that make it a holder
	Worker []string // arguments that make it a worker
}

// start runs self with args in a process group of its own and returns the
// connection to it. The child lives on when the caller dies.
func (s Self) start(args []string) (*exec.Cmd, *net.UnixConn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "pair")
	defer theirs.Close()
	ours, err := fileConn(os.NewFile(uintptr(fds[0]), "pair"))
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(s.Path, args...)
	cmd.Args[0] = programName
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		_ = ours.Close()
		return nil, nil, fmt.Errorf("start %s %s: %w", s.Path, args[0], err)
	}
	return cmd, ours, nil
}

// fileConn turns a unix socket descriptor into a connection and closes f.
func fileConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use the socket pair: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("descriptor %s is no unix socket", f.Name())
	}
	return u, nil
}

// inherited returns the pair that the process was started with.
func inherited() (*net.UnixConn, error) {
	unix.CloseOnExec(pairFD)
	c, err := fileConn(os.NewFile(pairFD, "pair"))
	if err != nil {
		return nil, fmt.Errorf("this role is started by penstock itself: %w", err)
	}
	return c, nil
}

// pairMessage is what travels between holder and worker. Files ride along.
type pairMessage struct {
	Op    string `json:"op"`
	Name  string `json:"name,omitempty"`
	Error string `json:"error,omitempty"`
}

// Operations of the pair. The worker says park, drop, up, fail, bye; the holder says
// item, ready, ack.
const (
	opPark  = "park"  // keep this file under this name
	opDrop  = "drop"  // close what is kept under this name
	opUp    = "up"    // the worker serves
	opFail  = "fail"  // the worker cannot start, and why
	opBye   = "bye"   // the agent ends: do not start another worker
	opItem  = "item"  // a kept file, handed to a new worker
	opReady = "ready" // that was the last item
	opAck   = "ack"   // the last request is done
)
