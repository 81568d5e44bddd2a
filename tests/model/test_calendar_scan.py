"""The fast calendar against one that looks at every minute, around every kind of clock change."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.calendar import zones
from cron.calendar.expression import parse
from cron.calendar.schedule import compile
from tests.model.oracle import Spec, scan

DAY_S = 86_400

# Zones by what is odd about them: gaps of 1 h, 30 min, 2 h, 3 h and a whole day; changes at
# midnight, at 00:01 and across it; offsets that are no whole hours; negative daylight saving.
ZONES = [
    "America/New_York",
    "Europe/London",
    "Europe/Dublin",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Africa/Cairo",
    "Pacific/Apia",
    "Antarctica/Casey",
    "Antarctica/Troll",
    "America/St_Johns",
    "America/Sao_Paulo",
    "America/Havana",
    "Asia/Tehran",
    "Asia/Kathmandu",
    "Pacific/Chatham",
    "UTC",
]


@pytest.fixture(autouse=True)
def _pinned():
    zones.pin()


@lru_cache
def changes(zone_name):
    """Return the UTC seconds near which the zone's offset changes, 1975 to 2037, to the hour."""
    zone = ZoneInfo(zone_name)
    start = int(datetime(1975, 1, 1, tzinfo=UTC).timestamp())
    end = int(datetime(2037, 12, 1, tzinfo=UTC).timestamp())
    found = []
    before = None
    for at_s in range(start, end, DAY_S // 2):
        offset = datetime.fromtimestamp(at_s, zone).utcoffset()
        if before is not None and offset != before:
            found.append(at_s)
        before = offset
    return found or [1_700_000_000]


def one_field(low, high, stars=("*", "*/2", "*/15", "*/20")):
    number = st.integers(low, high)
    span = st.tuples(number, number)
    part = st.one_of(
        number.map(str),
        span.map(lambda ab: f"{ab[0]}-{ab[1]}"),
        st.tuples(span, st.integers(1, 20)).map(lambda x: f"{x[0][0]}-{x[0][1]}/{x[1]}"),
    )
    return st.one_of(
        st.sampled_from(stars),
        number.map(str),
        st.lists(part, min_size=1, max_size=3).map(",".join),
    )


EXPRESSIONS = st.tuples(
    one_field(0, 59),
    st.one_of(one_field(0, 23, ("*", "*/2", "*/3")), one_field(0, 4)),
    st.one_of(st.just("*"), one_field(1, 31, ("*", "*/2", "*/10"))),
    # Not to end in dates that never come: those are refused, which is another test.
    st.sampled_from(["*", "*", "1,3-5,7-12", "*/1"]),
    st.one_of(st.just("*"), one_field(0, 7, ("*", "*/2"))),
).map(" ".join)


_OF_MONTH = ("L", "LW", "L-2", "L-30", "L-1W", "1W", "15W", "30W", "31W")
_OF_WEEK = ("0L", "1L", "5L", "6L", "0#1", "5#2", "3#4", "6#5")
SPECIALS = st.tuples(
    st.sampled_from(["0", "30", "*/20"]),
    st.sampled_from(["2", "0,23", "*/6"]),
    st.lists(st.sampled_from([*_OF_MONTH, "7", "29"]), min_size=1, max_size=3).map(",".join)
    | st.sampled_from(["*", "*/2"]),
    st.just("*"),
    st.lists(st.sampled_from([*_OF_WEEK, "2", "4"]), min_size=1, max_size=3).map(",".join)
    | st.sampled_from(["*", "*/3"]),
).map(" ".join)


def check_window(text, zone_name, after_s, until_s):
    expected = scan(text, zone_name, after_s, until_s)
    ticks = compile(parse(text).schedule(zone_name))
    found = ticks.between(after_s, until_s, limit=100_000)
    seen = [(tick.scheduled_s, tick.local_min) for tick in found]
    assert seen == expected, (text, zone_name, after_s)
    for tick in found:
        assert tick.nominal_min == (tick.local_min if ticks.is_fixed else -1)
    assert ticks.count(after_s, until_s) == len(expected), (text, zone_name, after_s)
    assert ticks.newest(after_s, until_s, 100_000) == found, (text, zone_name, after_s)
    instants = [tick.scheduled_s for tick in found]
    assert instants == sorted(set(instants))
    if ticks.is_fixed:
        locals_ = [tick.local_min for tick in found]
        assert locals_ == sorted(set(locals_)), "a fixed job has each local minute once"


@pytest.mark.parametrize("zone_name", ZONES)
def test_around_clock_changes_every_instant_is_that_of_the_scanner(zone_name):
    # Seeded: (zone name) so that a failure repeats.
    chance = random.Random(f"scan {zone_name}")
    texts = [
        "30 1 * * *", "30 2 * * *", "0 0 * * *", "30 23 * * *", "15 0,1,2,3 * * *", "0 * * * *",
        "*/15 * * * *", "*/20 1-3 * * *", "0 */2 * * *", "0-59/7 0-4 * * *", "59 23 * * 6,7",
        "30 2 1-31 * 1", "0 12 30 * *", "10,50 1-4 */2 * *",
    ]  # fmt: skip
    for at_s in chance.sample(changes(zone_name), min(5, len(changes(zone_name)))):
        begin = at_s - 2 * DAY_S + chance.randrange(DAY_S)
        for text in chance.sample(texts, 5):
            check_window(text, zone_name, begin, begin + int(2.5 * DAY_S))


@given(EXPRESSIONS, st.sampled_from(ZONES), st.integers(0, 10_000), st.integers(-DAY_S, DAY_S))
def test_any_schedule_in_any_zone_agrees_with_the_scanner(text, zone_name, number, shift_s):
    known = changes(zone_name)
    begin = known[number % len(known)] - DAY_S + shift_s
    check_window(text, zone_name, begin, begin + 2 * DAY_S)


@given(EXPRESSIONS, st.sampled_from(ZONES), st.integers(0, 10_000), st.integers(-DAY_S, DAY_S))
def test_next_is_strictly_later_and_previous_is_its_way_back(text, zone_name, number, shift_s):
    known = changes(zone_name)
    at_s = known[number % len(known)] + shift_s
    ticks = compile(parse(text).schedule(zone_name))
    later, earlier = ticks.next(at_s), ticks.previous(at_s)
    assert later is not None
    assert earlier is not None
    assert earlier < at_s < later
    assert ticks.next(earlier) in (later, at_s)
    assert ticks.previous(later) in (earlier, at_s)
    assert ticks.next(later - 1) == later
    assert ticks.count(earlier, later) == (2 if ticks.next(earlier) == at_s else 1)


def test_where_a_year_of_the_table_begins_nothing_changes():
    # Segments also end at the edges of tabled years, which are no clock changes.
    for number, zone_name in enumerate(ZONES):
        edge_s = (number + 40) * 366 * DAY_S
        for text in ("*/30 * * * *", "45 0-23 * * *"):
            check_window(text, zone_name, edge_s - DAY_S // 2, edge_s + DAY_S // 2)


def test_a_fold_across_the_edge_of_a_tabled_year_repeats_nothing(monkeypatch):
    # Every fold of Lord Howe and New York is moved to such an edge by making years that short.
    for zone_name in ("Australia/Lord_Howe", "America/New_York"):
        minutes = [
            minute
            for at_s in changes(zone_name)[-4:]
            for minute in range(at_s // 60 - 900, at_s // 60 + 300, 7)
        ]
        usual = zones.Zone(zone_name, ZoneInfo(zone_name))
        expected = [usual.segment(minute) for minute in minutes]
        with monkeypatch.context() as patch:
            patch.setattr(zones, "_YEAR_MIN", 25)
            cut = zones.Zone(zone_name, ZoneInfo(zone_name))
            for minute, whole in zip(minutes, expected, strict=True):
                short = cut.segment(minute)
                assert whole.start <= short.start <= minute < short.end <= whole.end
                assert short.end - short.start <= 25
                assert short.offset == whole.offset
                begin = short.start + short.offset
                assert max(short.fresh_from, begin) == max(whole.fresh_from, begin)


def days_of(text, first, last):
    """Return the days from first to last on which a schedule of midnights in UTC is due."""
    spec = Spec(text)
    return [
        day
        for number in range((last - first).days + 1)
        if spec.matches_day(day := first + timedelta(days=number))
    ]


@given(SPECIALS, st.sampled_from(ZONES), st.integers(0, 10_000), st.integers(-30, 30))
def test_days_that_depend_on_the_month_agree_with_the_scanner(text, zone_name, number, days):
    known = changes(zone_name)
    begin = known[number % len(known)] - DAY_S + days * DAY_S
    check_window(text, zone_name, begin, begin + 2 * DAY_S)


@given(SPECIALS, st.integers(1971, 2100))
def test_days_that_depend_on_the_month_are_those_of_a_walk_through_ten_years(text, year):
    text = f"0 0 {text.split(' ', 2)[2]}"
    first, last = date(year, 1, 1), date(year + 9, 12, 31)
    ticks = compile(parse(text).schedule("UTC"))
    begin = int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) - 1
    end = int(datetime(year + 9, 12, 31, tzinfo=UTC).timestamp())
    found = ticks.between(begin, end, limit=4_000)
    assert [date.fromordinal(t.local_min // 1440 + 719_163) for t in found] == days_of(
        text, first, last
    )
    assert ticks.count(begin, end) == len(found)
    assert ticks.newest(begin, end, 4_000) == found
