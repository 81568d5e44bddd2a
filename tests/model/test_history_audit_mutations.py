"""Histories that a correct daemon would leave pass the audit; each mutation of one is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.calendar.schedule import compile_or_none
from cron.history.audit import audit
from cron.history.audited import AuditedJob, FindingKind
from cron.history.census import Census, count
from cron.job import Overlap, Schedule
from cron.launch_state import LaunchState
from cron.state.rows import Row, RowKind
from cron.state.state import Span
from launcher.protocol.status import Reason
from tests.unit.history_rig import open_row

S, K = LaunchState, FindingKind
BEGIN_S = 1_790_000_000 // 3600 * 3600
_SCHEDULES = (
    Schedule("@every 90s", every_s=90),
    Schedule("*/7 * * * *", "*/7 * * * *", "Europe/Berlin"),
    Schedule("* * * * *", "* * * * *"),
)


class History:
    """What a made-up leader wrote: rows in log order, and what is open."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.index = 100
        self.rows: list[Row] = []
        self.open: list[Row] = []
        self.job = self._make_job()
        self.free_ms = 0  # when the newest run of a job that forbids overlap was over
        instants = [t.scheduled_s for t in self.job.instants(BEGIN_S, self.job.horizon_s)]
        while instants:
            self._account(instants)
        self.until_s = self.job.horizon_s + self.chance.choice((0, 500))

    def _make_job(self) -> AuditedJob:
        cuts = sorted(self.chance.sample(range(0, 7200), 2))
        one, two, three = (BEGIN_S + s for s in (0, *cuts))
        pick = self.chance.choice
        spans = (
            Span(3, one, two, pick(_SCHEDULES), pick(list(Overlap))),
            Span(5, two, three, pick(_SCHEDULES), pick(list(Overlap))),
            Span(6, three, 0, pick(_SCHEDULES), pick(list(Overlap))),
        )
        return AuditedJob("default/backup", spans, BEGIN_S + 7200 + self.chance.randrange(600))

    def next_index(self) -> int:
        self.index += self.chance.randrange(1, 4)
        return self.index

    def _account(self, instants: list[int]) -> None:
        case = self.chance.randrange(10)
        if case == 0:
            run = instants[: self.chance.randrange(2, 9)]
            del instants[: len(run)]
            self._skip(run)
            return
        at_s = instants.pop(0)
        if case == 1:
            self._skip([at_s])
            self._run(at_s, attempt=1, by="ann")  # reopened
        elif case == 2:
            self._run(at_s, attempt=1, state=S.LOST)
            if self.chance.random() < 0.5:
                self._amend(at_s)
            self._run(at_s, attempt=2)  # on-lost=retry
        elif case == 3:
            self._run(at_s, attempt=1, state=S.FAILED)
            self._run(at_s, attempt=2, by="ann")
        elif case == 4:
            self._run(at_s, attempt=1)
            self._run(at_s + 1, attempt=1, trigger=1, by="bob")
        elif case == 5 and len(instants) < 3:
            self.open.append(open_row(at_s, 0, 0, S.DUE))
        else:
            self._run(at_s, attempt=1, state=self.chance.choice((S.SUCCEEDED, S.FAILED)))

    def _row(self, at_s: int, **fields: object) -> Row:
        span = self.job.span_at(at_s)
        known: dict[str, object] = {
            "kind": RowKind.ENDED,
            "job": self.job.name,
            "revision": span.revision if span else 0,
            "scheduled_s": at_s,
            "trigger": 0,
            "attempt": 0,
            "state": S.SKIPPED,
            "reason": Reason.NONE,
            "ended_index": self.next_index(),
            "ended_at_ms": at_s * 1000 + 2000,
            "last_s": at_s,
        }
        return Row(**(known | fields))  # type: ignore[arg-type]

    def _skip(self, run: list[int]) -> None:
        kind = RowKind.RANGE if len(run) > 1 else RowKind.ENDED
        self.rows.append(
            self._row(run[0], kind=kind, last_s=run[-1], count=len(run), reason=Reason.PAUSED)
        )

    def _run(
        self,
        at_s: int,
        *,
        attempt: int,
        state: LaunchState = S.SUCCEEDED,
        by: str = "",
        trigger: int = 0,
    ) -> None:
        begun, launched = self.next_index(), self.next_index()
        started_ms = max(at_s * 1000 + self.chance.randrange(900), self.free_ms)
        finished_ms = started_ms + self.chance.randrange(1, 200_000)
        self.free_ms = finished_ms  # as if no revision allowed overlap
        self.rows.append(
            self._row(
                at_s,
                attempt=attempt,
                state=state,
                by=by,
                trigger=trigger,
                begun_index=begun,
                launched_index=launched,
                started_ms=started_ms,
                finished_ms=0 if state is S.LOST else finished_ms,
                ended_at_ms=finished_ms,
            )
        )

    def _amend(self, at_s: int) -> None:
        self.rows.append(self._row(at_s, kind=RowKind.AMENDMENT, attempt=1, state=S.SUCCEEDED))

    def ordered(self, rows: list[Row]) -> list[Row]:
        """Rows, and what is open, as an audit wants them."""
        return sorted([*rows, *self.open], key=lambda row: row.scheduled_s)

    def violations(self, rows: list[Row] | None = None) -> set[FindingKind]:
        given_rows = self.ordered(self.rows if rows is None else rows)
        found = audit(self.job, given_rows, BEGIN_S, self.until_s)
        return {finding.kind for finding in found if finding.is_violation}


