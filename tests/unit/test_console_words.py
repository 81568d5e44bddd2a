"""Schedules, times and output as the console writes them."""

from __future__ import annotations

import pytest

from cron.state.revisions import KEPT
from cron.web.console import charts, texts
from cron.web.console.words import did, in_words


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("*/7 * * * *", "every 7th minute of every hour"),
        ("5 * * * *", "at minute 5 of every hour"),
        ("0,30 */2 * * *", "at minute 0 and 30 of every 2nd hour"),
        ("30 6 * * 1-5", "at 06:30 from Monday to Friday"),
        ("0 0,12 1,15 * *", "at 00:00 and 12:00 on the 1st and 15th of the month"),
        ("16 4 * * 0", "at 04:16 on Sunday"),
        ("16 4 * * 7", "at 04:16 on Sunday"),
        ("0 3 13 * 5", "at 03:00 on the 13th of the month and on Friday"),
        ("0 3 */2 * 5", "at 03:00 on every 2nd of the days if it is on Friday"),
        ("0 3 1 1,7 *", "at 03:00 on the 1st of the month in January and July"),
        ("0 3 31 DEC *", "at 03:00 on the 31st of the month in December"),
        ("0-59/2 3 * * *", "at minute 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 18 more of the "
         "hours 3"),
        ("* 9-17 * * *", "every minute of the hours 9 to 17"),
    ],
)  # fmt: skip
def test_a_schedule_is_said_in_words(schedule: str, words: str) -> None:
    said = in_words(schedule, schedule, "UTC")
    assert said.removesuffix(" UTC").startswith(words)


def test_what_is_no_list_of_fields_is_said_as_it_is_written() -> None:
    assert in_words("@every 90s", "", "UTC") == "every 90s"
    assert in_words("? * * * *", "", "UTC") == "as written: ? * * * *"


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (999, "999 ms"), (1_500, "1.5 s"), (59_600, "1 min"), (61_000, "1 min 1 s"),
     (3_660_000, "1 h 1 min"), (90_000_000, "1 d 1 h"), (-2_000, "-2.0 s")],
)  # fmt: skip
def test_a_duration_has_two_units(ms: int, text: str) -> None:
    assert texts.duration(ms) == text


def test_a_time_is_said_from_now() -> None:
    assert texts.ago(60_000, 120_000) == "1 min ago"
    assert texts.ago(180_000, 120_000) == "in 1 min"
    assert texts.ago(120_500, 120_000) == "now"
    assert texts.ago(0, 120_000) == ""


def test_output_has_no_control_characters_and_none_that_turn_the_text() -> None:
    shown = texts.shown_output(b"a\r\nb\tc\x1b[0m\x07\x7f" + "\u202ex\u2066".encode() + b"\xff")
    assert shown == "a\nb\tc␛[0m␇␡\ufffdx\ufffd\ufffd"


def test_the_address_of_a_page_is_one_whatever_the_name() -> None:
    assert texts.job_link("acme/mail") == "/jobs/acme/mail"
    assert texts.job_link("acme/q:k") == "/tasks/acme/q:k"
    assert texts.launch_link("a/b@2026-11-20T15:00:00Z+t1") == (
        "/launches/a/b@2026-11-20T15:00:00Z+t1"
    )
    assert texts.job_link("a/<b>?#%\"'&") == "/jobs/a/%3Cb%3E%3F%23%25%22%27%26"


def test_a_picture_says_what_it_shows_and_escapes_what_it_is_given() -> None:
    strip = charts.strip(["succeeded", "failed", "<b>"])
    assert "the last 3 launches: 1 succeeded, 2 did not" in strip
    assert "<b>" not in strip
    assert "no launch yet" in charts.strip([])
    figure = charts.per_minute(
        {100: {"succeeded": 4}, 101: {"lost": 2}, 999: {"failed": 1}}, 90, 20
    )
    assert "4 succeeded, 2 did not" in figure, "of the minutes that it shows"


def test_each_change_that_is_kept_has_a_word() -> None:
    tags = {str(one.__struct_config__.tag) for one in KEPT} - {"note-change", "resolve"}
    commands = [*sorted(tags), "replace", "grow", "restore"]
    assert [one for one in commands if did(one) == one] == []
