package nvidia

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

// codec is one struct: its smallest size, and decode-then-encode. reencode writes what it decoded over b; bytes
// that the struct does not name stay.
type codec struct {
	name     string
	sizes    []int // every form, shortest first
	reencode func(b []byte) (any, error)
}

// again decodes b, encodes the value over b, and returns the value.
func again[T interface{ Put([]byte) error }](decode func([]byte) (T, error)) func([]byte) (any, error) {
	return func(b []byte) (any, error) {
		v, err := decode(b)
		if err != nil {
			return nil, err
		}
		return v, v.Put(b)
	}
}

// only decodes b.
func only[T any](decode func([]byte) (T, error)) func([]byte) (any, error) {
	return func(b []byte) (any, error) { return decode(b) }
}

func codecs() []codec {
	return []codec{
		{"Alloc", []int{SizeAlloc21, SizeAlloc64}, again(DecodeAlloc)},
		{"Free", []int{SizeFree}, again(DecodeFree)},
		{"Control", []int{SizeControl}, again(DecodeControl)},
		{"Dup", []int{SizeDup}, again(DecodeDup)},
		{"AllocMemory", []int{SizeAllocMemory}, again(DecodeAllocMemory)},
		{"MapMemory", []int{SizeMapMemory}, again(DecodeMapMemory)},
		{"VidHeap", []int{SizeVidHeap}, again(DecodeVidHeap)},
		{"Xfer", []int{SizeXfer}, again(DecodeXfer)},
		{"RegisterFD", []int{SizeRegisterFD}, only(DecodeRegisterFD)},
		{"OSEvent", []int{SizeOSEvent}, only(DecodeOSEvent)},
		{"MemoryParams", []int{SizeMemoryParams}, again(DecodeMemoryParams)},
		{"GroupParams", []int{SizeGroupParams}, again(DecodeGroupParams)},
		{"ChannelParams", []int{SizeChannelParams550, SizeChannelParams}, again(DecodeChannelParams)},
		{"FBInfoV1", []int{SizeFBInfoV1}, only(DecodeFBInfoV1)},
		{"FBInfoV2", []int{444, 460, 1028}, func(b []byte) (any, error) {
			v, err := DecodeFBInfoV2(b)
			if err != nil {
				return nil, err
			}
			return v, PutFBInfoV2(b, v)
		}},
		{"FifoDisableChannels", []int{SizeFifoDisableChannels}, only(DecodeFifoDisableChannels)},
		{"Timeslice", []int{SizeTimeslice}, again(DecodeTimeslice)},
		{"Preempt", []int{SizePreempt}, only(DecodePreempt)},
		{"GetPids", []int{SizeGetPids}, only(DecodeGetPids)},
		{"PidInfos", []int{SizeGetPidInfo}, func(b []byte) (any, error) {
			v, err := DecodePidInfos(b)
			if err != nil {
				return nil, err
			}
			return v, PutPidInfos(b, v)
		}},
		{"UVMMapExternal", []int{SizeUVMMapExternal}, again(DecodeUVMMapExternal)},
		{"UVMUnmapExternal", []int{SizeUVMUnmapExternal}, again(DecodeUVMUnmapExternal)},
		{"UVMFree", []int{SizeUVMFree, SizeUVMFree580}, again(DecodeUVMFree)},
		{"UVMRange", []int{SizeUVMRange}, again(DecodeUVMCreateExternalRange)},
		{"UVMSemaphorePool", []int{SizeUVMAllocSemaphorePool}, only(DecodeUVMSemaphorePool)},
		{"UVMRegisterGPU", []int{SizeUVMRegisterGPU}, only(func(b []byte) (UVMRegister, error) { return DecodeUVMRegister(UVMCmdRegisterGPU, b) })},
		{"UVMRegisterVASpace", []int{SizeUVMRegisterGPUVASpace}, only(func(b []byte) (UVMRegister, error) { return DecodeUVMRegister(UVMCmdRegisterGPUVASpace, b) })},
		{"UVMRegisterChannel", []int{SizeUVMRegisterChannel}, only(func(b []byte) (UVMRegister, error) { return DecodeUVMRegister(UVMCmdRegisterChannel, b) })},
	}
}

