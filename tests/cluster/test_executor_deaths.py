"""What runs when executor, spawner or both die or hang: ended, and interrupted (rule R4)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from launcher.clock import boot_ms
from launcher.protocol.status import Reason
from launcher.protocol.v1 import pool_pb2
from tests.cluster.executor_host import ExecutorHost, FakeLeader, mark, runs, shell, until
from tests.unit.rows_rig import reports_of

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
    (row,) = reports_of(leader.hellos[1].known)
    assert (row.name, row.status) == (NAME, pool_pb2.INTERRUPTED)
    assert row.started_ms


TREE = """
sleep 60 &
echo group $! >> pids
setsid sh -c 'echo session $$ >> pids; exec sleep 60' &
(setsid sh -c 'echo daemon $$ >> pids; exec sleep 60' &)
env -i PATH=/usr/bin:/bin setsid sh -c 'echo cleared $$ >> pids; exec sleep 60' &
echo main $$ >> pids
wait
"""
"""A group, a session of its own, a daemon that lost its parent, and what `su - user -c` makes."""


async def start_tree(leader: FakeLeader, tmp_path: Path, **fields: Any) -> dict[str, int]:
    """Have a guarded command start a tree of processes; return their ids by what they are."""
    path = tmp_path / "pids"
    leader.start(NAME, shell(TREE, cwd=str(tmp_path), guarded=True, **fields))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    await until(lambda: path.exists() and path.read_text().count("\n") == 5, "the tree")
    return {what: int(pid) for what, pid in map(str.split, path.read_text().splitlines())}


def kill_at_once(*pids: int) -> None:
    """Kill processes of which none can react to another's end."""
    stop(*pids)
    kill(*pids)


