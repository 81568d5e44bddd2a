"""What commands run in: a control group for those that declare what they need, and its verdict."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from launcher.clock import wall_ms
from launcher.config import ExecutorConfig
from launcher.executor import main as executor
from launcher.executor.attempt import Attempt
from launcher.executor.commands import cgroups
from launcher.executor.commands.cgroups import ControlGroups, open_limits
from launcher.executor.commands.running import Commands
from launcher.executor.commands.trees import SurvivorsRemain
from launcher.executor.outputs import Outputs
from launcher.executor.resources import UNLIMITED, V2, Capacity, Group
from launcher.executor.rows import ACCEPTED, ENDED, INTERRUPTED
from launcher.executor.stream import LeaderStream
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch, WorkSpec
from tests.unit.cgroup_rig import ROOT, FakeCgroups
from tests.unit.rows_rig import Start, attempt_of, found, orders
from tests.unit.test_executor_loop import Shop
from tests.unit.workers_rig import until

LEDGER = "01234567-89ab-cdef-0123-456789abcdef"
SERVICE = f"{ROOT}/executor.service"
A, B = (f"default/{job}@2026-11-20T15:00:00Z#1" for job in "ab")
NOW_MS = 5_000
OOM = "max 9\noom 1\noom_kill 1\n"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeCgroups:
    """A host where the executor is alone in a group that was delegated to it."""
    fake = FakeCgroups()
    fake.delegate(SERVICE, fake.me)
    groups = {V2: Group(Path(ROOT), Path(SERVICE))}
    monkeypatch.setattr(cgroups, "own_groups", lambda: groups)
    return fake


@pytest.fixture
def limits(kernel: FakeCgroups) -> ControlGroups:
    return open_limits(LEDGER, "", kernel, wait_ms=0)


class CommandsRig(Commands):
    """Commands, with the messages to the spawner and the reports to the journal."""

    def __init__(self, config: ExecutorConfig, outputs: Outputs, limits: ControlGroups) -> None:
        self.orders: list[list[Any]] = []
        self.over: list[Attempt] = []
        send, report = self.orders.extend, self.over.extend
        super().__init__(config, outputs, limits, "", send=send, report=report)


def commands_of(directory: Path, limits: ControlGroups) -> CommandsRig:
    config = ExecutorConfig(id="e1", data=str(directory), leaders=("127.0.0.1:1",), users=("root",))
    outputs = Outputs(directory / "output", 100, 1 << 20)
    return CommandsRig(config, outputs, limits)


@pytest.fixture
def commands(tmp_path: Path, limits: ControlGroups) -> CommandsRig:
    return commands_of(tmp_path, limits)


def accepted(name: str = A, **work: Any) -> Attempt:
    return attempt_of(name, WorkSpec(("/bin/true",), cwd="/", **work))


def group_of(commands: CommandsRig, one: Attempt) -> str:
    commands.give([one])
    assert not commands.over
    return str(commands.orders[-1][1].get("cgroup", ""))


def heard(commands: CommandsRig, *said: list[Any]) -> list[Attempt]:
    """What is over of what the spawner says."""
    return [one for one in commands.receive(said, NOW_MS) if one.status != ACCEPTED]


def ended(name: str = A, exit_code: int = 137, reason: int = 0) -> list[Any]:
    return ["ended", name, exit_code, reason, 1_000, 7, "", 3, 2 << 20, 0]


# ---- who gets a group


def test_what_declares_memory_or_cpu_is_ordered_into_a_group_of_its_own(
    commands: CommandsRig, kernel: FakeCgroups
) -> None:
    group = group_of(commands, accepted(cpu_milli=500, memory_bytes=64 << 20))
    assert kernel.nodes[group].files["cpu.max"] == "50000 100000"
    assert kernel.nodes[group].files["memory.max"] == str(64 << 20)
    other = group_of(commands, accepted(B, cpu_milli=500))
    assert other not in ("", group)
    assert (len(commands), A in commands) == (2, True)


def test_what_declares_nothing_gets_none(commands: CommandsRig) -> None:
    assert group_of(commands, accepted()) == ""


def test_what_cannot_be_ordered_leaves_no_group_behind(
    commands: CommandsRig, kernel: FakeCgroups, limits: ControlGroups
) -> None:
    one = accepted(A, user="nobody-here", memory_bytes=1)
    commands.give([one])
    assert commands.orders == []
    assert (commands.over, one.status) == ([one], ENDED)
    assert (one.reason, one.exit_code, one.finished_ms > 0) == (Reason.USER, 126, True)
    assert kernel.groups(limits.home) == []
    assert len(commands) == 0


def test_a_group_that_cannot_be_made_is_said_once_and_the_command_runs_without(
    commands: CommandsRig, kernel: FakeCgroups
) -> None:
    kernel.full = True
    with structlog.testing.capture_logs() as lines:
        assert group_of(commands, accepted(A, memory_bytes=1)) == ""
        assert group_of(commands, accepted(B, memory_bytes=1)) == ""
    assert [(line["event"], line["launch"]) for line in lines] == [("launch.unlimited", A)]
    assert "Resource temporarily unavailable" in lines[0]["error"]


def test_where_nothing_can_be_limited_nothing_is_said_again(tmp_path: Path) -> None:
    commands = commands_of(tmp_path, ControlGroups("", (), "there is no cgroup v2 here"))
    with structlog.testing.capture_logs() as lines:
        assert group_of(commands, accepted(A, memory_bytes=1)) == ""
    assert lines == []
    [one] = heard(commands, ended())
    assert (one.exit_code, one.reason) == (137, Reason.NONE)


# ---- what the group says at the end


def test_killed_at_its_limit_of_memory_it_failed_for_that_and_the_limit_is_named(
    commands: CommandsRig, kernel: FakeCgroups
) -> None:
    one = accepted(memory_bytes=96 << 20)
    group = group_of(commands, one)
    kernel.nodes[group].files["memory.events"] = OOM
    assert commands.receive([["started", A, 7, 8, 9]], NOW_MS) == [one]
    assert (one.pid, one.ticks, one.started_ms) == (7, 8, 9)
    assert group in kernel.nodes
    assert heard(commands, ended()) == [one]
    assert (one.exit_code, one.reason, one.finished_ms) == (137, Reason.MEMORY, 1_000)
    assert one.detail == "it was killed at its limit of memory, 96 MiB"
    assert one.output_bytes == 7
    assert group not in kernel.nodes
    assert A not in commands  # its slot is free


@pytest.mark.parametrize("news", [ended(reason=Reason.TIMEOUT), ended(exit_code=0)])
def test_an_end_that_has_a_reason_or_is_a_success_stays_what_it_is(
    commands: CommandsRig, kernel: FakeCgroups, news: list[Any]
) -> None:
    group = group_of(commands, accepted(memory_bytes=1))
    kernel.nodes[group].files["memory.events"] = OOM
    [one] = heard(commands, news)
    assert (one.exit_code, one.reason, one.detail) == (news[2], news[3], "")
    assert group not in kernel.nodes


def test_killed_by_somebody_else_it_is_not_for_memory(
    commands: CommandsRig, kernel: FakeCgroups
) -> None:
    group_of(commands, accepted(memory_bytes=1))
    assert heard(commands, ended())[0].reason == Reason.NONE


def test_without_control_groups_the_memory_of_a_command_is_watched(tmp_path: Path) -> None:
    commands = commands_of(tmp_path, ControlGroups("", (), "there is no cgroup v2 here"))
    one, other = accepted(A, memory_bytes=96 << 20), accepted(B, cpu_milli=500)
    commands.give([one, other])
    starts = [message[1] for message in commands.orders if message[0] == "start"]
    assert [start.get("memory_max") for start in starts] == [96 << 20, None]
    [one] = heard(commands, [*ended()[:-1], 120 << 20])
    assert (one.exit_code, one.reason) == (137, Reason.MEMORY)
    limit = "its memory is looked at each second, and its limit is 96 MiB"
    assert one.detail == f"it had 120 MiB and was killed: {limit}"
    assert (one.cpu_ms, one.memory_peak_bytes) == (3, 2 << 20)


def test_memory_that_a_control_group_holds_is_not_watched(commands: CommandsRig) -> None:
    assert group_of(commands, accepted(memory_bytes=96 << 20))
    assert "memory_max" not in commands.orders[-1][1]


def test_a_group_that_limits_cpu_alone_leaves_memory_to_the_watcher(
    tmp_path: Path, kernel: FakeCgroups
) -> None:
    kernel.nodes[SERVICE].controllers = {"cpu"}
    commands = commands_of(tmp_path, open_limits(LEDGER, "", kernel, wait_ms=0))
    assert group_of(commands, accepted(cpu_milli=500, memory_bytes=96 << 20))
    assert commands.orders[-1][1]["memory_max"] == 96 << 20


def test_memory_that_the_one_group_cannot_hold_is_watched(
    commands: CommandsRig, kernel: FakeCgroups
) -> None:
    kernel.full = True
    assert group_of(commands, accepted(memory_bytes=96 << 20)) == ""
    assert commands.orders[-1][1]["memory_max"] == 96 << 20


@pytest.mark.parametrize("verb", [["refused", A, "late"], ["failed", A, 13, "no such program"]])
def test_what_was_not_started_leaves_no_group(
    commands: CommandsRig, kernel: FakeCgroups, verb: list[Any]
) -> None:
    group = group_of(commands, accepted(memory_bytes=1))
    assert len(heard(commands, verb)) == 1
    assert group not in kernel.nodes


def test_what_is_said_of_a_command_that_is_not_here_counts_for_nothing(
    commands: CommandsRig,
) -> None:
    assert not commands.receive([ended(B), ["started", B, 1, 2, 3]], NOW_MS)


def test_what_a_spawner_says_after_it_died_counts_for_nothing(commands: CommandsRig) -> None:
    one = accepted()
    group_of(commands, one)
    commands.clear()
    assert one.status == INTERRUPTED
    assert not heard(commands, ended())


def test_with_the_spawner_all_of_them_end_also_those_in_sessions_of_their_own(
    commands: CommandsRig, kernel: FakeCgroups, limits: ControlGroups
) -> None:
    group = group_of(commands, accepted(memory_bytes=1))
    commands.give([accepted(B)])
    kernel.move(9, group)
    commands.clear()
    assert kernel.killed == [9]
    assert kernel.groups(limits.home) == []
    assert len(commands) == 0


# ---- the executor


class LimitedShop(Shop):
    """An executor loop whose commands have limits of the kernel in memory."""

    async def open(self, **settings: Any) -> None:
        self.kernel = FakeCgroups()
        self.kernel.delegate(f"{ROOT}/launches")
        await super().open(**settings)
        self.limits = open_limits(self.ledger.uuid, f"{ROOT}/launches", self.kernel, wait_ms=0)
        self.executor_loop._commands._control_groups = self.limits

    def order(self, **fields: Any) -> None:
        """Order one with a limit of memory."""
        name, command = fields["names"][0], fields.get("command", "true")
        work = WorkSpec(("/bin/sh", "-c", command), cwd="/", memory_bytes=1 << 20)
        start = Start(name, msgspec.msgpack.encode(work), wall_ms() + 60_000)
        self.executor_loop.order(self.ear, orders(start))

    def groups(self) -> list[str]:
        """The groups of launches that are there."""
        return self.kernel.groups(self.limits.home)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[LimitedShop]:
    shop = LimitedShop(tmp_path)
    await shop.open()
    shop.executor_loop.attach(shop.ear)
    yield shop
    await shop.close()


async def row_of(shop: Shop, name: str) -> Any:
    return (await asyncio.wrap_future(shop.thread.submit(found, shop.ledger)))[name]


async def test_a_command_that_cannot_join_its_group_does_not_run_without(
    shop: LimitedShop,
) -> None:
    # The groups of this test are not on the disk: the child finds none.
    shop.order(names=(A,), command=f"touch {shop.directory}/ran")
    await shop.turns_until(lambda: (A, ENDED) in shop.ear.told)
    row = await row_of(shop, A)
    assert row.reason == Reason.SPAWN
    assert row.detail.endswith("No such file or directory")
    assert f"control group {ROOT}/launches/raftcron-" in row.detail
    assert not (shop.directory / "ran").exists()
    assert shop.groups() == []


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def test_a_dead_spawner_leaves_no_groups(shop: LimitedShop) -> None:
    shop.order(names=(B,))
    await shop.turns_until(lambda: (B, ENDED) in shop.ear.told)
    reaper = shop.executor_loop._children.pid
    spawner = child_of(reaper)
    os.kill(spawner, signal.SIGSTOP)  # so that it does not try to start anything
    await until(lambda: is_stopped(spawner))
    shop.order(names=(A,))
    await shop.turn()
    assert len(shop.groups()) == 1
    os.kill(reaper, signal.SIGKILL)  # the kernel kills the spawner with it
    await shop.turns_until(lambda: (A, INTERRUPTED) in shop.ear.told)
    assert shop.groups() == []
    assert shop.executor_loop.running == 0


async def test_before_anything_is_concluded_the_groups_of_the_last_executor_are_empty(
    shop: LimitedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def hangs_once(ledger: str, group: str) -> ControlGroups:
        asked.append(group)
        if len(asked) == 1:
            raise SurvivorsRemain("what is in a group is still there", "restart the host")
        return shop.limits

    monkeypatch.setattr(executor, "open_limits", hangs_once)
    monkeypatch.setattr(executor, "SURVIVORS_PAUSE_S", 0.001)
    with structlog.testing.capture_logs() as lines:
        got = await executor._cleared(shop.thread, shop.ledger, asyncio.Event(), "/a/group")
    assert got is shop.limits
    assert asked == ["/a/group", "/a/group"]
    assert [line["event"] for line in lines] == ["launches.survive", "limits.opened"]
    assert lines[1]["limits"] == shop.limits.description


async def test_limits_that_are_off_are_not_looked_for(
    shop: LimitedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(executor, "open_limits")
    got = await executor._cleared(shop.thread, shop.ledger, asyncio.Event(), "off")
    assert got is not None
    assert got.description.endswith("cgroup is off in the executor's configuration")


async def test_the_greeting_says_what_the_host_has(shop: LimitedShop) -> None:
    for room in (Capacity(1_500, 1 << 30, "", ""), UNLIMITED):
        visit = LeaderStream(shop.config, shop.executor_loop, "i", room=room)
        visit.begin([], Epoch())
        hello = visit._outgoing.get_nowait().hello
        assert (hello.cpu_milli, hello.memory_bytes) == (room.cpu_milli, room.memory_bytes)
        assert hello.host == socket.gethostname()
    named = msgspec.structs.replace(shop.config, host="node-7.example")
    visit = LeaderStream(named, shop.executor_loop, "i", room=UNLIMITED)
    visit.begin([], Epoch())
    assert visit._outgoing.get_nowait().hello.host == "node-7.example"


def test_what_a_group_measured_is_told_with_the_end(
    commands: CommandsRig, kernel: FakeCgroups
) -> None:
    group = group_of(commands, accepted(memory_bytes=64 << 20))
    kernel.nodes[group].files["memory.peak"] = str(5 << 20)
    kernel.nodes[group].files["cpu.stat"] = "usage_usec 1500"
    [one] = heard(commands, ended(exit_code=0))
    assert (one.cpu_ms, one.memory_peak_bytes) == (2, 5 << 20)
