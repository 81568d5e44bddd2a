"""Starts per second: never more in any window, and something begins as soon as it may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.scheduler.limits import START, Bucket
from cron.scopes import EACH_TENANT
from cron.state.pool import Limits
from tests.unit.fairness_rig import Rig


@pytest.fixture
def rig() -> Rig:
    return Rig()


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


def test_a_bucket_holds_a_seconds_worth_and_one_start_at_least() -> None:
    assert Bucket(5000, 0).capacity == 5 * START
    assert Bucket(100, 0).capacity == START


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    bucket = Bucket(1000, 10_000)
    bucket.take(1)
    assert not bucket.starts(2000)
    assert not bucket.starts(2999)
    assert bucket.starts(3000)


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


def test_a_clock_that_was_set_back_does_not_stop_a_rate(rig: Rig) -> None:
    rig.pump.set_limits(("", "mail", -1), Limits(rate_milli=1000))
    keys = rig.add("ann/a", 3)
    assert rig.take(9) == keys[:1]
    rig.now_ms -= 500_000
    assert rig.take(9) == []
    assert rig.pump.next_ms() == rig.now_ms + 1000
    rig.now_ms += 1000
    assert rig.take(9) == keys[1:2]
