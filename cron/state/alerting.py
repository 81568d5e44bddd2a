"""How commands about alerts change State.

The entry that opens or closes an alert also submits the tasks that tell people of it. So a failover
neither loses nor repeats a delivery: there is no moment at which an alert is open and its delivery
is not submitted.
"""

from __future__ import annotations

import re
from typing import Final

from cron.alert_rules import AlertKind, Channel, ChannelKind, Rule
from cron.limits import (
    ADDRESS_CHARS_MAX,
    ADDRESSES_MAX,
    ALERT_AFTER_S_MAX,
    ALERT_LAUNCHES_MAX,
    ALERTS_CLOSED_KEPT,
    ALERTS_OPEN_MAX,
    CHANNELS_MAX,
    MUTES_MAX,
    NOTE_CHARS_MAX,
    REMIND_S_MIN,
    RULE_CHANNELS_MAX,
    RULE_SUBJECTS_MAX,
    RULES_MAX,
)
from cron.state import alerts as a
from cron.state.context import Context
from cron.state.deliveries import flush, say_test, tell
from cron.state.outcome import Result, Verdict
from cron.state.state import State
from launcher.protocol.names import NAME_PART_CHARS_MAX, SCHEDULED_S_MAX

ACCEPTED: Final = Verdict.ACCEPTED  # members of an enumeration are slow to look up
ALREADY: Final = Verdict.ALREADY
WORD_RULE: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
"""Names of channels and rules: a channel's is a part of the names of its deliveries."""
PATTERN_CHARS_MAX: Final = 2 * NAME_PART_CHARS_MAX + 1
_WORD: Final = re.compile(WORD_RULE, re.ASCII)
_SUBJECT: Final = re.compile(r"[!-.0-~]+/[!-.0-~]+", re.ASCII)
_SUBJECT_CHARS_MAX: Final = 4 * NAME_PART_CHARS_MAX


# ---- what people say


def apply_alerts(context: Context, command: a.ApplyAlerts) -> Result:
    """Set all channels and rules, all or nothing. Alerts of rules that go, or become of another
    kind, are over."""
    alerts = context.state.alerts
    verdict = _check(context.state, command)
    if verdict is not ACCEPTED:
        return Result(verdict, number=alerts.revision)
    rules = {rule.name: rule for rule in command.rules}
    gone = {
        name
        for name, rule in alerts.rules.items()
        if name not in rules or rules[name].condition.kind is not rule.condition.kind
    }
    for name in [name for name in alerts.open if name in gone]:
        subjects = tuple(alerts.open[name])
        _resolve(context, a.ResolveLine(name, subjects), command.cell, command.by)
    for name in [name for name in alerts.outgoing if name in gone]:
        for channel in list(alerts.outgoing[name]):  # what is gathered could not be told later
            flush(context, name, channel, command.cell, is_last=True)
    alerts.rules_since = {
        name: alerts.rules_since.get(name, context.at_ms)
        if alerts.rules.get(name) == rule
        else context.at_ms
        for name, rule in rules.items()
    }
    alerts.channels = {channel.name: channel for channel in command.channels}
    alerts.rules = rules
    alerts.revision = context.index
    for name, mine in list(alerts.outgoing.items()):
        for channel in [one for one in mine if one not in alerts.channels]:
            del mine[channel]
            alerts.pending.pop((name, channel), None)
        if not mine:
            del alerts.outgoing[name]
    alerts.follow_rules()
    return Result(ACCEPTED, number=alerts.revision)


def _check(state: State, command: a.ApplyAlerts) -> Verdict:
    """Whether the whole change may happen."""
    if command.base != state.alerts.revision:
        return Verdict.STALE_REVISION
    if len(command.channels) > CHANNELS_MAX or len(command.rules) > RULES_MAX:
        return Verdict.TOO_MANY
    channels = {channel.name: channel for channel in command.channels}
    rules = {rule.name for rule in command.rules}
    if len(channels) < len(command.channels) or len(rules) < len(command.rules):
        return Verdict.REPEATED
    if not all(map(_is_channel, command.channels)) or not all(map(_is_rule, command.rules)):
        return Verdict.BAD_ALERTS
    telling = {one.name for one in command.channels if one.kind is not ChannelKind.HEARTBEAT}
    if any(name not in telling for rule in command.rules for name in rule.to):
        return Verdict.UNKNOWN_CHANNEL
    used = (name for own in state.alerts.own.values() for name in own.to)
    return Verdict.CHANNEL_IN_USE if any(name not in telling for name in used) else ACCEPTED


