"""What a replica tells of its joining, how it ends, and that it waits for room."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from consensus.cell import Joining, MemberView
from consensus.errors import DiskFull, LogDamaged, NoData, Replaced, UnknownFormat
from cron import endings
from cron.api.members import JoinProgress
from cron.fresh import has_log
from cron.joining import watch_joining
from cron.progress import describe_progress
from cron.room import LEAST_BYTES, with_room

MB = 1_000_000


class Stages:
    """A log that joins by one stage a look, and votes then."""

    def __init__(self, *stages: Joining) -> None:
        self._stages = list(stages)
        self.members = {"r2": MemberView(2, "votes")}

    @property
    def joining(self) -> Joining | None:
        return self._stages.pop(0) if self._stages else None


def told(*stages: Joining, is_new: bool = False) -> list[str]:
    lines: list[str] = []
    asyncio.run(watch_joining(Stages(*stages), "r2", lines.append, is_new=is_new, look_s=0))
    return lines


def test_each_stage_is_told_until_it_votes() -> None:
    with capture_logs() as logs:
        lines = told(
            Joining("waiting", text="r1: not now"),
            Joining("dump", 40 * MB, 100 * MB),
            Joining("log", 120_000, 130_000),
        )
    assert lines == [
        "r2 waits to be taken in: r1: not now",
        "r2 receives the state: 40 of 100 MB",
        "r2 receives the log: 120,000 of 130,000 entries",
        "r2 votes from now on (incarnation 2)",
    ]
    assert [(one["event"], one.get("stage")) for one in logs] == [
        ("replica.joining", "waiting"),
        ("replica.joining", "dump"),
        ("replica.joining", "log"),
        ("replica.votes", None),
    ]


def test_a_replica_that_votes_tells_nothing() -> None:
    with capture_logs() as logs:
        assert told() == []
    assert logs == []


def test_a_new_disk_that_joined_before_the_first_look_is_told() -> None:
    assert told(is_new=True) == ["r2 votes from now on (incarnation 2)"]


def test_it_is_told_once_it_is_known_which_incarnation_votes() -> None:
    class Late(Stages):
        looks: ClassVar = [{}, {"r2": MemberView(3, "joining")}, {"r2": MemberView(3, "votes")}]

        @property
        def members(self) -> dict[str, MemberView]:
            return self.looks.pop(0)

        @members.setter
        def members(self, _: object) -> None: ...

    lines: list[str] = []
    asyncio.run(watch_joining(Late(), "r2", lines.append, is_new=True, look_s=0))
    assert lines == ["r2 votes from now on (incarnation 3)"]
    assert Late.looks == []


def test_peers_that_refuse_in_turn_are_quoted_once_each() -> None:
    refusals = [Joining("waiting", text=f"{peer}: taken") for peer in ("r1", "r3") * 9]
    with capture_logs() as logs:
        assert told(*refusals) == [
            "r2 waits to be taken in: r1: taken",
            "r2 waits to be taken in: r3: taken",
            "r2 votes from now on (incarnation 2)",
        ]
    assert [one["event"] for one in logs].count("replica.joining") == 2


def test_the_log_gets_a_twentieth_of_what_a_person_is_shown() -> None:
    with capture_logs() as logs:
        lines = told(*(Joining("dump", n * MB, 100 * MB) for n in range(60)))
    assert len(lines) == 61
    assert [one["event"] for one in logs].count("replica.joining") == 3


@pytest.mark.parametrize(
    ("progress", "says"),
    [
        (JoinProgress("waiting"), "waits to be taken in: no peer has answered yet"),
        (JoinProgress("dump", 500, 999), "receives the state: 500 of 999 bytes"),
        (JoinProgress("dump", 40 * MB, 100 * MB), "receives the state: 40 of 100 MB"),
        (JoinProgress("dump", 1_200_000, 5 * MB), "receives the state: 1.2 of 5.0 MB"),
        (JoinProgress("dump", 0, 2_000_000 * MB), "receives the state: 0 of 2,000 GB"),
    ],
)
def test_progress_is_told_in_units_that_fit(progress: JoinProgress, says: str) -> None:
    assert describe_progress(progress) == says


# ---- exit codes


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Replaced("r2 was replaced"), 4),
        (DiskFull("/data", "journal"), 5),
        (UnknownFormat("entry 7"), 3),
        (RuntimeError("a bug"), 1),
    ],
)
def test_each_end_has_its_exit_code(error: Exception, code: int) -> None:
    assert endings.exit_code(error, is_start=False) == code
    assert endings.exit_code(error, is_start=True) == (2 if code == 1 else code)


@pytest.mark.parametrize("error", [NoData("/data"), LogDamaged("/data", "frame 7")])
def test_what_does_not_start_ends_with_two(error: Exception) -> None:
    assert endings.exit_code(error, is_start=True) == 2


def test_every_exit_code_is_documented() -> None:
    text = endings.epilog()
    for code in endings.MEANINGS:
        assert f"\n  {code}  {endings.MEANINGS[code]}" in text
    assert "RestartPreventExitStatus=4" in text


# ---- a full disk at the start


class Disk:
    """A disk whose room a test gives, one number a look; the last one stays."""

    def __init__(self, *room: int) -> None:
        self._room = list(room)

    def room(self, _: Path) -> int:
        return self._room.pop(0) if len(self._room) > 1 else self._room[0]


async def start_on(disk: Disk, *failures: Exception) -> tuple[str | None, int]:
    """What a start that fails with these first returns, and how often it was tried."""
    left, tries = list(failures), 0

    async def start() -> str:
        nonlocal tries
        tries += 1
        if left:
            raise left.pop(0)
        return "started"

    got = await with_room(start, Path("/data"), asyncio.Event(), room=disk.room, look_s=0.001)
    return got, tries


FULL = DiskFull("/data", "journal")


def test_a_lock_alone_is_no_log(tmp_path: Path) -> None:
    data = tmp_path / "r1"
    assert not has_log(data)
    (data / "raft").mkdir(parents=True)
    (data / "raft" / "lock").touch()
    assert not has_log(data)
    (data / "raft" / "wal-1").touch()
    assert has_log(data)


async def test_a_start_on_a_full_disk_waits_for_room_and_says_so_once() -> None:
    with capture_logs() as logs:
        assert await start_on(Disk(5, 5, 5, 6, 6, 6, 99), FULL, FULL) == ("started", 3)
    assert [one["event"] for one in logs] == ["disk.full", "disk.has_room"]
    assert logs[0]["room_bytes"] == 5


async def test_whatever_fails_on_a_full_disk_is_due_to_that() -> None:
    assert await start_on(Disk(5, 9), OSError("history")) == ("started", 2)


async def test_a_start_that_fails_with_room_left_fails() -> None:
    with pytest.raises(NoData):
        await start_on(Disk(LEAST_BYTES), NoData("/data"))


async def test_a_replica_that_waits_for_room_can_be_stopped() -> None:
    stopping = asyncio.Event()

    async def start() -> str:
        asyncio.get_running_loop().call_soon(stopping.set)
        raise FULL

    assert await with_room(start, Path("/data"), stopping, room=Disk(5).room, look_s=60) is None
