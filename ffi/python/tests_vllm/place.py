"""A daemon that can be killed and restarted with the same socket and disk."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from kvtide.daemon import find_kvtided

MIB = 1 << 20
#: Limit of every wait, in seconds.
PATIENCE_S = 60.0


class Place:
    """`kvtided` with an NVMe tier, in a directory that persists."""

    def __init__(self, directory: Path, host_bytes: int = 64 * MIB, nvme_bytes: int = 256 * MIB) -> None:
        self.directory, self.host_bytes, self.nvme_bytes = directory, host_bytes, nvme_bytes
        self.socket = directory / "kvtide.sock"
        self.disk = directory / "nvme"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Place:
        """Start the daemon and wait until it accepts engines."""
        self.directory.mkdir(parents=True, exist_ok=True)
        toml = self.directory / "kvtided.toml"
        # Verify every page, and start on a file system that is nearly full.
        toml.write_text(
            '[tiers.host]\nslab = "4MiB"\n[tiers.nvme]\nslab = "8MiB"\n[[tiers.nvme.disks]]\nreserve_free = 0\n[integrity_sample]\none_in = 1\n'
        )
        command = [str(find_kvtided()), "--config", str(toml), "--dir", str(self.directory), "--http", "", "--parent", str(os.getpid())]
        command += ["--host-bytes", str(self.host_bytes)]
        command += ["--nvme-dir", str(self.disk), "--nvme-bytes", str(self.nvme_bytes)]
        with (self.directory / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert b"kvtided is ready on" in line, (self.directory / "daemon.log").read_text()[-4000:]
        return self

    def kill(self) -> None:
        """Kill the daemon with SIGKILL, to simulate a crash."""
        self._end(9)

    def stop(self) -> None:
        """Stop the daemon with SIGTERM."""
        self._end(15)

    def _end(self, signal: int) -> None:
        if self._process is not None:
            self._process.send_signal(signal)
            self._process.wait(PATIENCE_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def damage(self, most: int = 1 << 30) -> int:
        """Flip a bit in at most `most` sectors of the disk's file. Skip its first slab, which holds the store's metadata, and empty
        sectors. Return the number of changed sectors."""
        (file,) = [path for path in self.disk.iterdir() if path.stat().st_size > 8 * MIB]
        flipped = 0
        with file.open("r+b") as data:
            for at in range(8 * MIB, file.stat().st_size - 4096, 4096):
                if flipped == most:
                    break
                data.seek(at + 100)
                old = data.read(1)
                if old != b"\0":
                    data.seek(at + 100)
                    data.write(bytes([old[0] ^ 0x40]))
                    flipped += 1
        return flipped


def until(condition: Callable[[], bool], what: str) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not reached within {PATIENCE_S:g} s"
        time.sleep(0.002)
