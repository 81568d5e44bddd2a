"""The commands that run, as the spawner has them, in memory that it shares with its reaper.

The spawner writes and the reaper reads, also after the spawner was killed. A record is written
before its command is started, and once more when its process is known; so there is no moment at
which a command runs that the roll does not have. The lease is here, too (rule R6).

    header   lease_ms: when guarded commands must be gone, boot clock      8 bytes, then unused
    record   state, guarded, length of name, pid, start ticks, name        RECORD_BYTES each
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

from launcher.executor.trees import Target

RECORD_BYTES: Final = 320
"""Two name parts of 100 characters, a time, and the numbers of trigger, attempt and part."""
SPARE_RECORDS: Final = 64
_LEASE: Final = struct.Struct("<Q")
_HEAD: Final = struct.Struct("<BBHIQ")
_NAME_BYTES_MAX: Final = RECORD_BYTES - _HEAD.size
_FREE, _STARTING, _RUNNING = 0, 1, 2


class Roll:
    """Room for the commands of `slots` slots, shared with every process that is forked later."""

    def __init__(self, slots: int) -> None:
        self._count = slots + SPARE_RECORDS
        self._memory = mmap.mmap(-1, RECORD_BYTES * (self._count + 1))
        # The last record is taken first; few are in use, so few pages are touched.
        self._free = [RECORD_BYTES * number for number in range(self._count, 0, -1)]

    @property
    def lease_ms(self) -> int:
        """When the lease ends, boot clock."""
        found: int = _LEASE.unpack_from(self._memory, 0)[0]
        return found

    @lease_ms.setter
    def lease_ms(self, value: int) -> None:
        _LEASE.pack_into(self._memory, 0, value)

    def starting(self, name: str, *, guarded: bool) -> int:
        """Record a command that is about to be started; return its place.

        Raises:
            IndexError: there are more than fit.
        """
        place = self._free.pop()
        text = name.encode()[:_NAME_BYTES_MAX]
        start = place + _HEAD.size
        self._memory[start : start + len(text)] = text
        _HEAD.pack_into(self._memory, place, _STARTING, guarded, len(text), 0, 0)
        return place

    def started(self, place: int, pid: int, ticks: int) -> None:
        """Record the process of the command at `place`."""
        _, guarded, length, _, _ = _HEAD.unpack_from(self._memory, place)
        _HEAD.pack_into(self._memory, place, _RUNNING, guarded, length, pid, ticks)

    def over(self, place: int) -> None:
        """Forget the command at `place`."""
        self._memory[place] = _FREE
        self._free.append(place)

    def targets(self, *, only_guarded: bool = False) -> list[Target]:
        """Return what runs or is about to be started."""
        found = []
        for place in range(RECORD_BYTES, RECORD_BYTES * (self._count + 1), RECORD_BYTES):
            state, guarded, length, pid, ticks = _HEAD.unpack_from(self._memory, place)
            if state != _FREE and (guarded or not only_guarded):
                start = place + _HEAD.size
                name = self._memory[start : start + length].decode()
                found.append(Target(name, pid, ticks))
        return found
