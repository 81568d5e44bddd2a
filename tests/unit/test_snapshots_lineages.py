"""Lives of a cell: each is begun by one, who may die and come again."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import msgspec
import pytest

from snapshots import layout
from snapshots.directory import DirectoryStore
from snapshots.errors import (
    InvariantViolated,
    LineageTaken,
    NotConditional,
    SnapshotError,
    StoreAway,
)
from snapshots.manifest import encode
from snapshots.vault import Vault
from tests.fakes.memory_store import MemoryStore
from tests.unit.vault_rig import Crash, crash_at, lineage


def test_a_claim_may_die_at_every_step_and_is_found_again() -> None:
    for step in range(20):
        for conditions in (True, False):
            store = MemoryStore()
            store.conditions = conditions
            vault = Vault(store, "prod")
            crash_at(store, step)
            with contextlib.suppress(Crash):
                vault.claim_lineage(lineage(2, "a"), unconditional=not conditions)
            store.hook = lambda operation, name: None
            vault.claim_lineage(lineage(2, "a"), unconditional=not conditions)
            assert vault.lineages() == [lineage(2, "a")]
            with pytest.raises(LineageTaken):
                vault.claim_lineage(lineage(2, "b"), unconditional=not conditions)


def test_a_claim_whose_answer_was_lost_is_ours() -> None:
    store = MemoryStore()
    vault = Vault(store, "prod")
    real = store.put

    def put(name: str, content: bytes, *, if_absent: bool = False) -> bool:
        real(name, content, if_absent=if_absent)
        raise StoreAway(store.url, "the answer was lost")

    store.put = put  # type: ignore[method-assign]
    with pytest.raises(StoreAway):
        vault.claim_lineage(lineage(2, "a"))
    store.put = real  # type: ignore[method-assign]
    vault.claim_lineage(lineage(2, "a"))
    with pytest.raises(LineageTaken):
        vault.claim_lineage(lineage(2, "b"))


def test_who_is_overwritten_in_a_store_without_conditions_does_not_go_on() -> None:
    store = MemoryStore()
    store.conditions = False
    vault = Vault(store, "prod")
    name = layout.lineage_object("prod", 2)

    def hook(operation: str, _: str) -> None:
        if operation == "get":
            store.objects[name] = encode(lineage(2, "b"))

    store.hook = hook
    with pytest.raises(LineageTaken):
        vault.claim_lineage(lineage(2, "a"), unconditional=True)


def test_a_damaged_marker_counts_and_hides_no_other() -> None:
    store = MemoryStore()
    vault = Vault(store, "prod")
    vault.claim_lineage(lineage(1))
    for number, content in ((2, b"{"), (3, encode(msgspec.structs.replace(lineage(3), cell="x")))):
        store.objects[layout.lineage_object("prod", number)] = content
    assert vault.lineages() == [lineage(1)]
    assert vault.newest_lineage() == 3
    with pytest.raises(SnapshotError):
        vault.claim_lineage(lineage(2, "b"))


def test_a_claim_of_another_cell_is_a_bug() -> None:
    with pytest.raises(InvariantViolated):
        Vault(MemoryStore(), "test").claim_lineage(lineage())


def test_a_lineage_has_one_owner_who_may_come_again() -> None:
    vault = Vault(MemoryStore(), "prod")
    vault.claim_lineage(lineage(1))
    vault.claim_lineage(lineage(2, "a"))
    vault.claim_lineage(lineage(2, "a"))
    with pytest.raises(LineageTaken, match="by ada on h1") as taken:
        vault.claim_lineage(lineage(2, "b"))
    assert taken.value.lineage == lineage(2, "a")
    assert vault.newest_lineage() == 2
    assert [one.lineage for one in vault.lineages()] == [1, 2]


def test_of_two_restores_at_once_one_succeeds(tmp_path: Path) -> None:
    vault = Vault(DirectoryStore(tmp_path), "prod")
    won: list[str] = []
    gate = threading.Barrier(6)

    def claim(name: str) -> None:
        gate.wait()
        try:
            vault.claim_lineage(lineage(2, name))
            won.append(name)
        except LineageTaken:
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
    vault = Vault(store, "prod")
    with pytest.raises(NotConditional, match="conditional"):
        vault.claim_lineage(lineage())
    vault.claim_lineage(lineage(), unconditional=True)
    with pytest.raises(LineageTaken):
        vault.claim_lineage(lineage(2, "b"), unconditional=True)
