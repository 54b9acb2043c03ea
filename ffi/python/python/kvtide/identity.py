"""Identity of an engine: the parts of its fingerprint by name, as text. The daemon keeps it, and returns it to an engine of the same
space name with another fingerprint that has no blocks. That engine's log then says which parts differ. Also: how hashes are logged."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping

import kvtide

from .blocks import HASH_BYTES

#: Maximum bytes of an identity (`IDENTITY_BYTES_MAX` in ffi/wire/src/hello/attach.rs), and maximum characters of a part's value in it.
BYTES_MAX = 4096
VALUE_MAX = 100


def _short(value: str) -> str:
    if len(value) <= VALUE_MAX:
        return value
    return f"{value[: VALUE_MAX // 2]}… {hashlib.blake2b(value.encode(), digest_size=8).hexdigest()}"


def text(parts: Mapping[str, str]) -> str:
    """Return the identity with these parts. A long value is replaced by its beginning and a digest. Parts that do not fit are left
    out, the last ones first."""
    kept = {name: _short(parts[name]) for name in sorted(parts)}
    while len((written := json.dumps(kept, ensure_ascii=False)).encode()) > BYTES_MAX:
        kept.popitem()
    return written


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the parts that differ, one line each: name, old value, new value."""
    names = sorted(before.keys() | now.keys())
    return [f"{n}: {before.get(n, '-')} -> {now.get(n, '-')}" for n in names if before.get(n) != now.get(n)]


def log_differences(logger: logging.Logger, session: kvtide.Session, space: kvtide.Space) -> None:
    """Log why a session finds no blocks, if the daemon has blocks of an engine of the same name with another fingerprint: the names of
    the parts that differ at INFO, their values at DEBUG."""
    if session.other_identity is None or not space.identity:
        return
    try:
        before, now = json.loads(session.other_identity), json.loads(space.identity)
        lines = differences(before, now)
    except (ValueError, AttributeError):  # of another program that uses the name
        logger.info("kvtide: no blocks are found for %r: the stored ones are of another kind of engine", space.name)
        return
    # Equal parts: the fingerprint covers something that no part names, or the pages have other sizes.
    changed = ", ".join(line.partition(":")[0] for line in lines) or "layout of pages"
    logger.info("kvtide: no blocks are found for %r: the stored ones are of an engine with different %s", space.name, changed)
    for line in lines:
        logger.debug("kvtide: fingerprint differs: %s", line)


def log_lookup(logger: logging.Logger, what: str, hashes: bytes, found: int) -> None:
    """Log the last of a prompt's hashes at level DEBUG, in the form that `kvtide why` takes."""
    if hashes and logger.isEnabledFor(logging.DEBUG):
        count, last = len(hashes) // HASH_BYTES, hashes[-HASH_BYTES:].hex()
        logger.debug("kvtide: %s: %d of %d blocks found; the last block is %s", what, found, count, last)
