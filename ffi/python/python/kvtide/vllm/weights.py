"""Digests of files by content, remembered as long as the file is the same one (path, inode, size, times of change)."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

logger = logging.getLogger(f"vllm.{__name__}")

#: A file is hashed in pieces of so many bytes, several at once; its digest is that of theirs.
PIECE_BYTES = 64 << 20
#: Bytes read at once: what a thread holds.
READ_BYTES = 1 << 20
#: Threads that hash: reading and hashing release the interpreter.
THREADS_MAX = 8
DIGEST_BYTES = 32
#: Weights. Which of them an engine loads is its own choice, so that all that are there count.
PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def cache_dir() -> Path:
    """Where digests are remembered: `kvtide` in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kvtide"


def _piece(path: Path, index: int) -> bytes:
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    with path.open("rb", buffering=0) as file:
        file.seek(index * PIECE_BYTES)
        left = PIECE_BYTES
        while left and (data := file.read(min(left, READ_BYTES))):
            state.update(data)
            left -= len(data)
    return state.digest()


def file_digest(path: Path) -> bytes:
    """The digest of a file's content, read now. OSError: it cannot be read."""
    size = path.stat().st_size
    pieces = max(1, -(-size // PIECE_BYTES))
    state = hashlib.blake2b(size.to_bytes(8, "little"), digest_size=DIGEST_BYTES)
    with ThreadPoolExecutor(min(THREADS_MAX, os.cpu_count() or 1, pieces)) as pool:
        for digest in pool.map(lambda index: _piece(path, index), range(pieces)):
            state.update(digest)
    return state.digest()


def _identity(path: Path) -> list[int]:
    stat = path.stat()
    # The second time cannot be set back.
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


@contextlib.contextmanager
def _entry(path: Path) -> Iterator[int | None]:
    """The descriptor of a file's cache entry, locked, so that one process hashes and the others wait; None if there is none."""
    try:
        folder = cache_dir() / "digests"
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.blake2b(os.fsencode(path), digest_size=16).hexdigest()
        fd = os.open(folder / f"{name}.json", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        logger.warning("kvtide: digests of files cannot be remembered in %s: %s", cache_dir(), error)
        yield None
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def remembered_digest(path: Path) -> bytes:
    """The digest of a file's content, as it was computed when the file was last another. OSError: it cannot be read."""
    path = path.resolve()
    with _entry(path) as fd:
        before = _identity(path)
        if fd is not None:
            try:
                known = json.loads(os.pread(fd, 1 << 16, 0) or b"{}")
                if known.get("path") == str(path) and known.get("identity") == before:
                    return bytes.fromhex(known["digest"])
            except (ValueError, KeyError, TypeError, AttributeError):
                pass  # of another version, or cut off: written anew
        digest = file_digest(path)
        if _identity(path) != before:
            raise OSError(f"{path} changed while it was read")
        if fd is not None:
            text = json.dumps({"path": str(path), "identity": before, "digest": digest.hex()}).encode()
            os.ftruncate(fd, 0)
            os.pwrite(fd, text, 0)
        return digest


def folder_digest(folder: Path, patterns: Sequence[str] = PATTERNS, also: Sequence[str] = ()) -> bytes:
    """Of a folder's files of all patterns, and of those of `also` that it has: names and contents.

    FileNotFoundError: it has none of the patterns.
    """
    files = sorted({file for pattern in patterns for file in folder.glob(pattern) if file.is_file()})
    if not files:
        raise FileNotFoundError(f"no weights in {folder}: no file is like {', '.join(patterns)}")
    files += sorted(folder / name for name in also if (folder / name).is_file())
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for file in files:
        state.update(os.fsencode(file.name) + b"\0" + remembered_digest(file))
    return state.digest()


def model_digest(model: str, revision: str | None, download_dir: str | None) -> bytes:
    """Of a model's weights: a folder, a file, or a name whose snapshot the Hugging Face cache holds.

    FileNotFoundError: no such weights on this machine.
    """
    path = Path(model)
    if path.is_file():
        return remembered_digest(path)
    if path.is_dir():
        return folder_digest(path)
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415 (vLLM brings it)

        found = snapshot_download(model, revision=revision, cache_dir=download_dir, local_files_only=True)
    except Exception as error:  # its own kinds of errors differ between versions; all of them mean that there is none
        raise FileNotFoundError(
            f"the weights of {model!r} are neither a file nor a folder, nor in the Hugging Face cache: {error}"
        ) from error
    return folder_digest(Path(found))
