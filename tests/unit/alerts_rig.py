"""A State with channels and rules of alerts, and what is seen of its deliveries."""

from __future__ import annotations

from typing import Any

import msgspec

from cron.alert_rules import Channel, ChannelKind, JobAlerts, Rule
from cron.crontab.conditions import parse_condition, parse_conditions
from cron.launch_state import LaunchState
from cron.state import alerts as a
from cron.state import commands as c
from cron.state import tasks
from cron.state.outcome import Verdict
from tests.unit.state_rig import StateRig, job

OPS = Channel("ops", ChannelKind.MAIL, ("ops@example.org",))
CHAT = Channel("chat", ChannelKind.WEBHOOK)
BEAT = Channel("beat", ChannelKind.HEARTBEAT)
CELL = "here"


def rule(name: str, when: str, *subjects: str, to: tuple[str, ...] = ("ops",)) -> Rule:
    return Rule(name, parse_condition(when), subjects, to)


def own(when: str, *to: str, mail_to: tuple[str, ...] = ()) -> JobAlerts:
    return JobAlerts(parse_conditions(when) if when else (), to, mail_to)


class AlertsRig(StateRig):
    """A state, its rules, and the deliveries that it submitted."""

    def declare(self, *rules: Rule, channels: tuple[Channel, ...] = (OPS, CHAT, BEAT)) -> Verdict:
        base = self.state.alerts.revision
        return self.answer(a.ApplyAlerts(base, channels, rules, "anna", CELL)).verdict

    def raised(self, rule: str, *subjects: str, value: int = 2) -> list[Verdict]:
        evidence = tuple(a.Evidence(value) for _ in subjects)
        return self.items(a.RaiseAlerts((a.RaiseLine(rule, subjects, evidence),), CELL))

    def resolved(self, rule: str, *subjects: str) -> list[Verdict]:
        return self.items(a.ResolveAlerts((a.ResolveLine(rule, subjects),), CELL))

    def send(self, rule: str, channel: str) -> Verdict:
        return self.item(a.SendAlerts(((rule, channel),), CELL))

    def delivered(self) -> None:
        """Whoever waits to be told has been told."""
        for task in list(self.state.tasks.values()):
            if task.queue == a.QUEUE and not task.is_over:
                self.append(tasks.CancelTasks((task.name,), "anna"))

    @property
    def keys(self) -> list[str]:
        """The keys of the deliveries, in the order in which they were submitted."""
        return [task.key for task in self.state.tasks.values() if task.queue == a.QUEUE]

    def payload(self, key: str) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.state.tasks[f"{a.QUEUE}:{key}"].payload)
        return found

    def ran(self, second: int, number: int = 1, **fields: Any) -> None:
        """A launch of a job begins and ends."""
        self.to(second).account(second, number=number)
        assert self.begin(second, number=number) is Verdict.ACCEPTED
        assert self.finished(second, number=number, **fields) is Verdict.ACCEPTED

    def failed(self, second: int, number: int = 1) -> None:
        self.ran(second, number, state=LaunchState.FAILED, exit_code=1)


def watched(*rules: Rule, log_format: int = c.FORMAT, **fields: Any) -> AlertsRig:
    """A rig with the job `backup` (number 1), an executor, channels and rules."""
    rig = AlertsRig(log_format=log_format)
    assert rig.declare(*rules) is Verdict.ACCEPTED
    assert rig.put(job(**fields)).verdict is Verdict.ACCEPTED
    rig.join()
    return rig
