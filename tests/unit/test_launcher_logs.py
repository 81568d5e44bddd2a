"""The executor's log: lines of many events at once are those of each."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import structlog

from launcher import logs
from launcher.executor.row import ACCEPTED, ENDED, FENCED, REFUSED, Row, log_ends
from launcher.launch import Reason

A = "default/a@2026-11-20T15:00:00Z#1"
LOGGING = r"""
from launcher import logs
logs.configure("e1")
logs.get().info("launch.finished", launch="a", error="caf\u00e9")
logs.each("launch.finished", [{"launch": name, "error": "caf\u00e9"} for name in "ab"])
logs.each("launch.finished", [])
logs.each("launch.finished", [{"launch": "c", "error": "\udcff"}])
"""


def test_many_at_once_are_lines_as_one_by_one() -> None:
    done = subprocess.run([sys.executable, "-c", LOGGING], capture_output=True, check=True)
    rows: list[dict[str, Any]] = [json.loads(line) for line in done.stderr.splitlines()]
    assert [row["launch"] for row in rows] == ["a", "a", "b", "c"]
    assert [row["error"] for row in rows] == ["caf\u00e9"] * 3 + ["\udcff"]
    for row in rows:
        assert row.keys() == rows[0].keys()
        assert (row["executor"], row["level"], row["event"]) == ("e1", "info", "launch.finished")
        assert row["at"].endswith("Z")


def test_where_nobody_said_how_to_log_each_goes_the_usual_way() -> None:
    with structlog.testing.capture_logs() as lines:
        logs.each("launch.finished", [{"launch": "a"}, {"launch": "b"}])
    assert [line["launch"] for line in lines] == ["a", "b"]


def test_what_is_over_is_logged_and_what_is_not_is_not() -> None:
    rows = [
        Row(A, ENDED, started_ms=1_000, finished_ms=1_250, exit_code=143, reason=Reason.TIMEOUT),
        Row(A, REFUSED, detail="no free slot"),
        Row(A, ACCEPTED, started_ms=1_000),
        Row(A, FENCED, detail="a tombstone"),
        Row(A, ENDED, finished_ms=9, reason=200),  # of a version that knows more reasons
    ]
    with structlog.testing.capture_logs() as lines:
        log_ends(rows)
    said = [(line["fate"], line["reason"], line["ran_ms"], line["detail"]) for line in lines]
    assert said == [
        ("ended", "timeout", 250, ""),
        ("refused", "", 0, "no free slot"),
        ("ended", "200", 0, ""),
    ]
    assert lines[0]["exit_code"] == 143
