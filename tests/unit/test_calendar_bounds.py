"""Start, end and calendars of schedules, against a filter of the instants without them."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.calendar.expression import parse
from cron.calendar.schedule import compile
from cron.crontab import calendar_file
from cron.crontab.bounds import day_text
from cron.crontab.calendar_file import read_days
from cron.crontab.jobfile import read_jobs_toml
from cron.crontab.reader import read_crontab
from cron.errors import CrontabError
from cron.job import Bounds, Schedule
from cron.limits import CALENDAR_DAYS_MAX
from launcher.protocol.columns import differences
from launcher.protocol.names import format_time, parse_time

DATA = Path(__file__).parents[1] / "data"
BEGIN_S = parse_time("2027-03-20T00:00:00Z")
DAY_S = 86_400
DAYS = st.integers(0, 40)


def bounded(text, zone, **fields):
    return msgspec.structs.replace(parse(text).schedule(zone), bounds=Bounds(**fields))


@given(
    st.sampled_from(["*/30 * * * *", "30 2 * * *", "0 */5 * * 1-5", "15 0,23 L * *", "@every 5h"]),
    st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "Pacific/Apia"]),
    st.none() | st.tuples(DAYS, st.integers(0, DAY_S)),
    st.none() | st.tuples(DAYS, st.integers(0, DAY_S)),
    st.none() | st.tuples(st.sets(DAYS, max_size=20), st.booleans()),
    st.integers(-DAY_S, 40 * DAY_S),
)
def test_bounds_leave_out_what_a_filter_leaves_out(text, zone, start, end, calendar, at_s):
    plain = parse(text).schedule(zone)
    start_s = BEGIN_S + start[0] * DAY_S + start[1] if start else 0
    end_s = BEGIN_S + end[0] * DAY_S + end[1] if end else 0
    first = BEGIN_S // DAY_S
    days = sorted(first + day for day in calendar[0]) if calendar else []
    is_only = bool(calendar) and calendar[1]
    if plain.every_s:
        days, is_only, calendar = [], False, None
    name = "hol" if calendar else ""
    bounds = Bounds(start_s, end_s, name, is_only, tuple(differences(days)))
    ticks = compile(msgspec.structs.replace(plain, bounds=bounds))
    until_s = BEGIN_S + 45 * DAY_S

    def fits(tick):
        is_in = (tick.local_min // 1440 in days) == is_only if calendar else True
        return is_in and start_s <= tick.scheduled_s and (not end_s or tick.scheduled_s <= end_s)

    every = compile(plain).between(BEGIN_S - 2 * DAY_S, until_s, limit=10_000)
    wanted = [tick for tick in every if fits(tick)]
    found = ticks.between(BEGIN_S - 2 * DAY_S, until_s, limit=10_000)
    if calendar and ticks.is_fixed:
        # A gap joins several local minutes: the last of those that count is said, not of all.
        assert [one.scheduled_s for one in found] == [one.scheduled_s for one in wanted]
    else:
        assert found == wanted
    assert ticks.count(BEGIN_S - 2 * DAY_S, until_s) == len(wanted)
    assert ticks.newest(BEGIN_S - 2 * DAY_S, until_s, 10_000) == found
    now_s = BEGIN_S + at_s
    later = ticks.tick_after(now_s)
    if later is not None and later.scheduled_s <= until_s:
        assert later == next(one for one in found if one.scheduled_s > now_s)
    assert ticks.is_fixed == compile(plain).is_fixed


def test_only_days_that_are_over_are_never():
    ticks = compile(bounded("0 0 * * *", "UTC", calendar="a", is_only=True, days=(20_000,)))
    assert ticks.next(20_000 * DAY_S) is None
    assert ticks.previous(30_000 * DAY_S) == 20_000 * DAY_S
    none = compile(bounded("0 0 * * *", "UTC", calendar="a", is_only=True))
    assert none.next(0) is None
    assert none.previous(30_000 * DAY_S) is None
    assert none.count(0, 30_000 * DAY_S) == 0


@pytest.mark.parametrize(
    ("zone", "start", "end", "start_at", "end_at"),
    [
        ("UTC", "2027-01-01", "2027-01-31", "2027-01-01T00:00:00Z", "2027-01-31T23:59:59Z"),
        ("Europe/Berlin", "2027-01-01", "2027-07-31", "2026-12-31T23:00:00Z",
         "2027-07-31T21:59:59Z"),
        ("Europe/Berlin", "2027-01-01T06:00", "2027-01-01T07:30Z", "2027-01-01T05:00:00Z",
         "2027-01-01T07:30:00Z"),
        # A time that a clock change skips is the first after it, one that is repeated the first.
        ("Europe/Berlin", "2027-03-28T02:30", "2027-10-31T02:30", "2027-03-28T01:00:00Z",
         "2027-10-31T00:30:00Z"),
        ("UTC", "'2027-01-01 06:00:10+02:00'", "2027-01-02", "2027-01-01T04:00:10Z",
         "2027-01-02T23:59:59Z"),
    ],
)  # fmt: skip
def test_times_are_of_the_zone_of_the_job(zone, start, end, start_at, end_at):
    text = f"CRON_TZ={zone}\n#: start={start} end={end}\n0 * * * * x\n"
    (job,) = read_crontab(text.encode(), file="f").jobs
    bounds = job.schedule.bounds
    assert (format_time(bounds.start_s), format_time(bounds.end_s)) == (start_at, end_at)


def test_a_job_file_may_have_dates_of_toml():
    text = b"""
