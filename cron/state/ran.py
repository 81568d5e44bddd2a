"""What an executor's ledger remembers of an attempt, as a restored cell records it (rule R13)."""

from __future__ import annotations

import msgspec

from cron.launch_state import LaunchState
from cron.notes import Note
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch


class RanItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an executor's ledger remembers of an attempt that began after the snapshot from which
    the cell was restored. `state` is LAUNCHED while it runs. `executor` is its number, 0 where
    nobody remembers that part. `parts` are all parts of an attempt that has several, in order."""

    scheduled_s: int
    trigger: int
    attempt: int
    state: LaunchState
    reason: Reason
    executor: int
    begun_index: int
    exit_code: int = -1
    started_ms: int = 0
    finished_ms: int = 0
    local_min: int = -1
    epoch: Epoch = Epoch()
    detail: str = ""
    output_bytes: int = 0
    part: int = 1
    parts: tuple[RanItem, ...] = ()
    note: Note | None = None
    row: int = -1  # among what its entry began on that executor; -1: nobody remembers
