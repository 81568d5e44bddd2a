"""A snapshot writer that is killed, or whose disk refuses, at any step of its work."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from consensus.leadership import Position
from cron.errors import InvariantViolated
from cron.leader.applier import StateApplier
from cron.state import commands as c
from cron.state.archive import Sealed, Stream, Taken
from cron.state.imaging import Imaging
from cron.state.state import State
from cron.storage import snapshot_writer as keeping
from cron.storage.folders import Folders, name_of
from snapshots import disk as files
from snapshots.segments import list_segments, verify_segment
from tests.unit.disk_rig import CELL, Disk, life, records, until
from tests.unit.state_rig import StateRig

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Killed(BaseException):
    """The process ends here."""


@pytest_asyncio.fixture
async def disk(tmp_path: Path) -> AsyncIterator[Disk]:
    """A replica with two Seals in its log, started."""
    one = Disk(tmp_path / "r1", life(2)).start()
    yield one
    one.stop()


class Steps:
    """Every call by which a file comes, goes or gets durable, below one folder; the step of number
    `fails_at` raises `error`, once or from then on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.taken: list[str] = []
        self.fails_at = -1
        self.error: BaseException = FULL
        self.is_once = True
        self._folder = str(folder)
        for name in ("fsync", "replace", "open"):
            monkeypatch.setattr(os, name, self._step(name, getattr(os, name)))
        monkeypatch.setattr(Path, "unlink", self._step("unlink", Path.unlink))

    def _step(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **named: Any) -> Any:
            place = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
            is_reading = name == "open" and rest and not rest[0] & (os.O_WRONLY | os.O_RDWR)
            if place.startswith(self._folder) and not is_reading:
                number = len(self.taken)
                self.taken.append(f"{name} {Path(place).name}")
                wanted = number == self.fails_at
                if wanted or (0 <= self.fails_at < number and not self.is_once):
                    raise self.error
            return real(first, *rest, **named)

        return call

    def fail(self, number: int, error: BaseException, *, is_once: bool = True) -> None:
        """Count from here, and fail at step `number`."""
        self.taken.clear()
        self.fails_at, self.error, self.is_once = number, error, is_once


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Steps]:
    monkeypatch.setattr(keeping, "RETRY_S", 0.001)
    monkeypatch.setattr(keeping, "RETRY_S_MAX", 0.002)
    counted = Steps(monkeypatch, tmp_path)
    yield counted
    counted.fails_at = -1


def whole(folder: Path) -> set[str]:
    """The names of all files of a folder; those with a final name are whole."""
    found = {path.name for path in folder.iterdir() if path.is_file()}
    for path in list_segments(folder):
        verify_segment(path, CELL)
    for path in files.list_snapshots(folder):
        files.verify_snapshot(path, CELL)
    return found


# ---- killed


def test_a_replica_killed_at_any_step_of_letting_segments_go_goes_on_with_the_rest(
    steps: Steps, tmp_path: Path
) -> None:
    log = life(4)
    names = [name_of(one) for one in records(log)]
    gone, kept = set(names[:5]), set(names[5:])
    newest = {"runs": 4, "failures": 4}
    number, is_over = 0, False
    while not is_over:
        folders = Folders(tmp_path / str(number), CELL)
        steps.fail(-1, FULL)
        folders.open()
        for sealed in sealed_of(log):
            folders.write(sealed)
        steps.fail(number, Killed())
        try:
            folders.remove_segments(folders.retired(kept, newest))
            is_over = True
        except Killed:
            pass
        steps.fail(-1, FULL)
        again = Folders(tmp_path / str(number), CELL)
        assert again.open() >= kept
        assert set(again.retired(kept, newest)) <= gone
        again.remove_segments(again.retired(kept, newest))
        assert whole(again.segments) == kept
        number += 1
    assert number > len(gone)


class Nothing:
    """A history, and a snapshot writer, of which only what was sealed is wanted."""

    def __init__(self) -> None:
        self.sealed: list[Sealed] = []

    def keep(self, sealed: Sequence[Sealed]) -> None:
        self.sealed += sealed

    def follow(self, history: object) -> None: ...


def sealed_of(log: StateRig) -> list[Sealed]:
    """What a log has sealed."""
    kept: Any = Nothing()
    applier = StateApplier(kept, kept)
    for index, entry in enumerate(log.log, 1):
        applier.apply(Position(1, index), entry)
    sealed: list[Sealed] = kept.sealed
    return sealed


async def test_the_log_brings_again_what_is_let_go_and_it_goes_again(
    disk: Disk, tmp_path: Path
) -> None:
    disk.apply()
    await asyncio.to_thread(disk.writer.wait_durable)
    disk.log.append(c.Retire(gone=((1, 1, Stream.RUNS), (1, 1, Stream.FAILURES))))
    disk.stop()  # killed before the Retire was applied here, or after: nobody knows
    for _ in range(2):
        again = Disk(tmp_path / "r1", disk.log).start()
        again.apply()
        await until(lambda: len(list(again.data.glob("segments/*.seg"))) == 2)  # noqa: B023
        assert again.writer.missing() == []
        again.stop()


# ---- what nobody expects


