"""The calendar against croniter and cronsim, where they should agree; and day by day for decades.

Both libraries differ from us by design in a repeated hour (croniter launches fixed jobs twice,
cronsim follows Debian's three-hour limit), so time zones are compared in whole-hour zones away from
clock changes, and everything else on UTC.
"""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from cronsim import CronSim

from cron.calendar import zones
from cron.calendar.expression import parse
from cron.calendar.schedule import compile
from cron.errors import ScheduleError
from tests.drawn import nightly_but

DAY_S = 86_400


@pytest.fixture(autouse=True)
def _pinned():
    zones.pin()


def random_field(chance, low, high, *, star=True):
    kind = chance.randrange(6)
    a, b = sorted((chance.randint(low, high), chance.randint(low, high)))
    if kind == 0 and star:
        return "*"
    if kind == 1 and star:
        return f"*/{chance.randint(1, high)}"
    if kind == 2 and a < b:
        return f"{a}-{b}"
    if kind == 3 and a < b:
        return f"{a}-{b}/{chance.randint(1, 9)}"
    if kind == 4:
        return ",".join(str(n) for n in sorted(chance.sample(range(low, high + 1), 3)))
    return str(chance.randint(low, high))


def random_expressions(chance, count):
    """Yield texts that all three dialects read alike.

    Left out: `*/n` in one day field beside a restricted other, which croniter joins by "or" where
    Debian, cronsim and we take "and".
    """
    while count:
        day, weekday = chance.choice([("*", "*"), ("*", None), (None, "*"), (None, None)])
        fields = [
            random_field(chance, 0, 59),
            random_field(chance, 0, 23),
            day or random_field(chance, 1, 28, star=False),
            random_field(chance, 1, 12),
            weekday or random_field(chance, 0, 6, star=False),
        ]
        yield " ".join(fields)
        count -= 1


def test_on_utc_croniter_finds_the_same_instants():
    chance = random.Random("croniter")
    for text in random_expressions(chance, 250):
        after_s = chance.randrange(0, 4_000_000_000)
        ticks = compile(parse(text).schedule("UTC"))
        theirs = croniter(text, datetime.fromtimestamp(after_s, UTC).replace(tzinfo=None))
        at_s = after_s
        for _ in range(3):
            at_s = ticks.next(at_s)
            naive = theirs.get_next(datetime)
            assert at_s == int(naive.replace(tzinfo=UTC).timestamp()), (text, after_s)


def test_on_utc_cronsim_finds_the_same_instants():
    chance = random.Random("cronsim")
    for text in random_expressions(chance, 250):
        after_s = chance.randrange(0, 4_000_000_000)
        ticks = compile(parse(text).schedule("UTC"))
        theirs = CronSim(text, datetime.fromtimestamp(after_s, UTC))
        at_s = after_s
        for _ in range(3):
            at_s = ticks.next(at_s)
            assert at_s == int(next(theirs).timestamp()), (text, after_s)


@pytest.mark.parametrize("zone_name", ["America/New_York", "Europe/Berlin", "Australia/Sydney"])
@pytest.mark.parametrize("text", ["30 2 * * *", "0 1 * * *", "0 * * * *", "*/10 * * * *"])
def test_in_whole_hour_zones_cronsim_agrees_through_clock_changes(text, zone_name):
    ticks = compile(parse(text).schedule(zone_name))
    for start in (datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 10, 1, tzinfo=UTC)):
        theirs = CronSim(text, start.astimezone(ZoneInfo(zone_name)))
        at_s = int(start.timestamp())
        until_s = at_s + 40 * DAY_S
        while at_s < until_s:
            at_s = ticks.next(at_s)
            assert at_s == int(next(theirs).timestamp()), (text, zone_name)


def local_days(zone_name):
    """Return the number of local dates from 1990 to 2037 that the zone has at all."""
    days = (date(2038, 1, 1) - date(1990, 1, 1)).days
    # Dates that never were: nobody in these zones lived through them.
    skipped = {
        "Pacific/Apia": [2011],
        "Pacific/Fakaofo": [2011],
        "Pacific/Kwajalein": [1993],
        "Pacific/Kiritimati": [1994],
        "Pacific/Kanton": [1994],
        "Pacific/Enderbury": [1994],
    }
    return days - len(skipped.get(zone_name, []))


