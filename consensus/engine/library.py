"""PySyncObj's Raft with its private methods under readable names; no other module uses them.

The library decides election timing, candidacy, commit counting, and the leader's step-down without
a majority. For everything else it calls methods that `raft.Raft` overrides. Written for exactly the
version that `guard` checks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Final

import msgspec
from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj

from consensus.config import EngineConfig
from consensus.engine.gate import Gatekeeper
from consensus.engine.handover import Handover
from consensus.engine.membership_log import MembershipLog
from consensus.engine.network.peering import PeerTransport
from consensus.engine.network.wire import Message
from consensus.engine.storage.disk import Disk
from consensus.engine.storage.dump import Dump
from consensus.engine.storage.incoming import Aside
from consensus.engine.storage.journal import FileJournal

FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2

_ASIDE_S: Final = 10.0
"""How long a leader that resigned is no candidate, unless another leader asks it to: the cause is a
wrong clock, which a person must repair. If no other replica can lead, it tries after this time.
"""


class Replica(Node):
    """A replica of the cell. There is one object for each, so it is compared by identity: the
    library looks replicas up in dicts about twenty times in a tick, and compares names for it."""

    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__


class Library(SyncObj):
    """The interface between PySyncObj and `raft.Raft`. Owned by the tick thread."""

    def __init__(self, config: EngineConfig, nodes: dict[str, Node], parts: Parts) -> None:
        self.config, self.parts = config, parts
        self.journal, self.membership_log = parts.journal, parts.membership_log
        self.transport, self.mono = parts.transport, parts.mono
        self.me = nodes[config.replica]
        self.others = [node for name, node in sorted(nodes.items()) if name != config.replica]
        self.electors = self.others
        conf = _conf(config, parts.journal)
        super().__init__(self.me, self.others, conf, transport=parts.transport)
        self._poller = parts.transport
        self._SyncObj__needLoadDumpFile = False
        self.aside_until_s = float("-inf")

    # --- the library's variables

    @property
    def term(self) -> int:
        """The newest term that was seen."""
        return self._SyncObj__raftCurrentTerm

    @property
    def vote(self) -> str | None:
        """The candidate that this replica voted for in that term."""
        return self._SyncObj__votedForNodeId

    def set_term(self, term: int, vote: str | None) -> None:
        """Store term and vote durably."""
        self._SyncObj__setCurrentTerm(term, vote)

    @property
    def leads(self) -> bool:
        """Return whether this replica believes that it leads."""
        return self._isLeader()

    @property
    def is_candidate(self) -> bool:
        """Return whether this replica is a candidate."""
        return self._SyncObj__raftState == CANDIDATE

    @property
    def leader(self) -> Node | None:
        """The leader of this term, if known."""
        return self._SyncObj__raftLeader

    @property
    def last_index(self) -> int:
        """The index of the log's last entry."""
        return self.journal.log.last

    @property
    def last_term(self) -> int:
        """The term of the log's last entry."""
        return self._SyncObj__getCurrentLogTerm()

    @property
    def commit(self) -> int:
        """The commit index."""
        return self._SyncObj__raftCommitIndex

    @commit.setter
    def commit(self, index: int) -> None:
        self._SyncObj__raftCommitIndex = index

    @property
    def applied(self) -> int:
        """The index up to which entries were queued for the event loop."""
        return self._SyncObj__raftLastApplied

    @applied.setter
    def applied(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    @property
    def noop_at(self) -> int | None:
        """The index of the entry that began this leadership."""
        return self._SyncObj__noopIDx

    @property
    def matched(self) -> dict[Node, int]:
        """As leader: the match index of each follower."""
        return self._SyncObj__raftMatchIndex

    @property
    def following(self) -> dict[Node, int]:
        """As leader: the next index of each follower."""
        return self._SyncObj__raftNextIndex

    @property
    def answered_s(self) -> dict[Node, float]:
        """As leader: the time of sending of the newest message that each follower answered."""
        return self._SyncObj__lastResponseTime

    def connected(self) -> list[Node]:
        """Return the connected peers."""
        return sorted(self._SyncObj__connectedNodes, key=lambda node: node.id)

    def is_member(self, node: Node) -> bool:
        """Return whether the disk behind `node` represents its id in this log."""
        peer = self.transport.peer(node.id)
        return self.membership_log.stands_for(node.id, peer.token if peer is not None else -1)

    def count_electors(self) -> None:
        """Make the library count votes and answers of the electors alone, and need a majority of
        them: `electors` are those others."""
        names = self.membership_log.electors
        self.electors = [node for node in self.others if node.id in names]
        self._SyncObj__otherNodes = set(self.electors)
        self._SyncObj__readonlyNodes = set(self.others) - self._SyncObj__otherNodes

    @property
    def decides_alone(self) -> bool:
        """Return whether this replica is a majority by itself."""
        return self.membership_log.has_quorum({self.me.id})

    # --- commands to the library

    @property
    def is_called(self) -> bool:
        """Return whether the old leader asked this replica to become a candidate at once."""
        return self._SyncObj__transferInProgress

    def stand_at_once(self) -> None:
        """Become a candidate at the next tick, without PreVote and in spite of heartbeats."""
        self._SyncObj__raftElectionDeadline = 0.0
        self._SyncObj__transferInProgress = True

    def put_off_election(self) -> None:
        """Wait a complete, newly drawn election timeout."""
        self._SyncObj__raftElectionDeadline = self.mono() + self._SyncObj__generateRaftTimeout()

    def hurry_election(self, least_s: float, most_s: float) -> None:
        """Let the election timeout end after a time between the two."""
        soon = self.mono() + least_s + (most_s - least_s) * self.chance()
        deadline = self._SyncObj__raftElectionDeadline
        self._SyncObj__raftElectionDeadline = min(deadline, soon)

    def chance(self) -> float:
        """Return a number between 0 and 1 from the library's random source."""
        least, most = self.config.election_min_ms / 1000, self.config.election_max_ms / 1000
        return (self._SyncObj__generateRaftTimeout() - least) / (most - least)

    def step_down(self, term: int) -> None:
        """Become a follower without a leader, in `term` if that is newer."""
        if term > self.term:
            self._SyncObj__transferInProgress = False
            self.set_term(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    def stand_aside(self) -> None:
        """Stop leading, and be no candidate for a while."""
        self.aside_until_s = self.mono() + _ASIDE_S
        self.step_down(self.term)

    def follow(self, node: Node, term: int) -> None:
        """Follow `node` as the leader of `term`."""
        if term > self.term:
            self._SyncObj__transferInProgress = False
            self.set_term(term, None)
        if not self._SyncObj__transferInProgress:
            self.put_off_election()
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = node

    def become_leader(self) -> None:
        """Become the leader: a majority voted for this replica in this term."""
        self._SyncObj__onBecomeLeader()

    @property
    def due_s(self) -> float:
        """When the library acts by itself: the next heartbeat of a leader, or the end of the
        election timeout."""
        deadline_s = self._SyncObj__raftElectionDeadline
        return self._SyncObj__newAppendEntriesTime if self.leads else deadline_s

    def note_heartbeat(self, now_s: float) -> None:
        """Send the next heartbeat one period after `now_s`."""
        self._SyncObj__newAppendEntriesTime = now_s + self.config.heartbeat_ms / 1000

    # --- methods that the library calls

    @abstractmethod
    def may_stand(self) -> bool:
        """Return whether to become a candidate after the election timeout."""

    @abstractmethod
    def begin_leading(self) -> None:
        """Called before the first entry of a leadership is logged."""

    @abstractmethod
    def began_leading(self) -> None:
        """Called when the first entry of a leadership is logged."""

    @abstractmethod
    def end_leading(self) -> None:
        """Called when leadership is over."""

    @abstractmethod
    def hand_over(self) -> None:
        """Queue committed entries to be applied."""

    @abstractmethod
    def take_asked(self) -> None:
        """Run the actions that the event loop requested."""

    @abstractmethod
    def consider_dump(self) -> None:
        """Take a dump if one is due."""

    @abstractmethod
    def send_heartbeat(self) -> None:
        """Send a message to every follower."""

    @abstractmethod
    def receive(self, node: Node, message: Message) -> None:
        """Handle a message of a peer."""

    @abstractmethod
    def link_changed(self, node: Node, *, is_up: bool) -> None:
        """Record that `node` is connected, or not any more."""

    def _SyncObj__getCurrentLogIndex(self) -> int:  # noqa: N802
        return self.journal.log.last

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        return self.may_stand()

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        self.begin_leading()
        super()._SyncObj__onBecomeLeader()
        self.began_leading()

    def _SyncObj__setState(self, state: int) -> None:  # noqa: N802
        was = self._SyncObj__raftState
        super()._SyncObj__setState(state)
        if was == LEADER and state != LEADER:
            self.end_leading()
            self.put_off_election()  # the library keeps a deadline from before it led

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        self.hand_over()
        return False  # otherwise the library would send

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        self.take_asked()

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        self.consider_dump()

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        self.send_heartbeat()

    def _SyncObj__onMessageReceived(self, node: Node, message: Any) -> None:  # noqa: N802
        self.receive(node, message)

    def _SyncObj__onNodeConnected(self, node: Node) -> None:  # noqa: N802
        super()._SyncObj__onNodeConnected(node)
        self.link_changed(node, is_up=True)

    def _SyncObj__onNodeDisconnected(self, node: Node) -> None:  # noqa: N802
        super()._SyncObj__onNodeDisconnected(node)
        self.link_changed(node, is_up=False)


def _conf(config: EngineConfig, journal: FileJournal) -> SyncObjConf:
    """Return the library's settings; all of its own files and threads are off."""
    return SyncObjConf(
        autoTick=False,
        raftMinTimeout=config.election_min_ms / 1000,
        raftMaxTimeout=config.election_max_ms / 1000,
        appendEntriesPeriod=config.heartbeat_ms / 1000,
        leaderFallbackTimeout=config.fallback_ms / 1000,
        connectionTimeout=max(60.0, config.election_max_ms / 1000),
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        bindAddress=config.peers[config.replica],
        useFork=False,
        journalFile=journal,
        fullDumpFile=None,
    )


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one replica; `mono` returns seconds of a clock that never jumps."""

    journal: FileJournal
    dump: Dump | None
    disk: Disk
    membership_log: MembershipLog
    gate: Gatekeeper
    transport: PeerTransport
    handover: Handover
    aside: Aside
    mono: Callable[[], float]
