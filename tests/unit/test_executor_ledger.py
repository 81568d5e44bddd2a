"""The ledger on its own: what is committed is there after any crash, what is not is not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import LedgerDamaged, LedgerStuck
from launcher.executor import ledger as ledger_module
from launcher.executor.ledger import Ledger
from launcher.executor.row import ACCEPTED, ENDED, FENCED, INTERRUPTED, REFUSED, Row
from launcher.limits import DETAIL_CHARS_MAX, NAMES_PER_QUERY
from launcher.work import Epoch

A, B, C = (f"default/{job}@2026-11-20T15:00:00Z#1" for job in "abc")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    ledger = Ledger(path)
    yield ledger
    ledger.close()


def reopened(ledger: Ledger) -> Ledger:
    """The same file, opened by somebody else, as after a kill: nothing was closed before."""
    return Ledger(ledger.path)


def accept(ledger: Ledger, *names: str, index: int = 10) -> None:
    with ledger.transaction():
        ledger.insert(Row(name, ACCEPTED, index, "0.1.r1") for name in names)


def test_a_new_ledger_has_a_uuid_that_stays(ledger: Ledger, tmp_path: Path) -> None:
    again, other = reopened(ledger), Ledger(tmp_path / "other.sqlite")
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
        ledger.ended([(A, 2_000, 3, 0, "")])
    assert fate() == (ENDED, 4711, 3)
    with ledger.transaction(synced=False):
        ledger.ack([A])
    assert fate() == (ENDED, 4711, 3)
    assert not reopened(ledger).unacked()


def test_a_transaction_that_fails_changes_nothing(ledger: Ledger) -> None:
    def twice_the_same() -> None:
        with ledger.transaction():
            ledger.raise_epoch(Epoch(0, 9, "r1"))
            ledger.raise_floor(5)
            ledger.insert([Row(A, ACCEPTED, 10), Row(A, ACCEPTED, 11)])

    with pytest.raises(sqlite3.IntegrityError):
        twice_the_same()
    assert (ledger.highest, ledger.floor) == (Epoch(), 0)
    assert not ledger.rows([A])
    again = reopened(ledger)
    assert (again.highest, again.floor) == (Epoch(), 0)
    again.close()


def test_a_full_disk_is_said_and_nothing_is_half_written(ledger: Ledger) -> None:
    accept(ledger, A)
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count = {pages}")
    many = [f"default/j{number}@2026-11-20T15:00:00Z#1" for number in range(1_000)]
    with pytest.raises(LedgerStuck, match=r"ledger\.sqlite: cannot write: .*full") as caught:
        accept(ledger, *many)
    assert "make room" in caught.value.hint
    assert set(ledger.rows([A, *many])) == {A}


def test_the_highest_epoch_is_kept_and_never_lowered(ledger: Ledger) -> None:
    for epoch in (Epoch(1, 7, "r.2"), Epoch(1, 6, "r3"), Epoch(0, 99, "r1")):
        with ledger.transaction():
            ledger.raise_epoch(epoch)
    again = reopened(ledger)
    assert again.highest == ledger.highest == Epoch(1, 7, "r.2")
    again.close()


def test_a_synced_transaction_waits_for_the_disk_and_another_does_not(ledger: Ledger) -> None:
    with ledger.transaction():
        full = ledger._db.execute("PRAGMA synchronous").fetchone()[0]
    with ledger.transaction(synced=False):
        normal = ledger._db.execute("PRAGMA synchronous").fetchone()[0]
    assert (full, normal) == (2, 1)
    assert ledger._db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_an_end_is_recorded_once(ledger: Ledger) -> None:
    accept(ledger, A)
    with ledger.transaction():
        ledger.ended([(A, 2_000, 3, 0, "")])
        ledger.ended([(A, 3_000, 0, 0, "again")])
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
        ledger.ended([(name, 1, 0, 0, "") for name in (A, B, C)])
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


def test_more_names_than_one_query_takes_are_found(ledger: Ledger) -> None:
    names = [
        f"default/j{number}@2026-11-20T15:00:00Z#1" for number in range(2 * NAMES_PER_QUERY + 1)
    ]
    accept(ledger, *names)
    assert set(ledger.rows([*names, A])) == set(names)


def test_details_are_bounded(ledger: Ledger) -> None:
    accept(ledger, A)
    with ledger.transaction():
        ledger.ended([(A, 1, 127, 13, "x" * 10_000)])
        ledger.insert([Row(B, REFUSED, detail="y" * 10_000)])
    assert {len(row.detail) for row in ledger.rows([A, B]).values()} == {DETAIL_CHARS_MAX}


def test_rows_come_back_as_they_were_written(ledger: Ledger) -> None:
    row = Row(A, ENDED, 7, "1.2.r3", b"\0digest", 11, 12, 13, 14, 15, 6, "détail", 0)
    with ledger.transaction():
        ledger.insert([row])
    assert ledger.unacked() == [row]


@pytest.mark.parametrize(
    "damage",
    [
        b"this is no database at all, whatever its name may say\n" * 100,
        b"SQLite format 3\0" + bytes(5_000),
    ],
)
def test_what_is_no_ledger_is_refused_with_the_way_out(path: Path, damage: bytes) -> None:
    path.write_bytes(damage)
    with pytest.raises(LedgerDamaged, match="cannot be read") as caught:
        Ledger(path)
    assert "move" in caught.value.hint
    assert "UUID" in caught.value.hint


def test_a_damaged_page_is_refused(path: Path) -> None:
    ledger = Ledger(path)
    accept(ledger, *(f"default/j{number}@2026-11-20T15:00:00Z#1" for number in range(2_000)))
    ledger.close()
    content = bytearray(path.read_bytes())
    for at in range(4096 * 5, len(content), 4096):
        content[at : at + 64] = b"\xff" * 64
    path.write_bytes(content)
    with pytest.raises(LedgerDamaged):
        Ledger(path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE meta SET value = '5' WHERE key = 'version'",
        "DELETE FROM meta WHERE key = 'uuid'",
        "UPDATE meta SET value = 'x' WHERE key = 'epoch'",
        "DROP TABLE launch",
    ],
)
def test_a_ledger_of_another_make_is_refused(path: Path, change: str) -> None:
    Ledger(path).close()
    other = sqlite3.connect(path)
    other.execute(change)
    other.commit()
    other.close()
    with pytest.raises(LedgerDamaged):
        Ledger(path)


def test_a_reboot_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Ledger(path)
    again = Ledger(path)
    monkeypatch.setattr(ledger_module, "_boot_id", lambda: "another boot")
    after = Ledger(path)
    assert (again.is_same_boot, after.is_same_boot) == (True, False)
    for ledger in (first, again, after):
        ledger.close()


# ---- what handlers made necessary


VERSION_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE launch (
  name TEXT PRIMARY KEY, fate INTEGER NOT NULL, begun_index INTEGER NOT NULL,
  epoch TEXT NOT NULL, digest BLOB NOT NULL, pid INTEGER NOT NULL, ticks INTEGER NOT NULL,
  started_ms INTEGER NOT NULL, finished_ms INTEGER NOT NULL, exit_code INTEGER NOT NULL,
  reason INTEGER NOT NULL, detail TEXT NOT NULL, acked INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX launch_open ON launch (begun_index) WHERE acked = 0;
CREATE INDEX launch_forgettable ON launch (begun_index) WHERE acked = 1;
INSERT INTO meta VALUES ('version', '1'), ('uuid', '0f0e0d0c-0b0a-4909-8807-060504030201'),
  ('epoch', '0.7.r1'), ('floor', '5');
INSERT INTO launch VALUES ('default/a@2026-11-20T15:00:00Z#1', 3, 10, '0.7.r1', x'00', 4711, 99,
  1000, 2000, 3, 0, 'why', 0);
"""
"""What executors wrote before there were handlers."""
VERSION_2 = """
ALTER TABLE launch ADD COLUMN retry_after_ms INTEGER NOT NULL DEFAULT 0;
CREATE TABLE worker (pid INTEGER PRIMARY KEY, ticks INTEGER NOT NULL);
UPDATE meta SET value = '2' WHERE key = 'version';
INSERT INTO worker VALUES (7, 70);
INSERT INTO launch VALUES ('default/b@2026-11-20T15:00:00Z#1', 3, 9, '0.7.r1', x'00', 4712, 99,
  1000, 2000, 3, 0, 'why', 0, 0);
"""
"""What makes of it what the next ones wrote, with a row begun before the other."""