DAILY_ZONES = [
    "Africa/Cairo", "Africa/Casablanca", "Africa/El_Aaiun", "Africa/Lagos", "America/Asuncion",
    "America/Caracas", "America/Havana", "America/Los_Angeles", "America/New_York",
    "America/Nuuk", "America/Santiago", "America/Sao_Paulo", "America/St_Johns",
    "Antarctica/Casey", "Antarctica/Troll", "Asia/Amman", "Asia/Gaza", "Asia/Jerusalem",
    "Asia/Kathmandu", "Asia/Kolkata", "Asia/Pyongyang", "Asia/Tehran", "Asia/Tokyo",
    "Australia/Lord_Howe", "Australia/Sydney", "Europe/Berlin", "Europe/Dublin", "Europe/Istanbul",
    "Europe/London", "Europe/Moscow", "Pacific/Apia", "Pacific/Auckland", "Pacific/Chatham",
    "Pacific/Fiji", "Pacific/Kiritimati", "Pacific/Kwajalein", "UTC",
]  # fmt: skip
SMOKES = ("Africa/Casablanca", "America/New_York", "Antarctica/Troll", "Pacific/Apia", "UTC")


@pytest.mark.parametrize("zone_name", nightly_but(DAILY_ZONES, SMOKES.__contains__))
def test_a_daily_job_runs_exactly_once_on_each_local_day_of_48_years(zone_name):
    zone = ZoneInfo(zone_name)
    begin = int(datetime(1990, 1, 1, tzinfo=zone).timestamp())
    end = int(datetime(2038, 1, 1, tzinfo=zone).timestamp())
    for text in ("0 0 * * *", "30 1 * * *", "15 2 * * *", "30 23 * * *"):
        ticks = compile(parse(text).schedule(zone_name))
        assert ticks.count(begin - 1, end - 1) == local_days(zone_name), text
    # And one of them walked, with the local day of each.
    ticks = compile(parse("30 2 * * *").schedule(zone_name))
    days = [tick.local_min // 1440 for tick in ticks.between(begin - 1, end - 1, limit=20_000)]
    assert len(days) == len(set(days)) == local_days(zone_name)


@pytest.mark.nightly
@pytest.mark.slow
def test_in_every_zone_there_is_a_daily_launch_on_each_day_of_four_years():
    for zone_name in sorted(zones.zone_names()):
        zone = ZoneInfo(zone_name)
        begin = int(datetime(2024, 1, 1, tzinfo=zone).timestamp())
        end = int(datetime(2028, 1, 1, tzinfo=zone).timestamp())
        ticks = compile(parse("30 2 * * *").schedule(zone_name))
        assert ticks.count(begin - 1, end - 1) == 1461, zone_name


def test_every_minute_of_the_year_is_found_in_a_zone_that_changes():
    ticks = compile(parse("* * * * *").schedule("America/New_York"))
    begin = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    assert ticks.count(begin - 1, begin + 365 * DAY_S - 1) == 365 * 1440


def test_impossible_dates_are_refused_exactly_where_croniter_is_strict():
    chance = random.Random("impossible")
    for _ in range(300):
        day = random_field(chance, 27, 31, star=False)
        month = random_field(chance, 1, 12)
        text = f"0 0 {day} {month} *"
        assert is_accepted(text) == croniter.is_valid(text, strict=True), text


def is_accepted(text):
    try:
        parse(text)
    except ScheduleError:
        return False
    return True


def test_the_first_hour_of_time_is_found_and_nothing_before_it():
    ticks = compile(parse("*/30 * * * *").schedule("UTC"))
    assert ticks.next(-(10**12)) == 0
    assert ticks.previous(1) == 0
    assert ticks.previous(0) is None
    assert datetime.fromtimestamp(ticks.next(0), UTC) - timedelta(minutes=30) == datetime(
        1970, 1, 1, tzinfo=UTC
    )
