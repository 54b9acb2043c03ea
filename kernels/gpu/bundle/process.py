"""Run one command with a time limit and end all processes that it leaves behind."""

import ctypes
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# Time for a command to end after SIGTERM before it is killed.
GRACE_S = 5
# Bytes of each stream that the report keeps; the logs have everything.
TAIL_BYTES = 4000


@dataclass
class Ended:
    """Result of a command."""

    command: list
    seconds: float
    status: int | None  # None: it exceeded its limit
    limit_s: float
    out: str
    tail: str
    objects: list = field(default_factory=list)  # JSON objects that it printed, one per line

    def passed(self):
        return self.status == 0

    def word(self):
        if self.status is None:
            return f"timed out after {self.limit_s:.0f} s"
        return "passed" if self.status == 0 else f"failed with status {self.status}"


class Runner:
    """Runs commands in the bundle's folder with its environment."""

    def __init__(self, here, out, stand_in, device):
        self.logs = out / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.here = here
        self.environment = dict(os.environ)
        # Processes that a command leaves behind become children of this one, so that they can be found and ended.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        python_path = [str(out / "site"), self.environment.get("PYTHONPATH", "")]
        self.environment |= {
            "PYTHONPATH": os.pathsep.join(p for p in python_path if p),
            "PYTHONUNBUFFERED": "1",
            "RUST_BACKTRACE": "1",
            "KVTIDE_BIN": str(here / "bin"),
            "KVTIDE_DEVICE": device,
        }
        if stand_in:
            self.environment["KVTIDE_LIBCUDA"] = str(Path(stand_in).resolve())
        else:
            self.environment["KVTIDE_GPU_TESTS"] = "real"  # tests use the driver, not their own stand-in

    def run(self, name, command, limit_s, environment=None):
        began = time.monotonic()
        logs = [self.logs / f"{name}.out", self.logs / f"{name}.err"]
        with open(logs[0], "wb") as out, open(logs[1], "wb") as err:
            try:
                process = subprocess.Popen(
                    [str(word) for word in command],
                    cwd=self.here,
                    env=self.environment | (environment or {}),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            except OSError as error:
                return Ended(command, 0.0, 127, limit_s, "", f"could not be started: {error}")
            status = wait(process, limit_s)
        end_the_rest()
        out, err = (log.read_bytes().decode(errors="replace") for log in logs)
        tail = "\n".join(text[-TAIL_BYTES:].strip() for text in (out, err) if text.strip())
        return Ended(command, time.monotonic() - began, status, limit_s, out, tail, list(objects(out)))


def wait(process, limit_s):
    """Return its status; None if it had to be ended."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        pass
    for signal_number, grace_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        try:
            os.killpg(process.pid, signal_number)
            process.wait(grace_s)
            break
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    return None


def end_the_rest():
    """Kill processes that a command left running; all of them are children of this process by now."""
    list_of_children = Path("/proc/self/task", str(os.getpid()), "children")
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until:
        children = list_of_children.read_text().split() if list_of_children.exists() else []
        if not children:
            return
        for child in children:
            try:
                os.kill(int(child), signal.SIGKILL)
                os.waitpid(int(child), 0)
            except (ProcessLookupError, ChildProcessError):
                continue


def objects(text):
    """Return the JSON objects among the lines of a text."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue
