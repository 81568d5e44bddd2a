"""Starts per second: never more in any window, and something begins as soon as it may."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cron.scheduler.limits import START, Bucket
from cron.scopes import EACH_TENANT, Scope
from cron.state.pool import Limits
from tests.unit.fairness_rig import Rig, tenants


@pytest.fixture
def rig() -> Rig:
    return Rig()


@settings(max_examples=200, deadline=None)
@given(
    rate=st.integers(1, 20_000),
    steps=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 30)), max_size=40),
)
def test_in_no_window_are_there_more_starts_than_the_rate_allows(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    bucket, now_ms = Bucket(rate, 0), 0
    starts: list[int] = []
    for after_ms, wanted in steps:
        now_ms += after_ms
        for _ in range(wanted):
            if bucket.starts(now_ms):
                bucket.take(1)
                starts.append(now_ms)
    for index, begin_ms in enumerate(starts):
        for count, end_ms in enumerate(starts[index:], 1):
            assert count * START <= bucket.capacity + rate * (end_ms - begin_ms)


@given(rate=st.integers(1, 20_000), used=st.integers(1, 20))
def test_a_bucket_is_ready_exactly_when_it_says(rate: int, used: int) -> None:
    bucket = Bucket(rate, 0)
    for _ in range(used):
        if bucket.starts(0):
            bucket.take(1)
    ready_ms = bucket.ready_ms()
    assert ready_ms == 0 or not bucket.starts(ready_ms - 1)
    assert bucket.starts(ready_ms)


def test_a_bucket_holds_a_seconds_worth_and_one_start_at_least() -> None:
    assert Bucket(5000, 0).capacity == 5 * START
    assert Bucket(100, 0).capacity == START


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    bucket = Bucket(1000, 10_000)
    bucket.take(1)
    assert not bucket.starts(2000)
    assert not bucket.starts(2999)
    assert bucket.starts(3000)


def test_what_is_given_back_can_be_taken_again_but_never_more_than_fits() -> None:
    bucket = Bucket(1000, 0)
    bucket.take(1)
    bucket.take(-1)
    bucket.take(-1)
    bucket.take(1)
    assert not bucket.starts(0)


def test_a_lower_rate_keeps_no_more_than_it_may_hold() -> None:
    bucket = Bucket(5000, 0)
    bucket.change(1000, 0)
    bucket.take(1)
    assert not bucket.starts(0)
    assert bucket.ready_ms() == 1000


@pytest.mark.parametrize(
    "scope", [("", "", -1), ("", "mail", -1), ("", "", 5), ("", "mail", 5), (EACH_TENANT, "", -1)]
)
def test_a_scope_with_a_rate_begins_that_many_a_second(rig: Rig, scope: Scope) -> None:
    rig.pump.set_limits(scope, Limits(rate_milli=2000))
    keys = rig.add("ann/a", 5)
    assert rig.take(9) == keys[:2], "a second's worth at once"
    assert rig.pump.next_ms() == rig.now_ms + 500
    rig.now_ms += 499
    assert rig.take(9) == []
    rig.now_ms += 1
    assert rig.take(9) == keys[2:3]
    rig.now_ms += 5000
    assert rig.take(9) == keys[3:]
    assert rig.pump.next_ms() is None


def test_ends_do_not_wake_what_waits_for_the_rate(rig: Rig) -> None:
    rig.pump.set_limits(("", "mail", -1), Limits(rate_milli=2000))
    keys = rig.add("ann/a", 5)
    assert rig.take(9) == keys[:2]
    rig.end(keys[:2])
    (turn,) = rig.pump.queue.table.limiters["", "mail", -1].parked
    assert turn.limiter is not None


def test_one_tenants_rate_slows_no_other(rig: Rig) -> None:
    rig.pump.set_limits(("ann", "", -1), Limits(rate_milli=1000))
    rig.add("ann/a", 3)
    rig.add("bob/a", 3)
    assert sorted(tenants(rig.take(9))) == ["ann", "bob", "bob", "bob"]


def test_a_start_that_is_put_back_costs_no_rate(rig: Rig) -> None:
    rig.pump.set_limits(("", "mail", -1), Limits(rate_milli=1000))
    keys = rig.add("ann/a", 2)
    assert rig.take(9) == keys[:1]
    rig.pump.put_back(rig.items[keys[0]])
    rig.now_ms += 1
    assert rig.take(9) == keys[:1]
    assert rig.take(9) == []


def test_a_tenant_does_not_get_a_new_bucket_by_being_idle(rig: Rig) -> None:
    rig.pump.set_limits((EACH_TENANT, "", -1), Limits(rate_milli=1000))
    for number in range(3):
        keys = rig.add("ann/a")
        assert rig.take(9) == (keys if number == 0 else [])
        if number == 0:
            rig.end(keys)
        else:
            rig.pump.remove(keys[0])
    rig.now_ms += 1000
    assert rig.take(9) == rig.add("ann/a")[:0]
    assert len(rig.take(9)) == 1


def test_buckets_of_idle_tenants_are_forgotten_once_they_are_full(rig: Rig) -> None:
    rig.pump.set_limits((EACH_TENANT, "", -1), Limits(rate_milli=1000))
    for number in range(500):
        rig.end(rig.add(f"t{number}/a")[:0])
        rig.end(rig.take(9))
        rig.now_ms += 20
    assert len(rig.pump.queue.table.limiters) < 250, "a second's worth of tenants is 50"


def test_a_higher_rate_holds_at_once(rig: Rig) -> None:
    rig.pump.set_limits(("", "mail", -1), Limits(rate_milli=1))
    keys = rig.add("ann/a", 2)
    assert rig.take(9) == keys[:1]
    assert rig.pump.next_ms() == rig.now_ms + 1_000_000
    rig.pump.set_limits(("", "mail", -1), Limits(rate_milli=1000))
    rig.now_ms += 1000
    assert rig.take(9) == keys[1:]


def test_a_clock_that_was_set_back_does_not_stop_a_rate(rig: Rig) -> None:
    rig.pump.set_limits(("", "mail", -1), Limits(rate_milli=1000))
    keys = rig.add("ann/a", 3)
    assert rig.take(9) == keys[:1]
    rig.now_ms -= 500_000
    assert rig.take(9) == []
    assert rig.pump.next_ms() == rig.now_ms + 1000
    rig.now_ms += 1000
    assert rig.take(9) == keys[1:2]
