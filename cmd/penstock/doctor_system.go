package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/sys"
)

// minKernel is the first with SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV.
var minKernel = [2]int{5, 19}

func checkKernel() finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return found("kernel", warn, "", "its version is not readable: %v", err)
	}
	rel := unix.ByteSliceToString(u.Release[:])
	major, minor, ok := kernelVersion(rel)
	switch {
	case !ok:
		return found("kernel", warn, "", "%s: not a version", rel)
	case major < minKernel[0] || major == minKernel[0] && minor < minKernel[1]:
		return found("kernel", bad, "upgrade to Linux 5.19 or newer", "%s is older than 5.19", rel)
	}
	return found("kernel", good, "", "%s", rel)
}

func kernelVersion(rel string) (major, minor int, ok bool) {
	parts := strings.SplitN(rel, ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	digits := func(s string) string {
		if i := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
			return s[:i]
		}
		return s
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(digits(parts[1]))
	return major, minor, err1 == nil && err2 == nil
}

func checkNotify() finding {
	const do = "use a kernel with CONFIG_SECCOMP_FILTER; inside a container, allow the seccomp system call"
	if err := sys.CheckNotifySizes(); err != nil {
		return found("seccomp notification", bad, do, "%v", err)
	}
	return found("seccomp notification", good, "", "supported")
}

// checkWaitKillable installs a filter that lets everything pass, on a thread
// that ends right after.
func checkWaitKillable() finding {
	const check = "seccomp listener"
	allow := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: seccompAllow}}
	got := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its filter
		fd, err := sys.InstallFilter(allow)
		if err == nil {
			_ = unix.Close(fd)
		}
		got <- err
	}()
	err := <-got
	switch {
	case err == nil:
		return found(check, good, "", "installs, with wait-killable")
	case errors.Is(err, unix.EBUSY):
		return found(check, warn, "a program under penstock run cannot start another one", "%v", err)
	}
	return found(check, bad, "use Linux 5.19 or newer; inside a container, allow the seccomp system call", "%v", err)
}

// seccompAllow is SECCOMP_RET_ALLOW.
const seccompAllow = 0x7fff0000

func checkPidfd() finding {
	const do = "use Linux 5.6 or newer; inside a container, allow pidfd_open and pidfd_getfd"
	fd, err := sys.OpenProcess(os.Getpid())
	if err == nil {
		defer unix.Close(fd)
		var dup int
		if dup, err = sys.GetFile(fd, 0); err == nil {
			_ = unix.Close(dup)
		}
		if errors.Is(err, unix.EBADF) {
			err = nil // no standard input, but the call is there
		}
	}
	if err != nil {
		return found("pidfd_getfd", bad, do, "%v", err)
	}
	return found("pidfd_getfd", good, "", "works on this process")
}

// yamaMeans says what each value of ptrace_scope lets the agent do.
var yamaMeans = map[string]struct {
	v          verdict
	means, doo string
}{
	"0": {good, "an agent may supervise all processes of its user", ""},
	"1": {warn, "only root's agent may supervise: a user's own agent is no parent of its tenants",
		"use root's agent (systemctl start penstock), or sysctl kernel.yama.ptrace_scope=0"},
	"2": {warn, "only an agent with CAP_SYS_PTRACE may supervise", "use root's agent"},
	"3": {bad, "nobody may supervise: reading another process's memory is switched off until reboot",
		"boot without kernel.yama.ptrace_scope=3"},
}

func checkPtrace() finding {
	own := make([]byte, 8)
	probe := []byte("penstock")
	if err := sys.ReadMemory(os.Getpid(), sys.Address(probe), own); err != nil {
		return found("process_vm_readv", bad, "inside a container, allow process_vm_readv and process_vm_writev", "%v", err)
	}
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if errors.Is(err, os.ErrNotExist) {
		return found("process_vm_readv", good, "", "allowed, no Yama")
	}
	scope := strings.TrimSpace(string(b))
	m, known := yamaMeans[scope]
	if !known {
		return found("process_vm_readv", warn, "", "yama ptrace_scope is %q: not known", scope)
	}
	if m.v == warn && os.Geteuid() == 0 {
		m.v = good
	}
	return found("process_vm_readv", m.v, m.doo, "yama ptrace_scope is %s: %s", scope, m.means)
}

// helpfulCaps are what an agent for several users needs.
var helpfulCaps = []struct {
	bit  uint
	name string
	why  string
}{
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "supervise processes of other users"},
	{unix.CAP_KILL, "CAP_KILL", "end a tenant of another user that breaks the boundary"},
	{unix.CAP_SYS_NICE, "CAP_SYS_NICE", "switch slots on time on a busy machine"},
}

func checkCaps() finding {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return found("capabilities", warn, "", "not readable: %v", err)
	}
	have := uint64(data[0].Effective) | uint64(data[1].Effective)<<32
	var missing []string
	for _, c := range helpfulCaps {
		if have&(1<<c.bit) == 0 {
			missing = append(missing, fmt.Sprintf("%s (to %s)", c.name, c.why))
		}
	}
	if len(missing) > 0 {
		return found("capabilities", warn, "enough for one's own processes; root's agent has them all", "without %s", strings.Join(missing, ", "))
	}
	return found("capabilities", good, "", "all that an agent for several users needs")
}
