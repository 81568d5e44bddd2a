"""One Raft on a clock of its own, a disk in memory and a network that only records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pysyncobj.syncobj
import pytest
from pysyncobj.node import Node

from consensus.config import EngineConfig
from consensus.engine.envelope import MEMBERS, Origin, changes_members, seal
from consensus.engine.gate import Gatekeeper
from consensus.engine.handover import Changed, Committed, Event, Handover
from consensus.engine.library import Parts
from consensus.engine.membership import Change, Found, decode_members, encode_change
from consensus.engine.membership_log import MembershipLog
from consensus.engine.network.net import Connection, Owner
from consensus.engine.network.peering import PeerTransport
from consensus.engine.network.wire import (
    PROTOCOL,
    Hello,
    Message,
    PreVote,
    PreVoteAnswer,
    Vote,
    from_library,
)
from consensus.engine.raft import Raft
from consensus.engine.storage.dump import Dump
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.segments import Identity
from consensus.leadership import Leadership
from tests.fakes.memory_disk import MemoryDisk

R2, R3 = Node("r2"), Node("r3")
NODES = {"r1": Node("r1"), "r2": R2, "r3": R3}
TOKENS = {"r1": 11, "r2": 22, "r3": 33}
FOUND = seal(MEMBERS, Origin("r1", 0, 0), encode_change(Found(sorted(TOKENS.items()))))


class NoNetwork:
    """Nobody is ever reached."""

    def listen(self, address: str, accept: Callable[[Connection], None]) -> None: ...

    def dial(self, address: str, expected: str, owner: Owner) -> Connection:
        return NoConnection()

    def poll(self, timeout_s: float) -> None: ...

    def ring(self) -> None: ...

    def close(self) -> None: ...


class NoConnection:
    proven: str | None = None
    unsent_bytes = 0

    def adopt(self, owner: Owner) -> None: ...

    def write(self, content: bytes) -> None: ...

    def close(self, *, after_ms: int = 0) -> None: ...


class RecordingTransport(PeerTransport):
    """Keeps what is sent; nothing leaves."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.sent: list[tuple[str, Message]] = []
        self.callers: dict[str, Hello] = {}
        self.judged = 0
        self.addresses: dict[str, str] = {}

    def send(self, node: Node, message: Message | dict[str, Any]) -> bool:
        message = from_library(message) if isinstance(message, dict) else message
        self.sent.append((node.id, message))
        return True

    def peer(self, name: str) -> Hello | None:
        return self.callers.get(name)

    def rejudge(self) -> None:
        self.judged += 1

    def set_address(self, name: str, address: str) -> None:
        self.addresses[name] = address


class CollectingHandover(Handover):
    """Keeps what is handed over."""

    def __init__(self) -> None:
        super().__init__(asyncio.new_event_loop(), self._never)
        self.events: list[Event] = []

    def _never(self, event: Event) -> None:
        raise AssertionError(event)

    def post(self, event: Event) -> None:
        self.events.append(event)

    def end(self) -> None:
        self._loop.close()


class Rig:
    """r1, by default with a journal of four entries: the first one of all, as every journal has it,
    and the founding of the cell. It has been up for long, unless it `returns` now."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        log: Sequence[tuple[bytes, int]] = ((b"\x01", 0), (FOUND, 1), (b"\x01", 1), (b"\x01", 1)),
        *,
        joins: bool = False,
        dump: Callable[[MemoryDisk], Dump] | None = None,
        alone: bool = False,
        returns: bool = False,
    ) -> None:
        self.now = 1_000.0
        names = ("r1",) if alone else tuple(TOKENS)
        patch.setattr(pysyncobj.syncobj, "monotonicTime", lambda: self.now)
        self.disk = MemoryDisk()
        self.config = EngineConfig(
            replica="r1",
            peers={name: f"127.0.0.1:{port}" for port, name in enumerate(names, 1)},
            data="-",
            election_min_ms=1_000,
            election_max_ms=2_000,
        )
        identity = Identity("default", "r1", TOKENS["r1"], joins)
        self.journal = FileJournal.create(self.disk, identity, keeps=changes_members)
        made = dump(self.disk) if dump is not None else None
        if made is not None:
            self.journal.set_base(made.position.index, made.position.term)
        for index, (command, term) in enumerate(log[1:], 2):
            self.journal.add(command, index, term)
        self.membership_log = MembershipLog(identity, names)
        start = (made.position.index, decode_members(made.members)) if made else (0, {})
        self.membership_log.start(*start, self.journal.log.kept, life=made.life if made else 0)
        self.journal.watcher = self.membership_log
        nodes = {name: NODES[name] for name in names}
        self.gate = Gatekeeper(self.config, self.membership_log)
        self.transport = RecordingTransport(
            self.config, nodes, self.journal, NoNetwork(), self.mono, self.gate
        )
        self.handover = CollectingHandover()
        self.raft = Raft(self.config, nodes, self._parts(made))
        for node in self.raft.others:
            self.transport.callers[node.id] = self.hello(node.id, TOKENS[node.id])
            self.transport._onNodeConnected(node)
        if not returns and self.membership_log.is_founded:
            self.raft.put_off_election()

    def _parts(self, dump: Dump | None) -> Parts:
        return Parts(
            journal=self.journal,
            dump=dump,
            disk=self.disk,
            membership_log=self.membership_log,
            gate=self.gate,
            transport=self.transport,
            handover=self.handover,
            aside=lambda work, then: then(work()),
            mono=self.mono,
        )

    def mono(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)

    @staticmethod
    def hello(name: str, token: int, number: int = 1, *, joins: bool = False) -> Hello:
        return Hello(PROTOCOL, PROTOCOL, "default", name, "r1", number, token, joins)

    def hear(self, node: Node, message: Message) -> list[Message]:
        """Let a message arrive and a tick pass; return what was sent to that node."""
        self.transport.sent.clear()
        self.transport._onMessageReceived(node, message)
        self.raft.doTick(0.0)
        return self.sent_to(node)

    def tick(self, seconds: float = 0.0) -> list[tuple[str, Message]]:
        """Let time pass in small steps; return what was sent meanwhile."""
        self.transport.sent.clear()
        until = self.now + seconds
        while True:
            self.raft.doTick(0.0)
            if self.now >= until:
                return list(self.transport.sent)
            self.now = min(until, self.now + 0.05)

    def sent_to(self, node: Node) -> list[Message]:
        return [message for to, message in self.transport.sent if to == node.id]

    def ask(self) -> PreVote:
        """Let the election timeout pass; return what is asked then."""
        questions = [m for _, m in self.tick(2.1) if isinstance(m, PreVote)]
        return questions[-1]

    def lead(self) -> None:
        """Win an election with r2's vote."""
        question = self.ask()
        self.hear(R2, PreVoteAnswer(self.raft.term, question.term, True))
        self.hear(R2, Vote(self.raft.term))
        assert self.raft.leads

    @property
    def belief(self) -> Leadership:
        return [e.leadership for e in self.handover.events if isinstance(e, Changed)][-1]

    def handed(self) -> list[tuple[int, int]]:
        """Return index and term of what was handed over to be applied."""
        return [
            (index, term)
            for event in self.handover.events
            if isinstance(event, Committed)
            for _, index, term in event.entries
        ]

    def log_change(self, change: Change, index: int, term: int) -> tuple[bytes, int, int]:
        return seal(MEMBERS, Origin("r2", 0, 0), encode_change(change)), index, term

    def close(self) -> None:
        self.raft.destroy()
        self.handover.end()
