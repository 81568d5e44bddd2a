"""An alert is told once, wherever leaders die between what happened and the mail about it.

Each story is a list of small steps: a turn of the leader, a message on its way, the end of a
command. It is told once for each step, with another leader before that step, and again with two
leaders that die one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cron.alert_rules import AlertKind, Channel, ChannelKind, Rule
from cron.crontab.conditions import parse_condition
from cron.scheduler.alerts import Observed
from cron.state import alerts as a
from launcher.protocol.names import TASK_MARK
from launcher.protocol.status import Status
from tests.interaction.cell import DAY, Cell

OPS = Channel("ops", ChannelKind.MAIL, ("ops@example.org",))
DELIVERIES = f"{a.QUEUE}{TASK_MARK}"
ROUNDS_MAX = 30
Steps = Iterator[Callable[[], object]]


class AlertCell(Cell):
    """A cell with one rule, one job that is due each minute, and one executor that sends mails."""

    def __init__(self, when: str) -> None:
        super().__init__()
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
            is_mail = name.launch.job.startswith(DELIVERIES)
            text = str(name).replace("default/", "")
            name_of_story = text.replace(f"{DAY}T", "").replace("Z", "")
            self.do_exit("e1", name_of_story, "0" if is_mail else str(code))

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
            cell, "observed", Observed("here", {AlertKind.BACKUP_FAILING: {"backup": behind_s}})
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
    pytest.param("failed:2", failed_twice, id="failed twice"),
    pytest.param("missed", missed, id="missed"),
    pytest.param("late:30s", late, id="late"),
    pytest.param("running:30s", runs_for_long, id="runs for long"),
    pytest.param("no-success:90s", no_success, id="no success within"),
    pytest.param("backup-failing:15m", backup_fails, id="backup failing"),
]


def play(when: str, story: Callable[[AlertCell], Steps], deaths: set[int], *, is_late: bool) -> int:
    """Tell a story with another leader before some of its steps; return how many steps it has."""
    cell, count = AlertCell(when), 0
    for count, step in enumerate(story(cell), start=1):
        if count in deaths:
            cell.another_leader(is_late=is_late)
        step()
    assert cell.told() == ["1-firing-ops", "1-resolved-ops"], (deaths, is_late)
    assert not cell.state.alerts.open_count
    assert [one.subject for one in cell.state.alerts.closed] == [
        "raftcron/backup" if when.startswith("backup") else "default/backup"
    ]
    return count


@pytest.mark.parametrize(("when", "story"), STORIES)
def test_an_alert_is_told_once_wherever_the_leader_dies(
    when: str, story: Callable[[AlertCell], Steps]
) -> None:
    steps = play(when, story, set(), is_late=False)
    for step in range(1, steps + 1):
        for is_late in (False, True):
            play(when, story, {step}, is_late=is_late)
        if step % 3 == 0:
            play(when, story, {step, step + 1, step + 2}, is_late=step % 2 == 0)
