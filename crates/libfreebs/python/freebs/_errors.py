"""Errors, by what a program is to do."""

from __future__ import annotations

import errno
from typing import Any

from ._native import ffi, lib


class Error(Exception):
    """Something that freebs could not do. The class says what to do, the text why, for people."""

    errno: int = 0
    """The errno value that the C library gave."""


class RetryError(Error):
    """Too few nodes answered in time, or the cluster was closed under the call. A change may still happen."""


class FencedError(Error):
    """The volume is not this program's any more: it was attached elsewhere, or given back."""


class BusyError(Error):
    """Somebody else has the volume and is there, or this program has it already."""


class NotFoundError(Error):
    """There is no volume or snapshot of that name."""


class InvalidError(Error):
    """The call itself is wrong: something that is closed, a range past the end, too much at once, a change of a snapshot."""


class NoSpaceError(Error):
    """The nodes are full; it heals when space is freed."""


class CorruptError(Error):
    """No copy of a block is whole."""


class SystemCallError(Error):
    """An operating system call failed."""


class BugError(Error):
    """A mistake in the library."""


class AbortedError(Error):
    """An interval is aborted: nothing of it is there, nor will be. `why` is the reason."""

    def __init__(self, why: Error):
        super().__init__(str(why))
        self.errno = errno.ECANCELED
        self.why = why


_CLASSES: dict[int, type[Error]] = {
    errno.EAGAIN: RetryError,
    errno.EACCES: FencedError,
    errno.EBUSY: BusyError,
    errno.ENOENT: NotFoundError,
    errno.EINVAL: InvalidError,
    errno.ENOSPC: NoSpaceError,
    errno.EBADMSG: CorruptError,
    errno.EIO: SystemCallError,
}


def last_error() -> Error:
    """The failure of the call that this thread has just made."""
    number = ffi.errno
    made = _CLASSES.get(number, BugError)(ffi.string(lib.freebs_error()).decode("utf-8", "replace"))
    made.errno = number
    return made


def check(status: int) -> None:
    """Raises the error of a call that gave this status."""
    if status == -errno.ECANCELED:
        raise AbortedError(last_error())
    if status != 0:
        raise last_error()


def opened(handle: Any) -> Any:
    """A handle that a call gave, or its error."""
    if handle == ffi.NULL:
        raise last_error()
    return handle
