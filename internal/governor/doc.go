// Package governor decides who may run when on one card.
//
// It is pure: it takes no clock, logger or environment, starts nothing and
// touches no device. The caller tells it who is there (Put, AddGroup), asks for
// the time slices to set (Slices) and, when somebody's share is hard, calls
// Step at the times it asks for and executes the freezes and thaws it returns.
//
// Three mechanisms of the hardware are used (docs/governor.md):
//
//   - A slice. Every hardware time-slice group (TSG) has one. The runlist of an
//     engine goes round robin over the TSGs that have work and skips the idle
//     ones, so slices in the ratio of the weights are work-conserving weights.
//   - A slot. The cycle is cut into slots, one for each tenant with a hard share
//     and one for all sharing tenants together. Only the owner of the slot runs.
//   - Freezing. At the end of a slot the owner of the next one is thawed and the
//     owner of this one frozen. The lags of these calls are known (Config) or
//     reported (Done), what each tenant really got is accounted, and the
//     difference is repaid in its next slots.
//
// A Governor is not safe for concurrent use; the caller owns a lock. All times
// are durations since any fixed instant of a monotonic clock.
package governor