def test_a_ledger_from_before_there_were_handlers_is_read_and_goes_on(path: Path) -> None:
    with sqlite3.connect(path) as old:
        old.executescript(VERSION_1)
    old.close()
    for _ in range(2):  # it is made anew once
        ledger = Ledger(path)
        assert ledger.uuid == "0f0e0d0c-0b0a-4909-8807-060504030201"
        assert (ledger.highest, ledger.floor) == (Epoch(0, 7, "r1"), 5)
        row = ledger.rows([A])[A]
        assert row == Row(
            A, ENDED, 10, "0.7.r1", b"\0", 4711, 99, 1_000, 2_000, 3, 0, "why", 0, 0
        )  # fmt: skip
        assert ledger.workers() == []
        ledger.close()
    ledger = Ledger(path)
    accept(ledger, B)
    with ledger.transaction():
        ledger.done([(B, 2_000, 1, 14, "again", 9_000, 1_500)])
    row = ledger.rows([B])[B]
    assert (row.fate, row.started_ms, row.retry_after_ms) == (ENDED, 1_500, 9_000)
    ledger.close()


def test_a_ledger_whose_rows_lie_by_name_is_read_and_tells_them_in_the_order_of_the_log(
    path: Path,
) -> None:
    with sqlite3.connect(path) as old:
        old.executescript(VERSION_1)
        old.executescript(VERSION_2)
    old.close()
    ledger = Ledger(path)
    assert [row.name for row in ledger.unacked()] == [B, A]
    assert [row.name for row in ledger.page((0, ""), 100, 10)] == [B, A]
    assert ledger.workers() == [(7, 70)]
    with ledger.transaction():
        ledger.ack([A, B])
        assert ledger.raise_floor(9) == 1
    assert list(ledger.rows([A, B])) == [A]
    ledger.close()
    with sqlite3.connect(path) as now:
        found = {name for (name,) in now.execute("SELECT name FROM sqlite_master")}
    now.close()
    assert {"launch", "launch_open", "launch_forgettable"} <= found
    assert "before" not in found


def test_the_end_of_a_handler_keeps_the_start_that_was_told(ledger: Ledger) -> None:
    accept(ledger, A, B)
    with ledger.transaction():
        ledger.started([(A, 0, 0, 1_000)])
        ledger.done([(A, 2_000, 0, 0, "x" * 9_999, 0, 7), (B, 2_000, 0, 0, "", 0, 7)])
        ledger.done([(A, 3_000, 1, 15, "once more", 0, 8)])
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
