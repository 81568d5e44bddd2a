"""What may be asked of the replicated state: commands, and the entry that carries them.

A command carries all that its meaning depends on: times, choices, names. Applying it needs no
clock, no chance and no schedule. All that one tick brings shares one entry (group commit). In the
hot commands a job is the number that State gave it and a launch its key, so that a launch costs
about a hundred bytes of log.

A `note` says what the leader found, by code and arguments, beside a `detail` that came from
outside.

Evolution: append fields at the end with a default, never reorder, rename a tag or reuse one; a new
command is shipped decodable before it is ever emitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, repeat
from typing import Final, TypeAlias

import msgspec

from cron.job import Job
from cron.notes import Note
from cron.state import access, alerts, calendars, chains, groups, pool, tasks
from cron.state.known_ends import KnownEnds
from cron.state.rows import Part, Row
from launcher.protocol.columns import differences
from launcher.protocol.reports import BatchReport
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch

ENTRY_VERSION: Final = 1
FORMAT: Final = 12
"""The newest format of commands and State that this program can apply (cron/state/DESIGN.md,
"Formats")."""
LEAST_FORMAT: Final = 8
"""The oldest that it can apply: cells of formats 1 to 7 are refused."""

Key: TypeAlias = tuple[int, int, int]
"""(job number, scheduled_s, trigger): a launch."""
Ended: TypeAlias = tuple[Key, int, Part]
"""A launch, an attempt of it, and what became of that, or of its part `Part.number`.

Its state is LAUNCHED at log point 2: the executor has it durably and started it. It is SUCCEEDED,
FAILED or CANCELLED at the end of an attempt that ran. It is SKIPPED where the executor durably
refused or fenced the attempt: it never ran and never will (rule R7). It is LOST where nobody can
know any more what became of it: until `held_until_ms` it may still be running, and holds its job's
overlap slot (rule R6).
"""
SegmentKey: TypeAlias = tuple[int, int, int]
"""(generation, number of the Seal, stream): a segment of history."""


class Instants(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Instants that a line accounts for: one to be launched, or a run of `count`, up to `last_s`,
    that is skipped for a `reason`. `local_min` is the nominal local time of the last of them, -1
    for none. `is_late` marks catch-up: when a leader gave the instant this row, it was not live any
    more (`scheduler/policy.py`). Its launch is paced behind live ones. The mark stays, and says
    nothing about deadlines."""

    scheduled_s: int
    local_min: int = -1
    is_late: bool = False
    reason: Reason = Reason.NONE
    count: int = 1
    last_s: int = 0  # where it is skipped


class AccountLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All instants in (from_s, to_s] of jobs that have the same ones; `to_s` becomes the horizon of
    each (rule R1). A line that is not complete yet has no jobs and catalog 0.

    `jobs` are their numbers in ascending order: the first from 0, each other one from the one
    before. `catalog` is the revision of the set of jobs by which the leader decided: none of them
    has changed since (rule R2).
    """

    jobs: tuple[int, ...]
    catalog: int
    from_s: int
    to_s: int
    due: tuple[Instants, ...] = ()
    skipped: tuple[Instants, ...] = ()


class BatchSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows that begin on one executor, in columns with an item for each row, or none where all rows
    have the default.

    `jobs` are numbers, delta-coded. `scheduled` is what is added to `scheduled_s`. The parts of a
    launch are rows of their executors, in this command and of the same `catalog`. A row may start
    until `not_after_ms`, and not after its deadline. `deadlines` has (row, deadline_ms) of those
    whose clock gates held. An entry may have several of one executor: rows count on.
    """

    executor: int
    catalog: int
    not_after_ms: int
    scheduled_s: int
    jobs: tuple[int, ...]
    scheduled: tuple[int, ...] = ()  # 0
    triggers: tuple[int, ...] = ()  # 0
    attempts: tuple[int, ...] = ()  # 1
    parts: tuple[int, ...] = ()  # 0
    deadlines: tuple[tuple[int, int], ...] = ()

    def rows(self) -> Iterator[tuple[Key, int, int]]:
        """Yield the key, the attempt and the part of its rows, 0 where the launch is not divided;
        rows that a column lacks are left out."""
        numbers = accumulate(self.jobs)
        instants = [self.scheduled_s + one for one in self.scheduled or repeat(0, len(self.jobs))]
        triggers, attempts = self.triggers or repeat(0), self.attempts or repeat(1)
        keys = zip(numbers, instants, triggers)  # noqa: B905 (what is missing is left out)
        return zip(keys, attempts, self.parts or repeat(0))  # noqa: B905

    @property
    def is_whole(self) -> bool:
        """Whether every column has as many items as there are rows."""
        columns = (self.scheduled, self.triggers, self.attempts, self.parts)
        return all(len(column) in (0, len(self.jobs)) for column in columns)


class SkippedItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A due launch that will not be started."""

    key: Key
    reason: Reason
    detail: str = ""
    note: Note | None = None


class LostExecutor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All that is open on an executor and was begun up to a log index is lost. The rest as in
    Part."""

    executor: int
    through_index: int
    held_until_ms: int = 0
    note: Note | None = None


class CancelItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A launch that somebody, or a newer launch, wants ended (rule R8). `reason` is NONE for a due
    launch whose job was removed."""

    key: Key
    reason: Reason
    by: str = ""


class ReopenItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An instant to be launched after all. `was_state` is 0 where it was never accounted."""

    key: Key
    local_min: int
    was_state: int
    was_attempt: int


class Claim(msgspec.Struct, frozen=True, array_like=True, tag="claim"):
    """A new leader's first entry of its term. The entry's epoch is what it claims (rule R3). The
    leader has drawn `mark`, which tells its term from one of the same number in a log that was set
    back, and a key for proofs of orders, which counts if State has none."""

    tzdata: str = ""
    version: str = ""
    format: int = 0  # the first Claim of a new cell sets the format of its State; later ones do not
    mark: bytes = b""
    order_key: bytes = b""


class RaiseFormat(msgspec.Struct, frozen=True, array_like=True, tag="format"):
    """Every replica can apply `format`: from this entry on State has it. It never falls. `mark` and
    `order_key` as in Claim, for a term that began before State could have them."""

    format: int
    mark: bytes = b""
    order_key: bytes = b""


