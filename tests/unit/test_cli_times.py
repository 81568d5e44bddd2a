from __future__ import annotations

import pytest

from cron.cli.times import (
    format_ms,
    format_s,
    has_zone,
    is_age,
    local_time,
    parse_length,
    parse_moment,
    parse_timeout,
    show_length,
    show_ms,
)
from cron.errors import InvalidInput

NOON_MS = 1_795_186_800_000  # 2026-11-20T15:00:00Z


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2026-11-20T15:00:00Z", NOON_MS),
        ("2026-11-20T15:00:00.250Z", NOON_MS + 250),
        ("2026-11-20T16:00:00+01:00", NOON_MS),
        ("2026-11-20 16:00:00+01:00", NOON_MS),
        ("2026-11-20 15:00:00 UTC", NOON_MS),
        ("2026-11-20T15:00Z", NOON_MS),
        ("1970-01-01T00:00:00Z", 0),
        ("5m", NOON_MS - 300_000),
        ("90s", NOON_MS - 90_000),
        ("1h30m", NOON_MS - 5_400_000),
        ("7d", NOON_MS - 7 * 86_400_000),
        ("0s", NOON_MS),
    ],
)
def test_a_time_is_iso_with_a_zone_or_an_age(text, at_ms):
    assert parse_moment(text, NOON_MS) == at_ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "5",
        "5x",
        "-5m",
        "2026-02-30T15:00:00Z",
        "1969-12-31T23:59:59Z",
        "99999d",
        "9999-12-31T23:59:59-23:00",
        "2026-11-20T15:00:00Z" + "0" * 100,
        "2026-11-20T15:00:00\x00Z",
        "\u0665m",
    ],
)
def test_a_time_that_cannot_be_meant_is_refused_with_what_one_looks_like(text):
    with pytest.raises(InvalidInput) as caught:
        parse_moment(text, NOON_MS)
    assert "2026-11-20T15:00:00Z" in caught.value.hint


def test_an_age_is_told_from_a_time():
    assert [is_age(text) for text in ("5m", "0s", "1h30m")] == [True] * 3
    assert not any(map(is_age, ("2026-11-20T15:00:00Z", "5", "", "now")))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-11-20T15:00:00", "2026-11-20 15:00:00 UTC"),
        ("2026-11-20 15:00:00", "2026-11-20 15:00:00 UTC"),
        ("2026-11-20 15:00", "2026-11-20 15:00:00 UTC"),
        ("2026-11-20", "2026-11-20 00:00:00 UTC"),
        ("7:05", "2026-11-20 07:05:00 UTC"),
        ("23:59:58", "2026-11-20 23:59:58 UTC"),
    ],
)
def test_a_time_without_a_zone_is_in_utc_as_in_the_tables(text, meant):
    assert show_ms(parse_moment(text, NOON_MS)) == meant
    assert not has_zone(text)
    assert parse_moment(meant, NOON_MS) == parse_moment(text, NOON_MS)


@pytest.mark.parametrize(
    "text",
    [
        "5m",
        "2026-11-20T15:00:00Z",
        "2026-11-20 16:00:00+01:00",
        "2026-11-20 15:00:00 UTC",
        "15:00Z",
    ],
)
def test_a_time_that_says_its_zone_is_known_to(text):
    parse_moment(text, NOON_MS)
    assert has_zone(text)


@pytest.mark.parametrize(("text", "ms"), [("10", 10_000), ("10s", 10_000), ("0.5s", 500)])
def test_a_timeout_is_in_seconds_unless_it_says_otherwise(text, ms):
    assert parse_timeout(text) == ms
    assert parse_timeout("250ms") == 250
    assert parse_timeout("60m") == 3_600_000


@pytest.mark.parametrize("text", ["", "0", "0s", "-1", "x", "61m", "1e9", "inf", "10 s"])
def test_a_timeout_that_is_none_or_endless_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_timeout(text)


@pytest.mark.parametrize("text", ["", "0s", "x", "5", "-5m"])
def test_a_length_that_is_none_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_length(text)


def test_programs_get_iso_with_milliseconds_and_nothing_for_never():
    assert format_ms(NOON_MS) == "2026-11-20T15:00:00.000Z"
    assert format_ms(NOON_MS + 7) == "2026-11-20T15:00:00.007Z"
    assert format_s(NOON_MS // 1000) == "2026-11-20T15:00:00.000Z"
    assert format_ms(0) is None
    assert format_s(None) is None


def test_people_get_the_zone_too():
    assert show_ms(NOON_MS) == "2026-11-20 15:00:00 UTC"
    assert show_ms(0) == "-"
    assert local_time(NOON_MS // 1000, 330) == "2026-11-20T20:30:00+05:30"


def test_what_people_see_can_be_given_back():
    assert parse_moment(show_ms(NOON_MS), 0) == NOON_MS
    assert parse_moment(format_ms(NOON_MS + 7) or "", 0) == NOON_MS + 7


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"),
        (0, "0ms"),
        (999, "999ms"),
        (1_234, "1.2s"),
        (59_999, "59.9s"),
        (185_000, "3m05s"),
        (7_380_000, "2h03m"),
        (-41, "-41ms"),
    ],
)
def test_lengths_are_short(ms, text):
    assert show_length(ms) == text
