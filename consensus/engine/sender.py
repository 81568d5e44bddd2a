"""What a leader sends to each follower: entries in a window, a probe, or pieces of the dump."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
from pysyncobj.node import Node

from consensus.engine.network.transport import PeerTransport
from consensus.engine.network.wire import Append, DumpChunk
from consensus.engine.storage.journal import Entry, FileJournal
from consensus.errors import invariant
from consensus.leadership import Position
from consensus.limits import BATCH_BYTES, CHUNK_BYTES

_WINDOW_BYTES: Final = 4 * BATCH_BYTES
_ENTRY_OVERHEAD_BYTES: Final = 32  # an entry's index, term and lengths in a message


class _Parcel(msgspec.Struct):
    """A dump on its way: the open file stays readable when a newer one takes its name."""

    descriptor: int
    position: Position
    size: int
    offset: int = 0
    waits: bool = False


class _Round(msgspec.Struct, frozen=True):
    """What all messages of one round of sending share."""

    term: int
    commit_index: int
    sent_ms: int
    dumped: Position


class Sender:
    """The leader's sending side; in the tick thread.

    A follower is *probed* after a refusal or a new connection: one message at each heartbeat, until
    it accepts one. Otherwise messages follow each other without waiting for answers.
    """

    def __init__(self, journal: FileJournal, transport: PeerTransport, dump: Path) -> None:
        self._journal = journal
        self._transport = transport
        self._dump = dump
        self._probed: dict[Node, bool] = {}
        self._parcels: dict[Node, _Parcel] = {}
        self._round = _Round(0, 0, 0, Position())

    def reset(self) -> None:
        """Start a leadership: nothing is known of the followers."""
        self._probed.clear()
        for node in list(self._parcels):
            self.forget(node)

    def probe(self, node: Node) -> None:
        """Send one message to `node`, and no further one before it answers or a heartbeat."""
        self._probed[node] = False

    def forget(self, node: Node) -> None:
        """Drop what was under way to `node`."""
        self._probed.pop(node, None)
        parcel = self._parcels.pop(node, None)
        if parcel is not None:
            os.close(parcel.descriptor)

    def accepted(self, node: Node, next_index: int) -> None:
        """Note that the logs are equal below `next_index`: probing is over, a dump has arrived."""
        self._probed.pop(node, None)
        parcel = self._parcels.get(node)
        if parcel is not None and next_index > parcel.position.index:
            self.forget(node)

    def resume_dump(self, node: Node, index: int, offset: int) -> None:
        """Go on with the dump from `offset`, as the follower asks."""
        parcel = self._parcels.get(node)
        if parcel is not None and index == parcel.position.index and 0 <= offset < parcel.size:
            parcel.offset, parcel.waits = offset, False

    def lags(self, last_index: int, next_index: dict[Node, int]) -> bool:
        """Whether a follower could be sent something now, news or not."""
        for node, index in next_index.items():
            parcel = self._parcels.get(node)
            if parcel is not None:
                if not parcel.waits:
                    return True
            elif self._probed.get(node) is False or (
                node not in self._probed
                and index <= last_index
                and self._transport.unsent_bytes(node) < _WINDOW_BYTES
            ):
                return True
        return False

    def begin(self, term: int, commit_index: int, sent_ms: int, dumped: Position) -> None:
        """Start a round of sending."""
        self._round = _Round(term, commit_index, sent_ms, dumped)

    def feed(self, node: Node, next_index: dict[Node, int], *, heartbeat: bool, news: bool) -> None:
        """Send `node` what it lacks; an empty message if there is nothing but `news`."""
        following = next_index[node]
        if node in self._parcels or following <= self._journal[0][1]:
            self._feed_dump(node, heartbeat=heartbeat)
        elif node in self._probed:
            if heartbeat or not self._probed[node]:
                self._probed[node] = True
                self._append(node, following, self._batch(following))
        else:
            next_index[node] = self._feed_window(node, following, news=news)

    def _feed_window(self, node: Node, following: int, *, news: bool) -> int:
        start, last = following, self._journal[-1][1]
        while following <= last and self._transport.unsent_bytes(node) < _WINDOW_BYTES:
            entries = self._batch(following)
            if not self._append(node, following, entries):
                return following
            following += len(entries)
        if following == start and news:
            self._append(node, following, [])
        return following

    def _batch(self, start: int) -> list[Entry]:
        slot, size = start - self._journal[0][1], 0
        end = slot
        while end < len(self._journal) and size < BATCH_BYTES:
            size += len(self._journal[end][0]) + _ENTRY_OVERHEAD_BYTES
            end += 1
        return self._journal[slot:end]

    def _append(self, node: Node, start: int, entries: list[Entry]) -> bool:
        previous = self._journal[start - 1 - self._journal[0][1]]
        now = self._round
        message = Append(now.term, now.commit_index, previous[1], previous[2], now.sent_ms, entries)
        return self._transport.send(node, message)

    def _feed_dump(self, node: Node, *, heartbeat: bool) -> None:
        parcel = self._parcels.get(node)
        if parcel is None:
            invariant(self._round.dumped.index > 0, "the journal begins late without a dump")
            descriptor = os.open(self._dump, os.O_RDONLY | os.O_CLOEXEC)
            size = os.fstat(descriptor).st_size
            parcel = self._parcels[node] = _Parcel(descriptor, self._round.dumped, size)
        if parcel.waits and not heartbeat:
            return
        parcel.waits = True
        piece = os.pread(parcel.descriptor, CHUNK_BYTES, parcel.offset)
        now, position = self._round, parcel.position
        message = DumpChunk(
            now.term, position.index, position.term, parcel.size, parcel.offset, now.sent_ms, piece
        )
        self._transport.send(node, message)
