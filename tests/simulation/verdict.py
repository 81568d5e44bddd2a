"""What is judged once a simulation is over: rows against schedules, rows against the witness, and
that everything came to an end after the faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from cron.history.attempts import EARLY_MS
from cron.history.audit import audit
from cron.history.audited import Finding, FindingKind, is_recalled
from cron.job import Overlap
from cron.launch_state import ACTIVE, LaunchState
from cron.scheduler.due import SWEEP_S
from cron.scheduler.policy import wants_all
from cron.service.proofs import audited_job
from cron.state.context import row_of
from cron.state.rows import Row, RowKind
from cron.state.state import JobRecord, State
from launcher.protocol.names import TASK_MARK, AttemptName, LaunchName
from tests.simulation.checkers import Begun, Judge
from tests.simulation.spawners import FAILS, plan_of

_DONE = LaunchState.SUCCEEDED
LONG_S = 20
"""Of a job that is due so often, and runs no longer, several launches end before the world does."""
AwaitsRow = Callable[[int], str]
REFUSED_MAX = 25
"""Attempts of one launch: two a second while clocks disagree about its deadline, and some more."""


def judge_rows(judge: Judge, state: State, rows: list[Row]) -> None:
    """Audit all jobs, twice: as the product does, and naively (checks f and h)."""
    by_job: dict[str, list[Row]] = {name: [] for name in state.jobs}
    for row in rows:
        if TASK_MARK not in row.job:
            by_job[row.job].append(row)
    for name, record in state.jobs.items():
        ordered = sorted(by_job[name], key=lambda row: row.scheduled_s)
        job = audited_job(record)
        still_open = [row_of(state, row) for row in state.open_of(record).values()]
        known = sorted([*ordered, *still_open], key=lambda row: row.scheduled_s)
        for finding in audit(job, known, job.forgotten_s, record.horizon_s):
            if finding.is_violation and not _was_early(judge, finding):
                judge.accuse("h", f"audit: {finding.kind}: {finding.message}")
        waiting = [at_s for at_s, trigger in state.open_of(record) if not trigger]
        _count_instants(judge, record, ordered, waiting)
    for row in rows:
        if row.kind is RowKind.ENDED and row.begun_index:
            # Not what was reopened and did not begin again: it keeps its attempt's number.
            _look(judge, row)


def _was_early(judge: Judge, finding: Finding) -> bool:
    """Whether an audit is right that a launch started before its time: its leader's clock was an
    hour ahead."""
    if finding.kind is not FindingKind.EARLY:
        return False
    launch, at_ms = (finding.job, finding.scheduled_s), finding.scheduled_s * 1000
    return any(
        0 < one.started_ms < at_ms - EARLY_MS // 2
        for one in judge.begun.values()
        if (one.job, one.name.launch.scheduled_s) == launch
    )


def _count_instants(judge: Judge, record: JobRecord, rows: list[Row], open_s: list[int]) -> None:
    """Each instant, by plain arithmetic, has one row that accounts for it (check f)."""
    expected = Counter(_instants(record))
    found: Counter[int] = Counter()
    seen: dict[int, None] = dict.fromkeys(open_s)
    for row in rows:
        if row.trigger or row.kind is RowKind.AMENDMENT:
            continue
        if row.kind is RowKind.RANGE:
            found.update(t for t in expected if row.scheduled_s <= t <= row.last_s)
        elif row.attempt == 0 and not row.by:
            found[row.scheduled_s] += 1
        else:
            seen[row.scheduled_s] = None
    for at_s in sorted(expected):
        if expected[at_s] != 1:
            judge.accuse("f", f"{LaunchName(record.name, at_s)} belongs to two revisions")
        if found[at_s] > 1:
            judge.accuse("f", f"{LaunchName(record.name, at_s)} was skipped {found[at_s]} times")
        if not found[at_s] and at_s not in seen:
            judge.accuse("f", f"{LaunchName(record.name, at_s)} has no row")


def _instants(record: JobRecord) -> Iterable[int]:
    for span in record.spans:
        every_s = span.schedule.every_s
        until_s = span.to_s or record.horizon_s
        first = span.from_s // every_s * every_s + every_s
        yield from range(first, min(until_s, record.horizon_s) + 1, every_s)


def _look(judge: Judge, row: Row) -> None:
    """What a row says against what the witness saw (checks c, h and p)."""
    name = AttemptName(LaunchName(row.job, row.scheduled_s, row.trigger), row.attempt)
    begun = judge.parts_of(name)
    if not begun:
        judge.accuse("h", f"{name} is {row.state.label} and was never begun")
        return
    is_taken_back = not row.parts and row.state in (LaunchState.SKIPPED, LaunchState.CANCELLED)
    if len(begun) == 1 or is_taken_back:
        for seen in begun:
            _compare(judge, seen, row.state, is_started=row.started_ms > 0)
        return
    if is_recalled(row):
        return  # judged when it was recorded
    if len(row.parts) != len(begun):
        judge.accuse("p", f"{name} has {len(row.parts)} parts, and {len(begun)} were begun")
        return
    for part, seen in zip(row.parts, begun, strict=True):
        _compare(judge, seen, part.state, is_started=part.started_ms > 0)
        if (part.name, part.ledger) != (seen.executor, seen.ledger):
            judge.accuse("p", f"{seen.name} ran on {seen.executor}, its row says {part.name}")
        if part.state in ACTIVE:
            judge.accuse("p", f"{seen.name} is {part.state.label}, and its launch is over")
    states = [part.state for part in row.parts]
    if row.state is not _whole(states, is_cancelled=begun[0].is_cancelled):
        judge.accuse("p", f"{name} is {row.state.label} of parts {[one.label for one in states]}")


def _whole(states: list[LaunchState], *, is_cancelled: bool) -> LaunchState:
    """What becomes of a launch of these parts; where none ran, nobody wanted it any more."""
    if LaunchState.LOST in states:
        return LaunchState.LOST
    if LaunchState.FAILED in states:
        return LaunchState.FAILED
    never_ran = states.count(LaunchState.SKIPPED)
    if 0 < never_ran < len(states) and not is_cancelled:
        return LaunchState.FAILED
    return LaunchState.CANCELLED if never_ran or LaunchState.CANCELLED in states else _DONE


def _compare(judge: Judge, seen: Begun, state: LaunchState, *, is_started: bool) -> None:
    if state is LaunchState.SKIPPED and (seen.started_ms or not seen.never_ran):
        judge.accuse("c", f"{seen.name} is skipped, and was started or never refused")
    if state is LaunchState.SUCCEEDED and not (seen.started_ms and seen.ended_ms):
        judge.accuse("h", f"{seen.name} succeeded, and the witness saw no run of it")
    if state is LaunchState.SUCCEEDED and (seen.exit_code or seen.reason):
        judge.accuse("h", f"{seen.name} succeeded with exit {seen.exit_code}")
    if state is LaunchState.FAILED and not seen.started_ms:
        judge.accuse("h", f"{seen.name} failed, and the witness saw no run of it")
    if state is LaunchState.CANCELLED and not is_started and seen.started_ms:
        judge.accuse("c", f"{seen.name} is cancelled before its start, and was started")


def judge_progress(judge: Judge, state: State, calm_ms: int, now_ms: int) -> None:
    """Something starts at all, and after the faults, where it can, and some of that succeeds (check
    n): a cell that launches nothing would keep all other promises."""
    if not judge.started:
        judge.accuse("n", "nothing was started at all")
    able = [record for record in state.by_number.values() if _is_able(record, calm_ms, now_ms)]
    restored = state.restored
    if restored is not None and not 0 < restored.resolved_at_ms < calm_ms:
        return
    if able and judge.newest_start_ms < calm_ms:
        judge.accuse("n", f"nothing was started in {(now_ms - calm_ms) // 1000} s without faults")
    if any(map(_can_succeed, able)) and judge.newest_success_ms < calm_ms:
        judge.accuse("n", f"nothing succeeded in {(now_ms - calm_ms) // 1000} s without faults")


def _is_able(record: JobRecord, calm_ms: int, now_ms: int) -> bool:
    """Whether any executor could run a job, and its instants fell due all the while: a leader whose
    clock was ahead has accounted for those of some time to come."""
    job = record.job
    if job is None or job.has_parts or job.work.handler or record.paused is not None:
        return False
    return record.spans[0].from_s * 1000 < calm_ms and record.horizon_s * 1000 < now_ms + 10_000


def _can_succeed(record: JobRecord) -> bool:
    """Whether launches of a job neither fail, nor run long, nor are ended by the next one."""
    job = record.job
    if job is None or job.work.timeout_ms or job.overlap is Overlap.REPLACE:
        return False
    run_s, fails, _ = plan_of(job.work.argv[-1])
    return max(run_s, job.schedule.every_s) <= LONG_S and fails <= FAILS


def _nothing_waits(number: int) -> str:
    return ""


def judge_liveness(
    judge: Judge, state: State, calm_ms: int, now_ms: int, awaits_row: AwaitsRow = _nothing_waits
) -> None:
    """After the faults everything ends in time, and horizons follow the clock (check l)."""
    for row in state.open_rows():
        name = state.launch_name(row.key)
        # Lease, window, a run of 90 s and a third more, and a minute of grace.
        limit_ms = max(calm_ms + 60_000, row.deadline_ms) + (30 + 30 + 60) * 1000
        if row.state is LaunchState.LAUNCHED:
            limit_ms = max(limit_ms, row.launched_at_ms + 200_000)
        if now_ms > limit_ms:
            judge.accuse("l", f"{name} is {row.state.label} since {row.begun_at_ms}")
        if row.state is LaunchState.DUE and now_ms > max(row.deadline_ms, calm_ms) + 30_000:
            judge.accuse("l", f"{name} is due past its deadline")
        is_begun = any(start.state is LaunchState.BEGUN for start in row.starts())
        is_stale = row.state in ACTIVE and is_begun and now_ms - row.begun_at_ms > 75_000
        if is_stale and row.begun_at_ms < calm_ms + 60_000:
            judge.accuse("l", f"{name} is begun for {now_ms - row.begun_at_ms} ms")
    refused = Counter(one.name.launch for one in judge.begun.values() if one.never_ran)
    for launch, times in refused.items():
        if times > REFUSED_MAX:
            judge.accuse("l", f"{launch} was refused {times} times")
    for record in state.by_number.values():
        if record.job is None or record.task:
            continue
        behind_s = now_ms // 1000 - record.horizon_s
        waits_s = 0
        if awaits_row(record.number):  # without a row, for room: a sweep comes by and by
            waits_s = 2 * SWEEP_S + (record.job.deadline_s if wants_all(record.job) else 0)
        if behind_s > record.job.schedule.every_s + 10 + waits_s:
            judge.accuse("l", f"the horizon of {record.name} is {behind_s} s behind")
