"""What a restore changes in State, and nothing else: pure.

The jump of the index keeps what the lives wrote apart: floors, tombstones and log points of one can
be compared with those of another, and never meet.
"""

from __future__ import annotations

import msgspec

from consensus.leadership import Position
from cron.limits import LIFE_ENTRIES
from cron.state.archive import Backup
from cron.state.commands import SegmentKey
from cron.state.state import Restored, State
from launcher.protocol.work import Epoch


class NewLife(msgspec.Struct, frozen=True):
    """The life that begins. `stored` are the segments that `store` has, `lost` those that nobody
    has any more; `claim` is what the store knows it by."""

    generation: int
    restored_ms: int
    by: str
    store: str = ""
    claim: str = ""
    stored: frozenset[SegmentKey] = frozenset()
    lost: frozenset[SegmentKey] = frozenset()
    snapshot: tuple[int, int, int, int] | None = None


def first_index(index: int, generation: int) -> int:
    """Return where the log of a life begins that goes on from `index` of another."""
    return max(index + 1, (generation - 1) * LIFE_ENTRIES)


def begin_life(state: State, life: NewLife) -> Position:
    """Change `state` into that with which the life begins; return its position.

    Its epoch is below every Claim of the new generation and above all of the old ones (rule R3).
    """
    state.restored = _restored(state, life)
    state.index = first_index(state.index, life.generation)
    state.term = max(state.term, 1)
    state.epoch = Epoch(life.generation, 0, "")
    state.staged.clear()
    _keep_history(state, life)
    return Position(state.term, state.index)


def _restored(state: State, life: NewLife) -> Restored:
    """Return from where all that ran is unknown: if the life before had not found out yet what ran
    before it, from where that one began; of what it has recorded nothing is recorded again."""
    fresh = Restored(life.generation, state.index, state.at_ms, life.restored_ms, life.by)
    before = state.restored
    if before is None or not state.is_resolving:
        return fresh
    for record in state.by_number.values():
        if record.recovered == before.generation:
            record.recovered = life.generation
    return msgspec.structs.replace(fresh, index=before.index, strangers=before.strangers)


def _keep_history(state: State, life: NewLife) -> None:
    history = state.history
    for key in life.lost:
        gone = history.segments.pop(key, None)
        if gone is not None:
            history.retired = max(history.retired, gone.number)
    for key, record in history.segments.items():
        is_stored = bool(life.store) and key in life.stored
        history.segments[key] = msgspec.structs.replace(
            record, is_stored=is_stored, is_local=record.is_local or not is_stored
        )
    before = history.backup
    if life.store:
        kept = before if before.store == life.store else Backup(life.store)
        if life.snapshot is not None:  # it knows only of those before it
            kept = Backup(life.store, *life.snapshot, at_ms=life.restored_ms)
        history.backup = msgspec.structs.replace(kept, claim=life.claim)
    else:
        history.backup = Backup()
