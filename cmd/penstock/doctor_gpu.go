package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/agent"
	"github.com/penstock-gpu/penstock/internal/engine/kernel"
)

func (p *place) paths() kernel.Paths {
	if p.emulated != "" {
		return kernel.Paths{Dev: p.emulated, Emulated: true}
	}
	return kernel.SystemPaths()
}

func checkCards(p *place) []finding {
	paths := p.paths()
	cards, err := kernel.Discover(paths)
	if errors.Is(err, kernel.ErrNoCard) {
		return []finding{found("cards", warn, "load the NVIDIA driver, or try the emulated card: penstock demo", "%v", err)}
	}
	if err != nil {
		return []finding{found("cards", bad, "", "%v", err)}
	}
	all := []finding{checkDriver(cards[0].Driver)}
	for _, c := range cards {
		f := checkFile(filepath.Join(paths.Dev, "nvidia"+strconv.Itoa(c.Minor)))
		f.Check = fmt.Sprintf("card %d (%s, %s)", c.Index, c.Name, c.UUID)
		all = append(all, f)
	}
	for _, name := range []string{"nvidiactl", "nvidia-uvm"} {
		all = append(all, checkFile(filepath.Join(paths.Dev, name)))
	}
	return all
}

func checkDriver(v string) finding {
	t, err := nvidia.Lookup(v)
	if err != nil {
		return found("driver", bad, "install a driver of a line that penstock version lists, or start the agent with --any-driver at your own risk", "%s: %v", v, err)
	}
	return found("driver", good, "", "%s, tables of line %s", v, t.Line)
}

func checkFile(path string) finding {
	check := "device file " + path
	err := unix.Access(path, unix.R_OK|unix.W_OK)
	switch {
	case err == nil:
		return found(check, good, "", "readable and writable")
	case errors.Is(err, fs.ErrNotExist):
		return found(check, warn, "run nvidia-modprobe -u -c 0 once, as root", "is missing")
	}
	return found(check, bad, "add this user to the file's group, or chmod 0666 it as the driver's default is", "%v", err)
}

// checkOthers looks for daemons that also share cards.
func checkOthers(p *place) []finding {
	if p.emulated != "" {
		return nil
	}
	var all []finding
	for _, d := range []struct{ comm, what, do string }{
		{"nvidia-cuda-mps", "MPS", "stop it (echo quit | nvidia-cuda-mps-control): its clients' work is the server's, and has no share of its own"},
		{"vgpu-manager", "vgpu-manager", "do not share one card by two managers"},
		{"vgpu-monitor", "HAMi", "do not share one card by two managers"},
	} {
		if pids := processesNamed(d.comm); len(pids) > 0 {
			all = append(all, found("other sharing", warn, d.do, "%s is running (process %s)", d.what, joinInts(pids, 3)))
		}
	}
	if _, err := os.Stat("/proc/cgpu_km"); err == nil {
		all = append(all, found("other sharing", warn, "do not share one card by two managers", "the cGPU kernel module is loaded"))
	}
	if len(all) == 0 {
		all = append(all, found("other sharing", good, "", "no MPS and no other manager is running"))
	}
	return all
}

// processesNamed lists processes whose name starts with comm (the kernel keeps
// 15 bytes of it).
func processesNamed(comm string) []int {
	files, _ := filepath.Glob("/proc/[0-9]*/comm")
	var pids []int
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || !strings.HasPrefix(string(b), comm) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func checkAgent(ctx context.Context, p *place) finding {
	client, err := p.launcher().Client(ctx)
	if errors.Is(err, agent.ErrNoAgent) {
		return found("agent", good, "", "none is running; penstock run starts one")
	}
	var s agent.Status
	if err == nil {
		s, err = client.Status(ctx)
	}
	if err != nil {
		return found("agent", bad, "see its log, agent.sock.log beside the socket", "%v", err)
	}
	n := len(s.Tenants) + s.Others
	if s.AnyDriver {
		return found("agent", warn, "use a driver of a known line", "at %s, %d tenants, with --any-driver", s.Socket, n)
	}
	return found("agent", good, "", "at %s, process %d, %d tenants", s.Socket, s.PID, n)
}
