"""What is replicated: jobs, open launches, executors, the newest history, and a digest of it all.

Only `machine.py` and its tables (`jobs.py`, `launches.py`) change these objects; everybody else
reads. Dicts are in log order; there are no sets, no floats and no clocks here.
"""

from __future__ import annotations

import weakref
from array import array
from bisect import bisect_left, insort
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Final, Protocol

import msgspec

from cron.access import AccessRules
from cron.job import Job, Overlap, Schedule
from cron.launch_state import ACTIVE, LaunchState
from cron.limits import LOST_KEPT
from cron.scopes import Scope
from cron.state.alerts import AlertState, Marks, is_own
from cron.state.archive import History
from cron.state.batches import COLUMNS, Batch
from cron.state.calendars import Calendar
from cron.state.chains import HoldTable
from cron.state.commands import LEAST_FORMAT, Instants, Key
from cron.state.groups import GroupTable
from cron.state.known_ends import KnownEnds
from cron.state.launch_index import LaunchIndex
from cron.state.launch_row import LaunchRow
from cron.state.letters import Piles, Repeats
from cron.state.pool import Gate, Limits, OpenedGate
from cron.state.rows import NO_ROW, Part, Place, Row
from cron.state.spilled import SpilledTasks
from cron.state.tasks import QueueRecord, TaskTable, tenant_of
from launcher.protocol.names import TASK_MARK, LaunchName
from launcher.protocol.work import Epoch

_revision: Final = attrgetter("revision")
STRAGGLERS_SHARE: Final = 64
"""Of so many rows of a batch the last one becomes an object of its own, and the columns go."""