def _is_channel(channel: Channel) -> bool:
    is_mail = channel.kind is ChannelKind.MAIL
    return (
        _WORD.fullmatch(channel.name) is not None
        and is_mail == bool(channel.to)
        and len(channel.to) <= ADDRESSES_MAX
        and all(0 < len(address) <= ADDRESS_CHARS_MAX for address in channel.to)
    )


def _is_rule(rule: Rule) -> bool:
    condition = rule.condition
    most = 99 if condition.kind is AlertKind.DISK_FILLING else ALERT_LAUNCHES_MAX
    return (
        _WORD.fullmatch(rule.name) is not None
        and 0 <= condition.count <= most
        and 0 <= condition.of <= ALERT_LAUNCHES_MAX
        and 0 <= condition.after_s <= ALERT_AFTER_S_MAX
        and len(rule.subjects) <= RULE_SUBJECTS_MAX
        and all(map(_is_pattern, rule.subjects))
        and len(rule.to) <= RULE_CHANNELS_MAX
        and (rule.remind_s == 0 or REMIND_S_MIN <= rule.remind_s <= ALERT_AFTER_S_MAX)
    )


def _is_pattern(text: str) -> bool:
    return len(text) <= PATTERN_CHARS_MAX and _SUBJECT.fullmatch(text) is not None


def mute(context: Context, command: a.MuteAlerts) -> Result:
    """Mute subjects; mutes that are over go."""
    alerts = context.state.alerts
    if not _is_pattern(command.pattern):
        return Result(Verdict.BAD_ALERTS)
    if not context.at_ms < command.until_ms <= SCHEDULED_S_MAX * 1000:
        return Result(Verdict.BAD_TIMES)
    alerts.mutes = {
        number: one for number, one in alerts.mutes.items() if one.until_ms > context.at_ms
    }
    if len(alerts.mutes) >= MUTES_MAX:
        return Result(Verdict.TOO_MANY)
    alerts.mute_numbers += 1
    alerts.mutes[alerts.mute_numbers] = a.Mute(
        alerts.mute_numbers,
        command.pattern,
        context.at_ms,
        command.until_ms,
        command.by[:NOTE_CHARS_MAX],
        command.reason[:NOTE_CHARS_MAX],
    )
    return Result(ACCEPTED, number=alerts.mute_numbers)


def unmute(context: Context, command: a.UnmuteAlerts) -> Result:
    """End mutes; an item each."""
    mutes = context.state.alerts.mutes
    items = [ALREADY if mutes.pop(number, None) is None else ACCEPTED for number in command.numbers]
    return Result(ACCEPTED, tuple(items))


def test_alert(context: Context, command: a.TestAlert) -> Result:
    """Tell a channel that this is a test."""
    alerts = context.state.alerts
    channel = alerts.channels.get(command.channel)
    if channel is None or channel.kind is ChannelKind.HEARTBEAT:
        return Result(Verdict.UNKNOWN_CHANNEL)
    alerts.numbers += 1
    verdict = say_test(context, channel, command.cell)
    return Result(verdict, number=alerts.numbers)


# ---- what the leader finds


def raise_alerts(context: Context, command: a.RaiseAlerts) -> Result:
    """Open alerts and tell people of them; of one that is open and was not told, tell them now."""
    items: list[Verdict] = []
    is_muted = context.state.alerts.muted(context.at_ms)
    for line in command.lines:
        rule = context.state.alerts.rule(line.rule)
        fresh: list[tuple[str, a.OpenAlert]] = []
        for place, subject in enumerate(line.subjects):
            evidence = line.evidence[place] if place < len(line.evidence) else a.Evidence()
            alert = _opened(context, rule, subject, evidence, is_muted=is_muted(subject))
            if isinstance(alert, Verdict):
                items.append(alert)
                continue
            items.append(ACCEPTED)
            if alert.is_told:
                fresh.append((subject, alert))
        if rule is not None and fresh:
            tell(context, rule, a.gathered(fresh), command.cell, is_firing=True)
    return Result(ACCEPTED, tuple(items))


