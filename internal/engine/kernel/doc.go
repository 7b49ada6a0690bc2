// Package kernel is the kernel-mode engine: it answers a tenant's GPU driver
// calls from outside, at the system-call boundary.
//
// A trapped call becomes one of three verdicts. CONTINUE lets it run in the
// tenant; since the kernel then reads the arguments again, only calls that
// are harmless whatever they turn into may do so. PROXY makes the call for
// the tenant, from a bounded copy, on the tenant's own open file (taken with
// pidfd_getfd for this one call). DENY writes a status word and forwards
// nothing.
//
// The ledger mirrors the driver's object graph as far as device memory and
// scheduling groups are concerned, so that a tenant is charged exactly for
// what its objects keep alive.
//
// Lock order: Card.memory, Card.mu, Session.mu. A session's calls are served by one
// OS thread of its own, in the order they arrive.
package kernel
