"""The tasks that tell people of alerts, and of what their jobs wrote: their names and payloads.

A delivery is an ordinary task: it has retries, a history, and becomes a dead letter if nobody can
be told for a day. Its name follows from the alert, so it is submitted once. What a rule tells a
channel within a minute of a delivery is gathered for the next one.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from cron.alert_rules import AlertKind, Channel, ChannelKind, Rule
from cron.crontab.conditions import condition_text
from cron.notes import shortened
from cron.state import alerts as a
from cron.state.context import Context
from cron.state.outcome import Verdict
from cron.state.rows import Row
from cron.state.tasking import DIGEST_BYTES, submit_one
from cron.state.tasks import TaskOptions, TaskSpec
from launcher.protocol.names import TASK_MARK, LaunchName, format_time

MAIL: Final = "mail"
WEBHOOK: Final = "webhook"
"""The handlers of deliveries."""
TRIES: Final = 33
BACKOFF_MS: Final = 10_000
"""With these a delivery is tried for a day: after 10 s, twice as long each time, then each hour."""
_TIMEOUT_S: Final = 60
_PRIORITY: Final = 1
_ON_LOST_RETRY: Final = 1
_BY: Final = "alerts"
MAILS_WAITING_MAX: Final = 10_000
"""Tasks of the queue with which no launch is mailed any more: crontabs say MAILTO of thousands of
jobs, and their mails must not fill the queue when nobody sends any. Alerts are told beyond it."""
MAIL_DEADLINE_S: Final = 86_400
"""A mail about a launch is not sent a day later."""
COMMAND_FORMAT: Final = 11
"""The format of State from which a mail about a launch names the command."""
COMMAND_CHARS_MAX: Final = 500
_OUTGOING_MAX: Final = 10_000
"""Rules with channels whose last deliveries are remembered; old ones go when more come."""
_VALUES: Final = {
    AlertKind.FAILED: "failures",
    AlertKind.MISSED: "missed",
    AlertKind.LATE: "late_s",
    AlertKind.RUNNING: "running_s",
    AlertKind.NO_SUCCESS: "without_success_s",
    AlertKind.DEAD: "dead_letters",
    AlertKind.QUEUE_OLDER: "oldest_s",
    AlertKind.GATE_OPEN: "held_s",
    AlertKind.BACKUP_FAILING: "behind_s",
    AlertKind.REPLICA_AWAY: "away_s",
    AlertKind.CLOCK_OFF: "off_ms",
    AlertKind.CERTIFICATE_ENDING: "left_s",
    AlertKind.DISK_FILLING: "used_percent",
}
"""What the number of the evidence of each kind is called."""
_encoder = msgspec.json.Encoder()


def tell(context: Context, rule: Rule, what: a.Gathered, cell: str, *, is_firing: bool) -> None:
    """Tell the channels of a rule, or gather for the next delivery what comes too soon."""
    alerts = context.state.alerts
    for name in dict.fromkeys(rule.to):
        channel = alerts.channels.get(name)
        if channel is None or channel.kind is ChannelKind.HEARTBEAT:
            continue
        out = alerts.outgoing.get(rule.name, {}).get(name, a.Outgoing())
        out = _joined(out, what, is_firing=is_firing)
        is_due = context.at_ms >= out.sent_ms + a.REST_MS or not out.sent_ms
        if out.is_pending and is_due:
            out = _send(context, rule, channel, out, cell)
        _keep(context, rule.name, name, out)


def _joined(out: a.Outgoing, what: a.Gathered, *, is_firing: bool) -> a.Outgoing:
    """Return what is gathered, with more. What fires again before anybody was told that it was over
    goes on firing: "over" would come last, and would not be true."""
    if not is_firing:
        joined = what if out.resolved is None else out.resolved.joined(what)
        return msgspec.structs.replace(out, resolved=joined)
    fresh: a.Gathered | None = what
    if out.resolved is not None:
        again = frozenset(out.resolved.subjects) & frozenset(what.subjects)
        fresh = what.without(again)
        out = msgspec.structs.replace(out, resolved=out.resolved.without(again))
    if fresh is None:
        return out
    joined = fresh if out.firing is None else out.firing.joined(fresh)
    return msgspec.structs.replace(out, firing=joined)


def flush(
    context: Context, rule_name: str, name: str, cell: str, *, is_last: bool = False
) -> Verdict:
    """Tell a channel what was gathered of a rule, once its time has come; at once if the rule
    goes."""
    alerts = context.state.alerts
    rule, channel = alerts.rule(rule_name), alerts.channels.get(name)
    out = alerts.outgoing.get(rule_name, {}).get(name)
    if out is None or not out.is_pending:
        return Verdict.ALREADY
    if context.at_ms < out.sent_ms + a.REST_MS and not is_last:
        return Verdict.NOT_DUE
    if rule is None or channel is None:
        out = a.Outgoing(out.sent_ms, out.newest)
    else:
        out = _send(context, rule, channel, out, cell)
    _keep(context, rule_name, name, out)
    return Verdict.ACCEPTED


def _keep(context: Context, rule: str, channel: str, out: a.Outgoing) -> None:
    alerts = context.state.alerts
    if rule not in alerts.outgoing and len(alerts.outgoing) >= _OUTGOING_MAX:
        _let_go(context)
    alerts.outgoing.setdefault(rule, {})[channel] = out
    if out.is_pending:
        alerts.pending[rule, channel] = None
    else:
        alerts.pending.pop((rule, channel), None)


def _let_go(context: Context) -> None:
    """Forget deliveries of which nothing follows any more."""
    outgoing = context.state.alerts.outgoing
    for rule, mine in list(outgoing.items()):
        newest_ms = max(out.sent_ms for out in mine.values())
        is_pending = any(out.is_pending for out in mine.values())
        if not is_pending and newest_ms + a.REST_MS <= context.at_ms:
            del outgoing[rule]


def _send(context: Context, rule: Rule, channel: Channel, out: a.Outgoing, cell: str) -> a.Outgoing:
    """Submit the deliveries of what is gathered; what is refused, for example because too many
    tasks wait, stays gathered. A delivery that says that an alert is over follows the one that said
    that it fires."""
    firing, resolved, newest = out.firing, out.resolved, out.newest
    if firing is not None:
        alert = _alert(context, rule, firing, "firing", cell)
        if _submit(context, channel, alert):
            firing, newest = None, _key(alert, channel)
    if resolved is not None and firing is None:
        known = context.state.tasks.get(f"{a.QUEUE}{TASK_MARK}{newest}") if newest else None
        after = (known.name,) if known is not None and not known.is_over else ()
        if _submit(context, channel, _alert(context, rule, resolved, "resolved", cell), after):
            resolved = None
    return a.Outgoing(context.at_ms, newest, firing, resolved)


def say_test(context: Context, channel: Channel, cell: str) -> Verdict:
    """Submit a delivery that says that it is a test, with the newest number."""
    number = context.state.alerts.numbers
    at = format_time(context.at_ms // 1000)
    alert = {
        "number": number,
        "state": "test",
        "kind": "test",
        "rule": "",
        "when": "",
        "subjects": [],
        "count": 0,
        "since": at,
        "at": at,
        "evidence": {},
        "cell": cell,
    }
    return Verdict.ACCEPTED if _submit(context, channel, alert) else Verdict.TOO_MANY


def _alert(context: Context, rule: Rule, what: a.Gathered, state: str, cell: str) -> dict[str, Any]:
    """Return what a delivery says of alerts, without any prose."""
    evidence: dict[str, Any] = {_VALUES[rule.condition.kind]: what.evidence.value}
    if what.evidence.since_ms:
        evidence["since"] = format_time(what.evidence.since_ms // 1000)
    if what.evidence.launches:
        evidence["launches"] = list(what.evidence.launches)
    return {
        "number": what.number,
        "state": state,
        "kind": rule.condition.kind.label,
        "rule": rule.name,
        "when": condition_text(rule.condition),
        "subjects": list(what.subjects),
        "count": what.count,
        "open": len(context.state.alerts.open.get(rule.name, ())),
        "removed": _removed(context, rule, what.subjects) if state == "resolved" else [],
        "since": format_time(what.since_ms // 1000),
        "at": format_time(context.at_ms // 1000),
        "evidence": evidence,
        "cell": cell,
    }


def _removed(context: Context, rule: Rule, subjects: tuple[str, ...]) -> list[str]:
    """Return the jobs among these subjects that are not there any more: that ended their alerts."""
    if not a.is_of_jobs(rule.condition.kind):
        return []
    jobs, queues = context.state.jobs, context.state.queues
    return [
        name
        for name in subjects
        if ((known := jobs.get(name)) is None or known.job is None) and name not in queues
    ]


def tell_again(context: Context, rule: Rule, what: a.Gathered, count: int, cell: str) -> None:
    """Remind the channels of a rule of what is open, for the `count`th time. A channel that has not
    got the message before yet is not reminded of it."""
    alerts = context.state.alerts
    for name in dict.fromkeys(rule.to):
        channel = alerts.channels.get(name)
        if channel is None or channel.kind is ChannelKind.HEARTBEAT:
            continue
        out = alerts.outgoing.get(rule.name, {}).get(name, a.Outgoing())
        before = context.state.tasks.get(f"{a.QUEUE}{TASK_MARK}{out.newest}")
        if out.newest and before is not None and not before.is_over:
            continue
        alert = _alert(context, rule, what, "firing", cell) | {"reminder": count}
        if _submit(context, channel, alert):
            newest = _key(alert, channel)
            _keep(context, rule.name, name, msgspec.structs.replace(out, newest=newest))


def _key(alert: dict[str, Any], channel: Channel) -> str:
    again = f".{alert['reminder']}" if "reminder" in alert else ""
    return f"{alert['number']}-{alert['state']}{again}-{channel.name}"


def _submit(
    context: Context, channel: Channel, alert: dict[str, Any], after: tuple[str, ...] = ()
) -> bool:
    """Submit the task that tells a channel; return whether it is there."""
    if channel.kind is ChannelKind.MAIL:
        payload: dict[str, Any] = {"alert": alert, "to": list(channel.to)}
        return _submit_task(context, _key(alert, channel), MAIL, payload, after)
    payload = {"alert": alert, "channel": channel.name}
    return _submit_task(context, _key(alert, channel), WEBHOOK, payload, after)


def mail_output(context: Context, row: Row, to: tuple[str, ...]) -> None:
    """Mail what is known of a launch that is over to the addresses of its crontab's `MAILTO`; not
    while MAILS_WAITING_MAX tasks wait to tell people something."""
    queue = context.state.queues.get(a.QUEUE)
    if queue is not None and queue.waiting >= MAILS_WAITING_MAX:
        return
    launch = {
        "name": str(LaunchName(row.job, row.scheduled_s, row.trigger)),
        "job": row.job,
        "state": row.state.label,
        "reason": row.reason.label,
        "exit": row.exit_code if row.exit_code >= 0 else None,
        "attempt": row.attempt,
        "detail": row.detail,
        "output_bytes": row.output_bytes,
        "executor": row.executor,
        "at": format_time(row.ended_at_ms // 1000),
    }
    if context.state.format >= COMMAND_FORMAT:
        launch["command"] = _command_of(context, row)
    key = f"mail-{row.ended_index}-{row.number}"
    payload = {"launch": launch, "to": list(to)}
    _submit_task(context, key, MAIL, payload, deadline_s=MAIL_DEADLINE_S)


def _command_of(context: Context, row: Row) -> str:
    """Return the beginning of what a launch ran; "" if its job is another one by now."""
    record = context.state.record_of(row.job)
    if record is None or record.job is None or record.revision != row.revision:
        return ""
    argv = record.job.work.argv
    return shortened(argv[-1], COMMAND_CHARS_MAX) if argv else ""


def _submit_task(
    context: Context,
    key: str,
    handler: str,
    payload: dict[str, Any],
    after: tuple[str, ...] = (),
    *,
    deadline_s: int = 0,
) -> bool:
    encoded = _encoder.encode(payload)
    digest = hashlib.blake2b(encoded, digest_size=DIGEST_BYTES).digest()
    options = TaskOptions(
        handler,
        priority=_PRIORITY,
        tries=TRIES,
        backoff_ms=BACKOFF_MS,
        deadline_s=deadline_s,
        timeout_s=_TIMEOUT_S,
        on_lost=_ON_LOST_RETRY,
    )
    spec = TaskSpec(a.QUEUE, key, context.at_ms, encoded, digest, options, after_any=after)
    verdict = submit_one(context, spec, _BY)
    return verdict in (Verdict.ACCEPTED, Verdict.ALREADY, Verdict.OTHER_CONTENT)
