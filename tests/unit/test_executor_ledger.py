"""The ledger on its own: what is committed is there after any crash, what is not is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import InvariantViolated, LedgerStuck
from launcher.executor import journal as journal_module
from launcher.executor import ledger as ledger_module
from launcher.executor.ledger import Ledger
from launcher.executor.records import End
from launcher.executor.row import ACCEPTED, ENDED, FENCED, INTERRUPTED, REFUSED, Row
from launcher.limits import DETAIL_CHARS_MAX
from launcher.work import Epoch
from tests.unit.journal_rig import MemoryDisk, read_only

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
        ledger.insert(Row(name, ACCEPTED, index, "0.1.r1") for name in names)


def test_a_new_ledger_has_a_uuid_that_stays(ledger: Ledger, tmp_path: Path) -> None:
    again, other = reopened(ledger), Ledger(tmp_path / "other")
    assert again.uuid == ledger.uuid
    assert other.uuid != ledger.uuid
    assert (ledger.highest, ledger.floor) == (Epoch(), 0)
    again.close()
    other.close()


def test_after_a_crash_at_each_step_the_ledger_knows_the_step(ledger: Ledger) -> None:
    def fate() -> tuple[int, int, int]:
        copy = reopened(ledger)
        row = copy.rows([A])[A]
        copy.close()
        return row.fate, row.pid, row.exit_code

    accept(ledger, A)
    assert fate() == (ACCEPTED, 0, 0)
    with ledger.transaction(synced=False):
        ledger.started([(A, 4711, 99, 1_000)])
    assert fate() == (ACCEPTED, 4711, 0)
    with ledger.transaction():
        ledger.ended([End(A, 2_000, 3, 0, "")])
    assert fate() == (ENDED, 4711, 3)
    with ledger.transaction(synced=False):
        ledger.ack([A])
    assert fate() == (ENDED, 4711, 3)
    assert not reopened(ledger).unacked()


def test_after_a_transaction_that_failed_nothing_is_ever_written(ledger: Ledger) -> None:
    accept(ledger, A)

    def twice_the_same() -> None:
        with ledger.transaction():
            ledger.raise_epoch(Epoch(0, 9, "r1"))
            ledger.raise_floor(5)
            ledger.insert([Row(A, ACCEPTED, 11)])

    with pytest.raises(InvariantViolated, match="has a row already"):
        twice_the_same()
    with pytest.raises(LedgerStuck, match="an earlier transaction failed"):
        accept(ledger, B)
    again = reopened(ledger)
    assert (again.highest, again.floor) == (Epoch(), 0)
    assert set(again.rows([A, B])) == {A}


def test_the_highest_epoch_is_kept_and_never_lowered(ledger: Ledger) -> None:
    for epoch in (Epoch(1, 7, "r.2"), Epoch(1, 6, "r3"), Epoch(0, 99, "r1")):
        with ledger.transaction():
            ledger.raise_epoch(epoch)
    again = reopened(ledger)
    assert again.highest == ledger.highest == Epoch(1, 7, "r.2")
    again.close()


def test_a_synced_transaction_waits_for_the_disk_and_another_does_not() -> None:
    disk = MemoryDisk()
    ledger = Ledger(disk.path, disk=disk)
    accept(ledger, A)
    syncs = disk.syncs
    with ledger.transaction(synced=False):
        ledger.started([(A, 4711, 99, 1_000)])
    assert disk.syncs == syncs
    with ledger.transaction():
        ledger.raise_epoch(Epoch(0, 1, "r1"))
        ledger.insert([Row(B, ACCEPTED, 11)])
    assert disk.syncs == syncs + 1
    with ledger.transaction():  # what is told now needs nothing that is not there
        ledger.insert([])
    assert disk.syncs == syncs + 1


def test_an_end_is_recorded_once(ledger: Ledger) -> None:
    accept(ledger, A)
    with ledger.transaction():
        ledger.ended([End(A, 2_000, 3, 0, "")])
        ledger.ended([End(A, 3_000, 0, 0, "again")])
        ledger.interrupted([A], 4_000, "died")
        ledger.refused([(A, "late")])
    row = ledger.rows([A])[A]
    assert (row.fate, row.finished_ms, row.exit_code, row.detail) == (ENDED, 2_000, 3, "")


def test_what_was_started_cannot_be_refused_any_more(ledger: Ledger) -> None:
    accept(ledger, A, B)
    with ledger.transaction():
        ledger.started([(A, 4711, 99, 1_000)])
        ledger.refused([(A, "late"), (B, "late")])
    rows = ledger.rows([A, B])
    assert (rows[A].fate, rows[B].fate) == (ACCEPTED, REFUSED)
    assert (rows[A].is_pending, rows[B].is_pending) == (False, False)


def test_interrupting_says_why(ledger: Ledger) -> None:
    accept(ledger, A)
    with ledger.transaction():
        ledger.interrupted([A], 5_000, "the executor died")
    report = ledger.rows([A])[A].report()
    assert (report.fate, report.finished_ms, report.detail) == (
        INTERRUPTED,
        5_000,
        "the executor died",
    )


def test_an_open_row_cannot_be_acknowledged(ledger: Ledger) -> None:
    accept(ledger, A)
    with ledger.transaction():
        ledger.ack([A, "default/never@2026-11-20T15:00:00Z#1"])
        assert ledger.raise_floor(1_000) == 0
    assert [row.name for row in ledger.accepted()] == [A]


def test_the_floor_forgets_acknowledged_rows_and_no_others(ledger: Ledger) -> None:
    accept(ledger, A, index=10)
    accept(ledger, B, index=10)
    accept(ledger, C, index=11)
    with ledger.transaction():
        ledger.ended([End(name, 1, 0, 0) for name in (A, B, C)])
        ledger.ack([A, C])
    with ledger.transaction():
        assert ledger.raise_floor(10) == 1
    assert set(ledger.rows([A, B, C])) == {B, C}
    with ledger.transaction():
        assert ledger.raise_floor(9) == 0
    assert reopened(ledger).floor == 10


def test_a_tombstone_stands_until_the_floor_passes_what_was_seen_when_it_was_set(
    ledger: Ledger,
) -> None:
    accept(ledger, A, index=20)
    with ledger.transaction():
        ledger.insert([Row(B, FENCED)])
        ledger.ack([B])
    for floor, stands in ((19, True), (20, False)):
        with ledger.transaction():
            ledger.raise_floor(floor)
        assert (B in ledger.rows([B])) is stands


def test_the_newest_index_is_remembered_for_tombstones_after_a_restart(ledger: Ledger) -> None:
    accept(ledger, A, index=20)
    again = reopened(ledger)
    with again.transaction():
        again.insert([Row(B, FENCED)])
    assert again.rows([B])[B].begun_index == 20
    again.close()


def test_details_are_bounded(ledger: Ledger) -> None:
    accept(ledger, A)
    with ledger.transaction():
        ledger.ended([End(A, 1, 127, 13, "x" * 10_000)])
        ledger.insert([Row(B, REFUSED, detail="y" * 10_000)])
    assert {len(row.detail) for row in ledger.rows([A, B]).values()} == {DETAIL_CHARS_MAX}


def test_rows_come_back_as_they_were_written(ledger: Ledger) -> None:
    row = Row(A, ENDED, 7, "1.2.r3", b"\0digest", 11, 12, 13, 14, 15, 6, "détail", 0)
    with ledger.transaction():
        ledger.insert([row])
    assert ledger.unacked() == [row]


def test_a_start_record_is_there_for_what_starts_at_once_and_for_what_waited(
    ledger: Ledger,
) -> None:
    with ledger.transaction():
        ledger.insert([Row(A, ACCEPTED, 10, "0.1.r1"), Row(B, ACCEPTED, 10, "0.1.r1")])
        ledger.insert([Row(C, ACCEPTED, 10, "0.1.r1", is_starting=True)])
    with ledger.transaction():
        ledger.starting([B, D])
    for found in (ledger, reopened(ledger)):
        starting = {name: row.is_starting for name, row in found.rows([A, B, C, D]).items()}
        assert starting == {A: False, B: True, C: True}


def test_text_that_is_none_is_kept_as_far_as_it_is_text(ledger: Ledger) -> None:
    # The spawner tells names of files as the file system has them.
    accept(ledger, A)
    with ledger.transaction():
        ledger.refused([(A, "caf\u00e9 \udcff")])
    assert reopened(ledger).rows([A])[A].detail == "caf\u00e9 ?"


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
            ledger.ended([End(name, 2_000, 3, 0)])
            ledger.ack([name] if index % 50 else [])
            ledger.raise_floor(index)
    assert 5 < disk.rewrites < 40
    assert len(disk.data or b"") < 2 * 4_096
    again = Ledger(disk.path, disk=disk.copy())
    assert [row.begun_index for row in again.unacked()] == [50, 100, 150, 200, 250, 300, 350]
    assert (again.highest, again.floor, again.workers()) == (Epoch(1, 7, "r.2"), 399, [(7, 70)])
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


def test_the_end_of_a_handler_keeps_the_start_that_was_told(ledger: Ledger) -> None:
    accept(ledger, A, B)
    with ledger.transaction():
        ledger.started([(A, 0, 0, 1_000)])
        ledger.ended([End(A, 2_000, 0, 0, "x" * 9_999, 0, 7), End(B, 2_000, 0, 0, "", 0, 7)])
        ledger.ended([End(A, 3_000, 1, 15, "once more", 0, 8)])
    rows = ledger.rows([A, B])
    assert [rows[name].started_ms for name in (A, B)] == [1_000, 7]
    assert (rows[A].reason, rows[A].finished_ms) == (0, 2_000)
    assert len(rows[A].detail) == DETAIL_CHARS_MAX


def test_workers_are_remembered_until_they_are_dead(ledger: Ledger) -> None:
    with ledger.transaction():
        ledger.record_workers([(7, 70), (8, 80)], [])
    assert reopened(ledger).workers() == [(7, 70), (8, 80)]
    with ledger.transaction():
        ledger.record_workers([(7, 71)], [7, 8, 9])  # another process has that id by now
    assert reopened(ledger).workers() == [(7, 71)]
