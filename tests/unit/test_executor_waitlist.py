"""What was never given to a worker is known after the executor was killed, and nothing else is."""

from __future__ import annotations

import asyncio
import os
import random
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from launcher.errors import LedgerStuck
from launcher.executor import ledger as ledger_module
from launcher.executor import waitlist as waitlist_module
from launcher.executor.foreman import WAITED, interrupt_all
from launcher.executor.ledger import Ledger
from launcher.executor.row import ACCEPTED, ENDED, INTERRUPTED, REFUSED, Row
from launcher.executor.waitlist import Waitlist, left_waiting
from tests.unit.workers_rig import Floor, floor, named, names_of, running, until

A, B, C, D = (named(number) for number in range(4))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    yield ledger
    ledger.close()


@pytest.fixture
def waitlist(ledger: Ledger) -> Iterator[Waitlist]:
    waitlist = Waitlist(ledger)
    yield waitlist
    waitlist.close()


def file_of(ledger: Ledger) -> Path:
    return ledger.path.with_name("waiting")


@contextmanager
def disk_takes(count: int, path: Path) -> Iterator[None]:
    """As if so many bytes more fitted into the file, and none into any other that is as long."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + count, hard))
    try:
        with structlog.testing.capture_logs():  # the limit holds for those as well
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ---- the file


def test_what_waits_is_told_and_what_was_given_away_is_not(
    ledger: Ledger, waitlist: Waitlist
) -> None:
    waitlist.add([A, B])
    waitlist.add([C])
    waitlist.remove([B, D])
    assert left_waiting(ledger) == {A, C}


def test_what_was_given_away_and_came_back_counts_as_given(
    ledger: Ledger, waitlist: Waitlist
) -> None:
    waitlist.add([A])
    waitlist.remove([A])
    waitlist.remove([A])
    assert left_waiting(ledger) == set()


def test_a_new_executor_begins_with_an_empty_list(ledger: Ledger, waitlist: Waitlist) -> None:
    waitlist.add([A])
    Waitlist(ledger).close()
    assert left_waiting(ledger) == set()


def test_where_there_is_no_file_nothing_waited(ledger: Ledger) -> None:
    assert left_waiting(ledger) == set()


def test_the_list_of_another_ledger_or_boot_says_nothing(
    ledger: Ledger, waitlist: Waitlist, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waitlist.add([A])
    for boot_id in ("another", ""):
        monkeypatch.setattr(ledger_module, "_boot_id", lambda boot_id=boot_id: boot_id)
        again = Ledger(ledger.path)
        assert left_waiting(again) == set()
        again.close()
    (tmp_path / "other").mkdir()
    other = Ledger(tmp_path / "other" / "ledger.sqlite")
    os.link(file_of(ledger), tmp_path / "other" / "waiting")
    assert left_waiting(other) == set()
    other.close()


def test_a_host_that_does_not_tell_its_boots_apart_keeps_no_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_boot_id", lambda: "")
    ledger = Ledger(tmp_path / "ledger.sqlite")
    waitlist = Waitlist(ledger)
    waitlist.add([A])
    waitlist.remove([A])
    assert not file_of(ledger).exists()
    ledger.close()


def test_a_file_cut_anywhere_says_nothing_that_the_whole_one_did_not(
    ledger: Ledger, waitlist: Waitlist
) -> None:
    waitlist.add([A])
    waitlist.add([B, C])
    said = file_of(ledger).read_bytes()
    for size in range(len(said)):
        file_of(ledger).write_bytes(said[:size])
        assert left_waiting(ledger) <= {A, B, C}
    file_of(ledger).write_bytes(said + b"\xff\n")
    assert left_waiting(ledger) == set()


def test_a_long_list_is_written_anew_and_stays_right(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waitlist_module, "BYTES_MIN", 500)
    waitlist = Waitlist(ledger)
    chance, waiting = random.Random(7), set[str]()
    for number in range(1_000):
        some = [named(number % 3_600, f"j{number}")]
        waitlist.add(some)
        waiting.update(some)
        gone = [name for name in sorted(waiting) if chance.random() < 0.3]
        if chance.random() < 0.2:
            waitlist.forget(gone)
            waitlist.add(gone)  # refused ones are of no interest; here they stay
        else:
            waitlist.remove(gone)
            waiting.difference_update(gone)
        assert left_waiting(ledger) == waiting
    assert file_of(ledger).stat().st_size < 5_000
    assert sorted(path.name for path in ledger.path.parent.glob("waiting*")) == ["waiting"]
    waitlist.close()


def test_on_a_full_disk_it_says_nothing_any_more(ledger: Ledger, waitlist: Waitlist) -> None:
    waitlist.add([A, B])
    with disk_takes(3, file_of(ledger)):
        waitlist.remove([A])  # may be given: of nothing it is said that it was not
    assert left_waiting(ledger) == set()
    waitlist.add([C])
    assert left_waiting(ledger) == set()


def test_where_it_can_not_even_be_emptied_nothing_more_is_given_away(
    ledger: Ledger, waitlist: Waitlist
) -> None:
    waitlist.add([A, B])
    os.close(waitlist._fd)
    waitlist._fd = os.open("/dev/full", os.O_WRONLY)
    for _ in range(2):
        with pytest.raises(LedgerStuck, match="waiting: cannot write"):
            waitlist.remove([A])
    waitlist.remove([C])  # it never waited
    with pytest.raises(LedgerStuck):
        waitlist.remove([A, C])


def test_a_list_that_cannot_be_made_is_done_without(ledger: Ledger) -> None:
    file_of(ledger).mkdir()
    waitlist = Waitlist(ledger)
    waitlist.add([A])
    waitlist.remove([A])
    waitlist.close()
    assert left_waiting(ledger) == set()


# ---- a killed executor


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Floor]:
    async with floor(tmp_path) as shop:
        yield shop


async def interrupted(shop: Floor) -> list[str]:
    """What the next executor finds of this one, which is killed now."""
    await shop.halt()
    shop.ledger.is_same_boot = True
    return await asyncio.wrap_future(shop.thread.submit(interrupt_all, shop.ledger, "executor"))


async def row_of(shop: Floor, name: str) -> Row:
    return (await asyncio.wrap_future(shop.thread.submit(shop.ledger.rows, [name])))[name]


async def test_what_never_left_a_killed_executor_is_refused_and_not_lost(shop: Floor) -> None:
    await running(shop, A, threads=1, buffer=0)
    shop.give(B)
    await until(lambda: shop.foreman.running == 2)
    assert await interrupted(shop) == [A]
    assert shop.on_disk(A) == INTERRUPTED
    row = await row_of(shop, B)
    assert (row.fate, row.detail, row.started_ms) == (REFUSED, WAITED, 0)


async def test_what_was_given_and_had_not_begun_may_have(shop: Floor) -> None:
    puppet = await running(shop, A, threads=1, buffer=0)
    shop.give(B)
    await until(lambda: shop.foreman.running == 2)
    puppet.finish(A)
    assert names_of(await puppet.tasks(1)) == [B]
    await until(lambda: shop.on_disk(A) == ENDED)
    assert await interrupted(shop) == [B]
    assert shop.on_disk(B) == INTERRUPTED


async def test_a_command_may_have_begun(shop: Floor) -> None:
    shop.order(names=(A,), command="sleep 60")
    await shop.told(A, ACCEPTED)
    assert await interrupted(shop) == [A]


async def test_what_a_dead_worker_gave_back_counts_as_given(shop: Floor) -> None:
    puppet = await shop.puppet(threads=1, buffer=1)
    shop.give(A, B)
    await puppet.tasks(2)
    puppet.start(A)
    await shop.told(A, ACCEPTED)
    puppet.signal(9)
    await until(lambda: shop.book.fate(A) == ENDED)
    assert shop.foreman.running == 1  # the other waits again
    assert await interrupted(shop) == [B]


async def test_what_was_refused_in_time_stays_so(shop: Floor) -> None:
    await running(shop, A, threads=1, buffer=0)
    shop.give(B, late_ms=-2_000)
    assert (await shop.told(B, REFUSED)).detail == "not started in time"
    assert await interrupted(shop) == [A]
    assert (await row_of(shop, B)).detail == "not started in time"
