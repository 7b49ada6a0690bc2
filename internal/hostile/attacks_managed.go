package hostile

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/emu/rm"
)

// managedAttacks have managed memory that is not charged. Its pages lie wherever the driver likes, so what counts
// is what the kernel lists as mapped.
func managedAttacks() []attack {
	return []attack{
		{name: "managed/over-quota", run: managed(overQuota)},
		{name: "managed/every-flag", run: managed(everyFlag)},
		{name: "managed/predicted-address", run: managed(predicted)},
		{name: "managed/unmap-first-page", run: managed(unmapFirst)},
		{name: "managed/unmap-middle", run: managed(unmapMiddle)},
		{name: "managed/map-over-its-start", run: managed(mapOver)},
		{name: "managed/map-something-else-over", run: managed(mapElse)},
		{name: "managed/freed-by-anothers-length", run: managed(freedByLength)},
		{name: "managed/free-command-only", run: managed(freeCommand)},
		{name: "managed/move-with-mremap", run: managed(moved)},
		{name: "managed/closed-file", run: managed(closedFile)},
		{name: "managed/leader-exits", run: managed(leaderExitsManaged)},
		{name: "managed/address-zero", run: managed(addressZero)},
		{name: "managed/protect-and-split", run: managed(split)},
		{name: "managed/many-threads", run: managed(managedThreads)},
		{name: "managed/descriptor-of-a-thread", run: managed(managedUnshared)},
		{name: "managed/huge-lengths", run: managed(hugeLengths)},
	}
}

const managedBase = 0x6e00_0000_0000

// managed prepares a unified-memory file and looks at the end.
func managed(fn func(t *tenant, c *client, u *rm.UVM) error) func(*tenant) error {
	return func(t *tenant) error {
		c, err := t.client()
		if err != nil {
			return err
		}
		u, err := c.unified()
		if err != nil {
			return err
		}
		if err := fn(t, c, u); err != nil {
			return err
		}
		if err := t.hold("with managed memory"); err != nil {
			return err
		}
		if err := t.settle(c, u); err != nil {
			return err
		}
		return t.hold("with managed memory, a little later")
	}
}

// settle makes calls that let the supervisor look again at what it promised to, and gives it time.
func (t *tenant) settle(c *client, u *rm.UVM) error {
	for i := range uint64(3) {
		at := managedBase + 1<<40 + i<<21
		_ = managedAt(u.FD, at, 64<<10)
		_ = munmap(at, 64<<10)
		time.Sleep(20 * time.Millisecond)
		_ = t.control(c.fd, c.root, c.subdevice, 0x20801303, make([]byte, 1028))
	}
	return nil
}

func overQuota(t *tenant, _ *client, u *rm.UVM) error {
	for i := range uint64(6) {
		at := managedBase + i*uvmStep
		if t.try(managedAt(u.FD, at, 300*mib)) == nil {
			if err := t.touch(u.FD, at, 300*mib); err != nil {
				return err
			}
		}
	}
	return nil
}

// everyFlag tries every combination of flags that shares the file.
func everyFlag(t *tenant, _ *client, u *rm.UVM) error {
	i := uint64(0)
	for _, share := range []int{unix.MAP_SHARED, unix.MAP_SHARED_VALIDATE, unix.MAP_PRIVATE} {
		for _, fixed := range []int{unix.MAP_FIXED, unix.MAP_FIXED_NOREPLACE, 0} {
			for _, more := range []int{0, unix.MAP_NORESERVE, unix.MAP_POPULATE | unix.MAP_NONBLOCK, unix.MAP_LOCKED, unix.MAP_HUGETLB, unix.MAP_GROWSDOWN, unix.MAP_STACK, unix.MAP_SYNC, 1 << 30} {
				at := managedBase + i*uvmStep
				i++
				_, err := mmap(at, 200*mib, share|fixed|more, u.FD, at)
				_ = t.try(err)
			}
		}
	}
	return nil
}

// predicted lets the kernel choose an address that it is known to choose.
func predicted(t *tenant, _ *client, u *rm.UVM) error {
	for range 12 {
		at, err := mmap(0, 200*mib, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, -1, 0)
		if err != nil {
			return err
		}
		if err := munmap(at, 200*mib); err != nil {
			return err
		}
		_, err = mmap(0, 200*mib, unix.MAP_SHARED, u.FD, at)
		_ = t.try(err)
	}
	return nil
}

// repeatedly maps pieces and plays a trick on each, so that what is forgotten adds up.
func (t *tenant) repeatedly(u *rm.UVM, length uint64, trick func(at uint64) error) error {
	for i := range uint64(6) {
		at := managedBase + i*uvmStep
		if t.try(managedAt(u.FD, at, length)) != nil {
			break
		}
		if err := trick(at); err != nil {
			return err
		}
		// A small one, which makes the supervisor look at the address space.
		small := managedBase + 1<<41 + i<<21
		_ = managedAt(u.FD, small, 64<<10)
		time.Sleep(10 * time.Millisecond)
		_ = munmap(small, 64<<10)
	}
	return nil
}

