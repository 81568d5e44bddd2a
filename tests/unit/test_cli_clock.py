"""raftcron clock reset: the plan, the question, the report."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from cron.api.client import Client
from cron.api.members import ClockReport, ClockRequest
from cron.api.table import RESET_CLOCK
from cron.cli import exits
from cron.cli.app import cli

DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ClockRequest]:
    requests: list[ClockRequest] = []

    def ask(_client: Client, rpc: object, request: ClockRequest) -> ClockReport:
        assert rpc is RESET_CLOCK
        requests.append(request)
        return ClockReport(
            cell_ms=NOW_MS + DAY_MS,
            clock_ms=NOW_MS,
            jobs=7,
            spent=2,
            is_done=not request.is_dry_run,
        )

    monkeypatch.setattr(Client, "ask", ask)
    return requests


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["clock", "reset", *arguments])


def test_without_yes_the_plan_is_shown_and_nothing_changes_where_nobody_can_be_asked(
    asked: list[ClockRequest],
) -> None:
    done = run()
    assert done.exit_code == exits.CONFLICT
    assert [one.is_dry_run for one in asked] == [True]
    assert "24h00m ahead" in done.stderr
    assert "jobs to be set back  7" in done.stderr
    assert "--yes does it" in done.stderr


def test_with_yes_it_is_done_and_told(asked: list[ClockRequest]) -> None:
    done = run("--yes")
    assert done.exit_code == 0, done.output
    assert [one.is_dry_run for one in asked] == [True, False]
    assert "7 jobs go on from there; 2 launches" in " ".join(done.stdout.split())
    row = json.loads(run("--yes", "-o", "json").stdout)
    assert (row["jobs"], row["spent"], row["is_done"]) == (7, 2, True)
