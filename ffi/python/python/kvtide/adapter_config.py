"""Options of the adapters for vLLM and SGLang: one base class that parses and checks them.

Keys that end in `_bytes` are sizes and keys that end in `_s` are times: numbers, or strings with a unit. Unknown keys are errors.

>>> config = AdapterConfig.parse({"level": "stored", "attach_timeout_s": "250ms"})
>>> config.level, config.attach_timeout_s
(<Level.STORED: 1>, 0.25)
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from .blocks import Level

#: Default socket of the daemon.
SOCKET = "/run/kvtide/kvtide.sock"
#: Units of sizes (as in the daemon's configuration file) and of times.
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}
_TIMES = {"ms": 1e-3, "s": 1.0, "min": 60.0}

Config = TypeVar("Config", bound="AdapterConfig")


@dataclass(frozen=True)
class AdapterConfig:
    """Options that all adapters have. A subclass adds its own as fields with defaults; the defaults decide the types."""

    #: The engine's name for the mapping with the options; part of error messages.
    WHERE: ClassVar[str] = "the configuration"
    #: Keys of that mapping that belong to the engine. They are skipped.
    ENGINE_KEYS: ClassVar[Sequence[str]] = ()
    #: Keys of other connectors that users may bring along, with what to do instead.
    REPLACED: ClassVar[Mapping[str, str]] = {}
    #: Accepted values of options that are a choice.
    CHOICES: ClassVar[Mapping[str, Sequence[str]]] = {}
    #: Numbers that may be 0. All others must be more than 0.
    ZERO_ALLOWED: ClassVar[Sequence[str]] = ()

    #: Socket of the daemon.
    socket: str = SOCKET
    #: File with the token of this engine's domain, for engines that the daemon cannot identify by uid.
    token_file: str | None = None
    #: Name of the space in the daemon's status and metrics. Only the fingerprint decides which spaces are shared.
    space: str | None = None
    #: When a store is complete. The engine's own copy is held until then.
    level: Level = Level.PUBLISHED
    #: Limit of one attempt to attach.
    attach_timeout_s: float = 5.0
    #: Replaces the hash of the weight files, for files that cannot be read here.
    weights_id: str | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            # An unset variable of a chart. It must not stand for "no weights_id": all fine-tunes of a model would share blocks.
            if getattr(self, field.name) == "":
                raise ValueError(f"kvtide: {field.name} is empty; give it a value, or leave the key out")
        for name, allowed in self.CHOICES.items():
            _check_choice(name, getattr(self, name), allowed)
        for field in dataclasses.fields(self):
            if type(field.default) not in (int, float):
                continue
            given, may_be_zero = getattr(self, field.name), field.name in self.ZERO_ALLOWED
            if given < 0 or (given == 0 and not may_be_zero):
                raise ValueError(f"kvtide: {field.name} is {given}; it must be {'at least' if may_be_zero else 'more than'} 0")

    @classmethod
    def parse(cls: type[Config], given: Mapping[str, Any] | None) -> Config:
        """Return the options in `given`; defaults for None.

        Raise ValueError with the key, its value and the accepted values, if a key is unknown or its value is wrong.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        if replaced := [f"{key!r}: {cls.REPLACED[key]}" for key in given or () if key in cls.REPLACED]:
            raise ValueError(f"kvtide: these keys in {cls.WHERE} are not kvtide's: {'; '.join(replaced)}")
        for key, value in (given or {}).items():
            if key in cls.ENGINE_KEYS:
                continue
            if key not in fields:
                also = f", and the engine's own {', '.join(cls.ENGINE_KEYS)}" if cls.ENGINE_KEYS else ""
                raise ValueError(f"kvtide: unknown key {key!r} in {cls.WHERE}; known are {', '.join(fields)}{also}")
            values[key] = _value(key, value, fields[key].default, cls.WHERE)
        return cls(**values)


def _check_choice(name: str, given: object, allowed: Sequence[str]) -> None:
    if given not in allowed:
        raise ValueError(f"kvtide: {name} is {given!r}; it must be one of {', '.join(map(repr, allowed))}")


def _value(key: str, value: Any, default: Any, where: str) -> Any:
    """Convert the value of a key to the type of its default."""
    found: Any
    kind = str if default is None or isinstance(default, Level) else type(default)
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
    if isinstance(default, Level):
        levels = {str(level): level for level in Level}
        _check_choice(key, found, tuple(levels))
        return levels[found]
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
