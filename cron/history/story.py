"""What became of one launch, line by line from its rows, and what stood around it. Pure.

Each line has a time in epoch milliseconds and a sentence without a full stop. Times come from two
clocks, the leader's (log points, ends) and the executor's (started, finished).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from cron.history.audited import is_put_off, is_remembered
from cron.launch_state import LaunchState
from cron.notes import NoteCode, sentence
from cron.state.rows import RESTORED_BY, Row, RowKind
from cron.state.state import LeaderTerm
from launcher.protocol.names import TASK_MARK, LaunchName, format_time
from launcher.protocol.status import Reason

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
    Reason.PREDECESSOR: "what it follows did not succeed",
    Reason.CANCELLED: "somebody cancelled it while it waited",
    Reason.SECRET: "its executor could not read a secret that its job names",
}
"""Why a launch is in its state, as the second half of a sentence."""
_ENDED_BY: Final = (Reason.KILLED, Reason.REPLACED)
KILLED_BY_EXECUTOR: Final = (
    "its executor killed it, because it was stopping, or its lease ended without word from a leader"
)
"""The same reason where the executor lived to report it."""


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


def asked_by(row: Row) -> str:
    """Return who had a launch made or made again, "" for nobody: whoever ended it is another, and
    a restore asks for nothing."""
    is_ended_by = row.state is LaunchState.CANCELLED or row.reason in _ENDED_BY
    return "" if is_ended_by or row.by == RESTORED_BY else row.by


def memory_of(row: Row) -> str:
    """Return whose word it is that an attempt ran, "" where the log has it."""
    if not is_remembered(row):
        return ""
    witness = row.executor or "an executor"
    return f"{witness} remembers it: the cell was restored since, and its log points are lost"


def story_of(
    rows: list[Row], leader_terms: Sequence[LeaderTerm] = (), due_ms: int = 0
) -> list[Line]:
    """Return the story of one launch, oldest line first.

    `rows` are in log order: attempts, amendments, ranges of skipped instants that contain it, and
    at last the launch itself while it is open. `leader_terms` are in log order too; those that
    began after `due_ms`, before the launch was over, are part of its story.
    """
    lines: list[Line] = [
        (leader_term.at_ms, _takeover(before, leader_term))
        for before, leader_term in changes_of_leader(rows, leader_terms, due_ms)
    ]
    is_one = max((row.attempt for row in rows), default=0) < 2
    before: Row | None = None
    for row in rows:
        if row.kind is RowKind.AMENDMENT:
            lines.append((row.ended_at_ms, _late_report(row)))
            continue
        if row.kind is RowKind.RANGE:
            text = (
                f"{sentence_of(row)}; recorded at index {row.ended_index} for {row.count} instants "
                f"from {format_time(row.scheduled_s)} to {format_time(row.last_s)}"
            )
            lines.append((row.ended_at_ms, text))
        else:
            lines += _attempt_lines(row, before, is_one=is_one)
        before = row
    return sorted(lines, key=lambda line: line[0])


def changes_of_leader(
    rows: list[Row], leader_terms: Sequence[LeaderTerm], due_ms: int
) -> list[tuple[LeaderTerm, LeaderTerm]]:
    """Return who led before and after each change while a launch waited for its first attempt, or
    stood between the beginning and the end of one. `rows` are as for `story_of`."""
    spans, first = [], _NEVER if rows else 0
    for row in rows:
        ended = _NEVER if row.kind is RowKind.OPEN else row.ended_index
        first = min(first, row.begun_index or ended)
        if row.begun_index:
            # Of what a restore lost nobody knows who led; the story goes on where it was recorded.
            spans.append((row.launched_index if is_remembered(row) else row.begun_index, ended))
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


def due_at_ms(row: Row) -> int:
    """Return when a launch was due; a task is due at a millisecond, a job at a second."""
    return (TASK_MARK in row.job and row.due_at_ms) or row.scheduled_s * 1000


def _late_report(row: Row) -> str:
    code = f" with exit code {row.exit_code}" if row.exit_code >= 0 else ""
    if row.state is LaunchState.LOST:
        said = sentence(row.note, row.detail) or "it is not over"
        return (
            f"late report about attempt {row.attempt}, recorded at index {row.ended_index}: {said};"
            " the launch stays lost, since nobody knows what became of the rest of it"
        )
    return (
        f"late report about attempt {row.attempt}, recorded at index {row.ended_index}: it "
        f"{row.state.label} after all{code}; the launch stays recorded as lost, nothing reopens"
    )


def _attempt_lines(row: Row, before: Row | None, *, is_one: bool) -> Iterator[Line]:
    yield from _between(before, row, row.begun_at_ms or row.ended_at_ms)
    if row.state is not LaunchState.DUE:
        yield from _log_point_lines(row)
    if row.kind is RowKind.OPEN:
        return
    if row.finished_ms and row.started_ms:
        code = f"exit code {row.exit_code} " if row.exit_code >= 0 else "ended "
        yield row.finished_ms, f"{code}after {format_ms(row.finished_ms - row.started_ms)}"
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


def _log_point_lines(row: Row) -> Iterator[Line]:
    """Both, and the start between them; of what an executor remembers, where that was recorded."""
    attempt, memory, executor = f"attempt {row.attempt}", memory_of(row), row.executor
    if memory:
        at_index = f"; recorded at index {row.launched_index}" if row.launched_index else ""
        yield row.launched_at_ms or row.begun_at_ms, f"{attempt}: {memory}{at_index}"
    elif row.begun_index:
        replica, term = row.epoch.replica, row.epoch.term
        leader = f" by {replica}, leader of term {term}" if replica else ""
        on = f", to be started on {executor}" if executor else ""
        point = f"log point 1 committed at index {row.begun_index}{leader}{on}"
        yield row.begun_at_ms, f"{attempt}: {point}"
    if row.launched_index and not memory:
        yield row.launched_at_ms, _log_point_2(row)
    if row.started_ms:
        late_ms = row.started_ms - due_at_ms(row)
        late = f"{format_ms(late_ms)} late" if late_ms >= 0 else "early by the executor's clock"
        yield row.started_ms, f"started on {executor or 'an executor'}, {late}"


def _between(before: Row | None, row: Row, at_ms: int) -> Iterator[Line]:
    """What happened before an attempt: who asked for it, and whether another replica led."""
    by = asked_by(row)
    # The next try of what the same person asked for follows by itself.
    is_next = before is not None and before.by == by and may_be_tried_again(before)
    if by and row.trigger and before is None:
        yield row.scheduled_s * 1000, f"{by} triggered it"
    elif by and at_ms and not is_next:
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


def _log_point_2(row: Row) -> str:
    text = f"log point 2 committed at index {row.launched_index}: it was started"
    waited_ms = row.launched_at_ms - max(row.started_ms, row.begun_at_ms)
    if row.started_ms and waited_ms >= TAKEOVER_MS:
        text += (
            f", {format_ms(waited_ms)} after the fact; the leader or the way to it was lost in "
            "between, and whoever led then found it begun and settled it"
        )
    return text


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


def manual_launches(rows: Sequence[Row], open_rows: Sequence[Row], job: str, at_s: int) -> str:
    """Return which launches people made in that second and what became of them; "" for none.

    `rows` in log order; both may have launches of other seconds, and scheduled ones.
    """
    newest: dict[int, Row] = {}
    makers: dict[int, str] = {}
    for row in [*rows, *open_rows]:
        if row.trigger and row.scheduled_s == at_s and row.kind is not RowKind.AMENDMENT:
            newest[row.trigger] = row
            makers[row.trigger] = makers.get(row.trigger) or asked_by(row)
    if not newest:
        return ""
    triggers = sorted(newest)
    said = [
        f"{LaunchName(job, at_s, trigger)}{_by(makers[trigger])}, {_became(newest[trigger])}"
        for trigger in triggers[:NAMED_MAX]
    ]
    if len(triggers) > NAMED_MAX:
        said.append(f"and {len(triggers) - NAMED_MAX} more")
    return f"; launched by hand in that second: {'; '.join(said)}"


def _by(maker: str) -> str:
    return f" by {maker}" if maker else ""


def _became(row: Row) -> str:
    """`succeeded`, `skipped (overlap)`, `launched and not over`."""
    if row.kind is RowKind.OPEN:
        return f"{row.state.label} and not over"
    return f"{row.state.label} ({row.reason.label})" if row.reason else row.state.label


_GAVE_UP: Final = {
    Reason.DEADLINE: "its deadline left no time for another try",
    Reason.BUDGET: "its tenant had no retries left",
}
"""Reasons of dead letters that are not those of their last attempts."""


def dead_letter(letter: Row | None, job: str, at_s: int) -> str:
    """Return that a launch is a dead letter, since when and why, and what launches it again; ""
    where it is none. `letter` may be that of a newer launch of the job that ended alike."""
    if letter is None:
        return ""
    why = _GAVE_UP.get(letter.reason) or letter.reason.label or letter.state.label
    since = f" at {format_time(letter.ended_at_ms // 1000)}" if letter.scheduled_s == at_s else ""
    return (
        f"; it became a dead letter{since} ({why}), and "
        f"`raftcron dead redrive '{LaunchName(job, at_s, 0)}'` launches it again"
    )


def newer_launch(replaced: Row, rows: Sequence[Row], open_rows: Sequence[Row]) -> str:
    """Return which launch took the place of a replaced one: the first newer one that was begun
    after its end, or waits; "" where it is not among `rows` and `open_rows`, or none was replaced.
    """
    if replaced.reason is not Reason.REPLACED:
        return ""
    newer = [
        row
        for row in [*rows, *open_rows]
        if _begun_at(row) > replaced.ended_index
        and (row.scheduled_s, row.trigger) > (replaced.scheduled_s, replaced.trigger)
    ]
    if not newer:
        return ""
    first = min(newer, key=_begun_at)
    name = LaunchName(replaced.job, first.scheduled_s, first.trigger)
    return f"; the newer launch is {name}"


def _begun_at(row: Row) -> int:
    """Return the index at which a launch was begun; one that waits will be later than all."""
    return _NEVER if row.state is LaunchState.DUE else row.begun_index
