package hostile

import (
	"runtime"
	"sync"
)

// onOwnThread runs fn on an operating-system thread that is not used again.
func onOwnThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- fn()
	}()
	return <-done
}

// together runs fn n times at once and returns when all have ended; each has calls of its own.
func (t *tenant) together(n int, fn func(i int, l *lib) error) error {
	var g sync.WaitGroup
	errs := make(chan error, n)
	for i := range n {
		l, err := t.again()
		if err != nil {
			return err
		}
		g.Go(func() { errs <- onOwnThread(func() error { return fn(i, l) }) })
	}
	g.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
