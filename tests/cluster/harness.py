"""A cell of real processes under a test's control: killed, stopped, woken, asked.

Nobody restarts anything here but the test. Processes end with the test's process, and by their
process ids at its end; times of lease and election are short, so that tests are.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from cron.api import table
from cron.api.client import Client
from cron.api.launches import HistoryQuery, LaunchView
from cron.api.members import StatusRow
from cron.clock import SystemClock
from cron.dev.child import Child, child_environment, variable_of
from cron.dev.files import EXECUTOR, REPLICA, Member, Ports, taken, write_cell
from cron.errors import OutcomeUnknown, Unavailable
from launcher.tls import files_of, load_credentials
from tests.cluster.witness import LedgerRow, judge
from tests.fakes.ports import draw

WAIT_S: Final = 60.0

SHORT_TIMES: Final = """
[lease]
heartbeat_ms = 300
self_kill_ms = 3000
give_up_ms = 4500

[election]
min_ms = 600
max_ms = 1200
heartbeat_ms = 100

[limits]
start_window_ms = 8000
"""
"""Failover in a few seconds instead of half a minute, with room for a loaded machine."""


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has ended too."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_gone(pid: int, within_s: float = WAIT_S) -> None:
    """Return once a process has ended."""
    wait_until(lambda: is_gone(pid), within_s, f"the end of process {pid}")


def wait_until(condition: Callable[[], Any], within_s: float = WAIT_S, what: str = "") -> Any:
    """Return what `condition` returns once it is true."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {within_s} s for {what or condition}"
        time.sleep(0.02)
    return value


def free_ports() -> Ports:
    """Nine free ports as `dev` uses them: P, P+1, P+2, P+10 to P+12 and P+80 to P+82."""
    while True:
        ports = Ports.from_first(draw())
        if not taken(ports):
            return ports


