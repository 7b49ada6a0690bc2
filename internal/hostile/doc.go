// Package hostile is a tenant that attacks, and what decides whether it got anywhere.
//
// Each attack runs as a process of its own under supervision, beside a victim that works and holds memory, on an
// emulated card of its own. That a call was refused proves nothing: what counts is the effect, and it is measured
// from outside, by asking the card itself (memory in use, engine time by process, frozen channels), the kernel
// (mapped ranges) and the victim's finished work. An attack has succeeded when
//
//   - the card held more for the tenant, at any sampled moment, than its quota;
//   - the card holds memory for the tenant that the ledger does not charge;
//   - managed memory is mapped that the ledger does not charge;
//   - the tenant got more engine time than its share, or the victim got less than its own;
//   - the victim's calls stopped being answered, or it lost or shared what is its own;
//   - the card is not as before once the tenant is gone.
package hostile
