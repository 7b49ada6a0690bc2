// Package nvidia is the NVIDIA driver's call boundary as data: ioctl numbers, the layouts of the structs that
// cross it, and one row per call that says how a supervisor may treat it.
//
// The package has no behaviour. It performs no I/O and no system call, keeps no state and never panics on
// input: a decoder is given bytes that a tenant wrote and returns an error when they are too few.
//
// Facts come from the public headers of the open kernel modules (nvos.h, nv-ioctl.h, nv_escape.h,
// uvm_ioctl.h, the ctrl/ and class/ headers); a comment names the struct a layout was read from. All offsets
// are those of x86-64 and arm64, which agree; the package refuses to know any other ABI.
package nvidia
