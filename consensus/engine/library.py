"""PySyncObj's Raft with its private parts under readable names: the only place that knows them.

Of the library there remain: election timing, candidacy, the commit count, and the leader's
step-down without a majority. Everything else it asks of a Raft, by calling methods that Raft
writes; written for exactly the version that `guard` pins.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final

from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj

from consensus.engine.config import EngineConfig
from consensus.engine.network.wire import Message
from consensus.engine.parts import Parts
from consensus.engine.storage.journal import FileJournal

FOLLOWER: Final = 0
CANDIDATE: Final = 1
LEADER: Final = 2

_ASIDE_S: Final = 10.0
"""A leader that resigned stands again no sooner, unless another leader asks it to: the cause is a
clock, and takes a person to mend. If nobody else can lead it tries again after each such time."""


class Library(SyncObj):
    """What a Raft is to PySyncObj, and what PySyncObj is to a Raft. Owned by the tick thread."""

    def __init__(self, config: EngineConfig, nodes: dict[str, Node], parts: Parts) -> None:
        self.config, self.parts = config, parts
        self.journal, self.roster = parts.journal, parts.roster
        self.transport, self.mono = parts.transport, parts.mono
        self.me = nodes[config.replica]
        self.others = [node for name, node in sorted(nodes.items()) if name != config.replica]
        conf = _conf(config, parts.journal)
        super().__init__(self.me, self.others, conf, transport=parts.transport)
        self._poller = parts.transport
        self._SyncObj__needLoadDumpFile = False
        self.aside_until_s = float("-inf")

    # --- what the library knows

    @property
    def term(self) -> int:
        """The newest term that was seen."""
        return self._SyncObj__raftCurrentTerm

    @property
    def vote(self) -> str | None:
        """Whom this replica voted for in that term."""
        return self._SyncObj__votedForNodeId

    def set_term(self, term: int, vote: str | None) -> None:
        """Keep term and vote, durably."""
        self._SyncObj__setCurrentTerm(term, vote)

    @property
    def leads(self) -> bool:
        """Whether this replica believes that it leads."""
        return self._isLeader()

    @property
    def is_candidate(self) -> bool:
        """Whether this replica stands for election."""
        return self._SyncObj__raftState == CANDIDATE

    @property
    def leader(self) -> Node | None:
        """The leader of this term, if one was heard of."""
        return self._SyncObj__raftLeader

    @property
    def last_index(self) -> int:
        """The index of the log's last entry."""
        return self._SyncObj__getCurrentLogIndex()

    @property
    def last_term(self) -> int:
        """The term of the log's last entry."""
        return self._SyncObj__getCurrentLogTerm()

    @property
    def commit(self) -> int:
        """Up to which index entries are known to be committed."""
        return self._SyncObj__raftCommitIndex

    @commit.setter
    def commit(self, index: int) -> None:
        self._SyncObj__raftCommitIndex = index

    @property
    def applied(self) -> int:
        """Up to which index entries were handed over."""
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
        """As leader: up to which index each follower's log counts as equal."""
        return self._SyncObj__raftMatchIndex

    @property
    def following(self) -> dict[Node, int]:
        """As leader: the index that each follower is sent next."""
        return self._SyncObj__raftNextIndex

    @property
    def heard_s(self) -> dict[Node, float]:
        """As leader: when the newest message that each follower answered had been sent."""
        return self._SyncObj__lastResponseTime

    def connected(self) -> list[Node]:
        """Return the peers that can be sent to."""
        return sorted(self._SyncObj__connectedNodes, key=lambda node: node.id)

    def is_member(self, node: Node) -> bool:
        """Return whether the disk that `node` speaks for is the one that stands for its id here."""
        peer = self.transport.peer(node.id)
        return self.roster.stands_for(node.id, peer.token if peer is not None else -1)

    # --- what may be told to the library

    @property
    def is_called(self) -> bool:
        """Whether the old leader asked this replica to stand for election at once."""
        return self._SyncObj__transferInProgress

    def stand_at_once(self) -> None:
        """Stand at the next tick, without asking; heartbeats do not put it off any more."""
        self._SyncObj__raftElectionDeadline = 0.0
        self._SyncObj__transferInProgress = True

    def put_off_election(self) -> None:
        """Wait a whole election timeout, drawn anew."""
        self._SyncObj__raftElectionDeadline = self.mono() + self._SyncObj__generateRaftTimeout()

    def hurry_election(self, least_s: float, most_s: float) -> None:
        """Have the election timeout end soon, between the two."""
        soon = self.mono() + least_s + (most_s - least_s) * self.chance()
        deadline = self._SyncObj__raftElectionDeadline
        self._SyncObj__raftElectionDeadline = min(deadline, soon)

    def chance(self) -> float:
        """Return a number between 0 and 1, from the library's own source of chance."""
        least, most = self.config.election_min_ms / 1000, self.config.election_max_ms / 1000
        return (self._SyncObj__generateRaftTimeout() - least) / (most - least)

    def step_down(self, term: int) -> None:
        """Follow nobody yet, in `term` if that is newer."""
        if term > self.term:
            self._SyncObj__transferInProgress = False
            self.set_term(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    def stand_aside(self) -> None:
        """Stop leading, and leave it to the others for a while."""
        self.aside_until_s = self.mono() + _ASIDE_S
        self.step_down(self.term)

    def follow(self, node: Node, term: int) -> None:
        """Take `node` for the leader of `term`."""
        if term > self.term:
            self._SyncObj__transferInProgress = False
            self.set_term(term, None)
        if not self._SyncObj__transferInProgress:
            self.put_off_election()
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = node

    def become_leader(self) -> None:
        """Lead: a majority voted for this replica in this term."""
        self._SyncObj__onBecomeLeader()

    def note_heartbeat(self, now_s: float) -> None:
        """Have the next heartbeat come a period after `now_s`."""
        self._SyncObj__newAppendEntriesTime = now_s + self.config.heartbeat_ms / 1000

    # --- what the library asks

    @abstractmethod
    def may_stand(self) -> bool:
        """Return whether to stand now that the election timeout is over."""

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
        """Hand committed entries to be applied."""

    @abstractmethod
    def take_asked(self) -> None:
        """Do what the event loop asked for."""

    @abstractmethod
    def consider_dump(self) -> None:
        """Take a dump if one is due."""

    @abstractmethod
    def send_heartbeat(self) -> None:
        """Send every follower something."""

    @abstractmethod
    def hear(self, node: Node, message: Message) -> None:
        """Take a message of a peer."""

    @abstractmethod
    def link_changed(self, node: Node, *, is_up: bool) -> None:
        """Note that `node` can be sent to from now on, or not any more."""

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
            self.put_off_election()  # the library leaves a deadline from before it led

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        self.hand_over()
        return False  # or the library would send

    def _checkCommandsToApply(self) -> None:  # noqa: N802
        self.take_asked()

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        self.consider_dump()

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        self.send_heartbeat()

    def _SyncObj__onMessageReceived(self, node: Node, message: Any) -> None:  # noqa: N802
        self.hear(node, message)

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
