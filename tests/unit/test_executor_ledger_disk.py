"""A ledger on a disk that is full, fails, or forgets: told as what it is, and not gone on with."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.errors import LedgerDamaged, LedgerForeign, LedgerStuck
from launcher.executor.ledger import Ledger, told
from launcher.executor.row import ACCEPTED, Row
from launcher.work import Epoch

EACH = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def row(number: int) -> Row:
    name = f"default/j{number}@2026-11-20T15:00:00Z#1"
    return Row(name=name, fate=ACCEPTED, begun_index=number + 1, epoch=str(Epoch(0, 1, "r1")))


def accept(ledger: Ledger, *numbers: int) -> None:
    """Accept launches, each in a transaction of its own."""
    for number in numbers:
        with ledger.transaction():
            ledger.insert([row(number)])


def killed(path: Path) -> Path:
    """The files of an executor that was killed after some launches, in another directory."""
    (path.parent / "copy").mkdir()
    ledger = Ledger(path, "e1")
    accept(ledger, *range(EACH // 2))
    ledger._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    accept(ledger, *range(EACH // 2, EACH))
    for file in path.parent.glob("ledger*"):
        shutil.copy(file, path.parent / "copy")
    ledger.close()
    return path.parent / "copy" / path.name


# ---- an end that is missing


def flip_in_log(path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 0x10
    log.write_bytes(content)


def cut_log(path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    content = log.read_bytes()
    log.write_bytes(content[: len(content) - 5_000])


def remove_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def put_older_copy(path: Path) -> None:
    older = Ledger(path.parent.parent / "older.sqlite")
    older.close()
    for file in path.parent.glob("*.sqlite*"):
        file.unlink()
    shutil.copy(path.parent.parent / path.name, path)
    with sqlite3.connect(path) as db:  # as it was long ago
        db.execute("DELETE FROM launch")
        db.execute("UPDATE meta SET value = '3' WHERE key = 'synced'")
    db.close()


@pytest.mark.parametrize("damage", [flip_in_log, cut_log, remove_log, put_older_copy])
def test_a_ledger_whose_end_is_missing_is_not_started_on(
    path: Path, damage: Callable[[Path], None]
) -> None:
    copy = killed(path)
    damage(copy)
    db = sqlite3.connect(copy)
    assert db.execute("PRAGMA quick_check").fetchone() == ("ok",), "SQLite says that all is well"
    db.close()
    with pytest.raises(LedgerDamaged, match="writes are missing: its end is cut off") as caught:
        Ledger(copy, "e1")
    assert f"move {copy.parent} away" in caught.value.hint


def test_a_ledger_that_was_only_killed_is_whole(path: Path) -> None:
    ledger = Ledger(killed(path), "e1")
    assert len(ledger.accepted()) == EACH
    accept(ledger, EACH)
    ledger.close()


def test_what_was_not_synced_may_be_missing(path: Path) -> None:
    ledger = Ledger(path)
    accept(ledger, 1)
    marked = path.with_suffix(".mark").read_bytes()
    with ledger.transaction(synced=False):
        ledger.started([(row(1).name, 7, 7, 7)])
    assert path.with_suffix(".mark").read_bytes() == marked
    accept(ledger, 2)
    assert path.with_suffix(".mark").read_bytes() > marked
    ledger.close()


def test_a_transaction_that_failed_is_not_counted(path: Path) -> None:
    ledger = Ledger(path)
    accept(ledger, 1)
    with pytest.raises(sqlite3.IntegrityError):
        accept(ledger, 1)
    accept(ledger, 2)
    ledger.close()
    again = Ledger(path)
    assert len(again.accepted()) == 2
    again.close()


@pytest.mark.parametrize("content", [b"", b"x", b"\xff\xfe 7\n", b"a b c\n", b"other 9\n"])
def test_a_mark_that_says_nothing_or_of_another_ledger_is_no_damage(
    path: Path, content: bytes
) -> None:
    ledger = Ledger(path)
    accept(ledger, 1)
    ledger.close()
    path.with_suffix(".mark").write_bytes(content)
    again = Ledger(path)
    accept(again, 2)
    again.close()
    Ledger(path).close()


def test_a_ledger_of_before_there_were_marks_is_opened_and_marked_from_then_on(path: Path) -> None:
    ledger = Ledger(path)
    ledger.close()
    path.with_suffix(".mark").unlink()
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM meta WHERE key IN ('synced', 'executor')")
    db.close()
    again = Ledger(path, "e1")
    accept(again, 1)
    again.close()
    assert path.with_suffix(".mark").read_text().endswith(" 00000000000000000001\n")


# ---- whose it is


def test_another_executors_ledger_is_refused_and_told_whose_it_is(path: Path) -> None:
    Ledger(path, "e1").close()
    Ledger(path, "e1").close()
    with pytest.raises(LedgerForeign, match="is that of executor e1, and this one is e2") as caught:
        Ledger(path, "e2")
    assert "give e2 a directory of its own" in caught.value.hint
    Ledger(path).close()


# ---- what the disk says


def failure(path: Path, *statements: str, uri: str = "") -> sqlite3.DatabaseError:
    """What SQLite says to these."""
    db = sqlite3.connect(uri or path, uri=bool(uri), timeout=0)
    *before, last = statements
    for statement in before:
        db.execute(statement)
    with pytest.raises(sqlite3.DatabaseError) as caught:
        db.execute(last)
    db.close()
    return caught.value


def test_a_full_disk_is_told_from_damage(path: Path) -> None:
    full = failure(path, "CREATE TABLE a (b)", "PRAGMA max_page_count = 2", "CREATE TABLE c (d)")
    said = told(path, full)
    assert isinstance(said, LedgerStuck)
    assert (str(said), said.hint) == (
        f"ledger {path}: cannot write: database or disk is full",
        "make room on the disk, then start the executor again",
    )


def test_a_disk_that_may_not_be_written_is_told_from_damage(path: Path) -> None:
    Ledger(path).close()
    error = failure(path, "CREATE TABLE a (b)", uri=f"file:{path}?mode=ro")
    said = told(path, error)
    assert isinstance(said, LedgerStuck)
    assert "cannot be used: attempt to write a readonly database" in str(said)
    assert "see to the disk" in said.hint


def test_a_file_that_cannot_be_opened_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(LedgerStuck, match="cannot be used: unable to open database file"):
        Ledger(tmp_path)


def test_a_page_that_goes_bad_while_the_executor_runs_is_told_as_damage(path: Path) -> None:
    ledger = Ledger(path)
    accept(ledger, *range(EACH))
    ledger._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ledger._db.execute("PRAGMA shrink_memory")
    with path.open("r+b") as file:
        file.seek(4_096)
        file.write(b"\xa5" * (path.stat().st_size - 4_096))
    with pytest.raises(LedgerDamaged, match="cannot be read"):
        ledger.accepted()
    with pytest.raises(LedgerDamaged, match="cannot be read"):
        accept(ledger, EACH)
    ledger.close()
