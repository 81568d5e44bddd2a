"""Errors of a disk, as an operator reads them: the place, the reason, and what to do. Pure."""

from __future__ import annotations

import errno
from typing import Final

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""There is no room, or no more is allowed."""
_FAILING: Final = frozenset(
    {errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN, errno.EREMOTEIO}
)
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM})
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOTCONN})
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})


def hint_of(error: OSError) -> str:
    """Return what the operator can do about an error of a disk; "" if it is none."""
    number = error.errno
    if number in FULL:
        return "make room on the disk, then start it again"
    if number in _FAILING:
        return (
            "the disk may be failing: the kernel's log (`dmesg`) says more; once the disk is well,"
            " start it again"
        )
    if number == errno.EROFS:
        return (
            "the file system is read-only, perhaps because the disk failed: the kernel's log"
            " (`dmesg`) says more; mount it for writing, then start it again"
        )
    if number in _FORBIDDEN:
        return "give the place to the account that runs this (`chown`), then start it again"
    if number in _ABSENT:
        return "is the disk mounted, and did somebody remove files? then start it again"
    if number in _NO_FILES:
        return "the process may open no more files: raise LimitNOFILE, then start it again"
    return ""


def text_of(error: OSError) -> str:
    """Return `place: reason` of an error, the reason alone where it names no place."""
    reason = (error.strerror or str(error)).lower()
    return f"{error.filename}: {reason}" if error.filename else reason
