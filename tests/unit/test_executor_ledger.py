"""The ledger on its own: what is committed is there after any crash, what is not is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import InvariantViolated, LedgerStuck
from launcher.executor import journal as journal_module
from launcher.executor import ledger as ledger_module
from launcher.executor.ledger import Ledger
from launcher.executor.rows import FENCED, REFUSED
from launcher.limits import DETAIL_BYTES_MAX
from launcher.protocol.work import Epoch
from tests.unit.journal_rig import MemoryDisk, read_only
from tests.unit.rows_rig import (
    ack,
    batch_of,
    ended,
    found,
    insert,
    refused,
    started,
)

A, B, C, D = (f"default/{job}@2026-11-20T15:00:00Z#1" for job in "abcd")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    ledger = Ledger(path)
    yield ledger
    ledger.close()


def reopened(ledger: Ledger) -> Ledger:
    """What the next one finds after a kill: nothing was closed before."""
    return read_only(ledger.path)


def accept(ledger: Ledger, *names: str, index: int = 10) -> None:
    with ledger.transaction():
        insert(ledger, *names, index=index)


def test_a_new_ledger_has_a_uuid_that_stays(ledger: Ledger, tmp_path: Path) -> None:
    again, other = reopened(ledger), Ledger(tmp_path / "other")
    assert again.uuid == ledger.uuid
    assert other.uuid != ledger.uuid
    assert (ledger.highest, ledger.watermark) == (Epoch(), 0)
    again.close()
    other.close()


def test_after_a_transaction_that_failed_nothing_is_ever_written(ledger: Ledger) -> None:
    accept(ledger, A)

    def twice_the_same() -> None:
        with ledger.transaction():
            ledger.raise_epoch(Epoch(0, 9, "r1"))
            ledger.raise_watermark(5)
            insert(ledger, A, index=10)

    with pytest.raises(InvariantViolated, match="has one of these rows already"):
        twice_the_same()
    with pytest.raises(LedgerStuck, match="an earlier transaction failed"):
        accept(ledger, B)
    again = reopened(ledger)
    assert (again.highest, again.watermark) == (Epoch(), 0)
    assert set(found(again)) == {A}


def test_a_synced_transaction_waits_for_the_disk_and_another_does_not() -> None:
    disk = MemoryDisk()
    ledger = Ledger(disk.path, disk=disk)
    accept(ledger, A)
    syncs = disk.syncs
    with ledger.transaction(synced=False):
        started(ledger, A, 4711, 99, 1_000)
    assert disk.syncs == syncs
    with ledger.transaction():
        ledger.raise_epoch(Epoch(0, 1, "r1"))
        insert(ledger, B, index=11)
    assert disk.syncs == syncs + 1
    with ledger.transaction():  # what is told now needs nothing that is not there
        ledger.changed([])
    assert disk.syncs == syncs + 1


def test_the_floor_forgets_acknowledged_rows_and_no_others(ledger: Ledger) -> None:
    accept(ledger, A, index=10)
    accept(ledger, B, index=10)
    accept(ledger, C, index=11)
    with ledger.transaction():
        for name in (A, B, C):
            ended(ledger, name)
        ack(ledger, A, C)
    with ledger.transaction():
        assert ledger.raise_watermark(10) == 1
    assert set(found(ledger)) == {B, C}
    with ledger.transaction():
        assert ledger.raise_watermark(9) == 0
    assert reopened(ledger).watermark == 10


def test_details_of_acknowledged_rows_are_kept_up_to_a_bound(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "ACKED_DETAILS_BYTES", 10)

    def run(name: str, index: int, detail: str) -> None:
        accept(ledger, name, index=index)
        with ledger.transaction():
            ended(ledger, name, detail=detail)
        assert found(ledger)[name].detail == detail
        with ledger.transaction():
            ack(ledger, name)

    six = "\N{EURO SIGN}..."  # in bytes
    run(A, 10, six)
    run(B, 11, "five.")
    run(C, 12, "four")
    run(D, 13, "x")
    details = {A: six, B: "", C: "four", D: ""}
    assert {name: row.detail for name, row in found(ledger).items()} == details
    assert {name: row.detail for name, row in found(reopened(ledger)).items()} == details
    with ledger.transaction():
        ledger.raise_watermark(10)
    late = "default/late@2026-11-20T15:00:00Z#1"
    run(late, 14, "six...")
    assert found(reopened(ledger))[late].detail == "six..."


def test_a_tombstone_stands_until_the_floor_passes_what_it_forbids(ledger: Ledger) -> None:
    with ledger.transaction():
        insert(ledger, B, status=FENCED, index=20)
        ack(ledger, B)
    for floor, stands in ((19, True), (20, False)):
        with ledger.transaction():
            ledger.raise_watermark(floor)
        assert (B in found(ledger)) is stands


def test_details_are_bounded(ledger: Ledger) -> None:
    accept(ledger, A)
    with ledger.transaction():
        ended(ledger, A, 1, 127, reason=13, detail="x" * 10_000)
        batch = batch_of(B, C)
        batch.details[0] = "y" * 10_000
        batch.states[:] = bytes([REFUSED]) * 2
        ledger.insert(batch)
    assert [len(row.detail) for row in found(ledger).values()].count(DETAIL_BYTES_MAX) == 2


def test_text_that_is_none_is_kept_as_far_as_it_is_text(ledger: Ledger) -> None:
    # The spawner tells names of files as the file system has them.
    accept(ledger, A)
    with ledger.transaction():
        refused(ledger, A, "caf\u00e9 \udcff")
    assert found(reopened(ledger))[A].detail == "caf\u00e9 ?"


def test_it_is_written_anew_when_most_of_it_is_of_rows_that_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "REWRITE_BYTES_MIN", 4_096)
    disk = MemoryDisk()
    ledger = Ledger(disk.path, disk=disk)
    with ledger.transaction():
        ledger.raise_epoch(Epoch(1, 7, "r.2"))
        ledger.record_workers([(7, 70)], [])
    for index in range(1, 400):
        name = f"default/j{index}@2026-11-20T15:00:00Z#1"
        accept(ledger, name, index=index)
        with ledger.transaction():
            ended(ledger, name, 2_000, 3)
            ack(ledger, *([name] if index % 50 else []))
            ledger.raise_watermark(index)
    assert 5 < disk.rewrites < 40
    assert len(disk.data or b"") < 2 * 4_096
    again = Ledger(disk.path, disk=disk.copy())
    assert [row.index for row in again.unacked()] == [50, 100, 150, 200, 250, 300, 350]
    assert (again.highest, again.watermark, again.workers()) == (Epoch(1, 7, "r.2"), 399, [(7, 70)])
    assert again.unacked() == ledger.unacked()


def test_a_reboot_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Ledger(path)
    again = Ledger(path)
    monkeypatch.setattr(ledger_module, "_boot_id", lambda: "another boot")
    after = Ledger(path)
    assert (again.is_same_boot, after.is_same_boot) == (True, False)
    for ledger in (first, again, after):
        ledger.close()


# ---- handlers
