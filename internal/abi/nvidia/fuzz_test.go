package nvidia

import (
	"bytes"
	"reflect"
	"testing"
)

// fuzz runs one decoder on any bytes: it must not panic, must not write out of bounds, and what it re-encodes
// must decode to the same value.
func fuzz(f *testing.F, name string) {
	for _, c := range codecs() {
		if c.name != name {
			continue
		}
		for _, size := range c.sizes {
			f.Add(make([]byte, size))
			f.Add(bytes.Repeat([]byte{0xff}, size))
			f.Add(pattern(make([]byte, size)))
			f.Add(pattern(make([]byte, size-1)))
			f.Add(pattern(make([]byte, size+9)))
		}
		f.Add([]byte(nil))
		f.Fuzz(func(t *testing.T, b []byte) {
			b = bytes.Clone(b)
			v, err := c.reencode(b)
			if err != nil {
				return
			}
			again, err := c.reencode(b)
			if err != nil || !reflect.DeepEqual(v, again) {
				t.Fatalf("%s: %+v became %+v, %v", name, v, again, err)
			}
		})
		return
	}
	f.Fatalf("no codec %s", name)
}

func FuzzAlloc(f *testing.F)               { fuzz(f, "Alloc") }
func FuzzFree(f *testing.F)                { fuzz(f, "Free") }
func FuzzControl(f *testing.F)             { fuzz(f, "Control") }
func FuzzDup(f *testing.F)                 { fuzz(f, "Dup") }
func FuzzAllocMemory(f *testing.F)         { fuzz(f, "AllocMemory") }
func FuzzMapMemory(f *testing.F)           { fuzz(f, "MapMemory") }
func FuzzVidHeap(f *testing.F)             { fuzz(f, "VidHeap") }
func FuzzXfer(f *testing.F)                { fuzz(f, "Xfer") }
func FuzzRegisterFD(f *testing.F)          { fuzz(f, "RegisterFD") }
func FuzzOSEvent(f *testing.F)             { fuzz(f, "OSEvent") }
func FuzzMemoryParams(f *testing.F)        { fuzz(f, "MemoryParams") }
func FuzzGroupParams(f *testing.F)         { fuzz(f, "GroupParams") }
func FuzzChannelParams(f *testing.F)       { fuzz(f, "ChannelParams") }
func FuzzFBInfoV1(f *testing.F)            { fuzz(f, "FBInfoV1") }
func FuzzFBInfoV2(f *testing.F)            { fuzz(f, "FBInfoV2") }
func FuzzFifoDisableChannels(f *testing.F) { fuzz(f, "FifoDisableChannels") }
func FuzzTimeslice(f *testing.F)           { fuzz(f, "Timeslice") }
func FuzzPreempt(f *testing.F)             { fuzz(f, "Preempt") }
func FuzzGetPids(f *testing.F)             { fuzz(f, "GetPids") }
func FuzzPidInfos(f *testing.F)            { fuzz(f, "PidInfos") }
func FuzzUVMMapExternal(f *testing.F)      { fuzz(f, "UVMMapExternal") }
func FuzzUVMUnmapExternal(f *testing.F)    { fuzz(f, "UVMUnmapExternal") }
func FuzzUVMFree(f *testing.F)             { fuzz(f, "UVMFree") }
func FuzzUVMRange(f *testing.F)            { fuzz(f, "UVMRange") }
func FuzzUVMSemaphorePool(f *testing.F)    { fuzz(f, "UVMSemaphorePool") }
func FuzzUVMRegisterGPU(f *testing.F)      { fuzz(f, "UVMRegisterGPU") }
func FuzzUVMRegisterVASpace(f *testing.F)  { fuzz(f, "UVMRegisterVASpace") }
func FuzzUVMRegisterChannel(f *testing.F)  { fuzz(f, "UVMRegisterChannel") }

// FuzzRows runs the rows' own readers on any params: pointer sizes and counts come from the tenant.
func FuzzRows(f *testing.F) {
	f.Add(uint32(CtrlFBGetInfo), make([]byte, 16))
	f.Add(uint32(0x127), bytes.Repeat([]byte{0xff}, 176))
	f.Add(uint32(0x20801201), []byte{1, 0, 0, 0})
	tab := Nearest("580.142")
	f.Fuzz(func(t *testing.T, cmd uint32, b []byte) {
		r, ok := tab.Control(cmd)
		if !ok {
			return
		}
		for _, p := range r.Ptrs {
			if n, err := p.Bytes(b); err == nil && n > p.MaxBytes {
				t.Fatalf("control %#x: pointer at %d covers %d bytes, at most %d", cmd, p.Offset, n, p.MaxBytes)
			}
		}
		for _, fd := range r.FDs {
			if _, err := U32At(b, fd.Offset); (err == nil) != (uint64(fd.Offset)+4 <= uint64(len(b))) {
				t.Fatalf("control %#x: fd at %d of %d bytes: %v", cmd, fd.Offset, len(b), err)
			}
		}
	})
}

func FuzzVersion(f *testing.F) {
	for _, s := range []string{"580.159.04", "550.54.14", "", ".", "580.", "9999.9999.9999", "580.1.1.1", "580.٣.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tab, err := Lookup(s)
		if (tab == nil) == (err == nil) {
			t.Fatalf("Lookup(%q) = %v, %v", s, tab, err)
		}
		if Nearest(s) == nil {
			t.Fatalf("Nearest(%q) is nil", s)
		}
	})
}
