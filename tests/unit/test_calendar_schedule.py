"""Ticks: their edges, periods, `@every`, and what they refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.calendar.expression import parse
from cron.calendar.schedule import Tick, check, compile, shortest_period_s
from cron.errors import ScheduleError, TooManyTimes
from cron.job import Schedule
from launcher.protocol.names import format_time, parse_time

NOON_S = parse_time("2026-11-20T12:00:00Z")


def ticks_of(text, zone="UTC"):
    return compile(parse(text).schedule(zone))


def test_between_leaves_out_its_beginning_and_has_its_end():
    found = ticks_of("*/10 * * * *").between(NOON_S, NOON_S + 1200, limit=9)
    assert [tick.scheduled_s - NOON_S for tick in found] == [600, 1200]
    assert ticks_of("*/10 * * * *").count(NOON_S, NOON_S + 1200) == 2
    assert ticks_of("*/10 * * * *").between(NOON_S, NOON_S, limit=9) == []
    assert ticks_of("*/10 * * * *").between(NOON_S, NOON_S - 9999, limit=9) == []


def test_seconds_inside_a_minute_do_not_matter():
    ticks = ticks_of("* * * * *")
    assert ticks.next(NOON_S + 59) == NOON_S + 60
    assert ticks.next(NOON_S - 1) == NOON_S
    assert ticks.previous(NOON_S + 1) == NOON_S
    assert ticks.previous(NOON_S) == NOON_S - 60
    assert ticks.previous(NOON_S + 60) == NOON_S


def test_more_times_than_the_limit_are_an_error_and_not_a_cut():
    ticks = ticks_of("* * * * *")
    assert len(ticks.between(NOON_S, NOON_S + 600, limit=10)) == 10
    with pytest.raises(TooManyTimes, match="more than 9 times") as caught:
        ticks.between(NOON_S, NOON_S + 600, limit=9)
    assert caught.value.hint


def test_newest_has_the_last_ones_oldest_first_and_no_more_than_there_are():
    ticks = ticks_of("*/10 * * * *")
    newest = ticks.newest(NOON_S, NOON_S + 3600, 2)
    assert [tick.scheduled_s - NOON_S for tick in newest] == [3000, 3600]
    assert len(ticks.newest(NOON_S, NOON_S + 3600, 99)) == 6
    assert ticks.newest(NOON_S, NOON_S + 3600, 0) == []
    # A range of a century costs no more than what is asked for.
    assert len(ticks.newest(0, NOON_S, 3)) == 3


def test_the_local_minute_is_that_of_the_wall_clock():
    (tick,) = ticks_of("30 7 * * *", "Asia/Kolkata").between(NOON_S, NOON_S + 86_400, limit=1)
    assert format_time(tick.scheduled_s) == "2026-11-21T02:00:00Z"
    assert format_time(tick.local_min * 60) == "2026-11-21T07:30:00Z"


def test_skipped_minutes_that_fall_together_have_the_last_local_minute():
    # So that no order of clock data can bring one of them back (rule R11).
    at_s = parse_time("2026-03-08T07:00:00Z")
    (tick,) = ticks_of("0,30 2 * * *", "America/New_York").between(at_s - 1, at_s, limit=9)
    assert format_time(tick.local_min * 60) == "2026-03-08T02:30:00Z"
    (tick,) = ticks_of("0 2,3 * * *", "America/New_York").between(at_s - 1, at_s, limit=9)
    assert format_time(tick.local_min * 60) == "2026-03-08T03:00:00Z"
    assert ticks_of("0 2,3 * * *", "America/New_York").newest(at_s - 1, at_s, 9) == [tick]
    assert ticks_of("0 2,3 * * *", "America/New_York").count(at_s - 1, at_s) == 1


@given(st.integers(1, 10**6), st.integers(-(10**6), 5 * 10**9), st.integers(0, 3), st.data())
def test_every_is_due_at_whole_multiples_of_its_period(every_s, after_s, periods, data):
    length_s = periods * every_s + data.draw(st.integers(0, every_s))
    ticks = compile(Schedule("", every_s=every_s))
    later, earlier = ticks.next(after_s), ticks.previous(after_s)
    assert later % every_s == 0
    assert later > after_s
    assert later - every_s <= max(after_s, -1)
    assert earlier is None if after_s <= 0 else earlier % every_s == 0
    assert earlier is None or after_s - every_s <= earlier < after_s
    until_s = after_s + length_s
    expected = [k for k in range(later, later + 6 * every_s, every_s) if k <= until_s]
    assert [tick.scheduled_s for tick in ticks.newest(after_s, until_s, 9)] == expected
    assert ticks.count(after_s, until_s) == len(expected)


def test_every_has_no_local_time_and_counts_without_walking():
    ticks = ticks_of("@every 90s")
    assert not ticks.is_fixed
    assert ticks.between(0, 200, limit=9) == [Tick(90, -1), Tick(180, -1)]
    assert ticks.count(-1, 10**9) == 10**9 // 90 + 1


@pytest.mark.parametrize(
    ("text", "period_s"),
    [
        ("* * * * *", 60),
        ("*/5 * * * *", 300),
        ("*/7 * * * *", 4 * 60),
        ("0 * * * *", 3600),
        ("0,50 * * * *", 600),
        ("0 0 * * *", 86_400),
        ("0 0,23 * * *", 3600),
        ("0 9 * * 1-5", 86_400),
        ("0 9 * * 1", 7 * 86_400),
        ("0 0 1 * *", 28 * 86_400),
        ("0 0 1,2 * *", 86_400),
        ("0 23,1 1 * *", 22 * 3600),
        ("0 0 1 1 *", 365 * 86_400),
        ("0 0 29 2 *", 1461 * 86_400),
    ],
)
def test_a_period_is_the_shortest_usual_distance(text, period_s):
    assert shortest_period_s(text) == period_s


def test_equal_schedules_are_one_object():
    assert ticks_of("@daily") is ticks_of("0 0 * * *")
    assert ticks_of("0 0 * * *", "Asia/Tokyo") is not ticks_of("0 0 * * *")


@pytest.mark.parametrize("resolved", ["", "? * * * *", "@every 5s"])
def test_a_schedule_without_a_place_has_no_times(resolved):
    with pytest.raises(ScheduleError, match="no place"):
        compile(Schedule("? * * * *", resolved))


def test_a_schedule_in_no_zone_has_no_times():
    with pytest.raises(ScheduleError, match="not known"):
        compile(Schedule("0 0 * * *", "0 0 * * *", "Mars/Base"))


@pytest.mark.parametrize(
    ("resolved", "column", "message"),
    [
        # Stored schedules are canonical; one that is not (7-7 is every day to croniter) is found.
        ("0 0 * * 7-7", 11, "day of week '7-7' is not read alike by every cron"),
        ("0 0 * 3-3/2 *", 7, "month '3-3/2' is not read alike by every cron"),
        ("5-5,9 0 * * *", 1, "minute '5-5,9' is not read alike by every cron"),
    ],
)
def test_what_croniter_would_read_otherwise_is_refused_where_it_stands(resolved, column, message):
    with pytest.raises(ScheduleError) as caught:
        check(Schedule("", resolved), columns=(1, 3, 5, 7, 11))
    assert (str(caught.value), caught.value.column) == (message, column)
    assert caught.value.hint


@pytest.mark.parametrize(
    "text", ["*/1 * * * *", "* 0-23 * * *", "* * 1-31 * 0-6", "* * * 1-12 1-7", "5,* * * * *"]
)
def test_what_croniter_calls_all_values_is_all_values(text):
    check(parse(text).schedule("UTC"))
