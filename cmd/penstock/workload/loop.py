"""A loop of matrix products for penstock demo: runs for the seconds given and prints what it finished."""
import json
import sys
import time

seconds, n = float(sys.argv[1]), 2048
try:
    import torch

    a = torch.ones((n, n), device="cuda", dtype=torch.float32)
    out = torch.empty_like(a)

    def work():
        torch.mm(a, a, out=out)

    def mark():
        e = torch.cuda.Event()
        e.record()
        return e
except ImportError:
    import cupy

    a = cupy.ones((n, n), dtype=cupy.float32)
    out = cupy.empty_like(a)

    def work():
        cupy.matmul(a, a, out=out)

    def mark():
        e = cupy.cuda.Event()
        e.record()
        return e

work()
mark().synchronize()
finished, batch, flight, begin = 0, 4, [], time.monotonic()
while time.monotonic() - begin < seconds:
    for _ in range(batch):
        work()
    flight.append(mark())
    if len(flight) == 2:
        flight.pop(0).synchronize()
        finished += batch
print(json.dumps({"finished": finished, "elapsedNs": int((time.monotonic() - begin) * 1e9)}))
