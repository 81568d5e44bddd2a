"""Option lines and environment lines by themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron import limits
from cron.crontab.conflicts import check_together
from cron.crontab.environment import DEFAULT_SHELL, Environment, split_assignment
from cron.crontab.options import KNOWN, Option, Policies, read_options, split_options
from cron.crontab.reading import Problems, split_lines
from cron.job import Catchup, Job, OnLost, Overlap
from launcher.protocol.work import WorkSpec


def options_of(text):
    problems = Problems("tab")
    return split_options(text, 7, problems), problems.listed()


def policies_of(**given_values):
    problems = Problems("tab")
    options = [Option(key.replace("_", "-"), value, 7, 1, 1) for key, value in given_values.items()]
    policies = read_options(options, "acme", problems)
    check_together(policies, problems)
    return policies, problems.listed()


def test_an_option_knows_where_its_key_and_its_value_stand():
    found, problems = options_of(" #: name=a\tcwd='/a b' user=\"c\"")
    assert problems == []
    assert found == [
        Option("name", "a", 7, 5, 10),
        Option("cwd", "/a b", 7, 12, 17),
        Option("user", "c", 7, 23, 29),
    ]


def test_an_equals_sign_may_be_in_a_value():
    assert options_of("#: cwd=/a=b")[0] == [Option("cwd", "/a=b", 7, 4, 8)]


def test_what_stands_around_the_fault_is_still_read():
    found, problems = options_of("#: name=a what timeout=5s")
    assert [option.key for option in found] == ["name", "timeout"]
    assert [(problem.line, problem.column) for problem in problems] == [(7, 11)]


def test_of_words_that_are_no_options_the_first_is_reported():
    found, problems = options_of("#: my backup job, nme=a more words timeout = 2h")
    assert [option.key for option in found] == ["nme"]
    assert [(problem.column, problem.message) for problem in problems] == [
        (4, "option 'my' is not key=value"),
        (44, "option '=' is not key=value"),
    ]


def test_nothing_is_read_behind_a_quote_that_does_not_close():
    found, problems = options_of("#: name=a timeout='2 h what=x")
    assert [option.key for option in found] == ["name"]
    assert [problem.message for problem in problems] == [
        'option "timeout=\'2" has a quote that does not close'
    ]


KEYS = st.sampled_from(sorted(KNOWN))
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="'\n\0"), max_size=30)


@given(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6))
def test_quoted_values_come_back_as_they_were_written(pairs):
    text = "#:" + "".join(f" {key}='{value}'" for key, value in pairs)
    found, problems = options_of(text)
    assert problems == []
    assert [(option.key, option.value) for option in found] == pairs
    for option in found:
        assert text[option.value_column - 1 :].startswith(option.value)
        assert text[option.key_column - 1 :].startswith(option.key)


@given(st.lists(st.tuples(KEYS, st.text(max_size=20)), max_size=6))
def test_no_option_does_anything_but_report_problems(pairs):
    problems = Problems("tab")
    policies = read_options([Option(k, v, 1, 1, 1) for k, v in pairs], "t", problems)
    check_together(policies, problems)
    assert all(problem.hint for problem in problems.listed())
    assert 0 < policies.values.get("timeout", 1) <= limits.TIMEOUT_S_MAX * 1000
    assert 0 < policies.values.get("deadline", 1) <= limits.DEADLINE_S_MAX


def test_no_options_are_the_defaults():
    assert policies_of() == (Policies(), [])


def test_every_key_is_read_into_its_field():
    policies, problems = policies_of(
        name="a", timeout="1m30s", overlap="replace", catchup="all", deadline="1d", on_lost="skip",
        user="www-data", cwd="/srv",
    )  # fmt: skip
    assert problems == []
    assert policies.fields(Job) == {
        "name": "acme/a",
        "overlap": Overlap.REPLACE,
        "catchup": Catchup.ALL,
        "deadline_s": 86_400,
        "on_lost": OnLost.SKIP,
    }
    work = {"timeout_ms": 90_000, "user": "www-data", "cwd": "/srv"}
    assert policies.fields(WorkSpec) == work
    assert policies.given["name"] == Option("name", "a", 7, 1, 1)


def test_every_option_sets_a_field_of_its_own():
    fields = {(known.owner, known.field) for known in KNOWN.values()}
    assert len(fields) == len(KNOWN)
    assert all(field in owner.__struct_fields__ for owner, field in fields)


@pytest.mark.parametrize("user", ["root", "www-data", "_apt", "a.b", "machine$", "u" * 32])
def test_a_user_of_the_machine_is_taken(user):
    assert policies_of(user=user)[0].values == {"user": user}


@pytest.mark.parametrize("user", ["", "0", "-x", "a b", "a:b", "$", "u" * 33, "\u00fc", "a\n"])
def test_what_can_be_no_user_is_refused(user):
    (problem,) = policies_of(user=user)[1]
    assert problem.message.endswith("is not a user's name")


@pytest.mark.parametrize("key", ["timeout", "deadline"])
def test_the_longest_duration_is_taken(key):
    policies, problems = policies_of(**{key: "31d"})
    assert problems == []
    assert policies.values[key] == limits.TIMEOUT_S_MAX * (1000 if key == "timeout" else 1)
    assert limits.TIMEOUT_S_MAX == limits.DEADLINE_S_MAX


@pytest.mark.parametrize(
    "line",
    ["* * * * * a=b", "*=b", "@daily=x", "0 0 * * * x", "5=a", "?=x", "a b = c", "=x", "'a=b", "a"],
)
def test_what_begins_like_a_job_is_no_environment_line(line):
    assert split_assignment(line) is None


def test_an_environment_line_knows_where_its_value_stands():
    assert split_assignment(" A = 'b' ") == ("A", "'b' ", 6)
    assert split_assignment("'A B'=c") == ("A B", "c", 7)


def test_the_shell_is_that_of_the_last_line_that_sets_it():
    environment = Environment("UTC", Problems("tab"))
    assert environment.shell == DEFAULT_SHELL
    environment.set("SHELL", "/bin/bash", 1, 1)
    environment.set("SHELL", "bash", 2, 1)
    assert environment.shell == "/bin/bash"
    environment.set("SHELL", "/bin/zsh", 3, 1)
    assert environment.lines == (("SHELL", "/bin/zsh"),)


def test_lines_are_numbered_as_editors_number_them():
    problems = Problems("tab")
    content = b"a\n\n\xff\nb\x0bc\x0c\xc2\x85d\r\n\ne"
    assert list(split_lines(content, problems)) == [
        (1, "a"),
        (2, ""),
        (4, "b\x0bc\x0c\x85d"),
        (5, ""),
        (6, "e"),
    ]
    assert [problem.line for problem in problems.listed()] == [3, 4]


@given(st.binary(max_size=80))
def test_a_line_is_either_read_or_reported(content):
    problems = Problems("tab")
    numbers = [number for number, _ in split_lines(content, problems)]
    reported = [problem.line for problem in problems.listed() if not problem.is_warning]
    assert not set(numbers) & set(reported)
    if not content.startswith((b"\xff\xfe", b"\xfe\xff")):
        count = content.count(b"\n") + (not content.endswith(b"\n"))
        if content not in (b"", b"\xef\xbb\xbf"):
            assert sorted([*numbers, *reported]) == list(range(1, count + 1))