class Paused(msgspec.Struct, frozen=True, array_like=True):
    """Why a job does not run. `until_ms` is 0 for "until somebody resumes it"."""

    reason: str
    by: str
    since_ms: int
    until_ms: int

    def holds(self, now_ms: int) -> bool:
        """Whether it still holds at `now_ms`."""
        return self.until_ms == 0 or now_ms < self.until_ms


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Instants in (from_s, to_s] belong to this revision and to those after it that changed neither
    schedule nor overlap; `to_s` is 0 while it is the current."""

    revision: int
    from_s: int
    to_s: int
    schedule: Schedule
    overlap: Overlap = Overlap.ALLOW


class Earlier(msgspec.Struct, frozen=True, array_like=True):
    """What a job was in a revision, who applied that and when. The set of jobs had revision `until`
    when another one followed. `size` is that of the job in bytes."""

    revision: int
    at_ms: int
    by: str
    job: Job
    until: int
    size: int


class JobRecord(msgspec.Struct, array_like=True):
    """A job, its past and its bookkeeping. When the job is deleted it stays while anything of the
    job is open, dead or lost, and while history has rows of its time (rule R2).

    `horizon_s`: every instant up to it has its row. `local_horizon_min`: the newest nominal local
    time that was accounted, for fixed-time jobs (rule R11). `held_until_ms`: a lost launch may be
    running until then (rule R6). `ended_index`: log index of the newest end of one of its launches.
    `held`: lost launches of a job with `concurrency` may be running: how many until when, in ms.
    `forgotten_s`: the schedules of instants up to it are not known any more.
    """

    number: int
    name: str
    source: str
    revision: int
    horizon_s: int
    job: Job | None
    spans: list[Span]
    local_horizon_min: int = -1
    paused: Paused | None = None
    held_until_ms: int = 0
    trigger_s: int = 0
    trigger_n: int = 0
    ended_index: int = 0
    open: dict[tuple[int, int], LaunchRow] = {}  # (scheduled_s, trigger) -> row
    recovered: int = 0  # the generation in which all that ran before was recorded (rule R13)
    dead: dict[tuple[int, int], Row] = {}  # (scheduled_s, trigger) -> what was given up
    removed_by: str = ""  # of a removed job of which launches waited
    forgotten_s: int = 0
    held: dict[int, int] = {}
    spent: list[int] = []  # instants after the horizon that have begun, oldest first (rule R10)
    triggered_s: int = 0  # the newest second of a manual launch before the clock was reset
    changed_by: str = ""  # who applied the newest change of it, and when
    changed_ms: int = 0
    task: int = 0  # the number of the task whose job it is
    ends: KnownEnds | None = None  # of its launches, while other jobs follow it
    marks: Marks | None = None  # how its newest launches ended, while rules of alerts need it
    earlier: list[Earlier] = []  # what it was before its newest changes, oldest first
    failed_in_a_row: int = 0  # of a job with `pause_after`: launches since one that succeeded
    repeats: dict[tuple[int, int], Repeats] = {}  # letters that stand for several launches

    def held_slots(self, now_ms: int) -> int:
        """Return how many lost launches of the job may be running; for one with `concurrency`."""
        return sum(count for until_ms, count in self.held.items() if until_ms > now_ms)


class ExecutorRecord(msgspec.Struct, array_like=True, dict=True):
    """One (executor id, ledger): launches begin on its number.

    Rows count what one entry begins on one executor, in the order of its Begin: so an attempt, or a
    part of one, is known at its executor by `begun_index` and row.
    """

    number: int
    executor: str
    ledger: str
    slots: int
    host: str
    joined_ms: int
    recalled: int = 0  # the generation in which its ledger reported all it remembers (rule R13)
    version: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0
    drained_by: str = ""  # who has it drained: it gets no more work
    drained_ms: int = 0

    def __post_init__(self) -> None:
        self.batches: dict[int, Batch] = {}  # by log index of the Begin: those with an open row

    def count_open(self, through_index: int | None = None) -> int:
        """Return how many launches are begun or launched on it, of all or of those that were begun
        up to a log index."""
        return sum(
            batch.usual + len(batch.detailed)
            for index, batch in self.batches.items()
            if through_index is None or index <= through_index
        )

    def launches(self) -> Iterator[LaunchRow]:
        """Yield what is begun or launched on it; to be read only."""
        for batch in self.batches.values():
            yield from batch.launches()

    def find(self, begun_index: int, row: int) -> LaunchRow | None:
        """Return the open launch that is this row of what one entry began here; read only."""
        batch = self.batches.get(begun_index)
        return None if batch is None else batch.launch(row)


class Changed(msgspec.Struct, frozen=True, array_like=True):
    """An object of a change, in short what it was before, and what it is after; "" is nothing.
    `fields` are those of a job's definition that changed: name, before, after."""

    name: str
    before: str
    after: str
    fields: tuple[tuple[str, str, str], ...] = ()


class Revision(msgspec.Struct, frozen=True, array_like=True):
    """A change that a person made: the entry, the log's time, who, which command, and what it was
    about. `subject` names a source, or the first of `count` jobs, launches, scopes or gates.
    `origin` says how the person was known, and from where the call came. `changed` are the first
    objects that it changed."""

    index: int
    at_ms: int
    by: str
    command: str
    subject: str
    count: int
    origin: str = ""
    changed: tuple[Changed, ...] = ()


class LeaderTerm(msgspec.Struct, frozen=True, array_like=True):
    """Since which entry, and when by its own clock, an epoch has been the newest. `mark` is what
    its leader drew, empty before format 12."""

    index: int
    at_ms: int
    epoch: Epoch
    mark: bytes = b""


class Reset(msgspec.Struct, frozen=True, array_like=True):
    """The cell's time was set back at a log index, from one time to another (rule R10)."""

    index: int
    from_ms: int
    to_ms: int
    by: str

    def moved(self, at_ms: int) -> int:
        """Return a time of the wrong clock as one after the reset: as far ahead, or now."""
        return self.to_ms + max(0, at_ms - self.from_ms)


