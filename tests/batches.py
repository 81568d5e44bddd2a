"""Commands about rows of batches, read as commands about one launch each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

import msgspec

from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state.ends import named, state_of
from cron.state.outcome import Result, Verdict
from cron.state.rows import Part
from cron.state.state import State
from launcher.protocol.columns import sums
from launcher.protocol.status import Reason, Status


class BeginItem(msgspec.Struct, frozen=True):
    """An attempt that a Begin is about; `others` are the executors of its second part and on."""

    key: c.Key
    attempt: int
    catalog: int
    executor: int
    not_after_ms: int
    others: tuple[int, ...] = ()
    deadline_ms: int = 0


def begin_of(items: Iterable[BeginItem]) -> c.Begin:
    """The command by which attempts begin."""
    alike: dict[tuple[int, int], list[Any]] = {}
    for one in items:
        attempt = (one.key, one.attempt, (one.executor, *one.others), one.deadline_ms)
        alike.setdefault((one.catalog, one.not_after_ms), []).append(attempt)
    found = (c.Begin.of(*place, some) for place, some in alike.items())
    return c.Begin(tuple(batch for one in found for batch in one.batches))


def begun(command: c.Begin) -> list[BeginItem]:
    """The attempts that a Begin is about, in the order of their first rows."""
    return [item for item, _ in _begun(command, ())]


def _begun(command: c.Begin, verdicts: Sequence[int]) -> list[tuple[BeginItem, Verdict]]:
    found: dict[tuple[c.Key, int, int], Any] = {}
    told = iter(verdicts or repeat(Verdict.ACCEPTED))
    for number, spec in enumerate(command.batches):
        held = dict(spec.deadlines)
        for row, (key, attempt, part) in enumerate(spec.rows()):
            verdict = Verdict(next(told))
            place = (key, attempt, 0 if part else number)
            starts = found.setdefault(place, (spec, held.get(row, 0), verdict, []))[3]
            starts.append((part, spec.executor))
    result = []
    for (key, attempt, _), (spec, held_ms, verdict, starts) in found.items():
        executor, *others = (one for _, one in sorted(starts))
        item = BeginItem(
            key, attempt, spec.catalog, executor, spec.not_after_ms, tuple(others), held_ms
        )
        result.append((item, verdict))
    return result


class AttemptItem(NamedTuple):
    """What became of an attempt or of a part of one, as a Report says it."""

    key: c.Key
    attempt: int
    end: Part

    @classmethod
    def of(
        cls,
        key: c.Key,
        attempt: int,
        state: LaunchState,
        reason: Reason = Reason.NONE,
        exit_code: int = -1,
        started_ms: int = 0,
        finished_ms: int = 0,
        detail: str = "",
        output_bytes: int = 0,
        part: int = 1,
        **more: Any,
    ) -> AttemptItem:
        """The same with the fields of the part."""
        said = (state, reason, exit_code, started_ms, finished_ms, output_bytes)
        return cls(key, attempt, Part(0, *said, detail=detail, number=part, **more))

    @property
    def state(self) -> LaunchState:
        return self.end.state

    @property
    def reason(self) -> Reason:
        return self.end.reason

    @property
    def exit_code(self) -> int:
        return self.end.exit_code

    @property
    def retry_after_ms(self) -> int:
        return self.end.retry_after_ms

    @property
    def held_until_ms(self) -> int:
        return self.end.held_until_ms

    @property
    def part(self) -> int:
        return self.end.number


def items_of(command: c.Command, state: State | None = None) -> list[Any]:
    """What a command is about, item by item; nothing where it has no items. Rows of batches are
    named by a State to which it is not applied yet, and left out without one; None for a row that
    it does not know."""
    if isinstance(command, c.Begin):
        return list(begun(command))
    items = list(getattr(command, "items", ()))
    if isinstance(command, c.Report):
        items = [AttemptItem(*item) for item in items]
    return items if state is None else [*_rows_of(command, state), *items, *_all_of(command, state)]


def launched_item(key: c.Key, attempt: int, started_ms: int, part: int = 1) -> AttemptItem:
    """Log point 2 of an attempt."""
    return AttemptItem.of(key, attempt, LaunchState.LAUNCHED, started_ms=started_ms, part=part)


def refused_item(key: c.Key, attempt: int, detail: str = "", part: int = 1) -> AttemptItem:
    """An attempt never ran."""
    return AttemptItem.of(key, attempt, LaunchState.SKIPPED, detail=detail, part=part)


def lost_item(
    key: c.Key, attempt: int, held_until_ms: int = 0, detail: str = "", part: int = 1
) -> AttemptItem:
    """Nobody knows what became of an attempt."""
    lost = LaunchState.LOST
    return AttemptItem.of(key, attempt, lost, detail=detail, part=part, held_until_ms=held_until_ms)


def verb_of(command: c.Command, item: Any = None) -> str:
    """The verb for what a command says of an item."""
    if not isinstance(command, c.Report):
        return type(command).__name__.lower()
    verbs = {LaunchState.LAUNCHED: "launched", LaunchState.SKIPPED: "refused"}
    verbs[LaunchState.LOST] = "lost"
    return "report" if item is None else verbs.get(item.state, "finished")


def _rows_of(command: c.Command, state: State) -> Iterator[Any]:
    for executor, one in command.rows if isinstance(command, c.Report) else ():
        end = (state_of(one), one.reason, one.exit_code)
        times = map(one.column, ("started_ms", "finished_ms", "retry_after_ms"))
        for row, *said, after_ms in zip(sums(one.rows), *times, strict=True):
            found = named(state, executor, one.index, row)
            yield found and AttemptItem.of(
                found[0], found[1], *end, *said, part=found[2], retry_after_ms=after_ms
            )


def _all_of(command: c.Command, state: State) -> Iterator[AttemptItem]:
    for gone in command.executors if isinstance(command, c.Report) else ():
        batches = state.executors[gone.executor].batches if gone.executor in state.executors else {}
        for index in sorted(batches):
            for one in batches[index].launches() if index <= gone.through_index else ():
                start = one.start_on(gone.executor)
                if start is not None:
                    yield lost_item(one.key, one.attempt, gone.held_until_ms, part=start.number)


def answered(
    command: c.Command, result: Result, items: Sequence[Any] | None = None
) -> list[tuple[Any, Verdict]]:
    """The items of a command, each with its verdict; `items` are what `items_of` made of it, with
    its rows, else the rows are left out. What no State knows is left out as well."""
    if isinstance(command, c.Begin):
        return _begun(command, result.items)
    own = len(getattr(command, "items", ()))
    if items is None:
        return list(zip(items_of(command), _verdicts(result, own), strict=True))
    rows = sum(len(one.rows) for _, one in getattr(command, "rows", ()))
    told = _verdicts(result, own)
    of_rows = (
        list(map(Verdict, result.items[: len(result.items) - own])) or [Verdict.ACCEPTED] * rows
    )
    verdicts = [*of_rows, *told, *[Verdict.ACCEPTED] * (len(items) - rows - own)]
    return [pair for pair in zip(items, verdicts, strict=True) if pair[0] is not None]


def _verdicts(result: Result, own: int) -> list[Verdict]:
    return list(map(Verdict, result.items[len(result.items) - own :]))


SAID: Final = {
    LaunchState.LAUNCHED: (Status.ACCEPTED, Reason.NONE, 0),
    LaunchState.SUCCEEDED: (Status.ENDED, Reason.NONE, 0),
    LaunchState.FAILED: (Status.ENDED, Reason.NONE, 1),
    LaunchState.CANCELLED: (Status.ENDED, Reason.KILLED, -1),
    LaunchState.SKIPPED: (Status.REFUSED, Reason.NONE, 0),
    LaunchState.LOST: (Status.INTERRUPTED, Reason.NONE, 0),
}
"""How an executor says what became of a row: its status, reason and exit code."""


def said_of(state: LaunchState, *end: Any) -> tuple[Status, Reason, int]:
    """How an executor says that a row is in a state, with this reason and exit code."""
    status, *usual = SAID[state]
    return (status, *(end or usual))
