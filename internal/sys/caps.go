package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Thread capabilities that proxying needs: to take files from processes of
// other users and to read their memory, and nothing that the driver would
// mistake for an administrator.
const proxyCapabilities = 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_KILL

// DropToProxy reduces the effective capabilities of the calling OS thread to
// what proxying needs. A driver call made by this thread is then judged as an
// ordinary user's: a tenant must not gain the agent's rights through it. The
// goroutine must be locked to its thread and the thread must not be reused.
func DropToProxy() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("read thread capabilities: %w", err)
	}
	data[0].Effective &= proxyCapabilities & 0xffffffff
	data[1].Effective = 0
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("reduce thread capabilities: %w", err)
	}
	return nil
}
