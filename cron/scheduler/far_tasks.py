"""Which waiting tasks are far ahead, and which of them are to leave memory. Pure.

Tasks that are due later than two hours from now are numbers in arrays, one array for each hour. As
an hour comes near, its tasks move into the leader's index of seconds. Where many tasks wait, those
of the latest hours go to disk (`cron/state/spilled.py`), so that a segment has tasks of few hours.
They come back an hour before they are due; between the two times nothing goes to and fro.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

import msgspec

from cron.limits import TASKS_SPILLED_MAX, TENANT_PAYLOADS_BYTES_MAX
from cron.state.state import State

SEGMENT_ROWS: Final = 1_000
"""Tasks of one segment, which leave memory by one entry. Every replica is busy with 5,000, the most
that State takes, for 0.1 s and more where cores are busy, and submits wait for so long."""
HEAVY_BYTES: Final = TENANT_PAYLOADS_BYTES_MAX // 2
"""Payloads in memory above which tasks go to disk, however few they are."""
HEAVY_TASKS: Final = 32


class SpillSettings(msgspec.Struct, frozen=True):
    """When tasks go to disk and come back.

    `kept` tasks wait in memory before any goes to disk; `rows` and `bytes` are the size of a
    segment. Tasks are far ahead that are due `far_units` units of `unit_s` from now, or later. They
    come back `ahead_ms` before their time.
    """

    kept: int = 100_000
    rows: int = SEGMENT_ROWS
    bytes: int = 8 << 20
    unit_s: int = 3_600
    far_units: int = 2
    ahead_ms: int = 3_600_000


USUAL: Final = SpillSettings()


def spilling_above(kept: int) -> SpillSettings:
    """Return the settings with which tasks go to disk if more than `kept` wait."""
    return SpillSettings(kept=kept, rows=min(SEGMENT_ROWS, kept))


class FarTasks:
    """The tasks of a State that are far ahead. `from_s` is the second from which on they are;
    before `look_s` that does not change."""

    def __init__(self, state: State, settings: SpillSettings = USUAL) -> None:
        self._state = state
        self._settings = settings
        self._units: dict[int, array[int]] = {}
        self._staying: dict[int, array[int]] = {}  # those that cannot leave memory
        self.count = 0  # of those that can
        self.from_s = 1 << 62
        self.look_s = 0

    def put(self, second: int, number: int) -> None:
        """Add a task that is due at a second that is far ahead."""
        _add(self._units, second // self._settings.unit_s, number)
        self.count += 1

    def approach(self, now_s: int) -> list[array[int]]:
        """Set what is far ahead by now, and return the tasks that are not any more."""
        unit_s = self._settings.unit_s
        this = now_s // unit_s
        self.look_s = (this + 1) * unit_s
        first = this + 1 + self._settings.far_units
        self.from_s = first * unit_s
        near = [self._units.pop(unit) for unit in sorted(self._units) if unit < first]
        self.count -= sum(map(len, near))
        stayed = [self._staying.pop(unit) for unit in sorted(self._staying) if unit < first]
        return near + stayed

    def choose(self) -> tuple[int, ...]:
        """Return the tasks of a new segment, and let go of them: those of the latest hours; nothing
        while there is no need for it, or no room."""
        settings, tasks = self._settings, self._state.tasks
        is_heavy = tasks.payload_bytes > HEAVY_BYTES and self.count >= HEAVY_TASKS
        is_many = tasks.waiting > settings.kept and self.count >= settings.rows
        has_room = self._state.spilled.count + settings.rows <= TASKS_SPILLED_MAX
        if not (is_heavy or is_many) or not has_room:
            return ()
        found, size, holds = list[int](), 0, self._state.holds
        while self._units and len(found) < settings.rows and size < settings.bytes:
            unit = max(self._units)
            numbers = self._units[unit]
            while numbers and len(found) < settings.rows and size < settings.bytes:
                number = numbers.pop()
                self.count -= 1
                task = tasks.by_number.get(number)
                if task is None or not task.is_waiting or self._unit_of(task.at_ms) != unit:
                    continue  # it has changed since
                if number in holds or number in holds.followed:  # it stays in memory
                    _add(self._staying, unit, number)
                    continue
                found.append(number)
                size += task.weight
            if not numbers:
                del self._units[unit]
        if is_heavy or len(found) > settings.rows // 2:
            return tuple(found)
        self.put_back(found)  # most had changed: more are to gather first
        return ()

    def put_back(self, numbers: Iterable[int]) -> None:
        """Take tasks back that were chosen and did not leave State."""
        for number in numbers:
            task = self._state.tasks.by_number.get(number)
            if task is not None and task.is_waiting:
                self.put(task.at_ms // 1000, number)

    def keep(self, numbers: Iterable[int]) -> None:
        """Take tasks back that were chosen and that State has refused: they stay in memory."""
        for number in numbers:
            task = self._state.tasks.by_number.get(number)
            if task is not None and task.is_waiting:
                _add(self._staying, self._unit_of(task.at_ms), number)

    def _unit_of(self, at_ms: int) -> int:
        return at_ms // 1000 // self._settings.unit_s


def _add(units: dict[int, array[int]], unit: int, number: int) -> None:
    numbers = units.get(unit)
    if numbers is None:
        numbers = units[unit] = array("Q")
    numbers.append(number)
