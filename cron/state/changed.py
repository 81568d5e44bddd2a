"""What a change is about, in short: its objects, each with what it is at the moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import msgspec

from cron.access import DIGEST_CHARS, Grant, Token
from cron.alert_rules import Channel, Rule
from cron.crontab.bounds import day_text
from cron.crontab.conditions import condition_text
from cron.limits import CHANGED_CHARS_MAX, CHANGED_KEPT, NOTE_CHARS_MAX
from cron.notes import shortened
from cron.scopes import scope_text
from cron.state import access as a
from cron.state import alerts, calendars, groups, pool, tasks
from cron.state import commands as c
from cron.state.definitions import definition
from cron.state.state import State
from launcher.protocol.names import SCHEDULED_S_MAX, format_time, short_job_name


class Look(NamedTuple):
    """What an object is, in short, and the fields of a job's definition."""

    text: str = ""
    fields: Mapping[str, str] = {}


NOTHING: Final = Look()


def looks(state: State, command: c.Command) -> dict[str, Look]:
    """Return the first objects that a command is about, each with what it is now; of ApplyAlerts
    all; none of a command that is not in the table below."""
    objects = _OBJECTS.get(type(command))
    if objects is None:
        return {}
    is_of_jobs = isinstance(command, c.PutJobs)
    # Most channels and rules of a command are as they were: all are looked at, to find the others.
    most = None if isinstance(command, alerts.ApplyAlerts) else CHANGED_KEPT
    return {
        name[:NOTE_CHARS_MAX]: Look(
            shortened(text, CHANGED_CHARS_MAX), _definition(state, name) if is_of_jobs else {}
        )
        for name, text in islice(objects(state, command), most)
    }


def _definition(state: State, name: str) -> Mapping[str, str]:
    record = state.jobs.get(name)
    return definition(record.job) if record is not None else {}


def keys_of(command: c.Command) -> Iterator[c.Key]:
    """Yield the launches that a command is about."""
    if isinstance(command, pool.Redrive | pool.DropDead):
        yield from command.keys
    elif isinstance(command, c.Cancel | c.Reopen):
        yield from (item.key for item in command.items)


# ---- the objects of each command


def _launches(state: State, command: c.Command) -> Iterator[tuple[str, str]]:
    for key in islice(keys_of(command), CHANGED_KEPT):
        if key[0] in state.by_number and 0 <= key[1] <= SCHEDULED_S_MAX:
            yield str(state.launch_name(key)), _launch_text(state, key)


def _triggered(state: State, command: c.Trigger) -> Iterator[tuple[str, str]]:
    key = state.requests.get(command.request)
    if key is not None and key[0] in state.by_number:
        yield str(state.launch_name(key)), _launch_text(state, key)


def _limits(state: State, command: pool.SetLimits) -> Iterator[tuple[str, str]]:
    for item in command.items:
        yield scope_text(item.scope), _limits_text(state.limits.get(item.scope))


def _gates(state: State, command: pool.CloseGate | pool.LiftGates) -> Iterator[tuple[str, str]]:
    newest = (state.gate_numbers,)
    for number in command.numbers if isinstance(command, pool.LiftGates) else newest:
        yield str(number), _gate_text(state.gates.get(number))


def _executor(state: State, command: pool.Drain) -> Iterator[tuple[str, str]]:
    mine = (one for one in state.executors.values() if one.executor == command.executor)
    yield command.executor, "drained" if any(one.drained_by for one in mine) else ""


