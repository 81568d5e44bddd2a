"""Whose life of the cell a restore begins: one at a time, and never a stranger's."""

from __future__ import annotations

from pathlib import Path

import pytest

from cron.errors import Conflict
from cron.storage.restore_target import Target
from cron.storage.restoring import Report
from snapshots.backup_store import BackupStore
from snapshots.errors import GenerationTaken, NotConditional, StoreAway
from snapshots.layout import (
    generation_object,
)
from snapshots.manifest import Generation
from tests.fakes.memory_store import MemoryStore
from tests.unit.restore_rig import (
    CELL,
    Backed,
    Died,
    no,
    opened,
    restore,
)


@pytest.fixture
def backed(tmp_path: Path) -> Backed:
    return Backed(tmp_path)


@pytest.fixture
def store(backed: Backed) -> MemoryStore:
    assert isinstance(backed.store, MemoryStore)
    return backed.store


def markers(backup_store: BackupStore) -> dict[int, str]:
    return {one.generation: one.id for one in backup_store.generations()}


def test_of_two_at_once_exactly_one_wins(
    backed: Backed, store: MemoryStore, tmp_path: Path
) -> None:
    """Both have looked; the other one claims first."""
    backed.snapshot()

    def other_is_faster(_: Report) -> bool:
        assert restore(backed.backup_store, tmp_path / "other", draw="other", by="eve").is_done
        return True

    with pytest.raises(GenerationTaken, match="generation 2 was begun by eve"):
        restore(backed.backup_store, tmp_path / "r1", agree=other_is_faster)
    assert markers(backed.backup_store)[2] == "other"
    assert not (tmp_path / "r1").exists(), "who loses leaves nothing behind"
    assert opened(tmp_path / "other")[0].index == 10**12


def test_a_second_restore_is_refused_while_the_first_has_stored_nothing(
    backed: Backed, tmp_path: Path
) -> None:
    backed.snapshot()
    restore(backed.backup_store, tmp_path / "first", by="eve", draw="first")
    text = "cell prod was restored already: generation 2 was begun by eve on "
    with pytest.raises(Conflict, match=text) as caught:
        restore(backed.backup_store, tmp_path / "r1")
    assert caught.value.hint == "if that cell never ran, or is given up: --abandon 2"
    with pytest.raises(Conflict, match=text):
        restore(backed.backup_store, tmp_path / "r1", abandon=1)
    with pytest.raises(Conflict, match=text):
        restore(backed.backup_store, tmp_path / "r1", abandon=3)
    assert markers(backed.backup_store).keys() == {1, 2}
    report = restore(backed.backup_store, tmp_path / "r1", abandon=2)
    assert report.new_generation == 3
    assert opened(tmp_path / "r1")[0].index == 2 * 10**12


def test_a_marker_that_cannot_be_read_counts_as_well(
    backed: Backed, store: MemoryStore, tmp_path: Path
) -> None:
    backed.snapshot()
    store.objects[generation_object(CELL, 2)] = b"?"
    with pytest.raises(Conflict, match=r"generation 2 was begun$"):
        restore(backed.backup_store, tmp_path / "r1")
    assert restore(backed.backup_store, tmp_path / "r1", abandon=2).new_generation == 3


def test_a_life_that_has_stored_snapshots_is_gone_on_from_without_a_word(
    backed: Backed, tmp_path: Path
) -> None:
    early = backed.snapshot()
    backed.rig.to(60)
    backed.is_restored(2, 10**12 + 5)
    backed.backup_store.claim_generation(Generation(cell=CELL, generation=2, id="life-2"))
    late = backed.snapshot()
    assert late.generation == 2
    report = restore(backed.backup_store, tmp_path / "r1", agree=no)
    assert (report.generation, report.new_generation, report.index) == (2, 3, late.index)
    report = restore(backed.backup_store, tmp_path / "r1", at_ms=early.taken_ms)
    assert (report.generation, report.new_generation) == (1, 3), "an older one, by choice"


