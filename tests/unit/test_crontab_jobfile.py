"""Job files in TOML: the same options under the same names, the same care for errors."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cron import limits
from cron.crontab.jobfile import find_excess, read_jobs_toml
from cron.crontab.reader import read_crontab, read_file
from cron.job import Catchup, Overlap, Schedule

JOB = '[[job]]\nschedule = "@daily"\ncommand = "x"\n'


def read(text, **options):
    content = text if isinstance(text, bytes) else text.encode()
    return read_jobs_toml(content, file="jobs.toml", **options)


def one(text, **options):
    reading = read(text, **options)
    assert reading.errors == []
    (job,) = reading.jobs
    return job


def only_problem(text, **options):
    (problem,) = read(text, **options).problems
    return problem


def test_a_job_has_everything_that_a_crontab_line_has():
    job = one(
        """
[[job]]
name = "billing/invoices"
schedule = "30 2 * * mon-fri"
zone = "America/New_York"
command = '''
set -e
date +%s
'''
stdin = "one\\ntwo"
timeout = "2h"
overlap = "queue"
catchup = "all"
deadline = "10m"
on-lost = "skip"
user = "billing"
cwd = "/srv"
env = { SHELL = "/bin/bash", LANG = "C.UTF-8" }
"""
    )
    assert job.name == "billing/invoices"
    assert job.schedule == Schedule("30 2 * * mon-fri", "30 2 * * 1-5", "America/New_York")
    assert job.work.argv == ("/bin/bash", "-c", "set -e\ndate +%s\n")
    assert job.work.env == (("SHELL", "/bin/bash"), ("LANG", "C.UTF-8"))
    assert job.work.stdin == "one\ntwo"
    assert job.work.timeout_ms == 7_200_000
    assert (job.overlap, job.catchup, job.deadline_s) == (Overlap.QUEUE, Catchup.ALL, 600)
    assert (job.work.user, job.work.cwd, job.work.guarded) == ("billing", "/srv", True)
    assert job.line == 2


def test_a_job_file_and_a_crontab_can_say_the_same():
    crontab = b"A=b\n#: timeout=5s overlap=forbid\n*/5 * * * * run it\n"
    table = '[[job]]\nschedule = "*/5 * * * *"\ncommand = "run it"\ntimeout = "5s"\n'
    from_table = one(table + 'overlap = "forbid"\nenv = { A = "b" }\n')
    (from_line,) = read_crontab(crontab, file="tab").jobs
    assert from_table.name == from_line.name
    assert from_table.work == from_line.work
    assert from_table.schedule == from_line.schedule
    assert from_table.deadline_s == from_line.deadline_s


def test_the_name_of_a_file_says_how_it_is_read():
    assert read_file("a/b.TOML", JOB.encode()).jobs == read(JOB).jobs
    assert read_file("toml", b"@daily x").jobs == read_crontab(b"@daily x", file="toml").jobs


def test_environments_are_not_shared():
    text = '[[job]]\nschedule="@daily"\ncommand="a"\nzone="Asia/Tokyo"\n[job.env]\nA="b"\n' + JOB
    first, second = read(text, zone="Europe/Riga").jobs
    assert first.work.env == (("A", "b"),)
    assert second.work.env == ()
    assert [first.schedule.zone, second.schedule.zone] == ["Asia/Tokyo", "Europe/Riga"]


def test_a_question_mark_is_left_to_the_leader():
    assert one('[[job]]\nschedule = "? * * * *"\ncommand = "x"').schedule == Schedule("? * * * *")


@pytest.mark.parametrize("system", [False, True])
def test_the_boot_is_left_out_with_a_warning(system):
    text = '[[job]]\nschedule = "@reboot"\ncommand = "x"'
    warning = only_problem(text, system=system)
    assert (warning.line, warning.column, warning.is_warning) == (2, 1, True)
    assert read(text, system=system).jobs == []


@pytest.mark.parametrize(
    ("text", "line", "column", "message", "hint"),
    [
        ("[[job]\n", 1, 6, "file is not TOML: expected", "toml.io"),
        ("x = ", 1, 5, "file is not TOML: invalid value", "toml.io"),
        (JOB + 'command = "y"', 4, 14, "file is not TOML: cannot overwrite", "toml.io"),
        ("a = [", 1, 6, "file is not TOML", "toml.io"),
        ("jobs = []", 1, 1, "table 'jobs' is not known", "did you mean job?"),
        ("\nx = 5\n" + JOB, 2, 1, "key 'x' is not known", "job"),
        ('schedule = "@daily"\n' + JOB, 1, 1, "key 'schedule' is not known", "below a line [[job"),
        (JOB + "[x]\n", 4, 1, "table 'x' is not known", "job"),
        (JOB + "  [[ x ]]\n[[x]]", 4, 3, "table 'x' is not known", "job"),
        (JOB + "stdin = '''\n[x]\n'''\n[x.y]\nz = 1", 7, 1, "table 'x' is not known", "job"),
        (JOB + "env = {}\n['a b']\nenv = 1", 5, 1, "table 'a b' is not known", "job"),
        ('"a.b".c = 5', 1, 1, "table 'a.b' is not known", "job"),
        (JOB + '["\\u0078"]', 0, 0, "table 'x' is not known", "job"),
        ("job = 5", 1, 1, "job is not a list of tables", "[[job]]"),
        ("# job = 5\n[job]\nx = 1", 2, 1, "job is not a list of tables", "[[job]]"),
        ('[[job]]\ncommand = "x"', 1, 1, "schedule is missing", '"@hourly"'),
        ('\n [[job]]\nschedule = "@daily"', 2, 2, "command is missing", "or name a handler"),
        ('[[job]]\nschedule = "@daily"\ncommand = "  "', 3, 1, "command is missing", "shell"),
        ('[[job]]\ncommand = "x"\n  schedule = "61 * * * *"', 3, 3, "minute 61", "0 to 59"),
        ('[[job]]\nschedule = 5\ncommand = "x"', 2, 1, "schedule is not a text", "quotes"),
        (JOB + "timeout = 5", 4, 1, "timeout is not a text", "quotes"),
        (JOB + 'timeout = "5"', 4, 1, "timeout 5 has no unit", "5s"),
        (JOB + 'tiemout = "5s"', 4, 1, "option 'tiemout' is not known", "did you mean timeout?"),
        (JOB + 'zone = "Europe/Berln"', 4, 1, "time zone 'Europe/Berln'", "Europe/Berlin"),
        (JOB + 'env = "x"', 4, 1, "env is not a table", "env = {"),
        (JOB + "env = { A = 1 }", 4, 1, "variable A is not a text", "quotes"),
        (JOB + 'env = { "A=B" = "1" }', 4, 1, "variable 'A=B' is not a name", "A-Z"),
        (JOB + 'env = { CRON_TZ = "UTC" }', 4, 1, "CRON_TZ is not a variable", "zone ="),
        (JOB + '[job.env]\nSHELL = "sh"', 4, 1, "SHELL 'sh' is not an absolute", "/bin/bash"),
        (JOB + 'stdin = "a\\u0000"', 4, 1, "stdin holds a NUL character", "remove"),
        (JOB + 'env = { A = "\\u0000" }', 4, 1, "variable A holds a NUL", "remove"),
        (JOB + 'name = "a"\n' + JOB + 'name = "a"', 8, 1, "name default/a is already", "another"),
        (JOB + f'stdin = "{"x" * 65537}"', 4, 1, "stdin is longer than 65536 bytes", "script"),
        (JOB + f'env = {{ A = "{"x" * 65537}" }}', 4, 1, "variable A is longer than", "file"),
        ("x = 1" + "0" * 5000, 1, 5, "word is longer than 256 characters", "shorten a number"),
        (b'[[job]]\n# \xfc\nschedule = ""', 2, 3, "byte 0xfc is not UTF-8", "UTF-8"),
        (JOB.encode("utf-16"), 1, 1, "file is UTF-16, not UTF-8", "UTF-8"),
        (b"[[job]]\nx = \0", 2, 5, "file is not TOML", "toml.io"),
        ("x = " + "[" * 100_000, 1, 69, "file is nested more than 64 deep", "[[job]]"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_wrong_is_reported_with_its_place_and_the_way_out(
    text, line, column, message, hint
):
    problem = only_problem(text)
    assert message in problem.message
    assert (problem.file, problem.line, problem.column) == ("jobs.toml", line, column)
    assert hint in problem.hint
    assert not problem.is_warning


def test_a_nul_in_a_command_is_refused():
    problems = read('[[job]]\nschedule = "@daily"\ncommand = "a\\u0000"').problems
    assert problems[0].message == "command holds a NUL character"
    assert problems[0].line == 3


def test_all_errors_are_reported_at_once():
    text = JOB + 'timeout = "5"\nnmae = "x"\n[[job]]\nschedule = "61 * * * *"\ncommand = "y"\n'
    assert [problem.line for problem in read(text).problems] == [4, 5, 7]


def test_what_a_crontab_warns_of_is_warned_of_here():
    text = JOB + 'env = { TZ = "Asia/Tokyo", MAILTO = "a:b", LOGNAME = "y" }'
    reading = read(text)
    assert reading.errors == []
    assert sorted(problem.message.split()[0] for problem in reading.warnings) == [
        "LOGNAME",
        "MAILTO",
        "TZ",
    ]
    assert reading.jobs[0].work.env == (("TZ", "Asia/Tokyo"), ("MAILTO", "a:b"))
    assert read(JOB + 'zone = "UTC"\nenv = { TZ = "Asia/Tokyo" }').problems == []


def test_lines_inside_a_text_are_not_taken_for_places():
    text = (
        '[[job]]\nschedule = "@daily"\ncommand = """\n[[job]]\ntimeout = 5\n"""\n'
        "stdin = '''\n[[job]]\n'''\n"
        'cwd = "/a#" # """\n'
        "user = 'me' # it's\n"
        'timeout = "x"\n'
    )
    problem = only_problem(text)
    assert problem.line == 12
    assert "timeout" in problem.message


