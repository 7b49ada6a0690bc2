package hostile

// int80 makes a call through the 32-bit entry of the kernel. Addresses must lie below 4 GiB.
//
//go:noescape
func int80(nr, a, b, c uintptr) (ret uintptr)

// cloneScript makes a process (clone(2) with these flags) that runs n system calls, each a number and six
// arguments, puts the results in the eighth word, and exits. It needs neither Go's runtime nor a stack, so that it
// may share this process's memory.
func cloneScript(flags, stack uintptr, script *[8]uintptr, n uintptr) (ret uintptr)

const haveRaw = true