_seeds = st.integers(0, 1 << 32)


@given(_seeds)
def test_a_correct_history_passes(seed: int) -> None:
    history = History(seed)
    assert history.violations() == set()
    late = [row for row in history.rows if row.kind is RowKind.AMENDMENT]
    found = audit(history.job, history.ordered(history.rows), BEGIN_S, history.until_s)
    assert [f.kind for f in found] == [K.LATE_REPORT] * len(late)


@given(_seeds, st.integers(0, 7200), st.integers(0, 7200))
def test_any_part_of_a_correct_history_passes(seed: int, one: int, other: int) -> None:
    history = History(seed)
    since_s, until_s = BEGIN_S + min(one, other), BEGIN_S + max(one, other)
    rows = [
        row
        for row in history.ordered(history.rows)
        if row.scheduled_s <= until_s and max(row.last_s, row.scheduled_s) > since_s
    ]
    found = audit(history.job, rows, since_s, until_s)
    assert [f for f in found if f.is_violation] == []


def _reached(rows: list[Row], since_s: int, until_s: int) -> list[Row]:
    return [
        row
        for row in rows
        if row.scheduled_s <= until_s and max(row.last_s, row.scheduled_s) >= since_s
    ]


@given(_seeds, st.lists(st.integers(0, 7200), max_size=4))
def test_the_census_adds_up_and_does_not_depend_on_how_it_is_cut(
    seed: int, cuts: list[int]
) -> None:
    history = History(seed)
    rows = history.ordered(history.rows)
    whole = count(history.job, rows, BEGIN_S, history.until_s)
    assert (
        whole.instants
        == whole.ran + whole.not_started + whole.skipped + whole.skipped_in_runs + whole.open
    )
    assert whole.instants == len(list(history.job.instants(BEGIN_S, history.job.horizon_s)))
    ends = [row for row in history.rows if row.kind is RowKind.ENDED and not row.trigger]
    ran = {row.scheduled_s for row in ends if row.begun_index}
    assert whole.ran == len(ran)
    assert whole.skipped == len({row.scheduled_s for row in ends} - ran)
    assert whole.runs == sum(row.kind is RowKind.RANGE for row in history.rows)
    assert whole.manual == sum(row.trigger > 0 for row in history.rows)
    pieces, since_s = Census(), BEGIN_S
    for until_s in [*(BEGIN_S + cut for cut in sorted(set(cuts) - {0})), history.until_s]:
        reached = _reached(rows, since_s, until_s)
        is_first = since_s == BEGIN_S
        pieces.add(count(history.job, reached, since_s, until_s, is_first=is_first))
        since_s = max(since_s, until_s)
    assert pieces == whole


def _changed(row: Row, **fields: object) -> Row:
    return msgspec.structs.replace(row, **fields)


Mutation = Callable[[History, Row], list[Row] | None]


def _plain(row: Row) -> bool:
    return row.kind is RowKind.ENDED and row.trigger == 0


def _drop(history: History, row: Row) -> list[Row] | None:
    alone = [r for r in history.rows if r.scheduled_s == row.scheduled_s] == [row]
    return [] if alone and row.trigger == 0 and row.kind is not RowKind.AMENDMENT else None


def _duplicate(_history: History, row: Row) -> list[Row] | None:
    return [row, row] if row.kind is not RowKind.AMENDMENT else None


def _account_again(history: History, row: Row) -> list[Row] | None:
    if row.by or not _plain(row):
        return None
    index = history.index + 100
    again = _changed(row, ended_index=index + 3)
    if row.begun_index:
        again = _changed(again, begun_index=index + 1, launched_index=index + 2)
    return [row, again]


def _shift(history: History, row: Row) -> list[Row] | None:
    shifted = row.scheduled_s + 1
    free = history.job.tick_at(shifted) is None
    return [_changed(row, scheduled_s=shifted)] if _plain(row) and free else None


def _miscount(_history: History, row: Row) -> list[Row] | None:
    return [_changed(row, count=row.count + 1)] if row.kind is RowKind.RANGE else None


def _shorten(history: History, row: Row) -> list[Row] | None:
    if row.kind is not RowKind.RANGE or row.count < 2:
        return None
    *_, before_last, _last = history.job.instants(row.scheduled_s - 1, row.last_s)
    return [_changed(row, last_s=before_last.scheduled_s, count=row.count - 1)]


