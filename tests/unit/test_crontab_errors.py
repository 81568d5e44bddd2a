"""Crontabs that are wrong: every error with its place and the way out, and no bytes that crash."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cron import limits
from cron.crontab.reader import read_crontab
from cron.errors import CrontabError


def read(text, **options):
    content = text if isinstance(text, bytes) else text.encode()
    return read_crontab(content, file="tab", **options)


def one(text, **options):
    reading = read(text, **options)
    assert reading.errors == []
    (job,) = reading.jobs
    return job


def only_problem(text, **options):
    (problem,) = read(text, **options).problems
    return problem


@pytest.mark.parametrize(
    ("text", "line", "column", "message", "hint"),
    [
        ("61 * * * * x", 1, 1, "minute 61 is not in 0-59", "0 to 59"),
        ("\n\n   * 24 * * * x", 3, 6, "hour 24 is not in 0-23", "0 to 23"),
        ("* * * * 1,9 x", 1, 11, "day of week 9 is not in 0-7", "0 to 7"),
        ("* * * * *", 1, 10, "job has no command", "after the schedule"),
        ("* * * * *  ", 1, 12, "job has no command", "after the schedule"),
        ("@daily", 1, 7, "job has no command", "after the schedule"),
        ("@every 5s", 1, 10, "job has no command", "after the schedule"),
        ("* * * * * %x", 1, 11, "job has no command", "after the schedule"),
        ("* * * *", 1, 8, "schedule has 4 fields, not five", "minute hour"),
        ("@dayly x", 1, 1, "@dayly is not a known schedule", "@daily"),
        ("@every", 1, 1, "@every has no period", "90s"),
        ("@every 90 x", 1, 8, "period 90 has no unit", "90s"),
        ("@every 0s x", 1, 8, "period 0s is not in 1s to 366d", "1s to 366d"),
        ("0 0 30 2 * x", 1, 5, "day of month 30 never comes in month 2", "1 to 29"),
        ("0\u00a00 * * * x", 1, 2, "schedule has the character U+00A0", "ASCII"),
        ("run this", 1, 1, "line is not a job, an environment line or a comment", "NAME=value"),
        ("\u00fc", 1, 1, "line is not a job, an environment line or a comment", "NAME=value"),
        ("A=", 1, 3, "A has no value", 'A=""'),
        ("A='b", 1, 3, "A has a quote that does not close", "'"),
        ("A='b' c", 1, 6, "A goes on after the closing quote", "whole value"),
        ("''=x", 1, 1, "variable has no name", "NAME=value"),
        ("SHELL=bash", 1, 7, "SHELL 'bash' is not an absolute path", "/bin/bash"),
        ("CRON_TZ=Europe/Berln", 1, 9, "time zone 'Europe/Berln' is not known", "Europe/Berlin"),
        ("CRON_TZ='../UTC'", 1, 9, "time zone '../UTC' is not known", "IANA"),
        ("#: nmae=x\n@daily x", 1, 4, "option 'nmae' is not known", "did you mean name?"),
        ("#: on_lost=skip\n@daily x", 1, 4, "option 'on_lost' is not known", "on-lost"),
        ("#: colour=red\n@daily x", 1, 4, "option 'colour' is not known", "known are name"),
        ("#: name\n@daily x", 1, 4, "option 'name' is not key=value", "timeout=2h"),
        ("#:\n@daily x", 1, 1, "option line has no options", "between # and :"),
        ("#: name='x\n@daily x", 1, 4, "has a quote that does not close", "quote"),
        ("#: cwd='/x'y\n@daily x", 1, 4, "has a quote that does not close", "quote"),
        ("#: name=a name=b\n@daily x", 1, 11, "option name is already given on line 1", "remove"),
        ("#: name=a\n#: name=b\n@daily x", 2, 4, "option name is already given on line 1", "rem"),
        ("#: name=-x\n@daily x", 1, 9, "name '-x' is not a job's name", "A-Z"),
        ("#: name='a b'\n@daily x", 1, 10, "name 'a b' is not a job's name", "A-Z"),
        ("#: name=a/b/c\n@daily x", 1, 9, "name 'a/b/c' is not a job's name", "one /"),
        ("#: name=\n@daily x", 1, 9, "name '' is not a job's name", "A-Z"),
        (f"#: name={'n' * 101}\n@daily x", 1, 9, "is not a job's name", "up to 100"),
        ("#: timeout=5\n@daily x", 1, 12, "timeout 5 has no unit", "5s"),
        ("#: timeout=5x\n@daily x", 1, 12, "timeout '5x' is not a duration", "90s, 5m"),
        ("#: timeout=0s\n@daily x", 1, 12, "timeout 0s is not in 1s to 31d", "31d"),
        ("#: timeout=32d\n@daily x", 1, 12, "timeout 32d is not in 1s to 31d", "31d"),
        ("#: deadline=32d\n@daily x", 1, 13, "deadline 32d is not in 1s to 31d", "31d"),
        ("#: deadline=0s\n@daily x", 1, 13, "deadline 0s is not in 1s to 31d", "31d"),
        ("#: overlap=forbit\n@daily x", 1, 12, "overlap 'forbit' is not known", "mean forbid?"),
        ("#: overlap=Forbid\n@daily x", 1, 12, "overlap 'Forbid' is not known", "mean forbid?"),
        ("#: catchup=first\n@daily x", 1, 12, "catchup 'first' is not known", "none last all"),
        ("#: on-lost=kill\n@daily x", 1, 12, "on-lost 'kill' is not known", "skip retry"),
        ("#: cwd=tmp\n@daily x", 1, 8, "cwd 'tmp' is not an absolute path", "/"),
        ("#: user=a:b\n@daily x", 1, 9, "user 'a:b' is not a user's name", "A-Z"),
        (f"#: cwd=/{'x' * 256}\n@daily x", 1, 8, "cwd is longer than 256 characters", "shorten"),
        ("#: name=a\n\n@daily x", 2, 1, "a blank line follows the options of line 1", "above"),
        ("#: name=a\n# c\n@daily x", 2, 1, "a comment follows the options of line 1", "above"),
        ("#: name=a\nA=b\n@daily x", 2, 1, "an environment line follows the options", "above"),
        ("@daily x\n#: name=a\n", 2, 1, "the end of the file follows the options", "above"),
        ("#: ?\n@daily x", 1, 4, "option '?' is not key=value", "timeout=2h"),
        ("61 * * * *", 1, 1, "minute 61 is not in 0-59", "0 to 59"),
        ("#:\u00a0x=1\n@daily x", 1, 3, "option '\\xa0x' is not known", "known are"),
        ("* * * * * a\0b", 1, 12, "line holds a NUL byte", "remove"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_wrong_is_reported_with_its_place_and_the_way_out(
    text, line, column, message, hint
):
    problem = only_problem(text)
    assert (problem.file, problem.line, problem.column) == ("tab", line, column)
    assert message in problem.message
    assert hint in problem.hint
    assert not problem.is_warning


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("* * * * *", 10, "job has no user and command"),
        ("* * * * * root", 15, "job has no command"),
        ("* * * * * root ", 16, "job has no command"),
        ("* * * * * 1root x", 11, "user '1root' is not a user's name"),
        ("* * * * * [ -x /a ] && /a", 11, "user '[' is not a user's name"),
        ("#: user=a\n* * * * * b x", 13, "user is given as an option and as a column"),
    ],
)
def test_a_system_crontab_without_its_user_is_refused(text, column, message):
    problem = only_problem(text, system=True)
    assert problem.message == message
    assert problem.column == column
    assert problem.hint


def test_all_errors_of_a_file_are_reported_at_once_in_the_order_of_lines():
    reading = read("#: name=a\n@daily x\n61 * * * * x\nMAILTO=a:b\n#: name=a\n@daily y\nA=\n@x y\n")
    assert [(p.line, p.is_warning) for p in reading.problems] == [
        (3, False),
        (4, True),
        (5, False),
        (7, False),
        (8, False),
    ]
    with pytest.raises(CrontabError) as caught:
        reading.raise_for_errors()
    assert caught.value.problems == reading.errors
    assert "tab line 3, column 1: minute 61 is not in 0-59" in str(caught.value)
    assert str(reading.warnings[0]).startswith("tab line 4, column 8: warning: ")


def test_a_file_without_errors_raises_nothing():
    read("MAILTO=a:b\n@daily x").raise_for_errors()
    assert read(b"") == read("\n\n# only a comment\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 0 * * 1 root x", "command begins with a user's name"),
    ],
)
def test_likely_mistakes_are_warned_of(text, message):
    problems = [p for p in read(text).problems if "Quartz" not in p.message]
    assert [(p.message, p.is_warning) for p in problems] == [(message, True)]
    assert problems[0].hint


# Bytes


def test_errors_beyond_the_limit_are_counted():
    reading = read("61 * * * * x\n" * (limits.CRONTAB_ERRORS_MAX + 7) + "MAILTO=a:b\n" * 103)
    assert len(reading.errors) == limits.CRONTAB_ERRORS_MAX + 1
    assert reading.errors[-1].message == "107 errors; the first 100 are shown"
    assert (reading.error_count, reading.warning_count) == (107, 103)
    assert reading.errors[-1].hint
    assert reading.warnings[-1].message == "103 warnings; the first 100 are shown"


def test_a_line_may_be_long_but_not_too_long():
    longest = b"@daily " + b"x" * (limits.CRONTAB_LINE_BYTES_MAX - 7)
    assert len(one(longest).work.argv[2]) == limits.CRONTAB_LINE_BYTES_MAX - 7
    problem = only_problem(b"@daily y\n" + longest + b"x\n@daily z")
    assert (problem.line, problem.column) == (2, limits.CRONTAB_LINE_BYTES_MAX + 1)
    assert "more than 65536" in problem.message
    assert "script" in problem.hint
    assert only_problem(b"x" * (1 << 20)).line == 1


def test_a_file_may_be_large_but_not_too_large():
    problem = only_problem(bytes(limits.CRONTAB_BYTES_MAX + 1))
    assert "more than 67108864" in problem.message
    assert "several files" in problem.hint


def test_so_many_variables_and_not_one_more():
    lines = "".join(f"V{number}=x\n" for number in range(limits.ENVIRONMENT_LINES_MAX))
    assert len(one(f"{lines}V0=y\n@daily x").work.env) == limits.ENVIRONMENT_LINES_MAX
    problem = only_problem(f"{lines}W=x\n@daily x")
    assert problem.line == limits.ENVIRONMENT_LINES_MAX + 1
    assert problem.message == "more than 256 variables are set"
    assert problem.hint


def test_a_job_may_carry_much_but_not_too_much():
    lines = [f"V{number}={'x' * 65_000}\n" for number in range(4)]
    reading = read("".join(lines) + "@daily x\n@daily " + "y" * 2200 + "\n@daily z\nV4=ab\n")
    assert len(reading.jobs) == 2
    (problem,) = reading.problems
    assert problem.line == 6
    assert problem.message.endswith("more than 262144")
    assert "script" in problem.hint
    # Bytes count, not characters: the same in two bytes each is too much with half as many.
    umlauts = "".join(f"V{number}=" + "\u00fc" * 32_500 + "\n" for number in range(4))
    assert read(umlauts + "@daily x").errors == []
    assert "more than 262144" in only_problem(umlauts + "@daily " + "y" * 2200).message


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("JOBS_MAX", 2, "more than 2 jobs are declared"),
        (
            "JOBS_BYTES_MAX",
            70,
            "jobs up to here take more than 70 bytes, each with its environment",
        ),
    ],
)
def test_a_file_may_declare_much_but_not_too_much(monkeypatch, limit, value, message):
    monkeypatch.setattr(limits, limit, value)
    text = f"V={'x' * 30}\n@daily a\n@daily b\n@daily c\n@daily d\n"
    reading = read(text)
    assert len(reading.jobs) == 2
    (problem,) = reading.problems
    assert problem.line == 4
    assert problem.message.startswith(message)
    assert problem.hint


@pytest.mark.parametrize(
    ("content", "line", "column", "message"),
    [
        ("#: Grüße\n".encode("latin-1"), 1, 6, "byte 0xfc is not UTF-8"),
        (b"\n@daily \xc3\xbc\xff", 2, 9, "byte 0xff is not UTF-8"),
        (b"@daily x\xed\xa0\x80", 1, 9, "byte 0xed is not UTF-8"),
        ("@daily x\n".encode("utf-16"), 1, 1, "file is UTF-16, not UTF-8"),
        (b"\0", 1, 1, "line holds a NUL byte"),
    ],
)
def test_bytes_that_are_no_text_are_refused(content, line, column, message):
    problem = only_problem(content)
    assert (problem.line, problem.column, problem.message) == (line, column, message)
    assert problem.hint
    assert not problem.is_warning


def test_comments_may_be_any_utf_8():
    text = "# Grüße, 今日は, \u2028 \U0001f600 \x7f\x0b\x85\n@daily echo 'ü\u2028'\n"
    assert one(text).work.argv[2] == "echo 'ü\u2028'"


def test_carriage_returns_are_taken_off_with_one_warning():
    reading = read(b"A=b\r\n#: name=x\r\n@daily echo a\rb\r\n\r\n@daily y")
    assert reading.jobs[0].work.argv[2] == "echo a\rb"
    assert reading.jobs[0].work.env == (("A", "b"),)
    assert [(p.line, p.column, p.is_warning) for p in reading.problems] == [(1, 4, True)]
    assert "Unix" in reading.problems[0].hint


def test_a_byte_order_mark_is_taken_off_with_a_warning():
    reading = read(b"\xef\xbb\xbf@daily x\n")
    assert reading.jobs[0].line == 1
    assert [p.is_warning for p in reading.problems] == [True]


def test_the_last_line_needs_no_end():
    assert read("@daily x") == read("@daily x\n")


LINES = st.sampled_from(
    [
        "* * * * * x", "? ?(1-5) * * ? x", "61 * * * * x", "@every 5s x", "@reboot x", "#: name=a",
        "#: timeout=5 nmae=x", "#:", "", "# c", "A=b", "A='", "CRON_TZ=UTC", "CRON_TZ=x", "TZ=UTC",
        "MAILTO=x", "LOGNAME=x", "SHELL=x", "* * * * *", "\t", "a\0", "x %%", "* * * * * r x\r",
    ]
)  # fmt: skip


@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.lists(LINES, max_size=12).map(lambda lines: "\n".join(lines).encode()),
        st.text("#:=*?/-,%@' \"\t\r\n05ab\\", max_size=80).map(str.encode),
    ),
    st.booleans(),
)
@example(b"#:\x0b", False)
@example(b"#: \xc2\xa0", False)
@example(b'"=\n', False)
@example(b"@\n", True)
def test_no_bytes_do_anything_but_report_problems(content, system):
    reading = read_crontab(content, file="tab", system=system)
    lines = content.count(b"\n") + 1
    for problem in reading.problems:
        assert 1 <= problem.line <= lines
        assert problem.column >= 1
        assert problem.message
        assert problem.hint
    names = [job.name for job in reading.jobs]
    assert len(names) == len(set(names))
    for job in reading.jobs:
        assert "\0" not in "".join([*job.work.argv, job.work.stdin, job.work.user])
        assert limits.DEADLINE_S_MIN <= job.deadline_s <= limits.DEADLINE_S_MAX
        assert job.schedule.is_placed == ("?" not in job.schedule.text)
