"""The replicated state machine: an entry in, an outcome out.

Rule 1: everything that changes State is in this file and its tables (`jobs.py`, `launches.py`).
Rule 2: it sees State and the entry, nothing else: no clock, no chance, no I/O, no schedules.
Rule 3: bad or stale input is answered, the same on every replica, and changes nothing; an
exception stops the replica (SRE book ch. 24, "Storing the state").
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from cron.state import (
    access,
    accounts,
    alerting,
    alerts,
    begins,
    calendaring,
    calendars,
    chains,
    clock,
    ends,
    followed,
    following,
    forgetting,
    granting,
    groups,
    jobs,
    keeping,
    launches,
    pausing,
    pool,
    pooling,
    recovery,
    reminding,
    revisions,
    spilling,
    tasking,
    tasks,
    watching,
)
from cron.state import commands as c
from cron.state.changed import looks
from cron.state.codec import decode_entry
from cron.state.context import Context
from cron.state.formats import has_marks
from cron.state.image import check_format
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.state import LeaderTerm, State
from launcher.protocol.names import SCHEDULED_S_MAX

_encoder = msgspec.msgpack.Encoder()
LEADER_TERMS_KEPT: Final = 256
"""Changes of leader that stories know of; at one a day the better part of a year."""
_AT_MS_MAX: Final = SCHEDULED_S_MAX * 1000
"""Later times have no names, and what is reckoned from them would not fit into 64 bits."""


class Machine:
    """State and the only way to change it."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state or State()

    def apply(self, term: int, index: int, data: bytes) -> Outcome:
        """Apply the entry at (term, index) and return what became of each of its commands.

        Raises:
            InvariantViolated: the entry cannot be read by this program; the replica must stop.
        """
        entry = decode_entry(data)
        state = self.state
        state.term, state.index = term, index
        state.at_ms = max(state.at_ms, min(entry.at_ms, _AT_MS_MAX))
        context = Context(state, entry.epoch, state.at_ms, index)
        # Rule R3: it is of the leader that State knows, or the claim of a newer one.
        is_claim = bool(entry.commands) and isinstance(entry.commands[0], c.Claim)
        is_current = entry.epoch > state.epoch if is_claim else entry.epoch == state.epoch
        results: list[Result] = []
        if state.over_jobs and is_current:
            tasking.drop_jobs(context)
        for command in entry.commands if is_current else ():
            if isinstance(command, _LAUNCHING) and state.is_resolving:
                results.append(_not_resolved(command))
                continue
            is_kept = isinstance(command, revisions.KEPT)
            before = looks(state, command) if is_kept else {}
            result = _TABLE[type(command)](context, command)
            results.append(result)
            if is_kept:
                revisions.note(context, command, result, before)
        if context.task_ends or context.over_tasks or context.amended_tasks:
            tasking.settle(context)
        if state.groups.moved:
            following.settle_groups(context)
        if state.followers and context.ended:
            followed.note_ends(context)
        if state.alerts.is_watching and context.ended:
            watching.note_ends(context)
        if state.pausing and context.ended:
            pausing.note_ends(context)
        if context.seals:  # all rows of an entry are on one side of it
            context.sealed += state.history.seal(entry.epoch.generation, index, state.at_ms)
        outcome = Outcome(
            Verdict.ACCEPTED if is_current else Verdict.STALE_EPOCH,
            entry.epoch,
            entry.commands if is_current else (),
            tuple(results),
            tuple(context.ended),
            tuple(context.sealed),
            context.begun,
            context.moved,
            context.begun_rows,
            context.ended_rows,
            context.moved_tasks,
            context.gone_jobs,
            context.moved_groups,
            context.following,
            context.marked,
            tuple(context.paused),
        )
        # It covers the entries and all that they brought about, rows and chunks as history keeps
        # them.
        rolling = hashlib.blake2b(state.digest, digest_size=16)
        rolling.update(data)
        rolling.update(_encoder.encode(outcome.results))
        rolling.update(context.encoded)
        state.digest = rolling.digest()
        return outcome


def _not_resolved(command: c.Command) -> Result:
    asked: Sequence[object] = getattr(command, "items", ())
    if isinstance(command, c.Account):
        asked = command.lines
    elif isinstance(command, c.Begin):
        asked = [row for spec in command.batches for row in spec.jobs]
    elif isinstance(command, pool.Redrive):
        asked = command.keys
    elif isinstance(command, tasks.SubmitTasks):
        asked = command.tasks
    elif isinstance(command, tasks.RunTasks):
        asked = command.names
    elif isinstance(command, alerts.RaiseAlerts | alerts.ResolveAlerts):
        asked = [subject for line in command.lines for subject in line.subjects]
    elif isinstance(command, alerts.RemindAlerts):
        asked = command.lines
    elif isinstance(command, alerts.SendAlerts):
        asked = command.outgoing
    elif isinstance(command, tasks.ReadyTasks | chains.ReleaseTasks):
        asked = command.numbers
    return Result(Verdict.RESOLVING, tuple(Verdict.RESOLVING for _ in asked))


