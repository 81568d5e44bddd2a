"""Launches and attempts: what is shown of them, asked about them, and done to them."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from cron import limits
from cron.api import checks
from cron.api.checks import (
    Collection,
    FullJob,
    JobOrTask,
    LaunchText,
    Person,
    Pool,
    RequestId,
    Tenant,
    Within,
    bound,
    instant,
    pattern_or_all,
    second,
)
from cron.api.rpc import Request, View
from cron.errors import InvalidInput


def part_number(number: int) -> int:
    """Return the number of a part, from 1; a request that says none means the first."""
    return checks.between(number or 1, 1, limits.PARTS_MAX, "part")


class LaunchView(View, frozen=True, kw_only=True):
    """One attempt of a launch, a part of one, a launch that has not begun yet (attempt 0), or a
    dead letter: a launch with its last attempt.

    `job` is the name without its tenant. `state` and `reason` are the labels of `LaunchState`,
    `Reason`; an open launch has a reason if it is being ended. `begun_at_ms` and `launched_at_ms`
    are the times in the two log points, `begun_index` and `launched_index` their log indexes;
    `started_at_ms` and `finished_at_ms` are the executor's. `lateness_ms` is started - scheduled.
    `epoch` is `generation.term.replica`, `term` and `replica` are parts of it. `waiting` says why
    an open launch has not begun. `count` is above 1 for a run of skipped instants in one row, from
    `scheduled_s` to `last_s`. `kind` is `launch`, `range` or `amendment` (a late report about a
    lost attempt, rule R9). `output_bytes` is what its executor kept of its output when it ended, 0
    where none is known.

    `ended_index` and `number` are the key of a row of history. `amends` is the key of the row that
    an amendment is about, `INDEX.NUMBER`, or its index alone where that row has no number.
    `is_amended`: a lost attempt with its late report, as begun by the one row and ended by the
    other. `cpu_ms` and `memory_peak_bytes` are what its executor measured.

    `part` is the number of a part, 0 for a whole attempt; `parts` have neither names nor times of
    log points. `pool` and `priority` are the queue of an open launch or dead letter; a dead letter
    whose job was removed has no pool. `due_at_ms` is since when an open launch waits, `ahead` how
    many of its tenant's queue wait before it, `until_ms` when `waiting` is over if a clock decides
    it. `tries` counts attempts of a dead letter that failed. `limits` has the limits of cpu and
    memory that the launch has begun with, and how its executor holds them now; where all of one
    launch is shown.
    A dead letter of a job stands for `count` launches that ended alike; it is that of the newest,
    `first` is the name of the first, `others` are those of some before the newest.
    """

    launch: str = ""
    job: str = ""
    tenant: str = ""
    scheduled_s: int = 0
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
    parts: list[LaunchView] = []
    number: int | None = None
    amends: str = ""
    is_amended: bool = False
    cpu_ms: int | None = None
    memory_peak_bytes: int | None = None
    part: int = 0
    pool: str = ""
    priority: int = 0
    due_at_ms: int = 0
    ahead: int | None = None
    until_ms: int = 0
    tries: int = 0
    limits: str = ""
    first: str = ""
    others: list[str] = []


class HistoryCursor(Request, frozen=True, kw_only=True):
    """A launch that was shown, after which the next page of a list goes on; as in LaunchView.

    `launch` has no default: what has its default is not checked, and "" is no name.
    """

    scheduled_s: int
    attempt: int = 0
    ended_index: int = 0
    launch: LaunchText
    number: int = -1
    is_failure: bool = False


def cursor_at(view: LaunchView) -> HistoryCursor:
    """Return the place of a launch in a list."""
    # A task that ended before its time is listed by its end.
    is_early = 0 < view.last_s < view.scheduled_s
    return HistoryCursor(
        scheduled_s=view.last_s if is_early else view.scheduled_s,
        attempt=view.attempt,
        ended_index=view.ended_index,
        launch=view.launch,
        number=-1 if view.number is None else view.number,
        is_failure=view.state in ("failed", "lost"),
    )


class HistoryQuery(Request, frozen=True, kw_only=True):
    """Which launches to show, newest first, open ones included.

    `job` is a name or a pattern, "" for all. With `is_all` lost attempts and their late reports are
    rows of their own, else one launch. `after` is the last launch of the page before.
    """

    job: Annotated[str, pattern_or_all] = ""
    states: Annotated[list[str], checks.states] = msgspec.field(default_factory=list)
    since_ms: Annotated[int, instant("since")] = 0
    until_ms: Annotated[int, instant("until")] = 0
    limit: Annotated[int, bound(1, limits.HISTORY_PAGE_MAX, "limit")] = 50
    archive: bool = False
    tenant: Tenant = ""
    pool: Pool = ""
    collection: Collection = ""
    is_all: bool = False
    after: HistoryCursor | None = None
    within: Within = msgspec.field(default_factory=list)


class OutputQuery(Request, frozen=True, kw_only=True):
    """Which part of a launch's output to show.

    `attempt` 0 is the newest, `part` one of several it ran in. `tail` asks for the last `limit`
    bytes instead of those at `offset`.
    """

    launch: LaunchText
    attempt: Annotated[int, bound(0, 1 << 31, "attempt")] = 0
    offset: Annotated[int, bound(0, 1 << 62, "offset")] = 0
    limit: Annotated[int, bound(1, checks.OUTPUT_BYTES_MAX, "limit")] = 65_536
    tail: bool = False
    part: Annotated[int, part_number] = 1


class OutputView(View, frozen=True, kw_only=True):
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


class StoryLine(View, frozen=True):
    """One thing that happened, oldest first; `at_ms` 0 where there is no time to it."""

    at_ms: int
    text: str


class WhyReport(View, frozen=True, kw_only=True):
    """What became of one instant of a job: the verdict in one line, and how it came to it."""

    job: str
    at_s: int
    verdict: str
    story: list[StoryLine] = []
    launches: list[LaunchView] = []


class BackfillRequest(Request, frozen=True, kw_only=True):
    """Make the skipped, lost or failed instants in [from_s, to_s) due again (rule R1)."""

    job: FullJob
    from_s: Annotated[int, second("from")]
    to_s: Annotated[int, second("to")]
    is_dry_run: bool = False
    by: Person = ""

    def check(self) -> None:
        """Refuse a range that is empty."""
        if self.to_s <= self.from_s:
            raise InvalidInput("range is empty: its end is not after its begin")


class BackfillReport(View, frozen=True, kw_only=True):
    """The launches that a backfill reopened, or would reopen; names, oldest first. The first
    `before` of them are from before the job was first applied, at `applied_s`."""

    launches: list[str] = []
    is_dry_run: bool = False
    before: int = 0
    applied_s: int = 0


class TriggerRequest(Request, frozen=True, kw_only=True):
    """Launch a job now. The client draws `request_id` and repeats it when it asks again: the answer
    is then the same launch."""

    job: FullJob
    request_id: RequestId
    by: Person = ""


class KillRequest(Request, frozen=True, kw_only=True):
    """Cancel a launch. The kill is sent once the cancellation is committed (rule R8)."""

    launch: LaunchText
    by: Person = ""


class ShowRequest(Request, frozen=True, kw_only=True):
    """Show all attempts of a launch, newest last."""

    launch: LaunchText


class WhyRequest(Request, frozen=True, kw_only=True):
    """Explain what became of an instant of a job, or of a task; with `is_nearest` of the newest
    instant that is not after `at_s`, if there is one."""

    job: JobOrTask
    at_s: Annotated[int, second("time")]
    is_nearest: bool = False


TASKS_BEGIN: Final = 16 * "0"


class AuditRequest(Request, frozen=True, kw_only=True):
    """Prove the history of a job or a task, "" for all, since a time, 0 for the beginning.

    `tasks_after` asks for an audit of all in parts: `TASKS_BEGIN` for the first part, then what the
    report before has as `tasks_next`. Later parts are about tasks alone.
    """

    job: JobOrTask = ""
    since_ms: Annotated[int, instant("since")] = 0
    tasks_after: Annotated[str, checks.matching("([0-9a-f]{16})?", "{} is no tasks_next")] = ""

    def check(self) -> None:
        """Refuse parts of a single job or task."""
        if self.job and self.tasks_after:
            raise InvalidInput("an audit of one job or task has no parts")

    def timeout_ms(self) -> int:
        """Return how long to wait. A read is asked elsewhere after a third of its time, and that is
        longer than an audit takes."""
        return 4 * limits.AUDIT_MS_MAX


class Violation(View, frozen=True, kw_only=True):
    """A broken promise that an audit found. `kind` is a stable word, `message` is for people."""

    job: str
    scheduled_s: int
    kind: str
    message: str


class AuditReport(View, frozen=True, kw_only=True):
    """What an audit counted and what it found.

    Without violations, each of `instants`, those of the schedules in the period, is one of: `ran`
    (an attempt was begun and started), `not_started` (each one that was begun failed before its
    start, see its reason), `skipped` (or cancelled before it began, with a
    row of its own), `skipped_in_runs` (one row for many; there are `runs` of them), `lost` (by a
    restore: nobody knows whether it ran; in `lost_stretches` rows), `open` (not over; passes).
    Besides these: `extra_attempts` (backfills and retries: attempts of launches that
    were over before, or were never due), `manual` launches, and `amendments` (late reports, R9).
    `launches` is `ran`, `not_started` and `manual`. Schedules of a part of the period, which ends
    at `forgotten_until_ms`, may be forgotten, and are not proven; 0 if all are known.

    `tasks` are those that the cell remembers and that are due in the period: each is one of
    `tasks_open` (not over), `tasks_ran`, `tasks_dropped` (cancelled or skipped before they began),
    and `tasks_lost`. With `tasks_next` the audit was asked for in parts, and there is another one.
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
    tasks: int = 0
    tasks_open: int = 0
    tasks_ran: int = 0
    tasks_dropped: int = 0
    tasks_lost: int = 0
    tasks_next: str = ""
    not_started: int = 0
