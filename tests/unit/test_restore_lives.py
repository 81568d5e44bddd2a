"""A cell has only so many lives; a strange marker does not take it beyond them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cron.errors import Conflict
from cron.history.order import Query
from cron.limits import LIFE_ENTRIES, LIVES_MAX
from snapshots.layout import generation_object
from tests.fakes.memory_store import MemoryStore
from tests.unit.history_rig import Fed, row
from tests.unit.restore_rig import CELL, Backed, opened, restore


@pytest.mark.parametrize("newest", [LIVES_MAX, 999, 999_999_999])
def test_a_marker_of_a_life_that_cannot_be_is_told_and_not_gone_beyond(
    tmp_path: Path, newest: int
) -> None:
    backed = Backed(tmp_path)
    backed.snapshot()
    assert isinstance(backed.store, MemoryStore)
    marker = generation_object(CELL, newest)
    backed.store.objects[marker] = b"left here by somebody"
    with pytest.raises(
        Conflict, match=f"knows generation {newest}, and a cell has 128 lives"
    ) as told:
        restore(backed.backup_store, tmp_path / "r1", abandon=newest)
    assert marker in told.value.hint
    assert not (tmp_path / "r1").exists()
    del backed.store.objects[marker]
    assert restore(backed.backup_store, tmp_path / "r1").is_done


async def test_history_has_a_place_for_the_last_life(tmp_path: Path) -> None:
    backed = Backed(tmp_path)
    backed.snapshot()
    assert isinstance(backed.store, MemoryStore)
    backed.store.objects[generation_object(CELL, LIVES_MAX - 1)] = b"?"
    report = restore(backed.backup_store, tmp_path / "r1", abandon=LIVES_MAX - 1)
    assert report.new_generation == LIVES_MAX
    state = opened(tmp_path / "r1")[0]
    assert state.index // LIFE_ENTRIES == LIVES_MAX - 1
    fed = Fed(tmp_path / "fed")
    ended = row(state.index + 1, 60, output_bytes=1, number=0)
    fed.add(ended)
    fed.seal(state.index + 1)
    assert await fed.row_store.newest(Query()) == [ended]
    fed.row_store.stop()
