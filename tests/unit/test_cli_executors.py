"""executors, executor drain and queue on the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result

from cron.api.executors import (
    DrainRequest,
    ExecutorDetail,
    ExecutorReport,
    ExecutorsReport,
    ExecutorView,
    GroupView,
)
from cron.api.launches import LaunchView
from cron.api.queues import QueueQuery, QueuesReport, QueueView, WaitQuery, WaitsReport
from cron.cli import executors
from cron.cli.executors import executors_with
from cron.cli.queues import waits_at
from cron.errors import NotFound, NotNow, UnknownJob
from launcher.executor import main
from launcher.worker.options import EXIT_APP, EXIT_OK
from tests.unit.api_rig import NOON_S, FakeBackend, run_cli, serving

NOON_MS = NOON_S * 1000
E1 = ExecutorView(
    id="e1",
    role="connected",
    host="h1",
    address="ipv4:10.0.0.7:41000",
    pid=77,
    version="0.2.0",
    slots=4,
    open=3,
    running=2,
    labels=["disk=ssd", "zone=eu"],
    groups=[GroupView(group="web", slots=8, handlers=["a", "b", "c", "d", "e"])],
    cpu_milli=2_500,
    memory_bytes=8 << 30,
    silent_ms=1_200,
    clock_offset_ms=-3,
    connected_since_ms=NOON_MS,
    gets_work=True,
    ledger="l1",
    incarnation="a1",
    joined_ms=NOON_MS,
    certificate_ends_ms=NOON_MS,
)
AWAY = ExecutorView(id="e2", role="in-doubt", host="h2", slots=4, note="not connected")


async def cli(backend: FakeBackend, *arguments: str) -> Result:
    async with serving(backend) as server:
        return await run_cli(*arguments, server=server)


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---- executors


async def test_executors_shows_how_full_each_is_and_what_it_serves():
    backend = FakeBackend(executors=ExecutorsReport(executors=[E1, AWAY]))
    lines = (await cli(backend, "executors")).stdout.splitlines()
    cells = [cell.strip() for cell in lines[1].split("  ") if cell]
    assert cells == [
        "e1", "h1", "0.2.0", "connected", "3/12", "command 4, web 8: a b c +2", "disk=ssd zone=eu",
        "2.5", "8G", "1.2s ago", "2026-11-20",
    ]  # fmt: skip
    assert lines[2].endswith("not connected")


@pytest.mark.parametrize("output", [[], ["-o", "json"]])
async def test_executors_shows_as_many_as_a_person_wants_and_says_how_many_are_left(output):
    backend = FakeBackend(executors=ExecutorsReport(executors=[E1, AWAY, AWAY]))
    whole = await cli(backend, "executors", *output)
    first = await cli(backend, "executors", "-n", "1", *output)
    heading = 0 if output else 1
    assert len(whole.stdout.splitlines()) == heading + 3
    assert len(first.stdout.splitlines()) == heading + 1
    assert (whole.stderr, first.stderr) == ("", "raftcron: 2 more; choose a higher --limit\n")


async def test_executors_for_programs():
    backend = FakeBackend(executors=ExecutorsReport(executors=[E1, AWAY]))
    first, second = rows(await cli(backend, "executors", "-o", "json"))
    assert first == {
        "id": "e1", "role": "connected", "host": "h1", "address": "ipv4:10.0.0.7:41000", "pid": 77,
        "version": "0.2.0", "slots": 4, "open": 3, "running": 2,
        "labels": {"disk": "ssd", "zone": "eu"},
        "groups": [
            {
                "group": "web", "slots": 8, "ahead": 0, "handlers": ["a", "b", "c", "d", "e"],
                "memory_limit": "",
            }
        ],
        "cpu_limit": "", "memory_limit": "",
        "cpu_milli": 2_500, "memory_bytes": 8 << 30, "silent_ms": 1_200, "clock_offset_ms": -3,
        "connected_since": "2026-11-20T15:00:00.000Z", "drained_by": None, "drained_at": None,
        "gets_work": True, "ledger": "l1", "note": None, "incarnation": "a1", "not_granted": [],
        "joined_at": "2026-11-20T15:00:00.000Z",
        "certificate_ends": "2026-11-20T15:00:00.000Z", "refused": None,
    }  # fmt: skip
    assert (second["silent_ms"], second["version"], second["gets_work"]) == (None, None, False)


async def test_a_label_may_hold_an_equals_sign():
    view = ExecutorView(id="e1", labels=["a=b=c"])
    backend = FakeBackend(executors=ExecutorsReport(executors=[view]))
    (row,) = rows(await cli(backend, "executors", "-o", "json"))
    assert row["labels"] == {"a": "b=c"}


async def test_no_executors_are_said_to_be_none():
    result = await cli(FakeBackend(executors=ExecutorsReport()), "executors")
    assert result.stdout == "no executors\n"


def test_one_that_is_drained_says_so_where_its_role_is():
    drained = ExecutorView(id="e1", role="connected", drained_by="ada")
    cells = executors_with([]).cells
    assert cells(drained)[3] == "draining"
    assert cells(ExecutorView(id="e1", role="in-doubt", drained_by="a"))[3] == "in-doubt"


# ---- executor drain


@pytest.fixture
def no_pause(monkeypatch):
    monkeypatch.setattr(executors, "_LOOK_S", 0.0)


def drained(open_: int = 0, **fields: Any) -> ExecutorView:
    usual = {"id": "e1", "role": "connected", "drained_by": "ada", "connected_since_ms": NOON_MS}
    return ExecutorView(**usual | {"open": open_} | fields)


def looks(*views: list[ExecutorView]) -> Any:
    """Answers of a leader, one after the other; the last for ever."""
    left = list(views)
    return lambda _: ExecutorsReport(executors=left.pop(0) if len(left) > 1 else left[0])


async def test_drain_says_how_much_is_left_to_finish():
    backend = FakeBackend(drain=drained(3))
    result = await cli(backend, "executor", "drain", "e1")
    assert result.stdout == "e1 gets no more work; 3 launches to finish\n"
    assert backend.calls == [("drain", (DrainRequest(executor="e1", by="ada"),))]
    (row,) = rows(await cli(backend, "executor", "drain", "e1", "-o", "json"))
    assert row == {"id": "e1", "drained": True, "open": 3, "has_left": False}


async def test_undrain_gives_work_again():
    backend = FakeBackend(drain=drained(drained_by=""))
    result = await cli(backend, "executor", "undrain", "e1")
    assert result.stdout == "e1 gets work again\n"
    assert backend.calls == [("drain", (DrainRequest(executor="e1", is_over=True, by="ada"),))]


async def test_drain_waits_until_it_has_left(no_pause):
    views = looks([drained(3), AWAY], [drained(1), AWAY], [drained(0)], [AWAY])
    note = "drained by ada, has left at 2026-11-20T15:00:00Z"
    gone = ExecutorReport(details=[ExecutorDetail(executor=drained(role="left", note=note))])
    backend = FakeBackend(drain=drained(3), executors=views, executor=gone)
    result = await cli(backend, "executor", "drain", "e1", "--wait")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == f"e1 has finished and left: {note}"
    assert result.stderr.splitlines() == [
        "raftcron: e1: 1 launch to finish",
        "raftcron: e1: nothing left to finish",
    ]
    unknown = NotFound("executor e1 does not exist")
    backend = FakeBackend(drain=drained(), executors=looks([]), executor=unknown)
    (row,) = rows(await cli(backend, "executor", "drain", "e1", "--wait", "-o", "json"))
    assert row["has_left"] is True


async def test_one_that_left_and_was_started_again_has_left(no_pause):
    back = drained(drained_by="", connected_since_ms=NOON_MS + 5_000)
    known = ExecutorReport(details=[ExecutorDetail(executor=back)])
    backend = FakeBackend(drain=drained(), executors=looks([drained()], [back]), executor=known)
    result = await cli(backend, "executor", "drain", "e1", "--wait")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "e1 has finished and left"


async def test_a_wait_ends_with_one_that_is_away_and_has_nothing_open(no_pause):
    """Its host was switched off: nobody comes who could be sent away, and nothing is finished."""
    views = looks([drained(2, role="in-doubt")], [drained(0, role="in-doubt")])
    backend = FakeBackend(drain=drained(2), executors=views)
    result = await cli(backend, "executor", "drain", "e1", "--wait")
    assert result.exit_code == 0
    assert result.stdout.endswith("e1 is not connected, and has nothing to finish any more\n")


async def test_a_wait_ends_when_somebody_undrains_it(no_pause):
    backend = FakeBackend(drain=drained(2), executors=looks([drained(2, drained_by="")]))
    result = await cli(backend, "executor", "drain", "e1", "--wait")
    assert result.exit_code == 4
    assert "was undrained meanwhile" in result.stderr


async def test_a_wait_has_its_bound(no_pause):
    backend = FakeBackend(drain=drained(2), executors=looks([drained(2)]))
    result = await cli(backend, "executor", "drain", "e1", "--wait", "--timeout", "2s")
    assert result.exit_code == 6
    assert "e1 has not left within 2 s" in result.stderr


@pytest.mark.parametrize("more", [[], ["--wait"]])
async def test_one_that_was_drained_and_has_left_already_is_as_wanted(more):
    """A script that is run again does not fail because the first run did what it was to do."""
    gone = drained(role="left", note="drained by ada, has left at 2026-11-20T15:00:00Z")
    result = await cli(FakeBackend(drain=gone), "executor", "drain", "e1", *more)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == (
        "e1 has left already: drained by ada, has left at 2026-11-20T15:00:00Z\n"
    )
    (row,) = rows(await cli(FakeBackend(drain=gone), "executor", "drain", "e1", "-o", "json"))
    assert row == {"id": "e1", "drained": True, "open": 0, "has_left": True}


async def test_an_executor_that_nobody_knows_ends_with_three():
    hint = "`raftcron executors` lists them"
    backend = FakeBackend(drain=NotFound("executor e7 does not exist", hint))
    result = await cli(backend, "executor", "drain", "e7", "--wait")
    assert result.exit_code == 3
    assert result.stderr == (
        "raftcron: executor e7 is not there: it has left already, or its id is misspelt\n"
        f"  hint: {hint}\n"
    )


@pytest.mark.parametrize("arguments", [["drain"], ["undrain"], ["drain", "a", "b"], []])
async def test_what_names_no_executor_is_a_usage_error(arguments):
    result = await cli(FakeBackend(), "executor", *arguments)
    assert result.exit_code == 2
    assert "Usage: raftcron executor" in result.stderr


@pytest.mark.parametrize(
    ("word", "said"),
    [("drian", "did you mean drain?"), ("undrian", "did you mean undrain?"), ("e3", "there are")],
)
async def test_a_misspelt_word_after_executor_is_told(word, said):
    result = await cli(FakeBackend(), "executor", word, "e3")
    assert result.exit_code == 2
    assert f"executor has no {word!r}" in result.stderr
    assert said in result.stderr


async def test_help_of_executor_names_both_ways():
    result = await run_cli("executor", "--help")
    for part in ("--config FILE", "drain ID", "undrain ID"):
        assert part in result.stdout
    assert "Usage: raftcron executor drain" in (await run_cli("executor", "drain", "-h")).stdout


async def test_help_lists_how_an_executor_and_a_worker_end():
    said = (await run_cli("executor", "--help")).stdout
    codes = [int(line.split()[0]) for line in said.splitlines() if line[:5].strip().isdigit()]
    assert codes == [0, main.CANNOT_RUN, main.BAD_INPUT, main.IN_USE]
    said = (await run_cli("worker", "--help")).stdout
    codes = [int(line.split()[0]) for line in said.splitlines() if line[:5].strip().isdigit()]
    assert codes == [EXIT_OK, 1, EXIT_APP]


@pytest.mark.parametrize("more", [[], ["--die-with-parent"], ["drain"], ["--data", "x"]])
async def test_an_executor_is_still_started_with_what_it_is_given(monkeypatch, more):
    """A file called drain, and options that only the executor knows, are passed on."""
    started: list[tuple[str, ...]] = []
    monkeypatch.setattr(executors, "become", lambda *arguments: started.append(arguments))
    result = await run_cli("executor", "--config", "e.toml", *more)
    assert result.exit_code == 0
    assert started == [("launcher.executor", "--config", "e.toml", *more)]


# ---- queue


QUEUES = QueuesReport(
    queues=[
        QueueView(pool="command", priority=5, tenant="acme", running=3),
        QueueView(
            pool="mail", tenant="acme", waiting=900, running=10, oldest_ms=NOON_MS - 61_000,
            blocked_by="tenant acme in pool mail",
        ),
    ],
    now_ms=NOON_MS,
)  # fmt: skip


async def test_queue_shows_depth_age_and_the_limit_that_is_reached():
    backend = FakeBackend(queues=QUEUES)
    result = await cli(backend, "queue", "--tenant", "acme", "--handler", "mail")
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["command", "5", "acme", "0", "3", "0", "-"]
    assert lines[2].split("  ")[-1].strip() == "the limit of tenant acme in pool mail is reached"
    assert lines[2].split()[:7] == ["mail", "0", "acme", "900", "10", "0", "1m01s"]
    assert backend.calls == [("queues", (QueueQuery(tenant="acme", pool="mail"),))]
    first, second = rows(await cli(backend, "queue", "-o", "json"))
    assert (first["oldest_at"], first["blocked_by"]) == (None, None)
    assert second["oldest_at"] == "2026-11-20T14:58:59.000Z"


LAUNCH = "default/mail@2026-11-20T15:00:00Z"
WAITS = WaitsReport(
    waits=[
        LaunchView(
            launch=LAUNCH, state="due", pool="mail", priority=2, tenant="default", ahead=0,
            due_at_ms=NOON_MS, deadline_at_ms=NOON_MS + 3_600_000, until_ms=NOON_MS + 60_000,
            waiting="the rate of pool mail is used up: 1 starts a second",
        ),
        LaunchView(
            launch="default/mail@2026-11-20T14:00:00Z", state="launched", pool="mail", priority=2,
            due_at_ms=NOON_MS, deadline_at_ms=NOON_MS, executor="e1",
        ),
    ],
    total=5,
    now_ms=NOON_MS + 30_000,
)  # fmt: skip


async def test_queue_of_a_job_shows_where_each_launch_stands_and_why_it_waits():
    backend = FakeBackend(waits=WAITS)
    result = await cli(backend, "queue", "mail", "--limit", "2")
    first, second = (
        [cell.strip() for cell in line.split("  ") if cell]
        for line in result.stdout.splitlines()[1:]
    )
    assert first == [
        "mail@2026-11-20T15:00:00Z", "due", "mail", "2", "0", "30s", "2026-11-20 16:00:00",
        "the rate of pool mail is used up: 1 starts a second (until 2026-11-20 15:01:00 UTC)",
    ]  # fmt: skip
    assert second[1:] == ["launched", "mail", "2", "-", "-", "2026-11-20 15:00:00", "on e1"]
    assert result.stderr == "raftcron: 3 more; choose a higher --limit\n"
    assert backend.calls == [("waits", (WaitQuery(job="default/mail", limit=2),))]


def test_an_end_that_is_in_the_reason_is_not_said_twice():
    text = "it rests until 2026-11-20T15:01:00Z: 1 of 2 tries have failed"
    view = LaunchView(launch=LAUNCH, waiting=text, until_ms=NOON_MS + 60_000)
    assert waits_at(NOON_MS).cells(view)[-1] == text


async def test_queue_of_a_launch_asks_for_that_one():
    backend = FakeBackend(waits=WAITS)
    first, _ = rows(await cli(backend, "queue", "mail@2026-11-20T15:00:00Z", "-o", "json"))
    assert backend.calls == [("waits", (WaitQuery(launch=LAUNCH, limit=50),))]
    assert (first["ahead"], first["until"]) == (0, "2026-11-20T15:01:00.000Z")
    assert first["waiting"].startswith("the rate of pool mail")


@pytest.mark.parametrize(
    ("error", "code"), [(UnknownJob("job a does not exist"), 3), (NotNow("it is over"), 4)]
)
async def test_queue_of_what_does_not_wait_says_so(error, code):
    assert (await cli(FakeBackend(waits=error), "queue", "a")).exit_code == code


@pytest.mark.parametrize(
    "arguments", [["a", "--tenant", "b"], ["a", "--pool", "b"], ["--pool", "a", "--handler", "b"]]
)
async def test_queue_refuses_what_is_said_twice(arguments):
    backend = FakeBackend()
    assert (await cli(backend, "queue", *arguments)).exit_code == 2
    assert backend.calls == []


async def test_nothing_waits():
    assert (await cli(FakeBackend(queues=QueuesReport()), "queue")).stdout == (
        "nothing waits, nothing runs\n"
    )
