"""`python -m e2e`: run the cases, print a line for each, and the number that passed. README.md describes them."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from . import cases, cases_adapters, cases_faults, cases_paged, cases_relay, cases_server, cases_speed, cases_trace
from .kernel import kernel
from .world import Result, World

CASES: dict[str, Callable[[World], Result]] = {
    "again": cases.again,
    "engine-restarted": cases.engine_restarted,
    "daemon-restarted": cases.daemon_restarted,
    "host-too-small": cases.host_too_small,
    "two-engines": cases.two_engines,
    "hybrid": cases.hybrid,
    "adapters": cases_adapters.connector,
    "prefix-caching-off": cases.prefix_caching_off,
    "daemon-killed": cases_faults.daemon_killed,
    "bytes-flipped": cases_faults.bytes_flipped,
    "trace": cases_trace.trace,
    "engine-killed": cases_faults.engine_killed,
    "relay": cases_relay.relay,
    "relay-cut": cases_relay.cut,
}
#: Cases that run only by name.
MORE: dict[str, Callable[[World], Result]] = {"trace-small": cases_trace.trace_small}
#: Cases of `--brief`.
BRIEF = ("again", "engine-restarted", "hybrid", "daemon-killed", "bytes-flipped", "trace", "relay")
PAGED_BRIEF = ("tier0-small", "preempted")
#: Cases of `KvtidePaged`.
PAGED: dict[str, Callable[[World], Result]] = {
    "tier0-small": cases_paged.tier0_small,
    "tier0": cases_paged.tier0,
    "nvme": cases_paged.nvme,
    "shared": cases_paged.shared,
    "preempted": cases_paged.preempted,
    "aborted": cases_paged.aborted,
    "restarted": cases_paged.restarted,
    "two-engines": cases_paged.two_engines,
    "daemon-killed": cases_paged.daemon_killed,
    "adapters": cases_adapters.decoding,
    "guaranteed": cases_paged.guaranteed,
    "capacity": cases_paged.capacity,
    "api-server": cases_server.api_server,
    "ranks": cases_server.ranks,
    "approx": cases_server.approx,
    "kernel": kernel,
    "speed": cases_speed.speed,
    "beside": cases_speed.beside,
    "prefetch": cases_speed.prefetch,
}


def main() -> int:
    """Run the cases. Return 0 if all passed, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m e2e", description=__doc__)
    parser.add_argument("--kvtided", type=Path, required=True, help="daemon binary")
    parser.add_argument("--model", type=Path, required=True, help="folder with config.json and model.safetensors")
    parser.add_argument("--paged", action="store_true", help="run the cases of KvtidePaged")
    parser.add_argument("--case", action="append", help="run only this case; may be repeated")
    parser.add_argument("--keep", type=Path, help="keep logs and directories in this folder")
    parser.add_argument("--brief", action="store_true", help="run some of the cases, and skip the throughput ratio, which takes minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and the lines on stderr")
    args = parser.parse_args()
    known, whole, brief = (PAGED, tuple(PAGED), PAGED_BRIEF) if args.paged else (CASES | MORE, tuple(CASES), BRIEF)
    if unknown := [name for name in args.case or () if name not in known]:
        parser.error(f"unknown case {', '.join(unknown)}; known are {', '.join(known)}")
    shown = sys.stderr if args.json else sys.stdout
    results: list[dict[str, object]] = []
    ratio: float | None = None
    failed = 0
    with tempfile.TemporaryDirectory(prefix="kvtide-e2e-") as temporary:
        directory = args.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        world = World(directory.resolve(), args.kvtided.resolve(), args.model.resolve())
        try:
            for name in args.case or (brief if args.brief else whole):
                began = time.monotonic()
                try:
                    line = known[name](world).line() | {"passed": True}
                except Exception as error:
                    traceback.print_exc()
                    failed += 1
                    line = {"name": name, "equal": False, "passed": False, "why": f"{type(error).__name__}: {error}"}
                line["seconds"] = round(time.monotonic() - began, 1)
                results.append(line)
                print(json.dumps(line), file=shown, flush=True)
            if args.case is None and not args.brief and not args.paged:
                ratio = round(cases_trace.throughput_ratio(world), 4)
                print(f"throughput with the connector and no hits over that without: {ratio}", file=shown, flush=True)
        finally:
            world.close()
    if args.json:
        print(json.dumps({"cases": results, "throughput_ratio": ratio}))
    print(f"{len(results) - failed} passed, {failed} failed", file=shown)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
