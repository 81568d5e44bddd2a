"""Earlier revisions of jobs: what a job was before each change, within bounds.

The newest REVISIONS_OF_JOB of each job are kept, and of all jobs together EARLIER_BYTES_MAX: of too
many the oldest go, whichever job's they are.
"""

from __future__ import annotations

import heapq
from typing import Final

import msgspec

from cron.limits import EARLIER_BYTES_MAX, REVISIONS_OF_JOB
from cron.state.state import Earlier, JobRecord, State

FORMAT: Final = 10
"""The format of State that brought them."""
_SPARE: Final = 1_000
_encoder = msgspec.msgpack.Encoder()


def keep(state: State, record: JobRecord) -> None:
    """Keep what a job is, which another revision follows; the caller has touched its record."""
    if record.job is None or state.format < FORMAT:
        return
    size = len(_encoder.encode(record.job))
    earlier = Earlier(
        record.revision, record.changed_ms, record.changed_by, record.job, state.catalog, size
    )
    record.earlier.append(earlier)
    _note(state, record, earlier)
    for one in record.earlier[:-REVISIONS_OF_JOB]:
        state.earlier_bytes -= one.size
    del record.earlier[:-REVISIONS_OF_JOB]
    while state.earlier_bytes > EARLIER_BYTES_MAX:
        # What was followed first goes first, of several the job with the lowest number. What went
        # before in another way is passed over.
        until, number = heapq.heappop(state.earlier_order)
        oldest = state.by_number.get(number)
        if oldest is not None and oldest.earlier and oldest.earlier[0].until == until:
            state.touch(oldest)
            state.earlier_bytes -= oldest.earlier.pop(0).size
    if len(state.earlier_order) > 2 * state.earlier_peak + _SPARE:
        load(state)


def drop(state: State, record: JobRecord) -> None:
    """Note that a record goes, with all that it keeps."""
    state.earlier_bytes -= sum(one.size for one in record.earlier)


def load(state: State) -> None:
    """Fill what follows from the records."""
    state.earlier_bytes, state.earlier_order = 0, []
    for record in state.jobs.values():
        for one in record.earlier:
            _note(state, record, one)
    state.earlier_peak = len(state.earlier_order)


def _note(state: State, record: JobRecord, earlier: Earlier) -> None:
    state.earlier_bytes += earlier.size
    heapq.heappush(state.earlier_order, (earlier.until, record.number))
