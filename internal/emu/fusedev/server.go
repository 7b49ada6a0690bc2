// Package fusedev serves an emulated card as a directory of device files, so that a tenant and a supervisor use
// it by the same system calls as a real one: open, ioctl, mmap, close. Each open is a real struct file of the
// kernel, whose last close — wherever its duplicates are — frees what it made.
package fusedev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/penstock-gpu/penstock/internal/emu/card"
)

// Names of the files beside the device files.
const (
	VersionFile = "version"  // the driver version, one line
	MarkerFile  = "emulated" // its presence says that the card is emulated
	StatsFile   = "stats"    // card.Stats as JSON
)

// Server is a mounted card.
type Server struct {
	// Card is the model behind the files.
	Card  *card.Card
	dir   string
	dev   atomic.Uint64 // device number of the mount; calls may come in before Mount has returned
	clock *clock
	fuse  *fuse.Server
}

// ErrUnavailable says that this machine or user cannot mount a card: no /dev/fuse, or no right to mount.
var ErrUnavailable = errors.New("mounting an emulated card is not possible here")

// Mount makes a card and serves it at dir, which must be an empty directory. It needs /dev/fuse and the right to
// mount, which a user has inside a user and mount namespace of his own.
func Mount(dir string, cfg card.Config) (*Server, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("mount an emulated card at %s: %w", dir, err)
	}
	if _, err := os.Stat(dir); errors.Is(err, unix.ENOTCONN) {
		// What a killed server left behind; a failure shows when the mount itself fails.
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	}
	c := card.New(cfg)
	k, err := newClock(c)
	if err != nil {
		return nil, fmt.Errorf("mount an emulated card at %s: %w", dir, err)
	}
	s := &Server{Card: c, dir: dir, clock: k}
	if err := s.mount(); err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return nil, errors.Join(fmt.Errorf("mount an emulated card at %s: %w", dir, err), k.stop())
	}
	return s, nil
}

func (s *Server) mount() error {
	opts := &fs.Options{MountOptions: fuse.MountOptions{
		FsName:            "penstock-emu",
		Name:              "penstock-emu",
		AllowOther:        true,
		DirectMountStrict: true,
		DisableXAttrs:     true,
	}}
	srv, err := fs.Mount(s.dir, &root{s: s}, opts)
	if err != nil {
		return err
	}
	s.fuse = srv
	st, err := os.Stat(s.dir)
	if err != nil {
		return errors.Join(err, s.unmount())
	}
	if sys, ok := st.Sys().(*unixStat); ok {
		s.dev.Store(sys.Dev)
	}
	return nil
}

// Dir is where the card is mounted.
func (s *Server) Dir() string { return s.dir }

// unmount aborts the connection, so that calls in flight return, detaches the mount and waits for the server's
// goroutines. Files still open elsewhere are dead from then on.
func (s *Server) unmount() error {
	err := unix.Unmount(s.dir, unix.MNT_FORCE|unix.MNT_DETACH)
	if err != nil {
		return fmt.Errorf("unmount the emulated card at %s: %w", s.dir, err)
	}
	s.fuse.Wait()
	return nil
}

// Close takes the card away, as if it had fallen off the bus.
func (s *Server) Close() error {
	// The clock goes first: it releases everybody who waits inside a call.
	return errors.Join(s.clock.stop(), s.unmount())
}

// Serve mounts a card at dir, calls ready, and serves it until ctx ends: the whole of `penstock emu serve`.
func Serve(ctx context.Context, dir string, cfg card.Config, ready func(*Server)) error {
	s, err := Mount(dir, cfg)
	if err != nil {
		return err
	}
	if ready != nil {
		ready(s)
	}
	<-ctx.Done()
	return s.Close()
}