func unmapFirst(t *tenant, _ *client, u *rm.UVM) error {
	return t.repeatedly(u, 400*mib, func(at uint64) error { return munmap(at, 64<<10) })
}

func unmapMiddle(t *tenant, _ *client, u *rm.UVM) error {
	return t.repeatedly(u, 400*mib, func(at uint64) error { return munmap(at+200*mib, 64<<10) })
}

func mapOver(t *tenant, _ *client, u *rm.UVM) error {
	return t.repeatedly(u, 400*mib, func(at uint64) error { return managedAt(u.FD, at, 64<<10) })
}

func mapElse(t *tenant, _ *client, u *rm.UVM) error {
	return t.repeatedly(u, 400*mib, func(at uint64) error {
		_, err := mmap(at, 64<<10, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED, -1, 0)
		return err
	})
}

// freedByLength frees a small external range with a length that covers the managed ones.
func freedByLength(t *tenant, _ *client, u *rm.UVM) error {
	return t.repeatedly(u, 400*mib, func(at uint64) error {
		if err := t.touch(u.FD, at, 400*mib); err != nil {
			return err
		}
		front := at - 1<<21
		if err := u.CreateRange(front, 64<<10); err != nil {
			return err
		}
		_ = t.try(t.uvmFree(u.FD, front, 1<<46))
		return nil
	})
}

// freeCommand frees with the command and keeps the mapping, then uses it again.
func freeCommand(t *tenant, _ *client, u *rm.UVM) error {
	return t.repeatedly(u, 400*mib, func(at uint64) error {
		_ = t.try(u.Free(at))
		_ = t.try(u.Free(at + 4096))
		return munmap(at, 400*mib)
	})
}

// moved moves ranges away and maps at their old places again. (To map elsewhere and move a range to where its offset
// is its address is not possible: the driver refuses such a mapping to begin with, and lets none grow.)
func moved(t *tenant, _ *client, u *rm.UVM) error {
	return t.repeatedly(u, 200*mib, func(at uint64) error {
		const mayMove, fixed = 1, 2
		_, _, e := unix.Syscall6(unix.SYS_MREMAP, uintptr(at), 200*mib, 200*mib, mayMove|fixed, uintptr(at+1<<31), 0)
		if e != 0 {
			return t.try(e)
		}
		_ = t.try(managedAt(u.FD, at, 200*mib))
		return nil
	})
}

// closedFile closes the file under its mappings.
func closedFile(t *tenant, c *client, u *rm.UVM) error {
	for i := range uint64(3) {
		_ = t.try(managedAt(u.FD, managedBase+i*uvmStep, 300*mib))
	}
	closeAll(u.FD)
	time.Sleep(sweepWait)
	c.fill(handleFirst)
	var err error
	if *u, err = reopened(c); err != nil {
		return err
	}
	return nil
}

func reopened(c *client) (rm.UVM, error) {
	u, err := c.unified()
	if err != nil {
		return rm.UVM{}, err
	}
	return *u, nil
}

// sweepWait is longer than the supervisor takes to notice that a file was closed.
const sweepWait = 1300 * time.Millisecond

// addressZero maps at address 0, whose offset is 0 too.
func addressZero(t *tenant, _ *client, u *rm.UVM) error {
	for _, n := range []uint64{4096, 64 << 10, 2 * mib} {
		_ = t.try(managedAt(u.FD, 0, n))
	}
	return nil
}

// split changes the protection of parts, so that the kernel lists them apart, then unmaps the first.
func split(t *tenant, _ *client, u *rm.UVM) error {
	return t.repeatedly(u, 400*mib, func(at uint64) error {
		_, _, e := unix.Syscall(unix.SYS_MPROTECT, uintptr(at+64<<10), 64<<10, unix.PROT_READ)
		if e != 0 {
			return e
		}
		return munmap(at, 64<<10)
	})
}

// managedThreads maps from many threads at once: what one look at the address space does not show yet may follow.
func managedThreads(t *tenant, _ *client, u *rm.UVM) error {
	const pieces, length = 12, 8 * mib
	err := t.together(6, func(i int, _ *lib) error {
		for k := range uint64(pieces) {
			_ = managedAt(u.FD, managedBase+uint64(i)*64*gib+k*gib, length)
		}
		return nil
	})
	t.tries += 6 * pieces
	return err
}

// managedUnshared maps from a thread whose descriptors are its own: the same number is another file elsewhere.
func managedUnshared(t *tenant, _ *client, u *rm.UVM) error {
	null, err := unix.Open("/dev/zero", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	return onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_FILES); err != nil {
			return err
		}
		if err := unix.Dup2(u.FD, null); err != nil {
			return err
		}
		for i := range uint64(6) {
			_ = t.try(managedAt(null, managedBase+i*uvmStep, 300*mib))
		}
		return nil
	})
}

func hugeLengths(t *tenant, _ *client, u *rm.UVM) error {
	for i, n := range []uint64{1 << 46, 1 << 40, gib + 4096, ^uint64(0), ^uint64(0) - 4095, 1 << 63, 0} {
		if t.try(managedAt(u.FD, managedBase+uint64(i)<<30, n)) == nil {
			t.note("%d bytes mapped", n)
		}
	}
	return nil
}
