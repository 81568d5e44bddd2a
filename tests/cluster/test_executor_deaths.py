"""What runs when executor, spawner or both die or hang: ended, and interrupted (rule R4)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from launcher.executor.clock import boot_ms
from launcher.rpc.v1 import pool_pb2
from tests.cluster.executor_host import ExecutorHost, FakeLeader, mark, runs, shell, until

pytestmark = pytest.mark.cluster
NAME = "default/a@2026-11-20T15:00:00Z#1"
OTHER = "default/b@2026-11-20T15:00:00Z#1"


async def test_killed_in_the_middle_it_reports_the_launch_as_interrupted_and_the_child_is_dead(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    host.start()
    await leader.connected()
    path = tmp_path / "pids"
    leader.start(NAME, shell(f"sleep 60 & echo $$ $! > {path}; wait"))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    await until(lambda: path.exists() and path.read_text().endswith("\n"), "the command's pids")
    pids = [int(pid) for pid in path.read_text().split()]
    assert all(runs(pid) for pid in pids)
    await host.kill()
    await until(lambda: not any(runs(pid) for pid in pids), "the commands' end")
    host.start()
    await leader.connected(streams=2)
    (row,) = leader.hellos[1].known
    assert (row.name, row.fate) == (NAME, pool_pb2.INTERRUPTED)
    assert row.started_ms


async def test_commands_that_survived_executor_and_spawner_are_killed_before_it_connects(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    process = host.start()
    await leader.connected()
    path = tmp_path / "pid"
    leader.start(NAME, shell(f"echo $$ > {path}; exec sleep 60"))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    await until(lambda: path.exists() and path.read_text(), "the command's pid")
    pid = int(path.read_text())
    spawner = children_of(process.pid)[0]
    # Frozen, neither can react to the other's end.
    stop(process.pid, spawner)
    kill(spawner, process.pid)
    await host.ended()
    assert runs(pid)
    host.start()
    await leader.connected(streams=2)
    assert not runs(pid)
    assert leader.hellos[1].known[0].fate == pool_pb2.INTERRUPTED


async def test_a_command_whose_start_was_not_yet_recorded_is_killed_before_it_connects(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    # Two launches of a job that forbids overlap would run at once otherwise (rules R4, R6).
    process = host.start(failpoints="after-start=stop")
    await leader.connected()
    path = tmp_path / "pid"
    leader.start(NAME, shell(f"sleep 60 & echo $$ $! > {path}; wait"))
    await until(lambda: path.exists() and path.read_text().endswith("\n"), "the command's pids")
    pids = [int(pid) for pid in path.read_text().split()]
    await until(lambda: state_of(process.pid) == "T", "the failpoint")
    spawner = children_of(process.pid)[0]
    stop(spawner)
    kill(spawner, process.pid)
    await host.ended()
    assert all(runs(pid) for pid in pids)
    host.start()
    await leader.connected(streams=2)
    assert not any(runs(pid) for pid in pids)
    assert leader.hellos[1].known[0].fate == pool_pb2.INTERRUPTED


async def test_a_stopped_spawner_of_a_dead_executor_does_not_wake(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    process = host.start()
    await leader.connected()
    spawner = children_of(process.pid)[0]
    command, path = mark(tmp_path)
    stop(spawner)
    leader.start(NAME, shell(command))
    leader.order(kills=[pool_pb2.Kill(name=OTHER)])
    await leader.told(OTHER, pool_pb2.UNKNOWN)  # so the start is in the spawner's socket by now
    await host.kill()
    host.start()
    await leader.connected(streams=2)
    assert not runs(spawner)
    assert not path.exists()


async def test_a_spawner_that_hangs_is_killed_when_the_lease_ends_and_guarded_work_with_it(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    # Stopped, it meets no deadline; and the leader counts on this one (rules R5, R6).
    leader.self_kill_ms = 2_000
    process = host.start()
    await leader.connected()
    path = tmp_path / "pid"
    leader.start(NAME, shell(f"echo $$ > {path}; exec sleep 60", guarded=True))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    await until(lambda: path.exists() and path.read_text(), "the command's pid")
    leader.answers = False
    stop(children_of(process.pid)[0])
    stopped_ms = boot_ms()
    await until(lambda: not runs(int(path.read_text())), "the command's end")
    assert boot_ms() - stopped_ms < 2_000 + 10_000


async def test_a_spawner_that_hangs_while_the_lease_is_renewed_is_replaced(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    leader.self_kill_ms = 2_000
    process = host.start()
    await leader.connected()
    stop(children_of(process.pid)[0])
    leader.start(NAME, shell("sleep 60"))
    await leader.told(NAME, pool_pb2.INTERRUPTED)
    leader.start(OTHER, shell("true"))
    assert (await leader.told(OTHER, pool_pb2.ENDED)).exit_code == 0
    assert "it does not answer" in host.errors()


async def test_an_executor_that_was_stopped_does_not_blame_its_spawner(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    leader.self_kill_ms = 3_000
    process = host.start()
    await leader.connected()
    leader.start(NAME, shell("sleep 60"))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    spawner, beats = children_of(process.pid)[0], leader.beats
    stop(process.pid)
    stopped_ms = boot_ms()
    await until(lambda: boot_ms() - stopped_ms > 4_000)
    host.signal(signal.SIGCONT)
    await until(lambda: leader.beats > beats + 20, "a second of heartbeats")
    assert children_of(process.pid) == [spawner]
    assert not leader.about(NAME, pool_pb2.INTERRUPTED)


async def test_told_to_end_it_leaves_no_command_of_a_spawner_that_hangs(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    process = host.start()
    await leader.connected()
    path = tmp_path / "pid"
    leader.start(NAME, shell(f"echo $$ > {path}; exec sleep 60"))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    await until(lambda: path.exists() and path.read_text(), "the command's pid")
    stop(children_of(process.pid)[0])
    host.signal(signal.SIGTERM)
    assert await host.ended() == 0
    assert not runs(int(path.read_text()))


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def stop(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


async def test_a_dead_spawner_is_replaced_and_what_it_ran_is_interrupted(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    process = host.start()
    await leader.connected()
    path = tmp_path / "pid"
    leader.start(NAME, shell(f"echo $$ > {path}; exec sleep 60"))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    await until(lambda: path.exists() and path.read_text(), "the command's pid")
    kill(children_of(process.pid)[0])
    await leader.told(NAME, pool_pb2.INTERRUPTED)
    assert not runs(int(path.read_text()))
    leader.start(OTHER, shell("true"))
    assert (await leader.told(OTHER, pool_pb2.ENDED)).exit_code == 0
