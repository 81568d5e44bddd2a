"""Timers of systemd: what is carried over means the same, and what is left is named with its line.

The units have the forms of systemd's own (systemd-tmpfiles-clean.timer), of its manual pages, and
of public reports of faults; they are written anew.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from cron.cli.unit_folders import read_folder
from cron.crontab.import_systemd import Origin, import_systemd
from cron.crontab.imported import Imported
from cron.crontab.jobfile import read_jobs_toml
from cron.crontab.systemd.commands import PATH
from cron.crontab.systemd.syntax import LINES_MAX
from cron.crontab.systemd.units import NO_FILE, Link
from cron.errors import InvalidInput

CASES: Final = Path(__file__).parents[1] / "data" / "imports"
TIMER: Final = "[Timer]\nOnCalendar=*-*-* 03:00:00 UTC\n[Install]\nWantedBy=timers.target\n"
ONESHOT: Final = "[Service]\nType=oneshot\nUser=app\n"


def said(imported: Imported) -> str:
    return "\n".join(map(str, imported.left))


def of(service: str, timer: str = TIMER, **others: str | Link) -> Imported:
    imported = import_systemd({"a.timer": timer, "a.service": service, **others})
    reading = read_jobs_toml(imported.text.encode(), file="f")
    assert reading.errors == []
    assert len(reading.jobs) == len(imported.tables)
    return imported


def table(service: str, timer: str = TIMER, **others: str | Link) -> dict[str, Any]:
    imported = of(service, timer, **others)
    assert len(imported.tables) == 1, said(imported)
    return imported.tables[0]


def command(line: str, more: str = "") -> str:
    return str(table(f"{ONESHOT}{more}ExecStart={line}\n")["command"])


def reason(line: str, more: str = "") -> str:
    imported = of(f"{ONESHOT}{more}ExecStart={line}\n")
    assert imported.tables == []
    return said(imported)


def when(calendar: str) -> Imported:
    return of(f"{ONESHOT}ExecStart=/x\n", f"[Timer]\nOnCalendar={calendar}\n[Install]\n")


# ---- the cases of the reports


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("comment-in-continuation", {"command": "/usr/bin/rsync -a /src/ /dst/"}),
        ("hex", {"command": "/bin/ls '/srv/my files' 'a\"b' 'c d'"}),
        ("dropin", {"command": "/bin/false", "schedule": "0 4 * * Sun", "zone": "UTC"}),
        ("bom", {"command": "/bin/echo hi", "schedule": "0 4 * * Sun"}),
        ("dash-pre", {"command": "{ /bin/sh -c 'cd /proc; exit 3' || true; } && /bin/pwd",
                      "cwd": "/"}),
        ("pre-exits", {"command": "/bin/sh -c 'test -d /nonexistent || exit 0' && /bin/echo ran"}),
        ("workingdirectory-dash", {
            "command": "{ cd -P /opt/app 2>/dev/null || true; } && /opt/app/run", "cwd": "/",
            "env": {"PATH": PATH, "DATA": "/root/data"}}),
        ("oneshot-runtimemax", {"command": "/opt/report-of-ten-minutes", "timeout": None}),
    ],
)  # fmt: skip
def test_a_case_of_a_report_is_carried_over_as_systemd_reads_it(
    case: str, keys: dict[str, Any]
) -> None:
    imported = import_systemd(read_folder(str(CASES / f"systemd-{case}")))
    assert len(imported.tables) == 1, said(imported)
    found = imported.tables[0]
    assert {key: found.get(key) for key in keys} == keys


@pytest.mark.parametrize(
    ("case", "notes"),
    [
        ("argv0", ["job.service:4: job.timer: left out: ExecStart=@/usr/bin/python3 mypython"]),
        ("plus-and-remain", ["job.service:4: job.timer: left out: RemainAfterExit=yes",
                             "job.service:5: job.timer: left out: ExecStart=+/bin/systemctl"]),
        ("oneshot-runtimemax", ["job.service:4: job.timer: not carried over: RuntimeMaxSec=30"]),
        ("bom", ["job.timer: not carried over: it has no [Install]"]),
    ],
)  # fmt: skip
def test_a_case_of_a_report_is_said_with_its_file_and_line(case: str, notes: list[str]) -> None:
    imported = import_systemd(read_folder(str(CASES / f"systemd-{case}")))
    for note in notes:
        assert note in said(imported)


# ---- lines


@pytest.mark.parametrize(
    "text",
    [
        "ExecStart=/a \\\n  b",  # a line goes on
        "ExecStart=/a \\\n# no \\\n; no\n  b",  # with comments between
        "ExecStart=/a b\\\n",  # and may end with the file
        "ExecStart = /a b  ",
        "ExecStart=/a b\r\n",
        "ExecStart=/a b\0Nice=1",  # NUL ends a line
        "ExecStart=/x\nExecStart=\nExecStart=/a b",
        "[X-Own]\nExecStart=/c\n[Service]\nExecStart=/a b",
        "# ExecStart=/c\n;ExecStart=/c\nExecStart=/a b",
        "ExecStart=/a\tb",
        "ExecStart=\\\n/a b",
    ],
)
def test_a_line_is_read_as_systemd_reads_it(text: str) -> None:
    assert table(f"{ONESHOT}{text}\n")["command"] == "/a b"


def test_a_backslash_that_is_escaped_or_has_blanks_behind_it_continues_no_line() -> None:
    assert command("/a b\\\\\nNice=1") == "/a 'b\\'"
    assert "Nice=1" in said(of(f"{ONESHOT}ExecStart=/a \\ \nNice=1\n"))


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("Exec Start", "a.service:4: a.timer: not carried over: Exec Start is no KEY=VALUE"),
        ("Niece=1", "a.service:4: a.timer: not carried over: Niece=1: this key is not known"),
        ("[Servce]\nNice=1\n[Service]", "a.service:4: a.timer: not carried over: section [Servce]"),
        ("[Service", "a.service:4: a.timer: left out: [Service begins no section"),
        ("Nice=\udcff", "a.service:4: a.timer: not carried over: the line is not UTF-8"),
        ("RemainAfterExit=perhaps", "a.service:4: a.timer: left out: RemainAfterExit=perhaps"),
        ("TimeoutStartSec=soon", "TimeoutStartSec=soon: it is not understood, and systemd ignores"),
    ],
)
def test_a_line_that_systemd_does_not_understand_is_named(line: str, note: str) -> None:
    assert note in said(of(f"{ONESHOT}{line}\nExecStart=/a\n"))


def test_a_file_with_too_many_lines_or_too_long_ones_is_left_out() -> None:
    for text in (f"{'Nice=1'}\n" * (LINES_MAX + 1), "X-A=" + "x\\\n" * 600_000, "ExecStart=/" +
                 "a " * 50_000, "OnFailure=x;" * 100_000):  # fmt: skip
        imported = of(f"{ONESHOT}ExecStart=/a\n{text}")
        assert len(str(imported.left)) < 1_000_000
        assert imported.tables == [] or text.startswith("OnFailure")
    many = "OnCalendar=03:00\n" * 200
    assert of(f"{ONESHOT}ExecStart=/a\n", f"[Timer]\n{many}").tables == []


def test_variables_and_specifiers_that_grow_beyond_a_command_leave_the_job_out() -> None:
    more = f"Environment='A={'b ' * 20_000}'\n"
    assert "it is longer than 65536 characters" in reason("/x " + "$A " * 10_000, more)
    assert "it is longer than 65536 characters" in reason("/x " + "%n" * 20_000)
    assert "it is longer than 65536 characters" in reason("/x", f"Environment={'A=b ' * 20_000}\n")


# ---- words of commands


@pytest.mark.parametrize(
    ("line", "here"),
    [
        # No shell reads these lines: a pattern is no pattern, and one quote is as good as another.
        ("/bin/find /a -name *.gz -delete", "/bin/find /a -name '*.gz' -delete"),
        ("/bin/x a|b > c 'd e' \"f's\"", "/bin/x 'a|b' '>' c 'd e' 'f'\"'\"'s'"),
        ("/bin/x a'b c'd \"\"", "/bin/x 'ab cd' ''"),
        ("/bin/x \\x41\\101\\u00e9\\U0001f600 \\s\\t \\d", "/bin/x 'AAé😀' ' \t' '\\d'"),
        ("/bin/x 'a\\x20b' \\\"c", "/bin/x 'a b' '\"c'"),
        ("/bin/x $$HOME a$HOME a$b", "/bin/x '$HOME' 'a$HOME' 'a$b'"),
        (":/bin/x $HOME ${A}", "/bin/x '$HOME' '${A}'"),
        ("/bin/x ${HOME}/b", "/bin/x \"${HOME}\"/b"),
        ("/bin/x a ; /bin/y \\; b", "/bin/x a && /bin/y ';' b"),
        ("/bin/x a; b", "/bin/x 'a;' b"),
        ("/bin/x a ;; b", "/bin/x a ';;' b"),
        ("/bin/sh -c 'a | b >$HOME/c'", "/bin/sh -c 'a | b >$HOME/c'"),
        ("/bin/sh -c 'cd /x && y' ; /bin/z", "/bin/sh -c 'cd /x && y' && /bin/z"),
        ("-/bin/x 100%%", "{ /bin/x 100% || true; }"),
        ("-/bin/x ; /bin/y", "{ /bin/x || true; } && /bin/y"),
        ("@/bin/x /bin/x a", "/bin/x a"),
        ("/bin/date +%%F", "/bin/date +%F"),
        ("/bin/x %n %p %i %h", "/bin/x a.service a '' /root"),
        ("echo -n a", "/usr/bin/env echo -n a"),
        ("\"/opt/my app/x\" a", "'/opt/my app/x' a"),
    ],
)  # fmt: skip
def test_a_line_of_a_unit_means_the_same_in_a_shell(line: str, here: str) -> None:
    assert command(line) == here


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("+/bin/x", "+ runs it as root, and a job has one user"),
        ("!!/bin/x", "!! runs it as root"),
        ("|/bin/x", "| is no prefix of a command"),
        ("--/bin/x", "-- is no prefix of a command"),
        ("@/bin/x y", "@ gives the program another name"),
        ("/bin/x 'a", "a quote is not closed"),
        ("/bin/x \\xff", "no UTF-8"),
        ("/bin/x %H", "the machine decides what %H means"),
        ("/bin/date +%F", "the machine decides what %F means; a percent sign is %%"),
        ("/bin/x $OPTIONS", "variable OPTIONS is not set in the unit"),
        ("/bin/x $HOME", "$HOME is split into words: write ${HOME}"),
        ("/bin/x ${A:-b}", "is no variable's name"),
        ("/bin/x $", "is no variable's name"),
        ("/bin/$A", "systemd replaces no variable in the path"),
        ("bin/x", "is no program that systemd starts"),
        ("a=b c", "is no program that systemd starts"),
    ],
)
def test_a_line_that_cannot_mean_the_same_leaves_the_job_out(line: str, why: str) -> None:
    assert "a.service:4: a.timer: left out: ExecStart=" in reason(line)
    assert why in reason(line)


def test_variables_of_a_unit_are_replaced_as_systemd_replaces_them() -> None:
    more = "Environment=\"O=-a 'b c'\" E= A=1\nEnvironment=A=$O\n"
    assert command("/bin/x $O ${O} $E ${E} ${A}x", more) == (
        "/bin/x -a 'b c' '-a '\"'\"'b c'\"'\"'' '' '$Ox'"
    )
    assert "a.service:4: a.timer: left out: EnvironmentFile=-/etc/default/a" in reason(
        "/bin/x", "EnvironmentFile=-/etc/default/a\n"
    )


def test_variables_that_mean_something_else_in_a_job_file_are_exported_by_the_command() -> None:
    more = "Environment=SHELL=/bin/fish MAILTO=a@b.org CRON_TZ=UTC 'B=c d'\n"
    found = table(f"{ONESHOT}{more}ExecStart=/x\n")
    assert found["env"] == {"PATH": PATH, "B": "c d"}
    assert found["command"] == (
        "export CRON_TZ=UTC && export MAILTO=a@b.org && export SHELL=/bin/fish && /x"
    )


def test_a_command_without_a_path_is_left_out_where_systemd_finds_another_program() -> None:
    assert "systemd looks for it in other folders" in reason("x", "Environment=PATH=/opt\n")


def test_the_user_the_folder_and_the_mask_of_a_service_are_carried_over() -> None:
    found = table("[Service]\nType=oneshot\nUMask=0027\nExecStart=+/x\nWorkingDirectory=/srv\n")
    assert (found["user"], found["cwd"], found["command"]) == ("root", "/srv", "umask 0027 && /x")
    assert "cwd" not in table(f"{ONESHOT}WorkingDirectory=~\nExecStart=/x\n")
    assert "it is not the same folder here" in reason("/x", "WorkingDirectory=srv\n")
    assert "User=1000: write the user's name" in reason("/x", "User=1000\n")
    imported = import_systemd(
        {"a.timer": TIMER, "a.service": "[Service]\nExecStart=/x\n"},
        origin=Origin(is_of_user=True),
    )
    assert {"user", "cwd"}.isdisjoint(imported.tables[0])


# ---- how commands follow each other


@pytest.mark.parametrize("seed", range(60))
def test_commands_run_and_fail_as_those_of_a_service(seed: int, tmp_path: Path) -> None:
    """The lines are drawn, and systemd's rules are told by a loop over them."""
    drawn = [((seed * 7 + 3 * n * n) % 5, (seed >> n) % 2 == 1) for n in range(1 + seed % 4)]
    kinds = ["ExecStartPre"] * (len(drawn) // 3) + ["ExecStart"] * len(drawn)
    lines, ran, failed = [], [], 0
    for number, ((code, is_ignored), kind) in enumerate(zip(drawn, kinds, strict=False)):
        code = code if code > 1 else 0
        mark = "-" if is_ignored else ""
        step = f"{mark}/bin/sh -c 'echo {number} >>out; false; exit {code}'"
        lines.append(f"{kind}={step}\n")
        if not failed:
            ran.append(str(number))
            failed = 0 if is_ignored else code
    found = of(f"{ONESHOT}{''.join(lines)}WorkingDirectory={tmp_path}\n")
    if not any(line.startswith("ExecStart=") for line in lines):
        assert found.tables == []
        return
    done = subprocess.run(
        ["/bin/sh", "-c", found.tables[0]["command"]], cwd=tmp_path, check=False
    )  # fmt: skip
    assert (tmp_path / "out").read_text().split() == ran
    assert done.returncode == failed


@pytest.mark.parametrize(
    ("service", "why"),
    [
        ("ExecStart=/a\nExecStart=/b", "systemd refuses several ExecStart without Type=oneshot"),
        ("ExecStart=/a ; /b", "systemd refuses several ExecStart"),
        ("ExecStart=/a\nExecStartPost=/b", "ExecStartPost=/b: it runs beside ExecStart"),
        ("ExecStart=/a\nExecCondition=/b", "ExecCondition=/b: a job has no command beside its own"),
        ("ExecStart=/a\nExecStopPost=/b", "ExecStopPost=/b: a job has no command beside its own"),
        ("Type=forking\nExecStart=/a", "Type=forking: its run does not end with its command"),
        ("ExecStart=/a\nRestart=always", "Restart=always: a job does not begin again by itself"),
        ("ExecStop=/a", "its service has no ExecStart"),
        ("ExecStart=/a\nDynamicUser=yes", "DynamicUser=yes: the user is made for each run"),
        ("ExecStart=/a\nStandardInput=file:/x", "StandardInput=file:/x: the input of a job is"),
        ("ExecStart=/a\nRootDirectory=/x", "RootDirectory=/x: the command finds other files there"),
        ("ExecStart=/a\nType=oneshot\nExecStart=/b\nSuccessExitStatus=3", "of several commands"),
        ("ExecStart=/a\nSuccessExitStatus=SIGKILL", "SIGKILL is no code"),
    ],
)  # fmt: skip
def test_a_service_that_has_no_equivalent_is_left_out(service: str, why: str) -> None:
    imported = of(f"[Service]\n{service}\n")
    assert imported.tables == []
    assert why in said(imported)


def test_what_follows_the_start_of_a_oneshot_follows_it_here() -> None:
    found = table(f"{ONESHOT}ExecStartPre=-/a\nExecStart=/b\nExecStartPost=/c\n")
    assert found["command"] == "{ /a || true; } && /b && /c"


@pytest.mark.parametrize(("code", "here"), [(0, 0), (3, 0), (75, 0), (4, 4)])
def test_codes_that_a_service_counts_as_success_are_success_here(code: int, here: int) -> None:
    line = f"/bin/sh -c 'exit {code}'"
    text = command(line, "SuccessExitStatus=3\nSuccessExitStatus=TEMPFAIL\n")
    assert subprocess.run(["/bin/sh", "-c", text], check=False).returncode == here


@pytest.mark.parametrize(
    ("service", "timeout"),
    [
        ("Type=oneshot\nExecStart=/a\nTimeoutStartSec=1h 30min", "5400s"),
        ("Type=oneshot\nExecStart=/a\nTimeoutSec=5\nTimeoutStartSec=7.2s", "8s"),
        ("Type=oneshot\nExecStart=/a\nTimeoutStartSec=5\nTimeoutSec=infinity", None),
        ("Type=oneshot\nExecStart=/a\nTimeoutStartSec=0", None),
        ("Type=oneshot\nExecStart=/a\nRuntimeMaxSec=30", None),
        ("Type=oneshot\nExecStart=/a\nExecStart=/b\nTimeoutStartSec=30", None),
        ("ExecStart=/a\nRuntimeMaxSec=30", "30s"),
        ("ExecStart=/a\nTimeoutStartSec=30", None),
        ("ExecStartPre=/b\nExecStart=/a\nRuntimeMaxSec=30", None),
        ("ExecStart=/a\nRuntimeMaxSec=1y", None),
    ],
)  # fmt: skip
def test_a_bound_of_time_is_carried_over_where_the_type_has_it(
    service: str, timeout: str | None
) -> None:
    imported = of(f"[Service]\n{service}\n")
    assert imported.tables[0].get("timeout") == timeout
    lost = timeout is None and not any(one in service for one in ("infinity", "Sec=0", "StartSec=30"
                                                                  ""))  # fmt: skip
    assert not lost or "Sec=" in said(imported)


def test_keys_that_change_nothing_are_not_noted() -> None:
    usual = (
        "[Unit]\nDescription=x\nAfter=network.target\nWants=network-online.target\n"
        f"{ONESHOT}ExecStart=/a\nRestart=no\nRemainAfterExit=yes\nRemainAfterExit=no\n"
        "KillMode=control-group\nStandardOutput=journal\nPrivateTmp=off\nSyslogIdentifier=x\n"
        "DynamicUser=no\nConditionHost=x\n[Unit]\nConditionPathExists=\n"
    ).replace("ConditionHost=x\n", "")
    assert said(of(usual)) == ""


def test_an_empty_condition_takes_back_all_conditions_and_others_leave_the_job_out() -> None:
    unit = "[Unit]\nConditionACPower=true\nConditionPathExists=/x\n"
    rest = f"{ONESHOT}ExecStart=/a\n"
    assert "a.service:2: a.timer: left out: ConditionACPower=true" in said(of(unit + rest))
    assert of(f"{unit}ConditionHost=\n{rest}").tables
    without = Origin(given_up=frozenset({"ConditionACPower", "ConditionPathExists"}))
    folder = {"a.timer": TIMER, "a.service": unit + rest}
    imported = import_systemd(folder, origin=without)
    assert len(imported.tables) == 1
    assert "a.service:2: a.timer: not carried over: ConditionACPower=true" in said(imported)


def test_what_confines_a_service_is_noted_with_its_line() -> None:
    imported = of(f"[Unit]\nOnFailure=m.service\n{ONESHOT}ExecStart=/a\nProtectSystem=strict\n"
                  "Nice=5\nGroup=adm\nRequires=x.service\n")  # fmt: skip
    assert len(imported.tables) == 1
    for what in ("a.service:2: a.timer: not carried over: OnFailure=m.service",
                 "a.service:7: a.timer: not carried over: ProtectSystem=strict",
                 "a.service:8: a.timer: not carried over: Nice=5",
                 "a.service:9: a.timer: not carried over: Group=adm",
                 "a.service:10: a.timer: not carried over: Requires=x.service"):  # fmt: skip
        assert what in said(imported)


# ---- folders


def test_drop_ins_are_read_by_their_names_and_the_more_special_folder_first() -> None:
    files: dict[str, str | Link] = {
        "a-b.timer": TIMER,
        "a-b.service": f"{ONESHOT}ExecStart=/a\nEnvironment=A=0\n",
        "service.d/10.conf": "[Service]\nEnvironment=A=1 B=1\n",
        "a-.service.d/20.conf": "[Service]\nEnvironment=A=2 C=2\n",
        "a-b.service.d/15.conf": "[Service]\nEnvironment=A=3\nExecStart=\nExecStart=/b\n",
        "a-b.service.d/10.conf": "[Service]\nEnvironment=A=4\n",
        "a-b.service.d/no": "[Service]\nEnvironment=A=5\n",
        "b.service.d/30.conf": "[Service]\nEnvironment=A=6\n",
        "a-.service.d/30.conf": Link(NO_FILE),
    }
    found = import_systemd(files).tables[0]
    assert found["command"] == "/b"
    assert found["env"] == {"PATH": PATH, "A": "2", "C": "2"}


def test_the_first_folder_comes_before_the_others() -> None:
    first = {"a.service.d/1.conf": "[Service]\nExecStart=\nExecStart=/c\nNiece=1\n"}
    second = {"a.timer": TIMER, "a.service": f"{ONESHOT}ExecStart=/b\n"}
    imported = import_systemd(first, second, paths=["/etc/s", "/lib/s"])
    assert imported.tables[0]["command"] == "/c"
    assert "/etc/s/a.service.d/1.conf:4: a.timer: not carried over: Niece=1" in said(imported)


def test_drop_ins_of_a_timer_whose_file_is_elsewhere_are_named() -> None:
    imported = import_systemd({"a.timer": TIMER, "a.service": f"{ONESHOT}ExecStart=/b\n",
                               "b.timer.d/x.conf": "[Timer]\nOnCalendar=04:00\n"})  # fmt: skip
    assert "b.timer.d/x.conf: b.timer: left out: its file is in none of the folders" in said(
        imported
    )


def test_a_masked_unit_is_left_out() -> None:
    service = f"{ONESHOT}ExecStart=/b\n"
    off = Link(NO_FILE)
    for timer, other in ((off, service), ("", service), (TIMER, off), (TIMER, "")):
        imported = import_systemd({"a.timer": timer, "a.service": other})
        assert imported.tables == []
        assert "masked" in said(imported)


def test_a_link_is_the_unit_that_it_leads_to() -> None:
    files: dict[str, str | Link] = {
        "a.timer": TIMER, "b.timer": Link("a.timer", TIMER), "a.service": Link("c.service"),
        "c.service": f"{ONESHOT}ExecStart=/b %n\n", "c.service.d/x.conf": "[Service]\nUser=me\n",
        "d.timer": Link("e.timer"),
    }  # fmt: skip
    imported = import_systemd(files)
    assert [(one["command"], one["user"]) for one in imported.tables] == [("/b c.service", "me")]
    assert "d.timer: left out: its file is in none of the folders" in said(imported)
    files["a.service"], files["c.service"] = Link("c.service"), Link("a.service")
    assert import_systemd(files).tables == []


def test_an_instance_of_a_template_has_its_name_in_its_specifiers() -> None:
    files: dict[str, str | Link] = {
        "dump@.timer": "[Timer]\nOnCalendar=%i UTC\n[Install]\n",
        "dump@.service": f"{ONESHOT}ExecStart=/dump %i %I %p %N\n",
        "timers.target.wants/dump@daily.timer": "",
        "dump@daily.service.d/x.conf": "[Service]\nEnvironment=A=%j\n",
    }
    imported = import_systemd(files)
    assert [(one["schedule"], one["command"], one["env"]["A"]) for one in imported.tables] == [
        ("@daily", "/dump daily daily dump dump@daily", "dump")
    ]
    assert "dump@.timer: left out: it is a template" in said(imported)


def test_a_timer_that_nothing_starts_is_said() -> None:
    service = f"{ONESHOT}ExecStart=/b\n"
    timer = "[Timer]\nOnCalendar=03:00 UTC\n"
    assert "a.timer: not carried over: it has no [Install]" in said(of(service, timer))
    wanted = of(service, timer, **{"timers.target.wants/a.timer": ""})
    assert said(wanted) == ""


def test_drop_ins_of_an_instance_are_those_of_systemd() -> None:
    """The order is that of systemd 252 (`systemd --test`)."""
    names = ("a-b@i", "a-b@", "a-", "a-@i", "a-@", "")
    files: dict[str, str | Link] = {"a-b@.service": f"{ONESHOT}ExecStart=/a\n", "a-b@.timer": TIMER,
                                    "timers.target.wants/a-b@i.timer": ""}  # fmt: skip
    for number, name in enumerate(names):
        folder = f"{name}.service.d" if name else "service.d"
        files[f"{folder}/10.conf"] = f"[Service]\nEnvironment=W={number}\n"
        files[f"{folder}/2{number}.conf"] = f"[Service]\nEnvironment=D{number}=1\n"
    found = import_systemd(files).tables[0]["env"]
    assert found == {"PATH": PATH, "W": "0", **{f"D{n}": "1" for n in range(len(names))}}


def test_the_first_unit_of_a_timer_is_that_which_it_starts() -> None:
    service = f"{ONESHOT}ExecStart=/x\n"
    timer = f"{TIMER}[Timer]\nUnit=b.service\nUnit=a.service\n"
    imported = of(service, timer, **{"b.service": f"{ONESHOT}ExecStart=/b\n"})
    assert imported.tables[0]["command"] == "/b"
    assert "a.timer:7: not carried over: Unit=a.service: systemd takes the first" in said(imported)


def test_two_timers_of_one_service_are_jobs_if_they_are_never_due_together() -> None:
    def names(times: str) -> list[str]:
        other = f"[Timer]\n{times}\nUnit=a.service\n[Install]\n"
        imported = of(f"{ONESHOT}ExecStart=/x\n", **{"b.timer": other})
        assert "a.timer starts a.service, too" in said(imported)
        return [one["name"] for one in imported.tables]

    assert names("OnCalendar=04:00 UTC") == ["a", "b"]
    assert names("OnCalendar=*:00 UTC") == ["a"]
    assert names("OnCalendar=03:00 UTC") == ["a"]
    assert names("OnBootSec=1\nOnUnitActiveSec=1h") == ["a"]


def test_a_timer_that_is_wanted_and_is_in_none_of_the_folders_is_said() -> None:
    imported = of(f"{ONESHOT}ExecStart=/x\n", **{"timers.target.wants/b.timer": ""})
    assert "b.timer: left out: its file is in none of the folders" in said(imported)


@pytest.mark.parametrize(
    ("timer", "why"),
    [
        ("Unit=b.service\nOnCalendar=daily", "a.timer:2: left out: its unit b.service is"),
        ("Unit=a.target\nOnCalendar=daily", "its unit a.target is in none of the folders"),
        ("OnBootSec=5min", "it has neither OnCalendar nor OnUnitActiveSec"),
        ("OnUnitActiveSec=2 fortnights", "OnUnitActiveSec=2 fortnights: it is not understood"),
        ("OnBootSec=1\nOnUnitActiveSec=1.5s", "a period is a number of whole seconds"),
        ("OnUnitActiveSec=1h", "nothing starts the unit for the first time"),
        ("OnBootSec=1\nOnUnitInactiveSec=1h", "no schedule counts from the end of a run"),
        ("OnCalendar=daily\nOnUnitActiveSec=1h", "it counts from the runs of OnCalendar=daily"),
        ("OnCalendar=daily\nOnBootSec=", "it has neither OnCalendar nor OnUnitActiveSec"),
        ("OnClockChange=yes\nOnCalendar=daily", "OnClockChange=yes: no schedule counts from"),
        ("OnCalendar=2003-03-05 05:40", "it names a year"),
        ("OnCalendar=*:*:0/10", "start at whole minutes"),
        ("OnCalendar=Mon *-*-01 00:00", "the day has to be both"),
        ("OnCalendar=*-*~1..7", "more than one"),
        ("OnCalendar=???", "not understood"),
        ("OnCalendar=Sat..Mon", "are no days of a week"),
        ("OnCalendar=12", "not understood"),
        ("OnCalendar=*-*-* 25:00", "hour 25 is not in 0-23"),
        ("OnCalendar=*:50/20", "minute 50/20 is not in 0-59"),
        ("OnCalendar=daily\nOnCalendar=*-*-* 00:00 Mars/Base", "where both are due"),
        ("OnCalendar=03:00 Mars/Base", "Mars/Base"),
    ],
)
def test_a_timer_that_has_no_equivalent_is_left_out(timer: str, why: str) -> None:
    imported = of(f"{ONESHOT}ExecStart=/x\n", f"[Timer]\n{timer}\n[Install]\n")
    assert imported.tables == []
    assert why in said(imported)


@pytest.mark.parametrize(
    ("text", "schedule", "zone"),
    [
        # The examples of systemd.time(7), as far as they repeat.
        ("hourly", "@hourly", None),
        ("weekly", "0 0 * * Mon", None),
        ("bi-annually", "0 0 1 1,7 *", None),
        ("Mon..Fri 10:00", "0 10 * * Mon-Fri", None),
        ("Mon-Fri,sun 10:00", "0 10 * * Mon-Fri,sun", None),
        ("Sat,Thu,Mon..Wed,Sat..Sun", "0 0 * * Sat,Thu,Mon-Wed,Sat-Sun", None),
        ("*-*-* 06:39:00", "39 6 * * *", None),
        ("*-*-* 4:00:00", "0 4 * * *", None),
        ("*-*-01 03:00:00 Europe/Berlin", "0 3 1 * *", "Europe/Berlin"),
        ("*:0/15", "*/15 * * * *", None),
        ("*:12..14/5", "12 * * * *", None),
        ("9..17/2:00 utc", "0 9-17/2 * * *", "UTC"),
        ("*-1/3-1 00:00", "0 0 1 1/3 *", None),
        ("*-02~01", "0 0 L 2 *", None),
        ("*-*~03 12:00", "0 12 L-2 * *", None),
        ("Fri *-*-8..14 18:30", "30 18 * * Fri#2", None),
        ("mon *-*~7/1 18:30", "30 18 * * monL", None),
        ("*-*-* 00/6:00:00", "0 */6 * * *", None),
    ],
)
def test_on_calendar_becomes_five_fields(text: str, schedule: str, zone: str | None) -> None:
    imported = when(text)
    found = [(one["schedule"], one.get("zone")) for one in imported.tables]
    assert found == [(schedule, zone)], said(imported)


def test_times_of_one_timer_are_one_schedule_where_that_has_the_same_instants() -> None:
    def schedules(*texts: str) -> list[str]:
        imported = when("\nOnCalendar=".join(texts))
        return [one["schedule"] for one in imported.tables]

    assert schedules("08:00", "20:00") == ["0 8,20 * * *"]
    assert schedules("daily", "hourly") == ["@hourly"]
    assert schedules("Mon 08:00", "Tue 08:00", "Mon,Tue 09:00") == ["0 8,9 * * Mon,Tue"]
    assert schedules("Mon..Fri 02:00", "Sat,Sun 05:00") == ["0 2 * * Mon-Fri", "0 5 * * Sat,Sun"]
    assert schedules("Mon 08:00", "*-*-01 08:00") == []
    assert schedules("", "03:00") == ["0 3 * * *"]


def test_missed_starts_of_a_persistent_timer_are_made_up_however_late() -> None:
    service = f"{ONESHOT}ExecStart=/x\n"
    late = table(service, f"{TIMER}[Timer]\nPersistent=true\n")
    assert (late.get("catchup"), late["deadline"]) == (None, "31d")
    period = table(service, "[Timer]\nOnBootSec=1\nOnUnitActiveSec=1h\nPersistent=yes\n")
    assert (period["catchup"], period.get("deadline")) == ("none", None)
    never = table(service, TIMER)
    assert (never["catchup"], never.get("deadline")) == ("none", None)


def test_a_random_delay_becomes_jitter_where_it_is_shorter_than_the_period() -> None:
    service = f"{ONESHOT}ExecStart=/x\n"
    assert table(service, f"{TIMER}[Timer]\nRandomizedDelaySec=1h\n")["jitter"] == "3600s"
    imported = of(service, f"{TIMER}[Timer]\nRandomizedDelaySec=2d\n")
    assert "a.timer:6: not carried over: RandomizedDelaySec=2d: write ? for" in said(imported)


def test_a_period_counts_from_1970_and_the_start_of_a_machine_is_noted() -> None:
    timer = "[Timer]\nOnBootSec=15min\nOnUnitActiveSec=1d\n[Install]\n"
    imported = of(f"{ONESHOT}ExecStart=/x\n", timer)
    assert imported.tables[0]["schedule"] == "@every 1d"
    assert "a.timer:2: not carried over: OnBootSec=15min" in said(imported)
    assert "a.timer:3: not carried over: OnUnitActiveSec=1d counts from 1970" in said(imported)


def test_the_zone_of_the_machine_is_that_of_times_without_one() -> None:
    folder = {"a.timer": "[Timer]\nOnCalendar=03:00\n[Install]\nWantedBy=x.target\n",
              "a.service": f"{ONESHOT}ExecStart=/x\n"}  # fmt: skip
    assert "a.timer:2: not carried over: 0 3 * * * is in UTC here" in said(import_systemd(folder))
    imported = import_systemd(folder, origin=Origin(zone="Europe/Berlin"))
    assert imported.tables[0]["zone"] == "Europe/Berlin"
    assert said(imported) == ""


def test_a_folder_without_a_timer_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"there is no \.timer"):
        import_systemd({"a.service": ""})


