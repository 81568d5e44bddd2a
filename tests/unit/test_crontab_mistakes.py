"""What people write who know another cron, or this one half: refused or warned of, with a way out.

One case for each example; `test_crontab_hints` follows every hint.
"""

from __future__ import annotations

import pytest

from cron import limits
from cron.calendar.schedule import compile
from cron.crontab import jobs
from cron.crontab.reader import read_crontab, read_file
from tests.unit.api_rig import run_cli

MINUTES_2026 = (1_767_225_600, 1_767_225_600 + 366 * 86_400)


def read(text, **options):
    content = text if isinstance(text, bytes) else text.encode()
    return read_crontab(content, file="tab", **options)


def instants(line):
    (job,) = read(f"{line} x").jobs
    return [t.scheduled_s for t in compile(job.schedule).between(*MINUTES_2026, limit=600_000)]


@pytest.mark.parametrize(
    ("wrapped", "plain"),
    [
        ("0 22-6 * * *", "0 22,23,0,1,2,3,4,5,6 * * *"),
        ("0 22-6/2 * * *", "0 22,0,2,4,6 * * *"),
        ("0 0 * * fri-mon", "0 0 * * 5,6,0,1"),
        ("0 0 * nov-feb *", "0 0 * 11,12,1,2 *"),
        ("0 0 * feb-jan/3 *", "0 0 * 2,5,8,11 *"),
        ("0 0 * * mon-sun", "0 0 * * 0,1,2,3,4,5,6"),
        ("0 0 * * friday", "0 0 * * 5"),
        ("0 0 * * 7-1", "0 0 * * 0,1"),
    ],
)
def test_a_range_that_wraps_and_a_full_name_are_taken_with_a_note(wrapped, plain):
    assert instants(wrapped) == instants(plain)
    reading = read(f"{wrapped} x")
    assert reading.warnings == []
    (note,) = reading.notes
    assert str(note).startswith("tab line 1, column ")
    assert ": note: " in str(note)


@pytest.mark.parametrize(
    "line", ["0 22-6 * * fri-mon x", "? 22-6 * * friday x", "0 ?(2-6) * january-mar * x"]
)
def test_what_is_stored_is_read_by_a_replica_that_knows_no_such_ranges(line):
    (job,) = read(line).jobs
    # Where a `?` keeps its place the text is read again, else only what was resolved.
    stored = job.schedule.text if "?" in line else job.schedule.resolved
    assert read(f"{stored} x").notes == []


async def test_lint_shows_notes_and_counts_them_apart(tmp_path):
    file = tmp_path / "tab"
    file.write_text("0 22-6 * * * x\n5/90 * * * * x\n")
    result = await run_cli("lint", str(file))
    assert result.exit_code == 0
    assert "note: hour 22-6 means 22-23,0-6" in result.stdout
    assert result.stdout.splitlines()[-1] == "2 jobs, 0 errors, 1 warning, 1 note"
    result = await run_cli("lint", str(file), "-o", "json")
    assert '"severity": "note"' in result.stdout or '"severity":"note"' in result.stdout


@pytest.mark.parametrize(
    ("line", "column", "message", "hints"),
    [
        # Six fields
        ("* * * * * * cmd", 11, "schedule has 6 fields, not five", ["@every 1s", "'*' in quotes"]),
        ("*/5 * * * * * cmd", 13, "has 6 fields", ["@every 5s", "'*' in quotes"]),
        ("0 0 12 ? * MON-FRI cmd", 12, "has 6 fields", ["0 12 * * MON-FRI"]),
        ("0 0 12 * * ? * cmd", 12, "has 7 fields", ["0 12 * * *"]),
        ("0 5 * * * 2030 cmd", 11, "has 6 fields", ["write 0 5 * * *"]),
        ("@daily * cmd", 8, "looks like a field", ["'*' in quotes"]),
        # What was meant
        ("CRON_TZ=Asia/Tokyo 0 5 * * * x", 19, "has more behind it", ["CRON_TZ=Asia/Tokyo on a"]),
        ("@every 5 minutes x", 8, "period '5 minutes'", ["write @every 5m"]),
        ("* * * * ls | wc", 9, "has 4 fields, not five", ["* * * * * ls | wc"]),
        ("0 9 * * mon, wed x", 14, "blank inside a field", ["0 9 * * mon,wed"]),
        ("0 9 * * FRI#6 x", 9, "FRI#6 is in no month", ["5#1 to 5#5", "5L for the last one"]),
        ("-*/15 * * * * x", 1, "begins with -", ["write */15"]),
        ("CRON_TZ=", 9, "CRON_TZ has no value", ["write CRON_TZ=UTC"]),
        ("mail root -s hello world", 1, "not a job, an environment line or a", ["# before"]),
    ],
)
def test_a_line_that_means_something_else_is_refused_with_what_to_write(
    line, column, message, hints
):
    (problem,) = read(line).problems
    assert not problem.is_warning
    assert problem.column == column
    assert message in problem.message
    for hint in hints:
        assert hint in problem.hint


