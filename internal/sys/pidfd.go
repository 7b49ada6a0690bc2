package sys

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// pidfdThread is PIDFD_THREAD of linux/pidfd.h (since 6.9): the descriptor
// stands for one thread instead of its thread group.
const pidfdThread = unix.O_EXCL

// OpenThread returns a pidfd of one thread. On kernels before 6.9 it fails
// with EINVAL.
func OpenThread(tid int) (int, error) {
	fd, err := unix.PidfdOpen(tid, pidfdThread)
	if err != nil {
		return -1, fmt.Errorf("open thread %d: %w", tid, err)
	}
	return fd, nil
}

// OpenProcess returns a pidfd of a thread group, which polls readable when
// the last thread has exited.
func OpenProcess(tgid int) (int, error) {
	fd, err := unix.PidfdOpen(tgid, 0)
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", tgid, err)
	}
	return fd, nil
}

// Alive reports whether the process or thread behind pidfd has not exited.
func Alive(pidfd int) bool {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n == 0
	}
}

// GetFile duplicates descriptor fd of the process behind pidfd into this
// process: the same open file, so the driver sees the same owner. The caller
// closes it at once after its call, since a held duplicate keeps a dead
// process's device memory alive.
func GetFile(pidfd, fd int) (int, error) {
	n, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor %d: %w", fd, err)
	}
	return n, nil
}

// ThreadGroup returns the process (thread group) that thread tid belongs to.
func ThreadGroup(tid int) (int, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return 0, fmt.Errorf("thread group of %d: %w", tid, err)
	}
	_, rest, ok := bytes.Cut(b, []byte("\nTgid:\t"))
	if !ok {
		return 0, fmt.Errorf("thread group of %d: no Tgid line", tid)
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	n, err := strconv.Atoi(string(line))
	if err != nil {
		return 0, fmt.Errorf("thread group of %d: %w", tid, err)
	}
	return n, nil
}

// KCMP_FILE and KCMP_FILES of linux/kcmp.h.
const (
	kcmpFile  = 0
	kcmpFiles = 2
)

// SameTable reports whether two threads share one descriptor table.
func SameTable(tid1, tid2 int) bool {
	r, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(tid1), uintptr(tid2), kcmpFiles, 0, 0, 0)
	return e == 0 && r == 0
}

// Filtered reports whether a process runs under a seccomp filter, as far as
// can be seen: a process that cannot be looked at counts as filtered.
func Filtered(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	return !bytes.Contains(b, []byte("\nSeccomp:\t0\n"))
}

// SameFile reports whether two descriptors of two processes are one open file
// description. It needs ptrace rights over both.
func SameFile(pid1, fd1, pid2, fd2 int) (bool, error) {
	r, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(pid1), uintptr(pid2), kcmpFile, uintptr(fd1), uintptr(fd2), 0)
	if e != 0 {
		return false, fmt.Errorf("compare descriptor %d of %d with %d of %d: %w", fd1, pid1, fd2, pid2, e)
	}
	return r == 0, nil
}
