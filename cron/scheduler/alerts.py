"""Which alerts fire and which are over: the leader's comparison of rules with State. Pure.

Theory of operation. A job is looked at when a launch of it ended such that a rule may fire
(`Outcome.marked`), and when a deadline comes. Deadlines stand in a heap: one for each instant and
length of time of rules about late launches, one for each job of rules about successes. So an
ordinary launch costs nothing, however many rules there are. What has no deadline (open batches,
queues, gates, the cell) is looked at once in a second or two, and only if a rule is about it.

The index only proposes. State opens an alert once, and closes it once, so a look too many does no
harm. A new leader looks at all that the one before may have seen and not committed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, compress, islice
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from cron.alert_rules import AlertKind, Condition, Rule
from cron.limits import ALERTS_OPEN_MAX
from cron.scheduler.tasks import TaskIndex
from cron.state import alerts as a
from cron.state import commands as c
from cron.state.launch_row import LaunchRow
from cron.state.letters import count_of
from cron.state.outcome import Outcome, Result, Verdict
from cron.state.pool import DropDead, Redrive
from cron.state.reminding import due_ms, to_tell
from cron.state.state import JobRecord, State
from launcher.protocol.names import LaunchName

RAISED_MAX: Final = 1_000
"""Subjects that one entry raises, and that it resolves: about 200 KB."""
LOOKED_AT_ONCE: Final = 1_000
"""Jobs that one plan looks at: about 0.01 s."""
OPEN_AT_ONCE: Final = 300
"""Open alerts that are looked at each second, in turn: about 5 ms."""
LOOK_MS: Final = 1_000
RUNNING_LOOK_MS: Final = 2_000
"""How often all open batches are looked at, if a rule is about long runs."""
DEAD_LOOK_MS: Final = 10_000
"""How often dead letters of queues are counted, if a rule is about them."""
REMIND_LOOK_MS: Final = 10_000
"""How often a reminder is proposed that did not come about, such as of what is muted."""
AlertCommand: TypeAlias = a.RaiseAlerts | a.ResolveAlerts | a.SendAlerts | a.RemindAlerts
_TIMED: Final = (AlertKind.LATE, AlertKind.RUNNING, AlertKind.NO_SUCCESS)
_LATE, _RUNNING, _SUCCESS = _TIMED
_EVERYTHING: Final = (a.ApplyAlerts, c.RaiseFormat, c.ResetClock, c.ResetHorizons, c.Resolve)
"""Commands after which all jobs are looked at again."""
_Deadline: TypeAlias = tuple[int, int, int]
"""When (ms), the kind, and what: an instant, or a job."""


class Observed(NamedTuple):
    """What the replica measured of the cell, and the cell's name. `measured` has, for each kind
    that the replica knows about, the subjects and their numbers, in units as in `deliveries.py`. A
    kind that is missing is not known at the moment."""

    cell: str = ""
    measured: Mapping[AlertKind, Mapping[str, int]] = MappingProxyType({})


class AlertIndex:
    """The rules of a State, as one leader's term needs them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._looks: dict[int, None] = {}  # jobs to look at
        self._late_s: deque[int] = deque()  # instants whose time is over
        self._late: Iterator[int] = iter(())  # jobs that waited at the first of these
        self._late_at: dict[int, int] = {}  # jobs that wait, and since which instant
        self._heap: list[_Deadline] = []
        self._noted: dict[tuple[int, int], None] = {}  # instants in the heap
        self._looks_ms: dict[int, int] = {}  # by job: its entry in the heap
        self._after_s: dict[AlertKind, dict[int, None]] = {kind: {} for kind in _TIMED}
        self._scan: Iterator[int] = iter(())
        self._is_scanning = False
        self._open: Iterator[tuple[str, str]] = iter(())
        self._look_ms = self._dead_ms = self._running_ms = 0
        self._dead: dict[str, int] = {}  # dead letters by queue
        self._was_full = False
        self._reminders: list[a.RemindLine] = []
        self._reminded_ms: dict[str, int] = {}  # by rule: when it is looked at again
        self._raised: dict[str, dict[str, a.Evidence]] = {}  # by the plan
        self._resolved: dict[str, dict[str, None]] = {}
        self._start()

    def _start(self) -> None:
        """Take note of all rules, deadlines and jobs."""
        state, alerts = self._state, self._state.alerts
        for kind in _TIMED:
            self._after_s[kind].clear()
        for rule in alerts.rules.values():
            if rule.condition.kind in _TIMED:
                self._after_s[rule.condition.kind][rule.condition.after_s] = None
        for own in alerts.own.values():
            for condition in own.conditions:
                if condition.kind in _TIMED:
                    self._after_s[condition.kind][condition.after_s] = None
        self._heap.clear()
        self._noted.clear()
        self._looks_ms.clear()
        self._late_s.clear()
        self._late_at.clear()
        if self._after_s[_LATE]:
            for at_s in state.due.usual:
                self._note_instant(at_s)
        self._scan = iter(list(state.by_number) if alerts.is_watching else ())
        self._is_scanning = alerts.is_watching
        self._open = iter(())

    # ---- what State says

    def follow(self, outcome: Outcome) -> None:
        """Take note of an entry."""
        self._looks.update(dict.fromkeys(outcome.marked))
        late = self._after_s[_LATE]
        for command, result in zip(outcome.commands, outcome.results, strict=True):
            if isinstance(command, c.Account):
                for line in command.lines if late else ():
                    for due in line.due:
                        self._note_instant(due.scheduled_s)
            elif not isinstance(command, c.Begin | c.Report):
                self._changed(command, result)

    def _changed(self, command: c.Command, result: Result) -> None:
        if result.verdict is not Verdict.ACCEPTED:
            return
        if isinstance(command, c.PutJobs):
            self._jobs_changed(command)
        elif isinstance(command, _EVERYTHING):
            self._start()
        elif isinstance(command, c.Pause | c.Resume):
            self._look_at(command.jobs)
        elif isinstance(command, Redrive | DropDead):
            self._looks.update((key[0], None) for key in command.keys)
            self._dead_ms = 0
        elif isinstance(command, a.MuteAlerts | a.UnmuteAlerts):
            self._open = iter(())  # look at all of them again

    def _jobs_changed(self, command: c.PutJobs) -> None:
        if command.part < command.parts:
            return
        if command.parts > 1:
            self._start()
            return
        known = len(self._after_s[_LATE])
        for job in command.jobs:
            for condition in job.alerts.conditions if job.alerts is not None else ():
                if condition.kind in _TIMED:
                    self._after_s[condition.kind][condition.after_s] = None
        if len(self._after_s[_LATE]) > known:
            self._start()  # instants that wait have one deadline more
        self._look_at((*(job.name for job in command.jobs), *command.removed))

    def _look_at(self, names: Iterable[str]) -> None:
        jobs = self._state.jobs
        self._looks.update((jobs[name].number, None) for name in names if name in jobs)

    def _note_instant(self, at_s: int) -> None:
        for after_s in self._after_s[_LATE]:
            at_ms = (at_s + after_s) * 1000
            if (at_ms, at_s) not in self._noted:
                self._noted[at_ms, at_s] = None
                heapq.heappush(self._heap, (at_ms, _LATE, at_s))

    # ---- what the plan does

    @property
    def is_behind(self) -> bool:
        """Whether it has something to look at now."""
        return bool(self._looks or self._late_s or self._is_scanning)

    def next_ms(self) -> int | None:
        """Return when it has something to look at; None for never, 0 for now."""
        if self._state.is_resolving:
            return None
        if self.is_behind:
            return 0
        return self._heap[0][0] if self._heap else None

    def plan(self, now_ms: int, tasks: TaskIndex, observed: Observed) -> list[AlertCommand]:
        """Return the commands by which alerts are raised, resolved and told now."""
        alerts = self._state.alerts
        if not (alerts.is_watching or alerts.rules or alerts.open or alerts.pending):
            self._looks.clear()
            self._late_s.clear()
            self._is_scanning = False
            return []
        self._raised, self._resolved = {}, {}
        self._take_deadlines(now_ms)
        for number in self._portion():
            record = self._state.by_number.get(number)
            if record is not None and not record.task:
                self._look(record, now_ms)
        if now_ms >= self._look_ms or now_ms < self._look_ms - LOOK_MS:
            self._look_ms = now_ms + LOOK_MS
            self._look_around(now_ms, tasks, observed.measured)
        return self._commands(now_ms, observed.cell)

    def _take_deadlines(self, now_ms: int) -> None:
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, kind, what = heapq.heappop(self._heap)
            if kind == _LATE:
                self._noted.pop((at_ms, what), None)
                if not self._late_s:
                    self._late = iter(list(self._state.due.usual.get(what, ())))
                self._late_s.append(what)
            else:
                self._looks_ms.pop(what, None)
                self._looks[what] = None

    def _portion(self) -> list[int]:
        """Return the jobs that this plan looks at."""
        if self._late_s:
            self._take_late()
        portion = list(islice(self._looks, LOOKED_AT_ONCE))
        for number in portion:
            del self._looks[number]
        if self._is_scanning:
            more = list(islice(self._scan, LOOKED_AT_ONCE - len(portion)))
            self._is_scanning = len(portion) + len(more) == LOOKED_AT_ONCE
            portion += more
        return portion

    def _take_late(self) -> None:
        """Look at some jobs whose launches wait since the first instant whose time is over."""
        state, at_s = self._state, self._late_s[0]
        waiting = state.due.usual.get(at_s, {})
        numbers = list(islice(self._late, LOOKED_AT_ONCE))
        for number in numbers:
            if number in waiting and self._is_for(number, _LATE):
                self._late_at[number] = at_s
                self._looks[number] = None
        if len(numbers) < LOOKED_AT_ONCE:
            self._late_s.popleft()
            if self._late_s:
                self._late = iter(list(state.due.usual.get(self._late_s[0], ())))

    def _is_for(self, number: int, kind: AlertKind) -> bool:
        """Whether a rule of a kind is for a job."""
        record = self._state.by_number.get(number)
        if record is None or record.task:
            return False
        return self._state.alerts.watch(record.name).has(kind)

    def _look(self, record: JobRecord, now_ms: int) -> None:
        """Compare a job with its rules."""
        alerts = self._state.alerts
        watch = alerts.watch(record.name) if record.job is not None else a.Watch()
        for rule in watch.rules:
            self._compare(rule, record.name, self._found_of(record, rule, now_ms))
        if record.name in alerts.open_of:
            known = {rule.name for rule in watch.rules}
            for name, mine in alerts.open.items():
                is_of_job = name not in known and not self._is_of_queue(name, record.name)
                if is_of_job and record.name in mine:
                    self._resolved.setdefault(name, {})[record.name] = None

    def _is_of_queue(self, name: str, subject: str) -> bool:
        """Whether an alert is about a queue, which may have the name of a job."""
        rule = self._state.alerts.rules.get(name)
        if rule is None:
            return False
        kind = rule.condition.kind
        return kind is AlertKind.QUEUE_OLDER or (kind is AlertKind.DEAD and subject in self._dead)

    def _compare(self, rule: Rule, subject: str, found: a.Evidence | None) -> None:
        """Raise or resolve the alert of a rule and a subject, if it is not as it should be."""
        known = self._state.alerts.open.get(rule.name, {}).get(subject)
        if found is not None and (known is None or not known.is_told):
            self._raised.setdefault(rule.name, {})[subject] = found
        elif found is None and known is not None:
            self._resolved.setdefault(rule.name, {})[subject] = None

    @property
    def _floor_ms(self) -> int:
        """When the life of a restored cell began: what was before is not told again."""
        restored = self._state.restored
        return restored.resolved_at_ms if restored is not None else 0

    def _found_of(self, record: JobRecord, rule: Rule, now_ms: int) -> a.Evidence | None:
        """Return why a rule about jobs fires for one, None if it does not."""
        condition, marks = rule.condition, record.marks or a.NO_MARKS
        if condition.kind is AlertKind.FAILED:
            ends = marks.failed & (1 << (condition.of or condition.count)) - 1
            count = ends.bit_count()
            if count < condition.count:
                return None
            count = count if condition.of else max(count, marks.failures)
            return a.Evidence(count, marks.since_ms, marks.launches)
        if condition.kind is AlertKind.MISSED:
            if not marks.missed:
                return None
            return a.Evidence(marks.missed, marks.since_ms, marks.launches)
        if condition.kind is AlertKind.DEAD:
            newest = list(record.dead)[-a.EVIDENCE_LAUNCHES :]
            launches = tuple(str(LaunchName(record.name, *place)) for place in newest)
            count = count_of(record) + self._dead.get(record.name, 0)  # a queue of that name
            return a.Evidence(count, 0, launches) if count else None
        if condition.kind is _LATE:
            return self._late_of(record, rule, now_ms)
        if condition.kind is _RUNNING:
            return self._running_of(record, condition.after_s, now_ms)
        return self._without_success(record, rule, now_ms)

    def _late_of(self, record: JobRecord, rule: Rule, now_ms: int) -> a.Evidence | None:
        """Return a launch that should have begun by now; or that began too late, as long as it runs
        and until one is over that began in time."""
        marks, after_s = record.marks or a.NO_MARKS, rule.condition.after_s
        known = self._state.alerts.open.get(rule.name, {}).get(record.name)
        at_s = self._waits_since(record, known)
        delay_s = -(-_delay_ms(record, at_s) // 1000)
        floor_s = max(at_s + delay_s, self._floor_ms // 1000)
        if at_s and now_ms // 1000 - floor_s >= after_s:
            name = str(LaunchName(record.name, at_s))
            return a.Evidence(now_ms // 1000 - at_s - delay_s, at_s * 1000, (name,))
        if at_s:
            self._note_look(record.number, (floor_s + after_s) * 1000)
        for row in self._begun_of(record):
            late_ms = row.begun_at_ms - row.scheduled_s * 1000
            late_ms -= _delay_ms(record, row.scheduled_s)
            if late_ms > after_s * 1000 and row.attempt == 1 and not row.trigger:
                return a.Evidence(
                    late_ms // 1000, 0, (str(LaunchName(record.name, row.scheduled_s)),)
                )
        if marks.late_ms > after_s * 1000:
            return a.Evidence(marks.late_ms // 1000, 0, marks.launches[-1:])
        return None

    def _waits_since(self, record: JobRecord, known: a.OpenAlert | None) -> int:
        """Return the instant of the oldest launch that waits and never began, 0 if there is none.
        That of a job without an alert is known already, so that not all instants are looked at."""
        state, number = self._state, record.number
        waiting = [
            row.scheduled_s
            for row in record.open.values()
            if row.key in state.due.detailed and not (row.attempt or row.trigger)
        ]
        noted_s = known.evidence.since_ms // 1000 if known is not None else 0
        at_s = self._late_at.get(number, 0) if known is None else noted_s
        if number in state.due.usual.get(at_s, ()):
            waiting.append(at_s)
        else:
            self._late_at.pop(number, None)
        if known is not None and not waiting:
            waiting += [key[1] for key in state.due.of_jobs((number,))]
        return min(waiting, default=0)

    def _running_of(self, record: JobRecord, after_s: int, now_ms: int) -> a.Evidence | None:
        """Return the launch that runs for the longest time, if that is too long."""
        before_ms = now_ms - after_s * 1000
        rows = [row for row in self._begun_of(record) if row.begun_at_ms <= before_ms]
        if not rows:
            return None
        oldest = min(rows, key=lambda row: (row.begun_at_ms, row.key))
        name = str(LaunchName(record.name, oldest.scheduled_s, oldest.trigger))
        return a.Evidence((now_ms - oldest.begun_at_ms) // 1000, oldest.begun_at_ms, (name,))

    def _begun_of(self, record: JobRecord) -> list[LaunchRow]:
        """Return the launches of a job that have begun and are not over, but for those of the life
        before a restore."""
        active = self._state.active
        rows = [
            *map(active.__getitem__, active.of_jobs((record.number,))),
            *(row for row in record.open.values() if row.key in active.detailed),
        ]
        return [row for row in rows if row.begun_at_ms >= self._floor_ms]

    def _without_success(self, record: JobRecord, rule: Rule, now_ms: int) -> a.Evidence | None:
        """Return for how long no launch of a job has succeeded, if that is too long. Time before
        the rule, before the job and in a pause does not count."""
        if record.paused is not None and record.paused.holds(now_ms):
            self._note_look(record.number, record.paused.until_ms)
            return None
        success_ms = record.marks.success_ms if record.marks is not None else 0
        rule_ms = self._state.alerts.rules_since.get(rule.name, 0)
        since_ms = max(success_ms or record.changed_ms, rule_ms, self._floor_ms)
        if record.paused is not None:
            since_ms = max(since_ms, record.paused.until_ms)
        end_ms = since_ms + rule.condition.after_s * 1000
        if now_ms < end_ms:
            self._note_look(record.number, end_ms)
            return None
        return a.Evidence((now_ms - since_ms) // 1000, since_ms)

    def _note_look(self, number: int, at_ms: int) -> None:
        """Look at a job at a time, if no earlier look is noted; 0 is no time."""
        known_ms = self._looks_ms.get(number)
        if at_ms and (known_ms is None or at_ms < known_ms):
            self._looks_ms[number] = at_ms
            heapq.heappush(self._heap, (at_ms, _SUCCESS, number))

    # ---- what is looked at once a second

    def _look_around(
        self, now_ms: int, tasks: TaskIndex, measured: Mapping[AlertKind, Mapping[str, int]]
    ) -> None:
        alerts = self._state.alerts
        if self._was_full and alerts.open_count < ALERTS_OPEN_MAX:
            self._start()  # what found no room is found again
        self._was_full = alerts.open_count >= ALERTS_OPEN_MAX
        kinds = {rule.condition.kind for rule in alerts.rules.values()}
        oldest_ms = tasks.oldest_ms() if AlertKind.QUEUE_OLDER in kinds else {}
        for rule in alerts.rules.values():
            kind = rule.condition.kind
            if kind is AlertKind.QUEUE_OLDER:
                self._compare_all(rule, self._old_queues(rule, now_ms, oldest_ms))
            elif kind is AlertKind.GATE_OPEN:
                self._compare_all(rule, self._old_gates(rule, now_ms))
            elif kind is AlertKind.DEAD:
                self._look_at_dead(rule, now_ms)
            elif kind.is_of_cell and kind in measured:
                self._compare_all(rule, _found_in_cell(rule, measured[kind]))
        if self._after_s[_RUNNING] and now_ms >= self._running_ms:
            self._running_ms = now_ms + RUNNING_LOOK_MS
            self._look_at_running(now_ms)
        self._look_at_open(now_ms)
        self._find_reminders(now_ms)

    def _look_at_running(self, now_ms: int) -> None:
        """Note the jobs to look at of which a launch runs for long."""
        before_ms = now_ms - min(self._after_s[_RUNNING]) * 1000
        for record in self._state.executors.values():
            for batch in record.batches.values():
                if batch.at_ms > before_ms:
                    continue
                detailed = (row.number for row in batch.detailed.values())
                for number in chain(compress(batch.numbers, batch.states), detailed):
                    if self._is_for(number, _RUNNING):
                        self._looks[number] = None

    def _compare_all(self, rule: Rule, found: Mapping[str, a.Evidence]) -> None:
        """Compare a rule with all subjects for which it fires."""
        for subject, evidence in found.items():
            self._compare(rule, subject, evidence)
        for subject in self._state.alerts.open.get(rule.name, ()):
            if subject not in found:
                self._compare(rule, subject, None)

    def _old_queues(
        self, rule: Rule, now_ms: int, oldest_ms: Mapping[str, int]
    ) -> dict[str, a.Evidence]:
        matches, found = a.matcher(rule.subjects), dict[str, a.Evidence]()
        for name, at_ms in oldest_ms.items():
            since_ms = max(at_ms, self._floor_ms)
            if now_ms - since_ms >= rule.condition.after_s * 1000 and matches(name):
                found[name] = a.Evidence((now_ms - since_ms) // 1000, since_ms)
        return found

    def _old_gates(self, rule: Rule, now_ms: int) -> dict[str, a.Evidence]:
        found: dict[str, a.Evidence] = {}
        for number, gate in self._state.gates.items():
            since_ms = max(gate.since_ms, self._floor_ms)
            if gate.holds(now_ms) and now_ms - since_ms >= rule.condition.after_s * 1000:
                evidence = a.Evidence((now_ms - since_ms) // 1000, since_ms)
                found[f"{a.SELF}/gate-{number}"] = evidence
        return found

    def _look_at_dead(self, rule: Rule, now_ms: int) -> None:
        """Compare a rule with the queues that have dead letters; jobs are looked at on their
        own."""
        state, matches = self._state, a.matcher(rule.subjects)
        if now_ms >= self._dead_ms:
            self._dead_ms = now_ms + DEAD_LOOK_MS
            self._dead = {}
            for key in state.dead:
                record = state.by_number[key[0]]
                if record.task:
                    queue = record.name.partition(":")[0]
                    self._dead[queue] = self._dead.get(queue, 0) + 1
        for queue, count in self._dead.items():
            if matches(queue):
                self._compare(rule, queue, a.Evidence(count))
        for subject in state.alerts.open.get(rule.name, ()):
            is_there = subject in self._dead and matches(subject)
            if not is_there and subject not in state.jobs:
                self._compare(rule, subject, None)

    def _look_at_open(self, now_ms: int) -> None:
        """Look at some of the open alerts: of late and long launches, of rules that are gone, and
        of those that were muted."""
        state = self._state
        portion = list(islice(self._open, OPEN_AT_ONCE))
        if not portion:
            self._open = iter([(rule, subject) for rule, subject, _ in state.alerts.alerts()])
            portion = list(islice(self._open, OPEN_AT_ONCE))
        for rule_name, subject in portion:
            record, rule = state.jobs.get(subject), state.alerts.rule(rule_name)
            if record is not None:
                self._look(record, now_ms)
            elif rule is None or (a.is_of_jobs(rule.condition.kind) and subject not in self._dead):
                self._resolved.setdefault(rule_name, {})[subject] = None

    def _commands(self, now_ms: int, cell: str) -> list[AlertCommand]:
        alerts, commands = self._state.alerts, list[AlertCommand]()
        resolved = [
            a.ResolveLine(rule, tuple(subjects)) for rule, subjects in self._first(self._resolved)
        ]
        if resolved:
            commands.append(a.ResolveAlerts(tuple(resolved), cell))
        raised = [
            a.RaiseLine(
                rule, tuple(subjects), tuple(self._raised[rule][subject] for subject in subjects)
            )
            for rule, subjects in self._first(self._raisable(now_ms))
        ]
        if raised:
            commands.append(a.RaiseAlerts(tuple(raised), cell))
        pending = tuple(
            (rule, channel)
            for rule, channel in alerts.pending
            if now_ms >= alerts.outgoing[rule][channel].sent_ms + a.REST_MS
        )
        if pending:
            commands.append(a.SendAlerts(pending, cell))
        if self._reminders:
            commands.append(a.RemindAlerts(tuple(self._reminders), cell))
            self._reminders = []
        return commands

    def _find_reminders(self, now_ms: int) -> None:
        """Note the rules of whose open alerts people are to be reminded."""
        alerts = self._state.alerts
        self._reminded_ms = {
            name: at_ms for name, at_ms in self._reminded_ms.items() if name in alerts.open
        }
        for name in alerts.open:
            rule = alerts.rule(name)
            at_ms = due_ms(alerts, rule) if rule is not None else None
            if rule is None or at_ms is None or now_ms < max(at_ms, self._reminded_ms.get(name, 0)):
                continue
            self._reminded_ms[name] = now_ms + REMIND_LOOK_MS
            told = to_tell(alerts, rule, alerts.muted(now_ms))
            if told:
                subject, alert = told[0]
                evidence = self._found_now(rule, subject, now_ms) or alert.evidence
                self._reminders.append(a.RemindLine(name, subject, evidence))

    def _found_now(self, rule: Rule, subject: str, now_ms: int) -> a.Evidence | None:
        """Return what a rule about jobs finds of one now, None if it cannot be told here."""
        record = self._state.jobs.get(subject)
        if record is None or record.job is None or not a.is_of_jobs(rule.condition.kind):
            return None
        return self._found_of(record, rule, now_ms)

    def _raisable(self, now_ms: int) -> dict[str, list[str]]:
        """Return what was found to fire, without alerts that are open and muted, and without new
        ones if there is no room."""
        alerts = self._state.alerts
        is_muted, is_full = alerts.muted(now_ms), alerts.open_count >= ALERTS_OPEN_MAX
        return {
            rule: [
                subject
                for subject in found
                if not (is_muted(subject) if subject in alerts.open.get(rule, ()) else is_full)
            ]
            for rule, found in self._raised.items()
        }

    def _first(self, found: Mapping[str, Iterable[str]]) -> Iterator[tuple[str, list[str]]]:
        """Yield the subjects of each rule, RAISED_MAX at most in all; the next plan looks at the
        others again."""
        left, jobs = RAISED_MAX, self._state.jobs
        for rule, subjects in found.items():
            every = iter(subjects)
            portion = list(islice(every, left))
            left -= len(portion)
            self._looks.update((jobs[name].number, None) for name in every if name in jobs)
            if portion:
                yield rule, portion


def _found_in_cell(rule: Rule, measured: Mapping[str, int]) -> dict[str, a.Evidence]:
    """Return the subjects for which a rule about the cell fires."""
    return {
        f"{a.SELF}/{name}": a.Evidence(value)
        for name, value in measured.items()
        if _fires(rule.condition, value)
    }


def _fires(condition: Condition, value: int) -> bool:
    if condition.kind is AlertKind.CLOCK_OFF:
        return abs(value) >= condition.after_s * 1000
    if condition.kind is AlertKind.CERTIFICATE_ENDING:
        return value <= condition.after_s
    if condition.kind is AlertKind.DISK_FILLING:
        return value >= condition.count
    return value >= condition.after_s


def _delay_ms(record: JobRecord, at_s: int) -> int:
    """Return how long the jitter of a job delays the launch of an instant."""
    return record.job.delay_ms(at_s) if record.job is not None else 0
