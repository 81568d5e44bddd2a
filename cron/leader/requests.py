"""Changes that people and programs ask for, on their way into the leader's next entry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog

from consensus.errors import ConsensusError, EntryTooBig, QueueFull, Stopped
from consensus.errors import NotLeader as LogNotLeader
from cron import origin
from cron.errors import (
    CronError,
    InvalidInput,
    LimitExceeded,
    NotLeader,
    NotNow,
    OutcomeUnknown,
    Unavailable,
)
from cron.pace import WakeUp
from cron.state import commands as c
from cron.state.access import CameFrom
from cron.state.commands import Command
from cron.state.formats import COMMANDS, needed
from cron.state.outcome import Result
from cron.state.revisions import is_kept
from cron.state.state import State
from cron.state.tasks import ReadyTasks

_log = structlog.get_logger()

Build = Callable[[State, int], list[Command]]
"""Given State and the leader's time (ms), the commands of a change. Raises CronError to refuse."""


WAITING_MAX = 1_000
"""Changes that may wait for the next entry; a leader that is slower than its callers says so."""


class Change:
    """A change under way: its function to build commands, and the future of its results. `origin`
    says where the call came from; "" once nothing is kept of it."""

    __slots__ = ("build", "changes_jobs", "commands", "done", "first", "origin")

    def __init__(self, build: Build, *, changes_jobs: bool) -> None:
        self.build = build
        self.changes_jobs = changes_jobs
        self.commands: list[Command] = []
        self.origin = origin.CURRENT.get()
        self.first = 0  # place of its first command in the entry
        self.done: asyncio.Future[tuple[int, tuple[Result, ...]]] = (
            asyncio.get_running_loop().create_future()
        )


class Changes:
    """The changes that wait for the next entry. If leadership ends, none of them has happened."""

    def __init__(self) -> None:
        self._waiting: list[Change] = []
        self.taken = 0  # those of the newest entry
        self._crowd = 0  # so many are expected for the next one
        self._crowded = WakeUp()
        self.older_replicas: Callable[[], str] = lambda: ""
        """Says which replicas keep the cell in an older format."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, change: Change) -> None:
        """Queue a change.

        Raises:
            LimitExceeded: too many wait; nothing happened.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise LimitExceeded(f"{WAITING_MAX} changes are waiting already", "try again shortly")
        self._waiting.append(change)
        if len(self._waiting) >= self._crowd:
            self._crowded.set()

    async def gather(self, seconds: float) -> None:
        """Wait until as many changes wait as the newest entry had and came meanwhile, at most so
        long; do not wait for a single caller.

        An entry costs the replicas as much as a hundred tasks. Callers who were just answered often
        come again at once: without the wait, two of them would take turns, each with entries of its
        own.
        """
        self._crowd = self.taken + len(self._waiting)
        if self._crowd > 1:
            self._crowded.clear()
            await self._crowded.wait(seconds)

    def take(self, state: State, now_ms: int) -> list[Change]:
        """Build the waiting changes and return them; a refused change is answered at once.

        A change of jobs ends the batch, because what follows must be built after it is applied.
        """
        taken: list[Change] = []
        while self._waiting:
            change = self._waiting.pop(0)
            if change.done.done():
                continue
            try:
                change.commands = change.build(state, now_ms)
            except CronError as error:
                change.done.set_exception(error)
                continue
            except Exception as error:  # noqa: BLE001 - see below
                # A bug in one change must not end the term: a client that repeats it would end
                # one after the other.
                _log.exception("change.failed", error=repr(error))
                change.done.set_exception(CronError(f"the change could not be built: {error!r}"))
                continue
            if not change.commands:
                change.done.set_result((state.index, ()))
                continue
            if state.format < c.FORMAT and (why := _too_new(change.commands, state.format)):
                way_out = "upgrade all replicas, then try again (docs/upgrade.md)"
                hint = "; ".join(filter(None, (self.older_replicas(), way_out)))
                change.done.set_exception(NotNow(why, hint))
                continue
            kept = sum(map(is_kept, change.commands)) if change.origin else 0
            if kept and state.format >= COMMANDS[CameFrom].format:
                change.commands.insert(0, CameFrom(change.origin, kept))
            else:
                change.origin = ""
            taken.append(change)
            if change.changes_jobs:
                break
        self.taken = len(taken)
        return taken

    def refuse_all(self, leader: str | None) -> None:
        """Answer all waiting changes: another replica leads."""
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done.done():
                change.done.set_exception(NotLeader(leader))


