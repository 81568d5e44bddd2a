"""Whose life of the cell a restore from a disk begins, and what is left where none is begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from cron.errors import Conflict
from cron.state.image import decode_state
from cron.state.state import State
from snapshots.errors import StoreAway
from snapshots.manifest import Generation
from tests.fakes.memory_store import MemoryStore
from tests.unit.restore_rig import (
    CELL,
    Backed,
    opened,
    restore_disk,
    write_disk,
)


@pytest.fixture
def backed(tmp_path: Path) -> Backed:
    """Its disk has two segments that are stored, and two that are not; nothing is a snapshot."""
    made = Backed(tmp_path)
    made.seal(rows=3)
    made.seal(rows=5, is_stored=False)
    return made


def restored(data: Path) -> State:
    return decode_state([opened(data)[1]])


def test_a_life_that_was_begun_since_is_not_passed_over(backed: Backed, tmp_path: Path) -> None:
    """The disk is of generation 1, and generation 2 may be running."""
    write_disk(backed.data, backed.rig)
    marker = Generation(cell=CELL, generation=2, id="other", by="eve", host="h9")
    backed.backup_store.claim_generation(marker)
    text = "cell prod was restored already: generation 2 was begun by eve on h9"
    with pytest.raises(Conflict, match=text) as caught:
        restore_disk(backed.data, backed.backup_store, tmp_path / "r1")
    assert "--abandon 2" in caught.value.hint
    assert not (tmp_path / "r1").exists()
    report = restore_disk(backed.data, backed.backup_store, tmp_path / "r1", abandon=2)
    assert report.new_generation == 3


def test_a_store_that_is_away_is_told_before_anything_is_begun(
    backed: Backed, tmp_path: Path
) -> None:
    write_disk(backed.data, backed.rig)
    assert isinstance(backed.store, MemoryStore)
    backed.store.away = "cannot be reached"
    with pytest.raises(StoreAway):
        restore_disk(backed.data, backed.backup_store, tmp_path / "r1")
    assert not (tmp_path / "r1").exists()


def test_a_disk_of_a_second_life_begins_the_third(backed: Backed, tmp_path: Path) -> None:
    write_disk(backed.data, backed.rig)
    restore_disk(backed.data, backed.backup_store, tmp_path / "r1")
    report = restore_disk(tmp_path / "r1", backed.backup_store, tmp_path / "r2", draw="again")
    assert (report.generation, report.new_generation) == (2, 3)
    assert restored(tmp_path / "r2").restored is not None
    assert opened(tmp_path / "r2")[0].index == 2 * 10**12
