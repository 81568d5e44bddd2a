"""Texts of jobs, handlers and executors cannot steer the terminal that shows them."""

from __future__ import annotations

import ast
import json
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.api.dead import DeadOutcome, DeadReport
from cron.api.executors import ExecutorReport, ExecutorsReport
from cron.api.gates import GatesReport, GateView
from cron.api.jobs import ApplyReport, JobView, NextTimes
from cron.api.launches import AuditReport, LaunchView, OutputQuery, OutputView, WhyReport
from cron.api.limits import LimitsReport, LimitView
from cron.api.members import StatusRow
from cron.api.queues import QueuesReport, WaitsReport
from cron.cli import render
from cron.dev.launches import format_launch
from cron.errors import InvalidInput, NotNow
from tests.unit.api_rig import NOON_S, FakeBackend, run_cli, serving

CONTROLS = "".join(map(chr, [*range(32), *range(127, 160)]))
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029"
HOSTILE = f"a{CONTROLS}b\x1b]52;c;ZWNobw==\x07\x9b31m{BIDI}z"
LAUNCH = "default/backup@2026-11-20T15:00:00Z"
NAMES = {
    "launch": LAUNCH,
    "job": "default/backup",
    "name": "default/backup",
    "tenant": "default",
    "zone": "UTC",
    "action": "pause",
}


def poisoned(kind: Any, name: str = "") -> Any:
    """A value of this type with a hostile text wherever one can come from outside."""
    if name in NAMES and kind is str:
        return NAMES[name]
    if kind is str:
        return HOSTILE
    if kind is bytes:
        return f"before\t{HOSTILE}\n".encode() + b"\xff\x9b"
    if kind is bool:
        return False
    if kind is int:
        return NOON_S * (1000 if name.endswith("_ms") else 1) if name.endswith(("_s", "_ms")) else 2
    if isinstance(kind, types.UnionType):
        return poisoned(next(one for one in typing.get_args(kind) if one is not type(None)), name)
    if typing.get_origin(kind) is list:
        inner = typing.get_args(kind)[0]
        return (
            ["zone=" + HOSTILE]
            if name == "labels"
            else [poisoned(inner, "" if inner is str else name)]
        )
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        is_part = name == "parts"  # a launch within a launch, which has none
        fields = [field for field in kind.__struct_fields__ if not (is_part and field == "parts")]
        return kind(**{field: poisoned(hints[field], field) for field in fields})
    raise AssertionError(f"{name}: {kind}")


def ended(**fields: Any) -> LaunchView:
    return msgspec.structs.replace(poisoned(LaunchView), job="backup", **fields)


def executor_report() -> ExecutorReport:
    return poisoned(ExecutorReport)


LAUNCHES = [ended(count=1)]
OUTPUT = msgspec.structs.replace(poisoned(OutputView), offset=0, ended=True)
ANSWERS: dict[str, Any] = {
    "history": LAUNCHES,
    "show": LAUNCHES,
    "output": OUTPUT,
    "why": poisoned(WhyReport),
    "jobs": [poisoned(JobView)],
    "status": [poisoned(StatusRow)],
    "audit": msgspec.structs.replace(poisoned(AuditReport), tasks_next=""),
    "trigger": ended(state="failed"),
    "kill": ended(state="failed"),
    "dead": poisoned(DeadReport),
    "redrive": DeadOutcome(launches=[LAUNCH], kept=[f"{LAUNCH}: {HOSTILE}"]),
    "executors": poisoned(ExecutorsReport),
    "executor": executor_report(),
    "gates": poisoned(GatesReport),
    "close_gate": poisoned(GateView),
    "limits": poisoned(LimitsReport),
    "set_limit": poisoned(LimitView),
    "queues": poisoned(QueuesReport),
    "waits": poisoned(WaitsReport),
    "next": msgspec.structs.replace(poisoned(NextTimes), paused=True),
    "put_jobs": poisoned(ApplyReport),
}
COMMANDS = [
    ("history",),
    ("show", LAUNCH),
    ("why", LAUNCH),
    ("why", "backup", "5m"),
    ("logs", LAUNCH),
    ("jobs",),
    ("jobs", "-l"),
    ("status",),
    ("audit",),
    ("trigger", "backup"),
    ("kill", LAUNCH),
    ("dead", "list"),
    ("dead", "show", LAUNCH),
    ("dead", "redrive", LAUNCH),
    ("queue",),
    ("queue", "backup"),
    ("executors",),
    ("executors", "e1"),
    ("gate", "list"),
    ("gate", "close", "--tenant", "acme"),
    ("limit", "list"),
    ("limit", "set", "--all", "--concurrent", "2"),
    ("next", "backup"),
]


