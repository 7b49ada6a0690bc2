package kernel

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FileKind says what a tenant's descriptor leads to.
type FileKind uint8

// The kinds of device file that the boundary knows.
const (
	NotDevice FileKind = iota
	ControlFile
	GPUFile
	UVMFile
	OtherDevice // the driver's files that no tenant gets: modeset, capabilities
)

// File is a duplicate of a tenant's open device file, held for one call: a
// longer-lived one would keep the device memory of a dead process alive.
type File struct {
	FD    int
	Kind  FileKind
	Minor int // of a GPUFile
}

// Device file numbers: the character major of the driver is fixed, the
// unified-memory one is dynamic (nv-linux.h, /proc/devices).
const (
	nvidiaMajor  = 195
	minorControl = 255
	minorModeset = 254
)

// locator tells device files apart. The real driver's are known by device
// number; an emulated card's by the file system they lie in.
type locator struct {
	uvmMajor uint32
	capMajor uint32
	emulated map[inode]File
}

type inode struct{ dev, ino uint64 }

// Paths says where a card is found.
type Paths struct {
	Dev      string // directory of the device files, "/dev" or an emulated card's mount
	Proc     string // "/proc/driver/nvidia"; unused for an emulated card
	Emulated bool
}

// SystemPaths are those of a machine with the vendor's driver.
func SystemPaths() Paths { return Paths{Dev: "/dev", Proc: "/proc/driver/nvidia"} }

func newLocator(p Paths) (*locator, error) {
	if p.Emulated {
		return emulatedLocator(p.Dev)
	}
	b, err := os.ReadFile("/proc/devices")
	if err != nil {
		return nil, fmt.Errorf("find the driver's device numbers: %w", err)
	}
	l := &locator{}
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) != 2 {
			continue
		}
		n, err := strconv.ParseUint(f[0], 10, 32)
		if err != nil {
			continue
		}
		switch f[1] {
		case "nvidia-uvm":
			l.uvmMajor = uint32(n)
		case "nvidia-caps":
			l.capMajor = uint32(n)
		}
	}
	return l, nil
}

func emulatedLocator(dir string) (*locator, error) {
	l := &locator{emulated: map[inode]File{}}
	add := func(name string, f File) error {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, name), &st); err != nil {
			return fmt.Errorf("emulated card file %s: %w", filepath.Join(dir, name), err)
		}
		l.emulated[inode{st.Dev, st.Ino}] = f
		return nil
	}
	return l, errors.Join(
		add("nvidiactl", File{Kind: ControlFile}),
		add("nvidia0", File{Kind: GPUFile}),
		add("nvidia-uvm", File{Kind: UVMFile}))
}

// identify says what an open descriptor of this process is.
func (l *locator) identify(fd int) (File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return File{}, fmt.Errorf("identify a device file: %w", err)
	}
	f := l.kind(&st)
	f.FD = fd
	return f, nil
}

func (l *locator) kind(st *unix.Stat_t) File {
	if l.emulated != nil {
		return l.emulated[inode{st.Dev, st.Ino}]
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR {
		return File{}
	}
	major, minor := unix.Major(st.Rdev), int(unix.Minor(st.Rdev))
	switch {
	case major == nvidiaMajor && minor == minorControl:
		return File{Kind: ControlFile}
	case major == nvidiaMajor && minor == minorModeset:
		return File{Kind: OtherDevice}
	case major == nvidiaMajor:
		return File{Kind: GPUFile, Minor: minor}
	case l.uvmMajor != 0 && major == l.uvmMajor:
		return File{Kind: UVMFile}
	case l.capMajor != 0 && major == l.capMajor:
		return File{Kind: OtherDevice}
	}
	return File{}
}

// CardInfo is what is known of a card before it is opened.
type CardInfo struct {
	Index      int // position in this list
	Minor      int // of /dev/nvidiaN
	Name       string
	UUID       string
	Driver     string // version of the driver, "580.159.04"
	TotalBytes int64  // 0 until the card is opened
	Emulated   bool
}

// ErrNoCard says that the machine shows no GPU to this process.
var ErrNoCard = errors.New("no GPU found")

// Discover lists the cards at p, by minor number.
func Discover(p Paths) ([]CardInfo, error) {
	if p.Emulated {
		v, err := os.ReadFile(filepath.Join(p.Dev, "version"))
		if err != nil {
			return nil, fmt.Errorf("%w: emulated card at %s: %w", ErrNoCard, p.Dev, err)
		}
		return []CardInfo{{Name: "emulated", UUID: "GPU-emulated-0", Driver: strings.TrimSpace(string(v)), Emulated: true}}, nil
	}
	version, err := driverVersion(p.Proc)
	if err != nil {
		return nil, err
	}
	dirs, err := filepath.Glob(filepath.Join(p.Proc, "gpus", "*", "information"))
	if err != nil || len(dirs) == 0 {
		return nil, fmt.Errorf("%w: %s/gpus is empty", ErrNoCard, p.Proc)
	}
	var out []CardInfo
	for _, d := range dirs {
		c, err := readInformation(d)
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(filepath.Join(p.Dev, "nvidia"+strconv.Itoa(c.Minor))); errors.Is(err, fs.ErrNotExist) {
			continue // the machine has it, this container does not
		}
		c.Driver = version
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: the driver knows %d, %s has no file of theirs", ErrNoCard, len(dirs), p.Dev)
	}
	sortByMinor(out)
	return out, nil
}

func sortByMinor(cards []CardInfo) {
	for i := 1; i < len(cards); i++ {
		for j := i; j > 0 && cards[j].Minor < cards[j-1].Minor; j-- {
			cards[j], cards[j-1] = cards[j-1], cards[j]
		}
	}
	for i := range cards {
		cards[i].Index = i
	}
}

// driverVersion reads the kernel module's version line, whose wording differs
// between the open and the closed module; the version is its first word that
// looks like one.
func driverVersion(proc string) (string, error) {
	b, err := os.ReadFile(filepath.Join(proc, "version"))
	if err != nil {
		return "", fmt.Errorf("%w: no driver is loaded: %w", ErrNoCard, err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for w := range strings.FieldsSeq(line) {
		if major, rest, ok := strings.Cut(w, "."); ok && len(major) == 3 && rest != "" {
			if _, err := strconv.Atoi(major); err == nil {
				return w, nil
			}
		}
	}
	return "", fmt.Errorf("driver version: no version in %q", line)
}

func readInformation(path string) (CardInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return CardInfo{}, fmt.Errorf("card information: %w", err)
	}
	defer f.Close()
	c := CardInfo{Minor: -1}
	for s := bufio.NewScanner(f); s.Scan(); {
		k, v, _ := strings.Cut(s.Text(), ":")
		v = strings.TrimSpace(v)
		switch strings.TrimSpace(k) {
		case "Model":
			c.Name = v
		case "GPU UUID":
			c.UUID = v
		case "Device Minor":
			if c.Minor, err = strconv.Atoi(v); err != nil {
				return c, fmt.Errorf("%s: Device Minor: %w", path, err)
			}
		}
	}
	if c.Minor < 0 {
		return c, fmt.Errorf("%s: no Device Minor line", path)
	}
	return c, nil
}
