"""Alerts as people get them: a cell of real processes, its targets, and a real mail server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell, wait_until
from tests.cluster.worker_rig import WITHIN_S
from tests.fakes.ports import free_ports
from tests.fakes.smtp_server import Received, SmtpServer

pytestmark = pytest.mark.timeout(240)

NEVER = "0 0 29 2 *"
TO = "ops@example.com"
CHANNEL = f'[[channel]]\nname = "ops"\nkind = "mail"\nto = ["{TO}"]\n'


def rule(name: str, when: str, *more: str) -> str:
    return "\n".join(
        ["[[rule]]", f'name = "{name}"', f'when = "{when}"', 'to = ["ops"]', *more, ""]
    )


class Watched:
    """A cell whose executor sends mail to a server, and a job whose end a test decides."""

    def __init__(self, make_cell: Callable[..., Cell], folder: Path, **more: Any) -> None:
        self.folder = folder
        self.port = free_ports(1)[0]
        self.server: SmtpServer | None = None
        config = folder / "targets.toml"
        config.write_text(
            f'[mail]\nserver = "127.0.0.1:{self.port}"\nfrom = "cron@example.com"\n'
            'recipients = ["*@example.com"]\ntls = "none"\n'
        )
        extra = f'targets = "{config}"'
        self.cell = make_cell(**{"replica_extra": PATIENT, "executor_extra": extra} | more)
        self.code = folder / "code"
        self.code.write_text("3")

    def start(self, alerts: str, jobs: str = "") -> Watched:
        """Start the cell and the mail server, with these alerts and jobs, and the job `one`."""
        self.serve()
        self.cell.start()
        self.cell.leader()
        self.cell.wait_connected()
        self.wait_served()
        if alerts:
            self.apply(alerts)
        command = f"{NEVER} exit $(cat {self.code})"
        self.cell.apply(f"#: name=one\n{command}\n{jobs}")
        return self

    def serve(self) -> SmtpServer:
        """Start the mail server."""
        self.server = SmtpServer(port=self.port)
        return self.server

    def close(self) -> None:
        """End the mail server."""
        if self.server is not None:
            self.server.close()
            self.server = None

    def wait_served(self) -> None:
        """Return once the executor offers to send mail."""

        def offered() -> bool:
            rows = self.cell.rows("executors", expect=None)
            return any("mail" in group["handlers"] for row in rows for group in row["groups"])

        wait_until(offered, WITHIN_S, "the target mail")

    def apply(self, alerts: str) -> None:
        path = self.folder / "alerts.toml"
        path.write_text(alerts)
        self.cell.cli("alerts", "apply", str(path))

    def trigger(self, times: int = 1) -> None:
        """Launch the job, each time to its end."""
        for _ in range(times):
            self.cell.cli("trigger", "one", "--wait", expect=None)

    def received(self, number: int) -> list[Received]:
        """The mails, once there are so many."""
        assert self.server is not None
        server = self.server
        wait_until(lambda: len(server.received) >= number, 2 * WITHIN_S, f"{number} mails")
        return server.received

    def deliveries(self) -> list[str]:
        """The states of all launches that told of alerts."""
        wait_until(lambda: self.cell.history("raftcron/alerts:*"), WITHIN_S, "deliveries")
        return sorted(row.state for row in self.cell.history("raftcron/alerts:*"))


@pytest.fixture
def watched(make_cell: Callable[..., Cell], tmp_path: Path) -> Iterator[Watched]:
    one = Watched(make_cell, tmp_path)
    yield one
    one.close()


def subjects(mails: list[Received]) -> list[str]:
    return [str(mail.message["subject"]) for mail in mails]


FAILED = "[raftcron] one failed 2 times in a row"


def test_a_job_that_fails_twice_is_one_mail_and_its_success_another(watched: Watched) -> None:
    watched.start(CHANNEL + rule("twice", "failed:2"))
    watched.trigger(3)
    [mail] = watched.received(1)
    assert subjects([mail]) == [FAILED]
    assert mail.to == [TO]
    assert "Rule:            twice (failed:2)" in mail.text
    assert "raftcron why one" in mail.text
    watched.code.write_text("0")
    watched.trigger()
    mails = watched.received(2)
    assert subjects(mails)[1] == FAILED.replace("one", "RESOLVED: one")
    assert mails[0].message["references"] == mails[1].message["references"]
    assert len(mails) == 2
    # One more failure is none in a row, and says nothing.
    watched.code.write_text("3")
    watched.trigger()
    assert watched.cell.cli("alerts", "list").returncode == 0
    assert len(watched.received(2)) == 2


POINTS = ["before-begin", "after-begin", "after-dispatch", "after-launched"]
"""Of the delivery, whose Begin is the third: two launches of the job come before it."""


@pytest.mark.parametrize("point", POINTS)
def test_a_leader_that_dies_between_decision_and_delivery_tells_once(
    make_cell: Callable[..., Cell], tmp_path: Path, point: str
) -> None:
    watched = Watched(make_cell, tmp_path)
    cell, once = watched.cell, tmp_path / "once"
    try:
        for name in cell.replicas:
            cell.failpoints[name] = f"{point}=kill@3+file:{once}"
        watched.start(CHANNEL + rule("twice", "failed:2"))
        watched.trigger(2)
        wait_until(lambda: any(map(cell.is_down, cell.replicas)), WITHIN_S, "a death")
        assert once.exists()
        cell.start()
        watched.received(1)
        watched.code.write_text("0")
        watched.trigger()
        mails = watched.received(2)
        ids = Counter(mail.message["message-id"] for mail in mails)
        assert set(ids.values()) == {1}, "each mail once"
        assert subjects(mails) == [FAILED, FAILED.replace("one", "RESOLVED: one")]
        assert watched.deliveries() == ["succeeded", "succeeded"]
    finally:
        watched.close()


def test_late_and_missed_launches_and_a_job_without_success_are_told(watched: Watched) -> None:
    rules = [
        rule("late", "late:1s", 'jobs = ["late"]'),
        rule("missed", "missed", 'jobs = ["missed"]'),
        rule("quiet", "no-success:3s", 'jobs = ["quiet"]'),
    ]
    jobs = (
        "#: name=late deadline=1m\n@every 5s true\n"
        "#: name=missed deadline=1s\n@every 5s true\n"
        "#: name=quiet\n@every 5s false\n"
    )
    watched.start(CHANNEL + "".join(rules), jobs)
    cell = watched.cell
    cell.kill(*cell.executors)
    wait_until(lambda: cell.history("missed", states=["skipped"]), WITHIN_S, "a missed instant")
    wait_until(lambda: len(cell.rows("alerts", "list")) >= 3, WITHIN_S, "alerts")
    cell.start(*cell.executors)
    wanted = {
        "[raftcron] late is more than 1 second late",
        "[raftcron] missed missed a launch",
        "[raftcron] quiet has not succeeded for 3 seconds",
    }
    server = watched.server
    assert server is not None
    wait_until(lambda: wanted <= set(subjects(server.received)), 2 * WITHIN_S, "three mails")


def test_a_backup_that_fails_is_told(make_cell: Callable[..., Cell], tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.write_text("a file where a folder belongs")
    storage = f'\n[object_storage]\nurl = "file://{store}"\n'
    watched = Watched(make_cell, tmp_path, replica_extra=PATIENT + storage)
    try:
        watched.start(CHANNEL + rule("backup", "backup-failing:1s"))
        [mail] = watched.received(1)
        assert subjects([mail]) == ["[raftcron] backups fail for more than 1 second"]
    finally:
        watched.close()


def test_a_mail_server_that_is_away_slow_or_strict_gets_each_mail_once(watched: Watched) -> None:
    watched.start(CHANNEL + rule("twice", "failed:2"))
    watched.close()  # it is away
    watched.trigger(2)
    tries = "raftcron/alerts:*"
    wait_until(lambda: watched.cell.history(tries, states=["failed"]), WITHIN_S, "a failed try")
    server = watched.serve()
    server.hurried.clear()  # it is back, and slow
    wait_until(lambda: server.asked, WITHIN_S, "a mail that it reads")
    server.hurried.set()
    assert subjects(watched.received(1)) == [FAILED]
    server.refused[TO] = "550 no such user"
    watched.code.write_text("0")
    watched.trigger()
    dead = wait_until(lambda: watched.cell.rows("dead", "list"), WITHIN_S, "a dead letter")
    assert "550 no such user" in str(dead)
    assert len(server.received) == 1


def test_mailto_sends_what_a_command_printed_or_that_it_failed(watched: Watched) -> None:
    jobs = (
        f"MAILTO={TO}\n#: name=says\n{NEVER} echo hello\n#: name=quiet\n{NEVER} true\n"
        f'#: name=fails\n{NEVER} false\nMAILTO=""\n#: name=off\n{NEVER} echo hello\n'
    )
    watched.start("", jobs)
    for job in ("says", "quiet", "fails", "off"):
        watched.cell.cli("trigger", job, "--wait", expect=None)
    assert set(subjects(watched.received(2))) == {
        "[raftcron] says succeeded",
        "[raftcron] fails failed with exit code 1",
    }
    assert len(watched.deliveries()) == 2