class Restored(msgspec.Struct, frozen=True, array_like=True):
    """From what the cell was restored, and whether what ran since is known (rule R13).

    `index` and `taken_ms` are of the snapshot in the life of the cell before, `generation` is that
    of this life; where that one had not resolved either, `index` is that from which it began.
    `resolved_at_ms` is 0 until every instant up to `resolved_s` has its row.
    """

    generation: int
    index: int
    taken_ms: int
    restored_ms: int
    by: str = ""
    resolved_at_ms: int = 0
    resolved_s: int = 0
    strangers: tuple[str, ...] = ()  # jobs that the snapshot did not know, recorded by name


class Keeps(Protocol):
    """Who wants to know a job as it was."""

    @property
    def is_open(self) -> bool:
        """Whether it still does."""

    def keep(self, record: JobRecord) -> bool:
        """Note `record`, which is about to change; return whether it wants to know of more."""


class State(msgspec.Struct, array_like=True, dict=True, eq=False):
    """Everything that the replicas agree on, after the entry at (term, index).

    An image has these fields as they are; append at the end with a default. What `__post_init__`
    adds is in it in another form, or follows from the rest.
    """

    term: int = 0
    index: int = 0
    digest: bytes = bytes(16)
    at_ms: int = 0
    epoch: Epoch = Epoch()
    tzdata: str = ""
    format: int = LEAST_FORMAT  # what entries and image mean; raised by `RaiseFormat`
    catalog: int = 0  # revision of the set of jobs
    job_numbers: int = 0  # given so far; none is given twice
    forgotten_s: int = 0  # newest time to which a removed job was known that is forgotten
    executor_numbers: int = 0
    gate_numbers: int = 0
    executors: dict[int, ExecutorRecord] = {}
    leader_terms: list[LeaderTerm] = []  # the newest, oldest first, for stories
    revisions: list[Revision] = []  # the newest, oldest first
    requests: dict[str, Key] = {}  # manual triggers by request id, oldest first
    staged: dict[str, list[tuple[Job, ...]]] = {}  # parts of a change under way
    restored: Restored | None = None
    resets: list[Reset] = []
    limits: dict[Scope, Limits] = {}
    gates: dict[int, Gate] = {}
    opened: list[OpenedGate] = []  # gates that let wait, the one opened last at the end
    budgets: dict[str, int] = {}  # tenant -> thousandths of retries it is ahead
    history: History = msgspec.field(default_factory=History)
    task_numbers: int = 0  # given so far; none is given twice
    queues: dict[str, QueueRecord] = {}
    queues_revision: int = 0  # counts the changes of declared queues
    access: AccessRules = msgspec.field(default_factory=AccessRules)
    alerts: AlertState = msgspec.field(default_factory=AlertState)
    calendars: dict[str, Calendar] = {}
    order_key: bytes = b""  # of proofs of orders; no executor ever gets it

    def __post_init__(self) -> None:
        self.jobs: dict[str, JobRecord] = {}
        self.by_number: dict[int, JobRecord] = {}  # in ascending order
        self.own: dict[int, JobRecord] = {}  # those of the cell itself
        self.due = LaunchIndex[Instants](self._due_row)
        self.active = LaunchIndex[Batch](
            lambda number, at_s, batch: self._begun_row(batch, batch.find(number, at_s))
        )
        self.limited: dict[int, None] = {}  # jobs that limit how many of their launches run
        self.measured: dict[str, None] = {}  # jobs that have metrics of their own
        self.pausing: dict[str, None] = {}  # jobs that pause themselves after failures
        self.failing: dict[str, None] = {}  # those of them whose newest launch failed
        self.running: dict[int, int] = {}  # of each of these that has active launches, how many
        self.delays_s: dict[int, int] = {}  # `deadline_s` of jobs whose launches begin in lines
        # The jobs of which a lost launch may be running, or instants after the horizon have begun;
        # and some of which that is no longer so.
        self.doubtful: dict[int, None] = {}
        self.by_ledger = {(one.executor, one.ledger): one for one in self.executors.values()}
        # By launch and attempt, the oldest first. Of a dict whose first items went one by one, to
        # find the next one is slow.
        self.lost: OrderedDict[tuple[Key, int], Row] = OrderedDict()
        self.lost_at: dict[Place, tuple[Key, int]] = {}  # the same, by where it was begun
        self.dead: dict[Key, Row] = {}  # in the order of dying
        self.piles = Piles()  # those of tasks, by tenant
        # By tenant: the launches that wait until it may have another retry, with when they have
        # rested, in this order.
        self.unpaid: dict[str, list[tuple[int, Key]]] = {}
        self.imagings: list[weakref.ref[Keeps]] = []  # images of this State that are under way
        self.groups = GroupTable()
        self.holds = HoldTable()
        self.tasks = TaskTable(self.queues, self.groups, self.holds)
        self.tasks_by_number = self.tasks.by_number
        self.spilled = SpilledTasks(self.history.spilled)
        # Jobs of tasks of which nothing may be open, dead or lost; the next entry looks at them.
        self.over_jobs: dict[int, None] = {}
        # Of earlier revisions of jobs: their bytes, and a heap of (until, number of the job) with
        # all of them and some that are gone.
        self.earlier_bytes = 0
        self.earlier_order: list[tuple[int, int]] = []
        self.earlier_peak = 0  # how many they were when the heap was made
        self.lost_tasks: dict[int, int] = {}  # by job of a task: lost attempts that are remembered
        # By the name of a job that others follow: their numbers. And which may be followed no more.
        self.followers: dict[str, dict[int, None]] = {}
        self.unfollowed: dict[str, None] = {}
        self._follows: dict[int, tuple[str, ...]] = {}
        self.marks: dict[bytes, Epoch] = {}  # of `leader_terms`
        self.note_marks()

    def _due_row(self, number: int, scheduled_s: int, due: Instants) -> LaunchRow:
        """Return the row of a launch that stands in a line: its job is as it was then."""
        record = self.by_number[number]
        deadline_s = record.job.deadline_s if record.job is not None else 0
        # By place, in the order of LaunchRow: with names it takes several times as long.
        return LaunchRow(
            number,
            scheduled_s,
            0,
            LaunchState.DUE,
            (scheduled_s + deadline_s) * 1000,
            due.local_min,
            due.is_late,
            0,  # attempt
            record.revision,
        )

    def _begun_row(self, batch: Batch, row: int) -> LaunchRow:
        """Return the launch that is a usual row of a batch: its job is as it was then."""
        record = self.by_number[batch.numbers[row]]
        return LaunchRow(
            record.number,
            batch.scheduled_s[row],
            0,  # trigger
            LaunchState(batch.states[row]),
            batch.deadlines_ms[row],
            batch.local_mins[row],
            bool(batch.lates[row]),
            batch.attempts[row],
            record.revision,
            batch.index,
            batch.at_ms,
            batch.epoch,
            batch.executor,
            batch.not_after_ms[row],
            batch.launched_index[row],
            batch.launched_at_ms[row],
            batch.started_ms[row],
            job=record.job,
            row=row,
        )

    def make_detailed(self, records: Collection[JobRecord]) -> None:
        """Give what is open of jobs rows of its own: call this before the jobs change, or it.

        Name all of them at once: each call is a look at all instants."""
        for key in self.due.of_jobs([record.number for record in records]):
            record, row = self.by_number[key[0]], self.due[key]
            self.touch(record)
            self.due.take(key[1], key[:1])
            self.due.detailed[key] = record.open[key[1:]] = row
        for key in self.active.of_jobs([record.number for record in records]):
            self.changeable(key)

    def put_record(self, record: JobRecord) -> None:
        """Add a job, or that of a task, under its number."""
        self.by_number[record.number] = record
        if is_own(record.name):
            self.own[record.number] = record

    def drop_record(self, number: int) -> None:
        """Take out a job, or that of a task."""
        del self.by_number[number]
        self.own.pop(number, None)

    def note_unpaid(self, row: LaunchRow) -> None:
        """Note a due launch that waits for a retry of its tenant's."""
        tenant = tenant_of(self.by_number[row.number].name)
        insort(self.unpaid.setdefault(tenant, []), (row.unpaid_ms, row.key))

    def drop_unpaid(self, row: LaunchRow) -> None:
        """Let go of one that waits for it no more."""
        tenant = tenant_of(self.by_number[row.number].name)
        mine = self.unpaid[tenant]
        del mine[bisect_left(mine, (row.unpaid_ms, row.key))]
        if not mine:
            del self.unpaid[tenant]

    def note_all_unpaid(self) -> None:
        """Find all that wait for a retry of their tenants'."""
        self.unpaid = {}
        for row in self.due.detailed.values():
            if row.unpaid_ms:
                self.note_unpaid(row)

    def note_job(self, record: JobRecord) -> None:
        """Take note of what a job is now: call this once it has changed, or is gone."""
        job = record.job
        if record.held_until_ms or record.held or record.spent:
            self.doubtful[record.number] = None
        if job is None or job.has_parts:
            self.delays_s.pop(record.number, None)
        else:
            self.delays_s[record.number] = job.deadline_s
        self.limited.pop(record.number, None)
        self.measured.pop(record.name, None)
        if job is not None and job.metrics:
            self.measured[record.name] = None
        self.pausing.pop(record.name, None)
        if job is not None and job.pause_after:
            self.pausing[record.name] = None
        self.note_failures(record)
        self.running.pop(record.number, None)
        if job is not None and job.is_limited:
            self.limited[record.number] = None
            for row in record.open.values():  # none of its launches is a usual row now
                if row.state in ACTIVE:
                    self.start_running(row.number)
        before, now = self._follows.pop(record.number, ()), job.follows if job is not None else ()
        for name in before:
            self.followers[name].pop(record.number, None)
            if not self.followers[name]:
                del self.followers[name]
                self.unfollowed[name] = None
        for name in now:
            self.followers.setdefault(name, {})[record.number] = None
        if now:
            self._follows[record.number] = now
        self.alerts.note_job(record.name, job.alerts if job is not None else None)
        self.alerts.note_marks(record.name, record.marks if job is not None else None)

    def note_failures(self, record: JobRecord) -> None:
        """Take note of how many launches of a job have failed in a row."""
        if record.failed_in_a_row and record.name in self.pausing:
            self.failing[record.name] = None
        else:
            self.failing.pop(record.name, None)

    def note_marks(self) -> None:
        """Take note of the marks of `leader_terms`: call this once these have changed."""
        self.marks = {one.mark: one.epoch for one in self.leader_terms if one.mark}

    def has_revisions(self, catalog: int, records: Iterable[JobRecord]) -> bool:
        """Return whether an older revision of the set of jobs has been, and none of these jobs has
        changed since (rule R2)."""
        newest: int = max(map(_revision, records))
        return newest <= catalog < self.catalog

    def touch(self, record: JobRecord) -> None:
        """Call this before `record`, or a launch in it, changes."""
        if self.imagings:
            # An image that was given up is gone, or says so.
            self.imagings = [
                reference
                for reference in self.imagings
                if (imaging := reference()) is not None and imaging.keep(record)
            ]

    def row(self, key: Key) -> LaunchRow | None:
        """Return the open launch under `key`."""
        return self.active.get(key) or self.due.get(key)

    def open_of(self, record: JobRecord) -> dict[tuple[int, int], LaunchRow]:
        """Return the open launches of a job by (scheduled_s, trigger), in no order; to be read
        only, and before the next entry. A look at all instants at which anything waits."""
        usual = {
            key[1:]: launch
            for index in (self.due, self.active)
            for key in index.of_jobs((record.number,))
            if (launch := index.get(key)) is not None
        }
        return record.open | usual if usual else record.open

    def is_open(self, record: JobRecord) -> bool:
        """Return whether a launch of a job is open."""
        mine = (record.number,)
        return bool(record.open or self.active.of_jobs(mine) or self.due.of_jobs(mine))

    def active_of(self, record: JobRecord) -> list[LaunchRow]:
        """Return the launches of a job that may be running; to be read only."""
        if record.number in self.limited and record.number not in self.running:
            return []
        usual = map(self.active.__getitem__, self.active.of_jobs((record.number,)))
        return [*(row for row in record.open.values() if row.state in ACTIVE), *usual]

    def batch(self, executor: int, index: int, at_ms: int, epoch: Epoch) -> Batch:
        """Return what one entry begins on an executor that takes part; made if it is not there."""
        batches = self.executors[executor].batches
        batch = batches.get(index)
        if batch is None:
            batch = batches[index] = Batch(index, executor, at_ms, epoch, self._begun_row)
        return batch

    def add_detailed(self, launch: LaunchRow, start: Part) -> int:
        """Put a launch among what is open on one of its executors; return its row there, one below
        `NO_ROW` where nobody knows which it is, or another launch is open as that row."""
        batch = self.batch(start.executor, launch.begun_index, launch.begun_at_ms, launch.epoch)
        row = start.row
        if row == NO_ROW or batch.launch(row) is not None:
            row = min([NO_ROW, *batch.detailed]) - 1
        batch.detailed[row] = launch
        return row

    def drop_detailed(self, launch: LaunchRow, executor: int, row: int) -> None:
        """Take a launch out of what is open on an executor; no error where it is not there."""
        record = self.executors.get(executor)
        batch = None if record is None else record.batches.get(launch.begun_index)
        if batch is not None and batch.detailed.get(row) is launch:
            del batch.detailed[row]
            if not batch.detailed and not batch.usual and record is not None:
                del record.batches[batch.index]

    def end_rows(
        self, batch: Batch, rows: Sequence[int], numbers: Sequence[int], instants: Sequence[int]
    ) -> None:
        """Note that usual rows of a batch, in ascending order, are over: those of these jobs and
        instants."""
        first, last = rows[0], rows[-1] + 1
        if last - first == len(rows):
            batch.states[first:last] = bytes(len(rows))
        else:
            for row in rows:
                batch.states[row] = 0
        batch.usual -= len(rows)
        running = self.running
        mine = [*filter(running.__contains__, numbers)] if running else []
        if set(map(running.get, mine)) == {1}:
            deque(map(running.__delitem__, mine), maxlen=0)
        else:  # one of them runs several times
            for number in mine:
                self.stop_running(number)
        if instants.count(instants[0]) == len(instants):
            self.active.take(instants[0], numbers)
        else:
            for number, at_s in zip(numbers, instants, strict=True):
                self.active.take(at_s, (number,))

    def start_running(self, number: int) -> None:
        """Count one launch more of a job that may be running, if the job limits them."""
        if number in self.limited:
            self.running[number] = self.running.get(number, 0) + 1

    def stop_running(self, number: int) -> None:
        """Count one launch less of a job that may be running, if the job limits them."""
        count = self.running.pop(number, 0)
        if count > 1:
            self.running[number] = count - 1

    def shrink(self, batch: Batch) -> None:
        """Forget a batch if nothing is open of it. Let go of its columns if only few rows are: a
        launch that runs for a day must not keep what was begun with it in memory."""
        if batch.usual and batch.usual * STRAGGLERS_SHARE <= len(batch.states):
            for row in [row for row, state in enumerate(batch.states) if state]:
                self.make_row_detailed(batch, row)
        if not batch.usual:
            if not batch.detailed:
                self.executors[batch.executor].batches.pop(batch.index, None)
            for name in COLUMNS:
                setattr(batch, name, array("q"))
            batch.lates.clear()
            batch.states.clear()
            batch.places.clear()

    def make_row_detailed(self, batch: Batch, row: int) -> LaunchRow | None:
        """Return the launch that is open as that row, to be changed: it is detailed from now on."""
        launch = batch.launch(row)
        if launch is None or row in batch.detailed:
            return launch
        record = self.by_number[launch.number]
        self.touch(record)
        batch.detailed[row] = launch
        batch.states[row] = 0
        batch.usual -= 1
        self.active.take(launch.scheduled_s, (launch.number,))
        self.active.detailed[launch.key] = launch
        record.open[(launch.scheduled_s, launch.trigger)] = launch
        return launch

    def count_running(self) -> Counter[int]:
        """Return how many launches of each job may be running; a look at all of them."""
        counts = Counter(chain.from_iterable(self.active.usual.values()))
        counts.update(number for number, _, _ in self.active.detailed)
        return counts

    def changeable(self, key: Key) -> LaunchRow | None:
        """Return the launch under `key` that may be running, to be changed."""
        launch = self.active.detailed.get(key)
        if launch is None and key in self.active:
            batch = self.active.usual[key[1]][key[0]]
            return self.make_row_detailed(batch, batch.find(key[0], key[1]))
        return launch

    def open_rows(self) -> Iterator[LaunchRow]:
        """Yield all open launches."""
        yield from self.active.values()
        yield from self.due.values()

    def remember_lost(self, key: Key, attempt: int, lost: Row) -> None:
        """Keep the row of a lost attempt for late reports of it; of too many, the oldest goes (rule
        R9)."""
        self.forget_lost(key, attempt)
        self.lost[(key, attempt)] = lost
        record = self.by_number.get(key[0])
        if record is not None and record.task:
            self._count_lost_task(key[0], 1)
        for place in lost.places():
            if place[-1] != NO_ROW:
                self.lost_at[place] = (key, attempt)
        while len(self.lost) > LOST_KEPT:
            self.forget_lost(*next(iter(self.lost)))

    def forget_lost(self, key: Key, attempt: int) -> None:
        """Let go of a lost attempt; no error where there is none."""
        known = self.lost.pop((key, attempt), None)
        if known is None:
            return
        for place in known.places():
            self.lost_at.pop(place, None)
        if key[0] in self.lost_tasks:
            self._count_lost_task(key[0], -1)

    def _count_lost_task(self, number: int, change: int) -> None:
        count = self.lost_tasks.pop(number, 0) + change
        if count:
            self.lost_tasks[number] = count
        else:
            self.over_jobs[number] = None

    @property
    def is_resolving(self) -> bool:
        """Whether the cell was restored and does not know yet what ran meanwhile: it must launch
        nothing (rule R13)."""
        return self.restored is not None and not self.restored.resolved_at_ms

    def launch_name(self, key: Key) -> LaunchName:
        """Return the name that everybody outside knows the launch by."""
        return LaunchName(self.by_number[key[0]].name, key[1], key[2])

    def key_of(self, name: LaunchName) -> Key | None:
        """Return the key of a name, None where there never was such a job."""
        record = self.record_of(name.job)
        return None if record is None else (record.number, name.scheduled_s, name.trigger)

    def record_of(self, name: str) -> JobRecord | None:
        """Return the record of a job, or of the job that a task has; None where there is none."""
        record = self.jobs.get(name)
        if record is None and TASK_MARK in name:
            task = self.tasks.get(name)
            record = self.by_number.get(task.job) if task is not None else None
        return record

    def executor_of(self, executor: str, ledger: str) -> ExecutorRecord | None:
        """Return the record of that very executor and ledger."""
        return self.by_ledger.get((executor, ledger))
