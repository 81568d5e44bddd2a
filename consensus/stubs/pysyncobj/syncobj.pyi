from collections.abc import Callable, Iterable
from typing import Any

from pysyncobj.config import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

createJournal: Any

class SyncObj:
    _poller: Any
    _SyncObj__raftLog: Any
    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: str | None
    _SyncObj__votesCount: int
    _SyncObj__raftLeader: Node | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__transferInProgress: bool
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__leaderCommitIndex: int | None
    _SyncObj__raftNextIndex: dict[Node, int]
    _SyncObj__raftMatchIndex: dict[Node, int]
    _SyncObj__lastResponseTime: dict[Node, float]
    _SyncObj__newAppendEntriesTime: float
    _SyncObj__noopIDx: int | None
    _SyncObj__otherNodes: set[Node]
    _SyncObj__connectedNodes: set[Node]
    _SyncObj__needLoadDumpFile: bool
    def __init__(
        self,
        selfNode: Node,
        otherNodes: Iterable[Node],
        conf: SyncObjConf | None = None,
        *,
        transport: Transport | None = None,
    ) -> None: ...
    def doTick(self, timeToWait: float = 0.0) -> None: ...
    def destroy(self) -> None: ...
    def addOnTickCallback(self, callback: Callable[[], None]) -> None: ...
    def _isLeader(self) -> bool: ...
    def _SyncObj__setState(self, newState: int) -> None: ...
    def _SyncObj__setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None: ...
    def _SyncObj__onBecomeLeader(self) -> None: ...
    def _SyncObj__generateRaftTimeout(self) -> float: ...
    def _SyncObj__getCurrentLogIndex(self) -> int: ...
    def _SyncObj__getCurrentLogTerm(self) -> int: ...
    def _onTick(self, timeToWait: float = 0.0) -> None: ...
    def _SyncObj__onNodeConnected(self, node: Node) -> None: ...
    def _SyncObj__onNodeDisconnected(self, node: Node) -> None: ...
