"""executors ID: all that is known of one; and who was refused since another has its id."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from click.testing import Result

from cron.api.executors import (
    DuplicateIdView,
    ExecutorDetail,
    ExecutorQuery,
    ExecutorReport,
    ExecutorsReport,
    ExecutorView,
    GroupView,
)
from cron.api.launches import LaunchView
from cron.errors import NotFound
from tests.unit.api_rig import NOON_S, FakeBackend, run_cli, serving
from tests.unit.test_cli_executors import AWAY, E1

NOON_MS = NOON_S * 1000
RUNS = [
    LaunchView(
        launch="default/mail@2026-11-20T15:00:00Z", attempt=1, state="launched", pool="a",
        begun_at_ms=NOON_MS, started_at_ms=NOON_MS + 1_000,
    ),
    LaunchView(
        launch="acme/sync@2026-11-20T15:00:00Z", attempt=2, part=3, state="begun", pool="command",
        begun_at_ms=NOON_MS + 2_000, reason="killed",
    ),
]  # fmt: skip
DUPLICATE_ID = DuplicateIdView(
    executor="e1", host="h8", pid=77, address="10.0.0.8:5", held_by="host h1 pid 7",
    ago_ms=12_000, times=4,
)  # fmt: skip


def group_open(count: int) -> ExecutorView:
    group = msgspec.structs.replace(E1.groups[0], open=count)
    return msgspec.structs.replace(E1, groups=[group])


def report(**fields: Any) -> ExecutorReport:
    detail = ExecutorDetail(executor=group_open(2), commands=1, runs=RUNS)
    usual: dict[str, Any] = {"details": [detail], "now_ms": NOON_MS + 61_000}
    return ExecutorReport(**usual | fields)


async def cli(backend: FakeBackend, *arguments: str) -> Result:
    async with serving(backend) as server:
        return await run_cli("executors", *arguments, server=server)


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


async def test_one_executor_is_shown_line_by_line_with_what_runs_there() -> None:
    backend = FakeBackend(executor=report())
    result = await cli(backend, "e1", "--limit", "2")
    assert result.exit_code == 0, result.stderr
    title, *lines = result.stdout.splitlines()
    assert title == "e1"
    said = dict(line.strip().split("  ", 1) for line in lines if line.startswith("  "))
    assert {name: value.strip() for name, value in said.items()} == {
        "role": "connected",
        "host": "h1",
        "address": "ipv4:10.0.0.7:41000",
        "pid": "77",
        "version": "0.2.0",
        "labels": "disk=ssd zone=eu",
        "ledger": "l1",
        "incarnation": "a1",
        "connected since": "2026-11-20 15:00:00 UTC",
        "joined": "2026-11-20 15:00:00 UTC",
        "heard": "1.2s ago",
        "clock": "3ms behind the leader's",
        "certificate ends": "2026-11-20 15:00:00 UTC",
        "cpu": "2.5",
        "memory": "8G",
        "commands": "1 of 4 slots",
        "group web": "2 of 8 slots: a b c d e",
        "open": "3, and it says that it runs 2",
    }
    first, second = lines[-2:]
    assert first.split() == [
        "mail@2026-11-20T15:00:00Z", "launched", "a", "2026-11-20", "15:00:00", "1m00s",
    ]  # fmt: skip
    assert second.split()[:3] == ["acme/sync@2026-11-20T15:00:00Z#2/3", "begun", "command"]
    assert second.split("59s")[1].strip() == "is being killed"
    assert result.stderr == "raftcron: 1 more; choose a higher --limit\n"
    assert backend.calls == [("executor", (ExecutorQuery(executor="e1", limit=2),))]


async def test_launches_beyond_the_slots_are_shown_as_waiting() -> None:
    details = [ExecutorDetail(executor=group_open(9), commands=71, runs=RUNS)]
    shown = (await cli(FakeBackend(executor=report(details=details)), "e1")).stdout
    assert "4 of 4 slots, 67 more wait\n" in shown
    assert "8 of 8 slots, 1 more wait: a b c d e" in shown
    busy = ExecutorsReport(executors=[msgspec.structs.replace(E1, open=80)])
    listed = (await cli(FakeBackend(executors=busy))).stdout
    assert "12/12 +68" in listed


async def test_one_executor_for_programs() -> None:
    (row,) = rows(
        await cli(FakeBackend(executor=report(duplicate_ids=[DUPLICATE_ID])), "e1", "-o", "json")
    )
    assert (row["id"], row["incarnation"], row["commands_open"]) == ("e1", "a1", 1)
    assert [(group["group"], group["open"]) for group in row["groups"]] == [("web", 2)]
    assert row["runs"][0] == {
        "launch": "default/mail@2026-11-20T15:00:00Z", "attempt": 1, "part": None,
        "state": "launched", "pool": "a", "begun_at": "2026-11-20T15:00:00.000Z",
        "started_at": "2026-11-20T15:00:01.000Z", "is_cancelled": False,
    }  # fmt: skip
    assert (row["runs"][1]["part"], row["runs"][1]["started_at"]) == (3, None)
    assert row["refused"] == {
        "host": "h8", "pid": 77, "address": "10.0.0.8:5", "held_by": "host h1 pid 7",
        "ago_ms": 12_000, "times": 4,
    }  # fmt: skip


async def test_a_drained_one_says_by_whom_and_since_when() -> None:
    view = msgspec.structs.replace(
        AWAY, drained_by="ada", drained_ms=NOON_MS, clock_offset_ms=2_000
    )
    one = report(details=[ExecutorDetail(executor=view)])
    said = (await cli(FakeBackend(executor=one), "e2")).stdout
    assert "by ada since 2026-11-20 15:00:00 UTC, 1m01s ago" in said
    assert "in-doubt, gets no work" in said
    assert "2s ahead of the leader's" in said


async def test_one_with_two_ledgers_is_shown_twice() -> None:
    two = report(details=[ExecutorDetail(executor=E1), ExecutorDetail(executor=AWAY)])
    assert len(rows(await cli(FakeBackend(executor=two), "e1", "-o", "json"))) == 2


async def test_an_executor_that_nobody_knows_ends_with_three() -> None:
    assert (await cli(FakeBackend(executor=NotFound("none")), "e7")).exit_code == 3


@pytest.mark.parametrize("arguments", [[""], ["e1", "e2"], ["../e1"], ["e1", "--limit", "0"]])
async def test_what_names_no_executor_is_a_usage_error(arguments: list[str]) -> None:
    backend = FakeBackend(executor=report())
    assert (await cli(backend, *arguments)).exit_code == 2
    assert backend.calls == []


async def test_the_list_marks_an_id_that_two_have_and_says_who_was_refused() -> None:
    backend = FakeBackend(
        executors=ExecutorsReport(executors=[E1, AWAY], duplicate_ids=[DUPLICATE_ID])
    )
    _, first, second, said = (await cli(backend)).stdout.splitlines()
    assert first.split()[:2] == ["e1", "!"]
    assert second.split()[:2] == ["e2", "h2"]
    assert said == "! e1: h8 (pid 77) was refused 12s ago: it has the same id"
    first_row, second_row = rows(await cli(backend, "-o", "json"))
    assert (first_row["refused"]["pid"], second_row["refused"]) == (77, None)


async def test_one_alone_says_who_was_refused() -> None:
    result = await cli(FakeBackend(executor=report(duplicate_ids=[DUPLICATE_ID])), "e1")
    assert result.stdout.endswith("! e1: h8 (pid 77) was refused 12s ago: it has the same id\n")


async def test_how_limits_are_held_is_said_of_commands_and_of_each_group() -> None:
    group = GroupView(group="web", slots=4, handlers=["a"], open=6, ahead=90, memory_limit="none")
    view = msgspec.structs.replace(
        E1, groups=[group], cpu_limit="none", memory_limit="watched", open=6
    )
    backend = FakeBackend(
        executor=report(details=[ExecutorDetail(executor=view)]),
        executors=ExecutorsReport(executors=[view]),
    )
    lines = (await cli(backend, "e1")).stdout.splitlines()
    said = dict(line.strip().split("  ", 1) for line in lines if line.startswith("  "))
    assert said["group web"].strip() == "4 of 4 slots, 2 more wait: a"
    assert said["limits"].strip() == (
        "memory of commands is looked at each second, and a launch above its limit is killed; "
        "memory of web is not held: it counts only where a launch is placed; "
        "cpu of commands is not held: it counts only where a launch is placed"
    )
    listed = (await cli(backend)).stdout
    assert "2.5 (not held)" in listed
    assert "8G (watched)" in listed
    assert "6/8" in listed
