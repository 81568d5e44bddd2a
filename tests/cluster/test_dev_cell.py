"""`raftcron dev` with the real programs: what a person sees in the first minute."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cron.api import table
from cron.api.client import Client
from cron.api.launches import HistoryQuery, LaunchView
from cron.api.members import StatusRow
from cron.dev.files import Ports
from cron.errors import OutcomeUnknown, Unavailable
from tests.cluster.dev_process import DevProcess, first_port
from tests.cluster.harness import is_gone, wait_gone, wait_until

CRONTAB = "#: name=tick\n@every 1s true\n"
PROCESSES = {"r1", "r2", "r3", "executor-1"}


class Dev(DevProcess):
    """`raftcron dev` and a client of its cell."""

    def __init__(self, *arguments: str, port: int = 0, cwd: Path | None = None) -> None:
        self.port = first_port(port)
        program = [sys.executable, "-P", "-m", "cron.main", "dev", "--port", str(self.port)]
        super().__init__([*program, *arguments], cwd)
        self.client = Client(Ports.from_first(self.port).servers, timeout_ms=20_000)

    def status(self) -> dict[str, StatusRow]:
        try:
            return {row.id: row for row in self.client.ask(table.STATUS).rows}
        except (Unavailable, OutcomeUnknown):
            return {}

    def leader(self, but: str = "") -> str:
        def leading() -> str:
            rows = self.status().values()
            return next((row.id for row in rows if row.role == "leader" and row.id != but), "")

        return str(wait_until(leading, what="a leader"))

    def history(self) -> list[LaunchView]:
        try:
            return self.client.ask(table.HISTORY, HistoryQuery(limit=1_000))
        except (Unavailable, OutcomeUnknown):
            return []

    def close(self) -> None:
        self.client.close()
        super().close()


@pytest.fixture
def start() -> Iterator[Callable[..., Dev]]:
    devs: list[Dev] = []

    def run(*arguments: str, **options: object) -> Dev:
        devs.append(Dev(*arguments, **options))  # type: ignore[arg-type]
        return devs[-1]

    yield run
    for dev in devs:
        dev.close()


@pytest.fixture
def crontab(tmp_path: Path) -> str:
    (tmp_path / "crontab").write_text(CRONTAB)
    return str(tmp_path / "crontab")


def test_the_example_launches_within_seconds_and_for_ends_it(start: Callable[..., Dev]) -> None:
    example = Path("examples/crontab").absolute()
    dev = start(str(example), "--for", "8s")
    pids = dev.pids()
    assert set(pids) == PROCESSES
    folder = Path(dev.read_until(r"cell in (\S+)")[1])
    dev.read_until(r"applied crontab: \d+ added; default zone UTC")
    line = dev.read_until(r"\S+Z  hello@\S+  succeeded  \+\d+ ms  executor-1\n")
    assert line
    assert dev.end() == 0
    assert all(is_gone(pid) for pid in pids.values())
    assert not folder.exists(), "without --data nothing is left"
    shown = re.findall(r"  (\S+@\S+)  succeeded", dev.output)
    assert len(shown) == len(set(shown)), "each launch once"


@pytest.mark.parametrize("to_group", [False, True])
def test_ctrl_c_ends_everything_before_its_commands_would_end(
    start: Callable[..., Dev], tmp_path: Path, to_group: bool
) -> None:
    (tmp_path / "crontab").write_text("#: name=long\n@every 1s sleep 77\n")
    dev = start(str(tmp_path / "crontab"))
    pids = dev.pids()
    wait_until(lambda: any(row.state == "launched" for row in dev.history()), what="a launch")
    group = dev.process.pid
    assert {os.getpgid(pid) for pid in pids.values()} == {group}
    began = time.monotonic()
    (os.killpg if to_group else os.kill)(group, signal.SIGINT)
    assert dev.end() == 0
    assert time.monotonic() - began < 60
    assert all(is_gone(pid) for pid in pids.values())
    assert "starting it again" not in dev.output
    wait_until(lambda: not running("sleep 77"), what="the end of the commands")


def running(command: str) -> list[int]:
    """The processes with exactly these arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if arguments.replace(b"\0", b" ").strip() == command.encode() and not is_gone(
                int(entry.name)
            ):
                found.append(int(entry.name))
    return found


def test_kill_9_leaves_no_process_behind(start: Callable[..., Dev], tmp_path: Path) -> None:
    (tmp_path / "crontab").write_text("#: name=long\n@every 1s sleep 78\n")
    dev = start(str(tmp_path / "crontab"), "--data", str(tmp_path / "data"))
    pids = dev.pids()
    wait_until(lambda: running("sleep 78"), what="a command")
    dev.process.kill()
    for pid in pids.values():
        wait_gone(pid)
    wait_until(lambda: not running("sleep 78"), what="the end of the commands")


