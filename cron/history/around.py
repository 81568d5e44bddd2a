"""What stood around one launch: manual launches of its second, and what replaced it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cron.history.audited import OpenRow
from cron.history.story import asked_by
from cron.state.pool import DeadLetter
from cron.state.rows import Row, RowKind
from launcher.launch import ACTIVE, Reason
from launcher.names import LaunchName, format_time

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
