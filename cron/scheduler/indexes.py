"""The leader's indexes of State: the due heap and the queues.

They are built at the start of a term. Each entry of the term updates what it has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, compress, filterfalse, islice, product
from typing import Final

from cron.scheduler.alerts import AlertCommand, AlertIndex, Observed
from cron.scheduler.chains import ChainCommand, ChainIndex
from cron.scheduler.due import DueHeap
from cron.scheduler.far_tasks import USUAL, SpillSettings
from cron.scheduler.forgetting import Forgetting
from cron.scheduler.queues import Queues
from cron.scheduler.tasks import TaskCommand, TaskIndex
from cron.state import commands as c
from cron.state.chains import ReleaseTasks
from cron.state.launch_row import LaunchRow
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.pool import CloseGate, LiftGates, SetLimits
from cron.state.state import State
from cron.state.tasks import PutQueues, ReadyTasks

LET_GO_AT_ONCE: Final = 5_000
"""Launches of removed jobs that one turn takes out of the queues: about 0.03 s."""


class LeaderIndexes:
    """The due heap and the queues of one term."""

    def __init__(self, state: State, spill: SpillSettings = USUAL) -> None:
        self._state = state
        self._spill = spill
        self.queues = Queues(state)
        self.due_heap = DueHeap(state, self.queues)
        self.forgetting = Forgetting(state)
        self.tasks = TaskIndex(state, spill)
        self.chains = ChainIndex(state)
        self.alerts = AlertIndex(state)  # it follows entries by itself, once there are alerts
        self._leaving: Iterator[LaunchRow] = iter(())  # what waits of removed jobs

    def let_go(self) -> bool:
        """Take a portion of the waiting launches of removed jobs out of the queues; return whether
        none is left. Plan nothing before that: to find these launches one by one costs ten times as
        much."""
        portion = list(islice(self._leaving, LET_GO_AT_ONCE))
        for launch in portion:
            self.queues.set_aside(launch)
        if len(portion) == LET_GO_AT_ONCE:
            return False
        self._leaving = iter(())
        return True

    def follow(self, outcome: Outcome) -> None:
        """Update the indexes after an entry."""
        self.queues.applied(outcome)
        has_tasks = outcome.moved_tasks or outcome.gone_jobs or outcome.moved_groups
        if has_tasks or self.tasks.unbegun:
            self.tasks.follow(outcome)
            self.queues.jobs_gone(outcome.gone_jobs)
            self.chains.follow(outcome)
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Begin):
                for spec in command.batches:
                    self.due_heap.began(accumulate(spec.jobs), self._state.at_ms // 1000)
                if result.items:  # what State has not accepted goes back, which the plan has moved
                    rows = [key for spec in command.batches for key, _, _ in spec.rows()]
                    self.queues.follow(dict.fromkeys(compress(rows, result.items)))
            elif isinstance(command, c.Account):
                for line, verdict in zip(command.lines, result.items, strict=True):
                    numbers = [*accumulate(line.jobs)]
                    if verdict or self.due_heap.refused:
                        refusal = Verdict(verdict).label if verdict else ""
                        self.due_heap.answered(numbers, refusal)
                    # What has begun by this very entry has moved; what entered its flow is known.
                    waiting, entered = self._state.due, self.queues.entered
                    for due in line.due if verdict or waiting.usual or waiting.detailed else ():
                        at_s = due.scheduled_s
                        if verdict:
                            keys = [*product(numbers, (at_s,), (0,))]
                        else:
                            found = waiting.of_instant(at_s, numbers)
                            keys = [*filterfalse(entered.__contains__, found)]
                        self.queues.follow(keys)
            elif not isinstance(command, c.Report):
                self._changed(command, result)

    def _changed(self, command: c.Command, result: Result) -> None:
        """Update the indexes after a command that is not part of each turn."""
        if isinstance(command, c.Skip | c.Cancel):
            keys = [item.key for item in command.items]
            self.queues.follow(compress(keys, result.items))
        elif isinstance(command, c.PutJobs):
            self._jobs_changed(command, result)
        elif isinstance(command, c.Pause | c.Resume):
            self._look_again(command.jobs)
        elif isinstance(command, SetLimits):
            for item in command.items:
                self.queues.fair.set_limits(item.scope, self._state.limits.get(item.scope))
        elif isinstance(command, CloseGate | LiftGates):
            for number in self.queues.gates.changed(self.queues.by_job):
                self.queues.look_again(number)
        elif isinstance(command, c.Resolve | c.ResetClock | c.ResetHorizons):
            # Horizons have moved, and what was in doubt is decided.
            self.queues = Queues(self._state)
            self.due_heap = DueHeap(self._state, self.queues)
        elif isinstance(command, ReadyTasks):
            self.tasks.put_back(compress(command.numbers, result.items))
        elif isinstance(command, ReleaseTasks):
            self.chains.put_back(compress(command.numbers, result.items))
        # Handlers and priorities may have changed, the time is another one, or what was planned
        # could not be appended in the format of before.
        if isinstance(command, PutQueues | c.ResetClock | c.RaiseFormat):
            self.tasks = TaskIndex(self._state, self._spill)
            self.chains = ChainIndex(self._state)

    def plan_tasks(self, now_ms: int, most: int) -> list[TaskCommand | ChainCommand]:
        """Return the commands by which tasks are released and become ready, `most` at most, and by
        which tasks and groups are forgotten."""
        if self.tasks.is_stale:
            self.tasks = TaskIndex(self._state, self._spill)
        if self.chains.is_stale:
            self.chains = ChainIndex(self._state)
        chains = self.chains.plan(now_ms, most)
        return [*chains, *self.tasks.plan(now_ms, self.queues.slots_of, most)]

    def plan_alerts(self, now_ms: int, observed: Observed) -> list[AlertCommand]:
        """Return the commands by which alerts are raised, resolved and told."""
        return self.alerts.plan(now_ms, self.tasks, observed)

    def next_ms(self) -> int | None:
        """Return when there may be work that no entry brings about; None for never, 0 for now."""
        times_ms = (
            self.queues.next_ms(),
            self.tasks.next_ms(),
            self.chains.next_ms(),
            self.alerts.next_ms(),
        )
        return min((one for one in times_ms if one is not None), default=None)

    def _jobs_changed(self, command: c.PutJobs, result: Result) -> None:
        if result.verdict is not Verdict.ACCEPTED or command.part < command.parts:
            return
        removed = [self._state.jobs[name].number for name in command.removed]
        if removed:
            by_job = self.queues.by_job
            waiting = (one for number in removed for one in [*by_job.of(number).values()])
            self._leaving = chain(self._leaving, waiting)
            for number in removed:
                self.queues.job_removed(number)
        if command.parts > 1:
            self.due_heap = DueHeap(self._state, self.queues)
            live = [name for name, one in self._state.jobs.items() if one.job is not None]
            self._look_again(live)
            return
        names = [job.name for job in command.jobs] + list(command.removed)
        records = [self._state.jobs[name] for name in names]
        for record in records:
            self.due_heap.put(record)
        # `let_go` comes to the others.
        self._look_again(one.name for one in records if one.job is not None)

    def _look_again(self, names: Iterable[str]) -> None:
        for name in names:
            record = self._state.jobs.get(name)
            if record is not None:
                self.queues.look_again(record.number)
