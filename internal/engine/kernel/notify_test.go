package kernel

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/governor"
	"github.com/penstock-gpu/penstock/internal/sys"
)

// childEnv makes the test binary play the supervised program.
const childEnv = "PENSTOCK_KERNEL_TEST_CHILD"

func TestMain(m *testing.M) {
	if n := os.Getenv(childEnv); n != "" {
		os.Exit(supervisedChild(n))
	}
	os.Exit(m.Run())
}

// supervisedChild puts itself under the filter, hands its listener over
// descriptor 3, and makes n calls that are trapped.
func supervisedChild(n string) int {
	runtime.LockOSThread()
	count, err := strconv.Atoi(n)
	if err != nil {
		return 2
	}
	prog, err := Filter()
	if err != nil {
		return 3
	}
	l, err := sys.InstallFilter(prog)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 4
	}
	if err := unix.Sendmsg(3, []byte{1}, unix.UnixRights(l), nil, 0); err != nil {
		return 5
	}
	unix.Close(l)
	var b [8]byte
	if _, err := unix.Read(3, b[:1]); err != nil {
		return 6
	}
	start := time.Now()
	if os.Getenv(proxiedEnv) != "" {
		makeProxied(count)
		fmt.Printf("%d\n", time.Since(start).Nanoseconds())
		return 0
	}
	for range count {
		// A size that no driver call has: let through on a file of another kind.
		_, _ = sys.IoctlPtr(3, nvidia.Cmd(nvidia.EscControl, 33), 0)
	}
	fmt.Printf("%d\n", time.Since(start).Nanoseconds())
	return 0
}

// proxiedEnv makes the child's calls well-formed controls on a file that the
// benchmark's locator takes for the control file.
const proxiedEnv = "PENSTOCK_KERNEL_TEST_PROXIED"

func makeProxied(count int) {
	fd, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		return
	}
	arena, err := sys.NewArena(4096)
	if err != nil {
		return
	}
	arg, _, _ := arena.Take(nvidia.SizeControl)
	_, at, _ := arena.Take(128)
	c := nvidia.Control{Client: 5, Object: 5, Cmd: 0x201, Params: at, ParamsSize: 128}
	for range count {
		if c.Put(arg) != nil {
			return
		}
		_, _ = sys.Ioctl(fd, nvidia.Cmd(nvidia.EscControl, nvidia.SizeControl), arg)
	}
}

// okDriver answers every call with success.
type okDriver struct{}

func (okDriver) Ioctl(File, uint32, []byte) (int, error) { return 0, nil }

// startChild runs the test binary as a tenant and returns its listener, what
// lets it go on, and the command.
func startChild(tb testing.TB, calls int) (*os.File, func(), *exec.Cmd) {
	tb.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+strconv.Itoa(calls))
	cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(pair[1]), "pair")}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	cmd.Stdout = nil
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	cmd.ExtraFiles[0].Close()
	_ = out
	buf, oob := make([]byte, 1), make([]byte, 64)
	_, n, _, _, err := unix.Recvmsg(pair[0], buf, oob, 0)
	if err != nil || n == 0 {
		tb.Skipf("seccomp listener not available here: %v", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		tb.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		tb.Fatal(err)
	}
	release := func() {
		_, _ = unix.Write(pair[0], []byte{1})
		unix.Close(pair[0])
	}
	return os.NewFile(uintptr(fds[0]), "listener"), release, cmd
}

// idleCard is a card without hardware behind it, for sessions whose calls
// never reach a driver.
func idleCard(tb testing.TB) *Card {
	tb.Helper()
	gov, err := governor.New(governor.Config{Policy: governor.Burst})
	if err != nil {
		tb.Fatal(err)
	}
	arena, err := sys.NewArena(64 << 10)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { arena.Close() })
	table, err := nvidia.Lookup("580.159.04")
	if err != nil {
		tb.Fatal(err)
	}
	control := &cardClient{driver: refusingDriver{}, arena: arena, table: table}
	return newCard(CardInfo{Name: "none"}, control, gov, quietLog(), 0)
}

// refusingDriver answers every call with ENODEV.
type refusingDriver struct{}

func (refusingDriver) Ioctl(File, uint32, []byte) (int, error) { return -1, unix.ENODEV }

// BenchmarkTrappedCall measures what a trapped call costs a program, from its
// system call to the answer, beside the same call untrapped.
func BenchmarkTrappedCall(b *testing.B) { benchmarkCall(b, &locator{}, refusingDriver{}) }

// BenchmarkProxiedCall is the same for a call that is copied, made for the
// program, and answered; the driver itself takes no time.
func BenchmarkProxiedCall(b *testing.B) {
	var st unix.Stat_t
	if err := unix.Stat("/dev/null", &st); err != nil {
		b.Fatal(err)
	}
	b.Setenv(proxiedEnv, "1")
	benchmarkCall(b, &locator{emulated: map[inode]File{{st.Dev, st.Ino}: {Kind: ControlFile}}}, okDriver{})
}

func benchmarkCall(b *testing.B, files *locator, driver Driver) {
	table, err := nvidia.Lookup("580.159.04")
	if err != nil {
		b.Fatal(err)
	}
	e := &Engine{opt: Options{Log: quietLog(), StateDir: b.TempDir()}, files: files, driver: driver, table: table}
	listener, release, cmd := startChild(b, b.N)
	s, err := e.Attach(listener, Grant{ID: "bench", Cards: []*Card{idleCard(b)}, Tenant: governor.Tenant{ID: "bench"}})
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()) }()
	b.ResetTimer()
	release()
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	start := time.Now()
	for range 10000 {
		_, _ = sys.IoctlPtr(0, nvidia.Cmd(nvidia.EscControl, 33), 0)
	}
	bare := float64(time.Since(start).Nanoseconds()) / 10000
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/bare, "times-bare")
}
