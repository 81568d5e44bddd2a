"""Crontabs: what crontab(5) has, and what is beyond it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.alert_rules import AlertKind, Condition, JobAlerts
from cron.calendar.schedule import compile
from cron.crontab.reader import read_crontab, read_file, read_together, split_percent
from cron.job import Catchup, OnLost, Overlap, Schedule
from launcher.protocol.names import format_time, parse_job_name, parse_time

DATA = Path(__file__).parents[1] / "data" / "crontabs"


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
        (6, "@reboot has no instant here, the job is skipped"),
    ]
    assert "systemd" in warnings[0].hint


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
        (r"printf 'a\nb\\c'", r"printf 'a\nb\c'", ""),
        (r"cat%a\nb", "cat", "a\\nb\n"),
        (r"echo \\%x", "echo \\", "x\n"),
        (r"echo \\\%x", r"echo \%x", ""),
        (r"cat%a\\%b\%", "cat", "a\\%b%\n"),
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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("TZ=Europe/Riga\n@daily a\nCRON_TZ=Europe/Riga\n@daily b", 1),
        ("\nTZ=Asia/Tokyo\n@daily a\n@daily b\nTZ=UTC\nCRON_TZ=UTC\n", 2),
    ],
)
def test_a_zone_that_comes_later_does_not_help_the_jobs_above_it(text, line):
    (warning,) = read(text).problems
    assert (warning.line, warning.is_warning) == (line, True)
    zone_line = text[: text.index("CRON_TZ")].count("\n") + 1
    assert warning.message.endswith(f"in UTC as far as CRON_TZ on line {zone_line}")


def test_a_zone_between_tz_and_its_jobs_is_enough():
    assert read("TZ=Asia/Tokyo\nCRON_TZ=UTC\n@daily a\nCRON_TZ=Asia/Tokyo\n@daily b").problems == []
    assert read("@daily a\nTZ=Asia/Tokyo\nCRON_TZ=UTC\n@daily b").problems == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("RAFTCRON_JOB=evil", "RAFTCRON_JOB is set anew for each launch"),
        ("RAFTCRON_EPOCH=1", "RAFTCRON_EPOCH is set anew for each launch"),
        ("USER=evil", "USER does not change who the job runs as"),
        ('PATH="$PATH:/x"', "PATH keeps $PATH as it stands: nothing is expanded here"),
        ("PATH=/x:${PATH}", "PATH keeps ${PATH} as it stands: nothing is expanded here"),
        ("LOG=$HOME/log", "LOG keeps $HOME as it stands: nothing is expanded here"),
        ("A=b\nC=x$A/y", "C keeps $A as it stands: nothing is expanded here"),
        ("HOME=~joe", "HOME keeps ~ as it stands: nothing is expanded here"),
        ("PYTHONPATH=/a:~/b", "PYTHONPATH keeps ~ as it stands: nothing is expanded here"),
    ],
)
def test_variables_that_do_not_do_what_they_look_like_are_warned_of(text, message):
    reading = read(f"{text}\n@daily x")
    (warning,) = reading.problems
    assert (warning.line, warning.column) == (text.count("\n") + 1, 1)
    assert (warning.message, warning.is_warning) == (message, True)
    assert warning.hint
    name, _, value = text.rpartition("\n")[2].partition("=")
    assert reading.jobs[0].work.env[-1] == (name, value.strip('"'))


@pytest.mark.parametrize(
    "text",
    ["PHRASE='pa$word'", "A=$", "A='$1 $$ ${} $-'", "A=$(date)", "A=~/x", "PATH=/a~/b:/c",
     "RAFTCRON_SERVER=127.0.0.1:7400", "SHELL=/no/such", "PRICE=$B"],
)  # fmt: skip
def test_variables_that_may_be_meant_as_they_stand_are_passed_on_in_silence(text):
    assert read(f"{text}\n@daily x").problems == []


def test_mailto_is_of_the_commands_below_it_and_is_passed_on():
    text = (
        "@daily a\nMAILTO=ops@example.org, root ops@example.org\n@daily b\n"
        '#: handler=h\n@daily 1\nMAILTO=""\n@daily c\n'
    )
    reading = read(text)
    [note] = reading.problems
    assert (note.line, note.is_note) == (2, True)
    assert note.message == "MAILTO sends mail only if an executor serves mail"
    assert note.hint == "write targets = ... into its configuration (docs/alerts.md)"
    told = [job.alerts and job.alerts.mail_to for job in reading.jobs]
    assert told == [None, ("ops@example.org", "root"), None, None]
    assert reading.jobs[1].work.env == (("MAILTO", "ops@example.org, root ops@example.org"),)


@pytest.mark.parametrize(
    ("value", "problem", "taken"),
    [
        ("a:b", "'a:b' is no address", ()),
        ("a&b", "'a&b' is no address", ()),
        ("a@b@c root", "'a@b@c' is no address", ("root",)),
        ("<a@example.org>", "is no address", ()),
        (f"{'x' * 255}", "is no address", ()),
        (",".join(f"u{n}" for n in range(21)), "21 addresses are more than 20", None),
    ],
)
def test_a_mailto_that_cannot_be_is_a_warning_and_no_error(value, problem, taken):
    reading = read(f"MAILTO={value}\n@daily a")
    [warning] = [one for one in reading.problems if not one.is_note]
    assert warning.is_warning
    assert problem in warning.message
    [job] = reading.jobs
    mail_to = job.alerts.mail_to if job.alerts else ()
    assert mail_to == taken if taken is not None else len(mail_to) == 20


def test_alerts_of_a_job_are_its_conditions_and_channels():
    reading = read("MAILTO=root\n#: alert=failed:2,late:10m to=ops,pager\n@daily a")
    assert all(one.is_note for one in reading.problems)
    conditions = (Condition(AlertKind.FAILED, 2), Condition(AlertKind.LATE, after_s=600))
    assert reading.jobs[0].alerts == JobAlerts(conditions, ("ops", "pager"), ("root",))
    text = (
        "[[job]]\nschedule = '@daily'\ncommand = 'a'\nalert = ['failed:2', 'late:10m']\n"
        "to = ['ops', 'pager']\nenv = { MAILTO = 'root' }\n"
    )
    written = read_file("jobs.toml", (text + text).encode())
    [note, *others] = [one for one in written.problems if one.is_note]
    assert note.message == "MAILTO sends mail only if an executor serves mail"
    assert others == [], "it is said once for a file"
    assert written.jobs[0].alerts == reading.jobs[0].alerts


def test_logname_cannot_be_set():
    reading = read("LOGNAME=root\n@daily a")
    assert reading.jobs[0].work.env == ()
    assert reading.errors == []
    assert reading.problems[0].message == "LOGNAME cannot be set and is ignored"
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
    assert (warning.line, warning.column, warning.is_warning) == (3, 5, True)


# Names


def digest_of(user: bytes, command: bytes) -> str:
    return hashlib.sha256(user + b"\0" + command).hexdigest()


def test_a_job_without_a_name_gets_one_from_program_user_and_command():
    text = "@daily /opt/backup.sh -a\n@hourly /opt/backup.sh -a\n@daily y\n@daily /opt/backup.sh -a"
    jobs = read(text).jobs
    name = f"default/backup-sh-{digest_of(b'', b'/opt/backup.sh -a')[:4]}"
    assert [job.name for job in jobs][:2] == [name, f"{name}-2"]
    assert jobs[3].name == f"{name}-3"
    assert len({job.name for job in jobs}) == 4
    as_root = one("@daily root x", system=True)
    assert as_root.name == f"default/x-{digest_of(b'root', b'x')[:4]}"


def test_two_jobs_whose_short_names_are_alike_have_different_names():
    commands: dict[str, str] = {}
    for number in range(10_000):
        digits = digest_of(b"", f"x {number}".encode())[:4]
        if (other := commands.setdefault(digits, f"x {number}")) != f"x {number}":
            break
    first, second = f"@daily {other}\n", f"@daily x {number}\n"
    long = f"default/x-{digest_of(b'', f'x {number}'.encode())[:10]}"
    assert [job.name for job in read(first + second).jobs] == [f"default/x-{digits}", long]
    files = [("one", first.encode()), ("two", second.encode())]
    readings = read_together(files, system=False, zone="UTC", tenant="default")
    assert [reading.problems for _, reading in readings] == [[], []]
    assert [reading.jobs[0].name for _, reading in readings] == [f"default/x-{digits}", long]
    assert [*readings[1][1].unnamed] == [long]


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("/usr/local/bin/backup.sh --full", "backup-sh"),
        ("cd / && run-parts --report /etc/cron.hourly", "run-parts"),
        ("test -x /usr/sbin/anacron || { cd / && run-parts /etc/cron.daily; }", "run-parts"),
        ("command -v debian-sa1 > /dev/null && debian-sa1 1 1", "debian-sa1"),
        ("[ -x /usr/lib/php/clean ] && if [ ! -d /run/x ]; then /usr/lib/php/clean; fi", "clean"),
        ("php /var/www/artisan schedule:run >> /dev/null 2>&1", "artisan"),
        ("sudo -u www-data nice -n 10 php -f /x/y.php", "y-php"),
        ("flock -n /tmp/l.lock /opt/x", "x"),
        ("FOO=1 BAR='a b' exec python3 -m http.server", "http-server"),
        ("sh -c 'echo hi'", "echo"),
        ("FOO=bar true", "true"),
        ("PASS=hunter2", "job"),
        (">/dev/null foo", "foo"),
        ("2> /var/log/x foo >> y", "foo"),
        ('su - postgres -c "pg_dump x"', "pg_dump"),
        ("cronic /bin/z", "z"),
        ("php7.4 /x/y.php", "y-php"),
        ("perl -e 'print 1'", "perl"),
        ("(sleep 2; date > out) ", "date"),
        ("sleep $((RANDOM % 90)); '/opt/my prog/run' x", "run"),
        ("for i in 1 2; do echo $i; done", "echo"),
        (". ~/.profile; /opt/z.sh", "z-sh"),
        (": ", "job"),
        ("é", "job"),
        ("/opt/" + 60 * "a", 40 * "a"),
        ("'", "job"),
    ],
)
def test_a_default_name_says_which_program_runs(command: str, program: str):
    found, _, digits = one(f"@daily {command}").name.removeprefix("default/").rpartition("-")
    assert (found, len(digits)) == (program, 4)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0\n\r%"), max_size=50))
def test_every_command_has_a_default_name_that_a_job_may_have(command: str):
    for job in read(f"@daily x{command}").jobs:
        assert parse_job_name(job.name) == job.name


def test_the_schedule_and_options_do_not_change_a_default_name():
    assert one("@daily x").name == one("#: timeout=5s\n5 5 * * *   x").name
    assert one("@daily x").name != one("#: user=me\n@daily x").name


def test_names_without_a_tenant_are_the_callers():
    assert one("#: name=a\n@daily x", tenant="acme").name == "acme/a"
    assert one("#: name=other/a\n@daily x", tenant="acme").name == "other/a"
    assert one("#: name=default/a\n@daily x", tenant="acme").name == "default/a"
    assert one("@daily x", tenant="acme").name.startswith("acme/x-")


def test_two_jobs_of_one_name_are_an_error_that_names_both_lines():
    problem = only_problem("#: name=a\n@daily x\n#: timeout=5s name=default/a\n@daily y")
    assert (problem.line, problem.column) == (3, 20)
    assert problem.message == "name default/a is already that of the job on line 2"
    assert problem.hint
