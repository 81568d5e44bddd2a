"""What people ask of the pool, from the client through gRPC to the daemon and back."""

from __future__ import annotations

from typing import Any

import pytest

from cron.api import dead, executors, gates, queues
from cron.api import limits as api_limits
from cron.api.checks import checked
from cron.api.client import Client
from cron.api.dead import DeadChange, DeadOutcome, DeadQuery, DeadReport
from cron.api.executors import (
    DrainRequest,
    DuplicateIdView,
    ExecutorDetail,
    ExecutorGrantsReport,
    ExecutorGrantView,
    ExecutorQuery,
    ExecutorReport,
    ExecutorsReport,
    ExecutorView,
    GroupView,
)
from cron.api.gates import GateOpening, GateRequest, GatesReport, GateView
from cron.api.launches import LaunchView
from cron.api.limits import LimitChange, LimitRemoval, LimitsReport, LimitView
from cron.api.queues import QueueQuery, QueuesReport, QueueView, WaitQuery, WaitsReport
from cron.errors import InvalidInput, LimitExceeded, NotFound, OutcomeUnknown
from tests.unit.api_rig import FakeBackend, asks, call, in_thread, serving

LAUNCH = "default/mail@2026-11-20T15:00:00Z"


async def ask(backend: FakeBackend, method: str, *given: Any) -> Any:
    async with serving(backend) as server:
        with Client([server]) as client:
            return await in_thread(call, client, method, *given)


CALLS = [
    (
        "set_limit",
        (LimitChange(tenant="*", pool="mail", concurrent=0, rate_milli=1_500, by="ada"),),
        None,
        LimitView(tenant="*", pool="mail", rate_milli=1_500, notes=["nobody has it"]),
    ),
    (
        "remove_limit",
        (LimitRemoval(pool="mail", priority=0),),
        None,
        LimitView(pool="mail", priority=0, waiting_max=7),
    ),
    ("limits", (), None, LimitsReport(limits=[LimitView(tenant="a", weight=2)])),
    (
        "close_gate",
        (GateRequest(action="drop", jobs="b*", reason="späť", until_ms=5),),
        (
            GateRequest(action="drop", jobs="default/b*", reason="späť", until_ms=5),
        ),
        GateView(number=3, priority=0, notes=["nobody", "has it"]),
    ),
    (
        "open_gates",
        (GateOpening(numbers=[9, 3, 9], by="ada"),),
        (GateOpening(numbers=[3, 9], by="ada"),),
        GatesReport(gates=[GateView(number=3)], unknown=[9]),
    ),
    ("gates", (), None, GatesReport()),
    (
        "dead",
        (DeadQuery(jobs="*", reason="raised", limit=7),),
        (DeadQuery(jobs="*/*", reason="raised", limit=7),),
        DeadReport(letters=[LaunchView(launch=LAUNCH, exit_code=0)], total=9),
    ),
    (
        "redrive",
        (DeadChange(query=DeadQuery(launch="mail@2026-11-20T15:00:00Z"), by="ada"),),
        (DeadChange(query=DeadQuery(launch=LAUNCH), by="ada"),),
        DeadOutcome(launches=[LAUNCH], left=3),
    ),
    (
        "drop_dead",
        (DeadChange(query=DeadQuery(pool="mail"), is_dry_run=True),),
        None,
        DeadOutcome(kept=["x: y"], is_dry_run=True),
    ),
    (
        "executors",
        (),
        None,
        ExecutorsReport(
            executors=[
                ExecutorView(
                    id="e1",
                    labels=["zone=eu"],
                    groups=[GroupView(group="web", slots=8, handlers=["a", "b"])],
                    silent_ms=0,
                )
            ],
            duplicate_ids=[DuplicateIdView(executor="e1", host="h8", pid=77, ago_ms=12)],
        ),
    ),
    (
        "executor",
        (ExecutorQuery(executor="e1", limit=7),),
        None,
        ExecutorReport(
            details=[
                ExecutorDetail(
                    executor=ExecutorView(id="e1", clock_offset_ms=0),
                    runs=[LaunchView(launch=LAUNCH, part=2)],
                )
            ],
            now_ms=8,
        ),
    ),
    ("drain", (DrainRequest(executor="e1", is_over=True),), None, ExecutorView(id="e1")),
    (
        "executor_grants",
        (),
        None,
        ExecutorGrantsReport(grants=[ExecutorGrantView(executor="e1", pools=["mail"])]),
    ),
    (
        "queues",
        (QueueQuery(tenant="acme"),),
        None,
        QueuesReport(queues=[QueueView(pool="mail", priority=3, waiting=4)], now_ms=8),
    ),
    (
        "waits",
        (WaitQuery(job="mail"),),
        (WaitQuery(job="default/mail"),),
        WaitsReport(waits=[LaunchView(launch=LAUNCH, ahead=0)], total=1),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "given", "reaches", "answer"), CALLS, ids=[row[0] for row in CALLS]
)
async def test_each_call_reaches_the_daemon_checked_and_comes_back(method, given, reaches, answer):
    backend = FakeBackend(**{method: answer})
    assert await ask(backend, method, *given) == answer
    assert backend.calls == [(method, (asks(method, *(reaches or given)),))]


