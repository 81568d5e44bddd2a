"""The launches of each job that wait, in the order of their instants. In the leader's memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from cron.state.commands import Key

_NONE: Final[dict[Key, None]] = {}


class Siblings:
    """Keys of launches by the number of their job.

    They nearly always come in order. Where one does not, those of its job are sorted when somebody
    next asks for their order.
    """

    def __init__(self) -> None:
        self._of_job: dict[int, dict[Key, None]] = {}
        self._unsorted: dict[int, None] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._of_job

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of all jobs of which something waits."""
        return iter(self._of_job)

    def add(self, key: Key) -> None:
        """Let a launch stand among those of its job; it must not yet."""
        number = key[0]
        mine = self._of_job.get(number)
        if mine is None:
            mine = self._of_job[number] = {}
        elif key < next(reversed(mine)):
            self._unsorted[number] = None
        mine[key] = None

    def remove(self, key: Key) -> None:
        """Let go of a launch that was added."""
        number = key[0]
        mine = self._of_job[number]
        del mine[key]
        if not mine:
            del self._of_job[number]
            self._unsorted.pop(number, None)

    def of(self, number: int) -> dict[Key, None]:
        """Return the launches of a job, the oldest first; to be read before the next change."""
        if number in self._unsorted:
            del self._unsorted[number]
            self._of_job[number] = dict.fromkeys(sorted(self._of_job[number]))
        return self._of_job.get(number, _NONE)

    def first(self, number: int) -> Key | None:
        """Return the oldest launch of a job, None where it has none."""
        return next(iter(self.of(number)), None)

    def newer(self, key: Key) -> Iterator[Key]:
        """Yield what is newer than a launch of the same job, the newest first."""
        return takewhile(lambda other: other > key, reversed(self.of(key[0])))

    def older(self, key: Key) -> list[Key]:
        """Return what is older than a launch of the same job, the oldest first."""
        return list(takewhile(lambda other: other < key, self.of(key[0])))
