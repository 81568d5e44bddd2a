"""L, # and W: days that depend on the month, written by hand, with what is said of them."""

from __future__ import annotations

import pytest

from cron.calendar.expression import parse
from cron.calendar.load import Load
from cron.calendar.schedule import check, compile, shortest_period_s
from cron.calendar.spread import place
from cron.web.console.words import in_words
from launcher.protocol.names import format_time, parse_time

DAYS = [
    # schedule; its canonical days; the days after 2027-12-31; in words
    ("L *", "L *", ["01-31", "02-29", "03-31"], "the last day of the month"),
    (
        "L-3 *",
        "L-3 *",
        ["01-28", "02-26", "03-28"],
        "the day that is 3 days before the last one of the month",
    ),
    ("l-30 *", "L-30 *", ["01-01", "03-01", "05-01"], "30 days before"),
    ("LW *", "LW *", ["01-31", "02-29", "03-31", "04-28"], "from Monday to Friday"),
    ("15W *", "15W *", ["01-14", "02-15", "03-15", "04-14", "05-15"], "nearest to day 15"),
    ("1w *", "1W *", ["01-03", "02-01", "03-01"], "nearest to day 1"),
    ("31W *", "31W *", ["01-31", "03-31", "05-31", "07-31", "08-31"], "nearest to day 31"),
    ("* 5L", "* 5L", ["01-28", "02-25", "03-31"], "the last Friday of the month"),
    ("* FRI#2", "* 5#2", ["01-14", "02-11", "03-10"], "the second Friday of the month"),
    ("* sunday#1", "* 0#1", ["01-02", "02-06", "03-05"], "the first Sunday of the month"),
    ("* 7L", "* 0L", ["01-30", "02-27", "03-26"], "the last Sunday of the month"),
    ("* mon#5", "* 1#5", ["01-31", "05-29", "07-31"], "the fifth Monday of the month"),
    ("1,L *", "1,L *", ["01-01", "01-31", "02-01", "02-29"], "days 1,L"),
    ("* 1#1,3#3", "* 1#1,3#3", ["01-03", "01-19", "02-07", "02-16"], "weekdays 1#1,3#3"),
    ("L 5", "L 5", ["01-07", "01-14", "01-21", "01-28", "01-31"], "and on Friday"),
    ("*/2 5L", "*/2 5L", ["02-25", "03-31", "08-25"], "5L"),
]


@pytest.mark.parametrize(("days", "canonical", "expected", "words"), DAYS)
def test_the_days_are_those_written_by_hand(days, canonical, expected, words):
    day, weekday = days.split()
    expression = parse(f"30 6 {day} * {weekday}")
    schedule = expression.schedule("UTC")
    check(schedule, expression.columns)
    assert schedule.resolved == "30 6 {} * {}".format(*canonical.split())
    ticks = compile(schedule)
    found, at_s = [], parse_time("2027-12-31T06:30:00Z")
    for _ in expected:
        at_s = ticks.next(at_s)
        found.append(format_time(at_s))
    assert found == [f"2028-{one}T06:30:00Z" for one in expected]
    assert words in in_words(schedule.text, schedule.resolved, "UTC")


def test_a_chosen_minute_of_the_last_day_is_chosen_for_that_day():
    load = Load()
    for _ in range(3):
        load.add(place(parse("? ? LW * *").schedule("UTC"), load))
    schedule = place(parse("? ? * * 5L").schedule("Europe/Berlin"), load)
    assert schedule.resolved.endswith(" * * 5L")
    check(schedule)
    at_s = compile(schedule).next(parse_time("2028-01-01T00:00:00Z"))
    assert format_time(at_s)[:10] in ("2028-01-27", "2028-01-28")


def test_such_days_follow_the_wall_clock_when_it_changes():
    # 2027-03-28 is the last Sunday of March: 02:30 is skipped in Berlin.
    ticks = compile(parse("30 2 * * 0L").schedule("Europe/Berlin"))
    at_s = ticks.next(parse_time("2027-03-01T00:00:00Z"))
    assert format_time(at_s) == "2027-03-28T01:00:00Z"
    # 2027-10-31, the last Sunday of October, has 02:30 twice: only the first counts.
    at_s = ticks.next(parse_time("2027-10-30T00:00:00Z"))
    assert format_time(at_s) == "2027-10-31T00:30:00Z"
    assert format_time(ticks.next(at_s)) == "2027-11-28T01:30:00Z"


def test_a_day_that_is_rare_is_found_or_is_never():
    ticks = compile(parse("0 0 * 2 5#5").schedule("UTC"))
    assert format_time(ticks.next(parse_time("2036-02-29T00:00:00Z"))) == "2064-02-29T00:00:00Z"
    assert ticks.next(parse_time("2199-01-01T00:00:00Z")) is None
    assert shortest_period_s("0 0 L * *") == 28 * 86_400
    assert shortest_period_s("0 0 L-1,1 * *") == 2 * 86_400


@pytest.mark.parametrize(
    ("text", "warned", "noted"),
    [
        ("0 0 L * *", [], ["day of month L means the last day of the month"]),
        ("0 0 1,L-1 * *", [], ["L-1 means the day that is 1 day before the last one"]),
        ("0 0 * * fri#5", ["fri#5 is not in every month"], ["the fifth Friday of the month"]),
        ("0 0 L * 5", ["L or day of week 5 is enough"], ["the last day"]),
    ],
)
def test_lint_says_what_such_a_day_means(text, warned, noted):
    expression = parse(text)
    for found, expected in ((expression.warnings, warned), (expression.notes, noted)):
        assert len(found) == len(expected)
        for one, part in zip(found, expected, strict=True):
            assert part in one.message
            assert one.hint
