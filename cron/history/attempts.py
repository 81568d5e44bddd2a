"""Audit of launches: the attempts of one, each between its log points, and those of one job against
each other.

Pure. Of one launch all that is compared are log indexes, which no clock can falsify, and whether it
started before its time by more than clocks may differ. Whether two launches ran at the same time is
judged by the executors' times, whose clocks differ; so two of which the log proves that one ended
before the other was begun never count as overlapping. A lost launch counts as running until it was
given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from cron.history.audited import AuditedJob, Finding, FindingKind, is_put_off, is_recalled
from cron.job import Overlap
from cron.launch_state import ACTIVE, LaunchState
from cron.limits import LIFE_ENTRIES
from cron.state.rows import Row, RowKind
from launcher.protocol.names import LaunchName, format_time
from launcher.protocol.status import Reason

EARLY_MS: Final = 20_000
"""What a leader may be ahead of the other replicas, and an executor behind it (rule R10)."""
_BEGAN = ACTIVE | {LaunchState.SUCCEEDED, LaunchState.FAILED, LaunchState.LOST}
_STARTED = frozenset({LaunchState.LAUNCHED, LaunchState.SUCCEEDED})
_RETRIED = frozenset({LaunchState.LOST, LaunchState.FAILED})

Violation = tuple[FindingKind, str]


def audit_launch(
    name: LaunchName, ended: list[Row], open_rows: list[Row], reset_index: int = 0
) -> Iterator[Finding]:
    """Yield what is wrong with one launch.

    `ended` are its ENDED rows in log order, before them the RANGE row that contains it, if any.
    Times of what began up to `reset_index` prove nothing.
    """
    for kind, message in _violations(ended, open_rows):
        yield Finding(name.job, name.scheduled_s, kind, f"{name}: {message}")
    for row in (*ended, *open_rows):
        if is_early(row, reset_index):
            early_s = row.scheduled_s - row.started_ms // 1000
            text = f"attempt {row.attempt} started {early_s} s before its scheduled time"
            why = "the leader's clock was wrong, or these are the times of another launch"
            yield Finding(name.job, name.scheduled_s, FindingKind.EARLY, f"{name}: {text}: {why}")


def is_early(row: Row, reset_index: int = 0) -> bool:
    """Whether a launch started before its scheduled time, by more than clocks may differ: nothing
    is ordered before its time, so its leader's clock was wrong, or its executor's report was about
    something else. Times of what began up to `reset_index`, where the cell's time was set back,
    prove nothing."""
    is_ahead = 0 < row.started_ms < row.scheduled_s * 1000 - EARLY_MS
    return is_ahead and row.begun_index > reset_index


def _violations(ended: list[Row], open_rows: list[Row]) -> Iterator[Violation]:
    before: Row | None = None
    for row in ended:
        if row.kind is RowKind.ENDED:
            yield from _log_points(row)
        yield from _numbers(before, row.attempt, is_begun=row.begun_index > 0)
        if before is not None:
            yield from _succession(before, row)
        before = row
    for open_row in open_rows:
        yield from _log_points(open_row)
        if open_row.state in ACTIVE:
            yield from _numbers(before, open_row.attempt, is_begun=True)
        if before is not None:
            yield from _open_succession(before, open_row)
    if len(open_rows) > 1:
        yield FindingKind.ACCOUNTED_TWICE, f"it is open {len(open_rows)} times"


def _log_points(row: Row) -> Iterator[Violation]:
    """Rule R1, SRE book ch. 24: nothing is started before its Begin is committed."""
    what = f"attempt {row.attempt} {'is ' if row.kind is RowKind.OPEN else ''}{row.state.label}"
    in_doubt = row.state is LaunchState.LOST and row.reason is Reason.RESTORED  # rule R13
    has_begun = row.state in _BEGAN and not in_doubt
    has_begun = has_begun or row.launched_index > 0 or row.started_ms > 0
    if has_begun and (row.begun_index == 0 or row.attempt == 0):
        yield FindingKind.LOG_POINT, f"{what} without log point 1"
    if row.launched_index == 0 and (row.started_ms > 0 or row.state in _STARTED):
        yield FindingKind.LOG_POINT, f"{what} and was started without log point 2"
    points = [i for i in (row.begun_index, row.launched_index, row.ended_index) if i]
    if points != sorted(points):
        yield FindingKind.LOG_POINT, f"{what} with log points out of order: {points}"


def _numbers(before: Row | None, attempt: int, *, is_begun: bool) -> Iterator[Violation]:
    last = before.attempt if before is not None else 0
    if is_begun and attempt > last + 1:
        missing = str(last + 1) if attempt == last + 2 else f"{last + 1} to {attempt - 1}"
        yield (
            FindingKind.UNRECORDED_ATTEMPT,
            f"attempt {missing} has no row; an attempt that was refused leaves none",
        )


def _succession(before: Row, row: Row) -> Iterator[Violation]:
    """What may follow the end of a launch: the next attempt where one was lost, failed or was put
    off, what became of it before it could begin, or what a person reopened.

    Of what a restored cell learned from its executors only the ends are known, all at one index.
    """
    if is_recalled(row) and before.state is not LaunchState.SUCCEEDED:
        return
    # One that waited for its next attempt has the number of the one before; an instant that was
    # accounted for twice has none.
    is_next = row.begun_index > 0 or row.attempt >= before.attempt > 0
    is_retry = is_next and (before.state in _RETRIED or is_put_off(before))
    is_again = row.begun_index > 0 and row.attempt <= before.attempt
    # An entry with its failure may also have what replaced it while it waited for its next attempt.
    waited = is_retry and row.begun_index == 0 and row.ended_index == before.ended_index
    may_follow = (is_retry or bool(row.by)) and before.state is not LaunchState.SUCCEEDED
    is_after = row.ended_index > before.ended_index or waited
    if not is_after or is_again or not may_follow:
        yield (
            FindingKind.ACCOUNTED_TWICE,
            f"{_named(row)} at index {row.ended_index} follows {_named(before)} at index "
            f"{before.ended_index}, and nobody reopened it",
        )
    if 0 < row.begun_index < before.ended_index:
        yield (
            FindingKind.ATTEMPTS_AT_ONCE,
            f"{_named(row)} was begun at index {row.begun_index}, before {_named(before)} ended at "
            f"index {before.ended_index}",
        )


def _open_succession(before: Row, row: Row) -> Iterator[Violation]:
    if before.state is LaunchState.SUCCEEDED:
        yield FindingKind.ACCOUNTED_TWICE, f"it is {row.state.label} though it succeeded"
    if row.state not in ACTIVE or is_recalled(row):
        return
    if row.attempt <= before.attempt:
        yield FindingKind.ACCOUNTED_TWICE, f"attempt {row.attempt} is open and has ended"
    if row.begun_index < before.ended_index:
        yield (
            FindingKind.ATTEMPTS_AT_ONCE,
            f"attempt {row.attempt} was begun at index {row.begun_index}, before {_named(before)} "
            f"ended at index {before.ended_index}",
        )


def _named(row: Row) -> str:
    if row.kind is RowKind.RANGE:
        return "the range of skipped instants"
    return f"attempt {row.attempt} ({row.state.label})"


# --- launches of one job against each other


_NEVER = 1 << 62


def audit_overlaps(job: AuditedJob, attempts: Iterable[Row]) -> Iterator[Finding]:
    """Yield each pair of launches of `job` that ran at once though the later one's revision says
    that it must not. `attempts` are ended and open ones, in any order."""
    runs = [(_runs_until_ms(row), row) for row in attempts if row.started_ms]
    runs = [(until_ms, row) for until_ms, row in runs if until_ms]
    runs.sort(key=lambda run: (run[1].started_ms, run[0], run[1].scheduled_s, run[1].trigger))
    running: list[tuple[int, Row]] = []
    for run in runs:
        row = run[1]
        running = [other for other in running if other[0] > row.started_ms]
        for _, other in running:
            first, later = sorted((other, row), key=lambda one: (one.begun_index, one.scheduled_s))
            if _must_not(job, first, later):
                yield _finding(job, first, later)
        running.append(run)


def _runs_until_ms(row: Row) -> int:
    """Return when an attempt that was started had ended; 0 if nobody knows."""
    if row.kind is RowKind.OPEN:
        return _NEVER
    if row.finished_ms or row.state is not LaunchState.LOST:
        return row.finished_ms
    # Given up in a later life of the cell: when it ended nobody knows.
    is_of_earlier_life = 0 < row.epoch.generation <= row.ended_index // LIFE_ENTRIES
    return 0 if is_of_earlier_life else row.ended_at_ms


def _must_not(job: AuditedJob, first: Row, later: Row) -> bool:
    if (first.scheduled_s, first.trigger) == (later.scheduled_s, later.trigger):
        return False  # attempts of one launch are audited by their log indexes
    if is_recalled(later):
        return False  # by which revision it began is not known (rule R13)
    if first.kind is not RowKind.OPEN and later.begun_index >= first.ended_index:
        return False
    return job.overlap_of(later.revision, later.scheduled_s) is not Overlap.ALLOW


def _finding(job: AuditedJob, first: Row, later: Row) -> Finding:
    first_name = LaunchName(job.name, first.scheduled_s, first.trigger)
    later_name = LaunchName(job.name, later.scheduled_s, later.trigger)
    since = format_time(later.started_ms // 1000)
    return Finding(
        job.name,
        later.scheduled_s,
        FindingKind.OVERLAP,
        f"{later_name}: was started at {since} while {first_name} was running",
    )
