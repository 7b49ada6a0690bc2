package nvidia

import "testing"

func TestStatusString(t *testing.T) {
	for s, want := range map[Status]string{
		StatusOK: "NV_OK", 0x51: "NV_ERR_NO_MEMORY", 0x1b: "NV_ERR_INSUFFICIENT_PERMISSIONS",
		0x23: "NV_ERR_INVALID_CLIENT", 0x22: "NV_ERR_INVALID_CLASS", 0x56: "NV_ERR_NOT_SUPPORTED", 0xabc: "NV_STATUS(0xabc)",
	} {
		if got := s.String(); got != want {
			t.Errorf("Status(%#x) = %s, want %s", uint32(s), got, want)
		}
	}
}

func TestCommandEncoding(t *testing.T) {
	for _, c := range []struct {
		cmd  uint32
		nr   uint8
		size uint32
	}{
		{0xC030462B, EscAlloc, 48}, {0xC020462B, EscAlloc, 32}, {0xC0104629, EscFree, 16}, {0xC020462A, EscControl, 32},
		{0xC0B8464A, EscVidHeap, 184}, {0xC0384627, EscAllocMemory, 56}, {0xC01C4634, EscDup, 28}, {0xC01046D3, EscXfer, 16},
	} {
		if Nr(c.cmd) != c.nr || Size(c.cmd) != c.size || Cmd(c.nr, c.size) != c.cmd {
			t.Errorf("%#x: nr %#x size %d, back %#x", c.cmd, Nr(c.cmd), Size(c.cmd), Cmd(c.nr, c.size))
		}
	}
}
