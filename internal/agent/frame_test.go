package agent

import (
	"encoding/binary"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func connPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conns := make([]*net.UnixConn, 2)
	for i, fd := range fds {
		if conns[i], err = fileConn(os.NewFile(uintptr(fd), "pair")); err != nil {
			t.Fatal(err)
		}
		c := conns[i]
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		t.Cleanup(func() { _ = c.Close() })
	}
	return conns[0], conns[1]
}

func TestFramesCarryFiles(t *testing.T) {
	a, b := connPair(t)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	big := strings.Repeat("x", 40<<10)
	for _, want := range []int{0, 1, 4, 0} {
		fds := make([]int, want)
		for i := range fds {
			fds[i] = int(null.Fd())
		}
		go func() {
			if err := writeFrame(a, pairMessage{Op: opPark, Name: big}, fds...); err != nil {
				t.Error(err)
			}
		}()
		var m pairMessage
		got, err := readFrame(b, &m)
		if err != nil || len(got) != want || m.Name != big {
			t.Fatalf("%d files came as %d, %v", want, len(got), err)
		}
		for _, fd := range got {
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Error("a passed file would leak into started programs")
			}
		}
		closeAll(got)
	}
}

func TestHostileFrames(t *testing.T) {
	openFiles := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	head := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	many := make([]int, 40)
	for name, c := range map[string]struct {
		data []byte
		fds  []int
	}{
		"too long":      {head(maxMessage + 1), nil},
		"huge":          {head(1<<32 - 1), nil},
		"no JSON":       {append(head(3), "abc"...), []int{0}},
		"unknown field": {append(head(9), `{"zap":1}`...), []int{0, 1}},
		"cut":           {append(head(100), "{"...), []int{0}},
		"half a head":   {[]byte{0}, nil},
		"nothing":       {nil, nil},
		"many files":    {append(head(2), "{}"...), many},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := connPair(t)
			before := openFiles()
			if len(c.data) > 0 {
				var rights []byte
				if len(c.fds) > 0 {
					rights = unix.UnixRights(c.fds...)
				}
				if _, _, err := a.WriteMsgUnix(c.data, rights, nil); err != nil {
					t.Fatal(err)
				}
			}
			_ = a.CloseWrite()
			var m pairMessage
			if fds, err := readFrame(b, &m); err == nil {
				t.Errorf("accepted %+v with %d files", m, len(fds))
			}
			if after := openFiles(); after != before {
				t.Errorf("%d files are open, were %d", after, before)
			}
		})
	}
}
