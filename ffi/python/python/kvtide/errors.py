"""Exceptions: one class for each status of the client, each also of the built-in kind that fits it best."""

from __future__ import annotations


class Error(Exception):
    """A call of kvtide failed. The text says what was tried, on what, and why it failed."""

    #: The status code, as in the C ABI.
    code: int = -1


class Again(Error, BlockingIOError):
    """A ring or a bounded table is full: try again after a completion."""


class Invalid(Error, ValueError):
    """An argument contradicts the geometry, the protocol or another argument."""


class NotFound(Error, LookupError):
    """No such sequence, block, pin or hash in this session."""


class OutOfRange(Error, IndexError):
    """A page, plane, token or lane index is out of range."""


class NoSpace(Error, MemoryError):
    """No tier has room for more pages, and nothing may be evicted."""


class TooBig(Error, MemoryError):
    """More pages than tier 0 has frames: no wait could ever satisfy it."""


class Busy(Error):
    """The page is pinned or in use."""


class TimedOut(Error, TimeoutError):
    """The deadline passed first."""


class Canceled(Error):
    """Cancelled by the engine."""


class DaemonGone(Error, ConnectionError):
    """The daemon is gone. What is in tier 0 stays readable; reattach."""


class Lost(Error):
    """The page existed nowhere else and is lost."""


class TransferFailed(Error, OSError):
    """A transfer failed or fell short."""


class Forked(Error):
    """A handle was used in a process that forked from its owner."""


class WrongVersion(Error):
    """Client and daemon speak different protocol versions."""


class NotPermitted(Error, PermissionError):
    """This peer may not attach."""


class NotAdmitted(Error):
    """Admission refused to keep the block."""


class LimitReached(Error):
    """A limit of the configuration (sessions, sequences, lanes, channels) is reached."""


class WrongState(Error):
    """The call does not fit the object's state (double release, begin twice, commit beyond the reservation)."""


class ProtocolBroken(Error):
    """The peer broke the protocol; its session ends."""


class SystemRefused(Error, OSError):
    """The system refused memory, a descriptor or a thread."""


class InternalError(Error):
    """A bug in kvtide, caught at the edge."""


class Corrupt(Error):
    """A page's bytes are not those that were stored."""


class DeviceFailed(Error):
    """A device is lost, out of memory, or cannot do what is needed; the text says which and what."""


#: The class of each status code.
BY_CODE: dict[int, type[Error]] = dict(
    enumerate(
        (
            Again,
            Invalid,
            NotFound,
            OutOfRange,
            NoSpace,
            TooBig,
            Busy,
            TimedOut,
            Canceled,
            DaemonGone,
            Lost,
            TransferFailed,
            Forked,
            WrongVersion,
            NotPermitted,
            NotAdmitted,
            LimitReached,
            WrongState,
            ProtocolBroken,
            SystemRefused,
            InternalError,
            Corrupt,
            DeviceFailed,
        ),
        start=1,
    )
)


for _code, _class in BY_CODE.items():
    _class.code = _code


def of(code: int, text: str) -> Error:
    """The exception of a status code: what the native half raises."""
    return BY_CODE.get(code, Error)(text)