def test_jobs_in_an_inline_list_have_no_places_but_all_their_errors():
    job = '{schedule="@daily", command="x", name="a"}'
    text = f"job = [{job}, {job}]"
    problem = only_problem(text)
    assert "name default/a is already" in problem.message


def test_a_job_file_may_be_large_but_not_too_large():
    assert "more than" in only_problem(b"#" * (limits.CRONTAB_BYTES_MAX + 1)).message


PARTS = st.sampled_from(
    [
        "[[job]]", 'schedule = "@daily"', 'schedule = "? * * * *"', 'command = "x"', 'name = "a"',
        'name = ""', "timeout = 5", 'timeout = "5s"', "[job.env]", 'A = "b"', "env = 1", "env = {}",
        'zone = "x"', "'''", '"""', "job = 1", "[other]", "x = 1979-05-27", 'user = "\\u0000"', "#",
    ]
)  # fmt: skip


@given(
    st.one_of(
        st.binary(max_size=100),
        st.text("[]job= \"'\n\\u0.{}#", max_size=60).map(str.encode),
        st.lists(PARTS, max_size=12).map(lambda parts: "\n".join(parts).encode()),
    ),
    st.booleans(),
)
@example(b'[[job]]\nschedule = "@daily"\ncommand = "\\u0000"', False)
@example(b'[[job]]\nschedule = "\\u0085"\ncommand = "x"', False)
@example(b"[[job]]\nx = 1" + b"0" * 5000, False)
@example(b"[[job]]\nx = 0xf" + b"f" * 5000, False)
def test_no_bytes_do_anything_but_report_problems(content, system):
    reading = read(content, system=system)
    for problem in reading.problems:
        assert 0 <= problem.line <= content.count(b"\n") + 1
        assert problem.message
        assert problem.hint
    for job in reading.jobs:
        assert "\0" not in "".join([*job.work.argv, job.work.stdin, job.work.user, job.work.cwd])


