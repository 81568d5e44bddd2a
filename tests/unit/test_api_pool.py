"""What people ask of the pool, from the client through gRPC to the daemon and back."""

from __future__ import annotations

from typing import Any

import pytest

from cron.api import pool_requests as requests
from cron.api import pool_views as pv
from cron.api.client import Client
from cron.api.translate import to_message
from cron.errors import InvalidInput, LimitExceeded, NotFound, OutcomeUnknown
from tests.unit.api_rig import FakeBackend, in_thread, serving

LAUNCH = "default/mail@2026-11-20T15:00:00Z"


async def ask(backend: FakeBackend, method: str, *given: Any) -> Any:
    async with serving(backend) as server:
        with Client([server]) as client:
            return await in_thread(getattr(client, method), *given)


CALLS = [
    (
        "set_limit",
        (pv.LimitChange(tenant="*", pool="mail", concurrent=0, rate_milli=1_500, by="ada"),),
        None,
        pv.LimitView(tenant="*", pool="mail", rate_milli=1_500, notes=["nobody has it"]),
    ),
    (
        "remove_limit",
        (pv.LimitRemoval(pool="mail", priority=0),),
        None,
        pv.LimitView(pool="mail", priority=0, waiting_max=7),
    ),
    ("limits", (), None, pv.LimitsReport(limits=[pv.LimitView(tenant="a", weight=2)])),
    (
        "close_gate",
        (pv.GateRequest(action="drop", jobs="b*", reason="späť", until_ms=5),),
        (
            pv.GateRequest(action="drop", jobs="default/b*", reason="späť", until_ms=5),
        ),
        pv.GateView(number=3, priority=0, notes=["nobody", "has it"]),
    ),
    (
        "open_gates",
        (pv.GateOpening(numbers=[9, 3, 9], by="ada"),),
        (pv.GateOpening(numbers=[3, 9], by="ada"),),
        pv.GatesReport(gates=[pv.GateView(number=3)], unknown=[9]),
    ),
    ("gates", (), None, pv.GatesReport()),
    (
        "dead",
        (pv.DeadQuery(jobs="*", reason="raised", limit=7),),
        (pv.DeadQuery(jobs="*/*", reason="raised", limit=7),),
        pv.DeadReport(letters=[pv.DeadView(launch=LAUNCH, exit_code=0)], total=9),
    ),
    (
        "redrive",
        (pv.DeadChange(query=pv.DeadQuery(launch="mail@2026-11-20T15:00:00Z"), by="ada"),),
        (pv.DeadChange(query=pv.DeadQuery(launch=LAUNCH), by="ada"),),
        pv.DeadOutcome(launches=[LAUNCH], left=3),
    ),
    (
        "drop_dead",
        (pv.DeadChange(query=pv.DeadQuery(pool="mail"), is_dry_run=True),),
        None,
        pv.DeadOutcome(kept=["x: y"], is_dry_run=True),
    ),
    (
        "executors",
        (),
        None,
        pv.ExecutorsReport(
            executors=[
                pv.ExecutorView(
                    id="e1",
                    labels=["zone=eu"],
                    groups=[pv.GroupView(group="web", slots=8, handlers=["a", "b"])],
                    silent_ms=0,
                )
            ],
            twins=[pv.TwinView(executor="e1", host="h8", pid=77, ago_ms=12)],
        ),
    ),
    (
        "executor",
        (pv.ExecutorQuery(executor="e1", limit=7),),
        None,
        pv.ExecutorReport(
            details=[
                pv.ExecutorDetail(
                    executor=pv.ExecutorView(id="e1", clock_offset_ms=0),
                    runs=[pv.RunView(launch=LAUNCH, part=2)],
                )
            ],
            now_ms=8,
        ),
    ),
    ("drain", (pv.DrainRequest(executor="e1", is_over=True),), None, pv.ExecutorView(id="e1")),
    (
        "queues",
        (pv.QueueQuery(tenant="acme"),),
        None,
        pv.QueuesReport(queues=[pv.QueueView(pool="mail", priority=3, waiting=4)], now_ms=8),
    ),
    (
        "waits",
        (pv.WaitQuery(job="mail"),),
        (pv.WaitQuery(job="default/mail"),),
        pv.WaitsReport(waits=[pv.WaitView(launch=LAUNCH, ahead=0)], total=1),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "given", "reaches", "answer"), CALLS, ids=[row[0] for row in CALLS]
)
async def test_each_call_reaches_the_daemon_checked_and_comes_back(method, given, reaches, answer):
    backend = FakeBackend(**{method: answer})
    assert await ask(backend, method, *given) == answer
    assert backend.calls == [(method, given if reaches is None else reaches)]


