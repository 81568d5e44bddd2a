"""Requests about the pool as they come from outside, made into checked ones."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from cron.api import checks
from cron.api.pattern import parse_pattern
from cron.api.pool_views import (
    DeadChange,
    DeadQuery,
    DrainRequest,
    ExecutorQuery,
    GateOpening,
    GateRequest,
    LimitChange,
    LimitRemoval,
    QueueQuery,
    WaitQuery,
)
from cron.api.translate import to_view
from cron.errors import InvalidInput
from launcher.launch import LaunchState, Reason

DEAD_MAX: Final = 10_000
"""Dead letters that one request shows, launches again or forgets."""
WAITS_MAX: Final = 1_000
RUNS_MAX: Final = 1_000
"""Open launches of one executor that one request shows."""
NUMBER_MAX: Final = 1_000_000_000
RATE_MILLI_MAX: Final = 1_000 * NUMBER_MAX
WEIGHT_MAX: Final = 10_000
GATES_AT_ONCE_MAX: Final = 1_000
EACH_TENANT: Final = "*"
ACTIONS: Final = ("pause", "drop")
_EXECUTOR: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
_MOST: Final = {"rate_milli": RATE_MILLI_MAX, "weight": WEIGHT_MAX}


def priority(number: int) -> int:
    """Return a priority, or -1 for any."""
    if not -1 <= number <= 9:
        raise InvalidInput(f"priority {number} is not in 0 to 9")
    return number


def reason(text: str) -> str:
    """Return the label of a reason, or of a state for what ended without one, or ""."""
    ends = (LaunchState.FAILED, LaunchState.LOST, LaunchState.SKIPPED, LaunchState.CANCELLED)
    known = [one.label for one in Reason if one is not Reason.NONE] + [one.label for one in ends]
    if text and text not in known:
        raise InvalidInput(f"there is no reason {text[:40]!r}", f"known are {' '.join(known)}")
    return text


def checked_limit(message: Any) -> LimitChange:
    """Return limits to set, with numbers within bounds and a scope that can have some."""
    change = to_view(message, LimitChange)
    _check_scope(change)
    numbers = msgspec.structs.asdict(change)
    given = 0
    for field in LimitChange.__struct_fields__[3:-1]:
        if numbers[field] is not None:
            given += 1
            most = _MOST.get(field, NUMBER_MAX)
            checks.between(numbers[field], 0, most, field.replace("_", "-"))
    if not given:
        raise InvalidInput("nothing is to be limited", "say what, such as --concurrent 10")
    checks.person(change.by)
    return change


def checked_removal(message: Any) -> LimitRemoval:
    """Return a scope whose limits go."""
    removal = to_view(message, LimitRemoval)
    _check_scope(removal)
    checks.person(removal.by)
    return removal


def _check_scope(scope: LimitChange | LimitRemoval) -> None:
    if scope.tenant != EACH_TENANT:
        checks.word(scope.tenant, "tenant")
    checks.word(scope.pool, "pool")
    priority(scope.priority)
    if scope.tenant and not scope.pool and scope.priority >= 0:
        raise InvalidInput(
            "a tenant has no limit for a priority of all pools",
            "name the pool or the handler too, or leave out the priority",
        )


def checked_gate(message: Any) -> GateRequest:
    """Return a gate to close, which names something, or everything in so many words."""
    request = to_view(message, GateRequest)
    if request.action not in ACTIONS:
        raise InvalidInput(f"action {request.action[:40]!r} is neither pause nor drop")
    named = (request.pool, request.collection, request.tenant, request.jobs)
    is_named = any(named) or request.priority >= 0
    if is_named is request.is_everything:
        what = "names something and everything" if is_named else "names nothing"
        hint = "name a handler, collection, tenant, job or priority; or --all, and nothing else"
        raise InvalidInput(f"gate {what}", hint)
    return msgspec.structs.replace(
        request,
        reason=checks.note(request.reason),
        until_ms=checks.instant_ms(request.until_ms, "until"),
        pool=checks.word(request.pool, "pool"),
        collection=checks.word(request.collection, "collection"),
        tenant=checks.word(request.tenant, "tenant"),
        jobs=parse_pattern(request.jobs),
        priority=priority(request.priority),
        by=checks.person(request.by),
    )


def checked_opening(message: Any) -> GateOpening:
    """Return gates to open, each once."""
    opening = to_view(message, GateOpening)
    checks.between(len(opening.numbers), 1, GATES_AT_ONCE_MAX, "number of gates")
    for number in opening.numbers:
        checks.between(number, 1, 1 << 62, "gate")
    return GateOpening(numbers=sorted({*opening.numbers}), by=checks.person(opening.by))


def checked_dead(message: Any) -> DeadQuery:
    """Return a query of dead letters with full names."""
    return _checked_query(to_view(message, DeadQuery))


def _checked_query(query: DeadQuery) -> DeadQuery:
    return DeadQuery(
        launch=checks.launch_name(query.launch) if query.launch else "",
        jobs=parse_pattern(query.jobs),
        tenant=checks.word(query.tenant, "tenant"),
        pool=checks.word(query.pool, "pool"),
        reason=reason(query.reason),
        since_ms=checks.instant_ms(query.since_ms, "since"),
        until_ms=checks.instant_ms(query.until_ms, "before"),
        limit=checks.between(query.limit, 1, DEAD_MAX, "limit"),
        is_newest=query.is_newest,
        collection=checks.word(query.collection, "collection"),
    )


def checked_dead_change(message: Any) -> DeadChange:
    """Return a change of dead letters, which names which ones, or all in so many words. Who looks
    at what it would be may leave that out.

    A program whose filter came out empty must not forget all that anybody has given up.
    """
    change = to_view(message, DeadChange)
    query = _checked_query(change.query)
    texts = (query.launch, query.jobs, query.tenant, query.pool, query.reason, query.collection)
    is_named = any(texts) or bool(query.since_ms or query.until_ms)
    if is_named is change.is_everything and (is_named or not change.is_dry_run):
        what = "name something and everything" if is_named else "name nothing"
        hint = "name a launch or a filter; or --all (is_everything), and nothing else"
        raise InvalidInput(f"dead letters to change {what}", hint)
    return msgspec.structs.replace(change, query=query, by=checks.person(change.by))


def checked_drain(message: Any) -> DrainRequest:
    """Return a request with the id of an executor."""
    request = to_view(message, DrainRequest)
    _executor(request.executor)
    checks.person(request.by)
    return request


def checked_executor(message: Any) -> ExecutorQuery:
    """Return which executor is asked about."""
    query = to_view(message, ExecutorQuery)
    _executor(query.executor)
    checks.between(query.limit, 1, RUNS_MAX, "limit")
    return query


def _executor(text: str) -> None:
    if not _EXECUTOR.fullmatch(text):
        hint = "`raftcron executors` lists them"
        raise InvalidInput(f"executor {text[:80]!r} is not an id", hint)


def checked_queues(message: Any) -> QueueQuery:
    """Return which queues are meant."""
    query = to_view(message, QueueQuery)
    return QueueQuery(
        tenant=checks.word(query.tenant, "tenant"), pool=checks.word(query.pool, "pool")
    )


def checked_waits(message: Any) -> WaitQuery:
    """Return whose waiting is asked about: a launch, a job or a pattern of jobs, with its tenant,
    or a collection."""
    query = to_view(message, WaitQuery)
    if sum(map(bool, (query.launch, query.job, query.collection))) != 1:
        raise InvalidInput("it takes a launch, a job or a collection, and one of them only")
    limit = checks.between(query.limit, 1, WAITS_MAX, "limit")
    if query.launch:
        return WaitQuery(launch=checks.launch_name(query.launch), limit=limit)
    if query.collection:
        return WaitQuery(collection=checks.word(query.collection, "collection"), limit=limit)
    return WaitQuery(job=parse_pattern(query.job), limit=limit)
