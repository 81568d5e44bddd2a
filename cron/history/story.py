"""What became of one launch, told line by line from its rows, and what stood around it. Pure.

Each line has a time in epoch milliseconds and a sentence without a full stop. Times come from two
clocks, the leader's (log points, ends) and the executor's (started, finished).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from cron.history.audited import OpenRow, is_put_off, is_remembered
from cron.launch_state import ACTIVE, LaunchState
from cron.notes import NoteCode, sentence
from cron.state.pool import DeadLetter
from cron.state.rows import RESTORED_BY, Row, RowKind
from cron.state.state import LeaderTerm
from launcher.protocol.names import LaunchName, format_time
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch

Line = tuple[int, str]

TAKEOVER_MS: Final = 3000
"""A start is reported within milliseconds; so much later, something had to be found out first."""

_NEVER: Final = 1 << 62

SENTENCES: Final[dict[Reason, str]] = {
    Reason.NONE: "",
    Reason.MISSED: "it was missed: nobody could launch it in time, and the job's catch-up policy or"
    " its deadline did not allow to launch it later",
    Reason.OVERLAP: "an earlier launch of the job was not over, and the job forbids overlap",
    Reason.PAUSED: "the job was paused",
    Reason.GATED: "a gate was closed",
    Reason.DEADLINE: "its deadline for starting passed before an executor could start it",
    Reason.TIMEOUT: "it ran longer than its timeout and was killed",
    Reason.KILLED: "somebody had it killed",
    Reason.REPLACED: "a newer launch of the job took its place, as overlap=replace asks",
    Reason.FENCED: "it was fenced: its executor promised never to start it, so that its status is"
    " certain",
    Reason.EXECUTOR_LOST: "its executor was lost: nobody can know what became of it",
    Reason.RESTORED: "the cell was restored from a backup that does not know its end",
    Reason.USER: "the executor may not run it as the user that the job names",
    Reason.SPAWN: "the operating system would not start it",
    Reason.RETRY: "it asked to be tried again",
    Reason.FATAL: "it said that trying again is of no use",
    Reason.SNOOZE: "its handler asked for another time",
    Reason.RAISED: "its handler raised an exception",
    Reason.SILENT: "its handler did not say in time that it is alive",
    Reason.WORKER_DIED: "the worker process that ran its handler died",
    Reason.MEMORY: "it took more memory than its job may",
    Reason.BUDGET: "its tenant had no retries left",
    Reason.FULL: "its queue was full",
    Reason.OVERLOAD: "the cell was overloaded: more fell due than could begin, and a newer launch"
    " of the job took its place, or none could begin in time",
    Reason.NO_EXECUTOR: "no executor that could run it was there",
}
"""Why a launch is in its state, as the second half of a sentence."""
KILLED_BY_EXECUTOR: Final = (
    "its executor killed it, because it was stopping, or its lease ended without word from a leader"
)
"""The same reason where the executor lived to tell."""


def sentence_of(row: Row) -> str:
    """Return how `row` ended and why: `skipped: the job was paused`."""
    why = SENTENCES[row.reason]
    if row.state is LaunchState.FAILED and row.exit_code >= 0 and row.reason is Reason.NONE:
        why = f"exit code {row.exit_code}"
    if row.state is LaunchState.FAILED and row.reason is Reason.EXECUTOR_LOST:
        why = KILLED_BY_EXECUTOR
    if row.state is LaunchState.LOST and not why:
        why = SENTENCES[Reason.EXECUTOR_LOST]
    text = f"{row.state.label}: {why}" if why else row.state.label
    detail = sentence(row.note, row.detail)
    code = row.note.code if row.note is not None else None
    if row.reason is Reason.PAUSED and code is NoteCode.PAUSED:
        return f"{row.state.label}: the job was {detail}"
    if row.reason is Reason.OVERLAP and code is NoteCode.BEFORE_RESTORE:
        return f"{row.state.label}: {detail}, and the job forbids overlap"
    is_by_somebody = row.by not in ("", RESTORED_BY) and row.reason is not Reason.REPLACED
    if is_by_somebody and not asked_by(row):
        text += f" (by {row.by})"
    return f"{text} ({detail})" if detail else text


def asked_by(row: Row | OpenRow) -> str:
    """Return who had a launch made or made again, "" for nobody: whoever ended it is another, and
    a restore asks for nothing."""
    is_ended_by = isinstance(row, Row) and (
        row.state is LaunchState.CANCELLED or row.reason in (Reason.KILLED, Reason.REPLACED)
    )
    return "" if is_ended_by or row.by == RESTORED_BY else row.by


def memory_of(row: Row | OpenRow) -> str:
    """Return whose word it is that an attempt ran, "" where the log has it."""
    if not is_remembered(row):
        return ""
    witness = row.executor or "an executor"
    return f"{witness} remembers it: the cell was restored since, and its log points are lost"


def tell(
    rows: list[Row],
    open_row: OpenRow | None,
    leader_terms: Sequence[LeaderTerm] = (),
    due_ms: int = 0,
) -> list[Line]:
    """Return the story of one launch, oldest line first.

    `rows` are in log order: attempts, amendments, ranges of skipped instants that contain it.
    `leader_terms` are in log order too; those that began after `due_ms`, before the launch was
    over, are part of its story.
    """
    lines: list[Line] = [
        (leader_term.at_ms, _takeover(before, leader_term))
        for before, leader_term in changes_of_leader(rows, open_row, leader_terms, due_ms)
    ]
    newest = open_row.attempt if open_row is not None else 0
    is_one = max([newest, *(row.attempt for row in rows)]) < 2
    before: Row | None = None
    for row in rows:
        if row.kind is RowKind.RANGE:
            lines += _tell_range(row)
            before = row
        elif row.kind is RowKind.AMENDMENT:
            lines.append((row.ended_at_ms, _late_news(row)))
        else:
            lines += _tell_attempt(row, before, is_one=is_one)
            before = row
    if open_row is not None:
        lines += _tell_open(open_row, before)
    return sorted(lines, key=lambda line: line[0])


def changes_of_leader(
    rows: list[Row], open_row: OpenRow | None, leader_terms: Sequence[LeaderTerm], due_ms: int
) -> list[tuple[LeaderTerm, LeaderTerm]]:
    """Return who led before and after each change while a launch waited for its first attempt, or
    stood between the beginning and the end of one."""
    # Of what a restore lost nobody knows who led; the story goes on where it was recorded.
    spans = [
        (row.launched_index if is_remembered(row) else row.begun_index, row.ended_index)
        for row in rows
        if row.begun_index
    ]
    firsts = [row.begun_index or row.ended_index for row in rows]
    if open_row is not None and open_row.begun_index:
        is_known = not is_remembered(open_row)
        spans.append((open_row.begun_index if is_known else open_row.launched_index, _NEVER))
        firsts.append(open_row.begun_index)
    first = min(firsts, default=_NEVER if open_row is not None else 0)
    return [
        (before, leader_term)
        for before, leader_term in itertools.pairwise(leader_terms)
        if (leader_term.at_ms >= due_ms and leader_term.index < first)
        or any(begun < leader_term.index < ended for begun, ended in spans)
    ]


def _takeover(before: LeaderTerm, leader_term: LeaderTerm) -> str:
    """`r3 took over from r2`, which had died, was cut off, stood still or had handed over."""
    old, new = before.epoch, leader_term.epoch
    whom = f"took over from {old.replica}" if old.replica != new.replica else "came back as leader"
    return (
        f"{new.replica} {whom}, whose term {old.term} was over, and leads in term {new.term} since "
        f"index {leader_term.index}"
    )


def _tell_range(row: Row) -> Iterator[Line]:
    yield (
        row.ended_at_ms,
        f"{sentence_of(row)}; recorded at index {row.ended_index} for {row.count} instants from "
        f"{format_time(row.scheduled_s)} to {format_time(row.last_s)}",
    )


def _late_news(row: Row) -> str:
    code = f" with exit code {row.exit_code}" if row.exit_code >= 0 else ""
    if row.state is LaunchState.LOST:
        told = sentence(row.note, row.detail) or "it is not over"
        return (
            f"late news about attempt {row.attempt}, recorded at index {row.ended_index}: {told}; "
            "the launch stays lost, since nobody knows what became of the rest of it"
        )
    return (
        f"late news about attempt {row.attempt}, recorded at index {row.ended_index}: it "
        f"{row.state.label} after all{code}; the launch stays recorded as lost, nothing reopens"
    )


def _tell_attempt(row: Row, before: Row | None, *, is_one: bool) -> Iterator[Line]:
    yield from _between(before, row, row.begun_at_ms or row.ended_at_ms)
    yield from _tell_log_points(row)
    if row.finished_ms and row.started_ms:
        yield row.finished_ms, _finished(row)
    ended = sentence_of(row) if is_one or not row.begun_index else end_of_attempt(row)
    yield row.ended_at_ms, f"{ended}; recorded at index {row.ended_index}"


def end_of_attempt(row: Row) -> str:
    """Return `attempt 2 failed: exit code 1`, `attempt 3 was cancelled: somebody had it killed`."""
    return f"attempt {row.attempt} {ended_as(row)}"


def ended_as(row: Row) -> str:
    """Return `failed: exit code 2`, `was cancelled: somebody had it killed`."""
    is_passive = row.state in (LaunchState.CANCELLED, LaunchState.LOST, LaunchState.SKIPPED)
    return f"was {sentence_of(row)}" if is_passive else sentence_of(row)


def may_be_tried_again(row: Row) -> bool:
    """Whether another attempt may follow this one that nobody asked for: it failed, or its handler
    put it off."""
    return row.state is LaunchState.FAILED or is_put_off(row)


def _tell_open(row: OpenRow, before: Row | None) -> Iterator[Line]:
    yield from _between(before, row, row.begun_at_ms)
    if row.state in ACTIVE:
        yield from _tell_log_points(row)


def _tell_log_points(row: Row | OpenRow) -> Iterator[Line]:
    """Both, and the start between them; of what an executor remembers, where that was recorded."""
    memory = memory_of(row)
    if memory:
        at_index = f"; recorded at index {row.launched_index}" if row.launched_index else ""
        yield row.launched_at_ms or row.begun_at_ms, f"attempt {row.attempt}: {memory}{at_index}"
    elif row.begun_index:
        yield row.begun_at_ms, _log_point_1(row)
    if row.launched_index and not memory:
        yield row.launched_at_ms, _log_point_2(row)
    if row.started_ms:
        yield row.started_ms, _started(row.executor, row.started_ms, row.scheduled_s)


def _between(before: Row | None, row: Row | OpenRow, at_ms: int) -> Iterator[Line]:
    """What happened before an attempt: who asked for it, and whether another replica led."""
    by = asked_by(row)
    if by and row.trigger and before is None:
        yield row.scheduled_s * 1000, f"{by} triggered it"
    elif by and at_ms and not _is_next_try(before, by):
        yield at_ms, f"{by} had it launched again"
    if before is None or before.epoch == row.epoch:
        return
    old, new = before.epoch, row.epoch
    if old.replica and new.replica:
        yield (
            at_ms,
            f"{new.replica} leads by now, in term {new.term}; the attempt before was begun by "
            f"{old.replica} in term {old.term}",
        )


def _is_next_try(before: Row | None, by: str) -> bool:
    """Whether an attempt follows the one before by itself, as what the same person asked for."""
    return before is not None and may_be_tried_again(before) and before.by == by


def _log_point_1(row: Row | OpenRow) -> str:
    leader = _leader(row.epoch)
    on = f", to be started on {row.executor}" if row.executor else ""
    return f"attempt {row.attempt}: log point 1 committed at index {row.begun_index}{leader}{on}"


def _log_point_2(row: Row | OpenRow) -> str:
    text = f"log point 2 committed at index {row.launched_index}: it was started"
    waited_ms = row.launched_at_ms - max(row.started_ms, row.begun_at_ms)
    if row.started_ms and waited_ms >= TAKEOVER_MS:
        text += (
            f", {format_ms(waited_ms)} after the fact; the leader or the way to it was lost in "
            "between, and whoever led then found it begun and settled it"
        )
    return text


def _started(executor: str, started_ms: int, scheduled_s: int) -> str:
    lateness_ms = started_ms - scheduled_s * 1000
    late = f"{format_ms(lateness_ms)} late" if lateness_ms >= 0 else "early by the executor's clock"
    return f"started on {executor or 'an executor'}, {late}"


def _finished(row: Row) -> str:
    code = f"exit code {row.exit_code} " if row.exit_code >= 0 else "ended "
    return f"{code}after {format_ms(row.finished_ms - row.started_ms)}"


def _leader(epoch: Epoch) -> str:
    return f" by {epoch.replica}, leader of term {epoch.term}" if epoch.replica else ""


def format_ms(span_ms: int) -> str:
    """Return a span of time for people: `41 ms`, `3.2 s`, `2 h 5 min`."""
    if span_ms < 1000:
        return f"{span_ms} ms"
    if span_ms < 60_000:
        return f"{span_ms // 1000}.{span_ms % 1000 // 100} s"
    minutes = span_ms // 60_000
    if minutes < 60:
        return f"{minutes} min {span_ms // 1000 % 60} s"
    if minutes < 2880:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} days {minutes // 60 % 24} h"


# --- what stood around it


NAMED_MAX: Final = 5
"""So many manual launches are named; the others are counted."""


def tell_manual(rows: Sequence[Row], open_rows: Sequence[OpenRow], job: str, at_s: int) -> str:
    """Return which launches people made in that second and what became of them; "" for none.

    `rows` in log order; both may have launches of other seconds, and scheduled ones.
    """
    newest: dict[int, Row | OpenRow] = {}
    makers: dict[int, str] = {}
    both: list[Row | OpenRow] = [*rows, *open_rows]
    for row in both:
        is_news = isinstance(row, Row) and row.kind is RowKind.AMENDMENT
        if row.trigger and row.scheduled_s == at_s and not is_news:
            newest[row.trigger] = row
            makers[row.trigger] = makers.get(row.trigger) or asked_by(row)
    if not newest:
        return ""
    triggers = sorted(newest)
    told = [
        f"{LaunchName(job, at_s, trigger)}{_by(makers[trigger])}, {_became(newest[trigger])}"
        for trigger in triggers[:NAMED_MAX]
    ]
    if len(triggers) > NAMED_MAX:
        told.append(f"and {len(triggers) - NAMED_MAX} more")
    return f"; launched by hand in that second: {'; '.join(told)}"


def _by(maker: str) -> str:
    return f" by {maker}" if maker else ""


def _became(row: Row | OpenRow) -> str:
    """`succeeded`, `skipped (overlap)`, `launched and not over`."""
    if isinstance(row, OpenRow):
        return f"{row.state.label} and not over"
    return f"{row.state.label} ({row.reason.label})" if row.reason else row.state.label


def tell_dead(letter: DeadLetter | None, job: str, at_s: int) -> str:
    """Return that a launch is a dead letter, since when and why, and what launches it again; ""
    where it is none."""
    if letter is None:
        return ""
    why = letter.reason.label or letter.state.label
    return (
        f"; it became a dead letter at {format_time(letter.at_ms // 1000)} ({why}), and "
        f"`raftcron dead redrive '{LaunchName(job, at_s, 0)}'` launches it again"
    )


def tell_newer(replaced: Row, rows: Sequence[Row], open_rows: Sequence[OpenRow]) -> str:
    """Return which launch took the place of a replaced one: the first newer one that was begun
    after its end, or waits; "" where it is not among `rows` and `open_rows`, or none was replaced.
    """
    if replaced.reason is not Reason.REPLACED:
        return ""
    newer: list[tuple[int, Row | OpenRow]] = [
        (row.begun_index, row) for row in rows if row.begun_index > replaced.ended_index
    ]
    newer += [(_begun_at(row), row) for row in open_rows if _begun_at(row) > replaced.ended_index]
    newer = [one for one in newer if _key(one[1]) > _key(replaced)]
    if not newer:
        return ""
    _, first = min(newer, key=lambda one: one[0])
    name = LaunchName(replaced.job, first.scheduled_s, first.trigger)
    return f"; the newer launch is {name}"


def _begun_at(row: OpenRow) -> int:
    """The index at which an open launch was begun; one that waits will be later than all."""
    return row.begun_index if row.state in ACTIVE else 1 << 62


def _key(row: Row | OpenRow) -> tuple[int, int]:
    return (row.scheduled_s, row.trigger)
