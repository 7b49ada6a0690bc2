package hostile

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// script is a list of system calls for a process of its own.
type script [][8]uintptr

func (s *script) add(nr uintptr, args ...uint64) int {
	var e [8]uintptr
	e[0] = nr
	for i, a := range args {
		e[i+1] = uintptr(a)
	}
	*s = append(*s, e)
	return len(*s) - 1
}

func (s *script) ioctl(fd int, cmd uint32, addr uint64) int {
	return s.add(unix.SYS_IOCTL, uint64(fd), uint64(cmd), addr)
}

// result is the return value of a call of the script.
func (s script) result(i int) error {
	r := int(s[i][7])
	if r < 0 && r > -4096 {
		return unix.Errno(-r)
	}
	return nil
}

// run makes the process. Results are seen only with CLONE_VM.
func (s script) run(flags uintptr) (pid int, err error) {
	if !haveRaw {
		return 0, fmt.Errorf("no assembly for %s: %w", runtime.GOARCH, errSkip)
	}
	if len(s) == 0 {
		return 0, errors.New("empty script")
	}
	r := int(cloneScript(flags, 0, &s[0], uintptr(len(s))))
	if r < 0 && r > -4096 {
		return 0, fmt.Errorf("clone: %w", unix.Errno(-r))
	}
	return r, nil
}

// through runs the script to its end.
func (s script) through(flags uintptr) error {
	pid, err := s.run(flags | uintptr(unix.SIGCHLD))
	if err != nil {
		return err
	}
	return reap(pid)
}

func reap(pid int) error {
	for {
		_, err := unix.Wait4(pid, nil, 0, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
