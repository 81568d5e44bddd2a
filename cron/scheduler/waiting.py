"""What waits of each job, in the order of its instants. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import takewhile

from cron.state.commands import Key
from cron.state.launch_row import LaunchRow


class WaitingByJob:
    """The waiting launches of each job, ordered by instant.

    They nearly always come in order. If one does not, the launches of its job are sorted when their
    order is next needed.
    """

    def __init__(self) -> None:
        # With several launches an OrderedDict: it finds its first item at once, whatever was
        # removed before that.
        self._of_job: dict[int, dict[Key, LaunchRow]] = {}
        self._unsorted: dict[int, None] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._of_job

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of all jobs with waiting launches."""
        return iter(self._of_job)

    def put(self, launch: LaunchRow) -> None:
        """Add a launch, or replace what was known of it."""
        key = launch.key
        number = key[0]
        mine = self._of_job.get(number)
        if mine is None:
            self._of_job[number] = {key: launch}
            return
        if key not in mine and key < next(reversed(mine)):
            self._unsorted[number] = None
        if len(mine) == 1 and type(mine) is dict:
            mine = self._of_job[number] = OrderedDict(mine)
        mine[key] = launch

    def remove(self, key: Key) -> None:
        """Remove a launch that was added."""
        number = key[0]
        mine = self._of_job[number]
        del mine[key]
        if not mine:
            del self._of_job[number]
            self._unsorted.pop(number, None)

    def of(self, number: int) -> dict[Key, LaunchRow]:
        """Return the launches of a job, the oldest first; to be read before the next change."""
        if number in self._unsorted:
            del self._unsorted[number]
            self._of_job[number] = OrderedDict(sorted(self._of_job[number].items()))
        return self._of_job.get(number, {})

    def first(self, number: int) -> LaunchRow | None:
        """Return the oldest launch of a job, None if it has none."""
        return next(iter(self.of(number).values()), None)

    def newer(self, key: Key) -> Iterator[LaunchRow]:
        """Yield the launches of the same job that are newer, the newest first."""
        mine = self.of(key[0])
        return map(mine.__getitem__, takewhile(lambda other: other > key, reversed(mine)))

    def older(self, key: Key) -> list[Key]:
        """Return the launches of the same job that are older, the oldest first."""
        return list(takewhile(lambda other: other < key, self.of(key[0])))