def test_the_timers_of_this_machine_are_carried_over_or_left_out() -> None:
    places = [one for one in ("/etc/systemd/system", "/lib/systemd/system") if Path(one).is_dir()]
    folders = [read_folder(one) for one in places]
    timers = {name for folder in folders for name in folder if name.endswith(".timer")}
    if not {name for name in timers if "/" not in name}:
        pytest.skip("this machine has no timers of systemd")
    imported = import_systemd(*folders, paths=places)
    left = {one.job for one in imported.left if one.is_whole}
    known = {one["name"] for one in imported.tables}
    for name in timers:
        assert "/" in name or name in left or name.removesuffix(".timer") in known, name
    assert read_jobs_toml(imported.text.encode(), file="f").errors == []


def test_no_text_of_a_unit_reaches_the_joining_shell() -> None:
    """Every word of a command is one word of the shell, whatever is in it."""
    nasty = "`touch x` $(touch y) ;z && a || b > c #d 'e\" *?[!x] {a,b} ~ ~root \\\\n"
    quoted = nasty.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    found = command(f'/bin/echo "{quoted}" "\\n" {quoted.split()[0]}')
    assert shlex.split(found)[:3] == ["/bin/echo", nasty, "\n"]


def test_a_timeout_of_a_part_of_a_second_is_said_to_be_rounded() -> None:
    imported = of("[Service]\nType=oneshot\nExecStart=/a\nTimeoutStartSec=500ms\n")
    assert imported.tables[0]["timeout"] == "1s"
    what = "a.service:4: a.timer: not carried over: TimeoutStartSec=500ms: rounded up to whole"
    assert what in said(imported)


def test_a_command_of_a_unit_that_leaves_a_process_in_the_background_is_said() -> None:
    lines = 'ExecStartPre=/bin/a "&"\nExecStartPre=/bin/sh -c "foo & exit 0"\nExecStart=/bin/b\n'
    imported = of(f"{ONESHOT}{lines}")
    (note,) = [one for one in said(imported).splitlines() if "background" in one]
    mark = "a.service:5: a.timer: not carried over: & leaves a process in the background"
    assert note.startswith(mark)
