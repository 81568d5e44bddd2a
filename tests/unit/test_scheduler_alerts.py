"""Which alerts a leader raises and resolves, and that a new leader decides the same."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from cron.alert_rules import AlertKind, Rule
from cron.launch_state import LaunchState
from cron.scheduler import alerts as index
from cron.scheduler.alerts import AlertIndex, Observed
from cron.scheduler.tasks import TaskIndex
from cron.state import alerts as a
from cron.state import commands as c
from cron.state import pool
from cron.state import tasks as t
from cron.state.outcome import Outcome, Verdict
from cron.state.state import Restored
from launcher.protocol.names import format_time
from launcher.protocol.status import Reason
from tests.unit.alerts_rig import CELL, AlertsRig, own, rule
from tests.unit.state_rig import T0, job, skips
from tests.unit.tasks_rig import task

BACKUP = "default/backup"
FAILED = {"state": LaunchState.FAILED, "exit_code": 1}


class Watcher(AlertsRig):
    """A state and the index of its leader, which follows every entry."""

    def __init__(self) -> None:
        super().__init__()
        self.measured: Mapping[AlertKind, Mapping[str, int]] = {}
        self.elect()

    def elect(self) -> None:
        """A new leader, which has only State."""
        self.index, self.tasks = AlertIndex(self.state), TaskIndex(self.state)

    def append(self, *commands: c.Command, **fields: object) -> Outcome:
        outcome = super().append(*commands, **fields)  # type: ignore[arg-type]
        if hasattr(self, "index") and self.state.alerts.is_used:
            self.index.follow(outcome)
            self.tasks.follow(outcome)
        return outcome

    def plan(self) -> list[index.AlertCommand]:
        self.tasks.plan(self.at_ms, lambda _: 0, 1000)
        return self.index.plan(self.at_ms, self.tasks, Observed(CELL, self.measured))

    def turn(self, second: int | None = None) -> list[str]:
        """Plan and append until there is nothing to do; return what was raised and resolved."""
        if second is not None:
            self.to(second)
        said: list[str] = []
        for _ in range(50):
            commands = self.plan()
            for command in commands:
                if isinstance(command, a.RaiseAlerts | a.ResolveAlerts):
                    sign = "+" if isinstance(command, a.RaiseAlerts) else "-"
                    for line in command.lines:
                        said += [f"{sign}{line.rule} {name}" for name in line.subjects]
            if commands:
                self.append(*commands)
            if not commands and not self.index.is_behind:
                return said
        raise AssertionError("the index never comes to rest")

    def evidence(self, name: str, subject: str = BACKUP) -> a.Evidence:
        return self.state.alerts.open[name][subject].evidence


def watching(*rules: Rule, **fields: object) -> Watcher:
    rig = Watcher()
    assert rig.declare(*rules) is Verdict.ACCEPTED
    assert rig.put(job(**fields)).verdict is Verdict.ACCEPTED  # type: ignore[arg-type]
    rig.join()
    assert rig.turn() == []
    return rig


def test_a_job_that_failed_twice_is_an_alert_until_it_succeeds() -> None:
    rig = watching(rule("twice", "failed:2"))
    rig.failed(60)
    assert rig.turn() == []
    rig.failed(120)
    assert rig.turn() == [f"+twice {BACKUP}"]
    names = tuple(f"{BACKUP}@{format_time(T0 + second)}" for second in (60, 120))
    assert rig.evidence("twice") == a.Evidence(2, (T0 + 60) * 1000, names)
    rig.failed(180)
    assert rig.turn() == []
    rig.ran(240)
    assert rig.turn() == [f"-twice {BACKUP}"]
    assert rig.keys == ["1-firing-ops", "1-resolved-ops"]


def test_an_open_alert_is_told_again_with_what_it_found_by_then() -> None:
    rig = watching(msgspec.structs.replace(rule("twice", "failed:2"), remind_s=3600))
    for second in range(60, 360, 60):
        rig.failed(second)
        rig.turn()
    assert rig.keys == ["1-firing-ops"]
    rig.delivered()
    rig.turn(120 + 3599)
    assert len(rig.keys) == 1
    rig.turn(120 + 3600)
    assert rig.keys == ["1-firing-ops", "1-firing.1-ops"]
    alert = rig.payload("1-firing.1-ops")["alert"]
    assert (alert["state"], alert["reminder"], alert["count"]) == ("firing", 1, 1)
    assert alert["evidence"]["failures"] == 5, "and not 2, as at its beginning"
    assert alert["evidence"]["launches"][-1] == f"{BACKUP}@{format_time(T0 + 300)}"
    rig.turn(120 + 2 * 3600)
    assert len(rig.keys) == 2, "the reminder before it still waits to be sent"
    rig.delivered()
    rig.elect()
    rig.turn(120 + 3 * 3600)
    assert rig.keys[2:] == ["1-firing.3-ops"]
    rig.delivered()
    rig.ran(4 * 3600)
    assert rig.turn() == [f"-twice {BACKUP}"]
    assert rig.state.alerts.reminded == {}
    rig.turn(9 * 3600)
    assert rig.keys[3:] == ["1-resolved-ops"]


def test_one_reminder_is_of_all_that_is_open_and_of_nothing_that_is_muted() -> None:
    rig = watching(msgspec.structs.replace(rule("twice", "failed:2"), remind_s=3600))
    names = [f"default/j{n}" for n in range(200)]
    rig.raised("twice", *names)
    rig.delivered()
    until_ms = (T0 + 3 * 3600) * 1000
    rig.append(a.MuteAlerts("default/j*", until_ms, "", "anna"))
    lines = a.RemindAlerts((a.RemindLine("twice"),), CELL)
    rig.append(a.UnmuteAlerts((1,), "anna"))
    assert rig.to(3599).items(lines) == [Verdict.NOT_DUE]
    rig.append(a.MuteAlerts("default/j*", until_ms, "", "anna"))
    assert rig.to(3600).items(lines) == [Verdict.NOT_DUE], "all are muted"
    rig.append(a.UnmuteAlerts((2,), "anna"), a.MuteAlerts("default/j1", until_ms, "", "anna"))
    assert rig.items(lines) == [Verdict.ACCEPTED]
    assert rig.items(lines) == [Verdict.NOT_DUE], "not a second time"
    assert rig.keys == ["1-firing-ops", "1-firing.1-ops"]
    alert = rig.payload("1-firing.1-ops")["alert"]
    assert (alert["count"], alert["subjects"][1]) == (199, "default/j2")
    assert rig.items(a.RemindAlerts((a.RemindLine("none"),), CELL)) == [Verdict.UNKNOWN_RULE]


def test_a_rule_of_a_crontab_reminds_too_and_one_without_remind_does_not() -> None:
    alerts = msgspec.structs.replace(own("failed:1", "ops"), remind_s=3600)
    rig = watching(rule("once", "failed"), alerts=alerts)
    name = "failed:1 to=ops remind=3600s"
    rig.failed(60)
    assert rig.turn() == [f"+once {BACKUP}", f"+{name} {BACKUP}"]
    rig.delivered()
    rig.turn(60 + 3600)
    assert rig.keys == ["1-firing-ops", "2-firing-ops", "2-firing.1-ops"]
    again = a.rule_of_name(name)
    assert again is not None
    assert (again.remind_s, again.to) == (3600, ("ops",))
    assert a.rule_of_name("failed:1 to=ops remind=03600s") is None


def test_so_many_of_the_newest_launches_may_have_failed() -> None:
    rig = watching(rule("often", "failed:2/3"))
    rig.failed(60)
    rig.ran(120)
    rig.failed(180)
    assert rig.turn() == [f"+often {BACKUP}"]
    rig.ran(240)
    assert rig.turn() == [f"-often {BACKUP}"], "one of the newest three has failed"


def test_a_new_leader_finds_what_the_one_before_did_not_commit() -> None:
    rig = watching(rule("twice", "failed:2"), rule("missed", "missed"))
    rig.failed(60)
    rig.failed(120)
    rig.to(300).account(to=240, skipped=(skips(180, 240, 2),))
    rig.elect()
    assert sorted(rig.turn()) == [f"+missed {BACKUP}", f"+twice {BACKUP}"]
    rig.elect()
    assert rig.turn() == []
    rig.ran(360)
    rig.elect()
    assert sorted(rig.turn()) == [f"-missed {BACKUP}", f"-twice {BACKUP}"]
    assert len(rig.keys) == 4


def test_a_missed_instant_is_an_alert_until_a_launch_runs() -> None:
    rig = watching(rule("missed", "missed"))
    rig.to(200).account(to=180, skipped=(skips(60, 180, 3),))
    assert rig.turn() == [f"+missed {BACKUP}"]
    assert rig.evidence("missed").value == 3
    rig.ran(240)
    assert rig.turn() == [f"-missed {BACKUP}"]


def test_a_launch_that_waits_too_long_is_late() -> None:
    rig = watching(rule("late", "late:30s"))
    rig.to(60).account(60)
    assert rig.turn(89) == []
    assert rig.turn(90) == [f"+late {BACKUP}"]
    launch = f"{BACKUP}@{format_time(T0 + 60)}"
    assert rig.evidence("late") == a.Evidence(30, (T0 + 60) * 1000, (launch,))
    rig.to(100).begin(60)
    rig.finished(60)
    assert rig.turn(110) == [], "it began too late"
    rig.ran(120)
    assert rig.turn(122) == [f"-late {BACKUP}"]


def test_a_launch_that_began_late_is_late_while_it_runs() -> None:
    rig = watching(rule("late", "late:30s"))
    rig.to(60).account(60)
    assert rig.turn(90) == [f"+late {BACKUP}"]
    rig.to(100).begin(60)
    assert rig.turn(105) == []
    rig.elect()
    assert rig.turn(110) == [], "a new leader sees that it runs"
    rig.to(200).finished(60)
    assert rig.turn(205) == []


def test_a_late_launch_that_is_skipped_or_cancelled_is_late_no_more() -> None:
    rig = watching(rule("late", "late:30s"))
    rig.to(60).account(60)
    assert rig.turn(95) == [f"+late {BACKUP}"]
    rig.skip(60)
    assert rig.turn(97) == [f"-late {BACKUP}"]


def test_an_alert_stays_while_a_younger_launch_is_late_too() -> None:
    rig = watching(rule("late", "late:30s"))
    rig.to(120).account(60, 120)
    assert rig.turn(100) == [f"+late {BACKUP}"]
    assert rig.turn(155) == []
    rig.skip(60)
    assert rig.turn(160) == []
    rig.skip(120)
    assert rig.turn(165) == [f"-late {BACKUP}"]


def test_a_job_that_changed_while_its_launch_waits_is_late_all_the_same() -> None:
    rig = watching(rule("late", "late:30s"))
    rig.to(60).account(60)
    rig.put(job(deadline_s=400))
    rig.turn()
    assert rig.turn(91) == [f"+late {BACKUP}"]


def test_a_launch_that_runs_for_long_is_an_alert_until_it_ends() -> None:
    rig = watching(rule("long", "running:1m"))
    rig.to(60).account(60)
    rig.begin(60)
    rig.launched(60)
    assert rig.turn(119) == []
    assert rig.turn(122) == [f"+long {BACKUP}"]
    assert rig.evidence("long").since_ms == (T0 + 60) * 1000
    rig.finished(60)
    assert rig.turn(124) == [f"-long {BACKUP}"]


def test_a_job_without_success_is_an_alert_until_it_succeeds() -> None:
    rig = watching(rule("alive", "no-success:10m"))
    rig.ran(60)
    assert rig.turn(659) == []
    assert rig.turn(660) == [f"+alive {BACKUP}"]
    assert rig.evidence("alive") == a.Evidence(600, (T0 + 60) * 1000)
    rig.failed(720)
    assert rig.turn() == []
    rig.ran(780)
    assert rig.turn() == [f"-alive {BACKUP}"]
    assert rig.turn(1379) == []
    assert rig.turn(1380) == [f"+alive {BACKUP}"]


def test_a_job_that_never_ran_has_as_long_as_one_that_did() -> None:
    rig = watching(rule("alive", "no-success:10m"))
    rig.to(300).put(job("young"))
    assert rig.turn(600) == [f"+alive {BACKUP}"]
    assert rig.turn(899) == []
    assert rig.turn(900) == ["+alive default/young"]


def test_a_paused_job_needs_no_success() -> None:
    rig = watching(rule("alive", "no-success:10m"))
    rig.append(c.Pause((BACKUP,), "moving", (T0 + 1200) * 1000, "anna"))
    assert rig.turn(700) == []
    assert rig.turn(1799) == [], "the time of the pause does not count"
    assert rig.turn(1800) == [f"+alive {BACKUP}"]
    rig.append(c.Pause((BACKUP,), "moving", 0, "anna"))
    assert rig.turn() == [f"-alive {BACKUP}"]


def test_dead_letters_of_a_job_are_an_alert_until_they_are_gone() -> None:
    rig = watching(rule("dead", "dead"), retry=job().retry)
    rig.to(60).account(60)
    rig.begin(60)
    rig.finished(60, **{**FAILED, "reason": Reason.RETRY})
    assert rig.state.dead
    assert rig.turn() == [f"+dead {BACKUP}"]
    assert rig.evidence("dead").launches == (f"{BACKUP}@{format_time(T0 + 60)}",)
    rig.append(pool.DropDead(tuple(rig.state.dead), "anna"))
    assert rig.turn() == [f"-dead {BACKUP}"]


def test_a_queue_whose_tasks_wait_too_long_is_an_alert() -> None:
    rig = watching(rule("old", "queue-older:1m", "default/mail"))
    rig.append(t.SubmitTasks((task("a"), task("b", 30_000), task("x", queue="default/other"))))
    assert rig.turn(59) == []
    assert rig.turn(60) == ["+old default/mail"]
    assert rig.evidence("old", "default/mail") == a.Evidence(60, T0 * 1000)
    rig.append(t.CancelTasks(("default/mail:a",), "anna"))
    assert rig.turn(62) == ["-old default/mail"]


def test_a_gate_that_nobody_lifts_is_an_alert() -> None:
    rig = watching(rule("gates", "gate-open:1h"))
    rig.append(pool.CloseGate(pool.Gate(0, pool.GateAction.PAUSE, "why", "anna", T0 * 1000)))
    assert rig.turn(3599) == []
    assert rig.turn(3600) == ["+gates raftcron/gate-1"]
    rig.append(pool.LiftGates((1,)))
    assert rig.turn(3602) == ["-gates raftcron/gate-1"]


def test_a_queue_may_have_the_name_of_a_job() -> None:
    rig = watching(rule("old", "queue-older:1m"), rule("dead", "dead"), rule("twice", "failed:2"))
    rig.put(job("mail"))
    rig.append(t.SubmitTasks((task("a"),)))
    number = rig.record("mail").number
    assert rig.turn(60) == ["+old default/mail"]
    rig.failed(120, number=number)
    rig.failed(180, number=number)
    assert rig.turn(182) == ["+twice default/mail"]
    for second in (184, 186):
        assert rig.turn(second) == [], "what is known of the job says nothing about the queue"
    rig.append(t.CancelTasks(("default/mail:a",), "anna"))
    assert rig.turn(188) == ["-old default/mail"]


def test_the_index_keeps_nothing_of_tasks_that_run() -> None:
    rig = watching(rule("long", "running:1s", "*/*"))
    rig.append(t.SubmitTasks((task("a"),)))
    rig.append(t.ReadyTasks((1,)))
    record = rig.state.by_number[2]
    assert record.task
    (key,) = rig.state.due.detailed
    assert rig.begin(key[1] - T0, number=2) is Verdict.ACCEPTED
    assert rig.turn(10) == []
    assert record.name not in rig.state.alerts._watches


CELL_CASES = [
    ("backup-failing:15m", AlertKind.BACKUP_FAILING, 899, 900),
    ("replica-away:5m", AlertKind.REPLICA_AWAY, 299, 300),
    ("clock-off:2s", AlertKind.CLOCK_OFF, -1999, -2000),
    ("certificate-ending:1d", AlertKind.CERTIFICATE_ENDING, 86_401, 86_400),
    ("disk-filling:90%", AlertKind.DISK_FILLING, 89, 90),
]


@pytest.mark.parametrize(("when", "kind", "good", "bad"), CELL_CASES)
def test_what_is_measured_of_the_cell_is_compared(
    when: str, kind: AlertKind, good: int, bad: int
) -> None:
    rig = watching(rule("cell", when))
    rig.measured = {kind: {"r1": good, "r2": good}}
    assert rig.turn(2) == []
    rig.measured = {kind: {"r1": good, "r2": bad}}
    assert rig.turn(4) == ["+cell raftcron/r2"]
    rig.measured = {}
    assert rig.turn(6) == [], "what is not known at the moment changes nothing"
    rig.measured = {kind: {"r1": good}}
    assert rig.turn(8) == ["-cell raftcron/r2"]


def test_rules_of_crontabs_fire_for_their_own_jobs_and_go_with_them() -> None:
    rig = watching(alerts=own("failed:2", "ops"))
    rig.put(job("other"))
    rig.failed(60)
    rig.failed(120)
    assert rig.turn() == [f"+failed:2 to=ops {BACKUP}"]
    rig.put(job())
    assert rig.turn() == [f"-failed:2 to=ops {BACKUP}"]
    rig.put(job(alerts=own("failed:2", "ops")))
    assert rig.turn() == [f"+failed:2 to=ops {BACKUP}"]
    rig.put(removed=(BACKUP,))
    assert rig.turn() == [f"-failed:2 to=ops {BACKUP}"]


def test_a_rule_that_comes_later_or_changes_is_compared_with_what_there_is() -> None:
    rig = watching(rule("dead", "dead"))
    rig.to(60).account(60)
    assert rig.declare(rule("late", "late:30s")) is Verdict.ACCEPTED
    assert rig.turn(100) == [f"+late {BACKUP}"]
    rig.declare(rule("late", "late:1h"))
    assert rig.turn() == [f"-late {BACKUP}"]


def test_a_muted_alert_is_told_when_the_mute_ends() -> None:
    rig = watching(rule("twice", "failed:2"))
    rig.append(a.MuteAlerts(BACKUP, (T0 + 600) * 1000, "", "anna"))
    rig.failed(60)
    rig.failed(120)
    assert rig.turn() == [f"+twice {BACKUP}"]
    assert rig.turn(599) == []
    assert rig.keys == []
    assert rig.turn(601) == [f"+twice {BACKUP}"]
    assert rig.keys == ["1-firing-ops"]


def test_what_was_gathered_is_sent_a_minute_later() -> None:
    rig = watching(rule("twice", "failed:2"))
    rig.put(job("other"))
    for number in (1, 2):
        rig.failed(60 + number, number=number)
        rig.failed(70 + number, number=number)
        rig.turn()
    assert rig.keys == ["1-firing-ops"]
    rig.turn(130)
    assert rig.keys == ["1-firing-ops"]
    rig.turn(133)
    assert rig.keys == ["1-firing-ops", "2-firing-ops"]


def test_many_jobs_are_looked_at_and_raised_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "LOOKED_AT_ONCE", 7)
    monkeypatch.setattr(index, "RAISED_MAX", 5)
    rig = watching(rule("missed", "missed"), rule("late", "late:30s"))
    rig.put(*(job(f"j{n}") for n in range(30)))
    numbers = tuple(rig.record(f"j{n}").number for n in range(30))
    deltas = (numbers[0], *(1 for _ in numbers[1:]))
    catalog = rig.state.catalog
    skipped, due = (skips(60, 120, 2),), (c.Instants(T0 + 180),)
    line = c.AccountLine(deltas, catalog, T0, T0 + 180, due, skipped)
    assert rig.to(200).item(c.Account((line,))) is Verdict.ACCEPTED
    assert sorted(rig.turn()) == sorted(f"+missed default/j{n}" for n in range(30))
    assert sorted(rig.turn(211)) == sorted(f"+late default/j{n}" for n in range(30))


def test_alerts_that_found_no_room_are_raised_once_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index, "ALERTS_OPEN_MAX", 1)
    monkeypatch.setattr("cron.state.alerting.ALERTS_OPEN_MAX", 1)
    rig = watching(rule("missed", "missed"))
    rig.put(job("other"))
    for number in (1, 2):
        rig.to(200).account(to=180, number=number, skipped=(skips(60, 180, 3),))
        rig.turn()
    assert list(rig.state.alerts.open["missed"]) == [BACKUP]
    rig.ran(240)
    assert rig.turn(250) == [f"-missed {BACKUP}"]
    assert rig.turn(252) == ["+missed default/other"]


def test_a_cell_without_rules_looks_at_nothing() -> None:
    rig = Watcher()
    rig.put(job())
    rig.join()
    rig.failed(60)
    assert rig.plan() == []
    assert not rig.index.is_behind
    assert rig.index.next_ms() is None


def test_a_restored_cell_does_not_tell_of_the_life_before() -> None:
    rig = watching(rule("alive", "no-success:10m"), rule("late", "late:30s"))
    rig.to(60).account(60)
    at_ms = (T0 + 5000) * 1000
    rig.state.restored = _restored(at_ms)
    rig.elect()
    assert rig.turn(5010) == [], "the late launch and the silence are of the life before"
    assert rig.turn(5029) == []
    assert rig.turn(5030) == [f"+late {BACKUP}"]
    assert rig.turn(5600) == [f"+alive {BACKUP}"]


def _restored(resolved_at_ms: int) -> Restored:
    return Restored(2, 1, T0 * 1000, resolved_at_ms, resolved_at_ms=resolved_at_ms)
