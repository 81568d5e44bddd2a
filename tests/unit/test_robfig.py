"""Schedules of robfig/cron v3, against a naive model of its parser and of its search for days.

The cases are of the kinds that robfig's own tests have (`parser_test.go`, `spec_test.go`), written
anew.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.calendar.expression import parse
from cron.calendar.schedule import compile
from cron.crontab.robfig import differs_at_shifts, duration_ns, read_robfig
from cron.errors import InvalidInput
from cron.job import Schedule

LIMITS = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)]
NAMES = {
    3: ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    4: ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}
YEAR = datetime(2028, 1, 1, tzinfo=UTC)  # a leap year, which begins on a Saturday
DAY_S = 86_400


# ---- a naive model


def naive_number(index: int, text: str) -> int:
    names = NAMES.get(index, [])
    return names.index(text.lower()) + LIMITS[index][0] if text.lower() in names else int(text)


def naive_field(index: int, text: str) -> tuple[set[int], bool]:
    """The values of a field, and whether robfig sets its star bit."""
    least, most = LIMITS[index]
    values, star = set[int](), False
    for item in text.split(","):
        if not item:
            continue
        span, _, step = item.partition("/")
        ends = span.split("-")
        if ends[0] in ("*", "?"):
            low, high = least, most
            star = star or not step or int(step) == 1
        else:
            low = high = naive_number(index, ends[0])
            if len(ends) > 1:
                high = naive_number(index, ends[1])
            elif step:
                high = most
        values |= {value for value in range(low, high + 1) if (value - low) % int(step or 1) == 0}
    return values, star


def naive_days(fields: list[tuple[set[int], bool]]) -> list[datetime]:
    """The days of a year on which robfig is due."""
    days, months, weekdays = fields[2], fields[3], fields[4]
    found = []
    for number in range(366):
        day = YEAR + timedelta(days=number)
        of_month, of_week = day.day in days[0], day.isoweekday() % 7 in weekdays[0]
        is_day = of_month and of_week if days[1] or weekdays[1] else of_month or of_week
        if day.month in months[0] and is_day:
            found.append(day)
    return found


def check_same(text: str) -> None:
    """The schedule of ours has the instants of the model: the same days, and as many times, which
    are the same on the first day."""
    fields = [naive_field(index, word) for index, word in enumerate(text.split())]
    due = read_robfig(text, has_seconds=False)
    ticks = compile(Schedule(due.text, parse(due.text).resolved))
    days = naive_days(fields)
    begin = int(YEAR.timestamp())
    times = [hour * 60 + minute for hour in sorted(fields[1][0]) for minute in sorted(fields[0][0])]
    assert ticks.count(begin - 1, begin + 366 * DAY_S - 1) == len(days) * len(times), due
    for day in days:
        at = int(day.timestamp())
        assert ticks.next(at - 1) == at + times[0] * 60, (due, day)
    for day in days[:1]:
        at = int(day.timestamp())
        found = [tick.scheduled_s for tick in ticks.between(at - 1, at + DAY_S - 1, limit=1440)]
        assert found == [at + one * 60 for one in times]


def items(index: int) -> st.SearchStrategy[str]:
    least, most = LIMITS[index]
    numbers = st.integers(least, most)
    steps = st.sampled_from(["", "", "/1", "/2", "/3", "/7", "/40", "/90"])
    spans = st.tuples(numbers, numbers).map(lambda two: f"{min(two)}-{max(two)}")
    stars = st.sampled_from(["*", "?", "*", "?", "*-3"])
    names = [name.upper() for name in NAMES.get(index, [])] or ["*"]
    whole = st.one_of(stars, spans, numbers.map(str), st.sampled_from(names))
    return st.tuples(whole, steps).map("".join)


def texts(index: int) -> st.SearchStrategy[str]:
    return st.lists(items(index), min_size=1, max_size=3).map(",".join)


@given(st.tuples(*(texts(index) for index in range(5))).map(" ".join))
def test_a_schedule_has_the_instants_of_robfig_over_a_year(text: str) -> None:
    if naive_days([naive_field(index, word) for index, word in enumerate(text.split())]):
        check_same(text)


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ("0 3 * * ?", "0 3 * * *"), ("0 3 ? * *", "0 3 * * *"), ("? ? ? ? ?", "* * * * *"),
        # A step above 1 takes the star away: either day field is enough.
        ("0 0 */2 * 1", "0 0 1-31/2 * 1"), ("0 0 1 * */2", "0 0 1 * 0-6/2"),
        ("0 0 */2 * */3", "0 0 1-31/2 * 0-6/3"), ("0 0 */2 * *", "0 0 */2 * *"),
        # A step of 1 does not, and one star of a list is enough; what is behind `*-` counts not.
        ("0 0 */1 * 1", "0 0 * * 1"), ("0 0 *,5 * 1", "0 0 * * 1"), ("0 0 *-3 * 1", "0 0 * * 1"),
        ("0 0 1-31 * 1", "0 0 1-31 * 1"), ("0 0 5,*/40 * 1", "0 0 1,5 * 1"),
        # Steps above the size of a field leave its first value.
        ("*/90 * * * *", "0 * * * *"), ("0 */24 * * *", "0 0 * * *"), ("7/60 1 * * *", "7 1 * * *"),
        ("0 0 1 */13 *", "0 0 1 1 *"), ("1,,2 * * * *", "1,2 * * * *"), ("+5 * * * *", "5 * * * *"),
        ("0 9 * * MON-FRI", "0 9 * * MON-FRI"), ("0 0 * * 1/2", "0 0 * * 1-5/2"),
        ("@daily", "@daily"), ("@every 1h30m", "@every 1h30m"), ("@every 10ms", "@every 1s"),
        ("@every 1.5s", "@every 1s"), ("@every -1h", "@every 1s"),
    ],
)  # fmt: skip
def test_what_robfig_reads_in_its_own_way(text: str, here: str) -> None:
    assert read_robfig(text, has_seconds=False).text == here
    if not text.startswith("@"):
        check_same(text)


@pytest.mark.parametrize(
    ("text", "here", "second"),
    [
        ("*/90 * * * * *", "* * * * *", 0), ("0 0 0 */2 * 1", "0 0 1-31/2 * 1", 0),
        ("0 */15 * * * *", "*/15 * * * *", 0), ("30 0 1 * * *", "0 1 * * *", 30),
        ("*/10 * * * * *", "@every 10s", 0), ("0,30 * ? * * ?", "@every 30s", 0),
        ("* * * * * *", "@every 1s", 0), ("* * * 1-31 * 1", "@every 1s", 0),
    ],
)  # fmt: skip
def test_seconds_are_a_whole_minute_or_an_even_period(text: str, here: str, second: int) -> None:
    due = read_robfig(text, has_seconds=True)
    assert (due.text, due.second) == (here, second)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("*/7 * * * * *", "no even period"), ("5/10 * * * * *", "no even period"),
        ("0,20 * * * * *", "no even period"), ("*/10 5 * * * *", "whole minutes"),
        ("* * * * * 1", "whole minutes"), ("* * * */2 * *", "whole minutes"),
        ("0 * * * *", "5 fields, and not six"), ("~ * * * * *", "not a number"),
    ],
)  # fmt: skip
def test_seconds_that_no_job_here_has_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        read_robfig(text, has_seconds=True)


@pytest.mark.parametrize(
    "text",
    [
        "0 0 * * 7", "60 * * * *", "5-2 * * * *", "*/0 * * * *", "0 22-6 * * *", "0 0 L * *",
        ", * * * *", "a * * * *", "1-2-3 * * * *", "1/2/3 * * * *", "-5 * * * *", "* * * *",
        "* * * * * *", "0 0 * * sunday", "? * * * * ?", "@Daily", "@reboot", "@every", "@every 5",
        "@every  1h", "@every 1x", "TZ=UTC", "0 0 * * 1#2", "\u0661 * * * *", "",
    ],
)  # fmt: skip
def test_what_robfig_refuses_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        read_robfig(text, has_seconds=False)


def test_a_zone_in_front_of_a_schedule_is_its_zone() -> None:
    assert read_robfig("TZ=Europe/Berlin 0 4 * * *", has_seconds=False).zone == "Europe/Berlin"
    assert read_robfig("CRON_TZ=Asia/Tokyo @daily", has_seconds=False) == (
        "@daily",
        "Asia/Tokyo",
        0,
    )
    assert read_robfig("0 4 * * *", has_seconds=False).zone is None


@pytest.mark.parametrize(
    ("text", "ns"),
    [("0", 0), ("1ns", 1), ("1.5h", 5400 * 10**9), (".5m", 30 * 10**9), ("2h45m", 9900 * 10**9),
     ("-1.s", -(10**9)), ("1us1ms", 1_001_000), ("1\u00b5s", 1000)],
)  # fmt: skip
def test_durations_of_go(text: str, ns: int) -> None:
    assert duration_ns(text) == ns


@pytest.mark.parametrize(
    ("text", "zone", "differs"),
    [
        ("30 2 * * *", "Europe/Berlin", True), ("30 3 * * *", "Europe/Berlin", False),
        ("30 2 * * *", "UTC", False), ("*/5 2 * * *", "Europe/Berlin", False),
        ("30 0 * * *", "America/Sao_Paulo", False), ("15 0 * * *", "America/Havana", True),
        ("@every 5s", "Europe/Berlin", False), ("30 2 * * *", None, False),
    ],
)  # fmt: skip
def test_a_fixed_time_that_a_change_of_clocks_moves_is_found(
    text: str, zone: str | None, differs: bool
) -> None:
    assert differs_at_shifts(text, zone) is differs
