"""PySyncObj's Raft with our own follower rules, sending, compaction and hand-over.

Of the library there remain: election timing, candidacy, the commit count, the leader's step-down
without a majority. What is replaced, under the library's own private names (pinned, see guard):

- A follower compares term by term, cuts only at the first conflict, never below its commit index,
  and commits only what this very message has verified to equal the leader's log (S1, S2, B).
- An answer carries term and the leader's own sending time; old ones count for nothing (S14), a
  refusal moves the next index back only, and not below what is matched (D).
- Sending is in whole entries, in windows, without the chunked path and its loops (K, L).
- Nothing is applied here: committed entries are handed to the event loop (S13).
- Dumps travel in acknowledged pieces with a digest (S9, S11), and a compaction keeps the tail (C).

Everything runs in the tick thread, but `offer` and `ask`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from pysyncobj.monotonic import monotonic
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj

from consensus.engine import guard
from consensus.engine.compaction import Compaction
from consensus.engine.config import EngineConfig
from consensus.engine.handover import (
    Changed,
    Committed,
    Handover,
    Refused,
    Restored,
)
from consensus.engine.matching import match_log
from consensus.engine.network.transport import PeerTransport
from consensus.engine.network.wire import (
    Answer,
    Append,
    DumpAnswer,
    DumpChunk,
    Message,
    RequestVote,
    TimeoutNow,
    Vote,
)
from consensus.engine.sender import Sender
from consensus.engine.settings import Files, library_conf
from consensus.engine.storage.journal import FileJournal
from consensus.errors import invariant
from consensus.leadership import Leadership, Position
from consensus.limits import (
    HANDOVER_BATCH,
    HANDOVER_ENTRIES_MAX,
    TICK_BYTES,
)

FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2
_TRANSFER_S: Final = 1.0


class Raft(SyncObj):
    """One replica's Raft; ticks are `doTick`."""

    def __init__(  # the parts are made by EngineLog.start, each with its own errors
        self,
        config: EngineConfig,
        nodes: dict[str, Node],
        parts: tuple[FileJournal, PeerTransport, Handover],
        files: Files,
        dumped: Position,
    ) -> None:
        guard.stand()
        self.config = config
        self.journal, self.transport, self.handover = parts
        self.files = files
        self.compaction = Compaction(config, self.journal, files, dumped)
        self.stopping = False
        self.sender = Sender(self.journal, self.transport, files.dump)
        self._me = nodes[config.replica]
        self._appends: deque[tuple[int, bytes]] = deque()
        self._asked: deque[Callable[[], None]] = deque()
        self._logged = 0
        self._voters: tuple[int, set[str]] = (0, set())
        self._published = Leadership()
        self._sent: tuple[int, int] = (0, 0)
        self._transfer: tuple[str | None, float] | None = None
        self._last_tick = monotonic()
        others = [node for name, node in sorted(nodes.items()) if name != config.replica]
        super().__init__(
            self._me, others, library_conf(config, self.journal, files), transport=self.transport
        )
        self._poller = self.transport
        self._SyncObj__needLoadDumpFile = False
        if dumped.index:
            self._SyncObj__raftLastApplied = dumped.index
            self._SyncObj__raftCommitIndex = dumped.index
        self.addOnTickCallback(self._end_tick)

    # --- from the event loop's thread

    def offer(self, counter: int, command: bytes) -> None:
        """Queue an append; it is logged or Refused at the next tick."""
        self._appends.append((counter, command))
        self.transport.ring()

    def ask(self, action: Callable[[], None]) -> None:
        """Run `action` in the tick thread."""
        self._asked.append(action)
        self.transport.ring()

    # --- the tick

    def is_busy(self) -> bool:
        """Whether the next tick should not wait for a socket."""
        if self._asked or (self._appends and self._transfer is None):
            return True
        waiting = self._SyncObj__raftLastApplied < self._SyncObj__raftCommitIndex
        alone = not self._SyncObj__otherNodes and self._isLeader()
        uncommitted = self._SyncObj__raftCommitIndex < self._SyncObj__getCurrentLogIndex()
        return (waiting and self.handover.entries < HANDOVER_ENTRIES_MAX) or (alone and uncommitted)

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        now = monotonic()
        # After a pause (SIGSTOP, a slow disk) the leader's messages wait in the socket: hear
        # them before standing for election against it.
        if now - self._last_tick > self.config.election_min_ms / 2000 and not self._isLeader():
            self._put_off_election()
        self._last_tick = now
        super()._onTick(timeToWait)

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        # Hands over instead of applying; what it returns would make the library send.
        applied, commit = self._SyncObj__raftLastApplied, self._SyncObj__raftCommitIndex
        base = self.journal[0][1]
        while applied < commit and self.handover.entries < HANDOVER_ENTRIES_MAX:
            upto = min(commit, applied + HANDOVER_BATCH)
            entries = self.journal[applied + 1 - base : upto + 1 - base]
            invariant(len(entries) == upto - applied, "the journal lacks a committed entry")
            self.handover.post(Committed(entries))
            self._SyncObj__raftLastApplied = applied = upto
        return False

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        while self._asked:
            self._asked.popleft()()
        if not self._isLeader():
            self._refuse_appends()
        elif self._transfer is None:
            self._log_appends()

    def _refuse_appends(self) -> None:
        counters = []
        while self._appends:
            counters.append(self._appends.popleft()[0])
        if counters:
            self.handover.post(Refused(counters))

    def _log_appends(self) -> None:
        index, term = self._SyncObj__getCurrentLogIndex(), self._SyncObj__raftCurrentTerm
        taken_bytes = 0
        while self._appends and taken_bytes < TICK_BYTES:
            counter, command = self._appends.popleft()
            index += 1
            self.journal.add(command, index, term)
            self._logged = counter
            taken_bytes += len(command)

    def _end_tick(self) -> None:
        if self._isLeader():
            state = (self._SyncObj__getCurrentLogIndex(), self._SyncObj__raftCommitIndex)
            if state != self._sent or self.sender.lags(state[0], self._SyncObj__raftNextIndex):
                self._send(heartbeat=False, news=state != self._sent)
        if self._transfer is not None:
            self._try_transfer(*self._transfer)
        self._publish()
        self.transport.flush()

    def _publish(self) -> None:
        leads, leader = self._isLeader(), self._SyncObj__raftLeader
        belief = Leadership(self._SyncObj__raftCurrentTerm, leads, leader.id if leader else None)
        if belief != self._published:
            self._published = belief
            self.handover.post(Changed(belief, self._logged))

    # --- sending

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        self._send(heartbeat=True, news=True)

    def _send(self, *, heartbeat: bool, news: bool) -> None:
        now = monotonic()
        if heartbeat:
            self._SyncObj__newAppendEntriesTime = now + self.config.heartbeat_ms / 1000
        term, commit = self._SyncObj__raftCurrentTerm, self._SyncObj__raftCommitIndex
        self._sent = (self._SyncObj__getCurrentLogIndex(), commit)
        self.sender.begin(term, commit, int(now * 1000), self.compaction.dumped)
        for node in sorted(self._SyncObj__connectedNodes, key=lambda n: n.id):
            self.sender.feed(node, self._SyncObj__raftNextIndex, heartbeat=heartbeat, news=news)

    def _SyncObj__onNodeConnected(self, node: Node) -> None:  # noqa: N802
        super()._SyncObj__onNodeConnected(node)
        self.sender.probe(node)  # what was on the old connection may be lost

    def _SyncObj__onNodeDisconnected(self, node: Node) -> None:  # noqa: N802
        super()._SyncObj__onNodeDisconnected(node)
        self.sender.forget(node)

    # --- state changes

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        self.sender.reset()
        self._transfer = None
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__setState(self, state: int) -> None:  # noqa: N802
        was = self._SyncObj__raftState
        super()._SyncObj__setState(state)
        if was == LEADER and state != LEADER:
            self._transfer = None
            self._put_off_election()  # the library leaves a deadline from before it led

    def _put_off_election(self) -> None:
        self._SyncObj__raftElectionDeadline = monotonic() + self._SyncObj__generateRaftTimeout()

    def _step_down(self, term: int) -> None:
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    def _follow(self, node: Node, term: int) -> None:
        if term > self._SyncObj__raftCurrentTerm:
            self._SyncObj__transferInProgress = False
            self._SyncObj__setCurrentTerm(term, None)
        if not self._SyncObj__transferInProgress:
            self._put_off_election()
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = node

    # --- messages

    def _SyncObj__onMessageReceived(self, node: Node, message: Message) -> None:  # noqa: N802
        term = self._SyncObj__raftCurrentTerm
        match message:
            case RequestVote():
                self._on_request_vote(node, message)
            case Vote():
                self._on_vote(node, message)
            case Append():
                if message.term < term:
                    self.transport.send(node, Answer(term, 0, False, message.sent_ms))
                elif not (message.term == term and self._isLeader()):
                    self._follow(node, message.term)
                    self._on_append(node, message)
            case DumpChunk():
                if message.term < term:
                    self.transport.send(node, Answer(term, 0, False, message.sent_ms))
                elif not (message.term == term and self._isLeader()):
                    self._follow(node, message.term)
                    self._on_dump_chunk(node, message)
            case Answer() | DumpAnswer():
                self._on_answer(node, message)
            case TimeoutNow():
                if message.term == term and node == self._SyncObj__raftLeader:
                    self._SyncObj__raftElectionDeadline = 0.0
                    self._SyncObj__transferInProgress = True

    def _on_request_vote(self, node: Node, message: RequestVote) -> None:
        if message.term > self._SyncObj__raftCurrentTerm:
            self._step_down(message.term)
        term = self._SyncObj__raftCurrentTerm
        if message.term < term or self._isLeader():
            return
        ours = (self._SyncObj__getCurrentLogTerm(), self._SyncObj__getCurrentLogIndex())
        if (message.last_term, message.last_index) < ours:
            return
        if self._SyncObj__votedForNodeId not in (None, node.id):
            return
        self._SyncObj__setCurrentTerm(term, node.id)
        self._put_off_election()
        self.transport.send(node, Vote(term))

    def _on_vote(self, node: Node, message: Vote) -> None:
        term = self._SyncObj__raftCurrentTerm
        if self._SyncObj__raftState != CANDIDATE or message.term != term:
            return
        if self._voters[0] != term:
            self._voters = (term, set())
        self._voters[1].add(node.id)
        if (len(self._voters[1]) + 1) * 2 > len(self.config.peers):
            self._SyncObj__onBecomeLeader()

    def _on_append(self, node: Node, message: Append) -> None:
        base, commit = self.journal[0][1], self._SyncObj__raftCommitIndex
        verified, accepted = match_log(self.journal, message, base, commit)
        if accepted:
            self._SyncObj__raftCommitIndex = max(commit, min(message.commit_index, verified))
        answer = Answer(message.term, verified + 1, accepted, message.sent_ms)
        self.transport.send(node, answer)

    def _on_answer(self, node: Node, message: Answer | DumpAnswer) -> None:
        if message.term > self._SyncObj__raftCurrentTerm:
            self._step_down(message.term)
        if not self._isLeader() or message.term != self._SyncObj__raftCurrentTerm:
            return
        heard = self._SyncObj__lastResponseTime
        heard[node] = max(heard[node], min(message.sent_ms / 1000, monotonic()))
        if isinstance(message, DumpAnswer):
            self.sender.resume_dump(node, message.index, message.offset)
            return
        match, following = self._SyncObj__raftMatchIndex, self._SyncObj__raftNextIndex
        if message.accepted and message.next_index <= self._SyncObj__getCurrentLogIndex() + 1:
            match[node] = max(match[node], message.next_index - 1)
            following[node] = max(following[node], message.next_index)
            self.sender.accepted(node, message.next_index)
        elif not message.accepted:
            following[node] = max(match[node] + 1, min(following[node], message.next_index))
            self.sender.probe(node)

    # --- dumps

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        applied = self._SyncObj__raftLastApplied
        event = self.compaction.begin(applied, monotonic())
        if event is not None:
            self.handover.post(event)

    def want_dump(self) -> None:
        """Take a dump at the next tick, or as soon as the one under way is done."""
        self.compaction.want()

    def finish_dump(self, position: Position, error: Exception | None) -> None:
        """Put the dump that was written at `files.taken` in force, and let entries before it go."""
        self.handover.post(self.compaction.finish(position, error, monotonic()))

    def _on_dump_chunk(self, node: Node, message: DumpChunk) -> None:
        index = message.index
        if index > self._SyncObj__raftCommitIndex:
            dump = self.compaction.receive(message)
            if dump is None:
                offset = self.compaction.incoming.offset
                self.transport.send(node, DumpAnswer(message.term, index, offset, message.sent_ms))
                return
            self._SyncObj__raftLastApplied = self._SyncObj__raftCommitIndex = index
            self.handover.post(Restored(dump))
        self.transport.send(node, Answer(message.term, index + 1, True, message.sent_ms))

    # --- giving leadership away

    def begin_transfer(self, replica: str | None) -> None:
        """Hand over to `replica`, or to who is furthest, as soon as it has everything."""
        if self._isLeader() and self._SyncObj__otherNodes:
            self._transfer = (replica, monotonic() + _TRANSFER_S)

    def _try_transfer(self, replica: str | None, until: float) -> None:
        if monotonic() > until:
            self._transfer = None
            return
        last = self._SyncObj__getCurrentLogIndex()
        for node in sorted(self._SyncObj__connectedNodes, key=lambda n: n.id):
            matched = self._SyncObj__raftMatchIndex.get(node, 0) == last
            if matched and replica in (None, node.id):
                self.transport.send(node, TimeoutNow(self._SyncObj__raftCurrentTerm))
                return
