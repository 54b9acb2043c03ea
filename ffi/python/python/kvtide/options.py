"""Options of an adapter, as an engine hands them over: a mapping whose keys and types are those of a dataclass. Unknown keys are errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

#: Where a daemon listens unless its configuration says otherwise.
SOCKET = "/run/kvtide/kvtide.sock"

Options = TypeVar("Options")


def read(of: type[Options], given: Mapping[str, Any] | None, where: str, theirs: Sequence[str] = ()) -> Options:
    """The options in `given`, which is what users know as `where`; keys that are `theirs`, the engine's own, are left to it.

    ValueError: names the key that is unknown or has a value of another type, and what is known.
    """
    fields = {field.name: field for field in dataclasses.fields(of)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in (given or {}).items():
        if key in theirs:
            continue
        if key not in fields:
            also = f", and the engine's own {', '.join(theirs)}" if theirs else ""
            raise ValueError(f"kvtide: unknown key {key!r} in {where}; known are {', '.join(fields)}{also}")
        default = fields[key].default
        kind = str if default is None else type(default)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind and not (value is None and default is None):
            raise ValueError(f"kvtide: {key} is {value!r}; it must be of type {kind.__name__}")
        values[key] = value
    return of(**values)
