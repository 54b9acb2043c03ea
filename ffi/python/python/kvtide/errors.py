"""Exceptions: one class per status code of the client. Most also derive from the built-in exception that fits best."""

from __future__ import annotations


class Error(Exception):
    """Base class of errors. The text names the failed operation, its object, and the reason."""

    #: Status code, as in the C ABI.
    code: int = -1


class Again(Error, BlockingIOError):
    """A ring or a bounded table is full: try again after a completion. Or the relay cannot be asked now: the text says why."""


class Invalid(Error, ValueError):
    """An argument contradicts the geometry, the protocol or another argument."""


class NotFound(Error, LookupError):
    """The session has no such sequence, block, pin or hash."""


class OutOfRange(Error, IndexError):
    """A page, plane, token or lane index is out of range."""


class NoSpace(Error, MemoryError):
    """Out of memory: no tier has room for more pages, and nothing can be evicted."""


class TooBig(Error, MemoryError):
    """The request needs more pages than tier 0 has frames. Waiting does not help."""


class Busy(Error):
    """The page is pinned or in use."""


class TimedOut(Error, TimeoutError):
    """The deadline passed before the call completed."""


class Canceled(Error):
    """The engine cancelled the request."""


class DaemonGone(Error, ConnectionError):
    """The connection to the daemon is lost. Pages in tier 0 stay readable. Attach again."""


class Lost(Error):
    """The page is lost: it had no other copy."""


class TransferFailed(Error, OSError):
    """A transfer failed or was incomplete."""


class Forked(Error):
    """A handle was used in a forked child of the process that owns it."""


class WrongVersion(Error):
    """Client and daemon speak different protocol versions."""


class NotPermitted(Error, PermissionError):
    """The daemon does not permit this process to attach."""


class NotAdmitted(Error):
    """The admission policy rejected the block, or its parent is not cached."""


class LimitReached(Error):
    """A configured limit (sessions, sequences, lanes, channels) is reached."""


class WrongState(Error):
    """The object's state does not allow the call, for example a double release, or a commit beyond the reservation."""


class ProtocolBroken(Error):
    """The peer violated the protocol; its session ends."""


class SystemRefused(Error, OSError):
    """The operating system refused memory, a descriptor or a thread."""


class InternalError(Error):
    """A bug in kvtide, caught at the API boundary."""


class Corrupt(Error):
    """The page's bytes differ from those that were stored."""


class DeviceFailed(Error):
    """A device is lost, is out of memory, or lacks a required feature. The text names the device and the reason."""


class OverBudget(Error):
    """The block is cached and not on NVMe: the write budget (``bytes_per_day``) is used up. It is written when the budget refills."""


#: Exception class of each status code.
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
            OverBudget,
        ),
        start=1,
    )
)


for _code, _class in BY_CODE.items():
    _class.code = _code


def from_code(code: int, text: str) -> Error:
    """Return the exception for a status code. The native module raises it."""
    return BY_CODE.get(code, Error)(text)
