"""systemd's syntax, drawn: what is written is read back, in whatever way it is written."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.calendar.schedule import next_times
from cron.crontab.import_systemd import import_systemd
from cron.crontab.imported import Place
from cron.crontab.systemd import commands
from cron.crontab.systemd.calendar import calendar, united
from cron.crontab.systemd.syntax import (
    Assignment,
    NotUnderstood,
    Unfit,
    boolean,
    next_word,
    read_unit,
    split_words,
    time_span_us,
)
from cron.crontab.systemd.units import specifiers, unescaped
from cron.job import Schedule

TEXT: Final = st.text(
    st.one_of(
        st.sampled_from(" \t\n;#\"'\\$%&|<>*?~`{}()[]!=-@:+é😀"),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    ),
    max_size=12,
)
SECTIONS: Final = frozenset({"Service"})
BLANK_TEXTS: Final = st.sampled_from((" ", "\t", "  ", " \\\n", " \\\n\t", " \\\n# a \\\n", "\\\n"))


@st.composite
def written(draw: st.DrawFn, text: str) -> str:
    """Return a way to write a word: quoted, escaped, or both."""
    quote = draw(st.sampled_from(("", '"', "'")))
    found = []
    for char in text:
        ways = [rf"\U{ord(char):08x}", "".join(rf"\x{byte:02x}" for byte in char.encode())]
        ways.append("".join(rf"\{byte:03o}" for byte in char.encode()))
        if ord(char) < 0x10000:
            ways.append(rf"\u{ord(char):04X}")
        if char == " ":
            ways.append("\\s")
        is_plain = char not in "\\\"'\n\r" and (quote or char not in " \t;#")
        if is_plain and char.isprintable():
            ways.append(char)
        found.append(draw(st.sampled_from(ways)))
    return f"{quote}{''.join(found)}{quote}" if quote or found else '""'


@given(st.data(), st.lists(TEXT, max_size=4))
def test_words_that_are_written_in_any_way_are_words_of_the_shell(
    data: st.DataObject, words: list[str]
) -> None:
    escaped = [word.replace("%", "%%").replace("$", "$$") for word in words]
    parts = ["/bin/x", *(data.draw(written(word)) for word in escaped)]
    line = "".join(
        part + data.draw(BLANK_TEXTS.filter(lambda one: one[0] != "\\")) for part in parts
    )
    text = f"[Service]\nType=oneshot\nUser=a\nExecStart={line}\n"
    timer = "[Timer]\nOnCalendar=03:00 UTC\n"
    imported = import_systemd({"a.timer": timer, "a.service": text})
    assert len(imported.tables) == 1, imported.left
    assert shlex.split(imported.tables[0]["command"]) == ["/bin/x", *words]


@given(st.text(max_size=60))
def test_any_text_is_words_or_refused(text: str) -> None:
    try:
        words = split_words(text)
    except Unfit:
        return
    assert sum(map(len, words)) <= len(text)


@given(st.text(max_size=80))
def test_any_line_is_a_command_or_refused(text: str) -> None:
    context = commands.Context(
        specifiers("a@b.service", is_of_user=False), {"A": "b 'c d'"}, ("HOME",), is_root=False
    )
    line = Assignment("Service", "ExecStart", text.strip(" \t\n\r"), Place("a"))
    try:
        found = [str(step) for step in commands.steps(line, context)]
    except Unfit:
        return
    for step in found:
        shlex.split(step)


@given(st.lists(st.tuples(st.sampled_from("abc"), TEXT), max_size=6), st.data())
def test_comments_and_line_ends_change_nothing(
    pairs: list[tuple[str, str]], data: st.DataObject
) -> None:
    values = [(key, "".join(c for c in value if c.isalnum())) for key, value in pairs]
    ends = st.sampled_from(("\n", "\r\n", "\n\n", "\n# x\n", "\n ;y\\\n", "\0", "\n\t\n"))
    text = "".join(f" {key} = {value} {data.draw(ends)}" for key, value in values)
    read = read_unit(f"[Service]\n{text}", "a", SECTIONS)
    assert [(one.key, one.value) for one in read.assignments] == values
    assert read.faults == []


def test_a_line_is_named_by_its_first_line() -> None:
    read = read_unit("[Service]\n# x\nA=1\\\n\\\n 2\nB=3", "a", SECTIONS)
    assert [(one.key, one.place.line) for one in read.assignments] == [("A", 3), ("B", 6)]


def test_a_word_that_ends_in_a_quote_goes_on_behind_it() -> None:
    word = next_word("a'b 'c  d", 0)
    assert word is not None
    assert (word.text, word.end) == ("ab c", 8)


UNITS_US: Final = {
    "us": 1, "ms": 10**3, "s": 10**6, "sec": 10**6, "min": 60 * 10**6, "m": 60 * 10**6,
    "h": 3600 * 10**6, "hr": 3600 * 10**6, "d": 86_400 * 10**6, "days": 86_400 * 10**6,
    "w": 604_800 * 10**6, "": 10**6, "M": 2_629_800 * 10**6, "y": 31_557_600 * 10**6,
}  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 999), st.sampled_from(sorted(UNITS_US))), min_size=1,
             max_size=4),
    st.sampled_from(("", " ")),
)  # fmt: skip
def test_a_time_span_is_the_sum_of_its_parts(parts: list[tuple[int, str]], gap: str) -> None:
    text = " ".join(f"{number}{gap}{unit}" for number, unit in parts)
    assert time_span_us(text) == sum(number * UNITS_US[unit] for number, unit in parts)


@pytest.mark.parametrize("text", ["", "x", "1x", "-1", "1.2.3", "h", "1 h x", "²", "9" * 5_000])
def test_what_is_no_time_span_is_not_understood(text: str) -> None:
    with pytest.raises(NotUnderstood):
        time_span_us(text)


def test_time_spans_and_switches_have_the_forms_of_systemd() -> None:
    assert time_span_us("infinity") is None
    assert time_span_us("1.5min") == 90_000_000
    assert time_span_us("1h30min 5") == 5_405_000_000
    assert [boolean(one) for one in ("Yes", "t", "1", "ON")] == [True] * 4
    assert [boolean(one) for one in ("no", "F", "0", "off")] == [False] * 4
    with pytest.raises(NotUnderstood):
        boolean("")


def test_a_name_is_unescaped_as_systemd_escapes_it() -> None:
    assert unescaped("a-b\\x2dc-\\xc3\\xa9") == "a/b-c/é"
    with pytest.raises(Unfit):
        unescaped("\\xff")


# ---- times

NUMBERS: Final = st.integers(0, 59)


@st.composite
def chains(draw: st.DrawFn, low: int, high: int) -> tuple[str, set[int]]:
    """Return a part of a time, and the values that it has."""
    if draw(st.booleans()):
        return "*", set(range(low, high + 1))
    texts, values = [], set[int]()
    for _ in range(draw(st.integers(1, 3))):
        first, last = sorted(draw(st.tuples(st.integers(low, high), st.integers(low, high))))
        step = draw(st.integers(1, 8))
        kind = draw(st.sampled_from(("one", "range", "steps", "open")))
        if kind == "one":
            texts.append(f"{first:02}")
            values.add(first)
        elif kind == "open" and first + step <= high:
            texts.append(f"{first}/{step}")
            values |= set(range(first, high + 1, step))
        else:
            texts.append(f"{first}..{last}" + (f"/{step}" if kind == "steps" else ""))
            values |= set(range(first, last + 1, step if kind == "steps" else 1))
    return ",".join(texts), values


DAY_NAMES: Final = ("Mon", "tue", "Wednesday", "thu", "FRI", "sat", "Sunday")


@given(st.data(), chains(0, 23), chains(0, 59), chains(1, 12))
def test_a_time_has_the_instants_that_its_parts_name(
    data: st.DataObject,
    hours: tuple[str, set[int]],
    minutes: tuple[str, set[int]],
    months: tuple[str, set[int]],
) -> None:
    """The oracle walks over all minutes of some days."""
    days, weekdays, named = ("*", set(range(1, 32))), set(range(7)), ""
    if data.draw(st.booleans()):
        days = data.draw(chains(1, 31))
    else:
        first, last = sorted(data.draw(st.tuples(st.integers(0, 6), st.integers(0, 6))))
        weekdays = set(range(first, last + 1))
        named = f"{DAY_NAMES[first]}..{DAY_NAMES[last]} "
    text = f"{named}*-{months[0]}-{days[0]} {hours[0]}:{minutes[0]}"
    found = calendar(text)
    begin = datetime(2027, data.draw(st.integers(1, 12)), data.draw(st.integers(1, 28)), tzinfo=UTC)
    wanted = [
        at
        for at in (begin + timedelta(minutes=n) for n in range(3 * 1440))
        if at.month in months[1] and at.day in days[1] and at.weekday() in weekdays
        and at.hour in hours[1] and at.minute in minutes[1]
    ]  # fmt: skip
    after_s, until_s = int(begin.timestamp()), int((begin + timedelta(days=3)).timestamp())
    schedule = Schedule(found.schedule, " ".join(field.text for field in found.fields), "UTC")
    times = next_times(schedule, after_s - 1, len(wanted) + 1)
    assert [one for one in times if one < until_s] == [int(at.timestamp()) for at in wanted]


@given(st.lists(st.tuples(chains(0, 23), chains(0, 3)), min_size=1, max_size=4))
def test_united_times_have_each_instant_of_all_once(
    parts: list[tuple[tuple[str, set[int]], tuple[str, set[int]]]],
) -> None:
    calendars = [calendar(f"{hours[0]}:{minutes[0].replace('*', '0..3')}")
                 for hours, minutes in parts]  # fmt: skip
    wanted = {(h, m) for hours, minutes in parts for h in hours[1] for m in minutes[1]}
    try:
        found = united(calendars)
    except Unfit:
        assert len(parts) > 1
        return
    pairs = [(h, m) for one in found for h in one.fields[1].values for m in one.fields[0].values]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == wanted
