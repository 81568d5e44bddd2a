"""Who changed what: State keeps the newest changes that people made, within a bound.

Of a leader's own commands nothing is kept here. Commands that programs send often, of tasks and
manual launches, share rows. Where the cell has certificates the name is the proven one
(`api/admission.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from cron.limits import (
    CHANGED_CHARS_MAX,
    CHANGED_KEPT,
    CHANGES_MERGED_MS,
    NOTE_CHARS_MAX,
    REVISIONS_KEPT,
)
from cron.notes import shortened
from cron.scopes import scope_text
from cron.state import access as a
from cron.state import alerts, calendars, groups, pool, tasks
from cron.state import commands as c
from cron.state.changed import NOTHING, Look, keys_of, looks
from cron.state.context import Context
from cron.state.definitions import Field, compared, room_left
from cron.state.formats import notes_restores
from cron.state.outcome import Result, Verdict
from cron.state.state import Changed, Revision
from launcher.protocol.status import Reason

_KIND: Final = re.compile(r"[a-z][a-z-]{0,31}", re.ASCII)


def is_kept(command: c.Command) -> bool:
    """Return whether a command is a person's, of which State keeps that it changed something."""
    if isinstance(command, c.Cancel):  # the leader cancels what was replaced
        return all(item.reason is Reason.KILLED for item in command.items)
    return isinstance(command, KEPT)


def note(context: Context, command: c.Command, result: Result, before: Mapping[str, Look]) -> None:
    """Keep that a person changed something, if a command did of which `is_kept` says so. `before`
    is what `looks` said before it was applied."""
    if not is_kept(command):
        return
    state = context.state
    origin = context.origin if context.origin_left > 0 else ""
    context.origin_left -= 1
    if isinstance(command, groups.CloseGroups) and not origin:
        return  # the leader closes groups that are idle
    if isinstance(command, c.Resolve) and not notes_restores(state.format):
        return
    count = _count(context, command, result)
    if count:
        by = _by(command)[:NOTE_CHARS_MAX]
        subject = _subject(context, command)[:NOTE_CHARS_MAX]
        kind = str(type(command).__struct_config__.tag)
        after = looks(state, command)
        if isinstance(command, pool.CloseGate | alerts.MuteAlerts):
            before = {}  # only State gave it its number
        changed = _changed(before, after)
        if isinstance(command, c.NoteChange):
            kind = command.kind
            was, now = command.before, command.after
            texts = shortened(was, CHANGED_CHARS_MAX), shortened(now, CHANGED_CHARS_MAX)
            changed = (Changed(subject, *texts),)
        if isinstance(command, c.Resolve):
            kind, by = "restore", state.restored.by if state.restored is not None else ""
        if isinstance(command, alerts.ApplyAlerts):
            count, changed = max(count, len(changed)), changed[:CHANGED_KEPT]
        revision = Revision(context.index, context.at_ms, by, kind, subject, count, origin, changed)
        if isinstance(command, _OFTEN):
            revision = _merged(state.revisions, revision)
        state.revisions.append(revision)
        del state.revisions[:-REVISIONS_KEPT]


def note_change(_context: Context, command: c.NoteChange) -> Result:
    """Accept a change that only its row tells of, see `note`."""
    is_kind = _KIND.fullmatch(command.kind) is not None
    return Result(Verdict.ACCEPTED if is_kind and command.subject else Verdict.BAD_ACCESS)


def note_paused(context: Context, by: str, names: list[str]) -> None:
    """Keep that jobs were paused without a command, as one change of `by`: those of a minute share
    a row."""
    revisions, kind = context.state.revisions, str(c.Pause.__struct_config__.tag)
    changed = tuple(Changed(name, "", "paused") for name in names[:CHANGED_KEPT])
    new = Revision(context.index, context.at_ms, by, kind, names[0], len(names), "", changed)
    newest = revisions[-1] if revisions else new
    is_alike = (newest.command, newest.by, newest.origin) == (new.command, new.by, "")
    if newest is not new and is_alike and new.at_ms - newest.at_ms < CHANGES_MERGED_MS:
        del revisions[-1]
        both = (*newest.changed, *changed)[:CHANGED_KEPT]
        count = newest.count + new.count
        new = msgspec.structs.replace(
            new, at_ms=newest.at_ms, subject=newest.subject, count=count, changed=both
        )
    revisions.append(new)
    del revisions[:-REVISIONS_KEPT]


def _changed(before: Mapping[str, Look], after: Mapping[str, Look]) -> tuple[Changed, ...]:
    """Return the objects that are not what they were."""
    found, kept = list[Changed](), tuple[Field, ...]()
    for name in {**before, **after}:
        was, now = before.get(name, NOTHING), after.get(name, NOTHING)
        fields = compared(was.fields, now.fields, room_left(kept))
        if fields or was.text != now.text:
            kept += fields
            found.append(Changed(name, was.text, now.text, fields))
    return tuple(found)


