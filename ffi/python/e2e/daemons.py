"""A kvtided that a case starts, stops, kills, restarts and queries."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

#: Limits in seconds: to start listening, to exit, and to reach a state that a case waits for.
START_S = 60.0
END_S = 60.0
STATE_S = 60.0
#: Interval in seconds between two queries of the metrics.
LOOK_S = 0.02
#: Bytes at the end of the log that an error shows.
LOG_SHOWN = 4000

MIB = 1 << 20
LINE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")


def add_figures(found: dict[str, float], path: str, value: object) -> None:
    """Add each number in a JSON value to the figure of its path. The elements of a list have the path of the list."""
    if isinstance(value, dict):
        for name, inner in value.items():
            add_figures(found, f"{path}/{name}" if path else name, inner)
    elif isinstance(value, list):
        for inner in value:
            add_figures(found, path, inner)
    elif isinstance(value, int | float):
        found[path] = found.get(path, 0.0) + value


class DaemonError(RuntimeError):
    """The daemon did not start, or did not reach a state. The text includes the end of its log."""


class Daemon:
    """`kvtided` with one socket and, unless `nvme_mib` is 0, one NVMe directory. Both outlive its process."""

    def __init__(self, program: Path, directory: Path, *, host_mib: int, nvme_mib: int, config: str = "") -> None:
        directory.mkdir()
        self._program, self._directory = program, directory
        #: With these, a `kvtide.daemon.PrivateRelay` can be its relay.
        self.directory, self.relay_socket = directory, directory / "relay.sock"
        self.socket = directory / "kvtide.sock"
        self.nvme = directory / "nvme"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        if nvme_mib:  # start on a file system that is nearly full
            config += "\n[[tiers.nvme.disks]]\nreserve_free = 0\n"
        (directory / "kvtided.toml").write_text(config)
        self._arguments = ["--config", str(directory / "kvtided.toml"), "--dir", str(directory), "--http", f"127.0.0.1:{self._port}"]
        self._arguments += ["--host-bytes", str(host_mib * MIB), "--slab-bytes", str(min(4, host_mib) * MIB)]
        self._arguments += ["--parent", str(os.getpid())]
        if nvme_mib:
            self._arguments += ["--nvme-dir", str(self.nvme), "--nvme-bytes", str(nvme_mib * MIB)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """Return the port of its HTTP address."""
        return self._port

    @property
    def nvme_from_outside(self) -> Path:
        """Return the path of its NVMe directory for other processes, if it has file systems of its own."""
        assert self._process is not None, "the daemon is not running"
        return Path(f"/proc/{self._process.pid}/root", *self.nvme.parts[1:])

    def log(self) -> str:
        """Return the end of the daemon's log."""
        path = self._directory / "daemon.log"
        return path.read_text(errors="replace")[-LOG_SHOWN:] if path.exists() else ""

    def start(self) -> None:
        """Start the daemon and wait until it accepts engines."""
        assert self._process is None, "the daemon is already running"
        with (self._directory / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), *self._arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        heard, deadline = b"", time.monotonic() + START_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"kvtided is ready on" not in heard:
                chunk = b""
                if selector.select(max(0.0, deadline - time.monotonic())):
                    chunk = os.read(self._process.stdout.fileno(), 4096)
                if not chunk:
                    self.kill()
                    raise DaemonError(f"kvtided did not start listening; its log:\n{self.log()}")
                heard += chunk

    def _end(self, signal_number: int) -> None:
        assert self._process is not None, "the daemon is not running"
        process, self._process = self._process, None
        process.send_signal(signal_number)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise DaemonError(f"kvtided did not exit within {END_S:g} s; its log:\n{self.log()}") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def stop(self) -> None:
        """Send SIGTERM and wait for the exit."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Send SIGSTOP and wait until all threads have stopped."""
        from kvtide.daemon import wait_stopped  # noqa: PLC0415 (llama.cpp's environment has no kvtide)

        assert self._process is not None, "the daemon is not running"
        self._process.send_signal(signal.SIGSTOP)
        wait_stopped(self._process.pid)

    def thaw(self) -> None:
        """Send SIGCONT."""
        assert self._process is not None, "the daemon is not running"
        self._process.send_signal(signal.SIGCONT)

    def metrics(self) -> dict[str, float]:
        """Return the metrics: each name summed over its labels, and each name with its labels as `name{labels}`. Figures of spaces in
        the status are there too, summed over all spaces, by their path: `core/requests`."""
        found: dict[str, float] = {}
        for space in json.loads(self._get("/v1/status"))["spaces"]:
            add_figures(found, "", space)
        for line in self._get("/metrics").splitlines():
            match = LINE.match(line)
            if match is None or match["name"].endswith("_bucket"):
                continue
            value = float(match["value"])
            found[match["name"]] = found.get(match["name"], 0.0) + value
            if match["labels"]:
                found[f"{match['name']}{{{match['labels']}}}"] = value
        return found

    def _get(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def labelled(self, name: str, label: str) -> float:
        """Return a metric summed over the lines with this label (`state="free"`)."""
        return sum(value for key, value in self.metrics().items() if key.startswith(name + "{") and label in key)

    def until(
        self, state: str, reached: Callable[[dict[str, float]], bool], *, pause_s: float = LOOK_S
    ) -> dict[str, float]:
        """Poll the metrics until `reached` is true for them, and return them. The daemon sends no notifications of changes."""
        deadline = time.monotonic() + STATE_S
        while True:
            metrics = self.metrics()
            if reached(metrics):
                return metrics
            if time.monotonic() > deadline:
                shown = {k: v for k, v in metrics.items() if k.startswith("kvtide_") and "{" not in k and v and not k.endswith(("_sum", "_count"))}
                raise DaemonError(f"kvtided did not reach within {STATE_S:g} s: {state}; {shown}; its log:\n{self.log()}")
            time.sleep(pause_s)

    def close(self) -> None:
        """Stop the daemon if it is running."""
        if self._process is not None:
            self.stop()

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
