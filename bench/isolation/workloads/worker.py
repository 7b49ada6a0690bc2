"""The line protocol of bench/isolation's workers (see common.h), for Python."""

import sys
import time
from collections import deque

RAMP = 0.4  # seconds of work before the window
TAIL = 0.1  # and after it


def windows():
    """Yields (t0, t1) for every GO line; ends at QUIT or end of file."""
    for line in sys.stdin:
        words = line.split()
        if not words:
            continue
        if words[0] == "QUIT":
            return
        if words[0] != "GO" or len(words) != 3:
            raise ValueError(f"order not understood: {line.strip()}")
        t0, seconds = float(words[1]), float(words[2])
        if not 0 < seconds <= 3600:
            raise ValueError("GO: seconds out of range")
        yield t0, t0 + seconds


def sleep_until(t):
    while (left := t - time.time()) > 0:
        time.sleep(left if left > 2e-4 else 0)


def pump(torch, t0, t1, per_chunk, depth, submit):
    """Keeps `depth` chunks in flight; returns (units finished in [t0, t1), chunks submitted)."""
    flying, units, submitted = deque(), 0, 0
    sleep_until(t0 - RAMP)
    while True:
        while len(flying) < depth and time.time() < t1 + TAIL:
            submit()
            end = torch.cuda.Event()
            end.record()
            flying.append(end)
            submitted += 1
        if not flying:
            return units, submitted
        flying.popleft().synchronize()
        if t0 <= time.time() < t1:
            units += per_chunk


def serve(torch, mode, per_chunk, depth, submit):
    """Warms up, says READY, and answers windows until told to leave."""
    for _ in range(6):
        submit()
    torch.cuda.synchronize()
    print("READY", flush=True)
    for t0, t1 in windows():
        units, submitted = pump(torch, t0, t1, per_chunk, depth, submit)
        print(
            f'{{"mode":"{mode}","units":{units},"launches":{submitted * per_chunk},'
            f'"seconds":{t1 - t0:.6f}}}',
            flush=True,
        )


def main(body):
    """Runs body(); a failure becomes the protocol's ERROR line."""
    try:
        body()
    except Exception as err:  # the one boundary: whatever went wrong is told to the bench
        text = " ".join(str(err).split())[:300]
        print(f"ERROR {type(err).__name__}: {text}", flush=True)
        sys.exit(1)
