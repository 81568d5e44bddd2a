"""Bounds of what the pool keeps and sends for its executors, with their arithmetic."""

from __future__ import annotations

from typing import Final

EXECUTORS_MAX: Final = 10_000
"""Connected at once: ten thousand hosts in a cell."""
ORDERS_BYTES_MAX: Final = 2 << 20
"""One Orders message: half of what gRPC takes by default (4 MiB)."""
ORDERS_ROWS_MAX: Final = 5_000
"""Rows to start in one Orders message; between two of them the loop turns to others."""
ROW_BYTES: Final = 24
"""A row to start, beside its work: its columns where nothing in them is alike."""
FENCE_BYTES: Final = 300
"""A tombstone: two numbers and the longest name."""
KILL_BYTES: Final = 316
"""The same, and a reason."""
ACK_BYTES: Final = 4
ACKS_WITHIN_MS: Final = 1_000
"""Acknowledgements wait for others, or for another order: a message for those of each entry would
wake an executor for nothing that it waits for."""
BATCH_BYTES: Final = 64
"""What a batch, or an acknowledgement for one, takes beside its rows."""
WORK_NUMBERS: Final = 1 << 16
"""Works that one stream knows at once, far more than a message has rows."""
WORKS_KEPT: Final = 2_000_000
"""Works that all streams know together, at about 100 bytes of the leader's memory: 200 MB."""
WORKS_BYTES_KEPT: Final = 256 << 20
"""Bytes of works that all streams know together, if no two know the same."""
WORKS_KEPT_MIN: Final = 64
WORK_BYTES_MAX: Final = 2 << 20
"""One piece of work; it travels alone if need be. Linux starts nothing with more (a quarter of an
8 MiB stack for arguments and environment), and it must fit gRPC's 4 MiB with its frame."""
OUTBOX_BYTES_MAX: Final = 64 << 20
"""Orders that wait for one executor to read, each start counted with its work: 300,000 launches,
or the executor is dropped."""
HEARTBEATS_MAX: Final = 64
"""Unanswered heartbeats kept of one session; the oldest go first, for the newest renew most."""
OUTPUT_REQUESTS_MAX: Final = 64
"""Requests for output under way at one executor."""
OUTPUT_BYTES_MAX: Final = 1 << 20
"""One slice of output; a longer one is asked for in several."""

GREETINGS_MAX: Final = 256
"""Executors between their Hello and their first answered heartbeat; others wait for their turn, and
who gives up meanwhile has cost no Hello. So those that are in keep their leases in a flood. A
certificate has one turn (`launcher.pool.turns`)."""
HELLO_WITHIN_MS: Final = 10_000
"""A stream without its first message is ended after this; no turn lasts longer."""
SILENT_MS: Final = 1_000
"""A stream that has its turn and no Hello yet gives it up after this if others wait. An executor
sends its Hello with the first bytes of its stream."""
WATCHES_EACH: Final = 3
"""Streams of one executor that watch who leads: two if it knows this replica by two addresses, and
one that broke off unheard. The oldest is ended for one more."""
NOTIFIED_PER_TURN: Final = 100
NOTIFIED_EVERY_MS: Final = 10
"""So many watching executors are notified of a change at once, then heartbeats get their turn: ten
thousand within a second, while they spread their return over ten."""
GOODBYE_WITHIN_MS: Final = 1_000
"""A stream that is ended gets this long to take its Goodbye, then it is cut."""
BREAKS_WITHIN_MS: Final = 50
"""What ends without an error is known to be broken within this time, or was ended in order."""
CLOCK_OFFSET_MS_MAX: Final = 10_000
"""Default of how far an executor's clock may be off before it gets no work (rule R10)."""

SPREAD_FROM: Final = 100
"""Executors; fewer are greeted in less time than an election takes, and come back at once."""
SPREAD_US_EACH: Final = 1_000
"""What greeting one executor costs a leader: a connection, a stream, a Hello, a Welcome; and twice
that, since grpc.aio accepts one stream in each round of a loop that also answers heartbeats."""
SPREAD_MS_MAX: Final = 10_000


def spread_ms(executors: int) -> int:
    """Return over how many milliseconds so many executors are to spread their return."""
    if executors < SPREAD_FROM:
        return 0
    return min(executors * SPREAD_US_EACH // 1_000, SPREAD_MS_MAX)


def works_kept(sharers: int) -> tuple[int, int]:
    """Return how many works, and how many bytes of them, each of so many streams may know."""
    streams = max(sharers, 1)
    count = min(max(WORKS_KEPT // streams, WORKS_KEPT_MIN), WORK_NUMBERS - ORDERS_ROWS_MAX)
    return count, WORKS_BYTES_KEPT // streams