def test_every_call_about_the_pool_is_tried_here():
    wanted = {name for name in vars(pv) if name.endswith(("Report", "Outcome"))}
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
        ("set_limit", pv.LimitChange(pool="m", weight=1), True),
        ("drain", pv.DrainRequest(executor="e1"), True),
        ("redrive", pv.DeadChange(query=pv.DeadQuery(), is_dry_run=True), True),
        ("redrive", pv.DeadChange(query=pv.DeadQuery(), is_everything=True), False),
        ("drop_dead", pv.DeadChange(query=pv.DeadQuery(tenant="a")), False),
        ("close_gate", pv.GateRequest(pool="m"), False),
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


def refused(check: Any, view: Any) -> InvalidInput | LimitExceeded:
    with pytest.raises((InvalidInput, LimitExceeded)) as found:
        check(to_message(view))
    return found.value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (pv.LimitChange(tenant="a"), "nothing is to be limited"),
        (pv.LimitChange(tenant="a/b", weight=1), "tenant 'a/b' is not a plain word"),
        (pv.LimitChange(tenant="**", weight=1), "tenant '**' is not a plain word"),
        (pv.LimitChange(pool="*", weight=1), "pool '*' is not a plain word"),
        (pv.LimitChange(priority=10, weight=1), "priority 10 is not in 0 to 9"),
        (pv.LimitChange(priority=-2, weight=1), "priority -2 is not in 0 to 9"),
        (pv.LimitChange(tenant="a", priority=3, weight=1), "no limit for a priority of all pools"),
        (pv.LimitChange(pool="m", concurrent=-1), "concurrent -1 is below 0"),
        (pv.LimitChange(pool="m", concurrent=10**9 + 1), "concurrent 1000000001 is above"),
        (pv.LimitChange(pool="m", rate_milli=10**12 + 1), "rate-milli 1000000000001 is above"),
        (pv.LimitChange(tenant="m", weight=10_001), "weight 10001 is above 10000"),
        (pv.LimitChange(pool="m", weight=1, by="x" * 201), "name of who asks has 201"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(change, message):
    assert message in str(refused(requests.checked_limit, change))


def test_the_largest_numbers_are_taken():
    change = pv.LimitChange(tenant="a", pool="m", priority=9, concurrent=10**9, rate_milli=10**12)
    assert requests.checked_limit(to_message(change)) == change


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (pv.GateRequest(), "gate names nothing"),
        (pv.GateRequest(tenant="a", is_everything=True), "names something and everything"),
        (pv.GateRequest(tenant="a", action="stop"), "action 'stop' is neither pause nor drop"),
        (pv.GateRequest(jobs="a b"), "pattern 'a b' is not one of job names"),
        (pv.GateRequest(jobs="x" * 400), "is not one of job names"),
        (pv.GateRequest(collection="a b"), "collection 'a b' is not a plain word"),
        (pv.GateRequest(tenant="a", reason="x" * 501), "reason has 501 characters"),
        (pv.GateRequest(tenant="a", reason="a\nb"), "reason has characters that cannot be printed"),
        (pv.GateRequest(tenant="a", until_ms=-1), "until -1 ms"),
        (pv.GateRequest(priority=11), "priority 11 is not in 0 to 9"),
    ],
)
def test_a_gate_that_cannot_be_is_refused(request_, message):
    assert message in str(refused(requests.checked_gate, request_))


def test_a_gate_for_everything_is_one_that_says_so():
    request = pv.GateRequest(is_everything=True)
    assert requests.checked_gate(to_message(request)) == request
    assert requests.checked_gate(to_message(pv.GateRequest(priority=0))).priority == 0


