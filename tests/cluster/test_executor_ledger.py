"""An executor process answers what it knows and starts nothing twice (rules R3, R4, R5, R7)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from launcher.clock import boot_ms
from launcher.executor.main import CANNOT_RUN, IN_USE
from launcher.protocol.v1 import pool_pb2
from launcher.protocol.work import Epoch
from tests.cluster.executor_host import ExecutorHost, FakeLeader, mark, shell, until
from tests.unit.rows_rig import Start, reports_of

pytestmark = pytest.mark.cluster
NAME = "default/a@2026-11-20T15:00:00Z#1"
OTHER = "default/b@2026-11-20T15:00:00Z#1"


async def test_a_repeated_start_is_answered_and_not_repeated(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    # SRE book ch. 24, "Resolving partial failures"
    command, path = mark(tmp_path)
    host.start()
    await leader.connected()
    leader.start(NAME, shell(command))
    await leader.told(NAME, pool_pb2.ENDED)
    leader.start(NAME, shell(command), epoch=Epoch(0, 2, "r2"))
    await leader.told(NAME, pool_pb2.ENDED, count=2)
    assert path.read_text() == "run\n"


async def test_a_start_is_not_repeated_after_a_restart_either(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    command, path = mark(tmp_path)
    host.start()
    await leader.connected()
    leader.start(NAME, shell(command))
    await leader.told(NAME, pool_pb2.ENDED)
    await host.kill()
    host.start()
    await leader.connected(streams=2)
    assert [(row.name, row.status) for row in reports_of(leader.hellos[1].known)] == [
        (NAME, pool_pb2.ENDED)
    ]
    assert leader.hellos[0].ledger == leader.hellos[1].ledger
    assert leader.hellos[0].incarnation != leader.hellos[1].incarnation
    leader.start(NAME, shell(command))
    await leader.told(NAME, pool_pb2.ENDED, count=2)
    assert path.read_text() == "run\n"


async def test_an_acknowledged_end_is_not_reported_again(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    host.start()
    await leader.connected()
    leader.start(NAME, shell("true"))
    leader.start(OTHER, shell("true"))
    await leader.told(NAME, pool_pb2.ENDED)
    await leader.told(OTHER, pool_pb2.ENDED)
    leader.order(acks=[NAME])
    leader.goodbye()
    await leader.connected(streams=2)
    assert [row.name for row in reports_of(leader.hellos[1].known)] == [OTHER]


async def test_a_fence_leaves_a_tombstone_that_refuses_the_start(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    command, path = mark(tmp_path)
    host.start()
    await leader.connected()
    leader.order(fences=[NAME])
    await leader.told(NAME, pool_pb2.FENCED)
    await host.kill()
    host.start()
    await leader.connected(streams=2)
    leader.start(NAME, shell(command))
    await leader.told(NAME, pool_pb2.FENCED, count=2)
    leader.start(OTHER, shell("true"))
    await leader.told(OTHER, pool_pb2.ENDED)
    assert not path.exists()


async def test_a_fence_of_a_running_name_answers_that_it_runs(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    host.start()
    await leader.connected()
    leader.start(NAME, shell("sleep 60"))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    leader.order(fences=[NAME])
    await leader.told(NAME, pool_pb2.ACCEPTED, count=2)


async def test_orders_of_an_older_epoch_end_the_stream_and_start_nothing(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    command, path = mark(tmp_path)
    leader.epoch = Epoch(0, 5, "r1")
    host.start()
    await leader.connected()
    leader.start(NAME, shell(command), epoch=Epoch(0, 4, "r9"))
    await leader.connected(streams=2)
    assert not leader.about(NAME)
    assert not reports_of(leader.hellos[1].known)
    assert not path.exists()


async def test_a_leader_of_an_older_epoch_is_left_also_after_a_restart(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    leader.epoch = Epoch(0, 5, "r1")
    host.start()
    await leader.connected()
    leader.start(NAME, shell("true"))
    await leader.told(NAME, pool_pb2.ENDED)
    await host.kill()
    beats = leader.beats
    leader.epoch = Epoch(0, 4, "r1")
    host.start()
    await until(lambda: leader.streams >= 4, "several visits")
    assert leader.beats == beats
    assert leader.hellos[-1].highest_epoch.term == 5


async def test_a_start_that_comes_too_late_is_durably_refused(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    command, path = mark(tmp_path)
    host.start()
    await leader.connected()
    leader.start(NAME, shell(command), late_ms=5_000)
    report = await leader.told(NAME, pool_pb2.REFUSED)
    assert "too late" in report.detail
    leader.start(NAME, shell(command))
    await leader.told(NAME, pool_pb2.REFUSED, count=2)
    assert not path.exists()


async def test_without_a_lease_a_start_is_durably_refused(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    leader.self_kill_ms = 1_500
    host.configure([leader.address], answer_ms=60_000)  # or it leaves, and waits for a lease
    host.start()
    await leader.connected()
    leader.start(NAME, shell("true"))
    await leader.told(NAME, pool_pb2.ENDED)
    leader.answers = False
    silent_ms = boot_ms()
    await until(lambda: boot_ms() > silent_ms + 2_000, "the lease's end")
    leader.start(OTHER, shell("true"))
    report = await leader.told(OTHER, pool_pb2.REFUSED)
    assert "lease" in report.detail


async def test_orders_that_come_before_the_first_lease_wait_for_it(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    leader.answers = False
    host.start()
    await until(lambda: leader.beats, "a heartbeat")
    leader.start(NAME, shell("true"))
    leader.answers = True
    await leader.told(NAME, pool_pb2.ENDED)
    assert not leader.about(NAME, pool_pb2.REFUSED)


async def test_a_start_at_the_watermark_is_never_started(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    command, path = mark(tmp_path)
    host.start()
    await leader.connected()
    leader.start(NAME, shell("true"), index=7)
    await leader.told(NAME, pool_pb2.ENDED)
    leader.order(acks=[NAME], floor=8)
    leader.start(NAME, shell(command), index=7)
    report = await leader.told(NAME, pool_pb2.INTERRUPTED)
    assert "watermark" in report.detail
    assert not path.exists()


async def test_more_starts_than_slots_are_refused(leader: FakeLeader, host: ExecutorHost) -> None:
    host.configure([leader.address], slots=1, worker_buffer=0)
    host.start()
    await leader.connected()
    leader.start(NAME, shell("sleep 60"))
    leader.start(OTHER, shell("true"))
    report = await leader.told(OTHER, pool_pb2.REFUSED)
    assert report.detail == "no free slot"


async def test_a_lost_ledger_comes_back_under_a_new_uuid(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    host.start()
    await leader.connected()
    await host.kill()
    for path in (tmp_path / "data").glob("journal*"):
        path.unlink()
    host.start()
    await leader.connected(streams=2)
    assert leader.hellos[0].ledger != leader.hellos[1].ledger


async def test_a_damaged_ledger_is_not_started_on(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/journal").write_bytes(b"this is no journal\n" * 500)
    host.start()
    assert await host.ended() == 1
    errors = host.errors()
    assert "journal: cannot be read" in errors
    assert "move" in errors
    assert not leader.hellos


async def test_a_directory_of_an_older_version_is_not_started_on(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/ledger.sqlite").write_bytes(b"SQLite format 3\0")
    host.start()
    assert await host.ended() == CANNOT_RUN
    errors = host.errors()
    assert "data/ledger.sqlite: was written by a version of raftcron that" in errors
    assert "let that version end what it runs, then move" in errors
    assert not leader.hellos
    assert [one.name for one in (tmp_path / "data").iterdir() if "ledger" in one.name] == [
        "ledger.sqlite"
    ]


async def test_a_second_executor_on_the_same_directory_is_refused(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    host.start()
    await leader.connected()
    second = ExecutorHost(tmp_path, [leader.address])
    second.start()
    try:
        assert await second.ended() == IN_USE
        assert "in use" in second.errors()
        assert leader.streams == 1
    finally:
        second.close()


async def test_a_flood_of_starts_is_answered_in_few_messages(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    host.configure([leader.address], start="none")
    host.start()
    await leader.connected()
    names = [f"default/j{number}@2026-11-20T15:00:00Z#1" for number in range(2_000)]
    starts = [Start(name, shell("exit 1"), 1 << 50, 1 + at) for at, name in enumerate(names)]
    leader.order(starts=starts)
    await until(lambda: len(leader.reports) >= 2_000, "all reports")
    assert {report.name for report in leader.reports} == set(names)
    assert {(report.status, report.exit_code) for report in leader.reports} == {(pool_pb2.ENDED, 0)}
    assert leader.messages <= 2


@pytest.mark.parametrize(
    ("failpoint", "status", "runs_counted"),
    [
        ("before-ledger=kill", None, {1}),
        ("after-ledger=kill", pool_pb2.INTERRUPTED, {0}),
        # The spawner kills the group at once, maybe before it has written its line.
        ("after-start=kill", pool_pb2.INTERRUPTED, {0, 1}),
        ("before-report=kill", pool_pb2.INTERRUPTED, {0, 1}),
        ("before-report=kill@2", pool_pb2.ENDED, {1}),
    ],
)
async def test_killed_at_any_point_it_never_runs_twice(
    leader: FakeLeader,
    host: ExecutorHost,
    tmp_path: Path,
    failpoint: str,
    status: int | None,
    runs_counted: set[int],
) -> None:
    command, path = mark(tmp_path)
    host.start(failpoints=failpoint)
    await leader.connected()
    # Long enough that its end is never in the same turn as its start.
    leader.start(NAME, shell(f"{command}; sleep 1.5"))
    assert await host.ended() == -signal.SIGKILL
    host.start()
    await leader.connected(streams=2)
    known = {row.name: row.status for row in reports_of(leader.hellos[1].known)}
    assert known == ({} if status is None else {NAME: status})
    leader.start(NAME, shell(command))
    await leader.told(NAME, pool_pb2.ENDED if status is None else status)
    count = len(path.read_text().splitlines()) if path.exists() else 0
    assert count in runs_counted
