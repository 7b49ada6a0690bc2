package kernel

import (
	"fmt"
	"runtime"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// Offsets in struct seccomp_data (linux/seccomp.h), little endian: the low
// word of an argument comes first.
const (
	dataNR    = 0
	dataArch  = 4
	dataArg0  = 16
	argStride = 8
	highWord  = 4
)

// Return values of a seccomp program.
const (
	retAllow  = 0x7fff0000
	retNotify = 0x7fc00000
	retErrno  = 0x00050000
)

const x32Bit = 0x40000000

// auditArch returns the AUDIT_ARCH_ word of this build's native calls.
func auditArch() (uint32, error) {
	switch runtime.GOARCH {
	case "amd64":
		return unix.AUDIT_ARCH_X86_64, nil
	case "arm64":
		return unix.AUDIT_ARCH_AARCH64, nil
	}
	return 0, fmt.Errorf("no call filter for %s: amd64 and arm64 are supported", runtime.GOARCH)
}

// label names a jump target inside a program under construction.
type label int

const (
	next label = iota
	toAllow
	toNotify
	toRefuse
	toIoctl
	toMmap
)

// step is one instruction with symbolic jumps.
type step struct {
	ins  bpf.Instruction
	cond bpf.JumpTest
	val  uint32
	yes  label
	jump bool
}

func load(off uint32) step { return step{ins: bpf.LoadAbsolute{Off: off, Size: 4}} }
func when(cond bpf.JumpTest, val uint32, yes label) step {
	return step{cond: cond, val: val, yes: yes, jump: true}
}
func mask(v uint32) step { return step{ins: bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: v}} }

// Filter returns the program that sends a tenant's driver calls to the
// supervisor and lets every other call pass at full speed.
//
// Trapped are: ioctls whose low byte is one of the driver's numbers (the
// driver ignores the type byte) and whose size is not zero; unified-memory
// commands, which are bare integers below 256, and its two INITIALIZE
// numbers, but for those that only shape the caller's own address space and
// neither take nor give memory (some of them come with every allocation); and shared file mappings at a non-zero offset, which is what a
// managed range is. Foreign instruction sets (i386, x32) are refused with
// ENOSYS, since the driver's compat entry would bypass the numbers above.
func Filter() ([]unix.SockFilter, error) {
	arch, err := auditArch()
	if err != nil {
		return nil, err
	}
	head := []step{
		load(dataArch), when(bpf.JumpNotEqual, arch, toRefuse),
		load(dataNR), when(bpf.JumpGreaterOrEqual, x32Bit, toRefuse),
		when(bpf.JumpEqual, unix.SYS_IOCTL, toIoctl),
		when(bpf.JumpEqual, unix.SYS_MMAP, toMmap),
	}
	return assemble(head, ioctlSteps(), mmapSteps())
}

func ioctlSteps() []step {
	const cmd = dataArg0 + 1*argStride
	s := []step{
		load(cmd),
		when(bpf.JumpEqual, nvidia.UVMCmdCreateExternalRange, toAllow),
		when(bpf.JumpEqual, nvidia.UVMCmdValidateVARange, toAllow),
		when(bpf.JumpEqual, nvidia.UVMCmdCreateRangeGroup, toAllow),
		when(bpf.JumpEqual, nvidia.UVMCmdDestroyRangeGroup, toAllow),
		when(bpf.JumpEqual, nvidia.UVMCmdSetRangeGroup, toAllow),
		when(bpf.JumpLessThan, 256, toNotify),
		when(bpf.JumpEqual, nvidia.UVMCmdInitialize, toNotify),
		when(bpf.JumpEqual, nvidia.UVMCmdDeinitialize, toNotify),
		mask(nvidia.MaxIoctlSize << 16),
		when(bpf.JumpEqual, 0, toAllow),
		load(cmd), mask(0xff),
	}
	for _, nr := range escapes {
		s = append(s, when(bpf.JumpEqual, uint32(nr), toNotify))
	}
	return s
}

func mmapSteps() []step {
	const (
		flags  = dataArg0 + 3*argStride
		offset = dataArg0 + 5*argStride
	)
	return []step{
		load(flags), when(bpf.JumpBitsSet, unix.MAP_ANONYMOUS, toAllow),
		when(bpf.JumpBitsNotSet, unix.MAP_SHARED, toAllow),
		load(offset), when(bpf.JumpNotEqual, 0, toNotify),
		load(offset + highWord), when(bpf.JumpNotEqual, 0, toNotify),
		// Offset 0 belongs to address 0, which takes MAP_FIXED and a privilege.
		load(flags), when(bpf.JumpBitsNotSet, unix.MAP_FIXED|unix.MAP_FIXED_NOREPLACE, toAllow),
		load(dataArg0), when(bpf.JumpNotEqual, 0, toAllow),
		load(dataArg0 + highWord), when(bpf.JumpEqual, 0, toNotify),
	}
}

// escapes are the low bytes that reach the resource manager.
var escapes = [...]uint8{
	nvidia.EscAllocMemory, nvidia.EscAllocObject, nvidia.EscFree, nvidia.EscControl, nvidia.EscAlloc,
	nvidia.EscDup, nvidia.EscShare, nvidia.EscI2CAccess, nvidia.EscIdleChannels, nvidia.EscVidHeap,
	nvidia.EscAccessRegistry, nvidia.EscMapMemory, nvidia.EscUnmapMemory, nvidia.EscGetEventData,
	nvidia.EscAllocContextDma2, nvidia.EscAddVblankCallback, nvidia.EscMapMemoryDma, nvidia.EscUnmapMemoryDma,
	nvidia.EscBindContextDma, nvidia.EscExportObjectToFD, nvidia.EscImportObjectFromFD,
	nvidia.EscUpdateDeviceMapping, nvidia.EscLocklessDiagnostic,
	nvidia.EscCardInfo, nvidia.EscRegisterFD, nvidia.EscAllocOSEvent, nvidia.EscFreeOSEvent,
	nvidia.EscStatusCode, nvidia.EscCheckVersion, nvidia.EscXfer, nvidia.EscAttachGPUs,
	nvidia.EscQueryDeviceIntr, nvidia.EscSysParams, nvidia.EscNumaInfo, nvidia.EscSetNumaStatus,
	nvidia.EscExportDmabuf, nvidia.EscWaitOpenComplete,
}

// assemble lays out head, ioctl part, mmap part and the three returns, and
// turns symbolic jumps into distances.
func assemble(head, ioctl, mmap []step) ([]unix.SockFilter, error) {
	var prog []step
	at := map[label]int{}
	add := func(l label, part []step) {
		at[l] = len(prog)
		prog = append(prog, part...)
		prog = append(prog, step{ins: bpf.RetConstant{Val: retAllow}})
	}
	add(next, head)
	add(toIoctl, ioctl)
	add(toMmap, mmap)
	at[toAllow] = len(prog) - 1
	at[toNotify] = len(prog)
	prog = append(prog, step{ins: bpf.RetConstant{Val: retNotify}})
	at[toRefuse] = len(prog)
	prog = append(prog, step{ins: bpf.RetConstant{Val: retErrno | uint32(unix.ENOSYS)}})

	ins := make([]bpf.Instruction, len(prog))
	for i, s := range prog {
		ins[i] = s.ins
		if s.jump {
			ins[i] = bpf.JumpIf{Cond: s.cond, Val: s.val, SkipTrue: uint8(at[s.yes] - i - 1)}
		}
	}
	raw, err := bpf.Assemble(ins)
	if err != nil {
		return nil, fmt.Errorf("assemble the call filter: %w", err)
	}
	out := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		out[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return out, nil
}
