// Package sys is the project's only home of unsafe and raw system calls:
// seccomp user notification, pidfd, access to another process's memory, ioctl
// with arguments that hold pointers, and per-thread capabilities.
//
// Nothing here knows about GPUs. Linux on amd64 and arm64.
package sys
