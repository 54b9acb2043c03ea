"""Start a private daemon, for examples, notebooks and tests. docs/operations.md describes the daemon of a server.

`python -m kvtide.daemon …` runs the `kvtided` that `find_kvtided` finds, with the given arguments.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Protocol

#: Limits in seconds for the daemon to start listening, and to exit.
START_S = 30.0
END_S = 10.0
#: Interval in seconds between two looks for a line in a log.
LOOK_S = 0.02
#: Bytes at the end of the daemon's log that an error shows.
LOG_SHOWN = 4000


class DaemonError(RuntimeError):
    """The daemon was not found or did not start. The text includes the end of its log."""


def find_kvtided(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of `kvtided`: `given`, else the environment variable KVTIDED, else the one that a wheel with the programs
    installed beside this Python, else the first one on the PATH.

    Raise DaemonError if there is none, or if it is not executable.
    """
    named = given if given is not None else os.environ.get("KVTIDED")
    if named is not None:
        if not os.access(named, os.X_OK):
            raise DaemonError(f"{os.fspath(named)} is not an executable file")
        return Path(named)
    found = shutil.which("kvtided", path=Path(sys.executable).parent) or shutil.which("kvtided")
    if found is None:
        raise DaemonError(
            "kvtided is neither beside this Python nor on the PATH. Install a wheel of a release, which has it, or build it (cargo build "
            "--release) and set KVTIDED to its path"
        )
    return Path(found)