def _too_new(commands: Sequence[Command], format_: int) -> str:
    """Return why a change cannot be made in a cell of a format, "" if it can."""
    least, what = max(map(needed, commands))
    if least <= format_:
        return ""
    return (
        f"the cell has format {format_}, too old for {what} (format {least}); nothing was changed"
    )


def in_order(commands: Sequence[Command], changes: Sequence[Change]) -> list[Command | Change]:
    """Return the pieces of an entry: its changes, each whole, and its other commands."""
    pieces: list[Command | Change] = []
    place = 0
    for change in changes:
        pieces += [*commands[place : change.first], change]
        place = change.first + len(change.commands)
    return [*pieces, *commands[place:]]


def as_entry(pieces: Sequence[Command | Change]) -> tuple[list[Command], list[Change]]:
    """Return the commands of an entry that is made of `pieces`, and its changes, each with the
    place of its first command."""
    commands: list[Command] = []
    changes: list[Change] = []
    for piece in pieces:
        if isinstance(piece, Change):
            piece.first = len(commands)
            commands += piece.commands
            changes.append(piece)
        else:
            commands.append(piece)
    return commands, changes


def halves(command: Command) -> tuple[Command, ...]:
    """Return two commands that together are `command`; the command alone if it cannot be
    divided."""
    if isinstance(command, c.Account):
        middle = len(command.lines) // 2
        halved = (command.lines[:middle], command.lines[middle:])
        return tuple(map(c.Account, halved)) if middle else (command,)
    if not isinstance(command, _DIVISIBLE) or len(command.items) < 2:
        return (command,)
    middle = len(command.items) // 2
    first = msgspec.structs.replace(command, items=command.items[:middle])
    second = msgspec.structs.replace(command, items=command.items[middle:])
    # All rows of batches precede the items: they take little room. Executors follow the items.
    if isinstance(first, c.Report) and isinstance(second, c.Report):
        first = msgspec.structs.replace(first, executors=())
        second = msgspec.structs.replace(second, rows=())
    return first, second


def rows_of(command: Command, state: State) -> int:
    """Return how many launches a command is about, 0 if it is about something else. `state` is as
    before it."""
    if isinstance(command, c.Begin):
        return sum(len(spec.jobs) for spec in command.batches)
    if isinstance(command, c.Account):
        return sum(len(line.jobs) for line in command.lines)
    if isinstance(command, ReadyTasks):
        return len(command.numbers)
    rows = len(command.items) if isinstance(command, _DIVISIBLE) else 0
    if isinstance(command, c.Report):
        rows += sum(len(said.rows) for _, said in command.rows)
        known = [one for one in command.executors if one.executor in state.executors]
        rows += sum(state.executors[one.executor].count_open(one.through_index) for one in known)
    return rows


_DIVISIBLE = (c.Report, c.Skip, c.Cancel)
"""Commands whose items are each by themselves, in any number of entries."""


def answer(changes: Sequence[Change], index: int, results: Sequence[Result]) -> None:
    """Give each change the results of its own commands."""
    for change in changes:
        if not change.done.done():
            first = change.first + bool(change.origin)  # after the command that says whence
            mine = tuple(results[first : change.first + len(change.commands)])
            change.done.set_result((index, mine))


def fail(changes: Sequence[Change], error: Exception) -> None:
    """Give each change the same error."""
    for change in changes:
        if not change.done.done():
            change.done.set_exception(error)


def refusal_of(error: Exception) -> CronError:
    """Return the error of a change that cannot be an entry of the log."""
    if isinstance(error, EntryTooBig):
        hint = "apply it in several files with a --source of their own"
        return LimitExceeded(f"the change is too big: {error}", hint)
    return InvalidInput(f"the change cannot be written: {error}", "nothing was changed")


def as_change_error(error: ConsensusError) -> Exception:
    """Return the error of the changes in an entry whose append failed."""
    if isinstance(error, LogNotLeader):
        return NotLeader(None)
    if isinstance(error, QueueFull | Stopped):
        return Unavailable(f"the change did not happen: {error}", "try again shortly")
    return OutcomeUnknown(f"{error}: the change may still happen", "look before you retry")
