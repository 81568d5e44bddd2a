from __future__ import annotations

import pytest

from cron import limits
from cron.api import checks
from cron.api.checks import checked
from cron.api.launches import AuditRequest, TriggerRequest
from cron.errors import InvalidInput, LimitExceeded
from cron.launch_state import LaunchState
from launcher.protocol.names import NAME_PART_CHARS_MAX, SCHEDULED_S_MAX

LONGEST = "x" * NAME_PART_CHARS_MAX


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("backup", "default/backup"),
        ("acme/backup", "acme/backup"),
        ("_", "default/_"),
        (f"{LONGEST}/{LONGEST}", f"{LONGEST}/{LONGEST}"),
    ],
)
def test_a_job_name_gets_its_tenant(text, name):
    assert checks.job_name(text) == name


@pytest.mark.parametrize(
    "text",
    ["", "/", "a/", "/a", "a/b/c", "-a", ".a", "a b", "a\n", "a\x00", "ä", "a@b", LONGEST + "x"],
)
def test_what_is_no_job_name_is_refused(text):
    with pytest.raises(InvalidInput):
        checks.job_name(text)


def test_no_job_is_all_jobs_where_that_is_meant():
    assert checked(AuditRequest(job="")).job == ""
    assert checked(AuditRequest(job="a")).job == "default/a"


def test_the_longest_launch_name_is_taken():
    name = f"{LONGEST}/{LONGEST}@9999-12-31T23:59:59Z+t999999999"
    assert checks.launch_name(name) == name
    assert len(name) <= checks.NAME_CHARS_MAX


@pytest.mark.parametrize(
    "text",
    [
        "backup",
        "a@2026-11-20",
        "a@2026-11-20T15:00:00",
        "a@2026-11-20T24:00:00Z",
        "a@2026-11-20T15:00:00Z+t0",
        "a@2026-11-20T15:00:00Z#1",
        "a@2026-11-20T15:00:00Z\n",
        "x" * 1_000_000,
    ],
)
def test_what_is_no_launch_name_is_refused_in_a_short_message(text):
    with pytest.raises(InvalidInput) as caught:
        checks.launch_name(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("at_s", [0, SCHEDULED_S_MAX])
def test_instants_of_four_digit_years_are_taken(at_s):
    assert checks.second("since")(at_s) == at_s
    assert checks.instant("since")(at_s * 1000) == at_s * 1000


@pytest.mark.parametrize("at_s", [-1, SCHEDULED_S_MAX + 1])
def test_instants_beyond_them_are_refused_by_their_name(at_s):
    with pytest.raises(InvalidInput, match="since"):
        checks.second("since")(at_s)
    with pytest.raises(InvalidInput, match="since"):
        checks.instant("since")(at_s * 1000)


def test_a_number_below_is_wrong_and_one_above_is_too_much():
    assert checks.between(1, 1, 3, "limit") == 1
    assert checks.between(3, 1, 3, "limit") == 3
    with pytest.raises(InvalidInput, match="limit 0 is below 1"):
        checks.between(0, 1, 3, "limit")
    with pytest.raises(LimitExceeded, match="limit 4 is above 3"):
        checks.between(4, 1, 3, "limit")


def test_texts_for_people_are_one_printable_line_within_bounds():
    note, longest = checks.line("reason", limits.NOTE_CHARS_MAX), "ü" * limits.NOTE_CHARS_MAX
    assert note(longest) == longest
    assert note("") == ""
    assert note("Ada Lovelace") == "Ada Lovelace"
    for text in (longest + "x", "two\nlines", "\x00", "\x1b[31m", "\u202egpj.exe"):
        with pytest.raises(InvalidInput):
            note(text)


def test_a_source_has_a_name():
    assert checks.source("jobs.crontab") == "jobs.crontab"
    for text in ("", "x" * (checks.SOURCE_CHARS_MAX + 1), "a\tb"):
        with pytest.raises(InvalidInput):
            checks.source(text)


def test_states_come_once_and_in_the_order_of_the_table():
    labels = [state.label for state in LaunchState]
    assert checks.states([*reversed(labels), "due"]) == labels
    assert checks.states([]) == []


@pytest.mark.parametrize("label", ["", "Due", "dead", "x" * 1_000_000])
def test_a_state_that_is_none_is_refused_with_the_list_of_them(label):
    with pytest.raises(InvalidInput, match="succeeded") as caught:
        checks.states(["due", label])
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["a", "0123-abc", "-a-", "x" * 100])
def test_a_request_id_is_letters_digits_and_dashes(text):
    assert checked(TriggerRequest(job="a", request_id=text)).request_id == text


@pytest.mark.parametrize("text", ["", "-", "a b", "a/b", "a\n", "ä", "x" * 101])
def test_another_request_id_is_refused(text):
    with pytest.raises(InvalidInput):
        checked(TriggerRequest(job="a", request_id=text))
