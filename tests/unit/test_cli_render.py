from __future__ import annotations

import io
import sys

import click
import pytest

from cron.cli import exits, render
from cron.errors import (
    Conflict,
    CronError,
    CrontabError,
    InvalidInput,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    Problem,
    TooManyTimes,
    UnknownJob,
)


def test_a_table_in_a_pipe_is_plain_and_as_wide_as_it_must_be(capsys):
    render.table(["launch", "state"], [["x" * 200, "ran"], ["y", ""]])
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"LAUNCH{'':194}  STATE", f"{'x' * 200}  ran", "y"]


def test_a_table_without_rows_says_so(capsys):
    render.table(["launch"], [], nothing="no launches")
    assert capsys.readouterr().out == "no launches\n"


def test_a_table_on_a_terminal_is_drawn_by_rich(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "dumb")
    render.table(["launch", "state"], [["default/a@2026", "[bold]ran[/bold]"]])
    text = terminal.getvalue()
    assert "LAUNCH" in text
    assert "[bold]ran[/bold]" in text  # what a job is called is no markup


HISTORY = ["launch", "state", "started utc", "executor", "note"]
WAITING = ["backup@2026-11-20T15:00:00Z", "due", "-", "-", "no executor is connected to the cell"]
ENDED = ["backup@2026-11-20T14:00:00Z", "failed", "2026-11-20 14:00:00", "executor-1", ""]
NARROW = ["executor", "started utc"]


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (200, {0: 27, 1: 6, 2: 19, 3: 10, 4: 36}),
        (90, {0: 27, 1: 6, 2: 19, 3: 10, 4: 20}),
        (80, {0: 27, 1: 6, 2: 19, 4: 22}),
        (70, {0: 27, 1: 6, 4: 33}),
        (50, {0: 27, 1: 6, 4: 13}),
        (20, {0: 27, 1: 6, 4: 10}),  # a name is never cut: it is what is copied
    ],
)
def test_a_narrow_terminal_leaves_columns_out_and_cuts_the_note(width, shown):
    assert render.fit(HISTORY, [WAITING, ENDED], width, NARROW) == shown


def test_a_note_that_nobody_has_takes_no_room():
    assert list(render.fit(HISTORY, [ENDED], 80, NARROW)) == [0, 1, 2, 3]


def test_columns_without_a_value_go_first_and_times_are_never_cut():
    columns = ["job", "schedule", "next utc", "zone", "paused", "note"]
    row = ["backup", "? 3 * * * = 12 3 * * *", "2026-11-20 15:00:00", "UTC", "-", ""]
    assert list(render.fit(columns, [row], 80, ["zone"])) == [0, 1, 2, 3, 4]
    assert list(render.fit(columns, [row], 60, ["zone"])) == [0, 1, 2, 3]
    assert render.fit(columns, [row], 45, ["zone"]) == {0: 6, 1: 16, 2: 19}
    columns = ["job", "scheduled utc", "local time"]
    row = ["backup", "2026-11-23 02:30:00", "2026-11-23 04:30:00+02:00"]
    assert render.fit(columns, [row], 40) == {0: 6, 1: 19, 2: 25}


@pytest.mark.parametrize("width", [40, 80, 120])
def test_each_row_is_one_line_of_a_terminal_and_a_long_note_stands_below(monkeypatch, width):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", str(width))
    note = "took over from r1 at 2026-11-20T15:00:00Z, " * 3
    render.table(HISTORY, [[*ENDED[:4], note], ENDED], narrow=NARROW, spill="launch")
    *drawn, below = terminal.getvalue().splitlines()
    assert len(drawn) == 4  # a head, a line, two rows
    assert max(map(len, drawn)) <= width
    assert below == f"{ENDED[0]}: {note}"


@pytest.mark.parametrize("width", [60, 80])
def test_the_last_column_can_be_one_that_is_left_out(monkeypatch, width):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", str(width))
    row = ["backup", "2026-11-23 02:30:00", "2026-11-23 04:30:00+02:00", "Europe/Riga"]
    columns = ["job", "scheduled utc", "local time", "zone"]
    render.table(columns, [row], narrow=["zone"])
    *_, line = terminal.getvalue().splitlines()
    assert line.split() == " ".join(row if width == 80 else row[:3]).split()


def test_what_a_job_wrote_cannot_steer_the_terminal(capsys):
    render.table(["detail"], [["a\x1b[2Jb\nc\u202e"]])
    assert capsys.readouterr().out == "DETAIL\na\\x1b[2Jb\\nc\\u202e\n"


def test_json_is_one_object_a_line_in_the_order_of_its_keys(capsysbinary):
    render.json_lines([{"b": 1, "a": None}, {"b": "ü\n"}])
    assert capsysbinary.readouterr().out == '{"b":1,"a":null}\n{"b":"ü\\n"}\n'.encode()


def test_an_error_has_its_hint_on_a_second_line_of_stderr(capsys):
    render.error(CronError("no leader", "wait a moment"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "raftcron: no leader\n  hint: wait a moment\n"


def test_all_problems_of_a_file_are_shown_with_their_places(capsys):
    problems = [
        Problem("a.crontab", 3, 9, "minute 61 is not in 0-59", "write 0-59"),
        Problem("a.crontab", 4, 0, "line is too long"),
    ]
    render.error(CrontabError(problems))
    assert capsys.readouterr().err.splitlines() == [
        "a.crontab line 3, column 9: minute 61 is not in 0-59",
        "  hint: write 0-59",
        "a.crontab line 4: line is too long",
    ]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("x"), 2),
        (CrontabError([]), 2),
        (TooManyTimes("x"), 2),
        (UnknownJob("x"), 3),
        (Conflict("x"), 4),
        (NoQuorum("x"), 5),
        (NotLeader(None), 5),
        (OutcomeUnknown("x"), 6),
    ],
)
def test_each_error_has_its_exit_code(error, code):
    assert exits.exit_code(error) == code
    assert f"    {code}  ".strip() in exits.epilog()


LINE = "10:00:00.003Z  acme/nightly@2026-11-20T15:00:00Z  failed     +7 ms  e1  exit code 1"


def test_a_line_that_is_too_wide_is_broken_at_blanks_and_indented():
    assert render.fold(LINE, 100) == LINE
    assert render.fold(LINE, 60).split("\n") == [
        "10:00:00.003Z  acme/nightly@2026-11-20T15:00:00Z  failed",
        "    +7 ms  e1  exit code 1",
    ]
    assert render.fold("a\n" + "x" * 30 + " y", 20) == "a\n" + "x" * 30 + "\n    y"


def test_colours_take_no_room_in_a_line():
    styled = LINE.replace("failed", click.style("failed", fg="red"))
    assert render.fold(styled, len(LINE)) == styled
    assert click.unstyle(render.fold(styled, 60)) == render.fold(LINE, 60)