def test_a_replica_that_is_killed_is_back(start: Callable[..., Dev], crontab: str) -> None:
    dev = start(crontab)
    leader = dev.leader()
    pid = dev.pids()[leader]
    wait_until(dev.history, what="a launch")
    before = dev.status()[leader].address
    os.kill(pid, signal.SIGKILL)
    dev.read_until(rf"{leader} \(pid {pid}\) was killed by SIGKILL; starting it again\n")
    dev.read_until(rf"{leader} runs again")
    dev.leader()
    wait_until(lambda: dev.status().get(leader, _NOBODY).pid not in (0, pid), what="its return")
    assert dev.status()[leader].address == before
    newest = max(row.scheduled_s for row in dev.history())
    wait_until(
        lambda: any(row.scheduled_s > newest and row.state == "succeeded" for row in dev.history()),
        what="launches go on",
    )


_NOBODY = StatusRow(kind="replica", id="")


def test_an_executor_that_is_killed_is_back_and_works(
    start: Callable[..., Dev], crontab: str
) -> None:
    dev = start(crontab)
    pid = dev.pids()["executor-1"]
    wait_until(dev.history, what="a launch")
    os.kill(pid, signal.SIGKILL)
    dev.read_until(rf"executor-1 \(pid {pid}\) was killed by SIGKILL; starting it again\n")
    killed_s = time.time()
    wait_until(
        lambda: any(
            row.scheduled_s > killed_s and row.state == "succeeded" for row in dev.history()
        ),
        what="launches go on",
    )


def test_with_no_restart_a_replica_stays_down_and_two_go_on(
    start: Callable[..., Dev], crontab: str
) -> None:
    dev = start(crontab, "--no-restart")
    leader = dev.leader()
    dev.read_until(rf"{leader} leads now, term \d+")
    wait_until(dev.history, what="a launch")
    os.kill(dev.pids()[leader], signal.SIGKILL)
    dev.read_until(rf"{leader} .* it stays down")
    killed_s = time.time()
    next_leader = dev.leader(but=leader)
    dev.read_until(rf"{next_leader} leads now, term \d+, \d+\.\d s after {leader}\n")
    assert dev.status()[leader].role == "unreachable"
    wait_until(
        lambda: any(
            row.scheduled_s > killed_s and row.state == "succeeded" for row in dev.history()
        ),
        what="launches go on",
    )


def test_data_keeps_jobs_and_history_over_a_run_even_on_other_ports(
    start: Callable[..., Dev], crontab: str, tmp_path: Path
) -> None:
    data = ("--data", str(tmp_path / "data"))
    first = start(crontab, *data)
    first.read_until(r"tick@\S+  succeeded")
    first.interrupt()
    assert first.end() == 0
    assert (tmp_path / "data" / "r1.toml").exists()
    second = start(*data)
    second.read_until("moved from port")
    second.leader()
    assert [job.name for job in second.client.ask(table.JOBS)] == ["default/tick"]
    ran = re.findall(r"(tick@\S+)  succeeded", first.output)
    known = {row.launch for row in second.history() if row.state == "succeeded"}
    assert {f"default/{name}" for name in ran} <= known
    # What was missed meanwhile is in the ledger too, and nothing ran twice.
    assert second.client.ask(table.AUDIT).violations == []


def test_what_the_crontab_no_longer_has_is_removed_at_start(
    start: Callable[..., Dev], crontab: str, tmp_path: Path
) -> None:
    data = ("--data", str(tmp_path / "data"))
    first = start(crontab, *data)
    first.read_until("applied crontab: 1 added")
    first.interrupt()
    assert first.end() == 0
    Path(crontab).write_text("#: name=other\n@every 1s true\n")
    second = start(crontab, *data, port=first.port)
    second.read_until("applied crontab: .*1 removed")
    assert [job.name for job in second.client.ask(table.JOBS)] == ["default/other"]


def test_a_crontab_with_errors_ends_with_2_and_all_of_them(
    start: Callable[..., Dev], tmp_path: Path
) -> None:
    (tmp_path / "crontab").write_text("61 * * * * true\n* * * * 9 true\n")
    dev = start(str(tmp_path / "crontab"))
    assert dev.end() == 2
    assert re.search(r"crontab line 1.*\n(.*\n)*.*crontab line 2", dev.output)
    assert "cell in" not in dev.output


def test_a_folder_named_cron_where_one_stands_is_not_ours(
    start: Callable[..., Dev], tmp_path: Path
) -> None:
    (tmp_path / "cron").mkdir()
    (tmp_path / "cron" / "__init__.py").write_text("raise SystemExit('not this one')\n")
    dev = start(cwd=tmp_path)
    assert dev.leader() in PROCESSES
