"""What a follower does with its leader's entries and dumps.

It commits only what this very message has verified to equal the leader's log (S1, S2, B), and
acknowledges a dump only once that is in force (S9, S11). It withholds its answer to an entry that
`may_acknowledge` objects to, until a majority has it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
from pysyncobj.node import Node

from consensus.engine.compaction import Compaction
from consensus.engine.envelope import content
from consensus.engine.handover import Restored
from consensus.engine.library import Library
from consensus.engine.matching import match_log
from consensus.engine.membership import decode_members
from consensus.engine.network.wire import (
    Answer,
    Append,
    DumpAnswer,
    DumpChunk,
    Heartbeat,
    HeartbeatAnswer,
)
from consensus.engine.storage.dump import Dump, read_pieces
from consensus.engine.storage.records import Entry


class Following:
    """The follower's side of replication. In the tick thread.

    `leader_commit` is what the leader said last, ahead of what is here. `heard` has it with the
    time at which that came, `fresh_s` the last time at which all that was said before was applied.
    `may_acknowledge` says of the content of an entry whether it may be taken before it is
    committed; it must be quick.
    """

    def __init__(self, raft: Library, compaction: Compaction) -> None:
        self.leader_commit = 0
        self.may_acknowledge: Callable[[bytes], bool] = lambda entry: True
        self.heard: tuple[int, float] | None = None
        self.fresh_s: float | None = None
        self._raft = raft
        self._journal = raft.journal
        self._compaction = compaction

    def take_heartbeat(self, node: Node, message: Heartbeat) -> None:
        """Answer that this replica follows; nothing is known of the log by it."""
        self._note_commit(message.commit_index)
        answer = HeartbeatAnswer(message.term, message.sent_ms, message.round)
        self._raft.transport.send(node, answer)

    def _note_commit(self, index: int) -> None:
        """Remember that the leader has committed up to `index` now."""
        self.leader_commit = index
        if self.heard is not None and self._raft.applied >= self.heard[0]:
            self.fresh_s = self.heard[1]
        self.heard = (index, self._raft.mono())

    def take_entries(self, node: Node, message: Append) -> None:
        """Bring the journal in line with the message, and answer up to where it is."""
        raft = self._raft
        self._note_commit(message.commit_index)
        base, commit = self._journal.log.begin, raft.commit
        taken = self._admitted(message, commit)
        withholds = len(taken) < len(message.entries)
        if withholds:
            message = msgspec.structs.replace(message, entries=taken)
        verified, accepted = match_log(self._journal, message, base, commit)
        if accepted:
            raft.commit = max(commit, min(message.commit_index, verified))
        withholds = withholds and accepted
        answer = Answer(message.term, verified + 1, accepted, message.sent_ms, withholds)
        raft.transport.send(node, answer)

    def _admitted(self, message: Append, commit: int) -> list[Entry]:
        """Return the entries up to the first one that must not be acknowledged: a new one of this
        very leader. What is committed is taken as it is, or a replica that was away could never
        catch up; so is what the leader inherited, which may be committed."""
        entries, known = message.entries, max(commit, message.commit_index)
        for place, (command, index, term) in enumerate(entries):
            if index <= known or term < message.term:
                continue
            entry = content(command)
            if entry is not None and not self.may_acknowledge(entry):
                return entries[:place]
        return entries

    def take_piece(self, node: Node, message: DumpChunk) -> None:
        """Keep a piece of the leader's dump, and answer which one is wanted next."""
        raft, index = self._raft, message.index
        if index > raft.commit:
            offset = self._compaction.receive(message, partial(self._restore, node, message))
            if index > raft.commit:
                answer = DumpAnswer(message.term, index, offset, message.sent_ms)
                raft.transport.send(node, answer)
            return
        raft.transport.send(node, Answer(message.term, index + 1, True, message.sent_ms))

    def _restore(self, node: Node, message: DumpChunk, dump: Dump) -> None:
        # The dump is in force: what was applied before it is gone, so is the journal's part.
        raft, index = self._raft, dump.position.index
        if index <= raft.applied:
            return  # entries came first
        raft.applied, raft.commit = index, max(index, raft.commit)
        parts = raft.parts
        members = decode_members(dump.members)
        parts.roster.start(index, members, self._journal.log.kept, life=dump.life)
        parts.handover.post(Restored(dump, read_pieces(parts.disk, dump)))
        if message.term == raft.term:
            raft.transport.send(node, Answer(message.term, index + 1, True, message.sent_ms))
