"""Run one command with a time limit and end all processes that it leaves behind."""

import ctypes
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from bundle import machine

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# Time for a command to end after SIGTERM, and after SIGKILL: one that waits in the driver may never end.
TERM_S, KILL_S = 2, 3
# Bytes of each stream that the report keeps; the logs have more.
TAIL_BYTES = 4000
# Bytes of a log that are kept of its begin and of its end.
HEAD_BYTES, END_BYTES = 256 << 10, 1 << 20
# Signals that end the run.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)


class Stopped(BaseException):
    """The run must end now: a signal, or its time limit."""


def stop_on_signals(limit_s):
    """Raise `Stopped` at the first signal and at the time limit. Later signals do nothing, because the report is then written."""
    reasons = {signal.SIGALRM: "the time limit of the whole run"}

    def stop(number, _frame):
        ignore_signals()
        raise Stopped(reasons.get(number) or signal_name(number))

    for number in SIGNALS:
        signal.signal(number, stop)
    signal.setitimer(signal.ITIMER_REAL, max(limit_s, 0.001))


def ignore_signals():
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass
class Ended:
    """Result of a command."""

    command: list
    seconds: float
    status: int | None  # None: it was stopped
    stopped: str
    out: str
    tail: str
    objects: list = field(default_factory=list)  # JSON objects that it printed, one per line
    threads: list = field(default_factory=list)  # where its threads waited when it was stopped

    def passed(self):
        return self.status == 0

    def word(self):
        if self.status is None:
            return self.stopped
        if self.status < 0:
            return f"ended by {signal_name(-self.status)}"
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
            "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # a waiting stream does not block the kernels of others
            "PYTHONPATH": os.pathsep.join(p for p in python_path if p),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "RUST_BACKTRACE": "1",
            "KVTIDE_BIN": str(here / "bin"),
            "KVTIDE_DEVICE": device,
        }
        if stand_in:
            self.environment["KVTIDE_LIBCUDA"] = str(Path(stand_in).resolve())
        else:
            self.environment["KVTIDE_GPU_TESTS"] = "real"  # tests use the driver, not their own stand-in

    def run(self, name, command, limit_s, environment=None, before_kill=lambda ended: None):
        """Run a command. If it is stopped, `before_kill` gets its result so far: ending it may take long or fail."""
        began = time.monotonic()
        logs = [self.logs / f"{name}.out", self.logs / f"{name}.err"]
        threads: list = []

        def ended(status, stopped):
            out, err = (clipped(log).decode(errors="replace") for log in logs)
            tail = "\n".join(text[-TAIL_BYTES:].strip() for text in (out, err) if text.strip())
            took = time.monotonic() - began
            return Ended(command, took, status, stopped, out, tail, list(objects(out)), threads)

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
                return Ended(command, 0.0, 127, "", "", f"could not be started: {error}")
            try:
                status, stopped, raised = process.wait(limit_s), "", None
            except subprocess.TimeoutExpired:
                status, stopped, raised = None, f"timed out after {limit_s:.0f} s", None
            except Stopped as reason:
                status, stopped, raised = None, f"stopped by {reason}", reason
        if status is None:
            threads += machine.threads(machine.descendants(os.getpid()))
            before_kill(ended(None, stopped))
            end(process)
        end_the_rest()
        if raised:
            raise raised
        return ended(status, stopped)


def end(process):
    """End a command, gently at first so that it can end the processes that it started."""
    for number, grace_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
        try:
            os.killpg(process.pid, number)
            process.wait(grace_s)
            return
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def end_the_rest():
    """Kill all processes that a command left running. One that the driver does not release is left after a while."""
    until = time.monotonic() + KILL_S
    while (left := machine.descendants(os.getpid())) and time.monotonic() < until:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
            except (ProcessLookupError, ChildProcessError):
                continue
        time.sleep(0.01)


def clipped(path):
    """Return a file's content, without the middle of a long one."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= HEAD_BYTES + END_BYTES:
                return file.read()
            head = file.read(HEAD_BYTES)
            file.seek(size - END_BYTES)
            return head + f"\n[{size - HEAD_BYTES - END_BYTES} bytes left out]\n".encode() + file.read(END_BYTES)
    except OSError:
        return b""


def objects(text):
    """Return the JSON objects among the lines of a text."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue
