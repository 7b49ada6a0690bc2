package nvidia

import "fmt"

// EngineType is NV2080_ENGINE_TYPE_*: the engine a channel or a channel group is bound to. From
// cl2080_notification.h.
type EngineType uint32

// The engine types a tenant's channels may name.
const (
	EngineNull   EngineType = 0
	EngineGR0    EngineType = 1
	EngineGR7    EngineType = 8
	EngineCopy0  EngineType = 0x09
	EngineCopy9  EngineType = 0x12
	EngineNVDEC0 EngineType = 0x13
	EngineNVDEC7 EngineType = 0x1a
	EngineNVENC0 EngineType = 0x1b
	EngineNVENC1 EngineType = 0x1c
	EngineNVENC2 EngineType = 0x1d
	EngineSW     EngineType = 0x22
	EngineVIC    EngineType = 0x24
	EngineSEC2   EngineType = 0x26
	EngineHost   EngineType = 0x27
	EngineNVJPG0 EngineType = 0x2b
	EngineNVJPG7 EngineType = 0x32
	EngineOFA0   EngineType = 0x33
	EngineCopy10 EngineType = 0x34
	EngineCopy19 EngineType = 0x3d
	EngineOFA1   EngineType = 0x3e
	EngineNVENC3 EngineType = 0x3f
)

// EngineKind groups engine types by what they do; a share of the GPU is meant per kind.
type EngineKind uint8

// The kinds. Compute and graphics run on the same engine, so one time slice governs both.
const (
	KindOther EngineKind = iota
	KindGraphics
	KindCopy
	KindDecode
	KindEncode
	KindJPEG
	KindOpticalFlow
)

func (k EngineKind) String() string {
	switch k {
	case KindGraphics:
		return "graphics"
	case KindCopy:
		return "copy"
	case KindDecode:
		return "decode"
	case KindEncode:
		return "encode"
	case KindJPEG:
		return "jpeg"
	case KindOpticalFlow:
		return "optical-flow"
	}
	return "other"
}

// Kind returns what the engine does.
func (t EngineType) Kind() EngineKind {
	k, _ := t.split()
	return k
}

// split returns the kind and the instance; instances of some kinds lie in two ranges.
func (t EngineType) split() (EngineKind, uint32) {
	switch {
	case t >= EngineGR0 && t <= EngineGR7:
		return KindGraphics, uint32(t - EngineGR0)
	case t >= EngineCopy0 && t <= EngineCopy9:
		return KindCopy, uint32(t - EngineCopy0)
	case t >= EngineCopy10 && t <= EngineCopy19:
		return KindCopy, uint32(t-EngineCopy10) + 10
	case t >= EngineNVDEC0 && t <= EngineNVDEC7:
		return KindDecode, uint32(t - EngineNVDEC0)
	case t >= EngineNVENC0 && t <= EngineNVENC2:
		return KindEncode, uint32(t - EngineNVENC0)
	case t == EngineNVENC3:
		return KindEncode, 3
	case t >= EngineNVJPG0 && t <= EngineNVJPG7:
		return KindJPEG, uint32(t - EngineNVJPG0)
	case t == EngineOFA0:
		return KindOpticalFlow, 0
	case t == EngineOFA1:
		return KindOpticalFlow, 1
	}
	return KindOther, 0
}

// String returns the short name of the headers, such as GR0 or NVDEC3.
func (t EngineType) String() string {
	names := [...]string{KindGraphics: "GR", KindCopy: "COPY", KindDecode: "NVDEC", KindEncode: "NVENC", KindJPEG: "NVJPG", KindOpticalFlow: "OFA"}
	kind, i := t.split()
	if kind == KindOther {
		return fmt.Sprintf("ENGINE(%#x)", uint32(t))
	}
	return fmt.Sprintf("%s%d", names[kind], i)
}