def _opened(
    context: Context, rule: Rule | None, subject: str, evidence: a.Evidence, *, is_muted: bool
) -> a.OpenAlert | Verdict:
    """Return the alert that a rule opens for a subject, or that it tells of now; why not, if so."""
    alerts = context.state.alerts
    if rule is None or not _may_fire(context.state, rule, subject):
        return Verdict.UNKNOWN_RULE
    mine = alerts.open.get(rule.name, {})
    known = mine.get(subject)
    if known is not None and (known.is_told or is_muted):
        return ALREADY
    if known is None and alerts.open_count >= ALERTS_OPEN_MAX:
        return Verdict.TOO_MANY
    if known is None:
        alerts.numbers += 1
        alerts.open_count += 1
        alerts.open_of[subject] += 1
    number, since_ms = alerts.numbers, context.at_ms
    if known is not None:
        number, since_ms = known.number, known.since_ms
        if rule.remind_s:  # people hear of it now, and again in so long
            count = alerts.reminded[rule.name].count if rule.name in alerts.reminded else 0
            alerts.reminded[rule.name] = a.Reminded(context.at_ms, count)
    alert = a.OpenAlert(number, since_ms, a.bounded(evidence), not is_muted)
    alerts.open.setdefault(rule.name, mine)[subject] = alert
    return alert


def _may_fire(state: State, rule: Rule, subject: str) -> bool:
    """Whether a rule can have a subject: that of a crontab has the jobs that say so."""
    if len(subject) > _SUBJECT_CHARS_MAX or "/" not in subject:
        return False
    if rule.name in state.alerts.rules:
        return True
    own = state.alerts.own.get(subject)
    same = own is not None and (rule.to, rule.remind_s) == (own.to, own.remind_s)
    return own is not None and same and rule.condition in own.conditions


def resolve_alerts(context: Context, command: a.ResolveAlerts) -> Result:
    """Close alerts, and tell those who were told that they fire."""
    items: list[Verdict] = []
    for line in command.lines:
        items += _resolve(context, line, command.cell)
    return Result(ACCEPTED, tuple(items))


def _resolve(context: Context, line: a.ResolveLine, cell: str, by: str = "") -> list[Verdict]:
    alerts = context.state.alerts
    mine, items = alerts.open.get(line.rule, {}), list[Verdict]()
    told: list[tuple[str, a.OpenAlert]] = []
    for subject in line.subjects:
        alert = mine.pop(subject, None)
        if alert is None:
            items.append(ALREADY)
            continue
        items.append(ACCEPTED)
        _close(context, line.rule, subject, alert, by[:NOTE_CHARS_MAX])
        if alert.is_told:
            told.append((subject, alert))
    if not mine:
        alerts.open.pop(line.rule, None)
        alerts.reminded.pop(line.rule, None)
    rule = alerts.rule(line.rule)
    if rule is not None and told:
        tell(context, rule, a.gathered(told), cell, is_firing=False)
    return items


def _close(context: Context, rule: str, subject: str, alert: a.OpenAlert, by: str) -> None:
    """Move an alert to those that are over; of too many the oldest go."""
    alerts = context.state.alerts
    alerts.open_count -= 1
    alerts.open_of[subject] -= 1
    if not alerts.open_of[subject]:
        del alerts.open_of[subject]
    alerts.closed.append(
        a.ClosedAlert(
            alert.number,
            rule,
            subject,
            alert.since_ms,
            context.at_ms,
            alert.evidence,
            alert.is_told,
            by,
        )
    )
    alerts.closed_count += 1
    del alerts.closed[:-ALERTS_CLOSED_KEPT]


def send_alerts(context: Context, command: a.SendAlerts) -> Result:
    """Tell channels what was gathered for them; an item each, NOT_DUE before its time."""
    items = [flush(context, *one, command.cell) for one in command.outgoing]
    return Result(ACCEPTED, tuple(items))
