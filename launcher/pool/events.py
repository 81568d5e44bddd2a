"""What the pool tells the leader: sessions that begin and end, reports, heartbeats.

Events are values. The pool passes them to the leader's `on_event` in the order in which they
happened, on the event loop. No event follows `Pool.close`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from launcher.protocol.reports import BatchReport, Greeting, RowReport


class Joined(msgspec.Struct, frozen=True):
    """An executor's Hello was accepted; it waits for `Pool.welcome` or `Pool.refuse`.

    `offset_ms` is its wall clock minus ours, `address` the other end of its stream.
    """

    executor: str
    ledger: str
    greeting: Greeting
    address: str
    offset_ms: int


class Offered(msgspec.Struct, frozen=True):
    """An executor offers other slots now; `Session.offers` has them."""

    executor: str
    ledger: str


class InventoryPage(msgspec.Struct, frozen=True):
    """One page of the inventory of an executor's journal (rule R13), by (index, row).

    Each row comes once; `is_last` ends the inventory. The journal may have forgotten what was begun
    at or below log index `watermark`. Pages count for one session: after another Joined the
    inventory begins again. A report that comes later is newer than its row here.
    """

    executor: str
    ledger: str
    rows: tuple[RowReport, ...]
    is_last: bool
    watermark: int


class Left(msgspec.Struct, frozen=True):
    """A session ended. The lease goes on: only its end says that the executor is lost.

    `is_cut`: the stream did not end in order, and nobody sent the executor away.
    """

    executor: str
    ledger: str
    reason: str
    is_cut: bool = False


class Unsent(msgspec.Struct, frozen=True):
    """First starts that never left for an executor, and never will: it was not connected, did not
    answer, or its session ended before its stream took them."""

    executor: str
    ledger: str
    batches: tuple[tuple[int, Sequence[int]], ...]  # log index of the Begin, rows


class Silent(msgspec.Struct, frozen=True):
    """An executor left a probe unanswered and gets no new launches; with `is_over` it has answered
    that probe after all."""

    executor: str
    ledger: str
    is_over: bool = False


class Reported(msgspec.Struct, frozen=True):
    """An executor reported rows of its journal. It repeats what is not acknowledged in its next
    Hello."""

    executor: str
    ledger: str
    batches: tuple[BatchReport, ...]


class HeartbeatReceived(msgspec.Struct, frozen=True):
    """A heartbeat arrived and waits for its answer (rule R5: the leader is confirmed first)."""

    executor: str
    ledger: str


Event = Joined | Left | Reported | HeartbeatReceived | InventoryPage | Offered | Unsent | Silent
