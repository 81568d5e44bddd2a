"""The ledger on its own: what is committed is there after any crash, what is not is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.columns import differences
from launcher.errors import InvariantViolated, LedgerStuck
from launcher.executor import journal as journal_module
from launcher.executor import ledger as ledger_module
from launcher.executor.ledger import Ledger
from launcher.executor.row import ACCEPTED, ENDED, FENCED, INTERRUPTED, REFUSED, Change
from launcher.limits import DETAIL_CHARS_MAX
from launcher.work import Epoch
from tests.unit.journal_rig import MemoryDisk, read_only
from tests.unit.rows_rig import (
    ack,
    batch_of,
    become,
    ended,
    found,
    insert,
    interrupted,
    key_of,
    number_of,
    refused,
    started,
    starting,
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
    assert (ledger.highest, ledger.floor) == (Epoch(), 0)
    again.close()
    other.close()


def test_after_a_crash_at_each_step_the_ledger_knows_the_step(ledger: Ledger) -> None:
    def fate() -> tuple[int, int, int]:
        copy = reopened(ledger)
        row = found(copy)[A]
        copy.close()
        return row.fate, row.pid, row.exit_code

    accept(ledger, A)
    assert fate() == (ACCEPTED, 0, 0)
    with ledger.transaction(synced=False):
        started(ledger, A, 4711, 99, 1_000)
    assert fate() == (ACCEPTED, 4711, 0)
    with ledger.transaction():
        ended(ledger, A, 2_000, 3)
    assert fate() == (ENDED, 0, 3)  # nothing is looked for of what has ended
    with ledger.transaction(synced=False):
        ack(ledger, A)
    assert fate() == (ENDED, 0, 3)
    assert not reopened(ledger).unacked()


def test_after_a_transaction_that_failed_nothing_is_ever_written(ledger: Ledger) -> None:
    accept(ledger, A)

    def twice_the_same() -> None:
        with ledger.transaction():
            ledger.raise_epoch(Epoch(0, 9, "r1"))
            ledger.raise_floor(5)
            insert(ledger, A, index=10)

    with pytest.raises(InvariantViolated, match="has one of these rows already"):
        twice_the_same()
    with pytest.raises(LedgerStuck, match="an earlier transaction failed"):
        accept(ledger, B)
    again = reopened(ledger)
    assert (again.highest, again.floor) == (Epoch(), 0)
    assert set(found(again)) == {A}


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
        started(ledger, A, 4711, 99, 1_000)
    assert disk.syncs == syncs
    with ledger.transaction():
        ledger.raise_epoch(Epoch(0, 1, "r1"))
        insert(ledger, B, index=11)
    assert disk.syncs == syncs + 1
    with ledger.transaction():  # what is told now needs nothing that is not there
        ledger.changed([])
    assert disk.syncs == syncs + 1


def test_an_end_is_recorded_once(ledger: Ledger) -> None:
    accept(ledger, A)
    with ledger.transaction():
        ended(ledger, A, 2_000, 3)
        ended(ledger, A, 3_000, detail="again")
        interrupted(ledger, A, 4_000, "died")
        refused(ledger, A, "late")
    row = found(ledger)[A]
    assert (row.fate, row.finished_ms, row.exit_code, row.detail) == (ENDED, 2_000, 3, "")


def test_what_was_started_cannot_be_refused_any_more(ledger: Ledger) -> None:
    accept(ledger, A, B)
    with ledger.transaction():
        started(ledger, A, 4711, 99, 1_000)
        refused(ledger, A, "late")
        refused(ledger, B, "late")
    rows = found(ledger)
    assert (rows[A].fate, rows[B].fate) == (ACCEPTED, REFUSED)
    assert (rows[A].is_pending, rows[B].is_pending) == (False, False)


def test_interrupting_says_why(ledger: Ledger) -> None:
    accept(ledger, A)
    with ledger.transaction():
        interrupted(ledger, A, 5_000, "the executor died")
    row = found(ledger)[A]
    assert (row.fate, row.finished_ms, row.detail) == (INTERRUPTED, 5_000, "the executor died")


def test_an_open_row_cannot_be_acknowledged(ledger: Ledger) -> None:
    accept(ledger, A)
    with ledger.transaction():
        ack(ledger, A, "default/never@2026-11-20T15:00:00Z#1")
        assert ledger.raise_floor(1_000) == 0
    assert [row.name for row in ledger.accepted()] == [A]


def test_no_rows_may_be_acknowledged(ledger: Ledger) -> None:
    accept(ledger, A)
    with ledger.transaction():
        ledger.ack(10, [])
    assert [row.name for row in ledger.unacked()] == [A]


def test_the_floor_forgets_acknowledged_rows_and_no_others(ledger: Ledger) -> None:
    accept(ledger, A, index=10)
    accept(ledger, B, index=10)
    accept(ledger, C, index=11)
    with ledger.transaction():
        for name in (A, B, C):
            ended(ledger, name)
        ack(ledger, A, C)
    with ledger.transaction():
        assert ledger.raise_floor(10) == 1
    assert set(found(ledger)) == {B, C}
    with ledger.transaction():
        assert ledger.raise_floor(9) == 0
    assert reopened(ledger).floor == 10


def test_a_tombstone_stands_until_the_floor_passes_what_it_forbids(ledger: Ledger) -> None:
    with ledger.transaction():
        insert(ledger, B, fate=FENCED, index=20)
        ack(ledger, B)
    for floor, stands in ((19, True), (20, False)):
        with ledger.transaction():
            ledger.raise_floor(floor)
        assert (B in found(ledger)) is stands


def test_details_are_bounded(ledger: Ledger) -> None:
    accept(ledger, A)
    with ledger.transaction():
        ended(ledger, A, 1, 127, reason=13, detail="x" * 10_000)
        batch = batch_of(B, C)
        batch.details[0] = "y" * 10_000
        batch.states[:] = bytes([REFUSED]) * 2
        ledger.insert(batch)
    assert [len(row.detail) for row in found(ledger).values()].count(DETAIL_CHARS_MAX) == 2


def test_rows_come_back_as_they_were_written(ledger: Ledger) -> None:
    accept(ledger, A, B, C)
    accept(ledger, D, index=7)
    with ledger.transaction():
        started(ledger, B, 0, 0, 1_000)
        started(ledger, C, 12, 13, 1_001)
        usage = {"retry_after_ms": 4, "cpu_ms": 5, "memory_peak_bytes": 6}
        become(ledger, A, ENDED, reason=14, exit_code=-1, started_ms=1, detail="détail", **usage)
        refused(ledger, D, "late")
    expected = found(ledger)
    assert expected[A].exit_code == -1
    again = Ledger(ledger.path)
    for one in (reopened(ledger), again, Ledger(ledger.path)):  # read, and written anew
        assert found(one) == expected
        assert one.unacked() == ledger.unacked()
        assert one.count == 4
        one.close()


def test_a_name_and_a_digest_are_written_once_and_come_back(ledger: Ledger) -> None:
    batch = batch_of(A, B, digest=b"\0digest")
    with ledger.transaction():
        ledger.insert(batch)
    accepted = ledger.path.stat().st_size
    again = batch_of(A, B, index=11)
    again.jobs = batch.jobs
    with ledger.transaction():
        ledger.insert(again)
    assert b"default/a" not in ledger.path.read_bytes()[accepted:]
    job = reopened(ledger).job(11, number_of(A))
    assert job is not None
    assert (job.name, job.digest) == ("default/a", b"\0digest")


def test_a_row_that_runs_for_long_keeps_no_other_row_of_its_batch(ledger: Ledger) -> None:
    accept(ledger, A, B, C)
    with ledger.transaction():
        started(ledger, A, 4711, 99, 1_000)
        started(ledger, C, 4712, 99, 1_000)
        for name in (B, C):
            ended(ledger, name)
        ack(ledger, B)
        assert ledger.raise_floor(10) == 1
    with ledger.transaction():
        ack(ledger, C)
        assert ledger.raise_floor(11) == 1
    for one in (ledger, reopened(ledger)):
        assert set(found(one)) == {A}
        assert (one.count, found(one)[A].pid) == (1, 4711)
    [[batch]] = ledger._batches.values()
    assert batch.pids is not None
    with ledger.transaction():
        ended(ledger, A)
        assert batch.pids is None  # what has ended needs no process
        ack(ledger, A)
        assert ledger.raise_floor(12) == 1
    assert not found(reopened(ledger))


def test_a_batch_may_come_in_parts_and_in_any_order(ledger: Ledger) -> None:
    accept(ledger, C)
    accept(ledger, A, D)
    with ledger.transaction():
        ledger.changed([Change(10, ENDED, 0, 0, _ascending(A, C), [1, 0], [2, 0])])
    index, row = key_of(B)
    assert ledger.row(index, row) is None
    assert {name: row.fate for name, row in found(reopened(ledger)).items()} == {
        A: ENDED,
        C: ENDED,
        D: ACCEPTED,
    }


def _ascending(*names: str) -> list[int]:
    return differences(sorted(map(number_of, names)))


def test_a_start_record_is_there_for_what_starts_at_once_and_for_what_waited(
    ledger: Ledger,
) -> None:
    with ledger.transaction():
        insert(ledger, A, B, index=10)
        insert(ledger, C, index=10, is_starting=True)
    with ledger.transaction():
        starting(ledger, B, D)
    for one in (ledger, reopened(ledger)):
        is_starting = {name: row.is_starting for name, row in found(one).items()}
        assert is_starting == {A: False, B: True, C: True}


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
            ledger.raise_floor(index)
    assert 5 < disk.rewrites < 40
    assert len(disk.data or b"") < 2 * 4_096
    again = Ledger(disk.path, disk=disk.copy())
    assert [row.index for row in again.unacked()] == [50, 100, 150, 200, 250, 300, 350]
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
        started(ledger, A, 0, 0, 1_000)
        ended(ledger, A, started_ms=7, detail="x" * 9_999)
        ended(ledger, B, started_ms=7)
        ended(ledger, A, 3_000, 1, reason=15, detail="once more", started_ms=8)
    rows = found(ledger)
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