def steering(text: str) -> str:
    """The characters of a text that a terminal does not just print, but for newlines and tabs."""
    return "".join(sorted({char for char in text if not char.isprintable()} - {"\n", "\t"}))


@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_no_text_from_outside_reaches_the_terminal_with_a_control_character(command, output):
    async with serving(FakeBackend(**ANSWERS)) as server:
        result = await run_cli(*command, "-o", output, server=server)
    assert result.exit_code in (0, 1), result.output
    assert result.stdout
    assert steering(result.stdout + result.stderr) == ""


@pytest.mark.parametrize("error", [InvalidInput(HOSTILE, HOSTILE), NotNow(HOSTILE, HOSTILE)])
async def test_an_error_and_its_hint_are_escaped(error):
    async with serving(FakeBackend(jobs=error)) as server:
        result = await run_cli("jobs", server=server)
    assert result.exit_code in (2, 4)
    assert "ZWNobw==" in result.stderr
    assert steering(result.stderr) == ""


async def test_the_lines_of_apply_are_escaped(tmp_path):
    (tmp_path / "crontab").write_text("* * * * * true\n")
    async with serving(FakeBackend(**ANSWERS)) as server:
        result = await run_cli("apply", str(tmp_path / "crontab"), server=server)
    assert result.exit_code == 0, result.output
    assert steering(result.stdout + result.stderr) == ""


async def test_the_escapes_of_json_give_back_the_same_text():
    async with serving(FakeBackend(**ANSWERS)) as server:
        result = await run_cli("show", LAUNCH, "-o", "json", server=server)
    assert json.loads(result.stdout)["detail"] == HOSTILE


async def test_logs_keeps_newlines_and_tabs_and_joins_a_character_cut_in_two():
    pieces = {0: "a\tb\n\u00e9".encode()[:-1], 5: "\u00e9\x1b[2J".encode()[1:]}

    def output(query: OutputQuery) -> OutputView:
        content = pieces[query.offset]
        return OutputView(content=content, offset=query.offset, size=10, ended=query.offset == 5)

    async with serving(FakeBackend(output=output)) as server:
        result = await run_cli("logs", LAUNCH, server=server)
        raw = await run_cli("logs", LAUNCH, "--raw", server=server)
    assert result.stdout == "a\tb\n\u00e9\\x1b[2J"
    assert raw.stdout_bytes == "a\tb\n\u00e9\x1b[2J".encode()


async def test_raw_is_refused_on_a_terminal(monkeypatch):
    monkeypatch.setattr(render, "is_terminal", lambda: True)
    async with serving(FakeBackend(output=OUTPUT)) as server:
        result = await run_cli("logs", LAUNCH, "--raw", server=server)
    assert result.exit_code == 2
    assert "into a file or a pipe" in result.stderr


@given(st.text())
def test_whatever_a_text_is_no_renderer_prints_a_control_character_of_it(text):
    shown = [render.visible(text), format_launch(ended(detail=text, executor=text, state="failed"))]
    coloured = shown[1].replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert steering(shown[0] + coloured) == ""
    assert "\n" not in shown[0] + coloured


def test_nothing_but_the_renderer_prints():
    allowed = {"render.py"}
    for path in sorted(Path("cron/cli").glob("*.py")):
        if path.name in allowed:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "print"):
                # The count of an export stands still: the only text without a line of its own.
                assert path.name == "export.py", f"{path}:{node.lineno} prints: use render.line"
