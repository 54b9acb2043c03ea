"""Options of an adapter, as an engine hands them over: a mapping with the keys and types of a dataclass. Unknown keys are errors.

Keys that end in `_bytes` are sizes and keys that end in `_s` are times: numbers, or strings with a unit.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

#: Where a daemon listens unless its configuration says otherwise.
SOCKET = "/run/kvtide/kvtide.sock"
#: When content counts as stored: other engines find it; it also survives the daemon's kill -9; also a power loss.
LEVELS = ("published", "stored", "durable")
#: Units of sizes, as in the daemon's configuration file, and of times.
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}
_TIMES = {"ms": 1e-3, "s": 1.0, "min": 60.0}

Options = TypeVar("Options")


def read(of: type[Options], given: Mapping[str, Any] | None, where: str, theirs: Sequence[str] = ()) -> Options:
    """The options in `given`, which is what users know as `where`; keys that are `theirs`, the engine's own, are left to it.

    ValueError: names the key that is unknown or has a wrong value, the value, and what is accepted.
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
    """Bytes; None: the value is no size."""
    if type(value) is int:
        return value
    match = re.fullmatch(r"\s*([0-9][0-9_]*)\s*([A-Za-z]*)\s*", value, re.ASCII) if isinstance(value, str) else None
    unit = _SIZES.get(match[2] or "B") if match else None
    return int(match[1].replace("_", "")) * unit if match and unit else None


def _time(value: Any) -> float | None:
    """Seconds; None: the value is no time."""
    if type(value) in (int, float):
        return float(value) if math.isfinite(value) else None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*", value, re.ASCII) if isinstance(value, str) else None
    unit = _TIMES.get(match[2]) if match else None
    return float(match[1]) * unit if match and unit else None


def check_choice(options: Any, name: str, allowed: Sequence[str]) -> None:
    """ValueError: the option is none of `allowed`."""
    if (given := getattr(options, name)) not in allowed:
        raise ValueError(f"kvtide: {name} is {given!r}; it must be one of {', '.join(map(repr, allowed))}")


def check_numbers(options: Any, zero: Sequence[str] = ()) -> None:
    """ValueError: a number among the options is negative, or 0 and not in `zero`."""
    for field in dataclasses.fields(options):
        if isinstance(field.default, bool) or not isinstance(field.default, (int, float)):
            continue
        given, may_be_zero = getattr(options, field.name), field.name in zero
        if given < 0 or (given == 0 and not may_be_zero):
            raise ValueError(f"kvtide: {field.name} is {given}; it must be {'at least' if may_be_zero else 'more than'} 0")