def _claim(context: Context, command: c.Claim) -> Result:
    if not context.state.leader_terms and command.format:
        _set_format(context.state, command.format)
    context.state.epoch = context.epoch
    context.state.tzdata = command.tzdata
    context.state.staged.clear()
    context.state.leader_terms.append(LeaderTerm(context.index, context.at_ms, context.epoch))
    del context.state.leader_terms[:-LEADER_TERMS_KEPT]
    _mark(context.state, command)
    return Result(Verdict.ACCEPTED)


def _mark(state: State, command: c.Claim | c.RaiseFormat) -> None:
    """Take what the leader of the newest term drew."""
    if not has_marks(state.format):
        return
    state.leader_terms[-1:] = [
        msgspec.structs.replace(term, mark=term.mark or command.mark)
        for term in state.leader_terms[-1:]
    ]
    state.order_key = state.order_key or command.order_key
    state.note_marks()


def _raise_format(context: Context, command: c.RaiseFormat) -> Result:
    if command.format <= context.state.format:
        return Result(Verdict.ALREADY)
    _set_format(context.state, command.format)
    _mark(context.state, command)
    return Result(Verdict.ACCEPTED)


def _set_format(state: State, format_: int) -> None:
    check_format(format_)
    state.format = format_


_LAUNCHING: Final = (
    c.PutJobs,
    c.Account,
    c.Begin,
    c.Trigger,
    c.Reopen,
    pool.Redrive,
    tasks.SubmitTasks,
    tasks.RunTasks,
    tasks.ReadyTasks,
    chains.ReleaseTasks,
    groups.CloseGroups,
    alerts.RaiseAlerts,
    alerts.ResolveAlerts,
    alerts.SendAlerts,
    alerts.RemindAlerts,
    alerts.ApplyAlerts,
    alerts.TestAlert,
)
"""What could lead to a launch, and waits until a restored cell knows what ran (rule R13)."""

_TABLE: Final[dict[type, Callable[[Context, Any], Result]]] = {
    c.Claim: _claim,
    c.RaiseFormat: _raise_format,
    c.PutJobs: jobs.put_jobs,
    c.Forget: forgetting.forget,
    c.Pause: jobs.pause,
    c.Resume: jobs.resume,
    c.Account: accounts.account,
    c.Begin: begins.begin,
    c.Report: ends.report,
    c.Skip: launches.skip,
    c.Cancel: launches.cancel,
    c.Trigger: launches.trigger,
    c.Reopen: launches.reopen,
    c.ExecutorJoined: jobs.executor_joined,
    c.ExecutorLeft: jobs.executor_left,
    c.Seal: keeping.seal,
    c.SnapshotAt: keeping.snapshot_at,
    c.BackedUp: keeping.backed_up,
    c.Retire: keeping.retire,
    c.Recover: recovery.recover,
    c.Resolve: recovery.resolve,
    c.NoteChange: revisions.note_change,
    c.ResetClock: clock.reset_clock,
    c.ResetHorizons: clock.reset_horizons,
    c.NoteEnds: followed.note_read,
    pool.SetLimits: pooling.set_limits,
    pool.ForgetDebts: pooling.forget_debts,
    pool.CloseGate: pooling.close_gate,
    pool.LiftGates: pooling.lift_gates,
    pool.Redrive: pooling.redrive,
    pool.DropDead: pooling.drop_dead,
    pool.Drain: pooling.drain,
    tasks.SubmitTasks: tasking.submit,
    tasks.CancelTasks: tasking.cancel,
    tasks.RescheduleTasks: tasking.reschedule,
    tasks.RunTasks: tasking.run,
    tasks.ReadyTasks: tasking.ready,
    tasks.ForgetTasks: tasking.forget,
    tasks.SpillTasks: spilling.spill,
    tasks.LoadTasks: spilling.load,
    tasks.PutQueues: tasking.put_queues,
    chains.ReleaseTasks: following.release,
    groups.CloseGroups: following.close_groups,
    groups.ForgetGroups: following.forget_groups,
    access.GrantRole: granting.grant_role,
    access.RevokeRole: granting.revoke_role,
    access.CreateToken: granting.create_token,
    access.RevokeTokens: granting.revoke_tokens,
    access.RevokeCertificates: granting.revoke_certificates,
    access.GrantExecutor: granting.grant_executor,
    access.RevokeExecutor: granting.revoke_executor,
    access.CameFrom: granting.came_from,
    alerts.ApplyAlerts: alerting.apply_alerts,
    alerts.MuteAlerts: alerting.mute,
    alerts.UnmuteAlerts: alerting.unmute,
    alerts.TestAlert: alerting.test_alert,
    alerts.RaiseAlerts: alerting.raise_alerts,
    alerts.ResolveAlerts: alerting.resolve_alerts,
    alerts.SendAlerts: alerting.send_alerts,
    alerts.RemindAlerts: reminding.remind_alerts,
    calendars.PutCalendar: calendaring.put_calendar,
    calendars.RemoveCalendar: calendaring.remove_calendar,
}
