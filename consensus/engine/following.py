"""How a follower handles entries and dumps from its leader.

It commits only entries that the same message has verified to equal the leader's log (S1, S2, B),
and acknowledges a dump only after it is installed (S9, S11). It does not acknowledge an entry that
`may_acknowledge` rejects until a majority has it.
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
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.records import Entry
from consensus.errors import OtherLog


class Following:
    """The follower's side of replication. Used in the tick thread.

    `leader_commit` is the leader's last commit index, which may be ahead of this log. `commit_seen`
    it with its time of arrival; `fresh_s` is the last time at which this replica was level with it.
    `may_acknowledge` decides by an entry's content whether the entry is accepted before it is
    committed; it must be quick.
    """

    def __init__(self, raft: Library, compaction: Compaction) -> None:
        self.leader_commit = 0
        self.may_acknowledge: Callable[[bytes], bool] = lambda entry: True
        self.commit_seen: tuple[int, float] | None = None
        self.fresh_s: float | None = None
        self._raft = raft
        self._journal = raft.journal
        self._compaction = compaction

    def take_heartbeat(self, node: Node, message: Heartbeat) -> None:
        """Answer a heartbeat; the answer says nothing about the log."""
        self._note_commit(message.commit_index)
        answer = HeartbeatAnswer(message.term, message.sent_ms, message.round)
        self._raft.transport.send(node, answer)

    def _note_commit(self, index: int) -> None:
        """Record that the leader has committed up to `index` now."""
        self.leader_commit = index
        if self.commit_seen is not None and self._raft.applied >= self.commit_seen[0]:
            self.fresh_s = self.commit_seen[1]
        self.commit_seen = (index, self._raft.mono())

    def take_entries(self, node: Node, message: Append) -> None:
        """Make the journal match the message, and answer with the match index."""
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
        """Return the entries up to the first that must not be acknowledged. Only new entries of
        this leader's own term are checked. Committed entries are accepted, or a replica that was
        down could never catch up; so are entries of earlier terms, which may be committed.
        """
        entries, known = message.entries, max(commit, message.commit_index)
        for place, (command, index, term) in enumerate(entries):
            if index <= known or term < message.term:
                continue
            entry = content(command)
            if entry is not None and not self.may_acknowledge(entry):
                return entries[:place]
        return entries

    def take_piece(self, node: Node, message: DumpChunk) -> None:
        """Write a piece of the leader's dump, and answer with the next offset wanted."""
        raft, index = self._raft, message.index
        if index > raft.commit:
            offset = self._compaction.receive(message, partial(self._restore, node, message))
            if index > raft.commit:
                answer = DumpAnswer(message.term, index, offset, message.sent_ms)
                raft.transport.send(node, answer)
            return
        raft.transport.send(node, Answer(message.term, index + 1, True, message.sent_ms))

    def _restore(self, node: Node, message: DumpChunk, dump: Dump) -> None:
        # The dump is installed: the state before it and the journal's entries are gone.
        raft, index = self._raft, dump.position.index
        if index <= raft.applied:
            return  # entries arrived first
        raft.applied, raft.commit = index, max(index, raft.commit)
        parts = raft.parts
        members = decode_members(dump.members)
        parts.membership_log.start(index, members, self._journal.log.kept, life=dump.life)
        parts.handover.post(Restored(dump, read_pieces(parts.disk, dump)))
        if message.term == raft.term:
            raft.transport.send(node, Answer(message.term, index + 1, True, message.sent_ms))


def match_log(journal: FileJournal, message: Append, base: int, commit: int) -> tuple[int, bool]:
    """Apply a leader's message to `journal`. Return (match index, True); or, after a mismatch, (the
    index before the leader's next attempt, False).

    Existing equal entries are kept (Raft §5.3: truncate only at a conflict). Committed entries are
    never changed.

    Raises:
        OtherLog: the message would change one.
    """
    last, previous = journal[-1][1], message.prev_index
    for place, entry in enumerate(message.entries):
        if entry[1] != previous + 1 + place:
            return last, False  # not from a correct leader: ignored
    if previous > last:
        return last, False
    if previous >= base and journal[previous - base][2] != message.prev_term:
        _refuse_other(previous, commit, message)
        term, index = journal[previous - base][2], previous
        while index - 1 > max(commit, base) and journal[index - 1 - base][2] == term:
            index -= 1
        return index - 1, False
    for command, index, term in message.entries:
        if index <= base:
            continue
        if index <= last:
            if journal[index - base][2] == term:
                continue
            _refuse_other(index, commit, message)
            journal.cut_from(index)
            last = index - 1
        journal.add(command, index, term)
        last = index
    return previous + len(message.entries), True


def _refuse_other(index: int, commit: int, message: Append) -> None:
    """Refuse a leader whose log differs at an entry that is committed here."""
    if index <= commit:
        raise OtherLog(index, message.term)
