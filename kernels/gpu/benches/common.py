"""Shared by the Python benches: figures as JSON, medians, and kvtide's own benches as peers measured in the same minute."""

import json
import os
import statistics
import subprocess
import time

import torch


def figure(key, what, value, unit="", at_least=None, at_most=None):
    """Return one figure in the format of `kvtide bench gpu --json`."""
    limits = {"at_least": at_least, "at_most": at_most}
    return {"key": key, "what": what, "value": value, "unit": unit} | {k: v for k, v in limits.items() if v is not None}


def tell(device, figures):
    """Print the line from which the report is made. Results computed on a CPU are not measurements."""
    print(json.dumps({"device": str(device), "measured": device.type == "cuda", "figures": figures}), flush=True)


def kvtide(group, device, *more):
    """Run a group of `kvtide bench gpu` and return its figures by key."""
    binary = os.path.join(os.environ.get("KVTIDE_BIN", "bin"), "kvtide")
    name = os.environ.get("KVTIDE_DEVICE", str(device))
    command = [binary, "bench", "gpu", "--json", "--only", group, "--device", name, *more]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60)
    said = json.loads(ended.stdout.decode().splitlines()[-1])
    return {f["key"]: f["value"] for f in said["figures"]}


def seconds(device, work, repeats, warm=3):
    """Return the median seconds of one call: by events on a device, by the clock elsewhere."""
    for _ in range(warm):
        work()
    if device.type != "cuda":
        times = []
        for _ in range(repeats):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        return statistics.median(times)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize(device)
    return statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:])) / 1e3
