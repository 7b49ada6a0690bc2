//go:build !amd64

package hostile

import "fmt"

func traced(*tenant) error { return fmt.Errorf("no tracer for this machine: %w", errSkip) }
