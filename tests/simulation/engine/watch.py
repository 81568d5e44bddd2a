"""What the checkers are told of a Raft: its journal's changes, its messages, its beliefs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pysyncobj.node import Node

from consensus.engine.envelope import ENTRY, MEMBERS, unseal
from consensus.engine.handover import Committed, Event, Restored
from consensus.engine.membership import (
    Members,
    change_members,
    decode_change,
    decode_members,
)
from consensus.engine.network.links import Caller
from consensus.engine.network.wire import Answer, HeartbeatAnswer, Message, RequestVote, Vote
from consensus.engine.raft import Raft
from tests.simulation.engine.agreement import DurableLog, Span, check_matching
from tests.simulation.engine.applier import read_name

if TYPE_CHECKING:
    from tests.simulation.engine.process import Process
    from tests.simulation.engine.world import World

_JOURNAL_PREFIX = "wal"


class Watch:
    """One Raft, watched through its own parts' methods."""

    def __init__(self, world: World, process: Process, raft: Raft) -> None:
        self.world = world
        self.process = process
        self.machine = process.machine
        self.raft = raft
        self.token = raft.journal.identity.token
        self.machine.token = self.token
        self.machine.start = "resume"
        self._disk_life = self.machine.disk.life
        self._members: list[tuple[int, Members]] | None = None
        self._led, self._leads = 0, False
        self._settled: Members = {}
        self._matched: dict[str, int] = {}
        self._log = world.durability.disks.setdefault(self.token, DurableLog())
        self._check_vote()
        self._mirror_journal()
        self._hear_messages()
        self._see_events()

    def _check_vote(self) -> None:
        raft, world = self.raft, self.world
        world.ids[self.token] = self.machine.replica
        voted_for = world.elections.votes.get((self.token, raft.term))
        is_kept = voted_for is not None and world.ids.get(voted_for) == raft.vote
        world.elections.reopened(self.token, raft.term, voted_for if is_kept else None)

    @staticmethod
    def name_of(command: bytes) -> int | None:
        """What clients call an entry of the log, None for one of the engine's own."""
        envelope = unseal(command)
        if envelope is None or envelope.kind != ENTRY:
            return None
        return read_name(envelope.entry)

    # --- the journal, and what of it is durable

    def _mirror_journal(self) -> None:
        journal: Any = self.raft.journal
        self._log.reopen()
        self._settle()
        real_add, real_cut, real_base = journal.add, journal.cut_from, journal.set_base
        real_forget, real_sync = journal.forget_before, journal.sync
        log = self._log

        def add(command: bytes, index: int, term: int) -> None:
            real_add(command, index, term)
            log.changed("add", index, term)
            if self._members is not None and command[:2] == bytes((0, MEMBERS)):
                self._members.append((index, _changed(self._members[-1][1], command)))

        def cut_from(index: int) -> None:
            self.world.canon.cut(self.machine.key, index, self._term_at(index) or -1)
            real_cut(index)
            log.changed("cut", index)
            while self._members and self._members[-1][0] >= index and len(self._members) > 1:
                self._members.pop()

        def set_base(index: int, term: int) -> None:
            log.changed("base", index, term)
            self._members = None
            real_base(index, term)
            self._settle()

        def forget_before(index: int) -> None:
            real_forget(index)
            log.changed("forget", index)
            self._settle()

        def sync() -> None:
            real_sync()
            self._settle()

        journal.add, journal.cut_from, journal.set_base = add, cut_from, set_base
        journal.forget_before, journal.sync = forget_before, sync

    def _settle(self) -> None:
        if self._log.is_stale and self._is_durable():
            if self._log.doubtful:
                self._load()
            else:
                self._log.synced()

    def _load(self) -> None:
        heads = self.raft.journal[:]
        self._log.load(heads[0][1], [term for _, _, term in heads])

    def _is_durable(self) -> bool:
        return not self.machine.disk.loses(_JOURNAL_PREFIX)

    # --- who votes, by this replica's own log

    def members(self) -> Members:
        """The members that its log gives, committed or not."""
        if self._members is None:
            dump = self.raft.compaction.dump
            self._members = [(0, decode_members(dump.members) if dump else {})]
            after = dump.position.index if dump else 0
            for command, index, _ in self.raft.journal.log.kept:
                if index > after:
                    self._members.append((index, _changed(self._members[-1][1], command)))
        return self._members[-1][1]

    def _members_at(self, index: int) -> Members:
        """The members that its log gives after the entry at `index`, or the oldest ones known."""
        changes = self._members or [(0, self.members())]
        return max((one for one in changes if one[0] <= index), default=changes[0])[1]

    def voters(self) -> list[int]:
        """The tokens of the disks that vote."""
        return [member.token for member in self.members().values() if member.votes]

    @property
    def is_admitted(self) -> bool:
        """Whether its own log says that this disk stands for its id."""
        member = self.members().get(self.machine.replica)
        return member is not None and member.token == self.token

    # --- messages and events

    def _hear_messages(self) -> None:
        transport: Any = self.raft.transport
        real = transport._onMessageReceivedCallback

        def heard(node: Node, message: Message) -> None:
            caller = transport._callers.get(node.id)
            if caller is not None and caller.peer is not None:
                self._check_caller(node.id, caller.peer.token)
                self.world.ghosts.heard(self, caller.peer)
                if isinstance(message, Vote | RequestVote):
                    self._voted(caller.peer.token, message)
            if isinstance(message, Answer | HeartbeatAnswer) and self.raft.leads:
                self._answered(real, node, message)
            else:
                real(node, message)

        transport.setOnMessageReceivedCallback(heard)

    def _voted(self, token: int, message: Vote | RequestVote) -> None:
        candidate = self.token if isinstance(message, Vote) else token
        self.world.elections.voted(token, message.term, candidate)
        if isinstance(message, Vote):
            self._check_quarantine(token)

    def _answered(self, real: Any, node: Node, message: Answer | HeartbeatAnswer) -> None:
        raft = self.raft
        before, term = (raft.matched[node], raft.following[node], raft.answered_s[node]), raft.term
        real(node, message)
        if not raft.leads or raft.term != term:
            return
        after = (raft.matched[node], raft.following[node], raft.answered_s[node])
        if message.term < term and after != before:
            what = f"of term {message.term} in term {term}"
            self.world.verdict.accuse("old-answer", f"{self.machine.key} counts one {what}")
        is_refusal = isinstance(message, Answer) and not message.accepted
        if is_refusal and after[1] > before[1]:
            what = f"from {before[1]} to {after[1]}"
            self.world.verdict.accuse("next-forward", f"{self.machine.key} goes on {what}")

    def _check_caller(self, name: str, token: int) -> None:
        member = self._settled.get(name)
        if member is not None and token != member.token and token in member.past:
            self.world.verdict.accuse("replaced-heard", f"{self.machine.key} hears an old {name}")

    def _check_quarantine(self, token: int) -> None:
        for watch in self.world.watches.values():
            admitted = [member.token for member in watch.members().values()]
            joins = watch.raft.journal.identity.joins
            if watch.token == token and joins and token not in admitted:
                self.world.verdict.accuse("quarantined-voted", f"disk of {watch.machine.key}")

    def _see_events(self) -> None:
        handover: Any = self.raft.handover
        real = handover.post

        def post(event: Event) -> None:
            if isinstance(event, Committed):
                self._committed(event)
            elif isinstance(event, Restored):
                self.world.restored += 1
            real(event)

        handover.post = post

    def _committed(self, event: Committed) -> None:
        self.world.canon.committed(self.machine.key, event.entries)
        _, index, term = event.entries[-1]
        voters = self.voters()
        if self.raft.leads and voters:
            # It may have been committed before the newest voter was one: handed over only now.
            before = [member.token for member in self._members_at(index).values() if member.votes]
            self.world.durability.committed(self.machine.key, index, term, voters, before)

    # --- after each tick

    def look(self) -> None:
        """Look at what it believes."""
        raft, world = self.raft, self.world
        journal = raft.journal
        last = journal.log.last
        if raft.commit > last:
            world.verdict.accuse("commit-ahead", f"{self.machine.key} ends at {last}")
        if raft.membership_log.members is not self._settled:
            self._settled = raft.membership_log.at(raft.commit)
        now = world.events.now
        if not raft.leads:
            if self._leads:
                world.health.ends(self.machine.key, now, world.well_since(self.voters()))
            self._leads = False
            return
        term = raft.term
        self._look_at_matches(term)
        if term == self._led:
            return
        self._led, self._leads = term, True
        world.events.note(self.machine.key, f"leads in term {term}")
        world.ghosts.leads(self)
        world.elections.leads(self.token, term, self.voters(), now)
        world.health.leads(self.machine.key, term, now, world.well_since(self.voters()))
        world.canon.complete(self.machine.key, last, self._term_at)

    def _look_at_matches(self, term: int) -> None:
        raft = self.raft
        matched = {node.id: index for node, index in raft.matched.items() if index}
        if matched == self._matched or max(self.world.elections.leaders, default=0) > term:
            return
        self._matched = matched
        members = self.members()
        for name, index in matched.items():
            if name in members:
                token = members[name].token
                who = self.machine.key
                self.world.durability.matched(who, token, index, self._term_at(index))

    def look_at_voices(self) -> None:
        """A peer has one voice here: an older connection of it is not heard any more."""
        names = [
            connection.owner.peer.sender
            for connection in self.process.network.connections
            if isinstance(connection.owner, Caller) and connection.owner.peer is not None
        ]
        if len(names) > len(set(names)):
            self.world.verdict.accuse("two-voices", f"{self.machine.key} hears {names}")

    def _term_at(self, index: int) -> int | None:
        log = self.raft.journal.log
        return log.term_at(index) if index > log.begin else None


def _changed(members: Members, command: bytes) -> Members:
    envelope = unseal(command)
    return members if envelope is None else change_members(members, decode_change(envelope.entry))


def look_at_logs(world: World) -> None:
    """Compare the journals of all that live."""
    spans = {}
    for watch in world.watches.values():
        heads = watch.raft.journal[:]
        spans[watch.machine.key] = Span(heads[0][1], [term for _, _, term in heads])
    check_matching(world.verdict, spans)
