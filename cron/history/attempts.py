"""Audit of one launch: its attempts, one after the other, each between its log points.

Pure. All that is compared are log indexes, which no clock can falsify.
"""

from __future__ import annotations

from collections.abc import Iterator

from cron.history.audited import Finding, FindingKind, OpenRow, is_put_off, is_recalled
from cron.state.rows import Row, RowKind
from launcher.launch import ACTIVE, LaunchState, Reason
from launcher.names import LaunchName

_RAN = frozenset({LaunchState.SUCCEEDED, LaunchState.FAILED, LaunchState.LOST})
_RETRIED = frozenset({LaunchState.LOST, LaunchState.FAILED})

Told = tuple[FindingKind, str]


def audit_launch(name: LaunchName, ended: list[Row], open_rows: list[OpenRow]) -> Iterator[Finding]:
    """Yield what is wrong with one launch.

    `ended` are its ENDED rows in log order, before them the RANGE row that contains it, if any.
    """
    for kind, message in _tell(ended, open_rows):
        yield Finding(name.job, name.scheduled_s, kind, f"{name}: {message}")


def _tell(ended: list[Row], open_rows: list[OpenRow]) -> Iterator[Told]:
    before: Row | None = None
    for row in ended:
        if row.kind is RowKind.ENDED:
            yield from _log_points(row)
        yield from _numbers(before, row.attempt, is_begun=row.begun_index > 0)
        if before is not None:
            yield from _succession(before, row)
        before = row
    for open_row in open_rows:
        yield from _open_log_points(open_row)
        if open_row.state in ACTIVE:
            yield from _numbers(before, open_row.attempt, is_begun=True)
        if before is not None:
            yield from _open_succession(before, open_row)
    if len(open_rows) > 1:
        yield FindingKind.ACCOUNTED_TWICE, f"it is open {len(open_rows)} times"


def _log_points(row: Row) -> Iterator[Told]:
    """Rule R1, SRE book ch. 24: nothing is started before its Begin is committed."""
    what = f"attempt {row.attempt} {row.state.label}"
    in_doubt = row.state is LaunchState.LOST and row.reason is Reason.RESTORED  # rule R13
    has_run = (row.state in _RAN and not in_doubt) or row.launched_index > 0 or row.started_ms > 0
    if has_run and (row.begun_index == 0 or row.attempt == 0):
        yield FindingKind.LOG_POINT, f"{what} without log point 1"
    if row.launched_index == 0 and (row.started_ms > 0 or row.state is LaunchState.SUCCEEDED):
        yield FindingKind.LOG_POINT, f"{what} and was started without log point 2"
    points = [i for i in (row.begun_index, row.launched_index, row.ended_index) if i]
    if points != sorted(points):
        yield FindingKind.LOG_POINT, f"{what} with log points out of order: {points}"


def _open_log_points(row: OpenRow) -> Iterator[Told]:
    what = f"attempt {row.attempt} is {row.state.label}"
    if row.state in ACTIVE and (row.begun_index == 0 or row.attempt == 0):
        yield FindingKind.LOG_POINT, f"{what} without log point 1"
    is_launched = row.state is LaunchState.LAUNCHED
    if (is_launched or row.started_ms > 0) and row.launched_index == 0:
        yield FindingKind.LOG_POINT, f"{what} and was started without log point 2"
    if 0 < row.launched_index < row.begun_index:
        yield FindingKind.LOG_POINT, f"{what} with log point 2 before log point 1"


def _numbers(before: Row | None, attempt: int, *, is_begun: bool) -> Iterator[Told]:
    last = before.attempt if before is not None else 0
    if is_begun and attempt > last + 1:
        missing = str(last + 1) if attempt == last + 2 else f"{last + 1} to {attempt - 1}"
        yield (
            FindingKind.UNRECORDED_ATTEMPT,
            f"attempt {missing} has no row; an attempt that was refused leaves none",
        )


def _succession(before: Row, row: Row) -> Iterator[Told]:
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


def _open_succession(before: Row, row: OpenRow) -> Iterator[Told]:
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
