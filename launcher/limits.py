"""Bounds of everything that an executor keeps and sends, with their arithmetic."""

from __future__ import annotations

from typing import Final

CONFIG_BYTES_MAX: Final = 1 << 20
SLOTS_MAX: Final = 10_000
"""Launches at once on one host; each takes a process, a pipe and a pidfd of the spawner."""
MESSAGE_BYTES_MAX: Final = 64 << 20
"""One message of the stream: 5,000 starts of 8 KiB each are 40 MiB."""
REPORTS_PER_MESSAGE_MAX: Final = 5_000
"""About 100 bytes each: 0.5 MiB; 6 MiB with the longest details."""
INVENTORY_ROWS_MAX: Final = 1_000
"""Rows in one message of a Recollection: a leader reads it in 12 ms, between its ticks."""
HELLO_ROWS_MAX: Final = 28_000
"""Ledger rows in the first message: all slots of the largest executor, and as many ends again of
which it has not heard. The longest row takes 1,317 bytes (a name of 255, a detail of 1,024): the
message is below MESSAGE_BYTES_MAX. The usual 60 bytes make 1.7 MB, which a leader reads in 0.1 s.
More follow as reports, and then absence proves nothing to the leader."""
OUTPUT_CHUNK_BYTES_MAX: Final = 256 << 10
"""Output in one answer; for more the leader asks again."""
OUTPUT_BYTES_MAX_MIN: Final = 4 << 10
"""Smallest bound of one attempt's output: two halves of half a page of a book."""
FRAME_BYTES_MAX: Final = 64 << 20
"""One frame between executor and spawner: all starts of one message of the stream."""
LEDGER_ROWS_MAX: Final = 4_000_000
"""Launches that an executor remembers: 120 MB in batches of 250, 3.2 GB where each is alone. Those
that were begun since the newest backup are remembered: if backups hang, this is an hour of 1,000
launches a second."""
DETAIL_BYTES_MAX: Final = 1 << 10
"""A message of the operating system in a report, or what a handler said at its end, in UTF-8."""
WORKERS_MAX: Final = 256
"""Worker processes of one executor: each takes a socket and a pidfd of the 1,024 files that a
process may have open where nobody raised that."""
WORKER_THREADS_MAX: Final = 1_000
"""Launches that one worker process runs at once; of an async handler, not really threads."""
GROUP_SLOTS_MAX: Final = 10_000
"""Launches that one group of workers may have, waiting ones included."""
RUNNING_TOLD_MAX: Final = 100_000
"""The largest number of running launches in a heartbeat."""
WAITING_BYTES_MAX: Final = 64 << 20
"""Payloads that wait for workers; then nothing more is accepted until some have gone."""
PIECE_BYTES_PENDING_MAX: Final = 1 << 20
"""Output of one worker that waits for the disk; then nothing more is read of that worker."""
