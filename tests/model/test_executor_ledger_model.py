"""An executor's ledger against a dict: whatever is written, and wherever it is killed.

Two worlds. In the first one the ledger is asked for anything and has to remember what a dict does;
a power cut may cost it what was not synced, and nothing else. In the second one starts are made,
and no crash may let an attempt run twice or let its leader be told what is not true.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any, Final

import msgspec
import pytest
import structlog

from launcher.errors import LedgerDamaged, LedgerStuck
from launcher.executor import journal as journal_module
from launcher.executor.journal import Journal
from launcher.executor.ledger import Ledger
from launcher.executor.loop import interrupt_all
from launcher.executor.rows import (
    ACCEPTED,
    ENDED,
    FENCED,
    INTERRUPTED,
    REFUSED,
    STARTING,
    changes_of,
)
from launcher.executor.rules import Conditions, Decisions, Works, decide
from launcher.protocol.reports import RowReport
from launcher.protocol.work import Epoch, WorkSpec
from tests.drawn import seeds
from tests.simulation.patching import patched
from tests.unit.journal_rig import MemoryDisk
from tests.unit.rows_rig import Start, answered, batch_of, found, name_of, number_of, orders

MANY: Final = 40
SEEDS: Final = range(MANY)
STEPS: Final = 120
NAMES: Final = [f"default/j{number}@2026-11-20T15:00:00Z#1" for number in range(30)]


class Crashed(BaseException):
    """The process or its host is gone in the midst of what it asked the disk for."""


class FragileDisk(MemoryDisk):
    """A disk during whose n-th step from now the process is killed."""

    steps_left = -1

    def _step(self) -> None:
        self.steps_left -= 1
        if self.steps_left == 0:
            raise Crashed

    def append(self, data: bytes) -> None:
        self._step()
        if self.steps_left == 1 and self.data is not None and len(data) % 3:
            self.data += data[: len(data) // 2]
            raise Crashed
        super().append(data)

    def sync(self) -> None:
        self._step()
        super().sync()
        self._step()

    def replace(self, pieces: Iterable[bytes]) -> None:
        self._step()
        super().replace(pieces)
        self._step()

    def write_mark(self, said: bytes) -> None:
        self._step()
        super().write_mark(said)


def fragile(disk: MemoryDisk) -> FragileDisk:
    return FragileDisk(disk.read(), disk.mark)


@pytest.fixture(autouse=True)
def short_journals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Journals that are written anew often, and no log."""
    monkeypatch.setattr(journal_module, "REWRITE_BYTES_MIN", 1_500)
    with structlog.testing.capture_logs():
        yield


# ---- the ledger and a dict


