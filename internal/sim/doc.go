// Package sim runs the decision core on traces under a virtual clock: the published inflation experiment, training
// of value tables, replay with departures, tidal days, gangs on a fabric, and decision-rate runs. It decides nothing
// itself: every placement is package alloc's. Everything is deterministic given its seed; wall time appears only in
// the figures that measure it.
package sim