class PutJobs(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """A change of the jobs of one source, placed against catalog revision `base` (rule R2).

    A large change comes in `parts` entries under one `change` id and happens with the last one.
    Every job that is changed or removed must be accounted up to `effective_s` exactly.
    """

    source: str
    base: int
    effective_s: int
    jobs: tuple[Job, ...] = ()
    removed: tuple[str, ...] = ()
    by: str = ""
    change: str = ""
    part: int = 1
    parts: int = 1


class Pause(msgspec.Struct, frozen=True, array_like=True, tag="pause"):
    """No scheduled launches: instants get rows `skipped/paused`. `until_ms` 0: until resumed."""

    jobs: tuple[str, ...]
    reason: str
    until_ms: int
    by: str


class Resume(msgspec.Struct, frozen=True, array_like=True, tag="resume"):
    """Launches again, from now on."""

    jobs: tuple[str, ...]
    by: str


class Account(msgspec.Struct, frozen=True, array_like=True, tag="account"):
    """Instants of many jobs, each line by itself and each whole or not at all."""

    lines: tuple[AccountLine, ...]


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """Log point 1 of many attempts, each by itself. Its result has no items where all rows are
    accepted, else a verdict for each, in the order of `rows`."""

    batches: tuple[BatchSpec, ...]

    @classmethod
    def of(
        cls,
        catalog: int,
        not_after_ms: int,
        attempts: Iterable[tuple[Key, int, tuple[int, ...], int]],
    ) -> Begin:
        """Return the command by which attempts begin, each given by its launch, its number, the
        executors of its parts, and its deadline where gates held its clock, else 0.

        First tries of one instant are together, on each executor in this order, and apart from what
        needs more columns. `catalog` and `not_after_ms` are as in BatchSpec.
        """
        groups: dict[tuple[int, int], list[tuple[Key, int, int, int]]] = {}
        for key, attempt, executors, deadline_ms in attempts:
            is_alone = len(executors) == 1
            is_plain = is_alone and attempt == 1 and not (key[2] or deadline_ms)
            for part, executor in enumerate(executors, 1):
                row = (key, attempt, 0 if is_alone else part, deadline_ms)
                groups.setdefault((executor, key[1] if is_plain else -1), []).append(row)
        batches = []
        for (executor, _), rows in groups.items():
            keys, tries, parts, deadlines_ms = zip(*rows, strict=True)
            numbers, instants, triggers = zip(*keys, strict=True)
            later = tuple(at_s - instants[0] for at_s in instants)
            batches.append(
                BatchSpec(
                    executor,
                    catalog,
                    not_after_ms,
                    instants[0],
                    tuple(differences(numbers)),
                    later if any(later) else (),
                    triggers if any(triggers) else (),
                    tries if any(attempt != 1 for attempt in tries) else (),
                    parts if any(parts) else (),
                    tuple((row, held_ms) for row, held_ms in enumerate(deadlines_ms) if held_ms),
                )
            )
        return cls(tuple(batches))


class Report(msgspec.Struct, frozen=True, array_like=True, tag="report"):
    """What became of many attempts: of those that are named by their keys, of rows of batches, and
    of all that executors have which are lost.

    `rows` are what executors, by their numbers, reported of rows. A start is log point 2. Rows
    that are UNKNOWN were never sent to their executor, and so never ran.

    Its result has a verdict for each row, but none where all rows are accepted, then one for each
    item.
    """

    items: tuple[Ended, ...] = ()
    rows: tuple[tuple[int, BatchReport], ...] = ()
    executors: tuple[LostExecutor, ...] = ()


class Skip(msgspec.Struct, frozen=True, array_like=True, tag="skip"):
    """Due launches that will not be started."""

    items: tuple[SkippedItem, ...]


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Launches to be ended."""

    items: tuple[CancelItem, ...]


class Trigger(msgspec.Struct, frozen=True, array_like=True, tag="trigger"):
    """A launch by hand, in the second of the entry. `request` makes a repetition harmless."""

    job: str
    request: str
    by: str


class Reopen(msgspec.Struct, frozen=True, array_like=True, tag="reopen"):
    """Backfill: ended or never accounted instants become due, as the next attempt.

    What the leader read from history is true at log index `read_at`; an item is refused if a launch
    of its job ended since.
    """

    items: tuple[ReopenItem, ...]
    read_at: int
    by: str


class ExecutorJoined(msgspec.Struct, frozen=True, array_like=True, tag="joined"):
    """An executor with this ledger takes part; State gives the pair a number."""

    executor: str
    ledger: str
    slots: int
    host: str = ""
    version: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    cpu_milli: int = 0
    memory_bytes: int = 0


class ExecutorLeft(msgspec.Struct, frozen=True, array_like=True, tag="left"):
    """The pair is gone: its lease ended and nothing is open on it. `outputs`: how many outputs stay
    on its disk, because object storage did not take them in time."""

    number: int
    reason: str = ""
    outputs: int = 0


class Seal(msgspec.Struct, frozen=True, array_like=True, tag="seal"):
    """The rows of history up to here become segments, the `number`-th time (rule R12)."""

    number: int


class SnapshotAt(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """Every replica takes a snapshot of State as it is after this entry (rule R12)."""


class BackedUp(msgspec.Struct, frozen=True, array_like=True, tag="backed-up"):
    """What object storage `store` has now: these segments, and the snapshot that was taken at
    `index` (0 for none) with all history up to it. `claim` is what the cell is known by there,
    `missing` are segments that are not there any more."""

    store: str
    segments: tuple[SegmentKey, ...] = ()
    generation: int = 0
    term: int = 0
    index: int = 0
    taken_ms: int = 0
    claim: str = ""
    missing: tuple[SegmentKey, ...] = ()


class Retire(msgspec.Struct, frozen=True, array_like=True, tag="retire"):
    """Retention: the replicas let go of segments; of those in `gone` the catalog, too."""

    local: tuple[SegmentKey, ...] = ()
    gone: tuple[SegmentKey, ...] = ()


class RecoverItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of one job between the snapshot and the restore (rule R13).

    `ran` are the attempts that executors remember, LAUNCHED while they run; one that had several
    parts has all of them, others have the part that was remembered, if any. Instants in
    (from_s, to_s] are in `ran`, `due` (where the job says `on-lost=retry`) or `lost`. `doubtful`
    are launches that were due in the snapshot and may have run since. What is due after all begins
    at `not_before_ms`: it may be running until then. `name` stands for a job that the
    snapshot does not know; its number is 0 and it has nothing but `ran`. Or it is that of a task
    that waited in the snapshot; without `ran` the task is in doubt.
    """

    number: int
    revision: int
    from_s: int
    to_s: int
    ran: tuple[Row, ...] = ()
    due: tuple[Instants, ...] = ()
    lost: tuple[Instants, ...] = ()
    doubtful: tuple[Key, ...] = ()
    name: str = ""
    not_before_ms: int = 0


class Recover(msgspec.Struct, frozen=True, array_like=True, tag="recover"):
    """Jobs of a restored cell, each by itself, and the executors that have reported all that they
    know."""

    items: tuple[RecoverItem, ...]
    recalled: tuple[int, ...] = ()


class Forget(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    """History has no row of before `before_s`: of the jobs with these `numbers` the schedules that
    ended by then are forgotten, and the records of those that were removed by then. The records in
    `removed` are forgotten whatever history has. What State itself needs of a job stays."""

    numbers: tuple[int, ...]
    before_s: int
    removed: tuple[int, ...] = ()


class Resolve(msgspec.Struct, frozen=True, array_like=True, tag="resolve"):
    """Every job of a restored cell is recovered up to `to_s`: from here on it launches."""

    to_s: int


class ResetClock(msgspec.Struct, frozen=True, array_like=True, tag="reset-clock"):
    """State's time goes back to `to_ms`: a leader's wrong clock had carried it ahead (R10)."""

    to_ms: int
    by: str


class NoteChange(msgspec.Struct, frozen=True, array_like=True, tag="note-change"):
    """Somebody changed what the log has no other command for, such as a member of the cell. It only
    adds a row to the changes: `kind` is its action, `before` and `after` are what `subject` was and
    is."""

    kind: str
    subject: str
    before: str
    after: str
    by: str


class HorizonItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A horizon goes back from `from_s` to `to_s`. `spent` are the instants in between whose
    launches began, as the leader read them from history at log index `read_at`. `local_min` is the
    newest nominal local time that was accounted up to `to_s`."""

    number: int
    from_s: int
    to_s: int
    read_at: int
    spent: tuple[int, ...] = ()
    local_min: int = -1


class ResetHorizons(msgspec.Struct, frozen=True, array_like=True, tag="reset-horizons"):
    """Horizons of many jobs go back after `ResetClock`, each by itself."""

    items: tuple[HorizonItem, ...]


class EndsItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the newest launches of a job ended, as history had it at the log index `read_at`, when
    the job was accounted up to `horizon_s`."""

    job: str
    read_at: int
    horizon_s: int
    ends: KnownEnds


class NoteEnds(msgspec.Struct, frozen=True, array_like=True, tag="note-ends"):
    """What others begin to follow has ended so before; an item each."""

    items: tuple[EndsItem, ...]


Command: TypeAlias = (
    Claim
    | RaiseFormat
    | PutJobs
    | Pause
    | Resume
    | Account
    | Begin
    | Report
    | Skip
    | Cancel
    | Trigger
    | Reopen
    | ExecutorJoined
    | ExecutorLeft
    | Seal
    | SnapshotAt
    | BackedUp
    | Retire
    | Recover
    | Resolve
    | ResetClock
    | ResetHorizons
    | NoteChange
    | NoteEnds
    | Forget
    | pool.SetLimits
    | pool.ForgetDebts
    | pool.CloseGate
    | pool.LiftGates
    | pool.Redrive
    | pool.DropDead
    | pool.Drain
    | tasks.SubmitTasks
    | tasks.CancelTasks
    | tasks.RescheduleTasks
    | tasks.RunTasks
    | tasks.ReadyTasks
    | tasks.ForgetTasks
    | tasks.SpillTasks
    | tasks.LoadTasks
    | tasks.PutQueues
    | chains.ReleaseTasks
    | groups.CloseGroups
    | groups.ForgetGroups
    | access.GrantRole
    | access.RevokeRole
    | access.CreateToken
    | access.RevokeTokens
    | access.RevokeCertificates
    | access.GrantExecutor
    | access.RevokeExecutor
    | access.CameFrom
    | alerts.ApplyAlerts
    | alerts.MuteAlerts
    | alerts.UnmuteAlerts
    | alerts.TestAlert
    | alerts.RaiseAlerts
    | alerts.ResolveAlerts
    | alerts.SendAlerts
    | alerts.RemindAlerts
    | calendars.PutCalendar
    | calendars.RemoveCalendar
)


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """What one append carries. `at_ms` is the leader's wall clock; State's time never goes back."""

    version: int
    at_ms: int
    epoch: Epoch
    commands: tuple[Command, ...]