@pytest.mark.parametrize(
    "line", ["* * * * * '*' cmd", "* * * * * 7z x", "@daily 1", "* * * * * ./5 x", "@daily mon"]
)
def test_a_command_that_is_no_field_is_a_command(line):
    assert read(line).problems == []


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("@daily date +%F", 14, "% ends the command"),
        ('@daily x "$(date +%F)"', 19, "% ends the command"),
        ("@daily printf '%s' x", 16, "% ends the command"),
        ("0 0 1-7 * 1 x", 5, "day of month 1-7 or day of week 1 is enough"),
        ("FOO=bar # comment", 8, "looks like a comment"),
        ("5/90 * * * * x", 1, "minute 5/90 is the same as 5"),
        ("0-59/70 * * * * x", 1, "minute 0-59/70 is the same as 0"),
        ("*/90 * * * * x", 1, "minute */90 is the same as 0"),
        ("RANDOM_DELAY=5", 1, "RANDOM_DELAY delays nothing"),
        ("# Grüße\n@daily x".encode("latin-1"), 5, "comment is not UTF-8"),
        ("@reboot x", 1, "@reboot has no instant here, the job is skipped"),
    ],
)
def test_what_is_likely_a_mistake_is_warned_of(text, column, message):
    (problem,) = read(text).problems
    assert problem.is_warning
    assert not problem.is_note
    assert (problem.line, problem.column) == (1, column)
    assert message in problem.message
    assert problem.hint


@pytest.mark.parametrize(
    "text",
    [
        "@daily mail -s x root%Hello%World",
        r"@daily date +\%F",
        "0 0 1-7 * * x",
        "0 0 */2 * 1 x",
        "FOO=bar#comment",
        "FOO='bar # comment'",
        "59/15 * * * * x",
        "0-59/30 * * * * x",
    ],
)
def test_what_is_right_is_not_warned_of(text):
    assert read(text).problems == []


def test_a_comment_in_latin_1_does_not_part_options_from_their_job_unseen():
    text = "#: name=a\n# Grüße\n@daily x".encode("latin-1")
    assert [problem.is_warning for problem in read(text).problems] == [False, True]


@pytest.mark.parametrize(
    ("written", "script", "stdin"),
    [
        # As Debian 12's cron (3.0pl1-162) divides a line, tried with its own loop.
        (r"a \\% b", "a \\", " b\n"),
        (r"a \% b", "a % b", ""),
        (r"a \\\% b", "a \\% b", ""),
        (r"a \\\\% b", "a \\\\", " b\n"),
        (r"a \n \\n", "a \\n \\n", ""),
        (r"a % b \% c % \\% d", "a ", " b % c \n \\% d\n"),
    ],
)
def test_backslashes_are_read_as_debian_reads_them(written, script, stdin):
    (job,) = read(f"@daily {written}").jobs
    assert (job.work.argv[2], job.work.stdin) == (script, stdin)


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tab", "@reboot root x\n@daily root x"),
        (
            "tab.toml",
            "[[job]]\nschedule='@reboot'\ncommand='x'\n[[job]]\nschedule='@daily'\ncommand='x'",
        ),
    ],
)
def test_the_boot_is_left_out_of_every_form_of_file(name, text, system):
    reading = read_file(name, text.encode(), system=system)
    assert reading.errors == []
    assert len(reading.jobs) == 1
    assert "@reboot" in reading.warnings[0].message


async def test_all_errors_of_a_long_file_are_counted(tmp_path):
    file = tmp_path / "tab"
    file.write_text("61 * * * * x\n" * 20_000)
    result = await run_cli("lint", str(file))
    assert result.exit_code == 2
    assert "20,000 errors; the first 100 are shown" in result.stdout
    assert result.stdout.splitlines()[-1] == "0 jobs, 20,000 errors, 0 warnings"


def test_what_is_wrong_is_worked_out_for_no_more_errors_than_are_shown(monkeypatch):
    looked_at = []
    monkeypatch.setattr(jobs, "misread", lambda *given, **_: looked_at.append(given))
    reading = read_crontab(b"61 * * * * x\n" * 500 + b"0 5 * * * y\n", file="tab")
    assert (reading.error_count, len(reading.jobs)) == (500, 1)
    assert len(looked_at) == limits.CRONTAB_ERRORS_MAX


@pytest.mark.parametrize(
    ("what", "message", "hint"),
    [
        ("nofile.crontab", "nofile.crontab: no such file", "name a file that exists"),
        ("./jobs", "./jobs: no such file", "name a file that exists"),
        ("0 5 * * * cmd", "goes on with a command", "write '0 5 * * *' alone"),
        ("@every 5 minutes", "period '5 minutes' is not a duration", "write @every 5m"),
        ("CRON_TZ=Asia/Tokyo 0 5 * * *", "does not stand before a schedule", "--tz Asia/Tokyo"),
        ("* * * * ls | wc", "has 4 fields, not five", "* * * * * ls | wc"),
        ("0 9 * * mon, wed", "blank inside a field", "0 9 * * mon,wed"),
        ("-*/15 * * * *", "begins with -", "write */15"),
        ("0 0 12 * * ?", "has 6 fields, not five", "write 0 12 * * *"),
    ],
)
async def test_next_says_what_is_meant_and_what_to_write(
    what, message, hint, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    result = await run_cli("next", what)
    assert result.exit_code == 2
    assert message in result.stderr
    assert hint in result.stderr


async def test_next_of_a_name_that_is_no_file_says_so_where_no_replica_answers():
    result = await run_cli("next", "nofile")
    assert result.exit_code == 5
    assert "there is no file nofile, so a job was asked for" in result.stderr


async def test_next_of_a_file_shows_line_and_schedule_of_jobs_without_a_name(tmp_path):
    file = tmp_path / "tab"
    file.write_text("0 5 * * * x\n#: name=a\n0 6 * * * y\n")
    result = await run_cli("next", str(file), "-n", "1")
    assert "job-" not in result.stdout
    first, second = result.stdout.splitlines()[1:]
    assert first.startswith("line 1: 0 5 * * *  ")
    assert second.startswith("a  ")