def _clock(state: State, _command: c.ResetClock) -> Iterator[tuple[str, str]]:
    yield "clock", format_time(state.at_ms // 1000)


def _restored(state: State, _command: c.Resolve) -> Iterator[tuple[str, str]]:
    restored = state.restored
    if restored is None:
        return
    text = f"restored from {format_time(restored.taken_ms // 1000)}, index {restored.index}"
    if restored.resolved_at_ms:
        until = format_time(restored.resolved_s)
        text = f"generation {restored.generation}, accounted for up to {until}"
    yield "cell", text


def _roles(state: State, command: a.GrantRole | a.RevokeRole) -> Iterator[tuple[str, str]]:
    bindings = state.access.bindings.get(command.subject, ())
    yield command.subject, "; ".join(_grant_text(one.grant) for one in bindings)


def _executor_grant(
    state: State, command: a.GrantExecutor | a.RevokeExecutor
) -> Iterator[tuple[str, str]]:
    name = command.executor if isinstance(command, a.RevokeExecutor) else command.grant.executor
    grant = state.access.executors.get(name)
    if grant is None:
        yield f"executor {name}", ""
        return
    labels = ",".join(f"{one}={value}" if value else one for one, value in grant.labels)
    said = (labels, f"pools {','.join(grant.pools)}", f"users {','.join(grant.users) or '-'}")
    yield f"executor {name}", "; ".join(filter(None, said))


def _token(state: State, command: a.CreateToken) -> Iterator[tuple[str, str]]:
    yield f"token rc1_{command.id}", _token_text(state.access.tokens.get(command.id))


def _tokens(state: State, command: a.RevokeTokens) -> Iterator[tuple[str, str]]:
    for number in command.ids:
        yield f"token rc1_{number}", _token_text(state.access.tokens.get(number))


def _certificates(state: State, command: a.RevokeCertificates) -> Iterator[tuple[str, str]]:
    revoked = state.access.revoked
    for one in command.certificates:
        text = "revoked" if one.digest in revoked else ""
        yield f"certificate {one.digest[:DIGEST_CHARS]} of {one.kind} {one.name}", text


def _alert_rules(state: State, command: alerts.ApplyAlerts) -> Iterator[tuple[str, str]]:
    """Yield the channels and rules that there are, and those that the command has."""
    channels, rules = state.alerts.channels, state.alerts.rules
    given = {channel.name: channel for channel in command.channels}
    for name in {**channels, **given}:
        yield f"channel {name}", _channel_text(channels.get(name))
    named = {rule.name: rule for rule in command.rules}
    for name in {**rules, **named}:
        yield f"rule {name}", _rule_text(rules.get(name))


def _mutes(
    state: State, command: alerts.MuteAlerts | alerts.UnmuteAlerts
) -> Iterator[tuple[str, str]]:
    newest = (state.alerts.mute_numbers,)
    for number in command.numbers if isinstance(command, alerts.UnmuteAlerts) else newest:
        mute = state.alerts.mutes.get(number)
        until = format_time(mute.until_ms // 1000) if mute is not None else ""
        yield f"mute {number}", f"{mute.pattern} until {until}" if mute is not None else ""


def _named(
    text: Callable[[State, str], str], names: Callable[[Any], Iterable[str]]
) -> Callable[[State, Any], Iterator[tuple[str, str]]]:
    """Return what yields the objects that a command has names of, with their texts."""
    return lambda state, command: ((name, text(state, name)) for name in names(command))


def _job_text(state: State, name: str) -> str:
    record = state.jobs.get(name)
    if record is None or record.job is None:
        return ""
    work = record.job.work
    return f"{record.job.schedule.text} {work.handler or ' '.join(work.argv[-1:])}"


def _pause_text(state: State, name: str) -> str:
    record = state.jobs.get(name)
    return "paused" if record is not None and record.paused is not None else ""


def _limits_text(limits: pool.Limits | None) -> str:
    if limits is None:
        return ""
    named = zip(limits.__struct_fields__, msgspec.structs.astuple(limits), strict=True)
    return ", ".join(f"{name} {value}" for name, value in named if value) or "not limited"


def _gate_text(gate: pool.Gate | None) -> str:
    if gate is None:
        return ""
    named = filter(None, (gate.pool, gate.collection, gate.tenant, gate.jobs))
    return f"{gate.action.name.lower()} {' '.join(named) or 'everything'}: {gate.reason}"


def _grant_text(grant: Grant) -> str:
    role = f"{grant.role.label} {','.join(grant.users)}".rstrip()
    return f"{role} in {grant.scope}" if grant.scope else role


def _token_text(token: Token | None) -> str:
    if token is None or token.revoked_ms:
        return ""
    grants = "; ".join(map(_grant_text, token.grants))
    return f"{token.name}: {grants}"


def _calendar_text(state: State, name: str) -> str:
    calendar = state.calendars.get(name)
    if calendar is None:
        return ""
    last = f", the last on {day_text(sum(calendar.days))}" if calendar.days else ""
    return f"{len(calendar.days)} days{last}"


def _channel_text(channel: Channel | None) -> str:
    return " ".join((channel.kind.label, *channel.to)) if channel is not None else ""


def _rule_text(rule: Rule | None) -> str:
    if rule is None:
        return ""
    subjects = f" {','.join(rule.subjects)}" if rule.subjects else ""
    return f"{condition_text(rule.condition)}{subjects} to {','.join(rule.to)}"


def _launch_text(state: State, key: c.Key) -> str:
    row = state.row(key)
    if row is None:
        return "dead letter" if key in state.dead else ""
    return f"{row.state.label}, {row.cancel.label}" if row.cancel else row.state.label


def _task_text(state: State, name: str) -> str:
    task = state.tasks.get(name)
    if task is None:
        return ""
    if task.is_over:
        return task.state.label
    return f"at {format_time(task.at_ms // 1000)}" if task.is_waiting else "due or running"


def _group_text(state: State, name: str) -> str:
    group = state.groups.get(name)
    if group is None:
        return ""
    hook = state.tasks_by_number.get(group.hook)
    return f"{group.state}, then {short_job_name(hook.name)}" if hook is not None else group.state


def _queue_text(state: State, name: str) -> str:
    queue = state.queues.get(name)
    if queue is None:
        return ""
    return f"{queue.handler}, waiting {queue.waiting_max}, rate {queue.rate_per_s}, {queue.source}"


_OBJECTS: Final[dict[type, Callable[[State, Any], Iterator[tuple[str, str]]]]] = {
    c.PutJobs: _named(_job_text, lambda put: chain((job.name for job in put.jobs), put.removed)),
    c.Pause: _named(_pause_text, lambda pause: pause.jobs),
    c.Resume: _named(_pause_text, lambda resume: resume.jobs),
    c.Cancel: _launches,
    c.Trigger: _triggered,
    c.Reopen: _launches,
    c.ResetClock: _clock,
    c.Resolve: _restored,
    pool.SetLimits: _limits,
    pool.CloseGate: _gates,
    pool.LiftGates: _gates,
    pool.Redrive: _launches,
    pool.DropDead: _launches,
    pool.Drain: _executor,
    tasks.CancelTasks: _named(_task_text, lambda cancel: cancel.names),
    tasks.RunTasks: _named(_task_text, lambda run: run.names),
    tasks.RescheduleTasks: _named(_task_text, lambda move: (item.name for item in move.items)),
    groups.CloseGroups: _named(_group_text, lambda close: (item.name for item in close.items)),
    tasks.PutQueues: _named(
        _queue_text, lambda put: chain((queue.name for queue in put.queues), put.removed)
    ),
    a.GrantRole: _roles,
    a.RevokeRole: _roles,
    a.CreateToken: _token,
    a.GrantExecutor: _executor_grant,
    a.RevokeExecutor: _executor_grant,
    a.RevokeTokens: _tokens,
    a.RevokeCertificates: _certificates,
    calendars.PutCalendar: _named(_calendar_text, lambda put: (put.name,)),
    calendars.RemoveCalendar: _named(_calendar_text, lambda remove: (remove.name,)),
    alerts.ApplyAlerts: _alert_rules,
    alerts.MuteAlerts: _mutes,
    alerts.UnmuteAlerts: _mutes,
}
