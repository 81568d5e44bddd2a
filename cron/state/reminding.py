"""Reminders of alerts that stay open: when one is due, and the entry that submits it. Pure.

A rule with `remind` tells its channels again while its alerts are open: of all of them in one
message, once in so long. So a rule that fires for thousands of jobs sends one message an hour, too.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cron.alert_rules import Rule
from cron.state import alerts as a
from cron.state.context import Context
from cron.state.deliveries import tell_again
from cron.state.outcome import Result, Verdict


def due_ms(alerts: a.AlertState, rule: Rule) -> int | None:
    """Return when people are to be reminded of the open alerts of a rule; None: of none."""
    if not rule.remind_s:
        return None
    # The oldest stands first. Those that were never told stay muted.
    told = (one for one in alerts.open.get(rule.name, {}).values() if one.is_told)
    first = next(told, None)
    if first is None:
        return None
    known = alerts.reminded.get(rule.name)
    since_ms = first.since_ms if known is None else max(known.at_ms, first.since_ms)
    return since_ms + rule.remind_s * 1000


def to_tell(
    alerts: a.AlertState, rule: Rule, is_muted: Callable[[str], bool]
) -> list[tuple[str, a.OpenAlert]]:
    """Return the open alerts of which a reminder tells, the oldest first."""
    mine = alerts.open.get(rule.name, {})
    return [
        (subject, one) for subject, one in mine.items() if one.is_told and not is_muted(subject)
    ]


def remind_alerts(context: Context, command: a.RemindAlerts) -> Result:
    """Tell people again what is open; an item for each line, NOT_DUE before its time, ALREADY where
    nothing is open."""
    items = [_remind(context, line, command.cell) for line in command.lines]
    return Result(Verdict.ACCEPTED, tuple(items))


def _remind(context: Context, line: a.RemindLine, cell: str) -> Verdict:
    alerts = context.state.alerts
    rule = alerts.rule(line.rule)
    if rule is None:
        return Verdict.UNKNOWN_RULE
    at_ms = due_ms(alerts, rule)
    if at_ms is None:
        return Verdict.ALREADY
    told = to_tell(alerts, rule, alerts.muted(context.at_ms))
    if context.at_ms < at_ms or not told:
        return Verdict.NOT_DUE
    subject, first = told[0]
    if subject == line.subject:  # what it found by now
        first = msgspec.structs.replace(first, evidence=a.bounded(line.evidence))
        alerts.open[rule.name][subject] = first
        told[0] = subject, first
    known = alerts.reminded.get(rule.name)
    count = known.count + 1 if known is not None else 1
    alerts.reminded[rule.name] = a.Reminded(context.at_ms, count)
    tell_again(context, rule, a.gathered(told), count, cell)
    return Verdict.ACCEPTED
