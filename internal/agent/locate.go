package agent

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// SystemSocket is where root's agent serves everybody.
const SystemSocket = "/run/penstock/agent.sock"

// SocketEnv overrides where the agent's socket is looked for.
const SocketEnv = "PENSTOCK_SOCKET"

// OwnSocket is where this user's own agent serves.
func OwnSocket(uid int, getenv func(string) string) string {
	if uid == 0 {
		return SystemSocket
	}
	if dir := getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "penstock", "agent.sock")
	}
	return filepath.Join(os.TempDir(), "penstock-"+strconv.Itoa(uid), "agent.sock")
}

// prepareDir makes the socket's directory, and insists that nobody else can
// put another socket there: it is this user's and closed to writers. Root's
// directory lets others pass through to the socket.
func prepareDir(socket string) error {
	dir := filepath.Dir(socket)
	mode := fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o755
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("socket directory: %w", err)
	}
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("socket directory: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("socket directory %s: %w", dir, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("socket directory %s is no directory", dir)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("socket directory %s belongs to user %d, not to this one", dir, st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("socket directory %s is writable by others: chmod go-w it", dir)
	}
	return nil
}

// EmulatedSocket is where an agent for the emulated card at dir serves, beside
// this user's own.
func EmulatedSocket(own, dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir))
	return filepath.Join(fmt.Sprintf("%s-emulated-%08x", filepath.Dir(own), h.Sum32()), "agent.sock")
}