def wait_stopped(pid: int) -> None:
    """Wait until all threads of a process have stopped after SIGSTOP. Raise DaemonError if one still runs after `END_S`."""
    deadline = time.monotonic() + END_S
    while not all(_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        if time.monotonic() > deadline:
            raise DaemonError(f"process {pid} did not stop within {END_S:g} s of SIGSTOP")


def _stopped(task: Path) -> bool:
    """Return whether a thread is stopped or has exited."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] in "TZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def relay_domain(relay_socket: Path) -> str:
    """Return the part of a daemon's configuration with which this user's processes are engines and relays, and engines ask at
    `relay_socket`."""
    uid = os.geteuid()
    return f'\n[[domains]]\nname = "private"\nuids = [{uid}]\nrelay_uids = [{uid}]\nrelay_socket = "{relay_socket}"\n'


class PrivateDaemon:
    """`kvtided` with its own directory and socket, for the duration of the `with` block or of this process.

    `host_bytes` is the capacity of its host tier; spaces get it in slabs of `slab_bytes`. `config` is TOML for all other settings,
    as in configs/kvtided.toml. `socket` is the path to attach to, `directory` has the log. `relay`: it names a relay to its engines,
    which a `PrivateRelay` then is.

    >>> import kvtide
    >>> with PrivateDaemon(64 << 20) as daemon:
    ...     space = kvtide.Space("private-example", bytes(32), page_tokens=16, planes=[kvtide.Plane(4096)])
    ...     with kvtide.attach(daemon.socket, space) as session:
    ...         session.alive
    True

    Raise DaemonError if the daemon was not found or did not start.
    """

    def __init__(
        self,
        host_bytes: int,
        *,
        slab_bytes: int | None = None,
        program: str | os.PathLike[str] | None = None,
        config: str = "",
        relay: bool = False,
    ) -> None:
        found = find_kvtided(program)
        self.directory = Path(tempfile.mkdtemp(prefix="kvtide-"))
        self.socket = self.directory / "kvtide.sock"
        self.relay_socket = self.directory / "relay.sock"
        if relay:
            config += relay_domain(self.relay_socket)
        toml = self.directory / "kvtided.toml"
        toml.write_text(config)
        command = [str(found), "--config", str(toml), "--dir", str(self.directory), "--remove-dir", "--http", ""]
        command += ["--parent", str(os.getpid()), "--host-bytes", str(host_bytes)]
        if slab_bytes is not None:
            command += ["--slab-bytes", str(slab_bytes)]
        # The daemon belongs to this process; it must not report to the service manager of this process.
        environment = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")}
        try:
            with (self.directory / "daemon.log").open("wb") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    start_new_session=True,  # Ctrl-C at the terminal reaches only this process, which then ends the daemon
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
        """Wait for the line on stdout that reports that the daemon accepts engines."""
        assert self._process.stdout is not None
        stdout, heard, deadline = self._process.stdout, b"", time.monotonic() + START_S
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"kvtided is ready on" not in heard:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise DaemonError(f"kvtided did not listen within {START_S:g} s; its log:\n{self.log()}")
                chunk = os.read(stdout.fileno(), 4096)
                if not chunk:
                    ended = self._process.wait(END_S)
                    raise DaemonError(f"kvtided exited with status {ended} before it listened; its log:\n{self.log()}")
                heard += chunk

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def log(self) -> str:
        """Return the end of the daemon's log."""
        try:
            return (self.directory / "daemon.log").read_text(errors="replace")[-LOG_SHOWN:]
        except FileNotFoundError:
            return ""

    def freeze(self) -> None:
        """Stop the daemon with SIGSTOP, to simulate a hang. Return when all its threads have stopped."""
        self._process.send_signal(signal.SIGSTOP)
        wait_stopped(self.pid)

    def thaw(self) -> None:
        """Continue a frozen daemon."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the daemon with SIGKILL, to simulate a crash."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the daemon and remove its directory."""
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


class _NamesRelay(Protocol):
    """A daemon that names a relay: where engines find the daemon and the relay, and a directory for the relay's files."""

    @property
    def directory(self) -> Path: ...
    @property
    def socket(self) -> Path: ...
    @property
    def relay_socket(self) -> Path: ...


class PrivateRelay:
    """`kvtide-relay` of a `PrivateDaemon` with `relay`, for the duration of the `with` block. The program is beside `kvtided`.

    `store` is the URL of a store that relays have in common, as in configs/relay.toml, or a directory. `key` is their shared key, 32
    bytes. `config` is TOML for all other settings. It starts at once, and answers engines shortly after they have attached.
    """

    def __init__(
        self,
        daemon: _NamesRelay,
        store: str | Path,
        *,
        key: bytes = bytes(32),
        config: str = "",
        program: str | os.PathLike[str] | None = None,
    ) -> None:
        found = Path(program) if program is not None else find_kvtided().with_name("kvtide-relay")
        if not os.access(found, os.X_OK):
            raise DaemonError(f"{found} is missing. Build it: cargo build --release -p kvtide-relay")
        self._log = daemon.directory / "relay.log"
        secret, toml = daemon.directory / "relay.key", daemon.directory / "relay.toml"
        secret.touch(mode=0o600)
        toml.touch(mode=0o600)  # the URL can have a password
        secret.write_text(key.hex())
        url = f"file://{store}" if isinstance(store, Path) else store
        toml.write_text(
            f'[daemon]\nsocket = "{daemon.socket}"\n[[domains]]\nname = "private"\nshared_key_file = "{secret}"\n'
            f'[domains.adapters]\nsocket = "{daemon.relay_socket}"\nuids = [{os.geteuid()}]\n[http]\nlisten = "127.0.0.1:0"\n'
            f'[store]\nurl = "{url}"\n{config}'
        )
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([found, "--config", toml], stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def metrics(self) -> dict[str, float]:
        """Return its metrics, each summed over its labels. Raise DaemonError if it does not serve them within `START_S`."""
        deadline = time.monotonic() + START_S
        while (match := re.search(r"http://(127\.0\.0\.1:\d+)", self._log.read_text(errors="replace"))) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise DaemonError(f"kvtide-relay does not serve metrics; its log:\n{self.log()}")
            time.sleep(LOOK_S)
        found: dict[str, float] = {}
        with urllib.request.urlopen(f"http://{match[1]}/metrics", timeout=END_S) as answer:
            for line in answer.read().decode().splitlines():
                if not line.startswith("#"):
                    name, value = re.split(r"[{ ]", line, maxsplit=1)[0], line.rsplit(" ", 1)[1]
                    found[name] = found.get(name, 0.0) + float(value)
        return found

    def log(self) -> str:
        """Return the end of the relay's log."""
        try:
            return self._log.read_text(errors="replace")[-LOG_SHOWN:]
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """End the relay. Killing it is enough: it keeps nothing that must be written."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> PrivateRelay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


if __name__ == "__main__":
    program = find_kvtided()
    os.execv(program, [str(program), *sys.argv[1:]])