def _lengthen(history: History, row: Row) -> list[Row] | None:
    if row.kind is not RowKind.RANGE:
        return None
    after = next(history.job.instants(row.last_s, history.job.horizon_s), None)
    if after is None or any(open_.scheduled_s == after.scheduled_s for open_ in history.open):
        return None
    return [_changed(row, last_s=after.scheduled_s, count=row.count + 1)]


def _unbegun(_history: History, row: Row) -> list[Row] | None:
    return [_changed(row, begun_index=0)] if row.begun_index else None


def _unnumbered(_history: History, row: Row) -> list[Row] | None:
    return [_changed(row, attempt=0)] if row.begun_index else None


def _unlaunched(_history: History, row: Row) -> list[Row] | None:
    return [_changed(row, launched_index=0)] if row.launched_index else None


def _launched_before_begun(_history: History, row: Row) -> list[Row] | None:
    if not row.launched_index:
        return None
    return [_changed(row, begun_index=row.launched_index, launched_index=row.begun_index)]


def _ended_before_launched(_history: History, row: Row) -> list[Row] | None:
    return [_changed(row, ended_index=row.launched_index - 1)] if row.launched_index else None


def _begun_before_the_other_ended(history: History, row: Row) -> list[Row] | None:
    if row.attempt < 2:
        return None
    first = next(r for r in history.rows if r.scheduled_s == row.scheduled_s and r.attempt == 1)
    return [_changed(row, begun_index=first.ended_index - 1)]


def _ran_again_after_success(history: History, row: Row) -> list[Row] | None:
    if row.state is not S.SUCCEEDED or row.kind is not RowKind.ENDED:
        return None
    index = history.index + 100
    again = _changed(
        row,
        attempt=row.attempt + 1,
        by="ann",
        begun_index=index,
        launched_index=index,
        ended_index=index,
    )
    return [row, again]


def _beyond(history: History, row: Row) -> list[Row] | None:
    ticks = compile_or_none(history.job.revisions[-1].schedule)
    at_s = ticks.next(history.job.horizon_s) or 0
    return (
        [row, _changed(row, scheduled_s=at_s)] if _plain(row) and at_s <= history.until_s else None
    )


def _overlapping(history: History, row: Row) -> list[Row] | None:
    """The row runs while another does that was begun before it and ended after it was begun."""
    if not row.finished_ms or row.attempt != 1:
        return None
    if history.job.overlap_of(row.revision, row.scheduled_s) is Overlap.ALLOW:
        return None
    earlier = [
        r
        for r in history.rows
        if r.finished_ms and r.scheduled_s < row.scheduled_s and r.kind is RowKind.ENDED
    ]
    if not earlier:
        return None
    other = earlier[-1]
    return [
        _changed(
            row,
            started_ms=other.finished_ms - 1,
            begun_index=other.ended_index - 1,
            launched_index=max(row.launched_index, other.ended_index),
        )
    ]


_MUTATIONS: list[tuple[Mutation, set[FindingKind]]] = [
    (_drop, {K.MISSING}),
    (_duplicate, {K.ACCOUNTED_TWICE}),
    (_account_again, {K.ACCOUNTED_TWICE}),
    (_shift, {K.MISSING, K.NO_INSTANT, K.ACCOUNTED_TWICE}),
    (_miscount, {K.WRONG_COUNT}),
    (_shorten, {K.MISSING}),
    (_lengthen, {K.ACCOUNTED_TWICE}),
    (_unbegun, {K.LOG_POINT}),
    (_unnumbered, {K.LOG_POINT}),
    (_unlaunched, {K.LOG_POINT}),
    (_launched_before_begun, {K.LOG_POINT}),
    (_ended_before_launched, {K.LOG_POINT}),
    (_begun_before_the_other_ended, {K.ATTEMPTS_AT_ONCE}),
    (_ran_again_after_success, {K.ACCOUNTED_TWICE}),
    (_beyond, {K.BEYOND_HORIZON}),
    (_overlapping, {K.OVERLAP}),
]


def _mutants(mutation: Mutation, seed: int) -> Iterator[tuple[History, list[Row]]]:
    history = History(seed)
    for at, row in enumerate(history.rows):
        mutated = mutation(history, row)
        if mutated is not None:
            yield history, [*history.rows[:at], *mutated, *history.rows[at + 1 :]]


@pytest.mark.parametrize(("mutation", "kinds"), _MUTATIONS, ids=[m.__name__ for m, _ in _MUTATIONS])
def test_every_mutant_is_found(mutation: Mutation, kinds: set[FindingKind]) -> None:
    tried = 0
    for seed in range(8):
        for history, rows in _mutants(mutation, seed):
            found = history.violations(rows)
            assert found & kinds, f"seed {seed}: {found or 'nothing'} found"
            tried += 1
            if tried % 25 == 0:
                break  # enough of this history
    assert tried >= 4
