"""The tasks of an executor's messages, each with its work and its name, for workers of tests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from launcher.protocol.orders import StartBatch
from launcher.worker.context import Context
from launcher.worker.wire import Run, TaskWork


class SentTask(msgspec.Struct, frozen=True):
    """A task that a worker got."""

    name: str
    number: int
    work: TaskWork
    tasks: StartBatch[int]


def tasks_of(
    first: int, index: int, epoch: str, works: Sequence[int], *columns: Sequence[int]
) -> StartBatch[int]:
    """The tasks of a batch: numbers of their works, instants, attempts, triggers and parts."""
    scheduled_s, attempts, triggers, parts = columns
    return StartBatch(
        first=first, index=index, epoch=epoch, works=works,
        scheduled_s=scheduled_s, attempts=attempts, triggers=triggers, parts=parts,
    )  # fmt: skip


class SentTasks:
    """Reads the messages to one worker."""

    def __init__(self) -> None:
        self._works: dict[int, TaskWork] = {}

    def read(self, run: Run) -> list[SentTask]:
        """The tasks of a message."""
        if run.forgets:
            self._works.clear()
        self._works |= {work.number: work for work in run.works}
        found: list[SentTask] = []
        for tasks in run.tasks:
            for place, number in enumerate(tasks.works):
                work = self._works[number]
                name = Context(work, tasks, place, _Nowhere(), 0).name
                found.append(SentTask(name, tasks.first + place, work, tasks))
        return found


class _Nowhere:
    """Where a context that nobody uses would send its output."""

    def beat(self, number: int) -> None:
        """Nobody beats."""

    def write(self, number: int, text: str) -> None:
        """Nobody writes."""
