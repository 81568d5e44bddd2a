"""What the API shows of the pool and is asked about it; as in `cron.api.views`.

A `pool` is the name of a handler, or `command`. Scopes and filters name what they are about: ""
and, for a priority, -1 is any.
"""

from __future__ import annotations

import msgspec


class JobNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asks of the pool.

    `payload` is what its handler is given, cut to what people read. It is tried `tries` times in
    all. `dead` is how many of its launches were given up and wait for a person.
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


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one scope; 0 is "not limited". `tenant` "" is all together, "*" each by itself.

    What they mean is said in `cron.state.pool.Limits`. `rate_milli` are starts in 1,000 seconds.
    `notes` say what of the scope nobody has, where limits were set just now.
    """

    tenant: str = ""
    pool: str = ""
    priority: int = -1
    weight: int = 0
    concurrent: int = 0
    burst: int = 0
    rate_milli: int = 0
    waiting_max: int = 0
    reserved: int = 0
    retry_budget: int = 0
    notes: list[str] = []


class LimitChange(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one scope to set: None keeps what there is, 0 takes it away."""

    tenant: str = ""
    pool: str = ""
    priority: int = -1
    weight: int | None = None
    concurrent: int | None = None
    burst: int | None = None
    rate_milli: int | None = None
    waiting_max: int | None = None
    reserved: int | None = None
    retry_budget: int | None = None
    by: str = ""


class LimitRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """A scope whose limits are to be taken away."""

    tenant: str = ""
    pool: str = ""
    priority: int = -1
    by: str = ""


class LimitsReport(msgspec.Struct, frozen=True, kw_only=True):
    """All limits that were set, by scope."""

    limits: list[LimitView] = []


class GateView(msgspec.Struct, frozen=True, kw_only=True):
    """A closed gate. `action` is pause or drop; `until_ms` 0 is until somebody opens it.

    `notes` say what it names that nobody has, where it was closed just now.
    """

    number: int
    action: str = ""
    reason: str = ""
    by: str = ""
    since_ms: int = 0
    until_ms: int = 0
    pool: str = ""
    collection: str = ""
    tenant: str = ""
    jobs: str = ""
    priority: int = -1
    notes: list[str] = []


class GateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A gate to close. `is_everything`: it names nothing, and that is meant."""

    action: str = "pause"
    reason: str = ""
    until_ms: int = 0
    pool: str = ""
    collection: str = ""
    tenant: str = ""
    jobs: str = ""
    priority: int = -1
    is_everything: bool = False
    by: str = ""


class GateOpening(msgspec.Struct, frozen=True, kw_only=True):
    """Gates to open, by number."""

    numbers: list[int]
    by: str = ""


class GatesReport(msgspec.Struct, frozen=True, kw_only=True):
    """Gates by number: those that are closed, or those that were opened and what of the numbers
    that were asked for names none."""

    gates: list[GateView] = []
    unknown: list[int] = []


class DeadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters are meant: those that fit all that is named, the oldest first; with
    `is_newest` the newest first, where they are only looked at.

    `launch` is one alone, `jobs` a pattern of job names. `since_ms` is inclusive, `until_ms`
    exclusive, both of when they died, 0 for no bound.
    """

    launch: str = ""
    jobs: str = ""
    tenant: str = ""
    pool: str = ""
    reason: str = ""
    since_ms: int = 0
    until_ms: int = 0
    limit: int = 50
    is_newest: bool = False
    collection: str = ""


class DeadView(msgspec.Struct, frozen=True, kw_only=True):
    """A launch that is not tried again unless somebody says so, and its last attempt.

    `job` is the full name. `tries` counts attempts that failed. `is_gone`: the job was removed.
    """

    launch: str
    job: str = ""
    pool: str = ""
    attempt: int = 0
    tries: int = 0
    state: str = ""
    reason: str = ""
    died_at_ms: int = 0
    exit_code: int | None = None
    detail: str = ""
    executor: str = ""
    output_bytes: int = 0
    is_gone: bool = False


