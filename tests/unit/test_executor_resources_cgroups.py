"""Limits of launches by cgroup v2: when they can be set, and why not otherwise."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.executor.commands import cgroups
from launcher.executor.commands.cgroups import (
    CONTROLLERS,
    ControlGroups,
    Files,
    Usage,
    clear,
    open_limits,
)
from launcher.executor.commands.output import stem_of
from launcher.executor.commands.trees import SurvivorsRemain
from launcher.executor.resources import V2, Group, join_group, own_groups
from tests.unit.cgroup_rig import ROOT, FakeCgroups

LEDGER = "01234567-89ab-cdef-0123-456789abcdef"
SERVICE = f"{ROOT}/executor.service"
HOME = f"{SERVICE}/raftcron-0123456789ab"
LEAF = f"{SERVICE}/raftcron-executor-0123456789ab"
NAME = "default/backup@2026-11-20T15:00:00Z#1"
LAUNCH = f"{HOME}/launch-{stem_of(NAME)}"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> FakeCgroups:
    """A host where the executor is alone in a group that was delegated to it."""
    fake = FakeCgroups()
    fake.delegate(SERVICE, fake.me)
    groups = {V2: Group(Path(ROOT), Path(SERVICE))}
    monkeypatch.setattr(cgroups, "own_groups", lambda: groups)
    return fake


def opened(kernel: FakeCgroups, group: str = "") -> ControlGroups:
    return open_limits(LEDGER, group, kernel, wait_ms=0)


# ---- whether limits can be set


def test_alone_in_its_group_the_executor_moves_down_and_can_set_limits(
    kernel: FakeCgroups,
) -> None:
    limits = opened(kernel)
    assert limits.controllers == CONTROLLERS
    assert limits.description == f"cpu and memory are limited by {HOME}"
    assert kernel.nodes[LEAF].pids == {kernel.me}
    assert kernel.nodes[HOME].below == {"cpu", "memory"}


def test_opened_again_it_is_as_before(kernel: FakeCgroups) -> None:
    opened(kernel)
    assert opened(kernel).controllers == CONTROLLERS
    assert kernel.nodes[LEAF].pids == {kernel.me}


def test_with_others_in_its_group_nobody_is_moved_and_nothing_limited(kernel: FakeCgroups) -> None:
    kernel.move(7, SERVICE)
    limits = opened(kernel)
    assert limits.controllers != CONTROLLERS
    assert limits.description == (
        f"neither cpu nor memory is limited: other processes are in {SERVICE}; "
        "give it a control group of its own (systemd: Delegate=yes)"
    )
    assert kernel.nodes[SERVICE].pids == {7, kernel.me}
    assert set(kernel.nodes) == {ROOT, SERVICE}


def test_a_group_that_is_named_is_taken_and_the_executor_stays_where_it_is(
    kernel: FakeCgroups,
) -> None:
    kernel.delegate(f"{ROOT}/launches")
    limits = opened(kernel, f"{ROOT}/launches")
    assert limits.controllers == CONTROLLERS
    assert limits.home.startswith(f"{ROOT}/launches/raftcron-")
    assert kernel.nodes[SERVICE].pids == {kernel.me}


def test_a_named_group_that_is_not_there_or_not_empty_gives_no_limits(kernel: FakeCgroups) -> None:
    assert f"{ROOT}/none" in opened(kernel, f"{ROOT}/none").reason
    kernel.delegate(f"{ROOT}/busy", 7)
    assert opened(kernel, f"{ROOT}/busy").reason.startswith(f"other processes are in {ROOT}/busy")


def test_a_read_only_hierarchy_gives_no_limits(kernel: FakeCgroups) -> None:
    kernel.read_only = True
    limits = opened(kernel)
    assert limits.description.startswith(
        f"neither cpu nor memory is limited: {HOME}: Read-only file system; give it a control"
    )
    assert limits.enter(NAME, 500, 1 << 20) is None
    assert limits.problem == ""
    limits.close()


def test_a_host_without_cgroup_v2_gives_no_limits(
    kernel: FakeCgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "own_groups", dict)
    limits = opened(kernel)
    assert limits.description == "neither cpu nor memory is limited: there is no cgroup v2 here"


def test_a_host_with_controllers_in_v1_gives_no_limits(kernel: FakeCgroups) -> None:
    kernel.nodes[SERVICE].controllers = {"hugetlb"}
    limits = opened(kernel)
    assert limits.reason == f"{SERVICE} has neither cpu nor memory as a controller"
    assert set(kernel.nodes) == {ROOT, SERVICE}


def test_what_can_be_limited_is(kernel: FakeCgroups) -> None:
    kernel.nodes[SERVICE].controllers = {"memory"}
    limits = opened(kernel)
    assert limits.controllers != CONTROLLERS
    assert (
        limits.description == f"only memory is limited, by {HOME}: {SERVICE} has no controller cpu"
    )
    assert limits.enter(NAME, 500, 0) is None
    assert limits.enter(NAME, 500, 1 << 20) == LAUNCH
    assert "cpu.max" not in kernel.nodes[LAUNCH].files


# ---- one launch


def test_a_launch_gets_its_limits_before_anything_is_in_its_group(kernel: FakeCgroups) -> None:
    limits = opened(kernel)
    assert limits.enter(NAME, 1500, 64 << 20) == LAUNCH
    assert kernel.nodes[LAUNCH].files == {
        "cpu.max": "150000 100000",
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
    }
    assert limits.problem == ""


def test_a_launch_without_limits_costs_no_group(kernel: FakeCgroups) -> None:
    assert opened(kernel).enter(NAME, 0, 0) is None
    assert kernel.groups(HOME) == []


def test_less_cpu_than_the_kernel_knows_is_the_least_it_knows(kernel: FakeCgroups) -> None:
    path = opened(kernel).enter(NAME, 1, 0)
    assert path is not None
    assert kernel.nodes[path].files == {"cpu.max": "1000 100000"}


def test_a_kernel_without_swap_accounting_limits_memory_all_the_same(kernel: FakeCgroups) -> None:
    kernel.swap = False
    assert opened(kernel).enter(NAME, 0, 1 << 20) == LAUNCH
    assert kernel.nodes[LAUNCH].files["memory.max"] == str(1 << 20)


def test_where_no_group_can_be_made_the_launch_runs_without_and_it_is_said(
    kernel: FakeCgroups,
) -> None:
    limits = opened(kernel)
    kernel.full = True
    assert limits.enter(NAME, 0, 1 << 20) is None
    assert limits.problem == f"{LAUNCH}: Resource temporarily unavailable"
    kernel.full = False
    assert limits.enter(NAME, 0, 1 << 20) == LAUNCH
    assert limits.problem == ""


def test_what_was_used_is_told_and_the_group_goes(kernel: FakeCgroups) -> None:
    limits = opened(kernel)
    limits.enter(NAME, 0, 1 << 20)
    kernel.nodes[LAUNCH].files |= {
        "memory.events": "low 0\nhigh 0\nmax 12\noom 1\noom_kill 2\noom_group_kill 1\n",
        "memory.peak": "1048576\n",
        "cpu.stat": "usage_usec 1234\nuser_usec 1000\nsystem_usec 234\n",
    }
    assert limits.left(LAUNCH) == Usage(oom_killed=True, memory_peak=1 << 20, cpu_usec=1234)
    assert LAUNCH not in kernel.nodes
    assert limits.left(LAUNCH) == Usage()


def test_killed_for_want_of_memory_on_the_host_is_not_over_its_own_limit(
    kernel: FakeCgroups,
) -> None:
    limits = opened(kernel)
    limits.enter(NAME, 0, 1 << 20)
    kernel.nodes[LAUNCH].files["memory.events"] = "max 0\noom 0\noom_kill 1\n"
    assert not limits.left(LAUNCH).oom_killed


def test_what_a_launch_left_behind_is_killed(kernel: FakeCgroups) -> None:
    # It made a session of its own: the spawner's kill of the process group does not reach it.
    limits = opened(kernel)
    limits.enter(NAME, 0, 1 << 20)
    kernel.add(f"{LAUNCH}/inner", 8)
    kernel.move(9, LAUNCH)
    limits.left(LAUNCH)
    assert sorted(kernel.killed) == [8, 9]
    assert kernel.groups(HOME) == []


def test_a_group_that_is_not_empty_yet_goes_later(kernel: FakeCgroups) -> None:
    limits = opened(kernel)
    limits.enter(NAME, 0, 1 << 20)
    kernel.move(9, LAUNCH)
    kernel.hangs = {9}
    limits.left(LAUNCH)
    assert LAUNCH in kernel.nodes
    kernel.hangs = set()
    other = limits.enter("default/other@2026-11-20T15:00:00Z#1", 0, 1 << 20)
    assert kernel.groups(HOME) == [other]


def test_at_the_end_nothing_is_left(kernel: FakeCgroups) -> None:
    limits = opened(kernel)
    limits.enter(NAME, 0, 1 << 20)
    kernel.move(9, LAUNCH)
    limits.close()
    assert kernel.killed == [9]
    assert HOME not in kernel.nodes


# ---- after a crash


def test_what_an_executor_left_is_killed_by_the_next_one(kernel: FakeCgroups) -> None:
    opened(kernel).enter(NAME, 0, 1 << 20)
    kernel.move(9, LAUNCH)
    kernel.add(f"{SERVICE}/raftcron-another", 50)
    opened(kernel)
    assert kernel.killed == [9]
    assert kernel.groups(HOME) == []


def test_what_does_not_die_keeps_the_executor_waiting(kernel: FakeCgroups) -> None:
    opened(kernel).enter(NAME, 0, 1 << 20)
    kernel.move(9, LAUNCH)
    kernel.hangs = {9}
    with pytest.raises(SurvivorsRemain, match=f"still there: what is in {LAUNCH}"):
        opened(kernel)
    kernel.hangs = set()
    assert opened(kernel).controllers == CONTROLLERS


def test_a_kernel_without_cgroup_kill_is_served_by_signals(kernel: FakeCgroups) -> None:
    limits = opened(kernel)
    limits.enter(NAME, 0, 1 << 20)
    with subprocess.Popen(["sleep", "60"]) as child:
        # Of a process that cannot be seen from here the kernel says 0.
        kernel.nodes[LAUNCH].pids = {0, child.pid}
        kernel.kill = False
        limits.left(LAUNCH)
        assert child.wait(60) == -9


# ---- a real kernel


@pytest.fixture
def real_group() -> Iterator[str]:
    """A group of cgroup v2 that this test made."""
    groups = own_groups()
    if V2 not in groups:
        pytest.skip("no cgroup v2 is mounted")
    path = groups[V2].mount / f"raftcron-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"cgroup v2 cannot be written: {error}")
    yield str(path)
    clear(str(path), Files(), 5_000)
    path.rmdir()


def test_the_kernel_kills_what_is_in_a_group_also_in_other_sessions(real_group: str) -> None:
    files = Files()
    group = f"{real_group}/launch-x"
    files.mkdir(group)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as child:
        join_group(group, child.pid)
        assert files.read(f"{group}/cgroup.procs").split() == [str(child.pid)]
        clear(real_group, files, 5_000)
        assert child.wait(60) == -9
    assert files.groups(real_group) == []


def test_the_kernel_ends_a_command_that_takes_more_memory_than_it_may(real_group: str) -> None:
    limits = open_limits(LEDGER, real_group)
    if "memory" not in limits.controllers:
        pytest.skip(limits.description)
    path = limits.enter(NAME, 0, 32 << 20)
    assert path is not None
    command = 'echo 0 > "$0/cgroup.procs"; exec tail /dev/zero'
    done = subprocess.run(["sh", "-c", command, path], check=False, timeout=200)
    assert done.returncode == -9
    usage = limits.left(path)
    assert usage.oom_killed
    assert usage.memory_peak <= 32 << 20
    limits.close()
