"""A ledger on a disk that is full, fails, or forgets: told as what it is, and not gone on with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.errors import LedgerDamaged, LedgerForeign, LedgerOld, LedgerStuck
from launcher.executor import journal as journal_module
from launcher.executor.journal import Disk, Journal
from launcher.executor.ledger import _ENCODER, Ledger, Owner, new_uuid
from tests.unit.rows_rig import insert

EACH = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "journal"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    ledger = Ledger(path, "e1")
    yield ledger
    ledger.close()


def name(number: int) -> str:
    return f"default/j{number}@2026-11-20T15:00:00Z#1"


def accept(ledger: Ledger, *numbers: int) -> None:
    """Accept launches, each in a transaction of its own."""
    for number in numbers:
        with ledger.transaction():
            insert(ledger, name(number), index=number + 1)


# ---- an end that is missing


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 50])


def put_older_copy(path: Path) -> None:
    shutil.copy(path.parent / "older", path)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, cut, put_older_copy, empty])
def test_a_ledger_of_which_something_is_missing_is_not_started_on(
    path: Path, ledger: Ledger, damage: Callable[[Path], None]
) -> None:
    accept(ledger, *range(EACH // 2))
    shutil.copy(path, path.parent / "older")
    accept(ledger, *range(EACH // 2, EACH))
    damage(path)
    before = path.read_bytes()
    with pytest.raises(LedgerDamaged, match=f"journal {path}: cannot be read: ") as caught:
        Ledger(path, "e1")
    assert f"move {path.parent} away" in caught.value.hint
    assert "UUID" in caught.value.hint
    assert path.read_bytes() == before, "for who looks into it"


def test_a_ledger_that_was_only_killed_is_whole(path: Path, ledger: Ledger) -> None:
    accept(ledger, *range(EACH))
    with path.open("ab") as file:
        file.write(path.read_bytes()[-30:-7])  # an append that was under way
    again = Ledger(path, "e1")
    assert [one.name for one in again.accepted()] == [name(number) for number in range(EACH)]
    accept(again, EACH)
    again.close()
    assert sorted(one.name for one in path.parent.iterdir()) == ["journal", "journal.mark"]


def test_what_was_left_of_writing_it_anew_is_no_journal(path: Path, ledger: Ledger) -> None:
    accept(ledger, 1)
    ledger.close()
    path.with_name("journal.new").write_bytes(b"half of it")
    again = Ledger(path, "e1")
    assert len(again.accepted()) == 1
    again.close()
    assert not path.with_name("journal.new").exists()


def test_a_journal_that_was_never_finished_is_begun_again(path: Path) -> None:
    path.with_name("journal.new").write_bytes(b"half of it")
    ledger = Ledger(path, "e1")
    assert ledger.accepted() == []
    ledger.close()


def test_records_of_a_kind_that_is_not_known_are_damage(path: Path) -> None:
    journal = Journal(Disk(path))
    journal.uuid = new_uuid()
    journal.rewrite([_ENCODER.encode([Owner("e1", "")]), b"\x91\x91\x63"])
    journal.close()
    with pytest.raises(LedgerDamaged, match="a record is of no known kind"):
        Ledger(path, "e1")


# ---- whose it is


def test_another_executors_ledger_is_refused_and_told_whose_it_is(path: Path) -> None:
    Ledger(path, "e1").close()
    Ledger(path, "e1").close()
    before = path.read_bytes()
    with pytest.raises(LedgerForeign, match="is that of executor e1, and this one is e2") as caught:
        Ledger(path, "e2")
    assert "give e2 a directory of its own" in caught.value.hint
    assert path.read_bytes() == before
    Ledger(path).close()
    with pytest.raises(LedgerForeign):
        Ledger(path, "e2")


@pytest.mark.parametrize("has_journal", [False, True])
def test_a_directory_of_a_version_before_the_journal_is_refused_with_the_way_out(
    path: Path, has_journal: bool
) -> None:
    if has_journal:  # an older version ran here again
        Ledger(path, "e1").close()
    old = path.with_name("ledger.sqlite")
    old.write_bytes(b"SQLite format 3\0")
    with pytest.raises(LedgerOld, match=f"ledger {old}: was written by a version") as caught:
        Ledger(path, "e1")
    assert f"move {path.parent} away" in caught.value.hint
    assert path.exists() is has_journal


def test_a_journal_of_an_older_version_is_refused_with_the_way_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "VERSION", journal_module.VERSION - 1)
    Ledger(path, "e1").close()
    monkeypatch.undo()
    before = path.read_bytes()
    with pytest.raises(LedgerOld, match=f"ledger {path}: was written by a version") as caught:
        Ledger(path, "e1")
    assert f"move {path.parent} away" in caught.value.hint
    assert path.read_bytes() == before


# ---- what the disk says


def test_a_file_that_cannot_be_read_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(LedgerStuck, match="cannot be used: Is a directory"):
        Ledger(tmp_path / "journal")


def test_a_directory_that_is_not_there_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(LedgerStuck, match="cannot be used: No such file or directory") as caught:
        Ledger(tmp_path / "gone" / "journal")
    assert "see to the disk" in caught.value.hint


def test_what_one_write_did_not_take_the_next_one_does(
    path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:7]))
    accept(ledger, 1, 2)
    monkeypatch.undo()
    again = Ledger(path, "e1")
    assert len(again.accepted()) == 2
    again.close()


@pytest.mark.parametrize(
    ("sync", "act"),
    [("fdatasync", lambda ledger: accept(ledger, 2)), ("fsync", lambda old: Ledger(old.path))],
)
def test_a_sync_that_fails_is_told_and_what_was_synced_before_is_there(
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    sync: str,
    act: Callable[[Ledger], object],
    path: Path,
) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, os.strerror(5))

    accept(ledger, 1)
    monkeypatch.setattr(os, sync, fail)
    with pytest.raises(LedgerStuck, match="cannot be used: Input/output error"):
        act(ledger)
    monkeypatch.undo()
    again = Ledger(path, "e1")  # nobody was told of the second
    assert again.accepted()[0].name == name(1)
    again.close()


def test_where_the_mark_cannot_be_kept_the_ledger_can(path: Path) -> None:
    path.with_name("journal.mark").mkdir()
    ledger = Ledger(path, "e1")
    accept(ledger, 1)
    ledger.close()
    again = Ledger(path, "e1")
    assert len(again.accepted()) == 1
    again.close()
