"""The leader's messages to each follower: entries in a window, a probe, or pieces of a dump."""

from __future__ import annotations

from collections import deque

import msgspec
from pysyncobj.node import Node

from consensus.engine.network.peering import PeerTransport
from consensus.engine.network.wire import Append, DumpChunk
from consensus.engine.storage.disk import Disk, File
from consensus.engine.storage.dump import Dump
from consensus.engine.storage.entries import ENTRY_OVERHEAD_BYTES
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.records import Entry
from consensus.errors import InvariantViolated
from consensus.limits import BATCH_BYTES, CHUNK_BYTES, WINDOW_BYTES


class _Flight(msgspec.Struct):
    """The unanswered messages to one follower: for each, the index after it and its bytes."""

    sent: deque[tuple[int, int]] = msgspec.field(default_factory=deque)
    size: int = 0

    def add(self, next_index: int, entries: list[Entry]) -> None:
        """Record a message that was sent."""
        size = sum(len(command) + ENTRY_OVERHEAD_BYTES for command, _, _ in entries)
        self.sent.append((next_index, size))
        self.size += size

    def answered(self, next_index: int) -> None:
        """Record that the follower has all entries below `next_index`."""
        while self.sent and self.sent[0][0] <= next_index:
            self.size -= self.sent.popleft()[1]

    @property
    def has_room(self) -> bool:
        """Return whether more may be sent."""
        return self.size < WINDOW_BYTES


class _Parcel(msgspec.Struct):
    """A dump that is being sent; the open file stays readable when a newer dump replaces it."""

    file: File
    dump: Dump
    offset: int = 0
    waits: bool = False


class _Round(msgspec.Struct, frozen=True):
    """The values that all messages of one round share."""

    term: int
    commit_index: int
    sent_ms: int
    dump: Dump | None


