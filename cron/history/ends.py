"""How the launches of each job ended in a stretch of history: a byte for each row. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple

from cron.state.rows import Chunk, RowKind
from cron.state.tail import Tail

NO_END: Final = 0
"""What stands for an amendment, which is not the end of an attempt."""


class Ends(NamedTuple):
    """Of rows of one job, in log order: their states, a byte each, their log indexes, and their
    numbers in their entries."""

    states: bytearray
    indexes: array[int]
    numbers: array[int]

    @classmethod
    def none(cls) -> Ends:
        """Return those of no row."""
        return cls(bytearray(), array("q"), array("q"))


def ends_of_tail(tail: Tail, items: int, upto_index: int) -> dict[str, Ends]:
    """Return, by job, how the rows of a tail ended whose log index is `upto_index` at most; of its
    first `items` items."""
    found: dict[str, Ends] = {}
    for number in range(items):
        if tail.indexes[number] > upto_index:
            break
        item = tail.item(number)
        state = int(item.state)
        if not isinstance(item, Chunk) and item.kind is RowKind.AMENDMENT:
            state = NO_END
        jobs = item.names() if isinstance(item, Chunk) else [item.job]
        for row, job in enumerate(jobs, item.number):
            mine = found.setdefault(job, Ends.none())
            mine.states.append(state)
            mine.indexes.append(item.ended_index)
            mine.numbers.append(row)
    return found


def in_log_order(streams: Iterable[dict[str, Ends]]) -> dict[str, bytes]:
    """Return, by job, the states of all rows of these streams in log order, without amendments."""
    first, *others = streams
    found = {job: bytes(one.states) for job, one in first.items()}
    for other in others:
        for job, one in other.items():
            before = first.get(job)
            if before is not None:
                both = [
                    *zip(before.indexes, before.numbers, before.states, strict=True),
                    *zip(one.indexes, one.numbers, one.states, strict=True),
                ]
                both.sort(key=lambda end: end[:2])
                found[job] = bytes(state for _, _, state in both)
            else:
                found[job] = bytes(one.states)
    return {
        job: states.replace(bytes((NO_END,)), b"") if NO_END in states else states
        for job, states in found.items()
    }
