package card

import "time"

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
)

// Config says what the emulated card is. The zero Config stands for H200().
type Config struct {
	// Name, Version and UUID are what the card answers about itself.
	Name    string
	Version string
	UUID    string

	// TotalBytes is the framebuffer; ReservedBytes of it are never given out.
	TotalBytes    int64
	ReservedBytes int64
	// ContextBytes is what the card itself takes for each graphics/compute channel group.
	ContextBytes int64
	// SmallPage rounds allocations below LargePage; LargePage rounds the rest.
	SmallPage int64
	LargePage int64

	// GraphicsSlice and OtherSlice are the time slices a new channel group gets.
	GraphicsSlice time.Duration
	OtherSlice    time.Duration
	// SwitchCost passes whenever an engine changes from one channel group to another, SliceLoss of the new
	// group's slice does no work either, and LoadCost passes before an engine that a freeze has emptied works.
	// YieldCost is the whole price when the group before has run dry, so that nothing has to be saved.
	SwitchCost time.Duration
	SliceLoss  time.Duration
	YieldCost  time.Duration
	LoadCost   time.Duration
	// A FIFO_DISABLE_CHANNELS call returns after its Cost and bites after its Lag. Enabling channels that have
	// work takes EnableContested longer while somebody else runs.
	DisableCost, DisableLag time.Duration
	EnableCost, EnableLag   time.Duration
	EnableContested         time.Duration
	// SliceCost is how long SET_TIMESLICE and PREEMPT take; they bite when they return.
	SliceCost time.Duration

	// Engine counts. Each engine is a runlist of its own.
	Copies, Decoders, Encoders, JPEGs, OpticalFlows int

	// ControlStatus overrides the verdict of a control number (0 answers OK), known or not.
	ControlStatus map[uint32]uint32
}

// H200 is the card the boundary was measured on.
func H200() Config {
	return Config{
		Name:          "Emulated H200",
		Version:       "580.159.04",
		UUID:          "GPU-e31a0000-0000-4000-8000-000000000200",
		TotalBytes:    143771 * mib,
		ReservedBytes: 16 * mib,
		// [H] What no call of a CUDA process explains; the 520 MiB beside it are its own allocations.
		ContextBytes: 8 * mib,
		SmallPage:    64 * kib,
		LargePage:    2 * mib,
		// [H] GET_TIMESLICE of CUDA's groups.
		GraphicsSlice: 2048 * time.Microsecond,
		OtherSlice:    1024 * time.Microsecond,
		// [H] With these, slices of 1.5/0.5 ms give 3.14 : 1 and 82 % of solo, 12/4 ms 3.02 : 1 and 97.4 %
		// (measured 3.14, 82 %, 3.03 and 97.7 %).
		SwitchCost: 180 * time.Microsecond,
		SliceLoss:  33 * time.Microsecond,
		YieldCost:  20 * time.Microsecond,
		LoadCost:   100 * time.Microsecond,
		// [H] internal/governor/testdata/lags.c, for tenants of one CUDA context with 20 channels.
		DisableCost:     640 * time.Microsecond,
		DisableLag:      435 * time.Microsecond,
		EnableCost:      375 * time.Microsecond,
		EnableLag:       215 * time.Microsecond,
		EnableContested: 105 * time.Microsecond,
		// [H] 250–470 µs.
		SliceCost:    350 * time.Microsecond,
		Copies:       10,
		Decoders:     7,
		JPEGs:        7,
		OpticalFlows: 1,
	}
}

// engines lists the engine types the card has, in the order of its runlists.
func (c Config) engines() []uint32 {
	out := []uint32{engGR0}
	add := func(n int, ids ...uint32) {
		out = append(out, ids[:max(0, min(n, len(ids)))]...)
	}
	add(c.Copies, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12)
	add(c.Decoders, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a)
	add(c.Encoders, 0x1b, 0x1c, 0x1d, 0x3f)
	add(c.JPEGs, 0x2b, 0x2c, 0x2d, 0x2e, 0x2f, 0x30, 0x31, 0x32)
	add(c.OpticalFlows, 0x33, 0x3e)
	return out
}