[[job]]
schedule = "0 9 * * *"
command = "x"
zone = "Europe/Berlin"
start = 2027-01-01
end = 2027-01-31T12:00:00
calendar = "de:only"
"""
    reading = read_jobs_toml(text, file="f")
    assert reading.problems == []
    (job,) = reading.jobs
    assert job.schedule.bounds == Bounds(
        parse_time("2026-12-31T23:00:00Z"), parse_time("2027-01-31T11:00:00Z"), "de", True
    )


# ---- files of calendars


def days_of(text, until_year=2030):
    found = read_days(text.encode(), file="f", until_year=until_year)
    return [day_text(day) for day in found]


def event(*lines):
    return "\r\n".join(["BEGIN:VCALENDAR", "BEGIN:VEVENT", *lines, "END:VEVENT", "END:VCALENDAR"])


def test_a_file_of_dates_is_read_in_order_and_once():
    text = "\ufeff# holidays\n2027-12-26\n2027-12-25 Christmas\n\n2027-12-25, again\n"
    assert days_of(text) == ["2027-12-25", "2027-12-26"]
    assert days_of("") == []


@pytest.mark.parametrize(
    ("text", "days"),
    [
        (event("DTSTART;VALUE=DATE:20271225", "SUMMARY:a"), ["2027-12-25"]),
        (
            event("DTSTART;VALUE=DATE:20271224", "DTEND;VALUE=DATE:20271227"),
            ["2027-12-24", "2027-12-25", "2027-12-26"],
        ),
        (event("DTSTART:20271225", "DURATION:P2D"), ["2027-12-25", "2027-12-26"]),
        (event("DTSTART;TZID=Europe/Berlin:20271225T220000", "DTEND:20271226T010000Z"),
         ["2027-12-25", "2027-12-26"]),
        (event("DTSTART:20271225T220000", "DTEND:20271226T000000"), ["2027-12-25"]),
        (event("DTSTART:20271225", "STATUS:CANCELLED"), []),
        (event("DTSTART:20280229", "RRULE:FREQ=YEARLY;UNTIL=20320301"), ["2028-02-29"]),
        (
            event("DTSTART:20271225", "RRULE:FREQ=YEARLY", "EXDATE;VALUE=DATE:20281225"),
            ["2027-12-25", "2029-12-25", "2030-12-25"],
        ),
        (
            event("DTSTART:20271225", "RRULE:FREQ=YEARLY;COUNT=2", "RDATE:20271231"),
            ["2027-12-25", "2027-12-31", "2028-12-25"],
        ),
        # A line that goes on, an alarm with a time of its own, and what has no colon.
        (
            event("DTSTART;VALUE=DA", " TE:20271225", "BEGIN:VALARM", "DTSTART:x", "END:VALARM",
                  "odd"),
            ["2027-12-25"],
        ),
    ],
)  # fmt: skip
def test_whole_days_of_icalendar_are_read(text, days):
    assert days_of(text) == days


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("2027-12-25\n25.12.2027\n", 2, "'25.12.2027' is not a date", "2026-12-25 on each line"),
        ("2027-02-29\n", 1, "'2027-02-29' is not a date", "2026-12-25"),
        ("1969-12-31\n", 1, "is not a date", "2026-12-25"),
        ("2199-01-01\n", 1, "is not a date", "2026-12-25"),
        ("\n" + event("SUMMARY:a"), 3, "event 'a' has no DTSTART", "DTSTART;VALUE=DATE:20261225"),
        (event("DTSTART:20271340"), 2, "its DTSTART cannot be read", "DTSTART"),
        (event("DTSTART:20271225", "RRULE:FREQ=YEARLY;COUNT=x"), 2, "its RRULE cannot be", "DTS"),
        (event("DTSTART:20271225", "RRULE:BYDAY=MO"), 2, "repeated by no rule: BYDAY=MO", "FREQ"),
        (event("DTSTART:20271225", "RRULE:FREQ=DAILY;INTERVAL=0"), 2, "by no rule", "FREQ"),
        (event("DTSTART:20271225", "EXDATE:x"), 2, "its EXDATE cannot be read", "DTSTART"),
        (event("DTSTART:20271225", "DTEND:20371225"), 2, "more than 2000 days", "shorter"),
        (event("DTSTART:20271225", "DTEND:20271224"), 2, "ends before it begins", "DTEND"),
        (event("DTSTART:20271225", "DTEND:20271226", "DURATION:P1D"), 2, "DTEND and DUR", "one"),
        (event("DTSTART:20271225", "DURATION:P99999999999D"), 2, "its DURATION cannot", "DTS"),
        (event("DTSTART:99991231", "DURATION:P9D"), 2, "cannot be followed", "its days"),
        (event("DTSTART:20271225", "EXRULE:FREQ=DAILY"), 2, "has EXRULE", "EXDATE;VALUE=DATE:2"),
        (event("DTSTART:20271225", "EXDATE;VALUE=PERIOD:20271225T000000/P1D"), 2, "peri", "EXD"),
        (event("DTSTART:20271225", "STATUS:CONFIRMED", "STATUS:CANCELLED"), 2, "STATUS", "rem"),
        (event("DTSTART:20271225").replace("\r\n", "\r\nMETHOD:CANCEL\r\n", 1), 0, "METHOD", "exp"),
        (event("DTSTART:57880425").replace("\r\n", "\r\nCALSCALE:HEBREW\r\n", 1), 0, "HEB", "Greg"),
        (event("DTSTART:20271225").replace("VEVENT", "VTODO"), 0, "it has no event", "VTODO"),
        ("BEGIN:VCALENDAR\r\nEND:VCALENDAR\r\n", 0, "it has no event", "VTODO"),
        ("BEGIN:VCALENDAR\nodd\nEND:VCALENDAR", 0, "it is not iCalendar", "export it once more"),
        ("BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART:20271225", 2, "does not end", "END:VEVENT"),
    ],
)
def test_a_calendar_that_does_not_parse_is_refused_with_its_place(text, line, message, hint):
    with pytest.raises(CrontabError) as caught:
        days_of(text)
    (problem,) = caught.value.problems
    assert problem.line == line
    assert message in problem.message
    assert hint in problem.hint


def test_a_file_of_icalendar_that_is_empty_is_refused():
    with pytest.raises(CrontabError, match="it has no event"):
        read_days(b"\n", file="HOL.ICS", until_year=2030)


def test_a_calendar_is_bounded_and_is_text():
    many = "\n".join(day_text(day) for day in range(CALENDAR_DAYS_MAX + 1))
    with pytest.raises(CrontabError, match="2001 days, at most 2000"):
        days_of(many)
    with pytest.raises(CrontabError, match="more than 1048576 bytes"):
        days_of("#" * (1 << 20) + "#")
    with pytest.raises(CrontabError, match="not UTF-8"):
        read_days(b"2027-12-25\n\xff", file="f", until_year=2030)


def many_events(*events):
    whole = [line for one in events for line in ("BEGIN:VEVENT", *one, "END:VEVENT")]
    return "\r\n".join(["BEGIN:VCALENDAR", *whole, "END:VCALENDAR"])


def test_single_times_of_an_event_are_moved_and_cancelled():
    text = (DATA / "calendar-recurrence-id.ics").read_text()
    assert days_of(text) == ["2026-12-25", "2027-12-27", "2029-12-25", "2030-12-25"]


BERLIN = "TZID=Europe/Berlin"


@pytest.mark.parametrize(
    ("events", "days"),
    [
        # The newest of two changes of one time counts, and one with all that follow moves them too.
        ([("UID:1", "DTSTART:20271225", "RRULE:FREQ=YEARLY;COUNT=2"),
          ("UID:1", "RECURRENCE-ID:20271225", "SEQUENCE:1", "DTSTART:20271220"),
          ("UID:1", "RECURRENCE-ID:20271225", "SEQUENCE:2", "DTSTART:20271221")],
         ["2027-12-21", "2028-12-25"]),
        ([("UID:1", "DTSTART:20271201", "RRULE:FREQ=DAILY;COUNT=3"),
          ("UID:1", "RECURRENCE-ID;RANGE=THISANDFUTURE:20271202", "DTSTART:20271212")],
         ["2027-12-01", "2027-12-12", "2027-12-13"]),
        # The day is that of the event's zone, whatever zone the other value has.
        ([("UID:1", f"DTSTART;{BERLIN}:20271224T003000", "RRULE:FREQ=DAILY;COUNT=3"),
          ("UID:1", "RECURRENCE-ID:20271224T233000Z", "STATUS:CANCELLED",
           f"DTSTART;{BERLIN}:20271225T003000")],
         ["2027-12-24", "2027-12-26"]),
        ([(f"DTSTART;{BERLIN}:20271224T003000", "RRULE:FREQ=DAILY;COUNT=3",
           "EXDATE:20271224T233000Z")], ["2027-12-24", "2027-12-26"]),
        ([("UID:1", "DTSTART:20271225", "STATUS:CANCELLED", "RRULE:FREQ=YEARLY")], []),
        ([("DTSTART:20271225", "STATUS:TENTATIVE"), ("DTSTART:20271226", "STATUS:CONFIRMED")],
         ["2027-12-25", "2027-12-26"]),
        ([("DTSTART:20271225", "RDATE;VALUE=PERIOD:20271228T000000Z/P2D", "EXDATE:20271225")],
         ["2027-12-28", "2027-12-29"]),
        ([("DTSTART:20270104", "RRULE:FREQ=MONTHLY;BYDAY=1MO;UNTIL=20270401")],
         ["2027-01-04", "2027-02-01", "2027-03-01"]),
        ([("DTSTART:20270101", "RRULE:FREQ=WEEKLY;INTERVAL=2;COUNT=3")],
         ["2027-01-01", "2027-01-15", "2027-01-29"]),
        ([("DTSTART:20280229", "RRULE:FREQ=YEARLY")], ["2028-02-29"]),
        # Outlook's rules begin in 1601, and a moment at midnight ends the day before.
        ([("DTSTART:16010101T000000", "DURATION:P1D",
           "RRULE:FREQ=YEARLY;BYMONTH=12;BYMONTHDAY=25;UNTIL=19711231T000000")],
         ["1970-12-25", "1971-12-25"]),
        ([("DTSTART:20271225", "DURATION:PT1H")], ["2027-12-25"]),
        ([("DTSTART:20271225T230000", "DURATION:PT1H")], ["2027-12-25"]),
        ([("DTSTART:20271225T230000", "DURATION:PT61M")], ["2027-12-25", "2027-12-26"]),
    ],
)  # fmt: skip
def test_events_are_repeated_as_rfc_5545_says(events, days):
    found = [day for day in days_of(many_events(*events)) if day >= "1970-02"]
    assert found == days


def test_events_that_wrongly_have_one_uid_are_all_days():
    same = [("UID:1", "DTSTART:20271225"), ("UID:1", "DTSTART:20271226")]
    assert days_of(many_events(*same)) == ["2027-12-25", "2027-12-26"]
    newer = [(*same[0], "SEQUENCE:1"), (*same[1], "SEQUENCE:2")]
    assert days_of(many_events(*newer)) == ["2027-12-26"]
    moved = [*same, ("UID:1", "RECURRENCE-ID:20271225", "DTSTART:20271227")]
    with pytest.raises(CrontabError, match="event 'without a name' has the UID of another one"):
        days_of(many_events(*moved))


def test_lines_are_those_of_rfc_5545():
    text = event("DTSTART:20271225", "SUMMARY:a\u2028b\x85c", "DTEND:2027", " 1226", "")
    assert days_of(text.replace("VCALENDAR", "vcalendar").replace("VEVENT", "vevent")) == [
        "2027-12-25"
    ]
    assert days_of(text.replace("\r\n", "\n")) == ["2027-12-25"]


def test_zones_of_a_file_are_those_of_its_days():
    own = "\r\n".join([
        "BEGIN:VTIMEZONE", "TZID:Far", "BEGIN:STANDARD", "DTSTART:16010101T000000",
        "TZOFFSETFROM:+1200", "TZOFFSETTO:+1200", "END:STANDARD", "END:VTIMEZONE", "BEGIN:VEVENT",
    ])  # fmt: skip
    text = event("DTSTART;TZID=Far:20271225T000000", "DTEND:20271225T110000Z")
    assert days_of(text.replace("BEGIN:VEVENT", own)) == ["2027-12-25"]
    late = event("DTSTART:20271225T230000Z", "DTEND:20271225T233000Z")
    assert days_of(late) == ["2027-12-25"]
    in_tokyo = late.replace("BEGIN:VEVENT", "X-WR-TIMEZONE:Asia/Tokyo\r\nBEGIN:VEVENT")
    assert days_of(in_tokyo) == ["2027-12-26"]


def test_events_of_the_same_days_again_and_again_are_refused_soon():
    years = "DTSTART:19700101", "DTEND:19750101"
    days = ",".join(f"1971{month:02}{day:02}" for month in range(1, 13) for day in range(1, 29))
    for lines in ((*years, f"RDATE:{days}"), (*years, "RRULE:FREQ=YEARLY")):
        one = "\r\n".join(["BEGIN:VEVENT", *lines, "END:VEVENT"])
        with pytest.raises(CrontabError, match="events have more than 40000 days"):
            days_of("\r\n".join(["BEGIN:VCALENDAR", *[one] * 300, "END:VCALENDAR"]))
    with pytest.raises(CrontabError, match="more than 10 rules"):
        days_of(event("DTSTART:20271225", *["RRULE:FREQ=YEARLY"] * 11))


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=SECONDLY", "FREQ=MINUTELY", "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=DAILY;BYHOUR=0,1,2,3,4,5,6,7,8,9;BYMINUTE=0,1,2,3,4,5,6,7,8,9;BYSECOND=0,1,2,3,4,5",
    ],
)  # fmt: skip
def test_a_rule_that_is_always_or_never_due_is_refused_after_a_bounded_work(rule, monkeypatch):
    monkeypatch.setattr(calendar_file, "_WORK_MAX", 200_000)
    fine = "BEGIN:VEVENT\nDTSTART:20260101\nSUMMARY:fine\nRRULE:FREQ=YEARLY\nEND:VEVENT\n"
    hostile = event("DTSTART:20260101T000000", "SUMMARY:often", f"RRULE:{rule}")
    text = hostile.replace("BEGIN:VEVENT", fine + "BEGIN:VEVENT")
    with pytest.raises(CrontabError) as caught:
        days_of(text)
    (problem,) = caught.value.problems
    assert problem.line == 7
    assert problem.message == "event 'often' is repeated by a rule that takes too long to follow"
    assert sys.getprofile() is None


def test_lines_and_events_of_a_file_are_bounded():
    with pytest.raises(CrontabError, match="more than 2000 events or 50000 lines"):
        days_of(event("DTSTART:20271225", *["X:"] * 50_000))
    one = "\r\n".join(["BEGIN:VEVENT", "DTSTART:20271225", "END:VEVENT"])
    with pytest.raises(CrontabError, match="more than 2000 events or 50000 lines"):
        days_of("\r\n".join(["BEGIN:VCALENDAR", *[one] * 2_001, "END:VCALENDAR"]))


def test_days_behind_the_last_year_are_left_out():
    assert days_of(event("DTSTART:21981230", "DURATION:P9D")) == ["2198-12-30", "2198-12-31"]


@given(st.text(max_size=80) | st.lists(
    st.sampled_from(["BEGIN:VCALENDAR", "BEGIN:VEVENT", "END:VEVENT", "DTSTART:20271225",
                     "DTEND:20271226", "RRULE:FREQ=YEARLY", "EXDATE:1", " x", "BEGIN:", "END:a"])
).map("\n".join))  # fmt: skip
def test_any_text_is_days_or_an_error(text):
    found = []
    with suppress(CrontabError):
        found = days_of(text)
    assert all(day.startswith(("19", "20", "21")) for day in found)


def test_schedules_without_bounds_are_encoded_as_before():
    coded = msgspec.msgpack.encode(Schedule("@daily", "0 0 * * *"))
    assert msgspec.msgpack.decode(coded, type=Schedule) == Schedule("@daily", "0 0 * * *")
    older = msgspec.msgpack.encode(["@daily", "0 0 * * *", "UTC", 0, 0])
    assert msgspec.msgpack.decode(older, type=Schedule).bounds is None