class Remembered:
    """What a ledger has to know, in the simplest way."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.highest = Epoch()
        self.watermark = 0
        self.newest = 0
        self.workers: dict[int, int] = {}

    def open(self, name: str) -> dict[str, Any] | None:
        row = self.rows.get(name)
        return row if row is not None and row["status"] == ACCEPTED else None

    def seen(self) -> Any:
        rows = {name: tuple(row.values()) for name, row in self.rows.items()}
        return rows, self.highest, self.watermark, self.newest, sorted(self.workers.items())


def seen(ledger: Ledger) -> Any:
    """What a ledger knows, as `Remembered.seen` says it; by each way in which it can be asked."""
    rows = list(found(ledger).values())
    assert all(ledger.row(row.index, row.row) == row for row in rows)
    assert ledger.count == len(rows)
    assert _sorted(ledger.unacked()) == [row for row in rows if not row.acked]
    assert _sorted(ledger.accepted()) == [row for row in rows if row.status == ACCEPTED]
    keys = [(row.index, row.row) for row in rows]
    assert keys == sorted(set(keys))
    said = {
        row.name: (
            row.status, row.index, row.epoch, row.is_starting, row.pid, row.started_ms,
            row.exit_code, row.detail, row.retry_after_ms, row.cpu_ms,
            row.acked,
        )
        for row in rows
    }  # fmt: skip
    return said, ledger.highest, ledger.watermark, ledger.newest_index, ledger.workers()


def _sorted(rows: list[RowReport]) -> list[RowReport]:
    return sorted(rows, key=lambda row: (row.index, row.row))


def change(ledger: Ledger, known: Remembered, chance: Random) -> None:
    """Change something in both."""
    some = chance.sample(NAMES, chance.randint(1, 6))
    which = chance.randrange(6)
    if which <= 1:
        insert(ledger, known, chance, [name for name in some if name not in known.rows])
    elif which <= 3:
        go_on(ledger, known, chance.randrange(5), some)
    elif which == 4:
        for index, rows in by_index(known, some).items():
            ledger.ack(index, rows)
        for name in some:
            if name in known.rows and known.open(name) is None:
                known.rows[name]["acked"] = True
        raise_watermark(ledger, known, known.watermark + chance.randrange(4))
    else:
        epoch = Epoch(0, chance.randrange(50), "r1")
        ledger.raise_epoch(epoch)
        known.highest = max(known.highest, epoch)
        came, went = chance.randrange(5), chance.randrange(5)
        ledger.record_workers([(came, len(known.rows))], [went])
        known.workers.pop(went, None)
        known.workers[came] = len(known.rows)


def index_of(known: Remembered, name: str) -> int:
    """Where a name was begun; somewhere, if it was not."""
    return known.rows[name]["index"] if name in known.rows else known.newest


def by_index(known: Remembered, names: Iterable[str]) -> dict[int, list[int]]:
    """The rows of some names, ascending, by the log index of their batch."""
    rows: dict[int, list[int]] = {}
    for name in sorted(names, key=number_of):
        rows.setdefault(index_of(known, name), []).append(number_of(name))
    return rows


def go_on(ledger: Ledger, known: Remembered, how: int, some: list[str]) -> None:
    """Let open rows get a start record, a start, an end or a refusal."""
    if how == 0:
        for index, numbers in by_index(known, some).items():
            ledger.starting(index, numbers)
    else:
        told: dict[str, Any] = {
            1: {"status": ACCEPTED, "started_ms": 9, "pid": 7, "ticks": 8},
            2: {
                "status": ENDED,
                "started_ms": 5,
                "finished_ms": 20,
                "exit_code": 3,
                "detail": "why",
            },
            3: {"status": REFUSED, "detail": "late"},
            4: {
                "status": ENDED,
                "started_ms": 5,
                "finished_ms": 20,
                "retry_after_ms": 6,
                "cpu_ms": 3,
            },
        }[how]
        rows = [RowReport(index_of(known, name), number_of(name), **told) for name in some]
        ledger.changed(changes_of(rows))
    for name in some:
        if (row := known.open(name)) is None:
            continue
        if how == 0:
            row["is_starting"] = True
        elif how == 1:
            row.update(is_starting=True, pid=7, started_ms=row["started_ms"] or 9)
        elif how == 2:
            row.update(status=ENDED, started_ms=row["started_ms"] or 5, exit_code=3, detail="why")
            row["pid"] = 0
        elif how == 4:
            row.update(
                status=ENDED, started_ms=row["started_ms"] or 5, retry_after_ms=6, cpu_ms=3, pid=0
            )
        elif not row["started_ms"]:
            row.update(status=REFUSED, detail="late")


def insert(ledger: Ledger, known: Remembered, chance: Random, names: list[str]) -> None:
    """Add rows of all sorts, of one batch or of several."""
    places: dict[tuple[int, str], list[str]] = {}
    for name in names:
        key = known.watermark + chance.randrange(1, 5), chance.choice(("0.1.r1", "0.2.r1"))
        places.setdefault(key, []).append(name)
    for (index, epoch), some in places.items():
        batch = batch_of(*some, index=index, epoch=epoch)
        for place, number in enumerate(batch.rows):
            status = chance.choice((ACCEPTED, ACCEPTED, REFUSED, FENCED))
            is_starting = status == ACCEPTED and chance.random() < 0.5
            batch.states[place] = status | (STARTING if is_starting else 0)
            known.rows[name_of(number)] = {
                "status": status, "index": index, "epoch": epoch, "is_starting": is_starting,
                "pid": 0, "started_ms": 0, "exit_code": 0, "detail": "", "retry_after_ms": 0,
                "cpu_ms": 0,
                "acked": False,
            }  # fmt: skip
        known.newest = max(known.newest, index)
        ledger.insert(batch)


def raise_watermark(ledger: Ledger, known: Remembered, index: int) -> None:
    if index > known.watermark:
        known.watermark, known.newest = index, max(known.newest, index)
        known.rows = {
            name: row
            for name, row in known.rows.items()
            if row["index"] > index or not row["acked"]
        }
    ledger.raise_watermark(index)


def remembers(seed: int) -> None:
    """A life of a ledger on a disk of which the power fails, and that is full or ill at times."""
    chance = Random(seed)
    disk = MemoryDisk()
    ledger, known = Ledger(disk.path, disk=disk), Remembered()
    after_sync = [copy.deepcopy(known)]
    for _ in range(STEPS):
        is_synced = chance.random() < 0.5
        disk.room = chance.randrange(300) if chance.random() < 0.03 else None
        disk.fails = chance.random() < 0.03
        try:
            with ledger.transaction(synced=is_synced):
                for _ in range(chance.randint(0, 3)):
                    change(ledger, known, chance)
        except LedgerStuck:
            with pytest.raises(LedgerStuck), ledger.transaction():
                pass
        else:
            assert seen(ledger) == known.seen()
            after_sync = [] if is_synced else after_sync
            after_sync.append(copy.deepcopy(known))
            if chance.random() < 0.8:
                continue
        is_stuck = disk.room is not None or disk.fails
        before = after_sync if is_stuck else after_sync[-1:]
        if chance.random() < 0.5:
            before, disk = after_sync, disk.after_power_cut(chance)
        else:
            disk = disk.copy()
        ledger = Ledger(disk.path, disk=disk)
        possible = [*before, known] if is_stuck else before
        says = seen(ledger)
        assert any(says == one.seen() for one in possible)
        known = copy.deepcopy(next(one for one in possible if says == one.seen()))
        after_sync = [copy.deepcopy(known)]


@pytest.mark.parametrize("seed", seeds(MANY))
def test_a_ledger_remembers_what_a_dict_does(seed: int) -> None:
    remembers(seed)


# ---- starts and their leader

FINAL: Final = (ENDED, REFUSED, FENCED, INTERRUPTED)
COMMAND: Final = msgspec.msgpack.encode(WorkSpec(("/bin/true",)))
TASK: Final = msgspec.msgpack.encode(WorkSpec((), handler="mail"))


class Executor:
    """What an executor makes of its ledger, and what its leader was told."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.disk = FragileDisk()
        self.ledger = Ledger(self.disk.path, disk=self.disk)
        self.ran: Counter[str] = Counter()
        self.told: dict[str, int] = {}
        self.waiting: list[str] = []
        self.running: list[str] = []
        self.index = 0
        self.watermark = 0

    def tell(self, rows: list[RowReport]) -> None:
        """Tell the leader, who believes it for ever."""
        for row in rows:
            name = name_of(row.row)
            before = self.told.get(name)
            assert before not in FINAL or before == row.status, (name, before, row.status)
            if row.status in (REFUSED, FENCED):
                assert not self.ran[name], f"{name} ran, and is told not to have"
            self.told[name] = row.status

    def begin(self, names: list[str]) -> None:
        """Start attempts: whatever happens now, the next executor must know of it."""
        for _ in range(2):
            disk = self.disk.after_power_cut(self.chance)
            rows = found(Ledger(disk.path, disk=disk))
            assert all(name in rows and rows[name].is_starting for name in names)
        for name in names:
            self.ran[name] += 1
            assert self.ran[name] == 1, f"{name} was started twice"
        self.running += names

    def order(self) -> None:
        """A message of the leader, new starts and repeated ones, and what follows from it."""
        self.index += 1
        chance = self.chance
        names = [f"default/j{self.index}@2026-11-20T15:00:0{at}Z#1" for at in range(5)]
        # What is at or below the floor is over, and its leader asks no more.
        again = sorted(name for name in self.told if _index(name) > self.watermark)
        names += chance.sample(again, min(2, len(again)))
        gone = [name for name, status in self.told.items() if status in FINAL]
        fences = chance.sample(names, chance.randrange(3))
        message = orders(
            *(self._start(name) for name in chance.sample(names, 4)),
            acks=[name for name in gone if chance.random() < 0.5],
            floor=self.watermark,
            epoch=(0, self.index // 5),
        )
        for name in fences:
            message.fences.add(index=_index(name), row=number_of(name), name=name)
        conditions = Conditions(
            0,
            lease_valid=True,
            handlers={"": "", "mail": "app"},
            groups_free={"": 9, "app": 9},
            groups_idle={"": chance.randrange(3), "app": chance.randrange(3)},
        )
        decisions = Decisions()
        with self.ledger.transaction():
            decide(self.ledger, message, Works(), conditions, decisions)
        self.begin([one.name for one in decisions.accepted if one.is_starting])
        self.waiting += [one.name for one in decisions.accepted if not one.is_starting]
        self.tell([row for row in answered(decisions) if row.index > self.watermark])
        self.watermark = max(self.watermark, self.index - chance.randrange(4, 9))

    def _start(self, name: str) -> Start:
        index = _index(name)
        return Start(name, COMMAND if index % 2 else TASK, 1, index)

    def give(self) -> None:
        """Workers have room for some that wait."""
        some, self.waiting = self.waiting[:2], self.waiting[2:]
        with self.ledger.transaction():
            for name in some:
                self.ledger.starting(_index(name), [number_of(name)])
        self.begin(some)

    def hear(self) -> None:
        """Some have begun, and some are over."""
        begun = self.chance.sample(self.running, min(2, len(self.running)))
        with self.ledger.transaction(synced=False):
            self._become(begun, ACCEPTED, started_ms=7)
        over, self.running = self.running[:2], self.running[2:]
        with self.ledger.transaction():
            self._become(over, ENDED, finished_ms=9)
        rows = found(self.ledger)
        self.tell([rows[name] for name in {*over, *begun}])

    def _become(self, names: list[str], status: int, **how: int) -> None:
        some: Any = how
        rows = [RowReport(_index(name), number_of(name), status, **some) for name in names]
        self.ledger.changed(changes_of(rows))

    def restart(self) -> None:
        """Another executor comes, after a kill or a power cut, and greets its leader."""
        lost = self.chance.random() < 0.5
        disk = self.disk.after_power_cut(self.chance) if lost else self.disk.copy()
        self.disk = fragile(disk)
        self.waiting, self.running = [], []
        highest = self.ledger.highest
        self.ledger = Ledger(self.disk.path, disk=self.disk)
        assert self.ledger.highest <= highest
        self.ledger.is_same_boot = False
        interrupt_all(self.ledger, "executor")
        self.tell(self.ledger.unacked())


def _index(name: str) -> int:
    """The log index at which an attempt was begun."""
    return int(name.partition("@")[0].rpartition("j")[2])


def runs(seed: int) -> Executor:
    """A life of an executor that is killed at any step of its disk."""
    chance = Random(seed)
    executor = Executor(chance)
    for _ in range(STEPS):
        executor.disk.steps_left = chance.randrange(1, 6) if chance.random() < 0.2 else -1
        executor.disk.fails = chance.random() < 0.02
        try:
            chance.choice((executor.order, executor.give, executor.hear))()
        except (Crashed, LedgerStuck):
            executor.restart()
    return executor


@pytest.mark.parametrize("seed", seeds(MANY))
def test_no_crash_starts_an_attempt_twice_or_makes_what_was_told_untrue(seed: int) -> None:
    executor = runs(seed)
    assert sum(executor.ran.values()) > STEPS // 4
    assert set(FINAL) <= set(executor.told.values())


# ---- with one safeguard switched off, some seed turns red


def unsynced() -> contextlib.AbstractContextManager[None]:
    """Starts are made before their record is on the disk."""
    append = Journal.append
    return patched(Journal, append=lambda self, body, synced: append(self, body, synced=False))


def believes_tails() -> contextlib.AbstractContextManager[None]:
    """A record at the end counts without its CRC."""
    return patched(journal_module, crc32=lambda *data: 0)


def ignores_start_records() -> contextlib.AbstractContextManager[None]:
    """What waited counts as waiting for ever."""
    return patched(Ledger, starting=lambda self, index, rows: None)


def goes_on_after_a_failure() -> contextlib.AbstractContextManager[None]:
    """After a sync that failed the next one is believed."""

    def fail(self: Journal, error: OSError) -> LedgerStuck:
        return LedgerStuck(os.strerror(error.errno or errno.EIO))

    return patched(Journal, _fail=fail, abandon=lambda self, why: None)


def forgets_acknowledged_rows() -> contextlib.AbstractContextManager[None]:
    """A journal that is written anew has only what is not acknowledged."""
    everything = Ledger._everything

    def unacked(self: Ledger) -> Iterator[bytes]:
        batches = self.batches
        self.batches = {
            index: [batch.only(list(batch.places())) for batch in some if batch.unacked]
            for index, some in batches.items()
        }
        yield from everything(self)
        self.batches = batches

    return patched(Ledger, _everything=unacked)


def rewrites_without_the_epoch() -> contextlib.AbstractContextManager[None]:
    """A journal that is written anew lacks its first record."""
    everything = Ledger._everything
    return patched(Ledger, _everything=lambda self: list(everything(self))[1:])


MUTANTS: Final[list[tuple[Callable[[], Any], Callable[[int], object]]]] = [
    (unsynced, remembers),
    (unsynced, runs),
    (believes_tails, remembers),
    (ignores_start_records, remembers),
    (ignores_start_records, runs),
    (goes_on_after_a_failure, remembers),
    (forgets_acknowledged_rows, remembers),
    (rewrites_without_the_epoch, remembers),
]


@pytest.mark.parametrize(("mutant", "world"), MUTANTS)
def test_without_a_safeguard_some_seed_turns_red(
    mutant: Callable[[], contextlib.AbstractContextManager[None]],
    world: Callable[[int], object],
) -> None:
    with mutant():
        for seed in SEEDS:
            try:
                world(seed)
            except (AssertionError, LedgerDamaged, pytest.fail.Exception):
                return
    pytest.fail("no seed noticed")
