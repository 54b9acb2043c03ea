"""Statistics of one half of the connector in a small shared file, so that vLLM's API server can read them at any time.

The owner holds an exclusive flock on its file as long as it lives. A file without that lock is left over from a dead owner: readers
skip and remove it. Reading and writing need no system call per value, and no process waits for another.

File: magic and digest of the counter names (16 bytes), part (64), reason (8 + 256), then 8-byte floats: attached, time of the last
attach (`time.monotonic`, which all processes of a machine share), and the counters.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import mmap
import os
import re
import secrets
import stat
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(f"vllm.{__name__}")

_MAGIC = b"kvtstat1"
_HEAD_BYTES, _PART_BYTES, _REASON_BYTES = 16, 64, 256
_PART_AT = _HEAD_BYTES
_REASON_AT = _PART_AT + _PART_BYTES
#: CRC-32 and length of the reason, before its text.
_REASON_HEAD = struct.Struct("<II")
_CELLS_AT = _REASON_AT + _REASON_HEAD.size + _REASON_BYTES
#: Cells before the counters.
_ATTACHED, _ATTACHED_AT, _COUNTERS = range(3)
#: Longest reason in characters. In UTF-8 it may be cut shorter.
REASON_MAX = 200
#: Limits of one read of the directory. More files than these are not read.
ENTRIES_MAX, FILES_MAX = 4096, 1024
#: Attempts to create a file. An attempt fails if a reader meets the file before it is locked.
ATTEMPTS_MAX = 10
_NAME = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}")

#: Descriptors of this process's own files. A forked child closes them: otherwise it would keep the locks of its dead parent.
_own: set[int] = set()


def _close_in_child() -> None:
    for fd in _own:
        os.close(fd)
    _own.clear()


os.register_at_fork(after_in_child=_close_in_child)


@dataclass(frozen=True)
class Shown:
    """Content of a file whose owner lives."""

    part: str
    attached: bool
    #: Seconds since the last attach; None before the first.
    since_attach_s: float | None
    #: Reason of the last failure; empty while attached.
    reason: str
    counters: dict[str, float]


def _directories() -> list[Path]:
    """Return the private directories that may hold files, in the order of preference."""
    bases = [os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm", tempfile.gettempdir()]
    return [Path(base) / f"kvtide-vllm-{os.geteuid()}" for base in bases if base]


def _private(directory: Path) -> bool:
    """Return whether the directory exists and only this user can write to it."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _digest(engine_id: str) -> str:
    return hashlib.blake2b(engine_id.encode(), digest_size=16).hexdigest()


def _head(names: Sequence[str]) -> bytes:
    return _MAGIC + hashlib.blake2b("\n".join(names).encode(), digest_size=8).digest()


def _size(names: Sequence[str]) -> int:
    return _CELLS_AT + 8 * (_COUNTERS + len(names))


class SharedStats:
    """The writer's side. Calls must not overlap."""

    def __init__(self, engine_id: str, part: str, names: Sequence[str]) -> None:
        """Create the file. Raise OSError if no directory can hold it."""
        self._names = {name: at for at, name in enumerate(names, _COUNTERS)}
        size = _size(names)
        self._path, self._fd = _create(_digest(engine_id), size)
        # Through a descriptor of its own: mmap keeps a copy, and in a forked child that would keep the lock.
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._cells = memoryview(self._map)[_CELLS_AT:].cast("d")
        self._map[_PART_AT:_REASON_AT] = part.encode()[: _PART_BYTES - 1].ljust(_PART_BYTES, b"\0")
        self._map[:_HEAD_BYTES] = _head(names)  # from now on readers accept the file

    def add(self, name: str, value: float) -> None:
        """Add `value` to a counter."""
        self._cells[self._names[name]] += value

    def attached(self) -> None:
        """Record an attach."""
        self._set_reason("")
        self._cells[_ATTACHED_AT] = time.monotonic()
        self._cells[_ATTACHED] = 1.0

    def detached(self, reason: str) -> None:
        """Record a failed attach, or the end of a session."""
        self._cells[_ATTACHED] = 0.0
        self._set_reason(reason)

    def _set_reason(self, reason: str) -> None:
        text = _plain(reason).encode()[:_REASON_BYTES]
        # A reader that meets a half-written text sees a wrong checksum and reads again.
        head = _REASON_HEAD.pack(zlib.crc32(text), len(text))
        self._map[_REASON_AT : _REASON_AT + len(head) + len(text)] = head + text

    def close(self) -> None:
        """Remove the file."""
        if self._fd < 0:
            return
        self._path.unlink(missing_ok=True)
        self._cells.release()
        self._map.close()
        _own.discard(self._fd)
        os.close(self._fd)
        self._fd = -1