def test_every_call_about_the_pool_is_tried_here():
    nouns = (dead, executors, gates, api_limits, queues)
    wanted = {name for noun in nouns for name in vars(noun) if name.endswith(("Report", "Outcome"))}
    answered = {type(row[3]).__name__ for row in CALLS}
    assert wanted <= answered


@pytest.mark.parametrize(
    ("method", "given"), [(row[0], row[1]) for row in CALLS], ids=[row[0] for row in CALLS]
)
async def test_a_refusal_comes_back_as_it_was(method, given):
    backend = FakeBackend(**{method: NotFound("there is no such thing", "look elsewhere")})
    with pytest.raises(NotFound, match="there is no such thing") as refused:
        await ask(backend, method, *given)
    assert refused.value.hint == "look elsewhere"


@pytest.mark.parametrize(
    ("method", "given", "is_repeated"),
    [
        ("set_limit", LimitChange(pool="m", weight=1), True),
        ("drain", DrainRequest(executor="e1"), True),
        ("redrive", DeadChange(query=DeadQuery(), is_dry_run=True), True),
        ("redrive", DeadChange(query=DeadQuery(), is_everything=True), False),
        ("drop_dead", DeadChange(query=DeadQuery(tenant="a")), False),
        ("close_gate", GateRequest(pool="m"), False),
    ],
)
async def test_only_what_is_the_same_twice_is_asked_again_by_itself(method, given, is_repeated):
    """A gate that is closed twice has two numbers; letters that died meanwhile were not meant."""
    whole = next(row[3] for row in CALLS if row[0] == method)
    answers = iter([OutcomeUnknown("the leader changed"), whole])
    backend = FakeBackend(**{method: lambda _request: next(answers)})
    if is_repeated:
        assert await ask(backend, method, given) == whole
    else:
        with pytest.raises(OutcomeUnknown):
            await ask(backend, method, given)
    assert len(backend.calls) == 1 + is_repeated


# ---- what is refused before it gets anywhere


def refused(request: Any) -> InvalidInput | LimitExceeded:
    with pytest.raises((InvalidInput, LimitExceeded)) as found:
        checked(request)
    return found.value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (LimitChange(tenant="a"), "nothing is to be limited"),
        (LimitChange(tenant="a/b", weight=1), "tenant 'a/b' is not a plain word"),
        (LimitChange(tenant="**", weight=1), "tenant '**' is not a plain word"),
        (LimitChange(pool="*", weight=1), "pool '*' is not a plain word"),
        (LimitChange(priority=10, weight=1), "priority 10 is not in 0 to 9"),
        (LimitChange(priority=-2, weight=1), "priority -2 is not in 0 to 9"),
        (LimitChange(tenant="a", priority=3, weight=1), "no limit for a priority of all pools"),
        (LimitChange(pool="m", concurrent=-1), "concurrent -1 is below 0"),
        (LimitChange(pool="m", concurrent=10**9 + 1), "concurrent 1000000001 is above"),
        (LimitChange(pool="m", rate_milli=10**12 + 1), "rate-milli 1000000000001 is above"),
        (LimitChange(tenant="m", weight=10_001), "weight 10001 is above 10000"),
        (LimitChange(pool="m", weight=1, by="x" * 201), "name of who asks has 201"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(change, message):
    assert message in str(refused(change))


def test_the_largest_numbers_are_taken():
    change = LimitChange(tenant="a", pool="m", priority=9, concurrent=10**9, rate_milli=10**12)
    assert checked(change) == change


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GateRequest(), "gate names nothing"),
        (GateRequest(tenant="a", is_everything=True), "names something and everything"),
        (GateRequest(tenant="a", action="stop"), "action 'stop' is neither pause nor drop"),
        (GateRequest(jobs="a b"), "pattern 'a b' is not one of job names"),
        (GateRequest(jobs="x" * 400), "is not one of job names"),
        (GateRequest(collection="a b"), "collection 'a b' is not a plain word"),
        (GateRequest(tenant="a", reason="x" * 501), "reason has 501 characters"),
        (GateRequest(tenant="a", reason="a\nb"), "reason has characters that cannot be printed"),
        (GateRequest(tenant="a", until_ms=-1), "until -1 ms"),
        (GateRequest(priority=11), "priority 11 is not in 0 to 9"),
    ],
)
def test_a_gate_that_cannot_be_is_refused(request_, message):
    assert message in str(refused(request_))


