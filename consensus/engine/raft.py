"""One replica's Raft: the work of a tick, and the dispatch of messages.

The library's Raft is in `library`; the engine's own rules are in `elections` (PreVote, votes),
`following` (log matching, commits, dumps from the leader) and `leading` (appends, sending, answers,
members, leadership transfer). Everything except `offer` and `ask` runs in the tick thread,
whose body is `tick`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from pysyncobj.node import Node

from consensus.config import EngineConfig
from consensus.engine import guard
from consensus.engine.compaction import Compaction
from consensus.engine.elections import Elections
from consensus.engine.following import Following
from consensus.engine.gate import Gatekeeper
from consensus.engine.handover import Changed, Committed, Failed, Handover, Refused, TakeDump
from consensus.engine.leading import Leading
from consensus.engine.library import Library, Parts, Replica
from consensus.engine.loading import Loaded
from consensus.engine.membership import decode_members, encode_members
from consensus.engine.membership_log import MembershipLog
from consensus.engine.network.net import Network
from consensus.engine.network.peering import PeerTransport
from consensus.engine.network.wire import (
    Answer,
    Append,
    DumpAnswer,
    DumpChunk,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    PreVote,
    PreVoteAnswer,
    RequestVote,
    TimeoutNow,
    Vote,
)
from consensus.engine.storage.committed import CommitNote
from consensus.engine.storage.disk import Disk
from consensus.engine.storage.dump import Dump
from consensus.engine.storage.incoming import Aside
from consensus.errors import BadConfig, invariant
from consensus.leadership import Leadership
from consensus.limits import HANDOVER_BATCH, READ_BACK_BYTES

_log = logging.getLogger(__name__)
_FOUNDING_S: Final = (0.05, 0.05)
"""A short election timeout for the first leader of a new cell, and for a replica that needs no vote
but its own."""
_RETURN_S: Final = (0.25, 0.75)
"""When a replica that has just started asks for votes, after it reached a majority: where a whole
cell was down nobody leads. A leader that is alive dials it within 0.2 s and speaks 0.15 s later."""
_LOOK_S: Final = 0.04
"""Between two ticks while something is awaited that wakes no poller: a place in the queue to the
event loop, a peer to be dialled again, answers to PreVotes."""
_PAST_S: Final = 0.001
LONGEST_S: Final = 60.0
"""No tick waits so long: `pause_s` decides."""
_HEARTBEATS_AWAITED: Final = 2
"""The longest pause of a follower, in heartbeats: usually a heartbeat ends it."""
_LOST_LEADER_S: Final = (0.05, 0.2)
"""How long a leader whose connection broke has to reconnect; it redials at once."""


class Raft(Library):
    """One replica's Raft; `doTick` runs one tick."""

    def __init__(self, config: EngineConfig, nodes: dict[str, Node], parts: Parts) -> None:
        guard.stand()
        super().__init__(config, nodes, parts)
        self.handover = parts.handover
        self.compaction = Compaction(config, parts.journal, parts.disk, parts.dump, parts.aside)
        self.elections = Elections(self)
        self.followed = Following(self, self.compaction)
        self.leading = Leading(self, self.compaction)
        self.stopping = False
        self._appends: deque[tuple[int, bytes]] = deque()
        self._asked: deque[Callable[[], None]] = deque()
        self._published = Leadership()
        self._has_returned = False  # connected to a majority since this start
        self._unsettled_at = 0  # where a change of members is that was not committed when heeded
        self._last_tick_s = self.mono()
        if parts.dump is not None:
            self.applied = self.commit = parts.dump.position.index
        self._commit_note = CommitNote(parts.disk, parts.journal.log)
        self.commit = max(self.commit, self._commit_note.index)
        parts.gate.committed = lambda: self.commit
        parts.gate.leads = lambda: self.leads
        parts.gate.caller_gone = self._lose_caller
        parts.gate.on_address = self.transport.set_address
        parts.transport.awaits_answers = self._awaits_answers
        parts.transport.pause_s = self.pause_s
        self.compaction.sends_dump_of = lambda: self.leading.sender.sends_dump_of
        self.addOnTickCallback(self._end_tick)

    # --- from the event loop's thread

    def offer(self, counter: int, command: bytes) -> None:
        """Queue an append; it is logged or Refused at the next tick."""
        self._appends.append((counter, command))
        self.transport.ring()

    def ask(self, action: Callable[[], None]) -> None:
        """Queue `action` to run in the tick thread."""
        self._asked.append(action)
        self.transport.ring()

    def confirm(self, term: int, answer: Callable[[bool], None]) -> None:
        """Call `answer(True)` once a majority has confirmed this leader of `term` after this call,
        `answer(False)` if it cannot be confirmed. Runs in the tick thread.
        """
        if self.leads and self.term == term:
            self.leading.confirming.ask(answer)
        else:
            answer(False)

    # --- the tick

    def pause_s(self) -> float:
        """Return how long a tick whose work is done may wait for a socket or `ring`: 0 if there is
        more to do, else until something is due."""
        is_leading = self.leads
        is_asked = self.stopping or bool(self._asked)
        if is_asked or (self._appends and not self.leading.is_handing_over):
            return 0.0
        if is_leading and (self.leading.sender.reads_on or self._commits_alone()):
            return 0.0
        waits = self.applied < self.commit
        if waits and self.handover.has_room:
            return 0.0
        if waits or self.leading.is_handing_over or len(self.connected()) < len(self.others):
            return _LOOK_S
        left_s = self.due_s - self.mono()
        longest_s = (1 if is_leading else _HEARTBEATS_AWAITED) * self.config.heartbeat_ms / 1000
        if left_s < 0:
            return 0.0 if is_leading else _LOOK_S  # an overdue heartbeat is sent at once
        # The library acts when its time is over, not at that moment.
        return min(left_s, longest_s) + _PAST_S

    def _awaits_answers(self) -> bool:
        """Return whether this leader has nothing to do but to take answers to a heartbeat."""
        return (
            self.leads
            and not (self._asked or self._appends)
            and self.commit == self.last_index
            and not (self.leading.confirming.is_waiting or self.leading.is_handing_over)
            and self.due_s > self.mono()
        )

    def _commits_alone(self) -> bool:
        return self.commit < self.last_index and self.decides_alone

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        now_s = self.mono()
        # After a pause (SIGSTOP, a slow disk) the leader's messages wait in the socket: read them
        # before becoming a candidate.
        if now_s - self._last_tick_s > self.config.election_min_ms / 2000 and not self.leads:
            self.put_off_election()
        self._last_tick_s = now_s
        if self.membership_log.is_stale:  # before the library counts: a change counts at once
            self._heed_membership_log()
        is_first = not self.membership_log.is_founded and self.me.id == self.membership_log.ids[0]
        if is_first or (self.leader is None and self.decides_alone):
            self.hurry_election(*_FOUNDING_S)
        super()._onTick(timeToWait)

    def hand_over(self) -> None:
        """Queue committed entries for the event loop, which applies them (S13)."""
        log, applied, commit = self.journal.log, self.applied, self.commit
        while applied < commit and self.handover.has_room:
            upto = min(commit, applied + HANDOVER_BATCH)
            invariant(log.begin <= applied and upto <= log.last, "a committed entry is missing")
            from_disk = applied + 1 < log.cached_from
            entries = log.read(applied + 1, upto, READ_BACK_BYTES)
            self.handover.post(Committed(entries))
            self.applied = applied = entries[-1][1]
            if from_disk:
                return  # messages of peers are read before the next piece

    def take_asked(self) -> None:
        """Run the actions of the event loop, and log or refuse its appends."""
        while self._asked:
            self._asked.popleft()()
        if self.leads:
            self.leading.log(self._appends)
        elif self._appends:
            counters = [counter for counter, _ in self._appends]
            self._appends.clear()
            self.handover.post(Refused(counters))

    def _end_tick(self) -> None:
        if self.membership_log.is_stale or 0 < self._unsettled_at <= self.commit:
            self._heed_membership_log()
        if self.leads:
            self.leading.end_tick()
        self._publish()
        self.transport.flush()
        self._commit_note.note(self.commit, self.mono())

    def _heed_membership_log(self) -> None:
        at = self.membership_log.changed_at
        self.membership_log.is_stale, self._unsettled_at = False, at if at > self.commit else 0
        check_peers(self.config, self.membership_log)
        self.count_electors()
        for name in self.membership_log.members:
            if name != self.me.id:
                address = self.membership_log.address(name) or self.config.peers[name]
                self.transport.set_address(name, address)
        if self.leads:
            self.leading.heed_membership_log()
        self.transport.rejudge()

    def _publish(self) -> None:
        leader = self.leader
        belief = Leadership(self.term, self.leads, leader.id if leader else None)
        if belief != self._published:
            self._published = belief
            self.handover.post(Changed(belief, self.leading.logged))

    # --- elections

    def may_stand(self) -> bool:
        """Return whether to become a candidate: enough others granted a PreVote."""
        if self.mono() < self.aside_until_s and not self.is_called:
            self.put_off_election()
            return False
        return self.elections.may_stand()

    def begin_leading(self) -> None:
        """Start a leadership: nothing is known about the followers."""
        self.leading.begin()
        self.membership_log.is_stale = True

    def end_leading(self) -> None:
        """End transfers and confirmations: leadership is lost."""
        self.leading.end_transfer()
        self.leading.confirming.end()

    def began_leading(self) -> None:
        """Append Found if this is the first leader of the cell."""
        if not self.membership_log.is_founded:
            self.leading.found()
        if self.decides_alone:
            self.journal.sync()  # it counts this in the same tick

    def _lose_caller(self, name: str) -> None:
        leader = self.leader
        if leader is not None and leader.id == name and not self.leads:
            self.elections.lose_leader()
            self.hurry_election(*_LOST_LEADER_S)

    # --- messages

    def send_heartbeat(self) -> None:
        """Send a message to every follower."""
        self.leading.send(heartbeat=True, announce=True)

    def link_changed(self, node: Node, *, is_up: bool) -> None:
        """Record that `node` is connected, or not any more."""
        if is_up:
            self.leading.sender.probe(node)  # messages on the old connection may be lost
            self._hurry_return()
        else:
            self.leading.sender.forget(node)

    def _hurry_return(self) -> None:
        """Send PreVotes once after each start, soon after a majority is reachable. If there is a
        leader, the others answer no, and the term does not change.
        """
        reached = {self.me.id, *(node.id for node in self.connected())}
        if (
            self._has_returned
            or not self.membership_log.is_founded
            or not self.membership_log.has_quorum(reached)
        ):
            return
        self._has_returned = True
        if self.leader is None:
            self.hurry_election(*_RETURN_S)

    def receive(self, node: Node, message: Message) -> None:
        """Handle a message of a peer, of any term."""
        match message:
            case Append() | DumpChunk() | Heartbeat():
                self._receive_from_leader(node, message)
            case Answer() | DumpAnswer() | HeartbeatAnswer():
                self.leading.take_answer(node, message)
            case RequestVote():
                self.elections.take_request(node, message)
            case Vote():
                self.elections.take_vote(node, message)
            case PreVote():
                self.elections.take_question(node, message)
            case PreVoteAnswer():
                self.elections.take_answer(node, message)
            case TimeoutNow():
                if (
                    message.term == self.term
                    and node == self.leader
                    and self.membership_log.may_vote
                ):
                    self.stand_at_once()

    def _receive_from_leader(self, node: Node, message: Append | DumpChunk | Heartbeat) -> None:
        if message.term < self.term:
            self.transport.send(node, Answer(self.term, 0, False, message.sent_ms))
        elif not (message.term == self.term and self.leads):
            self.follow(node, message.term)
            self.elections.note_leader()
            if isinstance(message, Heartbeat):
                self.followed.take_heartbeat(node, message)
            elif isinstance(message, Append):
                self.followed.take_entries(node, message)
            else:
                self.followed.take_piece(node, message)

    # --- dumps

    def consider_dump(self) -> None:
        """Request the state from the event loop if a dump is due."""
        event = self.compaction.begin(self.applied, self.mono())
        if isinstance(event, TakeDump):
            members = encode_members(self.membership_log.at(event.position.index))
            event = TakeDump(event.position, members, self.membership_log.life)
        if event is not None:
            self.handover.post(event)

    def want_dump(self) -> None:
        """Take a dump at the next tick, or when the current one is done."""
        self.compaction.want()

    def finish_dump(self, dump: Dump | Exception) -> None:
        """Install the dump that was written, and drop the entries that it covers."""
        self.handover.post(self.compaction.finish(dump, self.mono()))


