"""What a person does every day: name a job and mean its newest launch, copy a time from a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import click
import msgspec
import pytest
from click.testing import Result

from cron import limits
from cron.api.dead import DeadReport
from cron.api.gates import GatesReport, GateView
from cron.api.jobs import JobView, NextTimes, PauseReport, PauseView
from cron.api.launches import HistoryQuery, OutputView, WhyReport, WhyRequest
from cron.api.members import StatusRow
from cron.cli import render
from cron.cli.app import WithOthers, load_command
from cron.errors import NotFound, UnknownJob
from cron.main import cli as cli_tree
from launcher.protocol.names import format_time
from tests.unit.api_rig import NOON_S, FakeBackend, asks, launch, run_cli, serving

Command: TypeAlias = tuple[str, click.Command]

NO_LETTER = NotFound("it is no dead letter", "")
LAUNCH = "default/backup@2026-11-20T15:00:00Z"
SHORT = "backup@2026-11-20T15:00:00Z"


async def cli(backend: FakeBackend, *arguments: str) -> Result:
    async with serving(backend) as server:
        return await run_cli(*arguments, server=server)


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(render, "is_terminal", lambda: True)


# ---- the newest launch


async def test_show_of_a_job_takes_its_newest_launch_and_says_so():
    backend = FakeBackend(history=[launch()], show=[launch()], output=OutputView(ended=True))
    result = await cli(backend, "show", "backup")
    assert result.exit_code == 0, result.output
    assert result.stderr == f"raftcron: the newest launch, {SHORT}\n"
    assert result.stdout.startswith(f"{SHORT}#1\n")
    assert backend.calls[:2] == [
        ("history", (HistoryQuery(job="default/backup", limit=1),)),
        ("show", (asks("show", LAUNCH),)),
    ]


async def test_logs_of_a_job_takes_the_newest_launch_that_began():
    waiting = launch(launch="default/backup@2026-11-20T15:01:00Z", attempt=0, state="due")
    output = OutputView(content=b"hello\n", size=6, ended=True)
    backend = FakeBackend(history=[waiting, launch()], output=output)
    result = await cli(backend, "logs", "backup")
    assert (result.exit_code, result.stdout) == (0, "hello\n")
    assert SHORT in result.stderr
    assert backend.calls[1][1][0].launch == LAUNCH


@pytest.mark.parametrize("given", ["backup", f"{LAUNCH}+t1"])
@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        ("failed", "timeout", "it failed (timeout)"),
        ("succeeded", "", "it succeeded"),
        ("lost", "", "it is lost"),
    ],
)
async def test_why_of_a_manual_launch_tells_of_that_launch(given, state, reason, said):
    manual = launch(launch=f"{LAUNCH}+t1", state=state, reason=reason, by="ada")
    report = WhyReport(job="default/backup", at_s=NOON_S - 60, verdict="no instant")
    backend = FakeBackend(history=[manual], show=[manual], why=report, dead=NO_LETTER)
    result = await cli(backend, "why", given)
    first, *rest = result.stdout.splitlines()
    assert first == f"it was launched by hand by ada; {said}"
    assert any("log point 1" in line for line in rest)
    assert ("show", (asks("show", f"{LAUNCH}+t1"),)) in backend.calls
    is_asked = ("dead", (asks("dead", f"{LAUNCH}+t1"),)) in backend.calls
    assert is_asked is (state != "succeeded")


async def test_why_of_a_manual_launch_that_became_a_dead_letter_says_so_and_how_to_redrive_it():
    manual = launch(launch=f"{LAUNCH}+t1", state="failed", reason="exit-code", by="ada")
    letter = msgspec.structs.replace(manual, ended_at_ms=NOON_S * 1000)
    dead = DeadReport(letters=[letter], total=1)
    result = await cli(FakeBackend(show=[manual], dead=dead), "why", f"{LAUNCH}+t1")
    (line,) = [one for one in result.stdout.splitlines() if "dead letter" in one]
    assert "it became a dead letter at 2026-11-20 15:00:00 UTC" in line
    assert f"`raftcron dead redrive '{SHORT}+t1'` launches it again" in line


@pytest.mark.parametrize(
    ("newest_s", "asked"), [(60, (NOON_S + 60, False)), (-60, (NOON_S, False))]
)
async def test_why_of_a_job_is_about_its_newest_launch_or_instant(newest_s, asked):
    report = WhyReport(job="default/backup", at_s=NOON_S, verdict="it ran")
    at_s = NOON_S + newest_s
    newest = launch(launch=f"default/backup@{format_time(at_s)}", scheduled_s=at_s)
    backend = FakeBackend(history=[newest], why=report)
    result = await cli(backend, "why", "backup")
    assert (result.exit_code, result.stdout) == (0, "it ran\n")
    assert "the newest" in result.stderr
    assert backend.calls[-1] == ("why", (asks("why", "default/backup", *asked),))


def no_instant(request: WhyRequest) -> WhyReport:
    """What a cell answers of a job whose first instant is to come: the time that it was asked."""
    return WhyReport(job=request.job, at_s=request.at_s, verdict="it is no instant")


async def test_why_of_a_job_that_was_only_triggered_tells_of_that_launch():
    manual = launch(launch=f"{LAUNCH}+t1", state="failed", reason="timeout", by="ada")
    backend = FakeBackend(history=[manual], show=[manual], why=no_instant, dead=NO_LETTER)
    result = await cli(backend, "why", "backup")
    assert result.stdout.startswith("it was launched by hand by ada; it failed (timeout)\n")
    assert f"the newest launch, {SHORT}+t1" in result.stderr


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (
            NextTimes(job="default/backup", schedule="@yearly", times_s=[1 << 31]),
            "the next instant, 2038-01-19 03:14:08 UTC\n",
        ),
        (
            NextTimes(job="default/backup", schedule="@yearly"),
            "no instant is to come, so this is about now, ",
        ),
        (
            UnknownJob("job default/backup does not exist"),
            "no instant is to come, so this is about now, ",
        ),
    ],
)
async def test_why_of_a_job_that_was_not_due_yet_is_about_its_next_instant(times, said):
    backend = FakeBackend(history=[], why=no_instant, next=times)
    result = await cli(backend, "why", "backup")
    assert (result.exit_code, result.stdout) == (0, "it is no instant\n")
    assert result.stderr.startswith(f"raftcron: backup has no launch yet; {said}")
    if isinstance(times, NextTimes) and times.times_s:
        assert backend.calls[-1][1][0].at_s == 1 << 31


async def test_why_of_a_task_that_is_to_come_is_about_its_time():
    report = WhyReport(job="default/mail.7", at_s=1 << 31, verdict="it waits for its time")
    result = await cli(FakeBackend(history=[], why=report), "why", "mail.7")
    assert result.stderr.endswith("has no launch yet; the next instant, 2038-01-19 03:14:08 UTC\n")


async def test_why_of_a_task_that_waits_for_others_needs_no_schedule():
    """NEXT of the name of a task is refused: it is the name of no job."""
    task = "shop.reindex:import-42.complete"

    def waits(request: WhyRequest) -> WhyReport:
        return WhyReport(job=task, at_s=request.at_s, verdict="it waits for its group")

    result = await cli(FakeBackend(history=[], why=waits), "why", task)
    assert (result.exit_code, result.stdout) == (0, "it waits for its group\n")
    assert result.stderr.startswith(f"raftcron: {task} has no launch yet; no instant is to come, ")


@pytest.mark.parametrize("command", ["show", "logs"])
async def test_a_job_without_a_launch_says_where_to_look(command):
    result = await cli(FakeBackend(history=[]), command, "backup")
    assert result.exit_code == 3
    assert "no launch of backup is known" in result.stderr
    assert "raftcron next backup" in result.stderr


# ---- times as tables print them


@pytest.mark.parametrize(
    "time",
    [("2026-11-20 15:00:00",), ("2026-11-20", "15:00:00"), ("2026-11-20", "15:00", "UTC")],
)
async def test_a_time_that_was_copied_from_a_table_is_taken_also_without_quotes(time):
    report = WhyReport(job="default/backup", at_s=NOON_S, verdict="it ran")
    backend = FakeBackend(why=report)
    result = await cli(backend, "why", "backup", *time)
    assert result.exit_code == 0, result.stderr
    assert backend.calls == [("why", (asks("why", "default/backup", NOON_S, False),))]
    is_said = "UTC" not in time
    assert ("is 2026-11-20 15:00:00 UTC" in result.stderr) is is_said


async def test_an_option_takes_such_a_time_and_repeats_it_as_it_was_understood():
    backend = FakeBackend(history=[])
    result = await cli(backend, "history", "--since", "2026-11-20 15:00")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == "raftcron: 2026-11-20 15:00 is 2026-11-20 15:00:00 UTC\n"
    assert backend.calls[0][1][0].since_ms == NOON_S * 1000


async def test_a_time_of_today_is_taken_and_repeated_with_its_day():
    result = await cli(FakeBackend(history=[]), "history", "--since", "7:05")
    assert re.fullmatch(r"raftcron: 7:05 is \d{4}-\d\d-\d\d 07:05:00 UTC\n", result.stderr)


# ---- what holds a job


HELD = JobView(
    name="default/backup",
    schedule="* * * * *",
    next_s=[NOON_S],
    paused=True,
    paused_by="ada",
    pause_reason="migration",
    gate=GateView(
        number=7, action="drop", by="bob", until_ms=NOON_S * 1000, reason="disk full", priority=-1
    ),
    last=launch(),
)


async def test_jobs_shows_pauses_and_gates_also_on_a_narrow_terminal(narrow):
    text = re.sub(r"\x1b\[[0-9]*m", "", (await cli(FakeBackend(jobs=[HELD]), "jobs")).stdout)
    assert "paused, gate 7" in text
    assert "gate 7, closed by bob until 2026-11-20 15:00:00 UTC, drops it: disk full" in text


async def test_pausing_a_paused_job_says_until_when_it_is_paused():
    pause = PauseView(job="default/a", until_ms=NOON_S * 1000, by="bob", reason="upgrade")
    report = PauseReport(unchanged=["default/a", "default/b"], pauses=[pause])
    result = await cli(FakeBackend(pause=report), "pause", "*", "--for", "1m")
    assert result.stdout.splitlines() == [
        "a was paused already by bob, until 2026-11-20 15:00:00 UTC: upgrade",
        "b was paused already",
    ]


# ---- one form of names, and what must not be missed


async def test_people_see_the_default_tenant_nowhere():
    answers: dict[str, Any] = {
        "trigger": launch(),
        "kill": launch(state="cancelled", reason="killed"),
        "history": [launch()],
        "show": [launch()],
        "output": OutputView(ended=True),
    }
    for command in (["trigger", "backup"], ["kill", LAUNCH], ["history"], ["show", "backup"]):
        result = await cli(FakeBackend(**answers), *command)
        assert "default/" not in result.stdout + result.stderr, command
        assert SHORT in result.stdout


async def test_status_has_the_pid_on_a_narrow_terminal(narrow):
    rows = [
        StatusRow(
            kind="replica", id=f"r{number}", address=f"r{number}.cell.example.com:7400",
            pid=4_190_000 + number,
            role="leader" if number == 1 else "follower", term=12, applied=1_234_567,
            digest="0123456789abcdef", version="0.1.0", member_state="votes", incarnation=1,
        )
        for number in (1, 2, 3)
    ]  # fmt: skip
    text = re.sub(r"\x1b\[[0-9]*m", "", (await cli(FakeBackend(status=rows), "status")).stdout)
    for number in (1, 2, 3):
        assert f"419000{number}" in text
    assert max(map(len, text.splitlines())) <= 80


async def test_history_says_when_there_is_more():
    views = [launch(scheduled_s=NOON_S - n) for n in range(4)]
    result = await cli(FakeBackend(history=views), "history", "-n", "3")
    assert len(result.stdout.splitlines()) == 4
    assert "there are more before 2026-11-20 14:59:58 UTC; a higher --limit" in result.stderr
    result = await cli(FakeBackend(history=views), "history", "--limit", "4")
    assert result.stderr == ""


async def test_the_highest_limit_names_another_way_to_see_more(monkeypatch):
    monkeypatch.setattr(limits, "HISTORY_ROWS_MAX", 3)
    result = await cli(FakeBackend(history=[launch()] * 4), "history", "-n", "3")
    assert "an earlier --until shows them" in result.stderr


@pytest.mark.parametrize(
    ("command", "method", "field"),
    [
        ("history", "history", "collection"),
        ("jobs", "jobs", "collection"),
        ("dead list", "dead", "collection"),
        ("queue", "waits", "collection"),
    ],
)
async def test_every_list_takes_a_collection(command, method, field):
    from cron.api.queues import WaitsReport

    backend = FakeBackend(history=[], jobs=[], dead=DeadReport(), waits=WaitsReport())
    result = await cli(backend, *command.split(), "--collection", "nightly")
    assert result.exit_code == 0, result.output
    ((called, (query,)),) = backend.calls
    assert called == method
    assert getattr(query, field) == "nightly"


# ---- one form of options in the whole tree of commands


def commands(group: click.Command, path: str = "raftcron") -> Iterator[Command]:
    """Yield every command below a group with its path."""
    found = dict[str, click.Command | None]()
    if isinstance(group, WithOthers):
        found |= {name: load_command(module, name) for name, module in group.others.items()}
    if isinstance(group, click.Group):
        context = click.Context(group)
        found |= {name: group.get_command(context, name) for name in group.list_commands(context)}
    for name, command in found.items():
        assert command is not None
        yield f"{path} {name}", command
        yield from commands(command, f"{path} {name}")


TREE = dict(commands(cli_tree))
LISTS = [
    path
    for path in TREE
    if path.endswith((" list", " revoked", " jobs", " history", " changes", " executors", " next"))
]


def options_of(command: click.Command) -> set[str]:
    """Every form of every option, such as -n and --limit."""
    options = [one for one in command.params if isinstance(one, click.Option)]
    return {form for one in options for form in (*one.opts, *one.secondary_opts)} | {"--help"}


def test_no_option_is_called_jobs() -> None:
    assert [path for path, command in TREE.items() if "--jobs" in options_of(command)] == []


@pytest.mark.parametrize("path", LISTS)
def test_every_list_takes_n_and_limit(path: str) -> None:
    assert {"-n", "--limit"} <= options_of(TREE[path])


def test_lists_of_all_kinds_are_among_them() -> None:
    kinds = "gate limit role token queue calendar snapshot alerts task group dead"
    assert {f"raftcron {one} list" for one in kinds.split()} <= {*LISTS}
    assert len(LISTS) >= 18


def texts_of(command: click.Command) -> str:
    """All that --help says of a command but the names of its options."""
    helps = [one.help or "" for one in command.params if isinstance(one, click.Option)]
    return "\n".join([command.help or "", command.epilog or "", *helps])


def test_every_option_that_a_help_text_names_exists() -> None:
    """It is one of the command itself, of its subcommands, or of a command that the text names."""
    unknown = dict[str, set[str]]()
    for path, command in TREE.items():
        text = texts_of(command)
        words = set(re.findall(r"[a-z][a-z-]*", text))
        known = options_of(command).union(
            *(
                options_of(TREE[other])
                for other in TREE
                if other.split()[-1] in words or other.startswith(f"{path} ")
            )
        )
        unknown[path] = {*re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)} - known
    assert {path: names for path, names in unknown.items() if names} == {}


async def test_a_list_that_was_cut_says_how_many_rows_are_left() -> None:
    views = [GateView(number=number, action="pause", tenant="a") for number in (1, 2, 3)]
    backend = FakeBackend(gates=GatesReport(gates=views), jobs=[HELD, HELD])
    result = await cli(backend, "gate", "list", "-n", "2")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["GATE", "1", "2"]
    assert result.stderr == "raftcron: 1 more; choose a higher --limit\n"
    whole = await cli(backend, "gate", "list")
    assert (len(whole.stdout.splitlines()), whole.stderr) == (4, "")
    for form in (["-o", "json"], ["-l"]):
        cut = await cli(backend, "jobs", "--limit", "1", *form)
        assert "1 more" in cut.stderr
