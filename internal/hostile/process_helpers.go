package hostile

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"

	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/abi/nvidia"
	"github.com/penstock-gpu/penstock/internal/emu/card"
)

type creation struct {
	Root, Device, Group nvidia.Handle
}

func processHelpers() map[string]helper {
	return map[string]helper{
		"creator":    helpCreate,
		"first-user": helpFirstUse,
		"fill":       helpFill,
		"storm":      helpStorm,
		"exec":       helpExec,
		"after-exec": helpAfterExec,
		"import":     helpImport,
		"victimless": helpHold,
		"weight":     helpWeight,
	}
}

const pieceOf = 300 * mib

func helpCreate(h *help) error {
	c, err := h.client()
	if err != nil {
		return err
	}
	send := []int{c.fd}
	if _, err := c.vram(handleFirst, pieceOf); err != nil {
		return fmt.Errorf("no room: %w", err)
	}
	switch h.Extra {
	case "export":
		fd, err := h.Open(card.KindCtl)
		if err != nil {
			return err
		}
		if err := errors.Join(c.export(handleFirst, fd), c.release(c.root)); err != nil {
			return err
		}
		send = []int{fd}
	case "mapping":
		u, err := c.unified()
		if err != nil {
			return err
		}
		if err := errors.Join(c.mapped(u, uvmBase, pieceOf, handleFirst), c.release(c.root)); err != nil {
			return err
		}
		send = []int{u.FD}
	}
	b, err := json.Marshal(creation{Root: c.root, Device: c.device})
	if err != nil {
		return err
	}
	return unix.Sendmsg(helperFiles, b, unix.UnixRights(send...), nil, 0)
}

func helpFirstUse(h *help) error {
	var root nvidia.Handle
	if err := json.Unmarshal([]byte(h.Extra), &root); err != nil {
		return err
	}
	c, err := h.clientOn(helperFiles, root)
	if err != nil {
		return err
	}
	if _, err := c.vram(handleFirst, pieceOf); err != nil {
		return err
	}
	g, err := c.object(c.fd, nvidia.Alloc{Root: root, Parent: c.device, New: handleFirst + 1, Class: nvidia.ClassTSG}, groupParams(nvidia.EngineGR0))
	if err != nil {
		return err
	}
	_, err = c.object(c.fd, nvidia.Alloc{Root: root, Parent: g, New: handleFirst + 2, Class: nvidia.ClassChannelHopper}, channelParams(nvidia.EngineGR0))
	return err
}

func groupParams(e nvidia.EngineType) []byte {
	p := make([]byte, nvidia.SizeGroupParams)
	_ = nvidia.GroupParams{EngineType: e}.Put(p) // it fits
	return p
}

func channelParams(e nvidia.EngineType) []byte {
	p := make([]byte, nvidia.SizeChannelParams)
	_ = nvidia.ChannelParams{EngineType: e, GPFIFOEntries: 1024}.Put(p) // it fits
	return p
}

func helpImport(h *help) error {
	c, err := h.client()
	if err != nil {
		return err
	}
	p := make([]byte, 20)
	for i, v := range []uint32{helperFiles, 1, uint32(c.device), uint32(c.device)} {
		_ = nvidia.PutU32At(p, uint32(4*i), v)
	}
	err = c.control(c.fd, c.root, c.root, 0x3d06, p)
	if err != nil {
		return err
	}
	h.ready()
	return nil
}

func helpFill(h *help) error {
	c, err := h.client()
	if err != nil {
		return err
	}
	c.fill(handleFirst)
	h.ready()
	return nil
}

func helpExec(h *help) error {
	c, err := h.client()
	if err != nil {
		return err
	}
	if err := c.groups(2); err != nil {
		return err
	}
	c.fill(handleFirst)
	if err := unix.Dup3(c.fd, helperFiles+1, 0); err != nil {
		return err
	}
	b, err := json.Marshal(helpArgs{Hints: h.Hints, Extra: fmt.Sprint(uint32(c.root))})
	if err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", []string{"renamed", argHostile, argTenant, argRun, "helper-after-exec", string(b)}, nil)
}

func helpAfterExec(h *help) error {
	var root uint32
	if _, err := fmt.Sscan(h.Extra, &root); err != nil {
		return err
	}
	old := &client{lib: h.lib, fd: helperFiles + 1, root: nvidia.Handle(root), device: handleDevice}
	_, _ = old.vram(handleFirst+0x900, 64*mib)
	_ = old.groups(1)
	if c, err := h.client(); err == nil {
		_ = c.groups(1)
		c.fill(handleFirst)
	}
	h.ready()
	return nil
}

func helpStorm(h *help) error {
	c, err := h.client()
	if err != nil {
		return err
	}
	go func() {
		h.ready()
		os.Exit(0)
	}()
	return storm(c, func() bool { return true })
}

func storm(c *client, more func() bool) error {
	var have []nvidia.Handle
	next := handleFirst
	for more() {
		if len(have) > 0 && rand.IntN(3) == 0 {
			i := rand.IntN(len(have))
			_ = c.release(have[i])
			have = append(have[:i], have[i+1:]...)
			continue
		}
		next++
		if _, err := c.vram(next, uint64(1+rand.IntN(3000))*64<<10); err == nil {
			have = append(have, next)
		}
	}
	return nil
}

func helpHold(h *help) error { h.ready(); return nil }

func helpWeight(h *help) error {
	c, err := h.client()
	if err != nil {
		return err
	}
	if _, err := c.vram(handleFirst, 32*mib); err != nil {
		return err
	}
	h.ready()
	return nil
}
