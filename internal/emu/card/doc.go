// Package card is a pure model of one NVIDIA GPU and its resource manager (RM) as seen through the driver's
// ioctl boundary: memory, clients and objects, channels on runlists with time slices, freezing, and the
// virtual memory device.
//
// A Card has no goroutine and no clock. Time is passed in as a time.Duration since the card's start; the same
// inputs at the same times give the same outputs, so tests are exact on a loaded machine. Structures are read
// from and written to the caller's memory when a call executes, as the real driver does, so a caller that
// changes them after somebody else has checked them gets what the real card would give.
//
// Figures marked [H] were measured on one H200 (driver 580.159.04); layouts come from the public headers of
// the open kernel modules.
package card
