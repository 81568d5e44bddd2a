"""Audit: every instant has exactly one launch, and every launch its log points (promise 1, R1, R5).

Theory of operation. The rows of one job, in scheduled order, are walked side by side with the
instants of its revisions' schedules. Each instant must be spoken for by one launch or by one range
of skipped instants; each row must speak of an instant. Then each launch is audited by itself, and
all launches of a job that forbids overlap against each other (`attempts.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from cron.history.attempts import audit_launch, audit_overlaps, is_early
from cron.history.audited import AuditedJob, Finding, FindingKind, is_recalled
from cron.job import Overlap
from cron.launch_state import LaunchState
from cron.state.rows import Row, RowKind
from launcher.protocol.names import LaunchName, format_time

_RAN = frozenset({LaunchState.SUCCEEDED, LaunchState.FAILED})
_ATTEMPTS = (RowKind.ENDED, RowKind.OPEN)


def audit(job: AuditedJob, rows: Iterable[Row], since_s: int, until_s: int) -> Iterator[Finding]:
    """Yield what is wrong with `job` in (since_s, until_s], about in scheduled order.

    `rows` are the job's rows in scheduled order, as `RowStore.of_job` returns them, including
    ranges that reach into the period from before, and all its open launches among them. All must be
    of one moment, and `job.horizon_s` of the same: a launch that ends between two looks would be
    there twice or not at all.

    Raises:
        ValueError: `rows` are not in scheduled order.
    """
    return _Walk(job, since_s, until_s).findings(rows)


class _Walk:
    """One pass over rows and instants."""

    def __init__(self, job: AuditedJob, since_s: int, until_s: int) -> None:
        self._job = job
        self._since_s = since_s
        self._until_s = until_s
        due_until_s = min(until_s, job.horizon_s)
        self._instants = (tick.scheduled_s for tick in job.instants(since_s, due_until_s))
        self._next_s = next(self._instants, None)
        self._ranges: list[Row] = []  # that reach to the present instant or beyond
        self._attempts: list[Row] = []  # of a job that forbids overlap
        self._forbids = any(span.overlap is not Overlap.ALLOW for span in job.revisions)

    def findings(self, rows: Iterable[Row]) -> Iterator[Finding]:
        """Yield all findings."""
        for at_s, group in groupby(_checked_order(rows), key=lambda row: row.scheduled_s):
            yield from self._silent_until(at_s)
            yield from self._at(at_s, list(group))
        yield from self._silent_until(self._until_s + 1)
        yield from audit_overlaps(self._job, self._attempts)

    def _silent_until(self, at_s: int) -> Iterator[Finding]:
        """Instants before `at_s` that no launch speaks of: ranges must."""
        while self._next_s is not None and self._next_s < at_s:
            instant_s = self._next_s
            yield from self._covered(instant_s, has_launch=False)
            self._next_s = next(self._instants, None)

    def _at(self, at_s: int, found: list[Row]) -> Iterator[Finding]:
        for row in found:
            if row.kind is RowKind.RANGE:
                yield from self._range(row)
                self._ranges.append(row)
        if self._since_s < at_s <= self._until_s and not self._is_plain(at_s, found):
            yield from self._launches(at_s, found)
        if self._forbids and at_s <= self._until_s:
            self._attempts += [row for row in found if row.kind in _ATTEMPTS]

    def _is_plain(self, at_s: int, found: list[Row]) -> bool:
        """Whether all that is here is one launch that was due, ran and ended: nearly all rows are
        such, and no check of theirs could find anything. Takes the instant if so."""
        row = found[0]
        is_plain = (
            len(found) == 1
            and self._next_s == at_s
            and row.kind is RowKind.ENDED
            and row.trigger == 0
            and row.attempt == 1
            and row.state in _RAN
            and 0 < row.begun_index <= row.launched_index <= row.ended_index
            and not self._ranges_over(at_s)
            and not is_early(row)
        )
        if is_plain:
            self._next_s = next(self._instants, None)
        return is_plain

    def _launches(self, at_s: int, found: list[Row]) -> Iterator[Finding]:
        attempts = [row for row in found if row.kind in _ATTEMPTS]
        scheduled = [row for row in attempts if row.trigger == 0]
        around: list[Row] = []
        if self._next_s == at_s:
            self._next_s = next(self._instants, None)
            around = self._ranges_over(at_s)[:1]
            yield from self._covered(at_s, has_launch=bool(scheduled))
        elif scheduled:
            yield from self._unexpected(at_s, attempts)
        for row in found:
            if row.kind is RowKind.AMENDMENT:
                yield self._find(
                    at_s,
                    FindingKind.LATE_REPORT,
                    f"attempt {row.attempt} {row.state.label} after all",
                )
        for trigger in sorted({row.trigger for row in attempts}):
            mine = [row for row in attempts if row.trigger == trigger]
            ended = [row for row in mine if row.kind is RowKind.ENDED]
            # A restore records several attempts at one index: failures are in another stream.
            # One entry may have a failure and the end of what then waited for its next attempt.
            ended.sort(key=lambda row: (row.ended_index, row.attempt, row.begun_index == 0))
            if trigger == 0:
                ended = around + ended
            still_open = [row for row in mine if row.kind is RowKind.OPEN]
            name, reset_index = LaunchName(self._job.name, at_s, trigger), self._job.reset_index
            yield from audit_launch(name, ended, still_open, reset_index)

    def _covered(self, at_s: int, *, has_launch: bool) -> Iterator[Finding]:
        ranges = len(self._ranges_over(at_s))
        if not ranges and not has_launch:
            yield self._find(at_s, FindingKind.MISSING, "it has no row")
        if ranges > 1:
            yield self._find(
                at_s, FindingKind.ACCOUNTED_TWICE, f"{ranges} ranges of skipped instants contain it"
            )

    def _unexpected(self, at_s: int, attempts: list[Row]) -> Iterator[Finding]:
        """A launch where none is due. A person may have asked for it: by backfill of a time before
        the job was declared, or under an older revision."""
        if at_s > self._job.horizon_s:
            yield self._find(
                at_s,
                FindingKind.BEYOND_HORIZON,
                f"it has a row, and accounts reach to {format_time(self._job.horizon_s)} only",
            )
            return
        scheduled = [row for row in attempts if row.trigger == 0]
        if any(is_recalled(row) for row in scheduled):
            why = "it ran on a schedule of which the snapshot does not know"
            yield self._find(at_s, FindingKind.RESTORED, why)
            return
        is_open = any(row.kind is RowKind.OPEN for row in attempts)
        asked = is_open or any(row.by for row in scheduled)
        if not (asked and self._job.has_ever(at_s)):
            yield self._find(
                at_s, FindingKind.NO_INSTANT, "it has a row and is not on the schedule"
            )

    def _range(self, row: Row) -> Iterator[Finding]:
        counted = self._job.count(row.scheduled_s - 1, row.last_s)
        what = f"the skipped range to {format_time(row.last_s)}"
        if counted != row.count:
            yield self._find(
                row.scheduled_s,
                FindingKind.WRONG_COUNT,
                f"{what} says {row.count} instants, the schedule has {counted}",
            )
        for end_s in (row.scheduled_s, row.last_s):
            if self._job.tick_at(end_s) is None:
                yield self._find(
                    end_s, FindingKind.NO_INSTANT, f"{what} begins or ends here, off the schedule"
                )
        if row.last_s > self._job.horizon_s:
            yield self._find(
                row.last_s, FindingKind.BEYOND_HORIZON, f"{what} ends beyond the horizon"
            )

    def _ranges_over(self, at_s: int) -> list[Row]:
        self._ranges = [row for row in self._ranges if row.last_s >= at_s]
        return list(self._ranges)

    def _find(self, at_s: int, kind: FindingKind, message: str) -> Finding:
        name = LaunchName(self._job.name, at_s)
        return Finding(self._job.name, at_s, kind, f"{name}: {message}")


def _checked_order(rows: Iterable[Row]) -> Iterator[Row]:
    before_s = None
    for row in rows:
        if before_s is not None and row.scheduled_s < before_s:
            raise ValueError(f"rows of {row.job} are not in scheduled order")
        before_s = row.scheduled_s
        yield row
