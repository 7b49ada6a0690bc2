package sim

import "time"

import "github.com/penstock-gpu/penstock/internal/alloc"

// Online stub.
type Online struct {
	*alloc.Placer
	spent time.Duration
}