async def test_all_of_a_command_dies_with_executor_and_spawner(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    # Nobody else could keep it from overlapping the next launch (rule R6).
    process = host.start()
    await leader.connected()
    pids = await start_tree(leader, tmp_path)
    kill_at_once(process.pid, parent_of(pids["main"]))
    await host.ended()
    await until(lambda: not any(map(runs, pids.values())), "the commands' end")


async def test_all_of_a_command_dies_with_its_spawner_and_what_watches_the_spawner(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    process = host.start()
    await leader.connected()
    pids = await start_tree(leader, tmp_path)
    kill_at_once(*tree_between(pids["main"], process.pid)[:-1])
    await leader.told(NAME, pool_pb2.INTERRUPTED)
    assert not any(map(runs, pids.values()))


async def test_the_group_of_a_command_dies_with_the_whole_tree_above_it_and_the_rest_before_work(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    process = host.start()
    await leader.connected()
    pids = await start_tree(leader, tmp_path)
    kill_at_once(*tree_between(pids["main"], process.pid))
    await host.ended()
    await until(lambda: not runs(pids["main"]) and not runs(pids["group"]), "the group's end")
    host.start()
    await leader.connected(streams=2)
    assert not runs(pids["session"])
    assert not runs(pids["daemon"])
    assert reports_of(leader.hellos[1].known)[0].status == pool_pb2.INTERRUPTED
    if runs(pids["cleared"]):  # documented: it left its group, and nothing says whose it is
        kill(pids["cleared"])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can switch users")
async def test_a_command_of_another_user_dies_with_the_whole_tree_above_it(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    # A parent-death signal alone would not do: the kernel forgets it when the user changes.
    host.configure([leader.address], users=["nobody", "root"])
    process = host.start()
    await leader.connected()
    path = tmp_path / "pids"
    path.touch()
    path.chmod(0o666)
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    leader.start(NAME, shell(f"sleep 60 & echo $$ $! > {path}; wait", user="nobody", guarded=True))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    await until(lambda: path.read_text().endswith("\n"), "the command's pids")
    pids = [int(pid) for pid in path.read_text().split()]
    kill_at_once(*tree_between(pids[0], process.pid))
    await host.ended()
    await until(lambda: not any(map(runs, pids)), "the commands' end")


async def test_guarded_commands_end_with_the_lease_though_executor_and_spawner_are_stopped(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    leader.self_kill_ms = 2_000
    process = host.start()
    await leader.connected()
    pids = await start_tree(leader, tmp_path)
    stop(process.pid, parent_of(pids["main"]))
    await until(lambda: not any(map(runs, pids.values())), "the commands' end")


async def test_the_end_of_a_lease_ends_all_of_a_guarded_command(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    leader.self_kill_ms = 2_000
    host.start()
    await leader.connected()
    pids = await start_tree(leader, tmp_path)
    leader.answers = False
    await until(lambda: not any(map(runs, pids.values())), "the commands' end")


async def test_an_executor_says_that_its_lease_ended_and_how_many_commands_it_killed(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    leader.self_kill_ms = 2_000
    host.start()
    await leader.connected()
    leader.start(NAME, shell("exec sleep 60", guarded=True))
    leader.start(OTHER, shell("exec sleep 60"))
    await leader.told(NAME, pool_pb2.ACCEPTED)
    await leader.told(OTHER, pool_pb2.ACCEPTED)
    leader.answers = False
    await until(lambda: "launches.killed" in host.errors(), "a warning")
    lines = [json.loads(line) for line in host.errors().splitlines()]
    warnings = {line["event"]: line for line in lines if line["level"] == "warning"}
    assert (warnings["lease.ended"]["commands"], warnings["lease.ended"]["guarded"]) == (2, 1)
    assert warnings["launches.killed"]["count"] == 1


async def test_a_command_whose_start_was_not_yet_recorded_dies_with_executor_and_spawner(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    # Two launches of a job that forbids overlap would run at once otherwise (rules R4, R6).
    process = host.start(failpoints="after-start=stop")
    await leader.connected()
    path = tmp_path / "pid"
    leader.start(NAME, shell(f"setsid sleep 60 & echo $$ $! > {path}; wait"))
    await until(lambda: path.exists() and path.read_text().endswith("\n"), "the command's pids")
    pids = [int(pid) for pid in path.read_text().split()]
    await until(lambda: state_of(process.pid) == "T", "the failpoint")
    kill_at_once(process.pid, parent_of(pids[0]))
    await host.ended()
    await until(lambda: not any(map(runs, pids)), "the commands' end")
    host.start()
    await leader.connected(streams=2)
    assert reports_of(leader.hellos[1].known)[0].status == pool_pb2.INTERRUPTED


async def test_a_stopped_spawner_of_a_dead_executor_does_not_wake(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    process = host.start()
    await leader.connected()
    spawner = await spawner_of(process.pid)
    command, path = mark(tmp_path)
    stop(spawner)
    leader.start(NAME, shell(command))
    leader.order(kills=[(OTHER, Reason.KILLED)])
    await leader.told(OTHER, pool_pb2.UNKNOWN)  # so the start is in the spawner's socket by now
    await host.kill()
    host.start()
    await leader.connected(streams=2)
    assert not runs(spawner)
    assert not path.exists()


async def test_a_stopped_spawner_of_a_dead_executor_is_killed_with_what_it_runs(
    leader: FakeLeader, host: ExecutorHost, tmp_path: Path
) -> None:
    host.start()
    await leader.connected()
    pids = await start_tree(leader, tmp_path)
    spawner = parent_of(pids["main"])
    stop(spawner)
    await host.kill()
    await until(lambda: not any(map(runs, [spawner, *pids.values()])), "everything's end")


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
    stop(await spawner_of(process.pid))
    stopped_ms = boot_ms()
    await until(lambda: not runs(int(path.read_text())), "the command's end")
    assert boot_ms() - stopped_ms < 2_000 + 10_000


async def test_a_spawner_that_hangs_while_the_lease_is_renewed_is_replaced(
    leader: FakeLeader, host: ExecutorHost
) -> None:
    leader.self_kill_ms = 2_000
    process = host.start()
    await leader.connected()
    stop(await spawner_of(process.pid))
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
    spawner, beats = await spawner_of(process.pid), leader.beats
    stop(process.pid)
    stopped_ms = boot_ms()
    await until(lambda: boot_ms() - stopped_ms > 4_000)
    host.signal(signal.SIGCONT)
    await until(lambda: leader.beats > beats + 20, "a second of heartbeats")
    assert await spawner_of(process.pid) == spawner
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
    stop(await spawner_of(process.pid))
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


async def spawner_of(executor: int) -> int:
    """The spawner, once its reaper has forked it."""
    (reaper,) = children_of(executor)
    found: list[int] = await until(lambda: children_of(reaper), "the spawner")
    return found[0]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def tree_between(command: int, executor: int) -> list[int]:
    """The processes above a command, up to its executor."""
    found = [parent_of(command)]
    while found[-1] != executor:
        found.append(parent_of(found[-1]))
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
    kill(await spawner_of(process.pid))
    await leader.told(NAME, pool_pb2.INTERRUPTED)
    assert not runs(int(path.read_text()))
    leader.start(OTHER, shell("true"))
    assert (await leader.told(OTHER, pool_pb2.ENDED)).exit_code == 0
