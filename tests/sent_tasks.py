"""The tasks of an executor's messages, each with its work and its name, for workers of tests."""

from __future__ import annotations

import msgspec

from launcher.worker.context import Context
from launcher.worker.wire import Run, Tasks, TaskWork


class SentTask(msgspec.Struct, frozen=True):
    """A task that a worker got."""

    name: str
    number: int
    work: TaskWork
    tasks: Tasks


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
