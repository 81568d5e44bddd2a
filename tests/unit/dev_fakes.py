"""Stand-ins for the programs and the client of a local cell, to test `dev` without a cell.

    python -m tests.unit.dev_fakes dev DATA PORT [--no-restart] [--for-ms=N] [--leader-after=N]
                                                                   run_dev with stand-ins
    python -m tests.unit.dev_fakes member --config FILE            a replica or executor

A member listens on its client port, writes `up` to its log and waits. TERM ends it with 0, unless
DATA/stubborn exists; DATA/<id>.broken makes it end at once with exit code 3, or with the one in it.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
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


def run_member(config: Path) -> int:
    from cron.parent import die_with_parent

    die_with_parent()
    fields = tomllib.loads(config.read_text())
    folder = config.parent
    broken = folder / f"{fields['id']}.broken"
    if broken.exists():
        print("cannot read my journal", flush=True)
        return int(broken.read_text() or "3")
    ended = threading.Event()
    stubborn = (folder / "stubborn").exists()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if stubborn else lambda *_: ended.set())
    with socket.socket() as server:
        if "client" in fields:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", int(fields["client"].rpartition(":")[2])))
            server.listen()
        print("up", flush=True)
        ended.wait()
        print("down", flush=True)
    return 0


def run_fake_dev(folder: str, port: str, *flags: str) -> int:
    from cron.dev.options import DevOptions
    from cron.dev.supervisor import run_dev

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
            *(sys.executable, "-m", "tests.unit.dev_fakes", "member"),
            *("--config", str(member.config)),
        ],
        connect=cell.connect,
        say=lambda line: print(line, flush=True),
    )


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    sys.exit(run_fake_dev(*rest) if what == "dev" else run_member(Path(rest[1])))
