"""The shared cases: instants written by hand first, in 26 zones, and expressions to refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cron.calendar.expression import parse
from cron.calendar.schedule import check, compile
from cron.crontab.reader import read_crontab
from cron.errors import ScheduleError
from launcher.protocol.names import format_time, parse_time

CASES = json.loads((Path(__file__).parents[1] / "data" / "cron_cases.json").read_text("utf-8"))
ACCEPTED = [case for case in CASES if not case.get("reject")]
REJECTED = [case for case in CASES if case.get("reject")]


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["id"])
def test_the_next_instants_are_those_written_by_hand(case):
    ticks = compile(parse(case["expr"]).schedule(case["tz"]))
    after_s = parse_time(case["after"])
    found = []
    for _ in case["expected"]:
        after_s = ticks.next(after_s)
        found.append(format_time(after_s))
    assert found == case["expected"]


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["id"])
def test_going_back_finds_the_same_instants(case):
    ticks = compile(parse(case["expr"]).schedule(case["tz"]))
    expected = [parse_time(text) for text in case["expected"]]
    after_s = parse_time(case["after"])
    assert [t.scheduled_s for t in ticks.between(after_s, expected[-1], limit=99)] == expected
    assert ticks.count(after_s, expected[-1]) == len(expected)
    assert [t.scheduled_s for t in ticks.newest(after_s, expected[-1], 99)] == expected
    assert ticks.newest(after_s, expected[-1], 2) == ticks.newest(after_s, expected[-1], 99)[-2:]


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["id"])
def test_croniter_reads_the_same_fields(case):
    check(parse(case["expr"]).schedule(case["tz"]))


@pytest.mark.parametrize("case", REJECTED, ids=lambda case: case["id"])
def test_what_another_dialect_might_mean_is_refused_with_place_and_way_out(case):
    with pytest.raises(ScheduleError) as caught:
        parse(case["expr"])
    assert 1 <= caught.value.column <= len(case["expr"]) + 1
    assert caught.value.hint


def test_a_crontab_of_all_cases_is_accepted_as_it_stands():
    lines = [f"CRON_TZ={case['tz']}\n{case['expr']} true" for case in ACCEPTED]
    reading = read_crontab("\n".join(lines).encode(), file="tab")
    assert reading.errors == []
    for case, job in zip(ACCEPTED, reading.jobs, strict=True):
        first_s = compile(job.schedule).next(parse_time(case["after"]))
        assert format_time(first_s) == case["expected"][0], case["id"]


@pytest.mark.parametrize("case", REJECTED, ids=lambda case: case["id"])
def test_a_crontab_of_a_case_to_refuse_is_refused(case):
    assert read_crontab(f"{case['expr']} true".encode(), file="tab").errors
