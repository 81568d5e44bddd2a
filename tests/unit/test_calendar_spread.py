"""Placement of `?`: peaks stay low, nothing placed moves, the same jobs give the same places."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cron.calendar.expression import parse
from cron.calendar.load import UNIT, Load
from cron.calendar.schedule import check, compile
from cron.calendar.spread import PLACEMENT_VERSION, keep, place, place_all
from cron.errors import InvariantViolated
from cron.job import Schedule
from launcher.protocol.names import parse_time

DAY_S = 86_400
WINTER_S = parse_time("2026-01-14T00:00:00Z")
SUMMER_S = parse_time("2026-07-15T00:00:00Z")


def wanted(text, zone="UTC"):
    return parse(text).schedule(zone)


def per_minute(schedules, from_s=WINTER_S, days=1):
    """Return how many launches each minute has, found by stepping and not by the table."""
    counts = Counter()
    for schedule, count in Counter(schedules).items():
        for tick in compile(schedule).between(from_s - 1, from_s + days * DAY_S - 1, limit=99_999):
            counts[tick.scheduled_s] += count
    return counts


def test_daily_jobs_are_one_a_minute_before_any_minute_has_two():
    placed = place_all([wanted("? ? * * *")] * 1440, Load())
    assert len(set(placed)) == 1440
    (more,) = place_all([wanted("? ? * * *")], Load())
    assert more.resolved == placed[0].resolved


def test_what_is_fixed_is_counted_first_and_kept_away_from():
    fixed = [wanted("*/5 * * * *")] * 50 + [wanted("0 0 * * *")] * 100
    placed = place_all([wanted("? ? * * *")] * 300 + fixed, Load())
    assert all(int(schedule.resolved.split()[0]) % 5 for schedule in placed[:300])
    assert placed[300:] == fixed


def test_on_an_empty_table_no_round_minute_is_chosen():
    schedule = place(wanted("? ? * * *"), Load())
    assert int(schedule.resolved.split()[0]) % 5
    assert place(wanted("? 0 * * *"), Load()).resolved.split()[0] not in ("0", "30")


def test_a_placed_schedule_is_plain_and_says_by_which_version():
    schedule = place(wanted("?/15 2-6 * * ?", "Asia/Tokyo"), Load())
    assert schedule.placement == PLACEMENT_VERSION == 2
    assert schedule.text == "?/15 2-6 * * ?"
    assert schedule.zone == "Asia/Tokyo"
    assert "?" not in schedule.resolved
    check(schedule)


def test_a_schedule_that_needs_no_place_is_returned_as_it_is():
    for schedule in (wanted("0 0 * * *"), wanted("@every 5s"), place(wanted("? * * * *"), Load())):
        assert place(schedule, Load()) is schedule


@given(
    st.sampled_from(["?", "?(0-9)", "?/20", "*/7", "5", "?(3-40)/5"]),
    st.sampled_from(["?", "?(2-6)", "?/6", "*", "3", "1-5"]),
    st.sampled_from(["*", "?", "?(1-7)", "15"]),
    st.sampled_from(["*", "?", "2", "?/3"]),
    st.sampled_from(["*", "?", "?(1-5)", "6"]),
    st.sampled_from(["UTC", "America/St_Johns", "Pacific/Kiritimati", "Pacific/Pago_Pago"]),
    st.integers(0, 2**32),
)
def test_every_choice_is_one_that_the_text_allows(minute, hour, day, month, weekday, zone, seed):
    chance = random.Random(seed)
    load = Load()
    for _ in range(5):
        load.add(wanted(f"{chance.randrange(60)} {chance.randrange(24)} * * {chance.randrange(7)}"))
    text = f"{minute} {hour} {day} {month} {weekday}"
    schedule = place(wanted(text, zone), load)
    for field, value in zip(parse(text).fields, schedule.resolved.split(), strict=True):
        allowed = [option.text for option in field.options] or [field.text]
        assert value in allowed
    check(schedule)
    assert compile(schedule).next(WINTER_S) is not None


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from([
    "? ? * * *", "?/15 * * * *", "0 0 * * *", "7 3 * * 1-5", "0 9 1 * *", "? 4 * * 6", "@every 5m",
    "@every 11s", "* * * * *"]), st.sampled_from(["UTC", "Asia/Kolkata", "America/New_York"])),
    max_size=12), st.randoms(use_true_random=False))  # fmt: skip
def test_what_is_removed_leaves_nothing_behind(asked, chance):
    load = Load()
    placed = place_all([wanted(text, zone) for text, zone in asked], load)
    load.top("UTC")
    chance.shuffle(placed)
    for schedule in placed:
        load.remove(schedule)
    assert load.top("UTC") == [0] * 1440
    assert load.top_of([3], "Asia/Kolkata") == [0] * 1440
    assert not any(sum(load.days(place)) for place in range(3))


def test_the_table_counts_what_stepping_finds():
    load = Load()
    schedules = [
        wanted("0 9 * * *"), wanted("*/10 8 * * 2,4"), wanted("@every 6h"),
        wanted("30 0 * * 1", "Asia/Tokyo"), wanted("45 23 * * 5", "Asia/Tokyo"),
        wanted("15 20 * * 6", "America/New_York"),
    ]  # fmt: skip
    for schedule in schedules:
        load.add(schedule)
    sunday_s = parse_time("2026-01-11T00:00:00Z")
    for weekday in range(7):
        counts = per_minute(schedules, sunday_s + weekday * DAY_S)
        expected = [
            counts[sunday_s + weekday * DAY_S + minute * 60] * UNIT for minute in range(1440)
        ]
        # In summer New York is an hour nearer; that row counts too, as the worse of the two.
        counts = per_minute(schedules, SUMMER_S - 3 * DAY_S + weekday * DAY_S)
        summer = [
            counts[SUMMER_S - 3 * DAY_S + weekday * DAY_S + minute * 60] * UNIT
            for minute in range(1440)
        ]
        assert load.top_of([weekday], "UTC") == list(map(max, expected, summer))


def test_the_row_of_a_weekday_is_in_the_time_of_its_zone():
    # Half past midnight on a Monday in Tokyo is Sunday afternoon in UTC.
    load = Load()
    load.add(wanted("30 0 * * 1", "Asia/Tokyo"))
    monday_in_tokyo = load.top_of([1], "Asia/Tokyo")
    assert monday_in_tokyo[30] == sum(monday_in_tokyo) == UNIT
    sunday = load.top_of([0], "UTC")
    assert sunday[15 * 60 + 30] == sum(sunday) == UNIT
    assert sum(load.top_of([0], "Asia/Tokyo")) == 0


def test_a_schedule_without_a_place_cannot_be_counted():
    with pytest.raises(InvariantViolated):
        Load().add(Schedule("? * * * *"))


def test_a_hundred_thousand_fixed_jobs_are_a_thousand_entries(monkeypatch):
    entered = []
    monkeypatch.setattr(Load, "_enter_fields", lambda _, *entry: entered.append(entry))
    load = Load()
    for number in range(100_000):
        load.add(Schedule("", f"{number % 50} {number % 20} * * *"))
    load.top("UTC")
    assert len(entered) == 100
    assert sum(weight for _, _, weight, _ in entered) == 100_000


def test_a_launch_counts_in_each_minute_in_which_it_runs():
    load = Load()
    nightly = wanted("50 23 * * *")
    load.add(nightly, weight=2, run_min=20)
    row = load.top("UTC")
    assert [at for at, count in enumerate(row) if count] == [*range(10), *range(1430, 1440)]
    assert {*row} == {0, 2 * UNIT}
    load.remove(nightly, weight=2, run_min=20)
    assert load.top("UTC") == [0] * 1440


def test_a_job_that_runs_longer_than_its_period_counts_once_in_each_minute():
    for text in ("0 * * * *", "*/7 * * * *", "@every 1h", "@every 7m"):
        load = Load()
        load.add(wanted(text), run_min=100)
        assert load.top("UTC") == [UNIT] * 1440 or text == "@every 7m"
    assert load.top("UTC") == [UNIT] * 1440


def test_a_question_mark_keeps_clear_of_jobs_that_run_long():
    load = Load()
    load.add(wanted("0 3 * * *"), run_min=50)
    for _ in range(10):
        schedule = place(wanted("? 3 * * *"), load)
        assert int(schedule.resolved.split()[0]) >= 50
        load.add(schedule)


def test_a_long_job_gets_a_time_at_which_all_of_it_is_free():
    load = Load()
    for minute in (10, 25, 59):
        load.add(wanted(f"{minute} 3 * * *"))
    schedule = place(wanted("? 3 * * *"), load, run_min=30)
    assert 26 <= int(schedule.resolved.split()[0]) <= 29


def test_a_job_of_many_parts_weighs_as_many_jobs():
    load = Load()
    load.add(wanted("* 3 * * *"), weight=5)
    load.add(wanted("30-59 3 * * *"), weight=-4)
    placed = place_all([wanted("? 3 * * *")] * 100, load, [1] * 100)
    assert all(int(one.resolved.split()[0]) >= 30 for one in placed)


def test_a_place_of_the_first_version_never_moves():
    before = Schedule("? 3 * * *", "17 3 * * *", "UTC", 0, 1)
    kept = keep(before, wanted("? 3 * * *"))
    assert kept == before


def old(text="? ?(2-6) * * 1", resolved="17 3 * * 1", zone="UTC"):
    return Schedule(text, resolved, zone, 0, PLACEMENT_VERSION)


@pytest.mark.parametrize(
    ("before", "text", "resolved"),
    [
        (old(), "? ?(2-6) * * 1", "17 3 * * 1"),
        (old(), "?  ?(2-6)  *  *  1", "17 3 * * 1"),
        (old(), "? ?(2-6) * * 2-5", "17 3 * * 2-5"),
        (old(), "? ?(2-6) 1 6 *", "17 3 1 6 *"),
        (old(), "? 5 * * *", "17 5 * * *"),
        (old("? ? ? * *", "1 2 28 * *"), "? ? ? 2 *", "1 2 28 2 *"),
        (old("0 0 ?(1-31) * *", "0 0 31 * *"), "0 0 ?(1-31) 1 *", "0 0 31 1 *"),
    ],
)
def test_the_same_question_keeps_its_answer(before, text, resolved):
    kept = keep(before, wanted(text))
    assert kept.resolved == resolved
    assert kept.placement == PLACEMENT_VERSION
    assert kept.text == wanted(text).text


@pytest.mark.parametrize(
    ("before", "text"),
    [
        (old(), "? ?(2-7) * * 1"),
        (old(), "?/15 ?(2-6) * * 1"),
        (old(), "? ?(2-6) ? * 1"),
        (old(), "17 3 * * 1"),
        (old(), "@every 5s"),
        (old("0 0 ?(1-31) * *", "0 0 31 * *"), "0 0 ?(1-31) 2 *"),
        (Schedule("17 3 * * *", "17 3 * * *"), "? 3 * * *"),
        (Schedule("@every 5s", "", "UTC", 5), "? ? * * *"),
    ],
)
def test_another_question_is_answered_anew(before, text):
    assert keep(before, wanted(text)) is None


def test_a_place_is_kept_in_another_zone():
    assert keep(old(), wanted("? ?(2-6) * * 1", "Asia/Tokyo")) == old(zone="Asia/Tokyo")


_SCRIPT = """
from cron.calendar.expression import parse
from cron.calendar.load import Load
from cron.calendar.spread import place_all
forms = ["? ? * * *", "?/15 * * * *", "? ?(2-6) * * ?", "? ? ? * *"]
zones = ["UTC", "America/New_York", "Asia/Kolkata"]
asked = [parse(forms[n % 4]).schedule(zones[n % 3]) for n in range(400)]
print([s.resolved for s in place_all(asked, Load())])
"""


def test_places_do_not_depend_on_the_process():
    found = set()
    for seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, check=True
        )
        found.add(run.stdout)
    assert len(found) == 1
    assert len(found.pop()) > 400
