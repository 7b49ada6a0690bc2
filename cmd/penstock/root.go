package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-gpu/penstock/internal/agent"
	"github.com/penstock-gpu/penstock/internal/sim/simcmd"
)

// selfPath is how this program is started again: by the path it was called
// by, so that a new version of the file takes over, or by its running image
// when that file is not it.
func selfPath() string {
	const image = "/proc/self/exe"
	path, err := exec.LookPath(os.Args[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return image
	}
	named, err1 := os.Stat(path)
	running, err2 := os.Stat(image)
	if err1 != nil || err2 != nil || !os.SameFile(named, running) {
		return image
	}
	return path
}

// programName is the first argument of every process of this program.
const programName = "penstock"

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "penstock",
		Short:         "Run unmodified programs on a GPU under an exact share of memory and compute",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newRun(), newAgent(), newTop(), newDoctor(), newDemo(), newTrace(), simcmd.New(), newVersion(), newEmu(), newHostile())
	return root
}

// place says where the agent is and which cards it has: the flags that every
// client command shares.
type place struct {
	socket   string
	emulated string
	noStart  bool
	idleExit time.Duration
}

func (p *place) flags(c *cobra.Command) {
	c.Flags().StringVar(&p.socket, "socket", os.Getenv(agent.SocketEnv), "the agent's unix socket (default: root's agent, else this user's own)")
	c.Flags().StringVar(&p.emulated, "emulated", "", "use the emulated card served at this directory")
}

// launcher finds the agent, and starts one with the flags that matter to it.
func (p *place) launcher() agent.Launcher {
	uid := os.Geteuid()
	own := agent.OwnSocket(uid, os.Getenv)
	l := agent.Launcher{Sockets: []string{agent.SystemSocket, own}, Own: own}
	switch {
	case p.socket != "":
		own = p.socket
		l.Sockets, l.Own = []string{own}, own
	case p.emulated != "":
		own = agent.EmulatedSocket(own, p.emulated)
		l.Sockets, l.Own = []string{own}, own
	case uid == 0:
		l.Sockets = l.Sockets[:1]
	}
	if p.noStart {
		l.Own = ""
	}
	l.Command = []string{selfPath(), "agent", "--socket", own, "--idle-exit", p.idleExit.String()}
	if p.emulated != "" {
		l.Command = append(l.Command, "--emulated", p.emulated)
	}
	return l
}

// percent prints a number of percent points as people write it.
func percent(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) + "%" }