// pattern fills b so that every 32-bit word differs. Words that count things are zeroed by the caller.
func pattern(b []byte) []byte {
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// Where the counts of variable structs lie, so that a patterned struct decodes.
var countWords = map[string][]int{
	"FBInfoV2": {0}, "FifoDisableChannels": {4}, "GetPids": {8}, "PidInfos": {0},
	"UVMMapExternal": {9240, 9244}, "UVMSemaphorePool": {9232, 9236}, "VidHeap": {8},
}

func TestReencodeChangesNothing(t *testing.T) {
	for _, c := range codecs() {
		for _, size := range c.sizes {
			b := pattern(make([]byte, size))
			for i, off := range countWords[c.name] {
				put32(b, off, uint32(2*(1-i%2))) // 2 in the low word, 0 in the high one
			}
			before := bytes.Clone(b)
			v, err := c.reencode(b)
			if err != nil {
				t.Errorf("%s/%d: %v", c.name, size, err)
				continue
			}
			if !bytes.Equal(b, before) {
				for i := range b {
					if b[i] != before[i] {
						t.Errorf("%s/%d: byte %d became %#x, was %#x (%+v)", c.name, size, i, b[i], before[i], v)
						break
					}
				}
			}
		}
	}
}

func TestShortInput(t *testing.T) {
	for _, c := range codecs() {
		for n := range c.sizes[0] {
			_, err := c.reencode(make([]byte, n))
			var short *ShortError
			var count *CountError
			if err == nil && c.name != "FBInfoV2" || err != nil && !errors.As(err, &short) && !errors.As(err, &count) {
				t.Errorf("%s: %d of %d bytes gave %v", c.name, n, c.sizes[0], err)
			}
		}
	}
}

func TestPutNeedsRoom(t *testing.T) {
	short := make([]byte, 3)
	for name, err := range map[string]error{
		"Alloc": Alloc{}.Put(short), "Free": Free{}.Put(short), "Control": Control{}.Put(short), "Dup": Dup{}.Put(short),
		"AllocMemory": AllocMemory{}.Put(short), "MapMemory": MapMemory{}.Put(short), "VidHeap": VidHeap{}.Put(short),
		"Xfer": Xfer{}.Put(short), "MemoryParams": MemoryParams{}.Put(short), "GroupParams": GroupParams{}.Put(short),
		"ChannelParams": ChannelParams{}.Put(short), "FifoDisable": FifoDisableChannels{}.Put(short), "Timeslice": Timeslice{}.Put(short),
		"Preempt": Preempt{}.Put(short), "GetPids": GetPids{}.Put(short), "PidInfos": PutPidInfos(short, nil),
		"UVMMapExternal": UVMMapExternal{}.Put(short), "UVMUnmap": UVMUnmapExternal{}.Put(short), "UVMFree": UVMFree{}.Put(short),
		"UVMRange": UVMRange{}.Put(short), "AllocParams": PutAllocParams(short, 1), "AllocRights": PutAllocRights(short, 0),
		"ControlParams": PutControlParams(short, 1), "Totals": PutVidHeapTotals(short, 1, 1), "Status": PutStatus(short, EscFree, SizeFree, StatusOK),
		"FBInfo": PutFBInfoV2(short, nil), "U32": PutU32At(short, 0, 0), "U64": PutU64At(short, 0, 0),
		"Offset": PutU32At(make([]byte, 8), 0xffffffff, 0),
	} {
		if err == nil {
			t.Errorf("%s: wrote into 3 bytes", name)
		}
	}
}

func TestAllocForms(t *testing.T) {
	a := Alloc{Root: 0xc1d00001, Parent: 2, New: 3, Class: ClassMemoryLocalUser, Params: 0x7fff0000, ParamsSize: 128, Status: StatusNoMemory}
	for _, size := range []int{SizeAlloc21, SizeAlloc64} {
		b := make([]byte, size)
		if err := a.Put(b); err != nil {
			t.Fatal(err)
		}
		got, err := DecodeAlloc(b)
		if err != nil || got != a {
			t.Errorf("%d bytes: %+v, %v", size, got, err)
		}
		if err := PutAllocParams(b, 42); err != nil {
			t.Error(err)
		}
		if err := PutAllocRights(b, 0); err != nil {
			t.Error(err)
		}
		if err := PutAllocRights(b, 1); (err == nil) != (size == SizeAlloc64) {
			t.Errorf("%d bytes: rights %v", size, err)
		}
		if got, _ := DecodeAlloc(b); got.Params != 42 {
			t.Errorf("%d bytes: params %#x", size, got.Params)
		}
	}
}

func TestStatusWords(t *testing.T) {
	for _, tab := range tables(t) {
		for _, e := range tab.Escapes() {
			for _, size := range e.Sizes {
				b := make([]byte, size)
				err := PutStatus(b, e.Nr, size, StatusNoMemory)
				if (err == nil) != (e.Status >= 0) {
					t.Errorf("%s %s: %v", tab.Line, e.Name, err)
					continue
				}
				if err != nil {
					continue
				}
				if s, err := GetStatus(b, e.Nr, size); err != nil || s != StatusNoMemory {
					t.Errorf("%s %s: read back %v, %v", tab.Line, e.Name, s, err)
				}
				// The status word lies where the row says, for the first size.
				if size == e.Sizes[0] && u32(b, e.Status) != uint32(StatusNoMemory) {
					t.Errorf("%s %s: status is not at %d", tab.Line, e.Name, e.Status)
				}
			}
		}
	}
	if err := PutStatus(make([]byte, SizeCardInfo), EscCardInfo, SizeCardInfo, StatusOK); err == nil {
		t.Error("CARD_INFO has no status word")
	}
}

func TestVidHeapVariants(t *testing.T) {
	for _, f := range []VidHeapFunction{HeapAllocSize, HeapAllocTiled, HeapAllocSizeRange} {
		v := VidHeap{Root: 1, Parent: 2, Function: f, Memory: 3, Type: 4, Flags: 5, Attr: 6, Attr2: 7, Size: 1 << 30, Alignment: 8, Offset: 9, Limit: 10, Total: 11, Free: 12}
		b := make([]byte, SizeVidHeap)
		if err := v.Put(b); err != nil {
			t.Fatal(err)
		}
		if got, err := DecodeVidHeap(b); err != nil || got != v {
			t.Errorf("function %d: %+v, %v", f, got, err)
		}
		if !f.Allocates() || !v.VRAM() {
			t.Errorf("function %d with no location allocates device memory", f)
		}
		v.Attr = 1 << attrLocationShift // PCI
		if v.VRAM() {
			t.Errorf("function %d in system memory counts as device memory", f)
		}
	}
	b := make([]byte, SizeVidHeap)
	put32(b, 8, uint32(HeapAllocOSDesc))
	put64(b, 64, 0x7f0000000000)
	put64(b, 72, 0xfff)
	if v, err := DecodeVidHeap(b); err != nil || v.Size != 0x1000 || v.Descriptor != 0x7f0000000000 || v.VRAM() {
		t.Errorf("OS descriptor: %+v, %v", v, err)
	}
	put64(b, 72, ^uint64(0))
	if v, _ := DecodeVidHeap(b); v.Size != ^uint64(0) {
		t.Errorf("a limit of 2^64-1 wrapped to %d", v.Size)
	}
}

func TestVRAM(t *testing.T) {
	for _, c := range []struct {
		attr, flags uint32
		want        bool
	}{
		{0, 0, true}, {0x02000000, 0, false}, {0x06000000, 0, true}, {0, memFlagVirtual, false}, {0x06000000, memFlagVirtual, false}, {0x11000001, 0, true},
	} {
		if got := (MemoryParams{Attr: c.attr, Flags: c.flags}).VRAM(); got != c.want {
			t.Errorf("attr %#x flags %#x: %v", c.attr, c.flags, got)
		}
	}
	if n := (AllocMemory{Limit: ^uint64(0)}).Length(); n != ^uint64(0) {
		t.Errorf("length wrapped to %d", n)
	}
	if n := (AllocMemory{Limit: 4095}).Length(); n != 4096 {
		t.Errorf("length %d", n)
	}
}

func TestFifoDisableChannels(t *testing.T) {
	f := FifoDisableChannels{Disable: true}
	for i := range MaxFifoDisableChannels {
		f.Channels = append(f.Channels, ChannelRef{Client: Handle(0xc1d00000 + i), Channel: Handle(0x5c000000 + i)})
	}
	b, err := f.Encode()
	if err != nil || len(b) != SizeFifoDisableChannels || b[0] != 1 || b[4] != 64 || u64(b, 16) != 0 || u32(b, 24) != 0xc1d00000 || u32(b, 280+4) != 0x5c000001 {
		t.Fatalf("% x, %v", b[:32], err)
	}
	if got, err := DecodeFifoDisableChannels(b); err != nil || !reflect.DeepEqual(got, f) {
		t.Errorf("%+v, %v", got, err)
	}
	f.Channels = append(f.Channels, ChannelRef{})
	if _, err := f.Encode(); err == nil {
		t.Error("65 channels fit")
	}
}

func TestLists(t *testing.T) {
	b := make([]byte, 1028)
	list := []FBInfo{{FBTotalRAMSize, 20 << 20}, {FBHeapFree, 1 << 20}}
	if err := PutFBInfoV2(b, list); err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeFBInfoV2(b); err != nil || !reflect.DeepEqual(got, list) {
		t.Errorf("%+v, %v", got, err)
	}
	put32(b, 0, 129)
	if _, err := DecodeFBInfoV2(b); err == nil {
		t.Error("129 entries fit 1028 bytes")
	}
	if FBInfoMax(444) != 55 || FBInfoMax(460) != 57 || FBInfoMax(1028) != 128 || FBInfoMax(0) != 0 {
		t.Error("FBInfoMax")
	}
	if _, err := DecodeFBInfoList(b, -1); err == nil {
		t.Error("negative count")
	}

	p := make([]byte, SizeGetPids)
	g := GetPids{ID: 0xcbc0, Pids: []uint32{1, 2, 3}}
	if err := g.Put(p); err != nil {
		t.Fatal(err)
	}
	if got, err := DecodeGetPids(p); err != nil || !reflect.DeepEqual(got, g) {
		t.Errorf("%+v, %v", got, err)
	}
	if err := (GetPids{Pids: make([]uint32, MaxPids+1)}).Put(p); err == nil {
		t.Error("951 pids fit")
	}
	if err := PutPidInfos(make([]byte, SizeGetPidInfo), make([]PidInfo, MaxPidInfos+1)); err == nil {
		t.Error("201 pid infos fit")
	}
	pre := make([]byte, SizePreempt)
	want := Preempt{Wait: true, ManualTimeout: true, TimeoutMicros: 1000}
	if err := want.Put(pre); err != nil {
		t.Fatal(err)
	}
	if got, err := DecodePreempt(pre); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if err := (UVMMapExternal{GPUs: make([]UUID, UVMMaxGPUs+1)}).Put(make([]byte, SizeUVMMapExternal)); err == nil {
		t.Error("257 GPUs fit")
	}
	if _, err := DecodeUVMRegister(UVMCmdFree, make([]byte, 100)); err == nil {
		t.Error("UVM_FREE is no register call")
	}
}

func TestEngineNames(t *testing.T) {
	for e, want := range map[EngineType]struct {
		kind EngineKind
		name string
	}{
		1: {KindGraphics, "GR0"}, 8: {KindGraphics, "GR7"}, 9: {KindCopy, "COPY0"}, 0x12: {KindCopy, "COPY9"}, 0x34: {KindCopy, "COPY10"},
		0x3d: {KindCopy, "COPY19"}, 0x13: {KindDecode, "NVDEC0"}, 0x1a: {KindDecode, "NVDEC7"}, 0x1b: {KindEncode, "NVENC0"},
		0x1d: {KindEncode, "NVENC2"}, 0x3f: {KindEncode, "NVENC3"}, 0x2b: {KindJPEG, "NVJPG0"}, 0x32: {KindJPEG, "NVJPG7"},
		0x33: {KindOpticalFlow, "OFA0"}, 0x3e: {KindOpticalFlow, "OFA1"}, 0: {KindOther, "ENGINE(0x0)"}, 0x26: {KindOther, "ENGINE(0x26)"},
		0xffffffff: {KindOther, "ENGINE(0xffffffff)"},
	} {
		if e.Kind() != want.kind || e.String() != want.name {
			t.Errorf("engine %#x: %s %s, want %s %s", uint32(e), e.Kind(), e, want.kind, want.name)
		}
	}
	if EngineKind(99).String() != "other" || Verdict(99).String() != "unknown" || ClassKind(99).String() != "object" {
		t.Error("names of values out of range")
	}
}
