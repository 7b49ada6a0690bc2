// Package agent decides who gets a share of which card, and keeps what it
// decided true for as long as the tenant lives.
//
// It has two processes. The worker does the work: it serves the socket,
// admits tenants, runs the engine and the governor. The holder is tiny and
// only keeps duplicates of the files that must outlive a crash of the worker:
// the seccomp listener of every tenant and the listening socket. Each restarts
// the other, so that killing either harms nobody (docs/adr/0002).
//
//	Config           what an agent needs to know; defaults < flags
//	Request, Ledger  admission: pure, remembers what was promised per card
//	Worker           cards, tenants, reconciler; HTTP over a unix socket, in which
//	                 attach carries the listener
//	Keeper, Hold     the two ends of the pair of processes
//	Client           what the command line uses
package agent
