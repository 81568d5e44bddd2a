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
from launcher.executor.rows import ACCEPTED, ACKED, ENDED, FENCED, REFUSED, STARTING
from tests.unit.rows_rig import found, insert

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
    monkeypatch.setattr(journal_module, "VERSION", journal_module.OLDEST - 1)
    Ledger(path, "e1").close()
    monkeypatch.undo()
    before = path.read_bytes()
    with pytest.raises(LedgerOld, match=f"ledger {path}: was written by a version") as caught:
        Ledger(path, "e1")
    assert f"move {path.parent} away" in caught.value.hint
    assert path.read_bytes() == before


def test_a_journal_of_the_release_before_is_read_and_written_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch, rows, none, at_s = "0.1.r1", [0, 1, 1, 1, 1], list[int](), 1_795_186_800
    states = [ACCEPTED, ACCEPTED | STARTING, ENDED | STARTING | ACKED, REFUSED, FENCED]
    # Five rows of two jobs, as version 4 wrote them anew: times in differences.
    became = (
        *([0, 1_000, 500, -1_500, 0], [0, 0, 2_000, -2_000, 0], [0, 0, 3, 0, 0]),
        *([["no free slot", [3]]], [0, 0, 7, 0, 0], none, none, [0, 4711, 0, 0, 0]),
        [0, 99, 0, 0, 0],
    )
    tries = ([at_s, 60, 60, 60, 60], [1, 1, 2, 1, 1], none, none)
    accepted = [4, 9, epoch, rows, [0, 1, 1, 0, 0], *tries, bytes(states), *became]
    later = [4, 12, epoch, [7], none, [at_s], none, [2], [3], bytes([ACCEPTED])]
    bodies = [
        [[0, "e1", ""], [1, [0, 1, "r1"]], [3, ["default/a", "shop/b"], [b"da", b"db"]]],
        [accepted, later, [5, 12, [7]]],
    ]
    monkeypatch.setattr(journal_module, "VERSION", 4)
    journal = Journal(Disk(path))
    journal.uuid = new_uuid()
    journal.rewrite(map(_ENCODER.encode, bodies))
    journal.close()
    monkeypatch.undo()

    ledger = Ledger(path, "e1")
    before = found(ledger)
    assert list(before) == [
        "default/a@2026-11-20T15:00:00Z#1", "shop/b@2026-11-20T15:01:00Z#1",
        "shop/b@2026-11-20T15:02:00Z#2", "default/a@2026-11-20T15:03:00Z#1",
        "default/a@2026-11-20T15:04:00Z#1", "default/a@2026-11-20T15:00:00Z+t2#1/3",
    ]  # fmt: skip
    begun, over, refused = list(before.values())[1:4]
    assert (begun.started_ms, begun.pid, begun.ticks) == (1_000, 4711, 99)
    assert (over.started_ms, over.finished_ms, over.exit_code) == (1_500, 2_000, 3)
    assert (over.cpu_ms, over.acked, over.is_starting) == (7, True, True)
    assert (refused.status, refused.detail) == (REFUSED, "no free slot")
    assert before["default/a@2026-11-20T15:00:00Z+t2#1/3"].is_starting
    ledger.close()
    again = Ledger(path, "e1")  # written anew when it was opened
    assert path.read_bytes()[8] == journal_module.VERSION
    assert found(again) == before
    job = again.job(9, 1)
    assert job is not None
    assert (job.name, job.digest) == ("shop/b", b"db")
    again.close()


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
