"""What the leader hears from its executors: sessions that come and go, facts, heartbeats.

Events are values. They are given to the leader's `on_event` in the order in which they happened, on
the one event loop; none comes after `Pool.close`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from launcher.protocol.reports import BatchFacts, Greeting, Recalled


class Joined(msgspec.Struct, frozen=True):
    """An executor's Hello was accepted; it waits for `Pool.welcome`, or for `Pool.refuse`.

    `offset_ms` is its wall clock minus ours, `address` where the stream comes from.
    """

    executor: str
    ledger: str
    greeting: Greeting
    address: str
    offset_ms: int


class Offered(msgspec.Struct, frozen=True):
    """What the workers of an executor serve has changed; `Session.offers` has it."""

    executor: str
    ledger: str


class Recollected(msgspec.Struct, frozen=True):
    """A part of all that an executor's ledger remembers (rule R13), by (index, row); each row comes
    once, and `is_last` ends it.

    It may have forgotten what was begun at or below log index `floor`. It counts for the session
    over which it came: after another Joined it begins anew. Facts of a row that come later are
    newer than what is told here.
    """

    executor: str
    ledger: str
    rows: tuple[Recalled, ...]
    is_last: bool
    floor: int


class Left(msgspec.Struct, frozen=True):
    """A session ended. The lease goes on: only its end says that the executor is lost. `is_cut`: it
    did not end in order, and nobody sent the executor away."""

    executor: str
    ledger: str
    reason: str
    is_cut: bool = False


class Unsent(msgspec.Struct, frozen=True):
    """First starts that never left for an executor, and never will from here: it was not
    connected, fell silent, or its session ended before its stream took them."""

    executor: str
    ledger: str
    batches: tuple[tuple[int, Sequence[int]], ...]  # log index of the Begin, rows


class Silent(msgspec.Struct, frozen=True):
    """An executor has left a probe unanswered and gets no new launches; with `is_over` it has
    answered that probe after all."""

    executor: str
    ledger: str
    is_over: bool = False


class Facts(msgspec.Struct, frozen=True):
    """An executor reported rows of its ledger; what is not acknowledged comes again
    with its next Hello."""

    executor: str
    ledger: str
    batches: tuple[BatchFacts, ...]


class Beat(msgspec.Struct, frozen=True):
    """A heartbeat arrived and is not answered yet (rule R5: the leader is confirmed first)."""

    executor: str
    ledger: str
    number: int
    running: int
    wall_ms: int
    arrived_mono_ms: int


Event = Joined | Left | Facts | Beat | Recollected | Offered | Unsent | Silent
