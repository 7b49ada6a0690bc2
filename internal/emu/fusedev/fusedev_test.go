package fusedev_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
	"github.com/penstock-gpu/penstock/internal/emu/doorbell"
	"github.com/penstock-gpu/penstock/internal/emu/fusedev"
	"github.com/penstock-gpu/penstock/internal/emu/rm"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// childEnv makes the test binary behave as a child process instead: its value names the job.
const childEnv = "PENSTOCK_EMU_TEST_CHILD"

func TestMain(m *testing.M) {
	if job := os.Getenv(childEnv); job != "" {
		if err := child(job, os.Getenv("EMU_DIR")); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// child is the other process of the tests. It prints one line when it is ready, and ends when its input does.
func child(job, dir string) error {
	if job == "serve" {
		return childServe(dir)
	}
	p, err := rm.NewDevice(dir)
	if err != nil {
		return err
	}
	x, err := rm.Start(p)
	if err != nil {
		return err
	}
	switch job {
	case "hold":
		if err := x.Malloc(1 << 30); err != nil {
			return err
		}
		fmt.Println("ready", x.FD, x.UVM.FD)
	case "wait":
		b := make([]byte, doorbell.SizeWait)
		doorbell.Submit{Client: uint32(x.Handle), Channel: uint32(x.Channels[0]), Each: time.Hour, Count: 1}.Put(b)
		if _, err := sys.Ioctl(x.FD, doorbell.Cmd(doorbell.NrSubmit, doorbell.SizeSubmit), b[:doorbell.SizeSubmit]); err != nil {
			return err
		}
		fmt.Println("ready", x.FD, x.UVM.FD)
		doorbell.Wait{Client: uint32(x.Handle), Channel: uint32(x.Channels[0]), Target: 1}.Put(b)
		_, err := sys.Ioctl(x.FD, doorbell.Cmd(doorbell.NrWait, doorbell.SizeWait), b)
		return fmt.Errorf("the wait ended: %w", err)
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// childServe mounts a card, uses it from the same process, and takes it away.
func childServe(dir string) error {
	s, err := fusedev.Mount(dir, card.Config{})
	if err != nil {
		return err
	}
	p, err := rm.NewDevice(dir)
	if err != nil {
		return err
	}
	x, err := rm.Start(p)
	if err != nil {
		return err
	}
	if err := x.Malloc(1 << 20); err != nil {
		return err
	}
	if err := errors.Join(x.Close(), s.Close()); err != nil {
		return err
	}
	fmt.Println("ready", 0, 0)
	return nil
}

// serve mounts a card for a test; a machine that cannot is skipped, saying why.
func serve(t *testing.T, cfg card.Config) *fusedev.Server {
	t.Helper()
	s, err := fusedev.Mount(t.TempDir(), cfg)
	if errors.Is(err, fusedev.ErrUnavailable) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

type proc struct {
	cmd   *exec.Cmd
	stdin io.Closer
	fd    int // its control file
	uvm   int
}

func spawn(t *testing.T, s *fusedev.Server, job string) *proc {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+job, "EMU_DIR="+s.Dir())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &proc{cmd: cmd, stdin: in}
	if _, err := fmt.Fscanf(out, "ready %d %d\n", &p.fd, &p.uvm); err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("the child is not ready: %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be gone already
		_ = cmd.Wait()
	})
	return p
}

// eventually waits for a condition: the kernel releases files a moment after the last close.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Errorf("%s: not within 5 s", what)
}

func TestChildProcess(t *testing.T) {
	s := serve(t, card.H200())
	p := spawn(t, s, "hold")
	want := s.Card.Config().ContextBytes + 1<<30
	if got := s.Card.Stats().UsedBytes; got != want {
		t.Errorf("used %d, want %d", got, want)
	}
	var st card.Stats
	b, err := os.ReadFile(filepath.Join(s.Dir(), fusedev.StatsFile))
	if err != nil || json.Unmarshal(b, &st) != nil || st.UsedBytes != want {
		t.Errorf("stats file %q: %v", b, err)
	}
	v, err := os.ReadFile(filepath.Join(s.Dir(), fusedev.VersionFile))
	if err != nil || strings.TrimSpace(string(v)) != s.Card.Config().Version {
		t.Errorf("version file %q: %v", v, err)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a killed process's memory is back", func() bool { return s.Card.Stats().UsedBytes == 0 })
}

// TestHeldDuplicateKeepsMemory: the files of a dead process live as long as somebody holds a duplicate.
func TestHeldDuplicateKeepsMemory(t *testing.T) {
	s := serve(t, card.H200())
	p := spawn(t, s, "hold")
	pidfd, err := sys.OpenProcess(p.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	dup, err := sys.GetFile(pidfd, p.fd)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.cmd.Process.Kill(), unix.Close(pidfd)); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait() // killed
	eventually(t, "the other files are released", func() bool { return s.Card.Stats().Files == 1 })
	// The UVM mappings went with their file; the objects and the context's buffers stay.
	if got := s.Card.Stats(); got.UsedBytes != s.Card.Config().ContextBytes+1<<30 || got.Channels != 20 {
		t.Errorf("after the death, with a duplicate held: %+v", got)
	}
	if err := unix.Close(dup); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the memory is back", func() bool { return s.Card.Stats().UsedBytes == 0 })
}

// TestProxiedCall makes a call for a tenant on its own file, from this process's memory; and shows that this
// process's own file may not use the tenant's client.
func TestProxiedCall(t *testing.T) {
	s := serve(t, card.H200())
	p := spawn(t, s, "hold")
	port, err := rm.NewDevice(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	own, err := rm.Start(port)
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := sys.OpenProcess(p.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	dup, err := sys.GetFile(pidfd, p.fd)
	if err != nil {
		t.Fatal(err)
	}
	// The first client of a fresh card is the child's.
	const tenant = nvidia.Handle(0xc1d00001)
	call := func(fd int) nvidia.Status {
		b := make([]byte, nvidia.SizeFree)
		if err := (nvidia.Free{Root: tenant, Object: tenant}).Put(b); err != nil {
			t.Fatal(err)
		}
		if _, err := sys.Ioctl(fd, nvidia.Cmd(nvidia.EscFree, nvidia.SizeFree), b); err != nil {
			t.Fatal(err)
		}
		st, err := nvidia.GetStatus(b, nvidia.EscFree, nvidia.SizeFree)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	if st := call(own.FD); st != nvidia.StatusInvalidClient {
		t.Errorf("on my own file: %v", st)
	}
	if st := call(dup); st != nvidia.StatusOK {
		t.Errorf("on the tenant's file: %v", st)
	}
	// The tenant's UVM mapping still holds its memory.
	if got := s.Card.Stats().UsedBytes; got != 1<<30+s.Card.Config().ContextBytes {
		t.Errorf("used %d", got)
	}
	if err := errors.Join(unix.Close(dup), unix.Close(pidfd), own.Close(), port.Release()); err != nil {
		t.Fatal(err)
	}
}

func TestBlockedWaitHarmsNobody(t *testing.T) {
	s := serve(t, card.H200())
	var procs []*proc
	for range 3 {
		procs = append(procs, spawn(t, s, "wait"))
	}
	port, err := rm.NewDevice(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	x, err := rm.Start(port)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(x.Close(), port.Release()); err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "killed waiters are released", func() bool { return s.Card.Stats().Files == 0 })
}

// TestUnprivilegedNamespace runs the whole in a user and mount namespace, as a user without rights would.
func TestUnprivilegedNamespace(t *testing.T) {
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skipf("skipped: no unshare program: %v", err)
	}
	// With only itself in the namespace's map, root inside has no more rights outside than nobody.
	cmd := exec.Command(unshare, "-Urm", "--", os.Args[0])
	dir := t.TempDir()
	cmd.Env = append(os.Environ(), childEnv+"=serve", "EMU_DIR="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil && (strings.Contains(string(out), "unshare failed") || strings.Contains(string(out), fusedev.ErrUnavailable.Error())) {
		t.Skipf("skipped: no user namespace with FUSE here: %s", strings.TrimSpace(string(out)))
	}
	if err != nil || !strings.HasPrefix(string(out), "ready") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	dir := t.TempDir()
	err := fusedev.Serve(ctx, dir, card.Config{}, func(s *fusedev.Server) {
		if _, err := os.Stat(filepath.Join(s.Dir(), fusedev.MarkerFile)); err != nil {
			t.Error(err)
		}
		cancel()
	})
	if errors.Is(err, fusedev.ErrUnavailable) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("after the end: %v, %v", left, err)
	}
}

// TestCloseReleasesEverybody takes the card away under a process that waits on it.
func TestCloseReleasesEverybody(t *testing.T) {
	s, err := fusedev.Mount(t.TempDir(), card.Config{})
	if errors.Is(err, fusedev.ErrUnavailable) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := spawn(t, s, "wait")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case <-done: // its call failed, so it ended
	case <-time.After(5 * time.Second):
		t.Error("the child still waits on a card that is gone")
		_ = p.cmd.Process.Kill()
		<-done
	}
}

// BenchmarkControl is the cost of one driver call on the emulated card.
func BenchmarkControl(b *testing.B) {
	s, err := fusedev.Mount(b.TempDir(), card.Config{})
	if err != nil {
		b.Skipf("skipped: %v", err)
	}
	port, err := rm.NewDevice(s.Dir())
	if err != nil {
		b.Fatal(err)
	}
	x, err := rm.Start(port)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := x.Timeslice(x.Compute); err != nil {
			b.Fatal(err)
		}
	}
	if err := errors.Join(x.Close(), port.Release(), s.Close()); err != nil {
		b.Fatal(err)
	}
}

func TestMountErrors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), strconv.Itoa(os.Getpid()))
	if s, err := fusedev.Mount(missing, card.Config{}); err == nil {
		t.Errorf("mounted at a missing directory: %v", s.Close())
	}
}
