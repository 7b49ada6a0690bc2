package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/sys"
)

// caller is the thread whose call is being judged: its memory and its open
// files. Both are hostile and may change between any two reads.
type caller interface {
	process() int  // thread group
	threadID() int // the thread itself
	read(addr uint64, b []byte) error
	// waiting reports that the thread still waits for its answer; it is asked
	// before anything is written, so that a thread id that was reused after a
	// kill is never written to.
	waiting() bool
	write(addr uint64, b []byte) error
	open(fd int) (File, error) // a duplicate for this call; give it to close
	close(File)
}

// errStale says that the thread behind a notification went away, so that
// nothing may be written anywhere in its name.
var errStale = errors.New("the calling thread is gone")

// thread is a live tenant thread, as cached between its calls.
type thread struct {
	tid    int
	tgid   int
	pidfd  int // of the thread where the kernel offers it (6.9), else of its process
	single bool
}

// threads caches pidfds by thread id. An entry is used only while its pidfd
// says that the thread is alive: since the id cannot be reused before that,
// a notification from this id is from this thread.
type threads struct {
	byID map[int]*thread
}

// maxThreads bounds the cache, and with it the descriptors held.
const maxThreads = 512

func (t *threads) get(tid int) (*thread, error) {
	if th := t.byID[tid]; th != nil {
		if th.single && sys.Alive(th.pidfd) {
			return th, nil
		}
		t.drop(th)
	}
	th := &thread{tid: tid, single: true}
	var err error
	if th.pidfd, err = sys.OpenThread(tid); errors.Is(err, unix.EINVAL) {
		th.single = false
	} else if err != nil {
		return nil, err
	}
	if th.tgid, err = sys.ThreadGroup(tid); err == nil && !th.single {
		th.pidfd, err = sys.OpenProcess(th.tgid)
	}
	if err != nil {
		if th.single {
			unix.Close(th.pidfd)
		}
		return nil, err
	}
	if len(t.byID) >= maxThreads {
		t.closeAll()
	}
	t.byID[tid] = th
	return th, nil
}

func (t *threads) drop(th *thread) {
	unix.Close(th.pidfd)
	delete(t.byID, th.tid)
}

func (t *threads) closeAll() {
	for _, th := range t.byID {
		t.drop(th)
	}
}

// trapped is the caller behind one seccomp notification.
type trapped struct {
	*thread
	listener int
	id       uint64
	files    *locator
}

func (c *trapped) process() int  { return c.tgid }
func (c *trapped) threadID() int { return c.tid }

func (c *trapped) read(addr uint64, b []byte) error { return sys.ReadMemory(c.tid, addr, b) }

func (c *trapped) waiting() bool { return sys.Valid(c.listener, c.id) }

func (c *trapped) write(addr uint64, b []byte) error { return sys.WriteMemory(c.tid, addr, b) }

func (c *trapped) open(fd int) (File, error) {
	d, err := sys.GetFile(c.pidfd, fd)
	if err != nil {
		return File{}, err
	}
	f, err := c.files.identify(d)
	if err != nil {
		unix.Close(d)
		return File{}, fmt.Errorf("descriptor %d: %w", fd, err)
	}
	return f, nil
}

func (c *trapped) close(f File) { unix.Close(f.FD) }