@pytest.mark.parametrize(
    ("numbers", "message"),
    [([], "number of gates 0 is below 1"), ([0], "gate 0 is below 1"), ([1] * 1001, "is above")],
)
def test_gates_to_open_are_numbers_and_not_too_many(numbers, message):
    opening = pv.GateOpening(numbers=numbers)
    assert message in str(refused(requests.checked_opening, opening))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (pv.DeadQuery(launch="mail"), "is not a launch name"),
        (pv.DeadQuery(launch=f"{LAUNCH}#2"), "names an attempt"),
        (pv.DeadQuery(reason="bored"), "there is no reason 'bored'"),
        (pv.DeadQuery(reason="due"), "there is no reason 'due'"),
        (pv.DeadQuery(limit=0), "limit 0 is below 1"),
        (pv.DeadQuery(limit=10_001), "limit 10001 is above 10000"),
        (pv.DeadQuery(tenant="a b"), "tenant 'a b' is not"),
        (pv.DeadQuery(since_ms=-5), "since -5 ms"),
    ],
)
def test_a_query_of_dead_letters_that_cannot_be_is_refused(query, message):
    assert message in str(refused(requests.checked_dead, query))
    change = pv.DeadChange(query=query)
    assert message in str(refused(requests.checked_dead_change, change))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "dead letters to change name nothing"),
        ({"query": pv.DeadQuery(limit=5, is_newest=True)}, "name nothing"),
        ({"query": pv.DeadQuery(tenant="a"), "is_everything": True}, "something and everything"),
        (
            {"query": pv.DeadQuery(until_ms=5), "is_everything": True, "is_dry_run": True},
            "something and everything",
        ),
    ],
)
def test_to_change_all_dead_letters_takes_so_many_words(fields, message):
    """A filter that a script made of nothing at all must not forget all letters of everybody."""
    change = pv.DeadChange(**{"query": pv.DeadQuery()} | fields)
    error = refused(requests.checked_dead_change, change)
    assert message in str(error)
    assert "--all" in error.hint


@pytest.mark.parametrize(
    "change",
    [
        pv.DeadChange(query=pv.DeadQuery(), is_everything=True, by="ada"),
        pv.DeadChange(query=pv.DeadQuery(), is_dry_run=True),
        pv.DeadChange(query=pv.DeadQuery(), is_dry_run=True, is_everything=True),
        *(
            pv.DeadChange(query=query)
            for query in (
                pv.DeadQuery(launch=LAUNCH), pv.DeadQuery(jobs="*/*"), pv.DeadQuery(tenant="a"),
                pv.DeadQuery(pool="m"), pv.DeadQuery(reason="lost"), pv.DeadQuery(since_ms=1),
                pv.DeadQuery(until_ms=1),
            )
        ),
    ],
)  # fmt: skip
def test_a_change_of_dead_letters_that_says_which_ones_is_taken_as_it_is(change):
    assert requests.checked_dead_change(to_message(change)) == change


@pytest.mark.parametrize("reason", ["fatal", "raised", "worker-died", "failed", "lost", "deadline"])
def test_reasons_are_those_of_launches_and_the_states_they_end_in(reason):
    assert requests.reason(reason) == reason


@pytest.mark.parametrize(
    ("check", "view", "message"),
    [
        (requests.checked_drain, pv.DrainRequest(executor=""), "executor '' is not an id"),
        (requests.checked_drain, pv.DrainRequest(executor="a b"), "executor 'a b' is not an id"),
        (requests.checked_queues, pv.QueueQuery(tenant="*"), "tenant '*' is not a plain word"),
        (requests.checked_waits, pv.WaitQuery(), "one of them only"),
        (requests.checked_waits, pv.WaitQuery(job="a", launch=LAUNCH), "one of them only"),
        (requests.checked_waits, pv.WaitQuery(job="a b"), "is not one of job names"),
        (requests.checked_waits, pv.WaitQuery(job="a", limit=1_001), "limit 1001 is above 1000"),
        (requests.checked_removal, pv.LimitRemoval(tenant="a", priority=1), "priority of all"),
    ],
)
def test_what_else_cannot_be_is_refused(check, view, message):
    assert message in str(refused(check, view))
