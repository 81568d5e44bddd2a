"""Reading five fields, aliases, @every and `?`."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cron import limits
from cron.calendar.duration import format_duration, parse_duration
from cron.calendar.expression import parse
from cron.calendar.schedule import LAST_MIN, check, compile
from cron.errors import ScheduleError
from cron.job import Schedule
from launcher.protocol.names import format_time, parse_time

REFUSED = [
    # text, part of the message, column, part of the hint
    ("61 * * * *", "minute 61 is not in 0-59", 1, "0 to 59"),
    ("* 24 * * *", "hour 24 is not in 0-23", 3, "write an hour from 0 to 23"),
    ("* * 0 * *", "day of month 0 is not in 1-31", 5, "1 to 31"),
    ("* * 32 * *", "day of month 32 is not in 1-31", 5, "1 to 31"),
    ("* * * 13 *", "month 13 is not in 1-12", 7, "1 to 12"),
    ("* * * * 8", "day of week 8 is not in 0-7", 9, "0 to 7"),
    ("1,2,99 * * * *", "minute 99 is not in 0-59", 5, "0 to 59"),
    ("0-99 * * * *", "minute 99 is not in 0-59", 3, "0 to 59"),
    ("  0   99 * * *", "hour 99 is not in 0-23", 7, "0 to 23"),
    ("* * * *", "schedule has 4 fields, not five", 8, "minute hour day-of-month"),
    ("*", "schedule has one field, not five", 2, "minute hour day-of-month"),
    ("", "schedule is empty", 1, "five fields"),
    ("   ", "schedule is empty", 1, "five fields"),
    ("* * * * * *", "schedule has 6 fields, not five", 11, "@every 1s"),
    ("0 0 0 1 1 * 2030", "schedule has 7 fields, not five", 11, "write 0 0 1 1 *, or"),
    ("0 0 0W * *", "day of month 0 is not in 1-31", 5, "1 to 31"),
    ("0 0 1,32W * *", "day of month 32 is not in 1-31", 7, "1 to 31"),
    ("0 0 L-31 * *", "day of month L-31 is in no month", 5, "L-1 to L-30"),
    ("0 0 L-30 2 *", "day of month L-30 never comes in month 2", 5, "1 to 29"),
    ("0 0 31W 2,4 *", "day of month 31W never comes in month 2,4", 5, "1 to 30"),
    ("0 0 5#2 * *", "day of month 5#2 is a day of week", 5, "5#2 in the fifth field"),
    ("0 0 fri#2 * *", "day of month fri#2 is a day of week", 5, "fri#2 in the fifth field"),
    ("0 0 L5 * *", "day of month L5 is a day of week", 5, "5L in the fifth field"),
    ("0 0 15#2 * *", "day of month 15#2 is no day", 5, "like 5#2 in the fifth field"),
    ("0 0 * * L", "day of week L does not say which day", 9, "write 5L for the last Friday"),
    ("0 0 * * L5", "day of week L5 is no day", 9, "did you mean 5L"),
    ("0 0 * * fri#L", "day of week fri#L is no day", 9, "did you mean 5L"),
    ("0 0 * * 1,fri#6", "day of week fri#6 is in no month", 11, "5#1 to 5#5, or 5L"),
    ("0 0 * * 7#0", "day of week 7#0 is in no month", 9, "0#1 to 0#5, or 0L"),
    ("0 0 * * mon-fri#1", "day of week mon-fri#1 is no day", 9, "several with commas"),
    ("0 0 * * 15W", "day of week 15W is a day of month", 9, "in the third field"),
    ("L * * * *", "minute 'L' is not a number", 1, "0-59"),
    ("0 0 L/2 * *", "day of month 'L' is not a number", 5, "1-31"),
    ("0 0 ?,L * *", "day of month '?,L' is not a form of ?", 5, "alone in its field"),
    ("H * * * *", "minute H is not part of crontab(5)", 1, "write ?,"),
    ("H/15 * * * *", "minute H/15 is not part of", 1, "write ?/15,"),
    ("H(0-29)/10 * * * *", "is not part of", 1, "write ?(0-29)/10,"),
    ("R * * * *", "minute R is not part of", 1, "write ?,"),
    ("0 0 30 2 *", "day of month 30 never comes in month 2", 5, "1 to 29"),
    ("0 0 31 2,4,6,9,11 *", "never comes", 5, "1 to 30"),
    ("0 0 30 2 */2", "never comes", 5, "1 to 29"),
    ("0 0 ?(30-31) 2 1", "never comes", 5, "1 to 29"),
    ("0 0 ?(30-31) 2 *", "never comes", 5, "1 to 29"),
    ("0 0 31 ? *", "never comes", 5, "1 to 29"),
    ("0\u00a00 * * *", "schedule has the character U+00A0", 2, "ASCII"),
    ("\u0665 * * * *", "schedule has the character U+0665", 1, "ASCII"),
    ("0 0 * * *\n", "schedule has the character U+000A", 10, "ASCII"),
    ("\0 * * * *", "schedule has the character U+0000", 1, "ASCII"),
    ("0 0 * * 1/2", "day of week 1/2 does not say where it ends", 9, "1-6/2 or 1-7/2"),
    ("*/0 * * * *", "minute step 0 never moves", 3, "at least 1"),
    ("*/x * * * *", "minute step 'x' is not a number", 3, "*/2"),
    ("*/ * * * *", "minute step '' is not a number", 3, "*/2"),
    ("1//2 * * * *", "minute step '/2' is not a number", 3, "1/2"),
    ("1- * * * *", "minute has a number missing in '1-'", 3, "1-5"),
    ("-1 * * * *", "minute -1 begins with -", 1, "write 1"),
    ("0 -1 * * *", "hour has a number missing in '-1'", 3, "1-5"),
    (", * * * *", "minute has a number missing", 1, "1-5"),
    ("1,,2 * * * *", "minute has a number missing", 3, "1-5"),
    ("0 0 * * mondey", "day of week 'mondey' is not a number", 9, "did you mean mon?"),
    ("0 0 * * noday", "day of week 'noday' is not a number", 9, "sun mon"),
    ("0 0 mon * *", "day of month 'mon' is not a number", 5, "1-31"),
    ("+5 * * * *", "minute '+5' is not a number", 1, "0-59"),
    ("1_0 * * * *", "minute '1_0' is not a number", 1, "0-59"),
    ("@reboot", "@reboot has no instant", 1, "systemd"),
    ("@dayly", "@dayly is not a known schedule", 1, "did you mean @daily?"),
    ("@fortnightly", "is not a known schedule", 1, "@yearly @annually @monthly"),
    ("@", "@ is not a known schedule", 1, "@yearly"),
    ("@daily 5", "@daily stands alone", 8, "remove"),
    ("@every", "@every has no period", 1, "@every 90s"),
    ("@every 90", "period 90 has no unit", 8, "90s"),
    ("@every 90s 5", "@every has more than a period", 12, "@every 90s"),
    ("@every 0s", "period 0s is not in 1s to 366d", 8, "1s to 366d"),
    ("@every 367d", "period 367d is not in 1s to 366d", 8, "1s to 366d"),
    ("@every -5s", "period '-5s' is not a duration", 8, "90s, 5m"),
    ("@every 1.5h", "period '1.5h' is not a duration", 8, "1h30m"),
    ("?,5 * * * *", "minute '?,5' is not a form of ?", 1, "alone in its field"),
    ("?5 * * * *", "minute '?5' is not a form of ?", 1, "?(a-b)/n"),
    ("?(5) * * * *", "minute '?(5)' is not a form of ?", 1, "?(a-b)/n"),
    ("?(5-99) * * * *", "minute 99 is not in 0-59", 5, "0 to 59"),
    ("?(9-5) * * * *", "minute range 9-5 of ? runs backwards", 3, "?(9-59)"),
    ("?/61 * * * *", "minute step 61 is longer than the range 0-59", 3, "at most 60"),
    ("?(0-9)/11 * * * *", "minute step 11 is longer than the range 0-9", 8, "at most 10"),
    ("?/0 * * * *", "minute step 0 never moves", 3, "at least 1"),
    ("?/ * * * *", "minute step '' is not a number", 3, "step"),
]


@pytest.mark.parametrize(("text", "message", "column", "hint"), REFUSED, ids=lambda v: repr(v)[:30])
def test_what_cannot_be_meant_is_refused_with_its_place_and_the_way_out(
    text, message, column, hint
):
    with pytest.raises(ScheduleError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert caught.value.column == column
    assert hint in caught.value.hint
    assert not str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("0 0 * * *", "0 0 * * *"),
        ("  05\t03 * *   * ", "5 3 * * *"),
        ("3-3 * * * *", "3 * * * *"),
        ("0 0 * * 7-7", "0 0 * * 7"),
        ("5/15 * * * *", "5-59/15 * * * *"),
        ("59/15 * * * *", "59 * * * *"),
        ("0 9 * JAN,jul Mon-FRI", "0 9 * 1,7 1-5"),
        ("*/5,3 1-9/2 */2 * *", "*/5,3 1-9/2 */2 * *"),
        ("5,* * * * *", "5,* * * * *"),
        ("0 22-6 * * *", "0 22-23,0-6 * * *"),
        ("0 22-6/2 * * *", "0 22,0-6/2 * * *"),
        ("0 21-6/2 * * *", "0 21-23/2,1-5/2 * * *"),
        ("0 0 * * fri-mon", "0 0 * * 5-6,0-1"),
        ("0 0 * * fri-sun", "0 0 * * 5-7"),
        ("0 0 * * mon-sun", "0 0 * * 1-7"),
        ("0 0 * * 7-1", "0 0 * * 0-1"),
        ("0 0 * * 7-0", "0 0 * * 7"),
        ("0 0 * * 6-1/2", "0 0 * * 6,1"),
        ("0 0 * nov-feb *", "0 0 * 11-12,1-2 *"),
        ("0 0 * feb-jan/3 *", "0 0 * 2-11/3 *"),
        ("0 0 25-5/3 * *", "0 0 25-31/3,3 * *"),
        ("0 0 * March-mAY Friday,saturday", "0 0 * 3-5 5,6"),
        ("@hourly", "0 * * * *"),
        ("@Daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_plain_fields_are_stored_in_one_spelling_that_croniter_reads_alike(text, resolved):
    schedule = parse(text).schedule("UTC")
    assert schedule.resolved == resolved
    assert parse(resolved).resolved == resolved
    check(schedule)


@pytest.mark.parametrize(
    ("text", "is_interval"),
    [
        ("* * * * *", True),
        ("*/15 2 * * *", True),
        ("0 * * * *", True),
        ("@hourly", True),
        ("0 */2 * * *", True),
        ("0 0-23 * * *", False),
        ("0-59 0-23 * * *", False),
        ("5,* 3 * * *", False),
        ("0 0 * * *", False),
    ],
)
def test_the_class_of_a_job_is_a_matter_of_text(text, is_interval):
    assert parse(text).is_interval is is_interval


def test_zero_and_seven_are_sunday_also_in_ranges():
    assert parse("0 0 * * 0").fields[4].mask == parse("0 0 * * 7").fields[4].mask == 1
    assert parse("0 0 * * 5-7").fields[4].mask == 0b1100001
    assert parse("0 0 * * 0-7").fields[4].mask == 0b1111111


@pytest.mark.parametrize(
    ("text", "place", "options"),
    [
        ("? * * * *", 0, [str(n) for n in range(60)]),
        ("0 ? * * *", 1, [str(n) for n in range(24)]),
        ("0 0 ? * *", 2, [str(n) for n in range(1, 29)]),
        ("0 0 1 ? *", 3, [str(n) for n in range(1, 13)]),
        ("0 0 * * ?", 4, [str(n) for n in range(7)]),
        ("0 ?(2-6) * * *", 1, ["2", "3", "4", "5", "6"]),
        ("0 0 * * ?(mon-fri)", 4, ["1", "2", "3", "4", "5"]),
        ("?/20 * * * *", 0, [f"{n}-59/20" for n in range(20)]),
        ("?(0-4)/3 * * * *", 0, ["0-4/3", "1-4/3", "2"]),
        ("?/60 * * * *", 0, [str(n) for n in range(60)]),
        ("0 0 ?(28-31) 4 *", 2, ["28", "29", "30"]),
    ],
)
def test_a_question_mark_offers_what_it_may_become(text, place, options):
    expression = parse(text)
    assert expression.has_any
    assert expression.resolved == ""
    assert [option.text for option in expression.fields[place].options] == options
    for option in expression.fields[place].options:
        chosen = ["" if n != place else option.text for n in range(5)]
        assert parse(expression.choose(tuple(chosen))).fields[place].mask == option.mask


def test_a_question_mark_for_a_day_warns_those_who_know_quartz():
    (warning,) = parse("0 0 ? * *").warnings
    message = "? in day of month is a day chosen by raftcron, not every day as in Quartz"
    assert warning.message == message
    assert "--dry-run" in warning.hint
    assert parse("? ? * * *").warnings == ()
    assert "some months lack" in parse("0 0 ?(29-31) * *").warnings[1].message


def test_a_warning_stands_at_its_field():
    columns = [(w.column, w.message[:9]) for w in parse("*/90  */24 ?\t*  ?").warnings]
    assert columns == [(1, "minute */"), (7, "hour */24"), (12, "? in day "), (17, "? in day ")]


def test_a_step_beyond_the_range_is_read_as_debian_does_and_warned_of():
    assert parse("*/90 * * * *").fields[0].mask == 1
    (warning,) = parse("*/90 * * * *").warnings
    assert warning.message == "minute */90 is the same as 0"
    assert warning.hint == "write 0, or @every 90m for a period"
    (warning,) = parse("0 5,*/48 * * *").warnings
    assert warning == (3, "hour */48 is the same as 0", "write 0, or @every 48h for a period")
    (warning,) = parse(f"*/{10**30} * * * *").warnings
    assert warning.hint == "write 0"


@pytest.mark.parametrize(
    ("text", "weekdays"), [("0 0 30 2 1", 0b10), ("0 0 31 2,4,6,9,11 sun-sat", 0b1111111)]
)
def test_a_day_that_never_comes_leaves_the_weekdays_beside_it(text, weekdays):
    expression = parse(text)
    check(expression.schedule("UTC"))
    assert expression.fields[4].mask == weekdays
    (warning,) = expression.warnings
    assert warning.column == 5
    assert "never comes in month" in warning.message
    assert warning.hint == "write * for the day"


def test_thirtieth_of_february_or_monday_is_every_monday_of_february():
    ticks = compile(parse("0 0 30 2 1").schedule("UTC"))
    found = ticks.between(
        parse_time("2026-01-01T00:00:00Z"), parse_time("2027-02-02T00:00:00Z"), limit=9
    )
    assert [format_time(tick.scheduled_s)[:10] for tick in found] == [
        "2026-02-02", "2026-02-09", "2026-02-16", "2026-02-23", "2027-02-01",
    ]  # fmt: skip


def test_an_expression_may_have_256_bytes_and_not_one_more():
    longest = "0" * (limits.EXPRESSION_BYTES_MAX - 8) + " * * * *"
    assert parse(longest).resolved == "0 * * * *"
    with pytest.raises(ScheduleError, match="longer than 256 bytes") as caught:
        parse("0" + longest)
    assert caught.value.hint


def test_every_keeps_its_text_and_knows_its_seconds():
    expression = parse("@every   90s")
    assert expression.schedule("UTC") == Schedule("@every 90s", "", "UTC", 90)
    assert parse("@EVERY 1h30m").every_s == 5400
    assert not expression.has_any


@given(st.integers(1, 366 * 86_400))
def test_a_duration_is_read_as_it_is_written(seconds):
    text = format_duration(seconds)
    assert parse_duration(text, what="x", least_s=1, most_s=10**9) == seconds


@pytest.mark.parametrize("text", ["", "5", "5M", "1m1h", "5 m", "s", "\u0665s", "1e3s", "--5s"])
def test_a_text_that_is_no_duration_is_refused(text):
    with pytest.raises(ScheduleError) as caught:
        parse_duration(text, what="timeout", least_s=1, most_s=9)
    assert "timeout" in str(caught.value)
    assert caught.value.hint


@given(st.one_of(st.text(max_size=40), st.text("0123456789*/-,?()@ LW#adeimnorsty", max_size=40)))
@example("@\x85")
@example("\ud800 * * * *")
def test_any_text_is_either_a_schedule_or_refused_with_a_place(text):
    error = refusal(text)
    if error is not None:
        assert 1 <= error.column <= max(len(text), 1) + 1
        assert str(error)
        assert error.hint
        return
    expression = parse(text)
    assert expression.every_s or len(expression.fields) == 5
    if not expression.every_s:
        check(Schedule(text, expression.sample))


def refusal(text):
    try:
        parse(text)
    except ScheduleError as error:
        return error
    return None


def test_the_year_2199_is_the_last():
    # What lies behind the table of months is "never", not an error.
    ticks = compile(parse("0 0 1 1 *").schedule("UTC"))
    last_s = ticks.previous(LAST_MIN * 60 + 10**12)
    assert format_time(last_s) == "2199-01-01T00:00:00Z"
    assert ticks.next(last_s) is None
    assert ticks.next(10**15) is None
