"""The processes of a local cell together: started, watched, ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from typing import Final

from cron.clock import Clock
from cron.dev.child import Child, child_environment
from cron.dev.files import EXECUTOR, Member

STEP_S: Final = 0.05
EXECUTORS_MS: Final = 4_000
TERM_MS: Final = 3_000
"""Between TERM and KILL, first of the executors, then of all. Together well below ten seconds."""


class LocalCell:
    """Three replicas and some executors as children of this process.

    Invariant: between `start` and the end of `stop` every process it started is in `children`.
    """

    def __init__(
        self,
        members: list[Member],
        commands: Callable[[Member], list[str]],
        clock: Clock,
        environment: Mapping[str, str],
    ) -> None:
        ids = [member.id for member in members]
        self._clock = clock
        self.children = [
            Child(
                member,
                commands(member),
                child_environment(environment, member, os.getpid(), ids),
                clock,
            )
            for member in members
        ]

    def died_ms(self, name: str) -> int:
        """Return when the newest process of a member was seen to be dead, by the wall clock; 0 if
        none was."""
        return next((one.died_ms for one in self.children if one.member.id == name), 0)

    def is_ours(self, pid: int) -> bool:
        """Return whether a process is, or was not long ago, one of this cell."""
        return any(pid in child.pids for child in self.children)

    def start(self) -> None:
        """Start all.

        Raises:
            OSError: the system would not; those that run stay, call `stop`.
        """
        for child in self.children:
            child.start()

    async def watch(self, say: Callable[[str], None], *, restart: bool) -> None:
        """Start dead processes again if `restart`, for ever; say of what they died."""
        while True:
            for child in self.children:
                if line := child.step(restart=restart):
                    say(line)
            await asyncio.sleep(STEP_S)

    async def stop(self, hurry: asyncio.Event) -> None:
        """End all within seven seconds, or at once when `hurry` is set; idempotent.

        Executors end first, so that the replicas still record how their commands ended.
        """
        executors = [child for child in self.children if child.member.kind == EXECUTOR]
        for children, term_ms in ((executors, EXECUTORS_MS), (self.children, TERM_MS)):
            for number in (signal.SIGTERM, signal.SIGCONT):  # a stopped process must wake up to end
                for child in children:
                    child.send(number)
            deadline_ms = self._clock.mono_ms() + term_ms
            while not all([child.is_over() for child in children]):
                if hurry.is_set() or self._clock.mono_ms() >= deadline_ms:
                    for child in children:
                        child.send(signal.SIGKILL)
                await asyncio.sleep(STEP_S)