def _plain(text: str) -> str:
    """Return the text on one line, at most REASON_MAX characters of it."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:REASON_MAX])


def _create(digest: str, size: int) -> tuple[Path, int]:
    """Create and lock a file of zeros. Return its path and descriptor."""
    last: OSError | None = None
    for directory in _directories():
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            if not _private(directory):
                raise PermissionError(f"{directory} is not a directory that only this user can access")
            return _create_in(directory, digest, size)
        except OSError as error:
            last = error
    assert last is not None
    raise last


def _create_in(directory: Path, digest: str, size: int) -> tuple[Path, int]:
    for entry in _entries(directory, ""):
        _remove_if_dead(entry)
    for _ in range(ATTEMPTS_MAX):
        path = directory / f"{digest}-{secrets.token_hex(8)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Allocate the memory now: a write to a hole of a full tmpfs would kill the process with SIGBUS.
            os.posix_fallocate(fd, 0, size)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                _own.add(fd)
                return path, fd
        except BlockingIOError:
            pass  # a reader is removing the file, which it found without a lock
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        os.close(fd)
    raise OSError(f"no file could be created in {directory} in {ATTEMPTS_MAX} attempts")


def _entries(directory: Path, prefix: str) -> Iterator[Path]:
    """Return paths of files whose names start with `prefix`, at most FILES_MAX of them."""
    found = 0
    try:
        with os.scandir(directory) as entries:
            for _, entry in zip(range(ENTRIES_MAX), entries, strict=False):
                if found < FILES_MAX and entry.name.startswith(prefix) and _NAME.fullmatch(entry.name):
                    found += 1
                    yield directory / entry.name
    except OSError as error:
        logger.debug("kvtide: cannot read %s: %s", directory, error)


def _open_alive(path: Path) -> int | None:
    """Open a file whose owner lives. Remove the file of a dead owner and return None."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Shared: of two readers that meet here, neither takes the other one for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return fd
    except OSError:
        os.close(fd)
        return None
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.debug("kvtide: cannot remove %s: %s", path, error)
    os.close(fd)
    return None


def _remove_if_dead(path: Path) -> None:
    if (fd := _open_alive(path)) is not None:
        os.close(fd)


def read(engine_ids: Sequence[str], names: Sequence[str]) -> list[Shown]:
    """Return what the living owners of these engines' files show, one per part. Files that are damaged, or of another version, are
    skipped."""
    found: dict[str, tuple[float, Shown]] = {}
    for directory in _directories():
        if not _private(directory):
            continue
        for engine_id in engine_ids:
            for path in _entries(directory, _digest(engine_id)):
                fd = _open_alive(path)
                if fd is None:
                    continue
                try:
                    shown = _read(fd, names)
                    changed = os.fstat(fd).st_ctime
                except (OSError, ValueError) as error:
                    logger.debug("kvtide: %s is not shown: %s", path, error)
                    continue
                finally:
                    os.close(fd)
                # One series per part: two series with the same labels would fail the whole scrape.
                if shown.part not in found or found[shown.part][0] < changed:
                    found[shown.part] = changed, shown
    return [shown for _, shown in found.values()]


def _read(fd: int, names: Sequence[str]) -> Shown:
    """Parse a file. Raise ValueError if it is damaged."""
    size = _size(names)
    for _ in range(3):
        data = os.pread(fd, size + 1, 0)
        if len(data) != size or data[:_HEAD_BYTES] != _head(names):
            raise ValueError("not a file of this version")
        crc, length = _REASON_HEAD.unpack_from(data, _REASON_AT)
        start = _REASON_AT + _REASON_HEAD.size
        text = data[start : start + min(length, _REASON_BYTES)]
        if zlib.crc32(text) == crc:
            break
    else:
        raise ValueError("the reason's checksum is wrong")
    attached, at, *counters = struct.unpack_from(f"={_COUNTERS + len(names)}d", data, _CELLS_AT)
    if not all(math.isfinite(value) and value >= 0 for value in (attached, at, *counters)):
        raise ValueError("a value is negative or not a number")
    part = data[_PART_AT:_REASON_AT].partition(b"\0")[0].decode(errors="replace")
    return Shown(
        _plain(part),
        attached > 0,
        max(0.0, time.monotonic() - at) if at else None,
        "" if attached else _plain(text.decode(errors="replace")),
        dict(zip(names, counters, strict=True)),
    )