# What tomllib would take too long for


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a." * 8_000 + "a = 1", 1, 10, "key has more than 4 dots"),
        ("\n[" + '"a" . ' * 8_000 + "a]", 2, 30, "key has more than 4 dots"),
        ("x = {" + "a." * 8_000 + "a = 1}", 1, 15, "key has more than 4 dots"),
        ("x = " + "[" * 8_000, 1, 69, "file is nested more than 64 deep"),
        ("x = " + "{a=" * 8_000, 1, 197, "file is nested more than 64 deep"),
        (JOB + "retries = 0x" + "f" * 6_000, 4, 11, "word is longer than 256 characters"),
        (JOB + "retries = " + "9" * 6_000, 4, 11, "word is longer than 256 characters"),
        (JOB + "retry-on = [0b" + "1" * 20_000 + "]", 4, 13, "word is longer than 256"),
        ("x" * 8_000 + " = 1", 1, 1, "word is longer than 256 characters"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_file_that_would_take_too_long_is_refused_before_it_is_parsed(
    monkeypatch, text, line, column, message
):
    def parsed(text):
        raise AssertionError("it was parsed")

    monkeypatch.setattr(tomllib, "loads", parsed)
    problem = only_problem(text)
    assert (problem.line, problem.column) == (line, column)
    assert message in problem.message
    assert problem.hint


@pytest.mark.parametrize(
    ("limit", "text", "message"),
    [
        ("JOB_FILE_CHARS_MAX", f"{JOB}{JOB}", "job file has "),
        (
            "JOB_FILE_ALL_DOTS_MAX",
            f"{JOB}env.a = 'x'\n" * 60,
            "keys have more than 50 dots",
        ),
    ],
)
def test_a_file_that_is_too_large_is_refused_before_it_is_parsed(monkeypatch, limit, text, message):
    monkeypatch.setattr(limits, limit, 50)
    assert message in only_problem(text).message


@pytest.mark.parametrize(
    "text",
    [
        f"{JOB}name = 'a' # {'.' * 99}{'[' * 99}",
        f'{JOB}stdin = "{"." * 99}\\"{"[" * 99}"',
        f"{JOB}stdin = '''{'.' * 99}'{'[' * 99}\n''{'x' * 999}'''",
        f'{JOB}stdin = """{"." * 99}"{"[" * 99}\n""\\"""{"x" * 999}"""',
        f"{JOB}env = {{ A = 'a.b.c.d.e.f.g', B = 'x' }}\ncpu = 0.5",
        f"{JOB}stdin = '{'x' * 9_999}'",
    ],
    ids=range(6),
)
def test_what_stands_in_texts_and_comments_is_not_counted(text):
    assert read(text).problems == []


@given(st.text("[]{}\"'.=,#\n\\ a1", max_size=60))
def test_a_file_within_the_bounds_is_left_to_tomllib(text):
    assert find_excess(text) is None or text.count(".") > limits.JOB_FILE_DOTS_MAX


@pytest.mark.parametrize(
    "text", ['"' * 200_000, '"""' + '\\"' * 100_000, "'''" * 70_000, '"a' * 100_000, "[]" * 100_000]
)
def test_the_bounds_are_looked_for_in_one_pass(text):
    # A second pass for each of 100,000 marks would take minutes, which the test's limit ends.
    assert find_excess(text) is None
