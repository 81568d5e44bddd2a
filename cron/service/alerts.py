"""Alerts: how rules and channels are applied, what fires, tests and mutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec

from cron.access import CELL, covers, names_within
from cron.alert_rules import AlertFile, AlertKind, Channel, ChannelKind, Rule
from cron.api.alerts import (
    FIRING_MAX,
    AlertChange,
    AlertsQuery,
    AlertsReport,
    AlertView,
    ApplyAlertsReport,
    ApplyAlertsRequest,
    ChannelView,
    MuteRequest,
    MutesReport,
    MuteView,
    RuleView,
    TestAlertReport,
    TestAlertRequest,
    UnmuteRequest,
)
from cron.api.jobs import ApplyRequest, SourceFile
from cron.calendar.duration import format_duration
from cron.crontab.alert_file import parse_alert_file
from cron.crontab.conditions import condition_text
from cron.errors import (
    Conflict,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotFound,
)
from cron.limits import MUTES_MAX
from cron.service import applying, catalog, unserved
from cron.service.alert_deliveries import FIRING, RESOLVED, Deliveries
from cron.service.replica import Replica
from cron.state import alerts as a
from cron.state.outcome import Verdict
from cron.state.state import State
from launcher.protocol.names import TASK_MARK

_HEARTBEAT: Final = """\
#: name={job} handler=webhook overlap=forbid deadline=60s timeout=60s
@every 60s   {{"heartbeat": "{channel}"}}
"""


async def listed(replica: Replica, query: AlertsQuery) -> AlertsReport:
    """Return the alerts, rules, channels and mutes that a caller may see.

    A caller who may not see the whole cell gets the rules for its jobs and for all jobs, mutes
    within its scopes, and no addresses of channels.
    """
    alerts, now_ms = replica.state.alerts, replica.clock.wall_ms()
    shows = _shown(query)
    shows_cell = _is_within(query.within, CELL)
    told = Deliveries(replica, now_ms, shows_detail=shows_cell)
    is_muted = alerts.muted(now_ms)
    firing = sorted(
        ((one.number, rule, subject) for rule, subject, one in alerts.alerts() if shows(subject))
    )
    closed = [one for one in reversed(alerts.closed) if shows(one.subject)]
    return AlertsReport(
        firing=[
            _of_open(replica.state, rule, subject, told, now_ms, is_muted=is_muted(subject))
            for _, rule, subject in firing[:FIRING_MAX]
        ],
        closed=[_of_closed(alerts, one, told) for one in closed[: query.limit]],
        firing_count=len(firing),
        closed_count=len(closed),
        mutes=[
            of_mute(one)
            for one in alerts.mutes.values()
            if one.until_ms > now_ms and _is_within(query.within, one.pattern)
        ],
        rules=[
            _of_rule(alerts, rule, subjects)
            for rule in alerts.rules.values()
            if (subjects := _subjects_within(query.within, rule)) is not None
        ],
        channels=[
            ChannelView(name=one.name, kind=one.kind.label, to=list(one.to) if shows_cell else [])
            for one in alerts.channels.values()
        ],
        now_ms=now_ms,
        notes=unserved.notes(replica, tuple(alerts.channels.values()), shows_cell=shows_cell),
    )


def _is_within(scopes: Sequence[str], pattern: str) -> bool:
    """Return whether scopes, of which none restrict nothing, cover all that a pattern matches."""
    return not scopes or any(covers(scope, pattern) for scope in scopes)


def _subjects_within(scopes: Sequence[str], rule: Rule) -> list[str] | None:
    """Return the patterns of a rule that a caller with these scopes may see; None: not the rule."""
    if not rule.subjects:
        is_seen = _is_within(scopes, CELL) or a.is_of_jobs(rule.condition.kind)
        return [] if is_seen else None
    return [one for one in rule.subjects if _is_within(scopes, one)] or None


def _shown(query: AlertsQuery) -> Callable[[str], bool]:
    """Return what says whether a subject is asked for and may be seen."""
    within = names_within(query.within)
    matches = a.matcher((query.jobs,)) if query.jobs else lambda _: True

    def shows(subject: str) -> bool:
        return matches(subject) and (within is None or within(subject))

    return shows


def _of_open(
    state: State, rule: str, subject: str, told: Deliveries, now_ms: int, *, is_muted: bool
) -> AlertView:
    alerts = state.alerts
    one = alerts.open[rule][subject]
    evidence = _newest(state, rule, subject, one.evidence, now_ms)
    return AlertView(
        number=one.number,
        rule=rule,
        when=_when(alerts, rule),
        subject=subject,
        state=FIRING,
        since_ms=one.since_ms,
        value=evidence.value,
        evidence_ms=evidence.since_ms,
        launches=list(evidence.launches),
        is_told=one.is_told,
        is_muted=is_muted,
        deliveries=told.of(rule, one.number, subject, FIRING) if one.is_told else [],
    )


def _newest(
    state: State, rule_name: str, subject: str, found: a.Evidence, now_ms: int
) -> a.Evidence:
    """Return what a rule finds of an open alert by now, where that is a number that grows. The
    alert itself has what it was when people were told last."""
    rule, record = state.alerts.rule(rule_name), state.jobs.get(subject)
    condition = rule.condition if rule is not None else None
    marks = (record.marks if record is not None else None) or a.NO_MARKS
    value = found.value
    if condition is None or record is None:
        return found
    if condition.kind is AlertKind.NO_SUCCESS and found.since_ms:
        value = (now_ms - found.since_ms) // 1000
    elif condition.kind is AlertKind.FAILED and not condition.of:
        value = marks.failures
    elif condition.kind is AlertKind.MISSED:
        value = marks.missed
    if value <= found.value:
        return found
    launches = found.launches if condition.kind is AlertKind.NO_SUCCESS else marks.launches
    return a.Evidence(value, found.since_ms, launches)


def _of_closed(alerts: a.AlertState, one: a.ClosedAlert, told: Deliveries) -> AlertView:
    return AlertView(
        number=one.number,
        rule=one.rule,
        when=_when(alerts, one.rule),
        subject=one.subject,
        state=RESOLVED,
        since_ms=one.since_ms,
        ended_ms=one.ended_ms,
        value=one.evidence.value,
        evidence_ms=one.evidence.since_ms,
        launches=list(one.evidence.launches),
        is_told=one.is_told,
        by=one.by,
        deliveries=told.of(one.rule, one.number, one.subject, RESOLVED) if one.is_told else [],
    )


def _when(alerts: a.AlertState, name: str) -> str:
    rule = alerts.rule(name)
    return "" if rule is None else condition_text(rule.condition)


def of_mute(mute: a.Mute) -> MuteView:
    """Return a mute as it is shown."""
    return MuteView(**msgspec.structs.asdict(mute))


def _of_rule(alerts: a.AlertState, rule: Rule, subjects: list[str]) -> RuleView:
    return RuleView(
        name=rule.name,
        when=condition_text(rule.condition),
        subjects=subjects,
        to=list(rule.to),
        since_ms=alerts.rules_since.get(rule.name, 0),
        remind_s=rule.remind_s,
    )


async def put(replica: Replica, request: ApplyAlertsRequest) -> ApplyAlertsReport:
    """Apply a file of alerts: all of it, or nothing; or only say what would change.

    Raises:
        CrontabError: the file has errors. Conflict: a job tells a channel that would go.
        RevisionConflict: others change the rules again and again.
    """
    wanted = parse_alert_file(request.text, file=request.file)
    await _put_heartbeats(replica, wanted, request.by, is_dry_run=True)
    changes: list[AlertChange] = []

    def build() -> a.ApplyAlerts | None:
        alerts = replica.state.alerts
        changes[:] = _changes(alerts, wanted)
        kept = {one.name for one in wanted.channels if one.kind is not ChannelKind.HEARTBEAT}
        for job, own in alerts.own.items():
            for name in own.to:
                if name not in kept:
                    hint = "keep the channel, or change the job first"
                    raise Conflict(f"job {job} tells channel {name}, which would go", hint)
        if request.is_dry_run or all(one.action == "unchanged" for one in changes):
            return None
        cell = _cell(replica)
        return a.ApplyAlerts(alerts.revision, wanted.channels, wanted.rules, request.by, cell)

    in_use = Conflict("a job came to tell a channel that would go", "apply again")
    await applying.apply(replica, build, "alerts", {Verdict.CHANNEL_IN_USE: in_use})
    if not request.is_dry_run:
        await _put_heartbeats(replica, wanted, request.by)
    return ApplyAlertsReport(
        changes=changes,
        revision=replica.state.alerts.revision,
        is_dry_run=request.is_dry_run,
        notes=unserved.notes(replica, wanted.channels),
    )


async def _put_heartbeats(
    replica: Replica, wanted: AlertFile, by: str, *, is_dry_run: bool = False
) -> None:
    """Make the jobs that call the heartbeats of a file, and remove those of others.

    Raises:
        CrontabError: a job of that name belongs to another source.
    """
    names = [one.name for one in wanted.channels if one.kind is ChannelKind.HEARTBEAT]
    records = replica.state.jobs.values()
    if not names and all(one.source != a.QUEUE or one.job is None for one in records):
        return
    crontab = "".join(_HEARTBEAT.format(job=heartbeat_job(name), channel=name) for name in names)
    file = SourceFile(name="alerts", content=crontab.encode())
    request = ApplyRequest(
        files=[file], source=a.QUEUE, prune=True, is_confirmed=True, is_dry_run=is_dry_run, by=by
    )
    await catalog.put(replica, request, is_own=True)


def heartbeat_job(channel: str) -> str:
    """Return the name of the job that calls a heartbeat."""
    return f"{a.SELF}/heartbeat-{channel}"


def _cell(replica: Replica) -> str:
    return replica.leader.observe().cell


def _changes(alerts: a.AlertState, wanted: AlertFile) -> Iterator[AlertChange]:
    """Yield what a file changes: channels before rules, by their names."""
    channels = {one.name: one for one in wanted.channels}
    yield from _compared("channel", alerts.channels, channels, _channel_text)
    rules = {one.name: one for one in wanted.rules}
    yield from _compared("rule", alerts.rules, rules, _rule_text)


def _compared(
    what: str,
    before: Mapping[str, Channel] | Mapping[str, Rule],
    after: Mapping[str, Channel] | Mapping[str, Rule],
    text: Callable[..., str],
) -> Iterator[AlertChange]:
    for name in sorted({*before, *after}):
        was, now = before.get(name), after.get(name)
        old, new = "" if was is None else text(was), "" if now is None else text(now)
        if was is None:
            yield AlertChange("added", what, name, "", new)
        elif now is None:
            yield AlertChange("removed", what, name, old, "")
        elif was == now:
            yield AlertChange("unchanged", what, name)
        else:
            yield AlertChange("changed", what, name, old, new)


def _channel_text(channel: Channel) -> str:
    return f"{channel.kind.label} {', '.join(channel.to)}".strip()


def _rule_text(rule: Rule) -> str:
    of = f" of {', '.join(rule.subjects)}" if rule.subjects else ""
    again = f", again after each {format_duration(rule.remind_s)}" if rule.remind_s else ""
    return f"{condition_text(rule.condition)}{of} to {', '.join(rule.to)}{again}"


async def test(replica: Replica, request: TestAlertRequest) -> TestAlertReport:
    """Submit a message that says it is a test.

    Raises:
        NotFound: there is no such channel, or it is a heartbeat. LimitExceeded: no task has room.
    """
    channel = replica.state.alerts.channels.get(request.channel)
    if channel is None:
        hint = "`raftcron alerts list --channels` lists them"
        raise NotFound(f"channel {request.channel} does not exist", hint)
    if channel.kind is ChannelKind.HEARTBEAT:
        text = f"channel {request.channel} is a heartbeat: it is called each minute"
        raise InvalidInput(text, f"see `raftcron history {heartbeat_job(channel.name)}`")
    command = a.TestAlert(request.channel, request.by, _cell(replica))
    _, results = await replica.leader.append(command)
    if results[0].verdict is not Verdict.ACCEPTED:
        raise LimitExceeded(f"the test was not submitted: {results[0].verdict.label}")
    task = f"{a.QUEUE}{TASK_MARK}{results[0].number}-test-{request.channel}"
    return TestAlertReport(task=task, notes=unserved.notes(replica, (channel,)))


async def mute(replica: Replica, request: MuteRequest) -> MuteView:
    """Mute alerts.

    Raises:
        InvalidInput: its time is over already. LimitExceeded: there are too many mutes.
    """
    command = a.MuteAlerts(request.pattern, request.until_ms, request.reason, request.by)
    _, results = await replica.leader.append(command)
    verdict, number = results[0].verdict, results[0].number
    if verdict is Verdict.TOO_MANY:
        raise LimitExceeded(f"there are {MUTES_MAX} mutes already", "end some of them")
    if verdict is Verdict.BAD_TIMES:
        raise InvalidInput("the time until which alerts are to be muted is over already")
    if verdict is not Verdict.ACCEPTED:
        raise InvalidInput(f"the mute is refused: {verdict.label}")
    known = replica.state.alerts.mutes.get(number)
    view = MuteView(number=number, pattern=request.pattern, until_ms=request.until_ms)
    view = of_mute(known) if known is not None else view
    state, matches = replica.state, a.matcher((request.pattern,))
    jobs = (name for name, record in state.jobs.items() if record.job is not None)
    # The cell's own subjects, such as replicas, count as there.
    is_own = request.pattern.startswith(("*", f"{a.SELF}/"))
    if not is_own and not any(map(matches, chain(jobs, state.queues))):
        note = f"no job and no queue matches {request.pattern} now; a name needs its tenant"
        view = msgspec.structs.replace(view, notes=[f"{note} unless that is default"])
    return view


async def unmute(replica: Replica, request: UnmuteRequest) -> MutesReport:
    """End mutes; the report names the numbers that none has.

    Raises:
        NotAllowed: one of them is of more than the caller may change; none is ended.
    """
    mutes = replica.state.alerts.mutes
    before = {number: mutes[number] for number in request.numbers if number in mutes}
    for one in before.values():
        if request.within and not any(covers(scope, one.pattern) for scope in request.within):
            text = f"mute {one.number} is of more than {', '.join(request.within)}"
            raise NotAllowed(text, "an operator of the whole cell may end it")
    command = a.UnmuteAlerts(tuple(request.numbers), request.by)
    _, results = await replica.leader.append(command)
    ended = [
        number
        for number, verdict in zip(request.numbers, results[0].items, strict=True)
        if verdict == Verdict.ACCEPTED
    ]
    views = [of_mute(before[one]) if one in before else MuteView(number=one) for one in ended]
    return MutesReport(mutes=views, unknown=sorted({*request.numbers} - {*ended}))
