"""Lives of a cell: each is begun by one, who may die and come again."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import msgspec
import pytest

from snapshots import layout
from snapshots.backup_store import BackupStore
from snapshots.directory import DirectoryStore
from snapshots.errors import (
    GenerationTaken,
    InvariantViolated,
    NotConditional,
    SnapshotError,
    StoreAway,
)
from snapshots.manifest import encode
from tests.fakes.memory_store import MemoryStore
from tests.unit.backup_store_rig import Crash, crash_at, generation


def test_a_claim_may_die_at_every_step_and_is_found_again() -> None:
    for step in range(20):
        for conditions in (True, False):
            store = MemoryStore()
            store.conditions = conditions
            backup_store = BackupStore(store, "prod")
            crash_at(store, step)
            with contextlib.suppress(Crash):
                backup_store.claim_generation(generation(2, "a"), unconditional=not conditions)
            store.hook = lambda operation, name: None
            backup_store.claim_generation(generation(2, "a"), unconditional=not conditions)
            assert backup_store.generations() == [generation(2, "a")]
            with pytest.raises(GenerationTaken):
                backup_store.claim_generation(generation(2, "b"), unconditional=not conditions)


def test_a_claim_whose_answer_was_lost_is_ours() -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    real = store.put

    def put(name: str, content: bytes, *, if_absent: bool = False) -> bool:
        real(name, content, if_absent=if_absent)
        raise StoreAway(store.url, "the answer was lost")

    store.put = put  # type: ignore[method-assign]
    with pytest.raises(StoreAway):
        backup_store.claim_generation(generation(2, "a"))
    store.put = real  # type: ignore[method-assign]
    backup_store.claim_generation(generation(2, "a"))
    with pytest.raises(GenerationTaken):
        backup_store.claim_generation(generation(2, "b"))


def test_who_is_overwritten_in_a_store_without_conditions_does_not_go_on() -> None:
    store = MemoryStore()
    store.conditions = False
    backup_store = BackupStore(store, "prod")
    name = layout.generation_object("prod", 2)

    def hook(operation: str, _: str) -> None:
        if operation == "get":
            store.objects[name] = encode(generation(2, "b"))

    store.hook = hook
    with pytest.raises(GenerationTaken):
        backup_store.claim_generation(generation(2, "a"), unconditional=True)


def test_a_damaged_marker_counts_and_hides_no_other() -> None:
    store = MemoryStore()
    backup_store = BackupStore(store, "prod")
    backup_store.claim_generation(generation(1))
    for number, content in (
        (2, b"{"),
        (3, encode(msgspec.structs.replace(generation(3), cell="x"))),
    ):
        store.objects[layout.generation_object("prod", number)] = content
    assert backup_store.generations() == [generation(1)]
    assert backup_store.newest_generation() == 3
    with pytest.raises(SnapshotError):
        backup_store.claim_generation(generation(2, "b"))


def test_a_claim_of_another_cell_is_a_bug() -> None:
    with pytest.raises(InvariantViolated):
        BackupStore(MemoryStore(), "test").claim_generation(generation())


def test_a_generation_has_one_owner_who_may_come_again() -> None:
    backup_store = BackupStore(MemoryStore(), "prod")
    backup_store.claim_generation(generation(1))
    backup_store.claim_generation(generation(2, "a"))
    backup_store.claim_generation(generation(2, "a"))
    with pytest.raises(GenerationTaken, match="by ada on h1"):
        backup_store.claim_generation(generation(2, "b"))
    assert backup_store.newest_generation() == 2
    assert [one.generation for one in backup_store.generations()] == [1, 2]


def test_of_two_restores_at_once_one_succeeds(tmp_path: Path) -> None:
    backup_store = BackupStore(DirectoryStore(tmp_path), "prod")
    won: list[str] = []
    gate = threading.Barrier(6)

    def claim(name: str) -> None:
        gate.wait()
        try:
            backup_store.claim_generation(generation(2, name))
            won.append(name)
        except GenerationTaken:
            pass

    threads = [threading.Thread(target=claim, args=(name,)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_a_store_without_conditions_needs_somebody_who_takes_the_risk() -> None:
    store = MemoryStore()
    store.conditions = False
    backup_store = BackupStore(store, "prod")
    with pytest.raises(NotConditional, match="conditional"):
        backup_store.claim_generation(generation())
    backup_store.claim_generation(generation(), unconditional=True)
    with pytest.raises(GenerationTaken):
        backup_store.claim_generation(generation(2, "b"), unconditional=True)