# --- a replica, on a real machine or on a simulated one, and its thread `consensus-tick`


def assemble(
    config: EngineConfig,
    loaded: Loaded,
    *,
    disk: Disk,
    network: Network,
    handover: Handover,
    aside: Aside,
    mono: Callable[[], float],
) -> Raft:
    """Return a replica that listens and waits for its first tick.

    Raises:
        ConsensusError: it cannot listen on the address.
    """
    journal, dump = loaded.journal, loaded.dump
    membership_log = MembershipLog(journal.identity, config.peers)
    if dump is None:
        membership_log.start(0, {}, journal.log.kept)
    else:
        members = decode_members(dump.members)
        membership_log.start(dump.position.index, members, journal.log.kept, life=dump.life)
    check_peers(config, membership_log)
    journal.watcher = membership_log
    nodes: dict[str, Node] = {name: Replica(name) for name in config.peers}
    gate = Gatekeeper(config, membership_log)
    transport = PeerTransport(config, nodes, journal, network, mono, gate)
    parts = Parts(
        journal=journal,
        dump=dump,
        disk=disk,
        membership_log=membership_log,
        gate=gate,
        transport=transport,
        handover=handover,
        aside=aside,
        mono=mono,
    )
    return Raft(config, nodes, parts)


def check_peers(config: EngineConfig, membership_log: MembershipLog) -> None:
    """Check that the configuration names all replicas of the log.

    Raises:
        BadConfig: it does not, as one from before the cell grew.
    """
    if missing := sorted(membership_log.members.keys() - config.peers.keys()):
        error = BadConfig(
            f"`peers` of {config.replica} lacks {', '.join(missing)}, which the log has as replicas"
            f" of cell {config.cell!r}"
        )
        error.hint = "write all replicas of the cell there; one that was added is never removed"
        raise error


def tick(raft: Raft) -> None:
    """Run ticks of `raft` until its `stopping` is set; pass an error to the event loop."""
    error: BaseException | None = None
    try:
        while not raft.stopping:
            raft.doTick(LONGEST_S)
    except BaseException as failure:  # noqa: BLE001 - handed to the loop, which stops the replica
        error = failure
    try:
        raft.destroy()
    except Exception as failure:  # noqa: BLE001 - the first error is reported
        error = error or failure
    if error is not None:
        try:
            raft.handover.post(Failed(error))
        except RuntimeError:
            _log.error("the tick thread ended after its event loop: %r", error)
