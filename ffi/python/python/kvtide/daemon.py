"""A private daemon: for examples, notebooks and tests. A server has one of its own, as docs/operations.md describes."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

#: How long a daemon may take to listen, and to end. Seconds.
START_S = 30.0
END_S = 10.0
#: Bytes of the end of its log that an error shows.
LOG_SHOWN = 4000


class DaemonError(RuntimeError):
    """The daemon could not be found or started; the text holds the end of its log."""


def binary(given: str | os.PathLike[str] | None = None) -> Path:
    """`kvtided`: the one that is given, that of the environment's KVTIDED, or the one on the PATH."""
    named = given if given is not None else os.environ.get("KVTIDED")
    if named is not None:
        if not os.access(named, os.X_OK):
            raise DaemonError(f"{os.fspath(named)} is no program that can be run")
        return Path(named)
    found = shutil.which("kvtided")
    if found is None:
        raise DaemonError("no kvtided on the PATH; build it (cargo build --release) and name it in KVTIDED")
    return Path(found)


def stopped(pid: int) -> None:
    """Returns when no thread of a process that was sent SIGSTOP runs any more. DaemonError: one still does after `END_S`."""
    deadline = time.monotonic() + END_S
    while not all(_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > deadline:
            raise DaemonError(f"process {pid} does not stop within {END_S:g} s of SIGSTOP")


def _stopped(task: Path) -> bool:
    """Whether a thread does not run: it is stopped, or over."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] in "TZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


class PrivateDaemon:
    """`kvtided` with a directory and a socket of its own, for as long as the `with` block or this process lasts.

    `host_bytes` is the capacity of its host tier, of which spaces get slabs of `slab_bytes`; `config` is TOML for everything
    else, as configs/kvtided.toml describes it.
    """

    def __init__(
        self,
        host_bytes: int,
        *,
        slab_bytes: int | None = None,
        program: str | os.PathLike[str] | None = None,
        config: str = "",
    ) -> None:
        found = binary(program)
        self.directory = Path(tempfile.mkdtemp(prefix="kvtide-"))
        self.socket = self.directory / "kvtide.sock"
        toml = self.directory / "kvtided.toml"
        toml.write_text(config)
        command = [str(found), "--config", str(toml), "--dir", str(self.directory), "--remove-dir", "--http", ""]
        command += ["--parent", str(os.getpid()), "--host-bytes", str(host_bytes)]
        if slab_bytes is not None:
            command += ["--slab-bytes", str(slab_bytes)]
        # It is its owner's, and no service of its owner's service manager.
        environment = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")}
        try:
            with (self.directory / "daemon.log").open("wb") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # a Ctrl-C at the terminal is for its owner, which ends it
                )
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        try:
            self._ready()
        except BaseException:
            self.close()
            raise

    def _ready(self) -> None:
        """Waits for the line on its stdout that says that it accepts engines."""
        assert self._process.stdout is not None
        stdout, heard, deadline = self._process.stdout, b"", time.monotonic() + START_S
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"kvtided is ready on" not in heard:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise DaemonError(f"kvtided does not listen after {START_S:g} s; its log:\n{self.log()}")
                chunk = os.read(stdout.fileno(), 4096)
                if not chunk:
                    ended = self._process.wait(END_S)
                    raise DaemonError(f"kvtided ended with {ended} before it listened; its log:\n{self.log()}")
                heard += chunk

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def log(self) -> str:
        """The end of what it wrote."""
        try:
            return (self.directory / "daemon.log").read_text(errors="replace")[-LOG_SHOWN:]
        except FileNotFoundError:
            return ""

    def freeze(self) -> None:
        """Stops it in its tracks, as a machine that hangs would. Returns when none of its threads runs any more."""
        self._process.send_signal(signal.SIGSTOP)
        stopped(self.pid)

    def thaw(self) -> None:
        """Lets it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends it and takes its directory away."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> PrivateDaemon:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
