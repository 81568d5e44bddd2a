"""The parts of the leader, and of the applier of the log, that storage uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from cron.state.commands import Command
from cron.state.outcome import Outcome
from cron.state.state import State
from launcher.protocol.work import Epoch


class Leader(Protocol):
    """The leader part of this replica; it may lead or not."""

    @property
    def epoch(self) -> Epoch | None:
        """The epoch in which this replica leads, None while it does not."""

    def now_ms(self) -> int:
        """Return the cell's time: epoch ms."""

    async def append(self, *commands: Command) -> Any:
        """Commit commands as one change.

        Raises:
            CronError, ConsensusError: nothing happened, or nobody knows.
        """


class Applier(Protocol):
    """Applies the log to State."""

    @property
    def state(self) -> State:
        """State after the last applied entry; read it, never change it."""

    def subscribe(self, listener: Callable[[int, Outcome], None]) -> None:
        """Call `listener(index, outcome)` after each entry, in log order."""
