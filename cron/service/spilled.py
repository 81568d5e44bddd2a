"""Tasks that are on disk (`cron/state/spilled.py`): reading them, and changing them.

A change of such a task brings it back first, in the same entry. Somebody else may do so between the
read and the entry, or the task may have moved to another segment; then the change is tried again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Final

from cron.errors import LimitExceeded, Unavailable
from cron.leader.far_tasks import LOAD_BYTES, LOAD_ROWS
from cron.leader.requests import Build
from cron.service.replica import Replica
from cron.state import tasks as t
from cron.state.commands import Command
from cron.state.outcome import Verdict
from cron.state.spilled import Place, SpilledSegment

TRIES: Final = 3
READ_ROWS: Final = 1_000
READ_BYTES: Final = 4 << 20
FULL_HINT: Final = "try again later, or run fewer tasks at one time"


async def read(replica: Replica, name: str) -> t.TaskRecord | None:
    """Return a task by name, from disk if it is there; None if there is none of that name.

    Raises:
        Unavailable: its segment cannot be read here now.
    """
    for _ in range(TRIES):
        state = replica.state
        place = state.spilled.find(name)
        if place is None:
            return state.tasks.get(name)
        task = await _at(replica, place)
        if task.name == name:
            return task
        if state.spilled.find(name) == place:
            return None  # another task has its hash
    raise Unavailable(f"task {name} moves between disk and memory", "try again")


async def _at(replica: Replica, place: Place) -> t.TaskRecord:
    if replica.task_files is None:
        raise Unavailable("this replica has no tasks on disk", "ask another one")
    record = replica.state.history.task_segment(place.slot)
    return await replica.task_files.task(record, place.row)


async def change(
    replica: Replica, names: Sequence[str], build: Callable[[tuple[str, ...], int], Command]
) -> list[Verdict]:
    """Commit the command that `build` makes for tasks by name at the leader's time (ms), and bring
    back first those that are on disk; return the verdict of each.

    Raises:
        Unavailable: a segment cannot be read here now. And what `Leader.append` raises.
    """
    verdicts = dict.fromkeys(names, Verdict.ON_DISK)
    left = tuple(verdicts)
    for _ in range(TRIES):
        items = [one async for one in _load_items(replica, left)]
        *before, last = list(_portions(items)) or [()]
        for portion in before:
            await replica.leader.append(t.LoadTasks(portion))
        first: list[Command] = [t.LoadTasks(last)] if last else []
        _, results = await replica.leader.submit(_in_one_entry(first, left, build))
        given = zip(left, results[-1].items, strict=True)
        verdicts.update((name, Verdict(one)) for name, one in given)
        left = tuple(name for name in left if verdicts[name] is Verdict.ON_DISK)
        if not left:
            break
    return [verdicts[name] for name in names]


def _in_one_entry(
    first: list[Command], names: tuple[str, ...], build: Callable[[tuple[str, ...], int], Command]
) -> Build:
    return lambda _state, now_ms: [*first, build(names, now_ms)]


async def bring_back(replica: Replica, names: Iterable[str]) -> None:
    """Have tasks wait in State again, of those names that are on disk or share a hash with one that
    is. Raises as `change`."""
    items = [one async for one in _load_items(replica, dict.fromkeys(names))]
    for portion in _portions(items):
        await replica.leader.append(t.LoadTasks(portion))


async def _load_items(replica: Replica, names: Iterable[str]) -> AsyncIterator[t.LoadItem]:
    for name in names:
        place = replica.state.spilled.find(name)
        if place is not None:
            task = await _at(replica, place)
            yield t.LoadItem(place.slot, place.row, task)


def _portions(items: Iterable[t.LoadItem]) -> Iterator[tuple[t.LoadItem, ...]]:
    """Yield items in portions that fit into an entry each."""
    portion, size = list[t.LoadItem](), 0
    for item in items:
        if portion and (len(portion) >= LOAD_ROWS or size + item.task.weight > LOAD_BYTES):
            yield tuple(portion)
            portion, size = [], 0
        portion.append(item)
        size += item.task.weight
    if portion:
        yield tuple(portion)


def no_room(name: str) -> LimitExceeded:
    """Return the error for a task on disk for which State has no room."""
    return LimitExceeded(f"task {name} is on disk, and memory has no room for it", FULL_HINT)


# ---- many


async def tasks_of(
    replica: Replica, segment: SpilledSegment, first: int = 0
) -> AsyncIterator[tuple[int, list[tuple[int, t.TaskRecord]]]]:
    """Yield the tasks of a segment that are still on disk, from a row on, in portions with their
    rows; and with each the row behind it.

    Raises:
        Unavailable: it cannot be read here now.
    """
    state, slot = replica.state, segment.slot
    record = state.history.task_segment(slot)
    row = max(first, segment.next_row)
    if replica.task_files is None:
        raise Unavailable("this replica has no tasks on disk", "ask another one")
    while row < segment.rows:
        portion = await replica.task_files.portion(record, row, None, READ_ROWS, READ_BYTES)
        row = portion.next_row
        yield (
            row,
            [
                (at, task)
                for at, task in portion.tasks
                if state.spilled.find(task.name) == Place(slot, at)
            ],
        )
