package rm

import (
	"encoding/binary"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
)

// Controls that attach an object to a descriptor and take it from there.
const (
	ctrlExportObject = 0x3d05
	ctrlImportObject = 0x3d06
)

// Export attaches a memory object to a descriptor: EXPORT_OBJECT_TO_FD {type 0, device 4, parent 8, object 12,
// fd 16, flags 20}.
func (c *Client) Export(device, object nvidia.Handle, fd int) error {
	p := make([]byte, 24)
	for i, v := range []uint32{1, uint32(device), uint32(device), uint32(object), uint32(fd)} {
		binary.LittleEndian.PutUint32(p[4*i:], v)
	}
	return c.Control(c.Handle, ctrlExportObject, p)
}

// Import makes an object of what a descriptor holds: IMPORT_OBJECT_FROM_FD {fd 0, type 4, device 8, parent 12,
// object 16}.
func (c *Client) Import(device nvidia.Handle, fd int) (nvidia.Handle, error) {
	p := make([]byte, 20)
	for i, v := range []uint32{uint32(fd), 1, uint32(device), uint32(device)} {
		binary.LittleEndian.PutUint32(p[4*i:], v)
	}
	if err := c.Control(c.Handle, ctrlImportObject, p); err != nil {
		return 0, err
	}
	return nvidia.Handle(binary.LittleEndian.Uint32(p[16:])), nil
}