class Cell:
    """Three replicas and `executors` executors in `folder`; use it in a `with`.

    `failpoints` are per process: `{"r1": "after-begin=kill"}`; they hold from its next start on,
    and may be changed between starts. So are `variables`, the rest of a process's environment.
    """

    def __init__(
        self,
        folder: Path,
        *,
        executors: int = 1,
        replica_extra: str = SHORT_TIMES,
        executor_extra: str = "",
        failpoints: Mapping[str, str] | None = None,
        http: bool | None = None,
    ) -> None:
        self.folder = folder
        self.ports = free_ports()
        self.failpoints = dict(failpoints or {})
        self.variables: dict[str, dict[str, str]] = {}
        members = write_cell(
            folder,
            self.ports,
            executors=executors,
            replica_extra=replica_extra,
            executor_extra=executor_extra,
            http=http,
        )
        self.members: dict[str, Member] = {member.id: member for member in members}
        self._running: dict[str, Child] = {}
        self._started: list[Child] = []
        self.client = Client(self.ports.servers, timeout_ms=20_000)

    def __enter__(self) -> Cell:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is not None:
            for name in self.members:
                print(f"---- end of {name}.log\n{self.log(name)[-3_000:]}")

    def connect(self, timeout_ms: int) -> Client:
        """Return another client, with the certificate of $RAFTCRON_TLS if there is one."""
        folder = os.environ.get("RAFTCRON_TLS")
        credentials = load_credentials(files_of(folder)) if folder else None
        return Client(self.ports.servers, timeout_ms, credentials)

    # ---- processes

    @property
    def replicas(self) -> list[str]:
        """The ids of the replicas."""
        return [name for name, member in self.members.items() if member.kind == REPLICA]

    @property
    def executors(self) -> list[str]:
        """The ids of the executors."""
        return [name for name, member in self.members.items() if member.kind == EXECUTOR]

    def start(self, *names: str) -> Cell:
        """Start these processes, or all; those that run are left alone."""
        for name in names or self.members:
            if name in self._running and not self._running[name].is_over():
                continue
            child = self._child(name)
            self._started.append(child)
            child.start()
            self._running[name] = child
        return self

    def _child(self, name: str) -> Child:
        member = self.members[name]
        variables = {variable_of(one): text for one, text in self.failpoints.items()}
        environment = child_environment(
            {**os.environ, **variables, **self.variables.get(name, {})},
            member,
            os.getpid(),
            list(self.members),
        )
        return Child(member, member.argv, environment, SystemClock())

    def pid(self, name: str) -> int:
        """The process id it was last started with."""
        return self._running[name].pid

    def is_down(self, name: str) -> bool:
        """Whether it is not running."""
        return name not in self._running or self._running[name].is_over()

    def wait_down(self, name: str, within_s: float = WAIT_S) -> None:
        """Return once it has ended, as after a failpoint."""
        wait_until(lambda: self.is_down(name), within_s, f"the end of {name}")

    def kill(self, *names: str) -> None:
        """SIGKILL, and wait until they are gone."""
        self._send(signal.SIGKILL, names)
        for name in names:
            self.wait_down(name)

    def terminate(self, *names: str) -> None:
        """SIGTERM, and wait until they have ended in an orderly way."""
        self._send(signal.SIGTERM, names)
        for name in names:
            self.wait_down(name)

    def stop(self, *names: str) -> None:
        """SIGSTOP: they stand still and lose nothing."""
        self._send(signal.SIGSTOP, names)

    def wake(self, *names: str) -> None:
        """SIGCONT after `stop`."""
        self._send(signal.SIGCONT, names)

    def restart(self, *names: str) -> None:
        """Kill and start again on the same ports and state."""
        self.kill(*names)
        self.start(*names)

    def _send(self, number: signal.Signals, names: Iterable[str]) -> None:
        for name in names:
            self._running[name].send(number)

    def close(self) -> None:
        """End everything that was ever started here."""
        self.client.close()
        for child in self._started:
            if not child.is_over():
                child.send(signal.SIGKILL)
        for child in self._started:
            wait_until(child.is_over, WAIT_S, f"the end of {child.member.id}")

    def log(self, name: str) -> str:
        """What a process has said so far."""
        path = self.members[name].log
        return path.read_text(errors="replace") if path.exists() else ""

    # ---- questions

    def status(self) -> list[StatusRow]:
        """All replicas and executors, from whoever answers; nothing while nobody does."""
        try:
            return self.client.ask(table.STATUS).rows
        except (Unavailable, OutcomeUnknown):
            return []

    def leader(self, but: str = "", within_s: float = WAIT_S) -> str:
        """The id of the leader, once there is one (that is not `but`)."""

        def leading() -> str:
            rows = [row.id for row in self.status() if row.role == "leader" and row.id != but]
            return rows[0] if len(rows) == 1 else ""

        return str(wait_until(leading, within_s, "a leader"))

    def follower(self) -> str:
        """The id of a replica that does not lead."""
        leader = self.leader()
        return next(name for name in self.replicas if name != leader)

    def wait_connected(self, *names: str) -> None:
        """Return once these executors, or all, are connected to the leader."""
        wanted = set(names or self.executors)
        wait_until(
            lambda: wanted <= {row.id for row in self.status() if row.role == "connected"},
            WAIT_S,
            f"{', '.join(wanted)} to connect",
        )

    def history(self, job: str = "", **fields: Any) -> list[LaunchView]:
        """Rows of the ledger, newest first, open launches and amendments included."""
        query = {"limit": 10_000, "is_all": True, **fields}
        return self.client.ask(table.HISTORY, HistoryQuery(job=job, **query))

    def wait_launches(self, number: int, job: str = "", state: str = "succeeded") -> None:
        """Return once the ledger has so many launches in a state."""

        def enough() -> bool:
            try:
                return len(self.history(job, states=[state])) >= number
            except (Unavailable, OutcomeUnknown):
                return False

        wait_until(enough, 2 * WAIT_S, f"{number} launches {state}")

    def judge(self, file: Path, **expected: Any) -> list[str]:
        """What witness and audit have against the ledger; see `witness.judge`."""
        report = self.client.ask(table.AUDIT)
        found = [f"{one.job} {one.scheduled_s} {one.message}" for one in report.violations]
        rows = [ledger_row(view) for view in self.history()]
        return judge(file, rows, violations=found, **expected)

    # ---- the command line

    def cli(self, *arguments: str, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run `raftcron ARGUMENTS` against this cell; `expect` is its exit code, None for any."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cron.main", *arguments],
            env={**os.environ, "RAFTCRON_SERVER": ",".join(self.ports.servers)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        said = f"{' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert expect is None or done.returncode == expect, said
        return done

    def rows(self, *arguments: str, expect: int | None = 0) -> list[dict[str, Any]]:
        """Run a command with `-o json` and return its rows."""
        done = self.cli(*arguments, "-o", "json", expect=expect)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def apply(
        self, text: str, *flags: str, name: str = "crontab", expect: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """Apply a crontab from its text with `raftcron apply`."""
        path = self.folder / name
        path.write_text(text)
        return self.cli("apply", str(path), *flags, expect=expect)


def ledger_row(view: LaunchView) -> LedgerRow:
    """Return a row as the witness's judge takes it."""
    return LedgerRow(
        launch=view.launch,
        state=view.state,
        attempt=view.attempt,
        reason=view.reason,
        count=view.count,
        last_s=view.last_s,
        kind=view.kind,
    )
