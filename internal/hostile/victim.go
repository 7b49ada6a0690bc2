package hostile

import (
	"os"
	"time"
)

// probeBytes is what a probing victim allocates and frees all the time.
const probeBytes = 2 * mib

const (
	victimKernel = 400 * time.Microsecond
	victimBatch  = 5
	victimAsks   = 5 * time.Millisecond
)

// victim holds memory and keeps the card busy; now and then it makes a call.
func (t *tenant) victim() error {
	x, err := t.context()
	if err != nil {
		return err
	}
	h := Handles{
		Client: x.Handle, Device: x.Device, Subdevice: x.Subdevice, Group: x.Compute, Channels: append(x.Channels, x.CopyChannels...),
		PID: os.Getpid(),
	}
	if h.Memory, _, err = x.Memory(x.Device, t.Hints.Memory); err != nil {
		return err
	}
	if err := t.ask(message{Ready: &h}); err != nil {
		return err
	}
	const depth = 8
	var submitted int64
	asked := time.Now()
	for {
		p, err := x.Progress(x.Channels[0])
		if err != nil {
			return err
		}
		for p.Completed+depth*victimBatch > submitted {
			if submitted, err = x.Submit(x.Channels[0], victimKernel, victimBatch); err != nil {
				return err
			}
		}
		if time.Since(asked) > victimAsks {
			asked = time.Now()
			if err := t.probe(x); err != nil {
				return err
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
}
