"""Who changed what: State keeps the newest changes that people made, within a bound.

Launches that somebody triggered say so in their own rows. Of a leader's own commands nothing is
kept here. Where the cell has certificates the name is the proven one (`api/callers.py`).
"""

from __future__ import annotations

from typing import Final

from cron.limits import NOTE_CHARS_MAX, REVISIONS_KEPT
from cron.scopes import scope_text
from cron.state import commands as c
from cron.state import pool, tasks
from cron.state.context import Context
from cron.state.outcome import Result, Verdict
from cron.state.state import Revision
from launcher.protocol.status import Reason


def note(context: Context, command: c.Command, result: Result) -> None:
    """Keep that a person changed something, if one of the commands in `KEPT` did."""
    state = context.state
    if isinstance(command, c.Cancel) and any(
        item.reason is not Reason.KILLED for item in command.items
    ):
        return  # the leader cancels what was replaced
    count = _count(context, command, result)
    if count:
        by = _by(command)[:NOTE_CHARS_MAX]
        subject = _subject(context, command)[:NOTE_CHARS_MAX]
        kind = str(type(command).__struct_config__.tag)
        revision = Revision(context.index, context.at_ms, by, kind, subject, count)
        state.revisions.append(revision)
        del state.revisions[:-REVISIONS_KEPT]


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
    return int(isinstance(command, pool.CloseGate | pool.Drain | c.ResetClock))


def _by(command: c.Command) -> str:
    if isinstance(command, pool.CloseGate):
        return command.gate.by
    if isinstance(command, c.Cancel):
        return command.items[0].by
    return str(getattr(command, "by", ""))


def _subject(context: Context, command: c.Command) -> str:
    state = context.state
    if isinstance(command, c.PutJobs | tasks.PutQueues):
        return command.source
    if isinstance(command, tasks.CancelTasks | tasks.RunTasks):
        return command.names[0]
    if isinstance(command, tasks.RescheduleTasks):
        return command.items[0].name
    if isinstance(command, c.Pause | c.Resume):
        return command.jobs[0]
    if isinstance(command, pool.SetLimits):
        return scope_text(command.items[0].scope)
    if isinstance(command, pool.CloseGate):
        return str(state.gate_numbers)
    if isinstance(command, pool.LiftGates):
        return str(command.numbers[0])
    if isinstance(command, pool.Drain):
        return command.executor
    keys = command.keys if isinstance(command, pool.Redrive | pool.DropDead) else ()
    items = command.items if isinstance(command, c.Cancel | c.Reopen) else ()
    key = next(iter(keys), None) or next((item.key for item in items), None)
    return str(state.launch_name(key)) if key is not None and key[0] in state.by_number else ""


KEPT: Final = (
    c.PutJobs,
    c.Pause,
    c.Resume,
    c.Cancel,
    c.Reopen,
    c.ResetClock,
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
)
