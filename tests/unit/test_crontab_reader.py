"""Crontabs: what crontab(5) has, what is beyond it, and every way to get it wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cron import limits
from cron.calendar.schedule import compile
from cron.crontab.reader import read_crontab, read_file, split_percent
from cron.errors import CrontabError
from cron.job import Catchup, OnLost, Overlap, Schedule
from launcher.names import format_time, parse_time

DATA = Path(__file__).parents[1] / "data" / "crontabs"
EXAMPLES = Path(__file__).parents[2] / "examples"


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


# Real crontabs


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        ("anacron", [("30 7-23 * * *", "root", "2026-11-20T12:30:00Z")]),
        (
            "awstats",
            [
                ("*/10 * * * *", "www-data", "2026-11-20T12:10:00Z"),
                ("10 3 * * *", "www-data", "2026-11-21T03:10:00Z"),
            ],
        ),
        (
            "e2fsprogs",
            [
                ("30 3 * * 0", "root", "2026-11-22T03:30:00Z"),
                ("10 3 * * *", "root", "2026-11-21T03:10:00Z"),
            ],
        ),
        ("logcheck", [("2 * * * *", "logcheck", "2026-11-20T12:02:00Z")]),
        (
            "mailman3",
            [
                ("0 8 * * *", "list", "2026-11-21T08:00:00Z"),
                ("0 12 * * *", "list", "2026-11-21T12:00:00Z"),
            ],
        ),
        ("ntpsec", [("25 6 * * *", "root", "2026-11-21T06:25:00Z")]),
        ("php-common", [("9,39 * * * *", "root", "2026-11-20T12:09:00Z")]),
        (
            "sysstat",
            [
                ("5-55/10 * * * *", "root", "2026-11-20T12:05:00Z"),
                ("59 23 * * *", "root", "2026-11-20T23:59:00Z"),
            ],
        ),
    ],
)
def test_crontabs_of_debian_packages_are_read_as_debian_does(package, expected):
    path = DATA / f"debian-{package}.crontab"
    reading = read_file(path.name, path.read_bytes(), system=True)
    assert reading.errors == []
    noon_s = parse_time("2026-11-20T12:00:00Z")
    found = [
        (j.schedule.resolved, j.work.user, format_time(compile(j.schedule).next(noon_s)))
        for j in reading.jobs
    ]
    assert found == expected
    for job in reading.jobs:
        assert job.work.argv[:2] == ("/bin/sh", "-c")
        lines = path.read_text("utf-8").splitlines()
        assert lines[job.line - 1].endswith(job.work.argv[2])


def test_a_line_for_the_boot_is_left_out_of_a_system_crontab_with_a_warning():
    content = (DATA / "debian-logcheck.crontab").read_bytes()
    warnings = read_crontab(content, file="logcheck", system=True).warnings
    assert [(w.line, w.message) for w in warnings] == [
        (4, "MAILTO sends no mail"),
        (6, "@reboot has no instant, the line is left out"),
    ]
    assert "systemd" in warnings[1].hint


def test_the_examples_are_read_without_a_word():
    crontab = read_file("crontab", (EXAMPLES / "crontab").read_bytes())
    files = read_file("jobs.toml", (EXAMPLES / "jobs.toml").read_bytes())
    assert crontab.problems == files.problems == []
    jobs = {job.name: job for job in crontab.jobs}
    assert sum(job.schedule.every_s in (2, 5) for job in crontab.jobs) >= 4
    assert any("?" in job.schedule.text for job in crontab.jobs)
    assert any(job.overlap is Overlap.FORBID for job in crontab.jobs)
    assert any(job.work.timeout_ms for job in crontab.jobs)
    assert any(job.work.stdin for job in crontab.jobs)
    assert jobs["demo/new-york"].schedule.zone == "America/New_York"
    assert {job.schedule.zone for job in files.jobs} == {"UTC", "Europe/Berlin"}
    assert not {job.name for job in files.jobs} & set(jobs)


# Commands


def test_a_command_goes_to_the_shell_as_it_stands():
    job = one("5 4 * * *   echo  \"a b\"  'c' # not a comment; $HOME `x` \\n  ")
    assert job.work.argv == (
        "/bin/sh",
        "-c",
        "echo  \"a b\"  'c' # not a comment; $HOME `x` \\n  ",
    )
    assert job.work.stdin == ""


@pytest.mark.parametrize(
    ("command", "script", "stdin"),
    [
        ("cat", "cat", ""),
        ("cat%", "cat", ""),
        ("cat%hello", "cat", "hello\n"),
        ("cat%one%two", "cat", "one\ntwo\n"),
        ("cat%one%", "cat", "one\n"),
        ("cat%%one", "cat", "\none\n"),
        (r"date +\%s", "date +%s", ""),
        (r"date +\%s%in\%put%x", "date +%s", "in%put\nx\n"),
        (r"printf 'a\nb\\c'", r"printf 'a\nb\\c'", ""),
        (r"cat%a\nb", "cat", "a\\nb\n"),
        (r"echo \\%x", r"echo \\", "x\n"),
        ("echo \\", "echo \\", ""),
        ("echo ü%ß", "echo ü", "ß\n"),
    ],
)
def test_a_percent_sign_ends_the_command_and_begins_its_input(command, script, stdin):
    assert split_percent(command) == (script, stdin)
    job = one(f"* * * * * {command}\n")
    assert job.work.argv[2] == script
    assert job.work.stdin == stdin


def test_blanks_and_tabs_may_stand_before_and_between_fields():
    job = one("\t 5\t4  * \t* 1-5\t\tbackup now")
    assert job.schedule == Schedule("5 4 * * 1-5", "5 4 * * 1-5")
    assert job.work.argv[2] == "backup now"


def test_a_system_crontab_has_a_user_before_the_command():
    job = one("@daily\twww-data\tsh -c x", system=True)
    assert job.work.user == "www-data"
    assert job.work.argv[2] == "sh -c x"
    assert one("@every 5s root x y", system=True).work.argv[2] == "x y"


# Environment


def test_environment_lines_apply_to_the_jobs_below_them():
    first, second, third = read(
        "@daily a\nA=1\nB = two words  \n@daily b\nA='x'\nSHELL=/bin/bash\n@daily c\n"
    ).jobs
    assert first.work.env == ()
    assert second.work.env == (("A", "1"), ("B", "two words"))
    assert third.work.env == (("A", "x"), ("B", "two words"), ("SHELL", "/bin/bash"))
    assert [job.work.argv[0] for job in (first, second, third)] == [
        "/bin/sh",
        "/bin/sh",
        "/bin/bash",
    ]


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("A=b", "A", "b"),
        ("A = b", "A", "b"),
        ("  A\t=\tb  ", "A", "b"),
        ('A="  b  "', "A", "  b  "),
        ("A='  b  '  ", "A", "  b  "),
        ('A="it\'s"', "A", "it's"),
        ("A=''", "A", ""),
        ("A=b=c", "A", "b=c"),
        ("A=$HOME/x", "A", "$HOME/x"),
        ("A=b # c", "A", "b # c"),
        ("A=it's", "A", "it's"),
        ("\"A\"='b'", "A", "b"),
        ("a.b-c=1", "a.b-c", "1"),
        ("PATH=/bin:/usr/bin", "PATH", "/bin:/usr/bin"),
        ("HOME=/tmp", "HOME", "/tmp"),
        ("USER=me", "USER", "me"),
        ("GRUSS=schöne Grüße", "GRUSS", "schöne Grüße"),
    ],
)
def test_an_environment_line_is_read_as_by_debian(line, name, value):
    assert one(f"{line}\n@daily x").work.env == ((name, value),)


def test_an_assignment_before_a_command_is_part_of_the_command():
    job = one("0 0 * * * A=b=c run")
    assert job.work.env == ()
    assert job.work.argv[2] == "A=b=c run"


def test_cron_tz_sets_the_zone_of_what_is_below_and_is_not_passed_on():
    jobs = read("@daily a\nCRON_TZ=Asia/Tokyo\n@daily b\nCRON_TZ='UTC'\n@daily c").jobs
    assert [job.schedule.zone for job in jobs] == ["UTC", "Asia/Tokyo", "UTC"]
    assert all(job.work.env == () for job in jobs)
    assert one("@daily a", zone="Europe/Riga").schedule.zone == "Europe/Riga"


def test_tz_is_only_passed_on_and_that_is_said():
    reading = read("TZ=Asia/Tokyo\n@daily a")
    assert reading.jobs[0].schedule.zone == "UTC"
    assert reading.jobs[0].work.env == (("TZ", "Asia/Tokyo"),)
    (warning,) = reading.problems
    assert (warning.line, warning.is_warning) == (1, True)
    assert warning.message == "TZ does not move schedules, which are in UTC"
    assert "CRON_TZ" in warning.hint
    assert read("CRON_TZ=UTC\nTZ=Asia/Tokyo\n@daily a").problems == []


def test_mailto_is_taken_with_a_warning_that_points_to_the_logs():
    reading = read("MAILTO=ops@example.org\n@daily a")
    assert reading.jobs[0].work.env == (("MAILTO", "ops@example.org"),)
    assert reading.problems[0].is_warning
    assert "raftcron logs" in reading.problems[0].hint


def test_logname_cannot_be_set():
    reading = read("LOGNAME=root\n@daily a")
    assert reading.jobs[0].work.env == ()
    assert reading.errors == []
    assert reading.problems[0].message == "LOGNAME cannot be set and is left out"
    assert reading.problems[0].hint


# Options


def test_options_add_up_over_several_lines():
    job = one(
        "#: name=billing/invoices timeout=2h\n"
        "  #:overlap=forbid\tcatchup='none'\n"
        '#: deadline=10m on-lost="skip" user=billing cwd="/srv/a b"\n'
        "0 6 * * * invoices\n"
    )
    assert job.name == "billing/invoices"
    assert job.work.timeout_ms == 7_200_000
    assert (job.overlap, job.catchup, job.on_lost) == (Overlap.FORBID, Catchup.NONE, OnLost.SKIP)
    assert job.deadline_s == 600
    assert (job.work.user, job.work.cwd) == ("billing", "/srv/a b")
    assert job.line == 4


def test_options_are_for_one_job_only():
    first, second = read("#: name=a timeout=5s overlap=queue\n@daily x\n@daily y").jobs
    assert first.work.timeout_ms == 5000
    assert second.work.timeout_ms == 0
    assert second.overlap is Overlap.ALLOW


def test_defaults_are_those_of_the_manual():
    job = one("0 0 * * * x")
    assert (job.overlap, job.catchup, job.on_lost) == (Overlap.ALLOW, Catchup.LAST, OnLost.SKIP)
    assert job.work.timeout_ms == 0
    assert not job.work.guarded


@pytest.mark.parametrize("overlap", ["allow", "forbid", "queue", "replace"])
def test_work_that_must_not_overlap_is_guarded(overlap):
    job = one(f"#: overlap={overlap}\n@daily x")
    assert job.overlap.name.lower() == overlap
    assert job.work.guarded is (overlap != "allow")


@pytest.mark.parametrize(
    ("schedule", "deadline_s"),
    [
        ("* * * * *", 60),
        ("*/5 * * * *", 300),
        ("@hourly", 3600),
        ("@daily", 3600),
        ("0 0 29 2 *", 3600),
        ("@every 5s", 60),
        ("@every 20m", 1200),
        ("@every 3d", 3600),
        ("?/15 * * * *", 900),
        ("? ? * * *", 3600),
        ("? * * * ?", 3600),
    ],
)
def test_the_deadline_is_a_period_of_a_minute_to_an_hour(schedule, deadline_s):
    assert one(f"{schedule} x").deadline_s == deadline_s


def test_a_question_mark_is_left_to_the_leader():
    reading = read("? ?(2-6) * * * x\n*/5 * * * * y\n0 0 ? * * z")
    assert [job.schedule for job in reading.jobs] == [
        Schedule("? ?(2-6) * * *"),
        Schedule("*/5 * * * *", "*/5 * * * *"),
        Schedule("0 0 ? * *"),
    ]
    (warning,) = reading.problems
    assert (warning.line, warning.column, warning.is_warning) == (3, 1, True)


# Names


def test_a_job_without_a_name_gets_one_from_user_and_command():
    jobs = read("@daily x\n@hourly x\n@daily y\n@daily x").jobs
    digest = hashlib.sha256(b"\0x").hexdigest()[:10]
    assert [job.name for job in jobs][:2] == [f"default/job-{digest}", f"default/job-{digest}-2"]
    assert jobs[3].name == f"default/job-{digest}-3"
    assert len({job.name for job in jobs}) == 4
    as_root = one("@daily root x", system=True)
    assert (
        as_root.name == f"default/job-{hashlib.sha256(b'root' + bytes(1) + b'x').hexdigest()[:10]}"
    )


def test_the_schedule_and_options_do_not_change_a_default_name():
    assert one("@daily x").name == one("#: timeout=5s\n5 5 * * *   x").name
    assert one("@daily x").name != one("#: user=me\n@daily x").name


def test_names_without_a_tenant_are_the_callers():
    assert one("#: name=a\n@daily x", tenant="acme").name == "acme/a"
    assert one("#: name=other/a\n@daily x", tenant="acme").name == "other/a"
    assert one("#: name=default/a\n@daily x", tenant="acme").name == "default/a"
    assert one("@daily x", tenant="acme").name.startswith("acme/job-")


def test_two_jobs_of_one_name_are_an_error_that_names_both_lines():
    problem = only_problem("#: name=a\n@daily x\n#: timeout=5s name=default/a\n@daily y")
    assert (problem.line, problem.column) == (3, 20)
    assert problem.message == "name default/a is already that of the job on line 2"
    assert problem.hint


# Errors


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
        ("@reboot x", 1, 1, "@reboot has no instant", "systemd"),
        ("@dayly x", 1, 1, "@dayly is not a known schedule", "@daily"),
        ("@every", 1, 1, "@every has no period", "90s"),
        ("@every 90 x", 1, 8, "period 90 has no unit", "90s"),
        ("@every 0s x", 1, 8, "period 0s is not in 1s to 366d", "1s to 366d"),
        ("0 0 30 2 * x", 1, 5, "day of month 30 never comes in month 2", "the month has"),
        ("0\u00a00 * * * x", 1, 2, "schedule has the character U+00A0", "ASCII"),
        ("run this", 1, 1, "line is no job, environment line or comment", "NAME=value"),
        ("\u00fc", 1, 1, "line is no job, environment line or comment", "NAME=value"),
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
        ("#: on-lost=retry\n@daily x", 1, 12, "retry comes with the executor pool", "skip"),
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
    reading = read("#: name=a\n@daily x\n61 * * * * x\nMAILTO=a\n#: name=a\n@daily y\nA=\n@x y\n")
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
    assert str(reading.warnings[0]).startswith("tab line 4, column 1: warning: ")


def test_a_file_without_errors_raises_nothing():
    read("MAILTO=a\n@daily x").raise_for_errors()
    assert read(b"") == read("\n\n# only a comment\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("* * * * * * x", "command begins like a sixth field"),
        ("0 0 * * ? * x", "command begins like a sixth field"),
        ("0 0 * * 1 root x", "command begins with a user's name"),
    ],
)
def test_likely_mistakes_are_warned_of(text, message):
    problems = [p for p in read(text).problems if "Quartz" not in p.message]
    assert [(p.message, p.is_warning) for p in problems] == [(message, True)]
    assert problems[0].hint


# Bytes


def test_errors_beyond_the_limit_are_counted():
    reading = read("61 * * * * x\n" * (limits.CRONTAB_ERRORS_MAX + 7) + "MAILTO=x\n" * 103)
    assert len(reading.errors) == limits.CRONTAB_ERRORS_MAX + 1
    assert reading.errors[-1].message == "7 more errors"
    assert reading.errors[-1].hint
    assert reading.warnings[-1].message == "3 more warnings"


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


@pytest.mark.parametrize(
    ("content", "line", "column", "message"),
    [
        ("# Grüße\n".encode("latin-1"), 1, 5, "byte 0xfc is not UTF-8"),
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


@settings(max_examples=300, deadline=None)
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
