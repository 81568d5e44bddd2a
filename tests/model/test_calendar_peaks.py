"""How even thousands of placed jobs are, counted by stepping and not by the table."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from cron.calendar.expression import parse
from cron.calendar.load import Load
from cron.calendar.schedule import compile
from cron.calendar.spread import place_all
from launcher.protocol.names import parse_time

DAY_S = 86_400
WINTER_S = parse_time("2026-01-14T00:00:00Z")
SUMMER_S = parse_time("2026-07-15T00:00:00Z")


def wanted(text, zone="UTC"):
    return parse(text).schedule(zone)


def per_minute(schedules, from_s=WINTER_S):
    """Return how many launches each minute of one day has."""
    counts = Counter()
    for schedule, count in Counter(schedules).items():
        for tick in compile(schedule).between(from_s - 1, from_s + DAY_S - 1, limit=1440):
            counts[tick.scheduled_s] += count
    return counts


def peak_to_mean(schedules):
    counts = per_minute(schedules)
    return max(counts.values()) * 1440 / sum(counts.values())


@pytest.mark.nightly
def test_ten_thousand_daily_jobs_peak_at_most_a_tenth_above_the_mean():
    placed = place_all([wanted("? ? * * *")] * 10_000, Load())
    assert peak_to_mean(placed) <= 1.1
    # By chance the peak would be more than twice the mean; that is what the measure must show.
    chance = random.Random(1)
    thrown = [wanted(f"{chance.randrange(60)} {chance.randrange(24)} * * *") for _ in placed]
    assert peak_to_mean(thrown) > 2


def test_a_mix_of_forms_peaks_at_most_a_tenth_above_the_mean():
    chance = random.Random(7)
    forms = ["? ? * * *"] * 6 + ["? * * * *"] * 2
    forms += ["?/15 * * * *", "? ?(0-5) * * *", "? ?/6 * * *"]
    schedules = [wanted(chance.choice(forms)) for _ in range(5000)]
    assert peak_to_mean(place_all(schedules, Load())) <= 1.1


@pytest.mark.nightly
def test_in_zones_with_daylight_saving_both_seasons_are_even():
    zones = ["UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe"]
    schedules = [wanted("? ? * * *", zones[number % 4]) for number in range(4000)]
    placed = place_all(schedules, Load())
    # 4000 jobs are 2.8 a minute: three would be ideal, four is one off.
    assert max(per_minute(placed, WINTER_S).values()) <= 4
    assert max(per_minute(placed, SUMMER_S).values()) <= 4


@pytest.mark.nightly
def test_jobs_that_come_and_go_for_long_stay_even():
    chance = random.Random("churn")
    load = Load()
    placed = place_all([wanted("? ? * * *")] * 1440, load)
    for _ in range(2000):
        number = chance.randrange(len(placed))
        load.remove(placed[number])
        (placed[number],) = place_all([wanted("? ? * * *")], load)
    assert max(per_minute(placed).values()) == 1