def test_a_gate_for_everything_is_one_that_says_so():
    request = GateRequest(is_everything=True)
    assert checked(request) == request
    assert checked(GateRequest(priority=0)).priority == 0


@pytest.mark.parametrize(
    ("numbers", "message"),
    [([], "number of gates 0 is below 1"), ([0], "gate 0 is below 1"), ([1] * 1001, "is above")],
)
def test_gates_to_open_are_numbers_and_not_too_many(numbers, message):
    opening = GateOpening(numbers=numbers)
    assert message in str(refused(opening))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (DeadQuery(launch="mail"), "is not a launch name"),
        (DeadQuery(launch=f"{LAUNCH}#2"), "names an attempt"),
        (DeadQuery(reason="bored"), "there is no reason 'bored'"),
        (DeadQuery(reason="due"), "there is no reason 'due'"),
        (DeadQuery(limit=0), "limit 0 is below 1"),
        (DeadQuery(limit=10_001), "limit 10001 is above 10000"),
        (DeadQuery(tenant="a b"), "tenant 'a b' is not"),
        (DeadQuery(since_ms=-5), "since -5 ms"),
    ],
)
def test_a_query_of_dead_letters_that_cannot_be_is_refused(query, message):
    assert message in str(refused(query))
    change = DeadChange(query=query)
    assert message in str(refused(change))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "dead letters to change name nothing"),
        ({"query": DeadQuery(limit=5, is_newest=True)}, "name nothing"),
        ({"query": DeadQuery(tenant="a"), "is_everything": True}, "something and everything"),
        (
            {"query": DeadQuery(until_ms=5), "is_everything": True, "is_dry_run": True},
            "something and everything",
        ),
    ],
)
def test_to_change_all_dead_letters_takes_so_many_words(fields, message):
    """A filter that a script made of nothing at all must not forget all letters of everybody."""
    change = DeadChange(**{"query": DeadQuery()} | fields)
    error = refused(change)
    assert message in str(error)
    assert "--all" in error.hint


@pytest.mark.parametrize(
    "change",
    [
        DeadChange(query=DeadQuery(), is_everything=True, by="ada"),
        DeadChange(query=DeadQuery(), is_dry_run=True),
        DeadChange(query=DeadQuery(), is_dry_run=True, is_everything=True),
        *(
            DeadChange(query=query)
            for query in (
                DeadQuery(launch=LAUNCH), DeadQuery(jobs="*/*"), DeadQuery(tenant="a"),
                DeadQuery(pool="m"), DeadQuery(reason="lost"), DeadQuery(since_ms=1),
                DeadQuery(until_ms=1),
            )
        ),
    ],
)  # fmt: skip
def test_a_change_of_dead_letters_that_says_which_ones_is_taken_as_it_is(change):
    assert checked(change) == change


@pytest.mark.parametrize("reason", ["fatal", "raised", "worker-died", "failed", "lost", "deadline"])
def test_reasons_are_those_of_launches_and_the_states_they_end_in(reason):
    assert dead.reason(reason) == reason


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (DrainRequest(executor=""), "executor '' is not an id"),
        (DrainRequest(executor="a b"), "executor 'a b' is not an id"),
        (QueueQuery(tenant="*"), "tenant '*' is not a plain word"),
        (WaitQuery(), "one of them only"),
        (WaitQuery(job="a", launch=LAUNCH), "one of them only"),
        (WaitQuery(job="a b"), "is not one of job names"),
        (WaitQuery(job="a", limit=1_001), "limit 1001 is above 1000"),
        (LimitRemoval(tenant="a", priority=1), "priority of all"),
    ],
)
def test_what_else_cannot_be_is_refused(request_, message):
    assert message in str(refused(request_))
