"""Local times by bit masks against the same asked of `datetime`, day by day."""

from __future__ import annotations

from datetime import date, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cron.calendar.days import (
    CYCLE_WEEKS,
    DAY_MIN,
    DAYS_END,
    YEAR_LAST,
    LocalTimes,
    minutes_of_day,
)
from cron.calendar.expression import parse
from tests.model.oracle import Spec

EPOCH = date(1970, 1, 1)

EXPRESSIONS = st.sampled_from(
    [
        "0 0 * * *",
        "*/20 3,4 * * *",
        "59 23 31 * *",
        "0 0 29 2 *",
        "15 6 1,15 * 1",
        "15 6 */2 * 1-5",
        "0 12 1-7 1,7 */2",
        "30 5 28-31 2-4 *",
        "1-9/4 8-18/5 * 11 6,7",
        "* * * * 0",
        "0 0 1 1 *",
    ]
)


def times_of(text):
    return LocalTimes(parse(text).fields)


def all_matches(text, first_day, days):
    """Return every matching local minute of so many days, the slow way."""
    spec = Spec(text)
    minutes, hours, *_ = spec.sets
    of_day = sorted(hour * 60 + minute for hour in hours for minute in minutes)
    return [
        day * DAY_MIN + minute
        for day in range(first_day, first_day + days)
        if spec.matches_day(EPOCH + timedelta(days=day))
        for minute in of_day
    ]


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS, st.integers(0, 60_000), st.integers(0, DAY_MIN - 1))
def test_the_next_and_the_last_match_are_those_of_a_walk(text, day, minute):
    local = day * DAY_MIN + minute
    known = all_matches(text, max(day - 3000, 0), 6000)
    times = times_of(text)
    later = [match for match in known if match >= local]
    earlier = [match for match in known if match <= local]
    assert times.at_or_after(local) == later[0]
    if earlier:
        assert times.at_or_before(local) == earlier[-1]


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS, st.integers(0, 60_000 * DAY_MIN), st.integers(-500, 900 * DAY_MIN))
def test_counting_finds_as_many_as_a_walk(text, start, length):
    end = start + length
    known = all_matches(text, start // DAY_MIN, 1000)
    assert times_of(text).count(start, end) == sum(start <= match < end for match in known)


@settings(max_examples=50, deadline=None)
@given(EXPRESSIONS, st.lists(st.integers(0, 10_000 * DAY_MIN), min_size=3, max_size=3))
def test_counts_of_neighbouring_ranges_add_up(text, edges):
    first, second, third = sorted(edges)
    times = times_of(text)
    assert times.count(first, second) + times.count(second, third) == times.count(first, third)


@pytest.mark.parametrize(
    "text",
    ["0 0 * * *", "*/7 * * * *", "0 9 * * 1", "0 0 1,15 * *", "0 0 29 2 *", "5 1,23 1,2 * *"],
)
def test_the_shortest_distance_is_that_of_a_walk_through_twelve_years(text):
    known = all_matches(text, (date(2000, 1, 1) - EPOCH).days, 12 * 366)
    shortest = min(later - earlier for earlier, later in pairwise(known))
    assert times_of(text).shortest_distance() == shortest


def test_rare_days_are_found_in_two_cycles_of_the_calendar():
    # Mondays that are the first or the 29th of a February: both in 1932, 1960, 1988, 2016.
    assert times_of("0 0 */28 2 1").shortest_distance() == 28 * DAY_MIN
    assert times_of("0 0 29 2 *").shortest_distance() == 1461 * DAY_MIN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0 0 * * *", (CYCLE_WEEKS,) * 7),
        ("0 0 * * 1-5", (0, *(CYCLE_WEEKS,) * 5, 0)),
        ("0 0 29 2 *", (1,) * 7),
        ("0 0 1 * *", (48,) * 7),
    ],
)
def test_a_cycle_of_the_calendar_has_each_weekday_equally_often(text, expected):
    assert times_of(text).days_by_weekday() == expected


def test_the_table_ends_without_an_error():
    end = DAYS_END * DAY_MIN
    last = (date(YEAR_LAST, 12, 31) - EPOCH).days * DAY_MIN
    times = times_of("0 0 * * *")
    assert times.at_or_after(last) == last
    assert times.at_or_after(last + 1) is None
    assert times.at_or_after(end * 10) is None
    assert times.at_or_before(end * 10) == last
    assert times.count(last, end * 10) == 1
    assert times_of("0 0 29 2 *").at_or_after(last) is None


def test_the_table_begins_without_an_error():
    times = times_of("30 0 * * *")
    assert times.at_or_after(-(10**9)) == 30
    assert times.at_or_before(29) is None
    assert times.at_or_before(-5) is None
    assert times.count(-(10**9), 31) == 1


def test_minutes_of_a_day_rise():
    assert minutes_of_day(0b101, 0b11) == (0, 1, 120, 121)
    assert len(minutes_of_day((1 << 24) - 1, (1 << 60) - 1)) == DAY_MIN


def test_day_fields_combine_by_and_only_where_one_begins_with_a_star():
    # crontab(5): "if both fields are restricted (i.e., do not contain the * character)".
    friday_13 = (date(2026, 11, 13) - EPOCH).days * DAY_MIN
    assert times_of("0 0 13 * */5").count(friday_13, friday_13 + 1) == 1
    assert times_of("0 0 13 * 1").at_or_after(friday_13 + 1) == friday_13 + 3 * DAY_MIN
    assert times_of("0 0 */2 * 5").at_or_after(friday_13 + 1) == friday_13 + 14 * DAY_MIN