async def test_what_nobody_expects_is_told_and_the_keeper_goes_on(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keeping, "RETRY_S", 0.001)
    monkeypatch.setattr(keeping, "DURABLE_S", 60.0)
    write, left = Folders.write, [MemoryError("no memory"), InvariantViolated("a bug")]

    def fail(folders: Folders, sealed: Sealed) -> None:
        if left:
            raise left.pop()
        write(folders, sealed)

    monkeypatch.setattr(Folders, "write", fail)
    disk.apply()
    await asyncio.to_thread(disk.writer.wait_durable)
    assert len(whole(disk.data / "segments")) == 4
    assert disk.writer.trouble == ""
    assert "snapshot_writer.failed" in capsys.readouterr().out


async def test_an_image_that_breaks_costs_its_snapshot_and_no_other(disk: Disk) -> None:
    disk.apply()
    state = disk.applier.state
    broken = Imaging.begin(state)
    broken.close()
    disk.writer.snapshot(taken(state, 1), broken)
    await until(lambda: "given up" in disk.writer.trouble)
    disk.writer.snapshot(taken(state, 2), Imaging.begin(state))
    await until(lambda: newest(disk) == state.index + 2)
    assert disk.writer.trouble == ""


# ---- a disk that refuses


async def test_a_disk_that_refuses_any_step_of_keeping_once_costs_nothing_but_time(
    steps: Steps, tmp_path: Path
) -> None:
    log = life(2)
    number, is_over = 0, False
    while not is_over:
        steps.fail(-1, FULL)
        one = Disk(tmp_path / str(number), log).start()
        steps.fail(number, FULL)
        one.apply()
        await asyncio.to_thread(one.writer.wait_durable)
        is_over = len(steps.taken) <= number
        assert len(whole(one.data / "segments")) == 4, steps.taken[number]
        assert one.writer.missing() == []
        assert one.writer.trouble == ""
        one.stop()
        number += 1
    assert number > 10


async def test_a_disk_that_refuses_any_step_of_a_snapshot_leaves_none_or_a_whole_one(
    steps: Steps, tmp_path: Path
) -> None:
    log = life(1)
    number, is_over = 0, False
    while not is_over:
        steps.fail(-1, FULL)
        one = Disk(tmp_path / str(number), log, snapshots_kept=1).start()
        one.apply()
        await asyncio.to_thread(one.writer.wait_durable)
        state = one.applier.state
        one.writer.snapshot(taken(state, 1), Imaging.begin(state))
        await until(lambda: len(one.writer.snapshots()) == 1)  # noqa: B023
        steps.fail(number, FULL)
        one.writer.snapshot(taken(state, 2), Imaging.begin(state))
        await until(lambda: one.writer.trouble or newest(one) == state.index + 2)  # noqa: B023
        is_over = len(steps.taken) <= number
        steps.fail(-1, FULL)
        folder = one.data / "snapshots"
        assert len([name for name in whole(folder) if name.endswith(".snap")]) >= 1
        one.writer.snapshot(taken(state, 3), Imaging.begin(state))
        await until(lambda: newest(one) == state.index + 3)  # noqa: B023
        assert one.writer.trouble == ""
        assert not list(folder.glob("*.unfinished"))
        one.stop()
        number += 1
    assert number > 5


def taken(state: State, later: int) -> State:
    """State, as if a snapshot had been taken so many entries later."""
    state.history.taken = Taken(1, state.index + later, 1)
    return state


def newest(one: Disk) -> int:
    return next((file.header.index for file in one.writer.snapshots()), 0)


async def test_a_disk_that_refuses_to_let_go_is_asked_again_and_the_trouble_ends(
    steps: Steps, tmp_path: Path
) -> None:
    log = life(3)
    log.append(c.Retire(gone=tuple(one.key for one in records(log)[:4])))
    number, is_over = 0, False
    while not is_over:
        steps.fail(-1, FULL)
        one = Disk(tmp_path / str(number), log).start()
        one.apply(len(log.log) - 1)
        await asyncio.to_thread(one.writer.wait_durable)
        steps.fail(number, FULL)
        one.apply()
        await until(lambda: len(list(one.data.glob("segments/*.seg"))) == 2)  # noqa: B023
        await until(lambda: not one.writer.trouble)  # noqa: B023
        is_over = len(steps.taken) <= number
        steps.fail(-1, FULL)
        assert one.writer.missing() == []
        assert len(whole(one.data / "segments")) == 2
        one.stop()
        number += 1
    assert number > 4


async def test_a_full_disk_keeps_the_log_and_says_why_until_there_is_room(
    steps: Steps, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "DURABLE_S", 0.05)
    steps.fail(0, FULL, is_once=False)
    disk.apply()
    await until(lambda: disk.writer.trouble)
    with pytest.raises(OSError, match="No space left"):
        await asyncio.to_thread(disk.writer.wait_durable)
    with pytest.raises(OSError, match="No space left"):
        list(disk.applier.take())
    assert "No space left" in disk.writer.trouble
    steps.fail(-1, FULL)
    await until(lambda: not disk.writer.trouble)
    monkeypatch.setattr(keeping, "DURABLE_S", 30.0)
    assert b"".join(disk.applier.take())
