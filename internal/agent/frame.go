package agent

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// maxMessage bounds one frame and one request body.
const maxMessage = 64 << 10

// maxFiles bounds the descriptors that may ride on one frame.
const maxFiles = 4

// writeFrame sends v as one frame: four bytes of length (big endian), then
// JSON. The descriptors ride on the first byte.
func writeFrame(c *net.UnixConn, v any, fds ...int) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a frame: %w", err)
	}
	if len(body) > maxMessage {
		return fmt.Errorf("frame of %d bytes is larger than %d", len(body), maxMessage)
	}
	msg := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(msg, rights, nil)
	if err == nil && n < len(msg) {
		_, err = c.Write(msg[n:])
	}
	if err != nil {
		return fmt.Errorf("send a frame: %w", err)
	}
	return nil
}

// readFrame receives one frame into v and the descriptors that came with it,
// which the caller closes. Too large a frame, unknown fields and descriptors
// anywhere but on the first byte are errors or are dropped.
func readFrame(c *net.UnixConn, v any) ([]int, error) {
	var head [4]byte
	oob := make([]byte, unix.CmsgSpace(maxFiles*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(head[:], oob)
	if err != nil {
		return nil, err
	}
	fds, err := parseRights(oob[:oobn])
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = fmt.Errorf("more than %d descriptors on one frame", maxFiles)
	}
	if err == nil && n < len(head) {
		_, err = io.ReadFull(c, head[n:])
	}
	if err == nil {
		err = readBody(c, binary.BigEndian.Uint32(head[:]), v)
	}
	if err != nil {
		closeAll(fds)
		return nil, err
	}
	return fds, nil
}

func readBody(r io.Reader, size uint32, v any) error {
	if size > maxMessage {
		return fmt.Errorf("frame of %d bytes is larger than %d", size, maxMessage)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return fmt.Errorf("receive a frame: %w", err)
	}
	return decodeStrict(body, v)
}

func parseRights(oob []byte) ([]int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("parse a control message: %w", err)
	}
	var all []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if errors.Is(err, unix.EINVAL) {
			continue // another kind of control message
		}
		if err != nil {
			closeAll(all)
			return nil, fmt.Errorf("parse descriptors: %w", err)
		}
		all = append(all, fds...)
	}
	return all, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// dup duplicates a descriptor, closed on exec. Descriptors that travel are
// kept as plain numbers: an os.File may change the blocking mode, which all
// duplicates share.
func dup(fd int) (int, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor %d: %w", fd, err)
	}
	return n, nil
}
