"""Bounds of the messages between executors and the leader, with their arithmetic."""

from __future__ import annotations

from typing import Final

from launcher.protocol.names import SCHEDULED_S_MAX

PROTOCOL: Final = 3
"""The version of the protocol; `Welcome.protocol` in pool.proto says what each number means."""
SLOTS_MAX: Final = 100_000
"""Launches that one executor runs at once; a host has at most 4 million process ids."""
PID_MAX: Final = 1 << 22
"""Largest process id of Linux (PID_MAX_LIMIT)."""
HOST_CHARS_MAX: Final = 253
"""A host name (RFC 1035)."""
VERSION_CHARS_MAX: Final = 100
INCARNATION_CHARS_MAX: Final = 100
ACCOUNTS_MAX: Final = 256
"""Accounts that one executor names, of those as which it runs commands."""
ACCOUNT_CHARS_MAX: Final = 64
LABELS_MAX: Final = 64
LABEL_CHARS_MAX: Final = 200
KNOWN_MAX: Final = 200_000
"""Rows in one Hello: twice the slots of the largest executor; about 100 bytes each, 20 MB."""
REPORTS_MAX: Final = 50_000
"""Rows in one Reports or Recollection message: what the largest executor ends while one round trip
takes 50 s."""
ROW_MAX: Final = (1 << 24) - 1
"""The highest number of a row in a batch; an entry of the log has no room for so many."""
DETAIL_CHARS_MAX: Final = 2_000
"""What the operating system or a handler said about one launch; an executor sends 1 KiB."""
MARK_BYTES_MAX: Final = 16
"""What a leader draws for its term, or less; see `Orders.mark` in pool.proto."""
PROOF_BYTES_MAX: Final = 32
"""`proofs.py` makes 16."""
EPOCH_CHARS_MAX: Final = 150
"""Two numbers of 19 digits, a replica's name of 100 characters, two dots."""
OUTPUT_KEPT_BYTES_MAX: Final = 1 << 30
"""Output of one attempt that an executor may be configured to keep."""
OUTPUT_PACKED_BYTES_MAX: Final = OUTPUT_KEPT_BYTES_MAX + (OUTPUT_KEPT_BYTES_MAX >> 6)
"""The same output, packed to be stored in object storage."""
RETRY_AFTER_MS_MAX: Final = 366 * 86_400_000
"""A year."""
GROUPS_MAX: Final = 256
"""Groups of worker processes on one executor: as many as its worker processes."""
HANDLERS_MAX: Final = 10_000
"""Handlers that one executor serves; of the longest names they take 2.5 MB in a message."""
HANDLER_CHARS_MAX: Final = 200
"""Name of a handler: a Python module and function."""
GROUP_CHARS_MAX: Final = 200
CPU_MILLI_MAX: Final = 100_000_000
"""A hundred thousand CPUs."""
MEMORY_BYTES_MAX: Final = 1 << 53
EXIT_CODE_MAX: Final = 255
"""128 + the largest signal (64) and a shell's 255 both fit."""
WALL_MS_MAX: Final = SCHEDULED_S_MAX * 1000 + 999
"""The end of the last year with four digits."""
INDEX_MAX: Final = (1 << 63) - 1
"""Log indexes and heartbeat numbers fit a signed 64-bit integer."""
OUTPUTS_WAITING_MAX: Final = 1 << 40
PROBLEM_CHARS_MAX: Final = 200
USAGE_MAX: Final = 1 << 53
"""Milliseconds of CPU, or bytes of memory, of one launch: far above any, against damage."""