class DeadReport(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters, in the order that was asked for; `total` is how many fit."""

    letters: list[DeadView] = []
    total: int = 0


class DeadChange(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters to launch again or to forget.

    `is_everything`: the query names nothing, and that is meant. Without it such a change is
    refused, unless it is a dry run.
    """

    query: DeadQuery
    is_dry_run: bool = False
    by: str = ""
    is_everything: bool = False


class DeadOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The launches that were, or would be, launched again or forgotten; names, oldest first.

    `kept` are those of which that is not possible, and why; `left` is how many more fit.
    `collection` repeats the query's: a replica that does not know the filter leaves it empty.
    """

    launches: list[str] = []
    kept: list[str] = []
    left: int = 0
    is_dry_run: bool = False
    collection: str = ""


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """Worker processes of an executor that share their slots, and the handlers they serve.

    `open` launches were begun there and are not over; only in ExecutorDetail.
    """

    group: str
    slots: int = 0
    handlers: list[str] = []
    open: int = 0


class ExecutorView(msgspec.Struct, frozen=True, kw_only=True):
    """An executor, as the leader sees it.

    `role` is connected or in-doubt; left, where one is drained that was drained before and is gone.
    `open` launches were begun there and are not over, `running` is what it last said that it runs.
    `labels` are `name=value`. `silent_ms` is since it was heard. `gets_work`: it is leased, its
    clock is right, and it is not drained. `note` says why not. `incarnation` is of its process,
    `joined_ms` when the log last let it in.
    """

    id: str
    role: str = ""
    host: str = ""
    address: str = ""
    pid: int = 0
    version: str = ""
    slots: int = 0
    open: int = 0
    running: int = 0
    labels: list[str] = []
    groups: list[GroupView] = []
    cpu_milli: int = 0
    memory_bytes: int = 0
    silent_ms: int | None = None
    clock_offset_ms: int | None = None
    connected_since_ms: int = 0
    drained_by: str = ""
    drained_ms: int = 0
    gets_work: bool = False
    ledger: str = ""
    note: str = ""
    incarnation: str = ""
    joined_ms: int = 0


class TwinView(msgspec.Struct, frozen=True, kw_only=True):
    """A process that was refused because another one has its id.

    That was last `ago_ms` ago, and `times` in all. `held_by` says which process has the id.
    """

    executor: str
    host: str = ""
    pid: int = 0
    address: str = ""
    held_by: str = ""
    ago_ms: int = 0
    times: int = 0


class ExecutorsReport(msgspec.Struct, frozen=True, kw_only=True):
    """All executors, by id, and the processes that were refused because another one has their
    id."""

    executors: list[ExecutorView] = []
    twins: list[TwinView] = []


class ExecutorQuery(msgspec.Struct, frozen=True, kw_only=True):
    """An executor that is asked about, and how many of its launches are to be shown."""

    executor: str
    limit: int = 20


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt, or a part of one, that was begun on an executor and is not over.

    `part` is 0 where the launch has one alone. `started_at_ms` is 0 until it is known to run.
    `is_cancelled`: it is being ended.
    """

    launch: str
    attempt: int = 0
    part: int = 0
    state: str = ""
    pool: str = ""
    begun_at_ms: int = 0
    started_at_ms: int = 0
    is_cancelled: bool = False


class ExecutorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One executor with one ledger, and what is open there, those that began first.

    `commands` of the open launches are commands, for which it has `slots`; the others are counted
    in their groups.
    """

    executor: ExecutorView
    commands: int = 0
    runs: list[RunView] = []


class ExecutorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of one id, the connected one first, as of `now_ms`."""

    details: list[ExecutorDetail] = []
    twins: list[TwinView] = []
    now_ms: int = 0


class DrainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An executor that is to get no more work, or work again where `is_over`."""

    executor: str
    is_over: bool = False
    by: str = ""


class QueueQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which queues are meant."""

    tenant: str = ""
    pool: str = ""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """What waits and runs of one tenant in one queue, and the limit that is reached there. Jobs
    behind have an instant that fell due and has no row yet, since more falls due than can begin."""

    pool: str
    priority: int = 0
    tenant: str = ""
    waiting: int = 0
    running: int = 0
    oldest_ms: int = 0
    blocked_by: str = ""
    jobs_behind: int = 0


class QueuesReport(msgspec.Struct, frozen=True, kw_only=True):
    """Queues by pool, priority and tenant, as of `now_ms`."""

    queues: list[QueueView] = []
    now_ms: int = 0


class WaitQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Whose waiting is asked about: a launch, or all open launches of a job (or of those that a
    pattern matches) or a collection."""

    launch: str = ""
    job: str = ""
    limit: int = 50
    collection: str = ""


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """Where one open launch stands.

    `ahead` is how many of its tenant's queue wait before it, None where it does not wait.
    `waiting` says for what; `until_ms` is when that is over, if a clock decides it.
    """

    launch: str
    state: str = ""
    pool: str = ""
    priority: int = 0
    tenant: str = ""
    ahead: int | None = None
    due_ms: int = 0
    deadline_ms: int = 0
    waiting: str = ""
    until_ms: int = 0
    executor: str = ""


class WaitsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where open launches stand, oldest first; `total` is how many there are."""

    waits: list[WaitView] = []
    total: int = 0
    now_ms: int = 0
