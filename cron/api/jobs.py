"""Jobs: what is shown of them, and how they are declared, removed, paused and resumed."""

from __future__ import annotations

from typing import Annotated, Final

from cron import limits
from cron.access import RunAs
from cron.api import checks
from cron.api.access import FieldView
from cron.api.checks import (
    Collection,
    FullJob,
    NamedPattern,
    Note,
    Pattern,
    Payloads,
    Person,
    Pool,
    Source,
    Tenant,
    Within,
    bound,
    instant,
    second,
)
from cron.api.gates import GateView
from cron.api.launches import LaunchView
from cron.api.rpc import TIMEOUT_MS, Request, View
from cron.errors import InvalidInput, LimitExceeded, Problem
from launcher.protocol.names import DEFAULT_TENANT

MANY_TIMEOUT_MS: Final = 60_000
"""For a change that may be of very many jobs: 200,000 are removed in some 200 entries."""
MANY_BYTES: Final = 1 << 20


def full_names(names: list[str]) -> list[str]:
    """Return full names of jobs, each once."""
    checks.between(len(names), 1, limits.REMOVED_AT_ONCE_MAX, "number of jobs")
    return sorted({checks.job_name(name) for name in names})


def tenant_of_files(tenant: str) -> str:
    """Return the tenant of names that have none; a client that says none means the default."""
    checks.job_name(f"{tenant or DEFAULT_TENANT}/x")
    return tenant or DEFAULT_TENANT


class JobNeeds(View, frozen=True, kw_only=True):
    """What a job asks of the pool.

    `payload` is what its handler is given, cut to what people read; `payload_hidden`: there is one,
    and the caller may not see it. It is tried `tries` times in all. `dead` is how many of its
    launches were given up and wait for a person. `secrets` are variables and names of secrets, such
    as `PGPASSWORD:db/billing`; their values are not here.
    """

    handler: str = ""
    payload: str = ""
    priority: int = 5
    collection: str = ""
    concurrency: int = 0
    where: str = ""
    cpu_milli: int = 0
    memory_bytes: int = 0
    heartbeat_ms: int = 0
    tries: int = 1
    backoff_ms: int = 0
    backoff_max_ms: int = 0
    retry_codes: list[int] = []
    fatal_codes: list[int] = []
    dead: int = 0
    parts: int = 1
    each: str = ""
    after: list[str] = []
    after_any: list[str] = []
    metrics: bool = False
    payload_hidden: bool = False
    secrets: list[str] = []


class JobView(View, frozen=True, kw_only=True):
    """One job as it stands: schedule, policies, pause, and its newest launch.

    `schedule` is what the user wrote, `resolved` the same without `?` and aliases ("" for
    `@every`). The policies are lower-case labels. `timeout_ms` is 0 for the default,
    NO_TIMEOUT_MS for none. `next_s` are the next
    scheduled times, oldest first; none while nothing is due any more, or in a pause without an end.
    `gate` is the closed gate that decides over its launches now. `held` says why the leader cannot
    read the schedule: then nothing is launched, and no instant has a row, until a leader can.
    Instants before `start_s` and after `end_s` do not count, 0 for no bound, and `calendar` leaves
    days out, or all others, as its option says. A job with `pause_after` is paused once that many
    launches have `failed_in_a_row`. A launch begins up to `jitter_s` after its instant.
    `alerts` are its own options of alerts. `cwd` is the directory of its command, "" for HOME.
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
    start_s: int = 0
    end_s: int = 0
    calendar: str = ""
    pause_after: int = 0
    failed_in_a_row: int = 0
    jitter_s: int = 0
    alerts: list[str] = []
    cwd: str = ""


class JobsRequest(Request, frozen=True, kw_only=True):
    """Which jobs to list: those that fit all that is named, "" names nothing.

    `pattern` is of full names. `pool` is a handler, or command.
    """

    pattern: Pattern = ""
    tenant: Tenant = ""
    pool: Pool = ""
    collection: Collection = ""
    within: Within = []
    payloads: Payloads = []


class NextRequest(Request, frozen=True, kw_only=True):
    """Ask for the next `count` times of a job after `after_s`, exclusive; None: after the
    replica's now."""

    job: FullJob
    after_s: Annotated[int | None, second("after")] = None
    count: Annotated[int, bound(1, checks.NEXT_MAX, "number of times")]


class NextTimes(View, frozen=True, kw_only=True):
    """The next scheduled times of one schedule, oldest first.

    Those before `paused_until_ms` (0: all of them) are skipped while the job is `paused`. A launch
    waits for those of the jobs that it `follows`.
    """

    job: str
    schedule: str
    resolved: str = ""
    zone: str = "UTC"
    times_s: list[int] = []
    paused: bool = False
    pause_reason: str = ""
    paused_until_ms: int = 0
    follows: list[str] = []


class SourceFile(Request, frozen=True):
    """One file of an apply: its name as the user gave it, and its bytes as they are."""

    name: Source
    content: bytes

    def check(self) -> None:
        """Refuse a file that is too big."""
        if len(self.content) > limits.CRONTAB_BYTES_MAX:
            raise LimitExceeded(
                f"{self.name} has {len(self.content)} bytes, "
                f"at most {limits.CRONTAB_BYTES_MAX} are allowed",
                "split it into several files",
            )


