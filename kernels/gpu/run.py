#!/usr/bin/env python3
"""Runs kvtide's GPU tests and GPU benches and writes report.tgz: report.json, report.md and the logs.

Needs a CUDA driver and a Python with torch; everything else is beside this file. Each part runs in a separate process with a
time limit, the most important parts first. A part that fails does not stop the others, and report.tgz is complete after each part.
It is written to $OUT, or else beside this file. Exit status: 0 if all parts that could run passed, 1 if one failed, 2 if there is
no device, 3 if the run itself ended early.

    python3 run.py                        all parts, within eight minutes, on the first device
    python3 run.py --only demo --only bench-copies    these again; the report keeps the results of the others
    python3 run.py --stand-in sim/libcuda.so.1    the same on the CPU stand-in: proves that it runs, measures nothing
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import traceback
import zipfile
from pathlib import Path

from bundle import machine, parts, probe, report
from bundle.process import Runner, Stopped, end_the_rest, ignore_signals, stop_on_signals

HERE = Path(__file__).resolve().parent
# Time limit of the whole run, and time that its last part leaves: to kill a part that hangs and to write the report.
BUDGET_S = 480
RESERVE_S = 20
# The stand-in interprets kernels: parts get more time.
STAND_IN_SCALE = 6


def main():
    began = time.monotonic()
    arguments = parse()
    work = Path(arguments.out).resolve()
    work.mkdir(parents=True, exist_ok=True)
    archive = Path(os.environ.get("OUT") or work.parent).resolve() / "report.tgz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    result = report.Report(work, archive, stand_in=arguments.stand_in)
    reserve_s = min(RESERVE_S, arguments.budget / 2)
    status = 3
    try:
        stop_on_signals(arguments.budget - reserve_s / 2)
        status = run(arguments, result, began + arguments.budget - reserve_s)
    except parts.Unknown as error:
        say(error)
        return 2
    except Stopped as reason:
        result.ended_early(f"stopped by {reason}")
    except Exception:  # whatever it is, the results so far are kept
        result.ended_early(traceback.format_exc())
    ignore_signals()
    saved = save(result)  # before the rest ends, because that may take seconds
    end_the_rest()
    say(result.safe_text(), sys.stdout)
    return status if saved else 3


def save(result):
    """Write the report. A full disk must not stop the parts: the next attempt may succeed."""
    try:
        result.write()
        return True
    except OSError as error:
        say(f"the report could not be written: {error}")
        return False


def run(arguments, result, deadline):
    result.manifest = json.loads((HERE / "manifest.json").read_text())
    every = parts.all_parts(HERE, result.work, arguments.device, tiny=arguments.stand_in is not None)
    selected = parts.chosen(every, arguments.only)
    begin(result, every, selected, bool(arguments.only))
    runner = Runner(HERE, result.work, stand_in=arguments.stand_in, device=arguments.device)
    kernel_log = machine.KernelLog()
    result.machine = machine.facts()
    before = kernel_log.new()
    result.machine["kernel log before the run"] = "; ".join(before[-5:]) or kernel_log.why or "nothing about devices"
    found = probe.Found(stand_in=arguments.stand_in)
    save(result)
    unpack(result.work)

    for part in selected:
        limit_s = part.limit_s * arguments.scale
        left = deadline - time.monotonic()
        missing = found.missing(part.needs)
        if missing:
            result.skipped(part, "needs " + ", ".join(missing))
        elif left < min(part.least_s, limit_s):
            result.skipped(part, "no time left")
        else:
            attempt(runner, result, kernel_log, found, part, min(limit_s, left))
        result.words |= found.words
        result.gpu = found.gpu or result.gpu
        save(result)
    if any("device" in part.needs for part in selected) and "device" not in found.features:
        return 2
    return 0 if result.passed() else 1


def attempt(runner, result, kernel_log, found, part, limit_s):
    """Run one part and take its result, also before a part that hangs is killed."""
    say(f"{part.name}: at most {limit_s:.0f} s")
    result.running(part)
    save(result)

    def before_kill(ended):
        result.ended(part, ended, kernel_log.new())
        save(result)

    ended = runner.run(part.name, part.command, limit_s, part.environment, before_kill)
    lines = result.rows[part.name].get("kernel_log", []) + kernel_log.new()
    result.ended(part, ended, lines)
    found.learn(part.name, ended)
    say(f"{part.name}: {ended.word()}, {ended.seconds:.1f} s")


def begin(result, every, selected, update):
    """Start from an empty report, or from the earlier one if only some parts run again."""
    if update and result.load():
        result.planned(part for part in every if part.name not in result.rows)
        # The order is that of a whole run, whatever ran first.
        result.rows = {part.name: result.rows[part.name] for part in every}
        return
    shutil.rmtree(result.work / "logs", ignore_errors=True)
    result.planned(selected)


def unpack(work):
    """Unpack the compressed part of the bundle beside this file, and the wheel without an installer."""
    payload = HERE / "payload.tar.xz"
    # The folder of the wheel is the last one in the archive.
    if payload.exists() and not (HERE / "wheel").exists():
        try:
            with tarfile.open(payload) as archive:
                archive.extractall(HERE, filter="data")
        except tarfile.TarError:  # a Python without lzma
            subprocess.run(["tar", "--extract", "--xz", "--file", payload], cwd=HERE, check=True)
    for wheel in sorted((HERE / "wheel").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / "site")


def say(text, stream=sys.stderr):
    """Print, also if nothing reads any more: the report does not depend on it."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        pass


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=str(HERE / "report"), help="folder for the report, the logs and temporary files")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="time limit of the whole run in seconds")
    parser.add_argument("--scale", type=float, help="multiply the time limit of each part")
    parser.add_argument("--device", default="cuda:0", help="value for kvtide's --device")
    parser.add_argument("--stand-in", help="a library to use instead of the driver; its figures are not measurements")
    parser.add_argument("--only", action="append", help="run only this part and update the report; repeatable")
    arguments = parser.parse_args()
    if arguments.scale is None:
        arguments.scale = STAND_IN_SCALE if arguments.stand_in else 1
    return arguments


if __name__ == "__main__":
    sys.exit(main())
