package hostile

import (
	"os"
	"time"
)

// probeBytes is what a probing victim allocates and frees all the time.
const probeBytes = 2 * mib

const (
	victimKernel = 400 * time.Microsecond
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
	// All of its work is queued at once, so that only the card and its governor decide how fast it gets on.
	if _, err := x.Submit(x.Channels[0], victimKernel, plenty); err != nil {
		return err
	}
	for {
		if err := t.probe(x); err != nil {
			return err
		}
		time.Sleep(victimAsks)
	}
}