def _merged(kept: list[Revision], new: Revision) -> Revision:
    """Return a change together with one of the newest kept changes that is alike and not
    old, which is taken away; alone where there is none."""
    for place in range(len(kept) - 1, max(-1, len(kept) - 1 - _LOOKED_AT), -1):
        old = kept[place]
        is_alike = (old.command, old.by, _shared_by(old)) == (
            new.command,
            new.by,
            _shared_by(new),
        )
        if is_alike and new.at_ms - old.at_ms < CHANGES_MERGED_MS:
            del kept[place]
            changed = (*old.changed, *new.changed)[:CHANGED_KEPT]
            count = old.count + new.count
            return msgspec.structs.replace(new, at_ms=old.at_ms, count=count, changed=changed)
    return new


def _shared_by(revision: Revision) -> str:
    """Return the queue or job that changes share a row of, and the tenant of groups."""
    is_of_groups = revision.command == "close-groups"
    return revision.subject.partition("/" if is_of_groups else ":")[0]


def _count(context: Context, command: c.Command, result: Result) -> int:
    """Return how many things a command has changed."""
    if result.verdict is not Verdict.ACCEPTED:
        return 0
    if isinstance(command, c.PutJobs):
        return context.jobs_changed
    if result.items:
        return sum(item == Verdict.ACCEPTED for item in result.items)
    if isinstance(command, tasks.PutQueues):
        return len(command.queues) + len(command.removed)
    return int(isinstance(command, _SINGLE))


def _by(command: c.Command) -> str:
    if isinstance(command, pool.CloseGate):
        return command.gate.by
    if isinstance(command, c.Cancel):
        return command.items[0].by
    return str(getattr(command, "by", ""))


def _subject(context: Context, command: c.Command) -> str:
    state = context.state
    field = _SUBJECTS.get(type(command))
    if field is not None:
        return str(getattr(command, field))
    if isinstance(command, tasks.CancelTasks | tasks.RunTasks):
        return command.names[0]
    if isinstance(command, tasks.RescheduleTasks | groups.CloseGroups):
        return command.items[0].name
    if isinstance(command, c.Pause | c.Resume):
        return command.jobs[0]
    if isinstance(command, pool.SetLimits):
        return scope_text(command.items[0].scope)
    if isinstance(command, pool.CloseGate):
        return str(state.gate_numbers)
    if isinstance(command, pool.LiftGates | alerts.UnmuteAlerts):
        return str(command.numbers[0])
    if isinstance(command, alerts.ApplyAlerts):
        return "alerts"
    if isinstance(command, a.GrantExecutor):
        return command.grant.executor
    if isinstance(command, a.RevokeTokens):
        token = state.access.tokens.get(command.ids[0])
        return token.name if token is not None else ""
    if isinstance(command, a.RevokeCertificates):
        return command.certificates[0].name
    key = next(keys_of(command), None)
    return str(state.launch_name(key)) if key is not None and key[0] in state.by_number else ""


_SUBJECTS: Final[dict[type, str]] = {
    c.PutJobs: "source",
    c.Trigger: "job",
    c.NoteChange: "subject",
    tasks.PutQueues: "source",
    pool.Drain: "executor",
    a.GrantRole: "subject",
    a.RevokeRole: "subject",
    a.CreateToken: "name",
    a.RevokeExecutor: "executor",
    calendars.PutCalendar: "name",
    calendars.RemoveCalendar: "name",
    alerts.MuteAlerts: "pattern",
    alerts.TestAlert: "channel",
}
"""The fields that name what a command is about, of those that have one."""

_LOOKED_AT: Final = 8
_OFTEN: Final = (
    c.Trigger,
    tasks.CancelTasks,
    tasks.RescheduleTasks,
    tasks.RunTasks,
    groups.CloseGroups,
)
"""Commands of programs: like ones of one caller, job or queue share a row."""
_SINGLE: Final = (
    c.Trigger,
    pool.CloseGate,
    pool.Drain,
    c.ResetClock,
    c.NoteChange,
    c.Resolve,
    a.GrantRole,
    a.RevokeRole,
    a.CreateToken,
    a.GrantExecutor,
    a.RevokeExecutor,
    alerts.ApplyAlerts,
    alerts.MuteAlerts,
    alerts.TestAlert,
    calendars.PutCalendar,
    calendars.RemoveCalendar,
)
"""Commands about one thing, whose result has no items."""

KEPT: Final = (
    c.PutJobs,
    c.Pause,
    c.Resume,
    c.Cancel,
    c.Trigger,
    c.Reopen,
    c.ResetClock,
    c.NoteChange,
    c.Resolve,
    pool.SetLimits,
    pool.CloseGate,
    pool.LiftGates,
    pool.Redrive,
    pool.DropDead,
    pool.Drain,
    tasks.CancelTasks,
    tasks.RescheduleTasks,
    tasks.RunTasks,
    tasks.PutQueues,
    groups.CloseGroups,
    a.GrantRole,
    a.RevokeRole,
    a.CreateToken,
    a.GrantExecutor,
    a.RevokeExecutor,
    a.RevokeTokens,
    a.RevokeCertificates,
    alerts.ApplyAlerts,
    alerts.MuteAlerts,
    alerts.UnmuteAlerts,
    alerts.TestAlert,
    calendars.PutCalendar,
    calendars.RemoveCalendar,
)
