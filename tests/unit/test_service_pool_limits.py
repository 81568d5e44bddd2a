"""Limits and gates as the leader sets them for people."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.api.gates import GateOpening, GateRequest, GateView
from cron.api.limits import LimitChange, LimitRemoval, LimitsReport, LimitView
from cron.errors import InvalidInput, LimitExceeded, NotFound, NotLeader
from cron.limits import GATES_MAX, LIMITS_MAX
from cron.service.limits import check_limits, merged
from cron.state.pool import Gate, GateAction, Limits
from tests.unit.pool_people_rig import World
from tests.unit.state_rig import T0, StateRig, with_job

FIELDS = ("weight", "concurrent", "burst", "rate_milli", "waiting_max", "reserved", "retry_budget")


def world() -> World:
    return World(with_job())


V = TypeVar("V", LimitView, GateView)


def bare(view: V) -> V:
    """What was set or closed, without notes about names that nobody has."""
    return msgspec.structs.replace(view, notes=[])


# ---- limits


async def test_a_limit_is_set_and_shown() -> None:
    w = world()
    change = LimitChange(tenant="acme", concurrent=10, burst=20, rate_milli=1_500, by="ada")
    view = bare(await w.service.set_limit(change))
    assert view == LimitView(tenant="acme", concurrent=10, burst=20, rate_milli=1_500)
    assert w.state.limits == {("acme", "", -1): Limits(concurrent=10, burst=20, rate_milli=1_500)}
    assert await w.service.limits() == LimitsReport(limits=[view])


async def test_what_a_change_does_not_name_stays() -> None:
    w = world()
    await w.service.set_limit(LimitChange(tenant="*", concurrent=10, weight=3))
    view = await w.service.set_limit(LimitChange(tenant="*", concurrent=12))
    assert (view.concurrent, view.weight) == (12, 3)
    view = await w.service.set_limit(LimitChange(tenant="*", concurrent=0))
    assert (view.concurrent, view.weight) == (0, 3)


async def test_a_tenants_own_limits_begin_as_those_of_each_tenant() -> None:
    """A tenant that was given a weight ran as much as it liked from then on."""
    w = world()
    await w.service.set_limit(LimitChange(tenant="*", concurrent=20, burst=60, retry_budget=9))
    view = await w.service.set_limit(LimitChange(tenant="acme", weight=3))
    assert bare(view) == LimitView(tenant="acme", weight=3, concurrent=20, burst=60, retry_budget=9)
    view = await w.service.set_limit(LimitChange(tenant="acme", concurrent=0, burst=0))
    assert bare(view) == LimitView(tenant="acme", weight=3, retry_budget=9)
    view = await w.service.set_limit(LimitChange(tenant="acme", pool="mail", concurrent=2))
    assert bare(view) == LimitView(tenant="acme", pool="mail", concurrent=2), (
        "of mail none were said"
    )


async def test_a_scope_of_which_nothing_is_limited_any_more_is_gone() -> None:
    w = world()
    await w.service.set_limit(LimitChange(pool="mail", concurrent=1))
    await w.service.set_limit(LimitChange(pool="mail", concurrent=0))
    assert w.state.limits == {}


async def test_scopes_do_not_touch_each_other() -> None:
    w = world()
    await w.service.set_limit(LimitChange(pool="mail", concurrent=1))
    await w.service.set_limit(LimitChange(pool="mail", priority=3, concurrent=2))
    await w.service.set_limit(LimitChange(tenant="acme", pool="mail", concurrent=3))
    shown = [
        (one.tenant, one.priority, one.concurrent) for one in (await w.service.limits()).limits
    ]
    assert shown == [("", -1, 1), ("", 3, 2), ("acme", -1, 3)]


async def test_a_removed_limit_is_shown_as_it_was() -> None:
    w = world()
    set_view = await w.service.set_limit(LimitChange(tenant="acme", retry_budget=100))
    assert await w.service.remove_limit(LimitRemoval(tenant="acme")) == bare(set_view)
    assert w.state.limits == {}
    with pytest.raises(NotFound, match="tenant acme has no limits"):
        await w.service.remove_limit(LimitRemoval(tenant="acme"))


@pytest.mark.parametrize(
    ("tenant", "change", "owed"),
    [
        ("acme", LimitChange(tenant="acme", retry_budget=0), {}),
        ("acme", LimitChange(tenant="acme", weight=2), {"acme": 1}),
        ("acme", LimitChange(tenant="acme", retry_budget=1), {"acme": 1}),
        ("*", LimitChange(tenant="acme", retry_budget=0, weight=2), {}),
        ("*", LimitChange(tenant="*", retry_budget=0), {}),
        ("*", LimitChange(tenant="other", retry_budget=0), {"acme": 1}),
        ("acme", LimitRemoval(tenant="acme"), {}),
        ("*", LimitRemoval(tenant="*"), {}),
    ],
)
async def test_who_loses_its_retry_budget_owes_nothing_any_more(
    tenant: str, change: LimitChange | LimitRemoval, owed: dict[str, int]
) -> None:
    w = world()
    await w.service.set_limit(LimitChange(tenant=tenant, retry_budget=5))
    w.state.budgets["acme"] = 1
    if isinstance(change, LimitChange):
        await w.service.set_limit(change)
    else:
        await w.service.remove_limit(change)
    assert w.state.budgets == owed


async def test_a_limit_too_many_says_so_and_changes_nothing() -> None:
    w = world()
    w.state.limits.update({(f"t{n}", "", -1): Limits(weight=2) for n in range(LIMITS_MAX)})
    with pytest.raises(LimitExceeded, match="10000 scopes have limits already"):
        await w.service.set_limit(LimitChange(tenant="acme", concurrent=1))
    assert len(w.state.limits) == LIMITS_MAX
    await w.service.set_limit(LimitChange(tenant="t1", concurrent=1))


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"tenant": "a", "concurrent": 10, "burst": 9}, "burst 9 is below concurrent 10", "least"),
        ({"tenant": "a", "burst": 9}, "burst 9 means nothing without concurrent", "--concurrent"),
        (
            {"pool": "m", "concurrent": 1, "burst": 2},
            "burst is for tenants, .* of pool m",
            "tenant",
        ),
        ({"tenant": "a", "reserved": 2}, "slots are reserved for .* of tenant a", "--handler"),
        ({"reserved": 2}, "slots are reserved for .* of everything", "--handler"),
        ({"priority": 2, "reserved": 2}, "slots are reserved for .* priority 2", "--handler"),
        ({"tenant": "a", "pool": "m", "reserved": 2}, "slots are reserved", "no tenant"),
        ({"pool": "m", "concurrent": 1, "reserved": 2}, "reserve 2 is above concurrent 1", "less"),
        ({"pool": "m", "weight": 2}, "weight is a tenant's share, .* of pool m", "--each-tenant"),
        (
            {"tenant": "a", "pool": "m", "retry_budget": 2},
            "a retry budget is a tenant's",
            "no hand",
        ),
        ({"pool": "m", "priority": 0, "retry_budget": 2}, "of queue m/0", "no handler"),
    ],
)
async def test_limits_that_cannot_be_meant_are_refused_with_a_way_out(
    change: dict[str, Any], message: str, hint: str
) -> None:
    w = world()
    with pytest.raises(InvalidInput, match=message) as refused:
        await w.service.set_limit(LimitChange(**change))
    assert hint in refused.value.hint
    assert w.state.limits == {}


async def test_what_contradicts_a_limit_that_was_set_before_is_refused_too() -> None:
    w = world()
    await w.service.set_limit(LimitChange(tenant="a", concurrent=10, burst=20))
    with pytest.raises(InvalidInput, match="burst 20 is below concurrent 30"):
        await w.service.set_limit(LimitChange(tenant="a", concurrent=30))
    assert w.state.limits[("a", "", -1)] == Limits(concurrent=10, burst=20)


NUMBERS = st.none() | st.integers(0, 50)
LIMITS = st.builds(Limits, *[st.integers(0, 50)] * len(FIELDS))


@given(LIMITS, st.fixed_dictionaries(dict.fromkeys(FIELDS, NUMBERS)))
def test_a_change_sets_what_it_names_and_nothing_else(
    before: Limits, named: dict[str, int | None]
) -> None:
    after = merged(before, LimitChange(**named))  # type: ignore[arg-type]
    for field in FIELDS:
        wanted = getattr(before, field) if named[field] is None else named[field]
        assert getattr(after, field) == wanted


@given(
    st.sampled_from([("", "", -1), ("", "m", 3), ("a", "", -1), ("*", "m", -1), ("a", "m", 0)]),
    LIMITS,
)
def test_what_is_let_through_is_what_the_pump_can_do(
    scope: tuple[str, str, int], limits: Limits
) -> None:
    """A burst below its limit, or a share of nobody, would be taken and mean nothing."""
    try:
        check_limits(scope, limits)
    except InvalidInput:
        return
    tenant, pool, _ = scope
    assert not limits.burst or (tenant and limits.burst >= limits.concurrent > 0)
    assert not limits.reserved or (pool and not tenant)
    assert not limits.weight or tenant
    assert not limits.retry_budget or scope in (("a", "", -1), ("*", "", -1))


# ---- gates


async def test_a_gate_is_closed_listed_and_opened() -> None:
    w = world()
    request = GateRequest(jobs="default/b*", priority=3, reason="disk full", by="ada")
    closed = bare(await w.service.close_gate(request))
    assert (closed.number, closed.action, closed.by, closed.since_ms) == (
        1,
        "pause",
        "ada",
        T0 * 1000,
    )
    assert (closed.jobs, closed.priority, closed.reason) == ("default/b*", 3, "disk full")
    assert (await w.service.gates()).gates == [closed]
    opened = await w.service.open_gates(GateOpening(numbers=[1, 7], by="bob"))
    assert (opened.gates, opened.unknown) == ([closed], [7])
    assert (await w.service.gates()).gates == []


async def test_each_part_of_a_request_is_in_the_gate() -> None:
    w = world()
    request = GateRequest(
        action="drop", reason="r", until_ms=(T0 + 9) * 1000, pool="m", collection="c", tenant="t",
        jobs="t/*", priority=0, by="ada",
    )  # fmt: skip
    await w.service.close_gate(request)
    assert w.state.gates[1] == Gate(
        1, GateAction.DROP, "r", "ada", T0 * 1000, (T0 + 9) * 1000, "m", "c", "t", "t/*", 0
    )


async def test_a_gate_whose_time_is_over_is_not_listed() -> None:
    w = world()
    await w.service.close_gate(GateRequest(tenant="t", until_ms=(T0 + 9) * 1000))
    w.rig.to(8)
    assert len((await w.service.gates()).gates) == 1
    w.rig.to(9)
    assert (await w.service.gates()).gates == []


async def test_a_gate_that_would_be_over_at_once_is_refused() -> None:
    w = world()
    w.rig.to(9)
    with pytest.raises(InvalidInput, match="is over already"):
        await w.service.close_gate(GateRequest(tenant="t", until_ms=(T0 + 9) * 1000))


async def test_a_gate_too_many_says_so() -> None:
    w = world()
    gate = Gate(0, GateAction.PAUSE, "", "", 0, tenant="t")
    w.state.gates.update({n: gate for n in range(1, GATES_MAX + 1)})
    with pytest.raises(LimitExceeded, match="1000 gates are closed already"):
        await w.service.close_gate(GateRequest(tenant="t"))


# ---- who answers


async def test_a_replica_that_does_not_lead_answers_nothing() -> None:
    w = World(StateRig())
    w.epoch = None
    calls = [
        w.service.set_limit(LimitChange(tenant="a", weight=1)),
        w.service.remove_limit(LimitRemoval(tenant="a")),
        w.service.limits(),
        w.service.close_gate(GateRequest(tenant="a")),
        w.service.open_gates(GateOpening(numbers=[1])),
        w.service.gates(),
    ]
    for call in calls:
        with pytest.raises(NotLeader):
            await call