class ApplyRequest(Request, frozen=True, kw_only=True):
    """Crontabs or job files to apply together: all of them or none.

    `source` owns the jobs; None: each file's own base name. `prune` removes jobs of the same source
    that the files no longer have; more than `limits.PRUNE_WITHOUT_YES_MAX` of them, or all of a
    source, only if `is_confirmed`. `system`: crontabs have a user column. `tenant`: for names that
    have none. All jobs that change have to be `within`, and those that they follow, `after` or
    `after_any`, within `reads`. Users that jobs name have to be in `run_as`, unless it is None.
    With `removes_later` the client itself removes jobs of which there are very many, by calls of
    RemoveJobs: the report says how many are `left` to it.
    """

    files: list[SourceFile]
    source: Annotated[str | None, checks.source] = None
    system: bool = False
    prune: bool = False
    is_dry_run: bool = False
    by: Person = ""
    tenant: Annotated[str, tenant_of_files] = DEFAULT_TENANT
    is_confirmed: bool = False
    within: Within = []
    reads: Within = []
    run_as: list[RunAs] | None = None
    removes_later: bool = False

    def check(self) -> None:
        """Refuse no files, and too many."""
        if not self.files:
            raise InvalidInput("apply has no file")
        checks.between(len(self.files), 1, checks.FILES_MAX, "number of files")

    def timeout_ms(self) -> int:
        """Return how long to wait: longer where very many jobs may change."""
        size = sum(len(file.content) for file in self.files)
        return MANY_TIMEOUT_MS if self.prune or size > MANY_BYTES else TIMEOUT_MS


class RemoveRequest(Request, frozen=True, kw_only=True):
    """Jobs to remove, by name, whatever file they came from. With a `source` only its jobs are
    removed, and names of others, or of none, are passed over."""

    jobs: Annotated[list[str], full_names]
    by: Person = ""
    source: Annotated[str | None, checks.source] = None


class RemovedJob(View, frozen=True):
    """A job that was removed, and the source that adds it again with its next apply."""

    job: str
    source: str


class RemoveReport(View, frozen=True, kw_only=True):
    """The jobs that were removed, by name, and the revision of the cell's jobs after that."""

    jobs: list[RemovedJob] = []
    revision: int = 0


class JobChange(View, frozen=True, kw_only=True):
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


class ApplyReport(View, frozen=True, kw_only=True):
    """What an apply did, or would do. `zone` is the default zone; `problems` are warnings. `left`
    jobs of the source are still to be removed: all that `changes` call removed, or none.
    """

    zone: str = "UTC"
    source: str = ""
    revision: int = 0
    changes: list[JobChange] = []
    problems: list[Problem] = []
    is_dry_run: bool = False
    applied: bool = False
    left: int = 0


class ExportRequest(Request, frozen=True, kw_only=True):
    """Which jobs to write as job files: those that fit all that is named, "" names nothing."""

    pattern: Pattern = ""
    tenant: Tenant = ""
    source: Annotated[str | None, checks.source] = None
    within: Within = []


class ExportedJob(View, frozen=True, kw_only=True):
    """A job as a `[[job]]` table of a job file, with the source that it belongs to."""

    job: str
    source: str
    text: str


class RevisionsQuery(Request, frozen=True, kw_only=True):
    """Ask for the revisions of a job, and what differs between one of them and what it is now.
    `revision` 0 is the one before."""

    job: FullJob
    revision: Annotated[int, bound(0, 1 << 53, "revision")] = 0
    payloads: Payloads = []


class RevisionView(View, frozen=True, kw_only=True):
    """A revision of a job: who applied it and when. One that is not `current` is an earlier one."""

    revision: int
    schedule: str = ""
    zone: str = "UTC"
    command: str = ""
    by: str = ""
    at_ms: int = 0
    current: bool = False


class RevisionsReport(View, frozen=True, kw_only=True):
    """The revisions of a job that are kept, newest first; and the fields in which `revision`
    differed from what the job is now. What an environment variable was set to does not show, nor
    what a payload is to a caller who may not see it."""

    job: str
    revision: int = 0
    revisions: list[RevisionView] = []
    fields: list[FieldView] = []


class RollBackRequest(Request, frozen=True, kw_only=True):
    """Make a job what it was in a revision, which becomes a revision of its own. A user that it
    names has to be in `run_as`, unless that is None."""

    job: FullJob
    revision: Annotated[int, bound(1, 1 << 53, "revision")]
    is_dry_run: bool = False
    by: Person = ""
    run_as: list[RunAs] | None = None


class PauseRequest(Request, frozen=True, kw_only=True):
    """Pause the jobs that `pattern` matches; `until_ms` 0 is until somebody resumes them.

    With `is_portion` only some thousand are, in the order of their names, from those after `after`.
    With `is_next` each job is paused until just after its next instant, so that it skips that one.
    """

    pattern: NamedPattern
    reason: Note = ""
    until_ms: Annotated[int, instant("until")] = 0
    by: Person = ""
    after: Pattern = ""
    is_portion: bool = False
    is_next: bool = False

    def check(self) -> None:
        """Refuse two ends."""
        if self.is_next and self.until_ms:
            raise InvalidInput("the next instant and until both say how long", "say one of the two")


class ResumeRequest(Request, frozen=True, kw_only=True):
    """Resume the jobs that `pattern` matches, `after` and `is_portion` as of a pause."""

    pattern: NamedPattern
    by: Person = ""
    after: Pattern = ""
    is_portion: bool = False


class PauseView(View, frozen=True, kw_only=True):
    """The pause of a job that holds now; `until_ms` 0 is until somebody resumes it."""

    job: str
    until_ms: int = 0
    by: str = ""
    reason: str = ""


class PauseReport(View, frozen=True, kw_only=True):
    """The jobs that a pause or resume changed, and those that were so already.

    `pauses` are those of `unchanged` that were paused already, and with `is_next` those of
    `changed` too. Of a portion, `left` is how many
    jobs come after it.
    """

    changed: list[str] = []
    unchanged: list[str] = []
    pauses: list[PauseView] = []
    left: int = 0
