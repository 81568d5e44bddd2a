"""What the API shows and is asked: plain values that command line, server and leader share.

Every struct has a message of the same name and the same fields in `v1/admin.proto`; `translate`
turns one into the other and a test compares them. Times end in `_s` (epoch seconds) or `_ms` (epoch
milliseconds), UTC; 0 is never. `None` is "not known". Job names are full (`tenant/job`) unless a
field says otherwise; launch names always have their tenant.
"""

from __future__ import annotations

import msgspec

from cron.api.pool_views import GateView, JobNeeds
from cron.api.snapshot_views import KeepingView
from cron.errors import Problem


class PartView(msgspec.Struct, frozen=True, kw_only=True):
    """One of the parts of an attempt, each on an executor of its own; as in LaunchView."""

    part: int
    executor: str
    state: str
    reason: str = ""
    started_at_ms: int = 0
    finished_at_ms: int = 0
    exit_code: int | None = None
    output_bytes: int = 0
    detail: str = ""
    cpu_ms: int | None = None
    memory_peak_bytes: int | None = None


class LaunchView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a launch, or a launch that has not begun yet (attempt 0).

    `job` is the name without its tenant. `state` and `reason` are the labels of
    `launcher.launch`. `begun_at_ms` and `launched_at_ms` are the times in the two log points,
    `begun_index` and `launched_index` their log indexes; `started_at_ms` and `finished_at_ms` are
    the executor's. `lateness_ms` is started - scheduled. `epoch` is `lineage.term.replica`, `term`
    and `replica` are parts of it. `waiting` says why an open launch has not begun. `count` is above
    1 for a run of skipped instants in one row, from `scheduled_s` to `last_s`. `kind` is `launch`,
    `range` or `amendment` (late news about a lost attempt, rule R9). `output_bytes` is what its
    executor kept of its output when it ended, 0 where none is known.

    `ended_index` and `number` are the key of a row of history. `amends` is the key of the row that
    an amendment is about, `INDEX.NUMBER`, or its index alone where that row has no number.
    `is_amended`: a lost attempt with the late news of it, as begun by the one row and ended by the
    other. `cpu_ms` and `memory_peak_bytes` are what a control group measured.
    """

    launch: str
    job: str
    tenant: str
    scheduled_s: int
    attempt: int = 0
    state: str = ""
    reason: str = ""
    begun_at_ms: int = 0
    launched_at_ms: int = 0
    started_at_ms: int = 0
    finished_at_ms: int = 0
    exit_code: int | None = None
    executor: str = ""
    term: int = 0
    lateness_ms: int | None = None
    epoch: str = ""
    replica: str = ""
    begun_index: int = 0
    launched_index: int = 0
    ended_index: int = 0
    ended_at_ms: int = 0
    local_time: str = ""
    revision: int = 0
    by: str = ""
    detail: str = ""
    in_doubt: bool = False
    waiting: str = ""
    deadline_at_ms: int = 0
    is_open: bool = False
    kind: str = "launch"
    last_s: int = 0
    count: int = 1
    output_bytes: int = 0
    parts: list[PartView] = []
    number: int | None = None
    amends: str = ""
    is_amended: bool = False
    cpu_ms: int | None = None
    memory_peak_bytes: int | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """One job as it stands: schedule, policies, pause, and its newest launch.

    `schedule` is what the user wrote, `resolved` the same without `?` and aliases ("" for
    `@every`). The policies are lower-case labels. `timeout_ms` is 0 for the default,
    NO_TIMEOUT_MS for none. `next_s` are the next
    scheduled times, oldest first; none while nothing is due any more, or in a pause without an end.
    `gate` is the closed gate that decides over its launches now. `held` says why the leader cannot
    read the schedule: then nothing is launched, and no instant has a row, until a leader can.
    """

    name: str
    schedule: str
    resolved: str = ""
    zone: str = "UTC"
    next_s: list[int] = []
    overlap: str = ""
    catchup: str = ""
    on_lost: str = ""
    deadline_s: int = 0
    timeout_ms: int = 0
    paused: bool = False
    pause_reason: str = ""
    paused_by: str = ""
    paused_until_ms: int = 0
    source: str = ""
    revision: int = 0
    command: str = ""
    user: str = ""
    running: int = 0
    last: LaunchView | None = None
    needs: JobNeeds = JobNeeds()
    gate: GateView | None = None
    held: str = ""
    changed_by: str = ""
    changed_ms: int = 0


class JobsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list: those that fit all that is named, "" names nothing.

    `pattern` is of full names. `pool` is a handler, or command.
    """

    pattern: str = ""
    tenant: str = ""
    pool: str = ""
    collection: str = ""


class NextTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The next scheduled times of one schedule, oldest first.

    Those before `paused_until_ms` (0: all of them) are skipped while the job is `paused`.
    """

    job: str
    schedule: str
    resolved: str = ""
    zone: str = "UTC"
    times_s: list[int] = []
    paused: bool = False
    pause_reason: str = ""
    paused_until_ms: int = 0


class SourceFile(msgspec.Struct, frozen=True):
    """One file of an apply: its name as the user gave it, and its bytes as they are."""

    name: str
    content: bytes


class ApplyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Crontabs or job files to apply together: all of them or none.

    `source` owns the jobs; None: each file's own base name. `prune` removes jobs of the same source
    that the files no longer have; more than `limits.PRUNE_WITHOUT_YES_MAX` of them, or all of a
    source, only if `is_confirmed`. `system`: crontabs have a user column. `tenant`: for names that
    have none.
    """

    files: list[SourceFile]
    source: str | None = None
    system: bool = False
    prune: bool = False
    is_dry_run: bool = False
    by: str = ""
    tenant: str = "default"
    is_confirmed: bool = False


class RemoveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs to remove, by name, whatever file they came from."""

    jobs: list[str]
    by: str = ""


class RemovedJob(msgspec.Struct, frozen=True):
    """A job that was removed, and the source that adds it again with its next apply."""

    job: str
    source: str


class RemoveReport(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that were removed, by name."""

    jobs: list[RemovedJob] = []


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """What an apply does to one job. `action` is added, changed, removed or unchanged.

    `what` names the fields that changed. `next_before_s` and `next_after_s` are the next times of
    the old and the new schedule.
    """

    action: str
    job: str
    schedule: str = ""
    resolved: str = ""
    zone: str = ""
    what: list[str] = []
    next_before_s: list[int] = []
    next_after_s: list[int] = []


class ApplyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an apply did, or would do. `zone` is the default zone; `problems` are warnings."""

    zone: str = "UTC"
    source: str = ""
    revision: int = 0
    changes: list[JobChange] = []
    problems: list[Problem] = []
    is_dry_run: bool = False
    applied: bool = False


class HistoryCursor(msgspec.Struct, frozen=True, kw_only=True):
    """A launch that was shown, after which the next page of a list goes on; as in LaunchView."""

    scheduled_s: int
    attempt: int = 0
    ended_index: int = 0
    launch: str = ""
    number: int = -1
    is_failure: bool = False


def cursor_at(view: LaunchView) -> HistoryCursor:
    """Return the place of a launch in a list."""
    return HistoryCursor(
        scheduled_s=view.scheduled_s,
        attempt=view.attempt,
        ended_index=view.ended_index,
        launch=view.launch,
        number=-1 if view.number is None else view.number,
        is_failure=view.state in ("failed", "lost"),
    )


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which launches to show, newest first.

    `is_all`: lost attempts and late news
       of them are shown as rows of their own, else as one launch. `after`: the last launch of the
       page before.
    """

    job: str = ""
    states: list[str] = []
    since_ms: int = 0
    until_ms: int = 0
    limit: int = 50
    archive: bool = False
    tenant: str = ""
    pool: str = ""
    collection: str = ""
    is_all: bool = False
    after: HistoryCursor | None = None


class OutputQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a launch's output to show.

    `attempt` 0 is the newest, `part` one of several it ran in. `tail` asks for the last `limit`
    bytes instead of those at `offset`.
    """

    launch: str
    attempt: int = 0
    offset: int = 0
    limit: int = 65_536
    tail: bool = False
    part: int = 1


class OutputView(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a launch's output.

    `offset` is that of the content's first byte, `size` the bytes kept so far, `dropped` those over
    the bound. `ended`: the launch is over and this reaches the end. `store` is the object storage
    that it comes from, "" for the executor; then `note` says why the executor did not give it.
    """

    content: bytes = b""
    offset: int = 0
    size: int = 0
    ended: bool = False
    dropped: int = 0
    executor: str = ""
    store: str = ""
    note: str = ""


class StoryLine(msgspec.Struct, frozen=True):
    """One thing that happened, oldest first; `at_ms` 0 where there is no time to it."""

    at_ms: int
    text: str


class WhyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one instant of a job: the verdict in one line, and how it came to it."""

    job: str
    at_s: int
    verdict: str
    story: list[StoryLine] = []
    launches: list[LaunchView] = []


class PauseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Pause the jobs that `pattern` matches; `until_ms` 0 is until somebody resumes them."""

    pattern: str
    reason: str = ""
    until_ms: int = 0
    by: str = ""


class PauseView(msgspec.Struct, frozen=True, kw_only=True):
    """The pause of a job that holds now; `until_ms` 0 is until somebody resumes it."""

    job: str
    until_ms: int = 0
    by: str = ""
    reason: str = ""


