#!/usr/bin/env python3
"""Runs kvtide's GPU tests and GPU benches and writes report.json and report.md.

Needs a CUDA driver and a Python with torch; everything else is beside this file. Each part runs in a separate process with a
time limit. Its required features are probed first, and a part that fails does not stop the others. Exit status: 0 if all parts
that could run passed, 1 if one failed, 2 if there is no device.

    python3 run.py                        all parts, within eight minutes, on the first device
    python3 run.py --only demo --only bench-copies
    python3 run.py --stand-in sim/libcuda.so.1    the same on the CPU stand-in: proves that it runs, measures nothing
"""

import argparse
import sys
import tarfile
import time
from pathlib import Path

from bundle import parts, probe, report
from bundle.process import Runner

HERE = Path(__file__).resolve().parent
# Time limit of the whole run, and time that its last part leaves for the report.
BUDGET_S = 480
RESERVE_S = 3


def main():
    arguments = parse()
    out = Path(arguments.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    unpack()
    deadline = time.monotonic() + arguments.budget
    runner = Runner(HERE, out, stand_in=arguments.stand_in, device=arguments.device)
    result = report.Report(HERE, out, stand_in=arguments.stand_in)

    found = probe.look(runner)
    result.found(found)
    if not found.has("device"):
        result.write()
        print(result.text())
        return 2
    for part in parts.all_parts(HERE, out, arguments.device, tiny=arguments.stand_in is not None):
        if arguments.only and part.name not in arguments.only:
            continue
        missing = [need for need in part.needs if not found.has(need)]
        left = deadline - time.monotonic() - RESERVE_S
        if missing:
            result.skipped(part, "needs " + ", ".join(missing))
        elif left < part.least_s:
            result.skipped(part, f"no time left: {left:.0f} s of {arguments.budget} s")
        else:
            print(f"{part.name}: at most {min(part.limit_s, left):.0f} s", file=sys.stderr, flush=True)
            result.ended(part, runner.run(part.name, part.command, min(part.limit_s, left), part.environment))
        result.write()  # after each part, so that an interrupted run leaves its results
    result.write()
    print(result.text())
    return 0 if result.passed() else 1


def unpack():
    """Unpack the compressed part of the bundle beside this file."""
    payload = HERE / "payload.tar.gz"
    if payload.exists() and not (HERE / "bin").exists():
        with tarfile.open(payload) as archive:
            archive.extractall(HERE, filter="data")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=str(HERE / "report"), help="folder for the report and the logs")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="time limit of the whole run in seconds")
    parser.add_argument("--device", default="cuda:0", help="value for kvtide's --device")
    parser.add_argument("--stand-in", help="a library to use instead of the driver; its figures are not measurements")
    parser.add_argument("--only", action="append", help="run only this part; repeatable")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
