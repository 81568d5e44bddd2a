"""The changes of State at a restore. Pure.

The index jumps, so that watermarks, tombstones and log points of two generations can be compared
and never coincide.
"""

from __future__ import annotations

import msgspec

from consensus.leadership import Position
from cron.limits import LIFE_ENTRIES
from cron.state.archive import Backup
from cron.state.commands import SegmentKey
from cron.state.spilled import SLOTS
from cron.state.state import Restored, State
from cron.state.tasking import let_go
from launcher.protocol.work import Epoch


class NewGeneration(msgspec.Struct, frozen=True):
    """The generation that begins. `stored` are the segments that `store` has, `lost` those that
    nobody has any more; `claim` identifies the generation in the store.
    """

    generation: int
    restored_ms: int
    by: str
    store: str = ""
    claim: str = ""
    stored: frozenset[SegmentKey] = frozenset()
    lost: frozenset[SegmentKey] = frozenset()
    snapshot: tuple[int, int, int, int] | None = None


def first_index(index: int, generation: int) -> int:
    """Return the first index of a generation that continues from `index` of another."""
    return max(index + 1, (generation - 1) * LIFE_ENTRIES)


def begin_generation(state: State, new: NewGeneration) -> Position:
    """Change `state` to the state with which the generation begins; return its position.

    Its epoch is below every Claim of the new generation and above all of the old ones (rule R3).
    """
    state.restored = _restored(state, new)
    state.index = first_index(state.index, new.generation)
    state.term = max(state.term, 1)
    state.epoch = Epoch(new.generation, 0, "")
    state.staged.clear()
    _keep_history(state, new)
    return Position(state.term, state.index)


def _restored(state: State, new: NewGeneration) -> Restored:
    """Return the point from which it is unknown what ran: the snapshot, or, if the previous
    generation had not resolved yet, the point from which it was unknown there. What the previous
    generation recorded is not recorded again.
    """
    fresh = Restored(new.generation, state.index, state.at_ms, new.restored_ms, new.by)
    before = state.restored
    if before is None or not state.is_resolving:
        return fresh
    for record in state.by_number.values():
        if record.recovered == before.generation:
            record.recovered = new.generation
    return msgspec.structs.replace(fresh, index=before.index, strangers=before.strangers)


def _keep_history(state: State, new: NewGeneration) -> None:
    history = state.history
    for key in new.lost:
        gone = history.segments.pop(key, None)
        if gone is not None and gone.is_history:
            history.retired = max(history.retired, gone.number)
        elif gone is not None:
            _lose_tasks(state, gone.number % SLOTS)
    for key, record in history.segments.items():
        is_stored = bool(new.store) and key in new.stored
        history.segments[key] = msgspec.structs.replace(
            record, is_stored=is_stored, is_local=record.is_local or not is_stored
        )
    before = history.backup
    if new.store:
        kept = before if before.store == new.store else Backup(new.store)
        if new.snapshot is not None:  # State in a snapshot knows only older snapshots
            kept = Backup(new.store, *new.snapshot, at_ms=new.restored_ms)
        history.backup = msgspec.structs.replace(kept, claim=new.claim)
    else:
        history.backup = Backup()


def _lose_tasks(state: State, slot: int) -> None:
    """Forget the tasks of a segment that nobody has any more."""
    segment = state.spilled.drop_segment(slot)
    for name, count in segment.queues.items():
        queue = state.queues[name]
        queue.waiting -= count
        queue.spilled -= count
        let_go(state, queue)
    for name, count in segment.groups.items():
        group = state.groups.changeable(name)
        group.waiting -= count
        group.members -= count
        group.dropped += count
        if group.is_complete:
            group.completed_ms = state.at_ms