class PauseReport(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that a pause or resume changed, and those that were so already.

    `pauses` are those of `unchanged` that were paused already.
    """

    changed: list[str] = []
    unchanged: list[str] = []
    pauses: list[PauseView] = []


class BackfillRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make the skipped, lost or failed instants in [from_s, to_s) due again (rule R1)."""

    job: str
    from_s: int
    to_s: int
    is_dry_run: bool = False
    by: str = ""


class BackfillReport(msgspec.Struct, frozen=True, kw_only=True):
    """The launches that a backfill reopened, or would reopen; names, oldest first."""

    launches: list[str] = []
    is_dry_run: bool = False


class ClockRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Set the cell's time back to the leader's clock, or only say what that would do."""

    is_dry_run: bool = False
    by: str = ""


class ClockReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a reset of the cell's time does, or did.

    `cell_ms` is the cell's time before, `clock_ms` the leader's clock. `jobs` have horizons that go
    back. `spent` counts the instants after `clock_ms` whose launches have begun and are not
    repeated.
    """

    cell_ms: int
    clock_ms: int
    jobs: int = 0
    spent: int = 0
    is_done: bool = False


class ReplaceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make room for a new disk under the id `replica`; the old one is shut out for good.

    `raft` and `client` are where the new one listens, "" for where the old one did. `is_confirmed`:
    also if the old one is connected to the leader.
    """

    replica: str
    raft: str = ""
    client: str = ""
    is_confirmed: bool = False
    by: str = ""


class ReplaceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The id's incarnation that waits for its disk, and the addresses where the others expect it.

    `was_open`: it waited for one already, and nothing was changed.
    """

    replica: str
    incarnation: int = 0
    standing: str = ""
    raft: str = ""
    client: str = ""
    was_open: bool = False


class JoinProgress(msgspec.Struct, frozen=True):
    """How far a replica that does not vote yet has come, as `consensus.cell.Joining` says."""

    stage: str
    done: int = 0
    goal: int = 0
    text: str = ""


class OverloadView(msgspec.Struct, frozen=True, kw_only=True):
    """More falls due than can begin: since when, where most of it waits, and how many instants were
    skipped for it."""

    since_s: int
    queue: str
    skipped: int = 0


class StatusRow(msgspec.Struct, frozen=True, kw_only=True):
    """A replica or an executor, as the one that was asked sees it.

    `kind` is replica or executor. `role` of a replica is leader, follower, learner (it does not
    vote yet) or unreachable; of an executor connected, in-doubt or lost. `applied` is a log index,
    `digest` the hex digest of the state there; equal positions must have equal digests. `since_ms`
    is when it took that role. `clock_offset_ms` is its wall clock minus that of the replica that
    was asked, `wall_ms` what a replica's clock said.

    `incarnation` counts the disks that stood for a replica's id, `standing` is votes, joining or
    open ("" while the cell is not founded), `joining` how far it is until it votes. `matched` is
    the log index up to which the leader knows it to have the leader's log, None where it does not.
    `keeping` is of snapshots and history, of replicas alone. `format` is the newest format of the
    log that a replica can apply. `overload` is of the leader alone, None where there is none.
    """

    kind: str
    id: str
    address: str = ""
    pid: int = 0
    role: str = ""
    term: int = 0
    applied: int = 0
    digest: str = ""
    version: str = ""
    leader: str = ""
    clock_offset_ms: int | None = None
    tzdata: str = ""
    since_ms: int = 0
    slots: int = 0
    running: int = 0
    ledger: str = ""
    note: str = ""
    wall_ms: int = 0
    incarnation: int = 0
    standing: str = ""
    matched: int | None = None
    joining: JoinProgress | None = None
    keeping: KeepingView | None = None
    format: int = 0
    overload: OverloadView | None = None


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A broken promise that an audit found. `kind` is a stable word, `message` is for people."""

    job: str
    scheduled_s: int
    kind: str
    message: str


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit counted and what it found.

    Without violations, each of `instants`, those of the schedules in the period, is one of: `ran`
    (an attempt was begun, whatever became of it), `skipped` (or cancelled before it began, with a
    row of its own), `skipped_in_runs` (one row for many; there are `runs` of them), `lost` (by a
    restore: nobody knows whether it ran; in `lost_stretches` rows), `open` (not over; passes).
    Besides these: `extra_attempts` (backfills and retries: attempts of launches that
    were over before, or were never due), `manual` launches, and `amendments` (late news, rule R9).
    `launches` is `ran` and `manual`. Schedules of a part of the period, which ends at
    `forgotten_until_ms`, may be forgotten, and are not proven; 0 if all are known.
    """

    jobs: int = 0
    instants: int = 0
    launches: int = 0
    open: int = 0
    since_ms: int = 0
    until_ms: int = 0
    violations: list[Violation] = []
    ran: int = 0
    skipped: int = 0
    skipped_in_runs: int = 0
    runs: int = 0
    extra_attempts: int = 0
    manual: int = 0
    amendments: int = 0
    lost: int = 0
    lost_stretches: int = 0
    forgotten_until_ms: int = 0
