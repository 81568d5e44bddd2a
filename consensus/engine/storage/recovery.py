"""Reads the segments of a journal in order and builds the log; each continues the one before.

The log begins at the first segment that `opens`. Segments before it cannot begin a log, because a
later truncation went below their base; a crash during the removal of old segments leaves them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec

from consensus.engine.storage.disk import Disk
from consensus.engine.storage.entries import Entries, SegmentReader
from consensus.engine.storage.records import BadRecord, Record, read_records
from consensus.engine.storage.segments import (
    FRAME_BYTES,
    Contents,
    Identity,
    read_segment,
    segment_name,
    segment_numbers,
)
from consensus.errors import LogDamaged


class Kept(msgspec.Struct):
    """A segment on the disk. `base` is the last entry before it; a log can begin there (`opens`)
    unless a later truncation went below it.
    """

    number: int
    base: int
    size: int
    opens: bool = True


class Recovered(msgspec.Struct):
    """The result: the log, the hard state, and the position for further writes.

    `log` is None until a segment was read with which a log can begin.
    """

    identity: Identity
    reader: SegmentReader
    keeps: Callable[[bytes], bool]
    log: Entries | None = None
    term: int = 0
    vote: str | None = None
    sequence: int = 0
    kept: list[Kept] = msgspec.field(default_factory=list)


def keep_none(command: bytes) -> bool:
    """Return False: the content of no entry stays in memory."""
    return False


def recover(disk: Disk, keeps: Callable[[bytes], bool] = keep_none) -> tuple[Recovered, Entries]:
    """Return the contents of the segments on `disk`, of which there must be at least one, and their
    log. Changes nothing. The content of the newest entries, and of those for which `keeps` returns
    True, stays in memory.

    Raises:
        LogDamaged: a segment is damaged or missing, or does not continue the one before.
        UnknownFormat: a newer version wrote it.
    """
    numbers = segment_numbers(disk.names())
    for before, number in pairwise(numbers):
        if number != before + 1:
            place = f"{disk.place}/{segment_name(before + 1)}"
            raise LogDamaged(place, f"missing, but {segment_name(number)} is there")
    found: Recovered | None = None
    for number in numbers:
        contents = read_segment(disk, number, is_last=number == numbers[-1])
        place = f"{disk.place}/{contents.name}"
        if found is None:
            found = Recovered(
                contents.header.identity,
                SegmentReader(disk, number),
                keeps,
                sequence=contents.header.sequence,
            )
        _continue(found, contents, place)
    if found is None:
        raise LogDamaged(disk.place, "the journal is missing")
    if found.log is None:
        place = f"{disk.place}/{segment_name(numbers[0])}"
        raise LogDamaged(place, "what it continues was cut later; the segments before are missing")
    return found, found.log


def mark_cut(kept: list[Kept], index: int) -> None:
    """Record that entries from `index` on were truncated: no log can begin behind them."""
    for segment in kept:
        if segment.base >= index:
            segment.opens = False


def _continue(found: Recovered, contents: Contents, place: str) -> None:
    header = contents.header
    if header.identity != found.identity:
        raise LogDamaged(
            place, f"belongs to another disk than {segment_name(found.kept[0].number)}"
        )
    if header.sequence != found.sequence:
        raise LogDamaged(
            place,
            f"begins with frame {header.sequence}, but the segment before ends with"
            f" {found.sequence - 1}",
        )
    for position, (offset, records) in enumerate(contents.frames):
        try:
            replayed = list(read_records(records))
            if position == 0:
                _open_segment(found, contents, replayed)
            else:
                start = found.reader.place(contents.header.number, offset + FRAME_BYTES)
                for record in replayed:
                    _replay(found, record, start)
        except BadRecord as error:
            raise LogDamaged(place, f"frame at byte {offset}: {error}") from error
        if found.log is not None:
            found.log.written()
    found.sequence += len(contents.frames)


def _open_segment(found: Recovered, contents: Contents, records: list[Record]) -> None:
    match records:
        case [("vote", str(vote), int(term)), ("start", int(index), int(start_term))]:
            pass
        case _:
            raise BadRecord("a segment begins with the hard state and the entry that it continues")
    name = vote or None
    if not found.kept:
        found.term, found.vote = term, name
    elif (term, name) != (found.term, found.vote):
        raise BadRecord(f"hard state {term}, {name} does not continue {found.term}, {found.vote}")
    if found.log is None:
        found.log = Entries(found.reader, index, start_term, found.keeps)
    elif (index, start_term) != (found.log.last, found.log.last_term):
        raise BadRecord(f"entry {index} of term {start_term} does not end the segment before")
    found.kept.append(Kept(contents.header.number, index, contents.end))


def _replay(found: Recovered, record: Record, start: int) -> None:
    """Apply a record of a frame whose records begin at the place `start`."""
    log = found.log
    match record:
        case ("entry", command, index, term, offset):
            if log is None:
                return
            if index != log.last + 1:
                raise BadRecord(f"entry {index} follows {log.last}")
            log.add(command, term, start + offset)
        case ("cut", index):
            mark_cut(found.kept, index)
            if log is not None and index <= log.begin:
                found.log = None
            elif log is not None:
                log.cut_from(index)
        case ("vote", vote, term):
            found.term, found.vote = term, vote or None
        case ("base", index, term):
            found.log = Entries(found.reader, index, term, found.keeps)
        case _:
            raise BadRecord("a segment's start in the middle of it")
