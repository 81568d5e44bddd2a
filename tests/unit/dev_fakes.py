"""Stand-ins for the programs and the client of a local cell, to test `dev` without a cell.

    python -m tests.unit.dev_fakes DATA PORT [--no-restart] [--for-ms=N] [--leader-after=N]
                                             [--patient] [CRONTAB]

This runs `run_dev` with them. A member of the cell is `dev_member.py`; `--patient` waits ten
minutes for members to end.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from cron.api.jobs import ApplyReport, ApplyRequest, JobChange
from cron.api.launches import HistoryQuery, LaunchView
from cron.api.members import StatusReport, StatusRow
from cron.api.rpc import Rpc
from cron.api.table import HISTORY, STATUS
from cron.errors import CronError, CrontabError, NoQuorum, Problem

START_MS = 1_800_000_000_000


class FakeCell:
    """A cell's answers: `history` is what it returns, `failures` are raised first, one a call."""

    def __init__(self) -> None:
        self.rows: list[LaunchView] = []
        self.failures: list[CronError] = []
        self.applied: list[ApplyRequest] = []
        self.queries: list[HistoryQuery] = []
        self.replicas: list[StatusRow] = []

    def ask(self, rpc: Rpc[Any, Any], request: Any = None) -> Any:
        if rpc is STATUS:
            return StatusReport(rows=self.replicas)
        return self._history(request) if rpc is HISTORY else self._put_jobs(request)

    def _put_jobs(self, request: ApplyRequest) -> ApplyReport:
        if self.failures:
            raise self.failures.pop(0)
        if b"broken" in request.files[0].content:
            raise CrontabError([Problem(request.files[0].name, 1, 2, "minute 61 is not", "0-59")])
        self.applied.append(request)
        changes = [JobChange(action="added", job="default/a")]
        return ApplyReport(zone="UTC", changes=changes, applied=True)

    def _history(self, query: HistoryQuery) -> list[LaunchView]:
        if self.failures:
            raise self.failures.pop(0)
        self.queries.append(query)
        return self.rows[: query.limit]

    @contextlib.contextmanager
    def connect(self, servers: list[str]) -> Iterator[FakeCell]:
        assert len(servers) == 3
        yield self


def launch(second: int, **fields: object) -> LaunchView:
    """A launch of default/a that ended a moment after its scheduled time."""
    scheduled_s = START_MS // 1000 + second
    at_ms = scheduled_s * 1000
    name = f"default/a@{second}"
    row = dict(
        launch=name,
        job="a",
        tenant="default",
        scheduled_s=scheduled_s,
        attempt=1,
        state="succeeded",
        started_at_ms=at_ms + 12,
        finished_at_ms=at_ms + 20,
        ended_at_ms=at_ms + 30,
        lateness_ms=12,
        executor="executor-1",
    )
    return LaunchView(**{**row, **fields})  # type: ignore[arg-type]


def run_fake_dev(folder: str, port: str, *flags: str) -> int:
    from cron.dev import cell as processes
    from cron.dev.options import DevOptions
    from cron.dev.supervisor import run_dev

    if "--patient" in flags:
        processes.EXECUTORS_MS = processes.TERM_MS = 600_000  # type: ignore[misc]
    cell = FakeCell()
    given = dict(flag[2:].split("=") for flag in flags if "=" in flag)
    cell.failures = [NoQuorum("no leader")] * int(given.get("leader-after", 1))
    crontab = next((flag for flag in flags if not flag.startswith("--")), None)
    options = DevOptions(
        crontab=crontab,
        data=folder,
        port=int(port),
        for_ms=int(given["for-ms"]) if "for-ms" in given else None,
        restart="--no-restart" not in flags,
    )
    return run_dev(
        options,
        commands=lambda member: [
            *(sys.executable, "-S", "-m", "tests.unit.dev_member", "--config"),
            str(member.config),
        ],
        connect=cell.connect,
        say=lambda line: print(line, flush=True),
    )


if __name__ == "__main__":
    sys.exit(run_fake_dev(*sys.argv[1:]))
