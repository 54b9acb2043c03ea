"""Parse an adapter's options: a mapping given by the engine, with the keys and types of a dataclass. Unknown keys are errors.

Keys that end in `_bytes` are sizes and keys that end in `_s` are times: numbers, or strings with a unit.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

#: Default socket of the daemon.
SOCKET = "/run/kvtide/kvtide.sock"
#: Levels at which a store is complete: other engines find the block; it also survives `kill -9` of the daemon; also power loss.
LEVELS = ("published", "stored", "durable")
#: Units of sizes (as in the daemon's configuration file) and of times.
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}
_TIMES = {"ms": 1e-3, "s": 1.0, "min": 60.0}

Options = TypeVar("Options")


def read(of: type[Options], given: Mapping[str, Any] | None, where: str, theirs: Sequence[str] = ()) -> Options:
    """Return the options in `given`. `where` is the name of the mapping in error messages. Keys in `theirs` belong to the engine
    and are skipped.

    Raise ValueError with the key, its value and the accepted values, if a key is unknown or its value is wrong.
    """
    fields = {field.name: field for field in dataclasses.fields(of)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in (given or {}).items():
        if key in theirs:
            continue
        if key not in fields:
            also = f", and the engine's own {', '.join(theirs)}" if theirs else ""
            raise ValueError(f"kvtide: unknown key {key!r} in {where}; known are {', '.join(fields)}{also}")
        values[key] = _value(key, value, fields[key].default, where)
    return of(**values)


def _value(key: str, value: Any, default: Any, where: str) -> Any:
    """Convert the value of a key to the type of its default."""
    found: Any
    kind = str if default is None else type(default)
    if value is None and default is None:
        return None
    if kind is int and key.endswith("_bytes"):
        found, accepted = _size(value), f'a whole number of bytes, or a string with a unit ({", ".join(_SIZES)}) such as "256MiB"'
    elif kind is float and key.endswith("_s"):
        found, accepted = _time(value), f'a number of seconds, or a string with a unit ({", ".join(_TIMES)}) such as "5s"'
    else:
        found, accepted = value if type(value) is kind else None, f"of type {kind.__name__}"
    if found is None:
        raise ValueError(f"kvtide: {key} in {where} is {value!r}; it must be {accepted}")
    return found


def _size(value: Any) -> int | None:
    """Return the value in bytes, or None if it is not a size."""
    if type(value) is int:
        return value
    match = re.fullmatch(r"\s*([0-9][0-9_]*)\s*([A-Za-z]*)\s*", value, re.ASCII) if isinstance(value, str) else None
    unit = _SIZES.get(match[2] or "B") if match else None
    return int(match[1].replace("_", "")) * unit if match and unit else None


def _time(value: Any) -> float | None:
    """Return the value in seconds, or None if it is not a time."""
    if type(value) in (int, float):
        return float(value) if math.isfinite(value) else None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*", value, re.ASCII) if isinstance(value, str) else None
    unit = _TIMES.get(match[2]) if match else None
    return float(match[1]) * unit if match and unit else None


def check_choice(options: Any, name: str, allowed: Sequence[str]) -> None:
    """Raise ValueError if the option `name` is not one of `allowed`."""
    if (given := getattr(options, name)) not in allowed:
        raise ValueError(f"kvtide: {name} is {given!r}; it must be one of {', '.join(map(repr, allowed))}")


def check_numbers(options: Any, zero: Sequence[str] = ()) -> None:
    """Raise ValueError if a number among the options is negative, or is 0 and not listed in `zero`."""
    for field in dataclasses.fields(options):
        if isinstance(field.default, bool) or not isinstance(field.default, (int, float)):
            continue
        given, may_be_zero = getattr(options, field.name), field.name in zero
        if given < 0 or (given == 0 and not may_be_zero):
            raise ValueError(f"kvtide: {field.name} is {given}; it must be {'at least' if may_be_zero else 'more than'} 0")