class Sender:
    """The leader's sending side; used in the tick thread.

    A follower is *probed* after a refusal or a new connection: it gets one message per heartbeat
    until it accepts one. Otherwise messages are pipelined, with at most `WINDOW_BYTES` of
    unanswered entries. Entries that are not in memory are read from the journal, one piece per
    round; `reads_on` says that another piece could be sent at once.
    """

    def __init__(self, journal: FileJournal, transport: PeerTransport, disk: Disk) -> None:
        self._log = journal.log
        self._transport = transport
        self._disk = disk
        self._probed: dict[Node, bool] = {}
        self._flights: dict[Node, _Flight] = {}
        self._parcels: dict[Node, _Parcel] = {}
        self._round = _Round(0, 0, 0, None)
        self.reads_on = False

    def reset(self) -> None:
        """Start a leadership: nothing is known about the followers."""
        self._probed.clear()
        self._flights.clear()
        for node in list(self._parcels):
            self.forget(node)

    def probe(self, node: Node) -> None:
        """Send one message to `node`, and the next after its answer or at a heartbeat."""
        self._flights.pop(node, None)
        self._probed[node] = False

    def rest(self, node: Node) -> None:
        """Send nothing to `node` before the next heartbeat: it would not accept it."""
        self._flights.pop(node, None)
        self._probed[node] = True

    def forget(self, node: Node) -> None:
        """Forget the messages in flight to `node`."""
        self._probed.pop(node, None)
        self._flights.pop(node, None)
        parcel = self._parcels.pop(node, None)
        if parcel is not None:
            parcel.file.close()

    def accepted(self, node: Node, next_index: int) -> None:
        """Record that the logs are equal below `next_index`; this ends probing and dumps."""
        self._probed.pop(node, None)
        if node in self._flights:
            self._flights[node].answered(next_index)
        parcel = self._parcels.get(node)
        if parcel is not None and next_index > parcel.dump.position.index:
            self.forget(node)

    def resume_dump(self, node: Node, index: int, offset: int) -> None:
        """Continue the dump at `offset`, as the follower asks. A piece that it did not accept (its
        disk may be full) is sent again with a heartbeat, not at once.
        """
        parcel = self._parcels.get(node)
        if parcel is None or index != parcel.dump.position.index:
            return
        if 0 <= offset < parcel.file.size and offset != parcel.offset:
            parcel.offset, parcel.waits = offset, False

    def is_busy(self, node: Node) -> bool:
        """Return whether a message to `node` would wait behind entries or a dump."""
        flight = self._flights.get(node)
        has_sent = flight is not None and bool(flight.sent)
        return has_sent or node in self._parcels or self._transport.unsent_bytes(node) > 0

    def lags(self, last_index: int, next_index: dict[Node, int]) -> bool:
        """Return whether there is something to send to a follower, apart from `announce`."""
        for node, index in next_index.items():
            parcel = self._parcels.get(node)
            if parcel is not None:
                if not parcel.waits:
                    return True
            elif self._probed.get(node) is False or (
                node not in self._probed and index <= last_index and self._flight(node).has_room
            ):
                return True
        return False

    def _flight(self, node: Node) -> _Flight:
        return self._flights.setdefault(node, _Flight())

    def begin(self, term: int, commit_index: int, sent_ms: int, dump: Dump | None) -> None:
        """Start a round of sending."""
        self._round = _Round(term, commit_index, sent_ms, dump)

    def feed(
        self, node: Node, next_index: dict[Node, int], *, heartbeat: bool, announce: bool
    ) -> bool:
        """Send `node` the entries that it lacks; an empty message if there is only `announce`.
        Return whether entries were sent."""
        following = next_index[node]
        if node in self._parcels or following <= self._log.begin:
            self._feed_dump(node, heartbeat=heartbeat)
        elif node in self._probed:
            is_due = heartbeat and not self._transport.unsent_bytes(node)
            if is_due or not self._probed[node]:
                self._probed[node] = True
                self._append(node, following, self._batch(following))
        else:
            next_index[node] = self._feed_window(node, following, announce=announce)
        return next_index[node] > following

    def _feed_window(self, node: Node, following: int, *, announce: bool) -> int:
        start, last, flight = following, self._log.last, self._flight(node)
        while following <= last and flight.has_room:
            entries = self._batch(following)
            if not self._append(node, following, entries):
                return following
            is_old = following < self._log.cached_from
            following += len(entries)
            flight.add(following, entries)
            if is_old:
                self.reads_on = self.reads_on or (following <= last and flight.has_room)
                break
        if following == start and announce:
            self._append(node, following, [])
        return following

    def _batch(self, start: int) -> list[Entry]:
        return self._log.read(start, self._log.last, BATCH_BYTES)

    def _append(self, node: Node, start: int, entries: list[Entry]) -> bool:
        now, previous = self._round, start - 1
        term = self._log.term_at(previous)
        message = Append(now.term, now.commit_index, previous, term, now.sent_ms, entries)
        return self._transport.send(node, message)

    def _feed_dump(self, node: Node, *, heartbeat: bool) -> None:
        parcel = self._parcels.get(node)
        if parcel is None:
            dump = self._round.dump
            if dump is None:
                raise InvariantViolated("the journal begins late without a dump")
            parcel = self._parcels[node] = _Parcel(self._disk.open(dump.name), dump)
        # Sent again only when it must be lost: otherwise a slow network would fill up.
        if parcel.waits and not (heartbeat and not self._transport.unsent_bytes(node)):
            return
        parcel.waits = True
        size, offset = parcel.file.size, parcel.offset
        piece = parcel.file.read(offset, CHUNK_BYTES)
        now, at = self._round, parcel.dump.position
        message = DumpChunk(
            now.term, at.index, at.term, size, offset, now.sent_ms, piece, parcel.dump.digest
        )
        self._transport.send(node, message)

    @property
    def sends_dump_of(self) -> int | None:
        """The index of the oldest dump that is being sent; None if none is."""
        return min((parcel.dump.position.index for parcel in self._parcels.values()), default=None)

    def dump_progress(self, node: Node) -> tuple[int, int]:
        """Return (bytes of a dump that `node` has, its size); (0, 0) if none is sent."""
        parcel = self._parcels.get(node)
        return (parcel.offset, parcel.file.size) if parcel is not None else (0, 0)
