"""Limits of the replicated log, each with the arithmetic behind it."""

from __future__ import annotations

from typing import Final

ENTRY_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest entry: 100,000 launches of 80 bytes. Callers must split larger ones."""

IN_FLIGHT_MAX: Final = 10_000
"""Appends that may wait at once; at 2,000 a second five seconds of work."""

IN_FLIGHT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of all waiting appends: eight of the largest."""

BARRIERS_MAX: Final = 4_096
"""Calls that may wait for the next barrier: a few kB each with the read behind it, 20 MB in all. A
round takes a round trip and a sync, so at 20 ms a round it is 200,000 reads a second."""

TICK_BYTES: Final = 1024 * 1024
"""Bytes that one tick writes to the journal before it reads from its peers again."""

BATCH_BYTES: Final = 256 * 1024
"""The size of a message to a follower, unless its last entry is larger."""

WINDOW_BYTES: Final = 4 * BATCH_BYTES
"""Entries on their way to a follower that it has not answered: at 50 ms for the way and the disk
20 MB a second. An entry that is larger goes alone."""

PART_BYTES: Final = 64 * 1024
"""The size of a frame of entries or of a dump; heartbeats are sent between two frames."""

WRITE_AHEAD_BYTES: Final = PART_BYTES
"""A connection that has less of them to send is given the next part. A heartbeat waits for both: at
1 MB/s for 0.13 s."""

MESSAGE_BYTES_MAX: Final = ENTRY_BYTES_MAX + BATCH_BYTES + 64 * 1024
"""The largest frame from a peer: a batch that ends with a largest entry, and its header."""

HELLO_BYTES_MAX: Final = 1024
"""The largest frame from an unauthenticated connection, which may only send its Hello."""

HANDSHAKES_MAX: Final = 256
"""Callers that have neither ended a TLS handshake nor, without TLS, sent a byte; one open file
each. Half of them at most come from one address."""

STRANGERS_MAX: Final = 16
"""Callers that were handed to the tick thread and have not said who they are. For one more the
oldest of the certificate that has most of them is closed."""

LEAVING_MAX: Final = 16
"""Refused connections whose Goodbye is still being sent; more are closed at once."""

UNSENT_BYTES_MAX: Final = 2 * MESSAGE_BYTES_MAX
"""Bytes queued for a slow peer; further messages are dropped, as a network may do."""

CHUNK_BYTES: Final = 256 * 1024
"""One piece of a dump on its way to a follower; each is acknowledged."""

DUMP_BYTES_MAX: Final = 1024 * 1024 * 1024
"""The largest dump that is written or received."""

DUMP_PIECE_BYTES: Final = 1024 * 1024
"""How much of a dump is read or written at once."""

DUMP_SYNC_BYTES: Final = 8 * 1024 * 1024
"""How much of a dump is written before a sync: the journal's syncs wait behind unsynced data of
dumps.
"""

SEGMENT_BYTES: Final = 8 * 1024 * 1024
"""The size of a journal file; the last frame may exceed it."""

ROOM_BYTES_MIN: Final = 16 * 1024 * 1024
"""Without this much room a replica does not start, and a dump is not written: one tick's frame
(TICK_BYTES and a largest entry) and the next segment's head. The journal goes before dumps."""

TRAILING_ENTRIES: Final = 5_000
"""Entries kept behind a dump, so that a follower that was away briefly needs no dump."""

TRAILING_BYTES: Final = 4 * 1024 * 1024
"""Their bytes in memory; on the disk they are kept until the whole segment is not needed."""

ENTRY_CACHE_BYTES: Final = 2 * WINDOW_BYTES
"""The newest entries, whose content is in memory; an older one costs 16 bytes and is read back from
the journal. A follower that is level needs the entries of its window. At 20 kB/s of journal these
are the last two minutes."""

READ_BACK_BYTES: Final = 256 * 1024
"""How much of older entries a tick reads from the disk to apply them. A larger entry is read alone.
"""

HANDOVER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of committed entries queued for the event loop: two of the largest."""

HANDOVER_BATCH: Final = 128
"""Committed entries that are queued before the tick thread checks these limits again."""

HANDOVER_ENTRIES_MAX: Final = 4_096
"""Committed entries queued for the event loop; a replay pauses at this number."""