def test_a_store_without_conditions_needs_a_persons_word(
    backed: Backed, store: MemoryStore, tmp_path: Path
) -> None:
    backed.snapshot()
    store.conditions = False
    objects = dict(store.objects)
    with pytest.raises(NotConditional) as caught:
        restore(backed.backup_store, tmp_path / "r1")
    assert "--unconditional" in caught.value.hint
    assert store.objects == objects
    assert not (tmp_path / "r1").exists()
    assert restore(backed.backup_store, tmp_path / "r1", unconditional=True).is_done
    with pytest.raises(Conflict, match="restored already"):
        restore(backed.backup_store, tmp_path / "r2", draw="other", unconditional=True)


@pytest.fixture
def died(backed: Backed, store: MemoryStore, tmp_path: Path) -> Path:
    """A folder in which a restore died after it knew its generation, before the store did."""
    backed.snapshot()

    def hook(operation: str, name: str) -> None:
        if operation == "put":
            raise Died

    store.hook = hook
    with pytest.raises(Died):
        restore(backed.backup_store, tmp_path / "r1")
    store.hook = lambda operation, name: None
    assert (tmp_path / "r1" / "restore.json").exists()
    return tmp_path / "r1"


def test_who_died_before_its_claim_and_was_overtaken_may_try_again(
    backed: Backed, died: Path, tmp_path: Path
) -> None:
    """It had written down a generation that became somebody else's: it must not insist for ever."""
    restore(backed.backup_store, tmp_path / "other", draw="other")
    with pytest.raises(GenerationTaken):
        restore(backed.backup_store, died)
    with pytest.raises(Conflict, match="restored already"):
        restore(backed.backup_store, died)
    assert restore(backed.backup_store, died, abandon=2).new_generation == 3
    assert opened(died)[0].index == 2 * 10**12


def test_who_died_and_was_overtaken_goes_on_from_what_the_other_life_has_stored(
    backed: Backed, died: Path
) -> None:
    backed.is_restored(2, 10**12 + 5)
    backed.backup_store.claim_generation(Generation(cell=CELL, generation=2, id="life-2"))
    backed.snapshot()
    with pytest.raises(GenerationTaken):
        restore(backed.backup_store, died)
    report = restore(backed.backup_store, died)
    assert (report.generation, report.new_generation) == (2, 3)


def test_who_died_before_two_others_takes_a_generation_above_them(
    backed: Backed, died: Path, tmp_path: Path
) -> None:
    for number in (2, 3):
        marker = Generation(cell=CELL, generation=number, id=f"life-{number}")
        backed.backup_store.claim_generation(marker)
    report = restore(backed.backup_store, died, abandon=3)
    assert report.new_generation == 4
    assert opened(died)[0].index == 3 * 10**12


def test_a_finished_disk_that_was_overtaken_is_not_called_restored(
    backed: Backed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Target) -> None:
        raise Died

    backed.snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(Target, "clear", die)
        with pytest.raises(Died):
            restore(backed.backup_store, tmp_path / "r1")
    restore(backed.backup_store, tmp_path / "other", draw="other", abandon=2)
    with pytest.raises(Conflict, match="restored as generation 2, and 3 was begun since"):
        restore(backed.backup_store, tmp_path / "r1", abandon=3)
    assert opened(tmp_path / "r1")[0].index == 10**12, "it is left as it is"


def test_an_answer_that_was_lost_is_no_other_claim(
    backed: Backed, store: MemoryStore, tmp_path: Path
) -> None:
    backed.snapshot()
    name = generation_object(CELL, 2)
    real = store.put

    def put(wanted: str, content: bytes, *, if_absent: bool = False) -> bool:
        done = real(wanted, content, if_absent=if_absent)
        if wanted == name:
            store.put = real  # type: ignore[method-assign]
            raise StoreAway(store.url, "connection reset")
        return done

    store.put = put  # type: ignore[method-assign]
    with pytest.raises(StoreAway):
        restore(backed.backup_store, tmp_path / "r1")
    assert name in store.objects
    report = restore(backed.backup_store, tmp_path / "r1", draw="another draw")
    assert report.new_generation == 2
    assert markers(backed.backup_store)[2] == "drawn"
