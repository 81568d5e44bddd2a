"""An alert is told once, wherever leaders die between what happened and the mail about it.

Each story is a list of small steps: a turn of the leader, a message on its way, the end of a
command. It is told once for each step, with another leader before that step, and again with two
leaders that die one after the other. Where a delivery runs, the real target sends its mail to a
real mail server, which counts what it accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cron.alert_rules import AlertKind, Channel, ChannelKind, Rule
from cron.crontab.conditions import parse_condition
from cron.scheduler.alerts import Observed
from cron.state import alerts as a
from launcher.protocol.names import TASK_MARK, AttemptName
from launcher.protocol.status import Status
from launcher.targets.config import MailConfig
from launcher.targets.mail import MailTarget
from launcher.worker.wire import Result
from tests.fakes.smtp_server import SmtpServer, smtp_server
from tests.interaction.cell import DAY, Cell
from tests.unit.targets_rig import context_of, ended

OPS = Channel("ops", ChannelKind.MAIL, ("ops@example.org",))
DELIVERIES = f"{a.QUEUE}{TASK_MARK}"
ROUNDS_MAX = 30
Steps = Iterator[Callable[[], object]]


class AlertCell(Cell):
    """A cell with one rule, one job that is due each minute, and one executor whose deliveries send
    mails to a server."""

    def __init__(self, when: str, server: SmtpServer) -> None:
        super().__init__()
        config = MailConfig(
            server=server.place, sender="cron@example.org", tls="none", recipients=OPS.to
        )
        self.target = MailTarget(config, Path())
        self.do_leader("r1")
        self.do_executor("e1")
        rule = Rule("it", parse_condition(when), (), ("ops",))
        self.append([a.ApplyAlerts(0, (OPS,), (rule,), "anna", "here")])
        self.do_job("backup", deadline="50", catchup="none")
        self.is_on_time = False

    def another_leader(self, *, is_late: bool) -> None:
        """The leader dies; what it sent arrives after all with `is_late`, before the new leader's
        first words. Only State is left of what it knew."""
        connected = list(self.pool.connected)
        self.do_leader(f"r{self.term % 3 + 1}")
        for name in connected:
            if is_late:
                self.do_deliver_late(name)
            self.do_executor(name)

    def told(self) -> list[str]:
        """The mails that were sent: what the tasks are called, in order."""
        ran = [str(name.launch.job) for name in self.executors["e1"].started]
        return [name.removeprefix(DELIVERIES) for name in ran if name.startswith(DELIVERIES)]

    def settled(self, code: int = 0) -> Steps:
        """The cell works until nothing is left to do at this time. Commands end with the exit code,
        mails are sent."""
        for _ in range(ROUNDS_MAX):
            yield self.do_turn
            yield lambda: self.do_deliver("e1")
            yield self.do_turn
            yield lambda: self.end_all(code)
            if self.is_quiet():
                return
        raise AssertionError("the cell never comes to rest")

    def end_all(self, code: int) -> None:
        executor = self.executors["e1"]
        running = [name for name, row in executor.rows.items() if row.status is Status.ACCEPTED]
        for name in running:
            is_mail = str(name.launch.job).startswith(DELIVERIES)
            if is_mail:
                self.send(name)
            text = str(name).replace("default/", "")
            name_of_story = text.replace(f"{DAY}T", "").replace("Z", "")
            self.do_exit("e1", name_of_story, "0" if is_mail else str(code))

    def send(self, name: AttemptName) -> None:
        """Hand the payload of a delivery to the mail server, as a worker of the target does."""
        record = self.state.record_of(name.launch.job)
        assert record is not None
        assert record.job is not None
        assert record.job.work.handler == self.target.handler
        said = context_of(job=name.launch.job, attempt=name.attempt)[0]
        assert ended(self.target, record.job.work.payload, said).result is Result.OK

    def is_quiet(self) -> bool:
        """Whether a turn has nothing to say, no wire anything on it and no launch is open."""
        is_open = bool(list(self.state.open_rows())) and bool(self.pool.connected)
        if is_open or any(self.pool.wires.values()):
            return False
        index = self.index
        self.do_turn()
        return self.index == index and not any(self.pool.wires.values())

    def at(self, time: str) -> Callable[[], None]:
        return lambda: self.do_at(time)


def failed_twice(cell: AlertCell) -> Steps:
    for minute in (1, 2):
        yield cell.at(f"12:0{minute}:00")
        yield from cell.settled(code=1)
    yield cell.at("12:03:00")
    yield from cell.settled()


def missed(cell: AlertCell) -> Steps:
    yield lambda: cell.do_disconnect("e1")
    yield cell.at("12:01:00")
    yield cell.at("12:01:55")
    yield lambda: cell.do_executor("e1")
    yield from cell.settled()
    yield cell.at("12:03:00")
    yield from cell.settled()


def late(cell: AlertCell) -> Steps:
    yield lambda: cell.do_disconnect("e1")
    yield cell.at("12:01:00")
    yield cell.at("12:01:35")
    yield cell.do_turn
    yield lambda: cell.do_executor("e1")
    yield from cell.settled()
    yield cell.at("12:03:00")
    yield from cell.settled()


def no_success(cell: AlertCell) -> Steps:
    for minute in (1, 2):
        yield cell.at(f"12:0{minute}:00")
        yield from cell.settled(code=1)
    yield cell.at("12:03:00")
    yield from cell.settled()


def runs_for_long(cell: AlertCell) -> Steps:
    yield cell.at("12:01:00")
    yield lambda: cell.do_deliver("e1")
    yield cell.do_turn
    yield cell.at("12:01:40")
    yield cell.do_turn
    yield from cell.settled()
    yield cell.at("12:03:00")
    yield from cell.settled()


def backup_fails(cell: AlertCell) -> Steps:
    def measured(behind_s: int) -> Callable[[], None]:
        return lambda: setattr(
            cell, "observed", Observed("", {AlertKind.BACKUP_FAILING: {"backup": behind_s}})
        )

    yield measured(30)
    yield cell.at("12:01:00")
    yield from cell.settled()
    yield measured(1_200)
    yield cell.at("12:02:00")
    yield from cell.settled()
    yield measured(10)
    yield cell.at("12:04:00")
    yield from cell.settled()


STORIES = [
    pytest.param("failed:2", failed_twice, "backup failed 2 times in a row", id="failed twice"),
    pytest.param("missed", missed, "backup missed a launch", id="missed"),
    pytest.param("late:30s", late, "backup is more than 30 seconds late", id="late"),
    pytest.param(
        "running:30s", runs_for_long, "backup runs for more than 30 seconds", id="runs for long"
    ),
    pytest.param(
        "no-success:90s",
        no_success,
        "backup has not succeeded for 1 minute 30 seconds",
        id="no success",
    ),
    pytest.param(
        "backup-failing:15m", backup_fails, "backups fail for more than 15 minutes", id="backup"
    ),
]


class Telling:
    """A story that is repeated with one mail server; `says` is the text of its alert."""

    def __init__(
        self, when: str, story: Callable[[AlertCell], Steps], says: str, server: SmtpServer
    ) -> None:
        self._when, self._story, self._server = when, story, server
        self._subjects = [f"[raftcron] {mark}{says}" for mark in ("", "RESOLVED: ")]

    def play(self, deaths: set[int], *, is_late: bool) -> int:
        """Tell it with another leader before some of its steps; return how many steps it has."""
        self._server.received.clear()
        cell, count = AlertCell(self._when, self._server), 0
        for count, step in enumerate(self._story(cell), start=1):
            if count in deaths:
                cell.another_leader(is_late=is_late)
            step()
        assert cell.told() == ["1-firing-ops", "1-resolved-ops"], (deaths, is_late)
        mails = [mail.message for mail in self._server.received]
        assert [str(mail["subject"]) for mail in mails] == self._subjects, (deaths, is_late)
        assert [mail["to"] for mail in mails] == [*OPS.to, *OPS.to]
        assert not cell.state.alerts.open_count
        assert [one.subject for one in cell.state.alerts.closed] == [
            "raftcron/backup" if self._when.startswith("backup") else "default/backup"
        ]
        return count


@pytest.fixture(scope="module")
def server() -> Iterator[SmtpServer]:
    with smtp_server() as one:
        yield one


@pytest.mark.parametrize(("when", "story", "says"), STORIES)
def test_an_alert_is_told_once_wherever_the_leader_dies(
    when: str, story: Callable[[AlertCell], Steps], says: str, server: SmtpServer
) -> None:
    telling = Telling(when, story, says, server)
    steps = telling.play(set(), is_late=False)
    for step in range(1, steps + 1):
        for is_late in (False, True):
            telling.play({step}, is_late=is_late)
        if step % 3 == 0:
            telling.play({step, step + 1, step + 2}, is_late=step % 2 == 0)
