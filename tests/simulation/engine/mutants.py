"""Cures that can be switched off, one by one: each has to turn some seed red.

For the test of the tests only. Each says which hazard comes back (numbers of the engine's design);
all is as before when its context ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

from pysyncobj.node import Node

from consensus.engine import following, gate
from consensus.engine.compaction import Compaction
from consensus.engine.elections import Elections
from consensus.engine.following import Following
from consensus.engine.leading import Leading
from consensus.engine.library import Library
from consensus.engine.membership import REPLACED, Members
from consensus.engine.membership import judge as real_judge
from consensus.engine.membership_log import MembershipLog
from consensus.engine.network.peering import PeerTransport
from consensus.engine.network.wire import (
    Answer,
    Append,
    DumpAnswer,
    DumpChunk,
    Goodbye,
    Heartbeat,
    PreVote,
    RequestVote,
)
from consensus.engine.raft import Raft
from consensus.engine.replica import EngineLog
from consensus.engine.storage import dump, entries, incoming, journal
from consensus.engine.storage.disk import Disk
from consensus.engine.storage.dump import Dump
from consensus.engine.storage.entries import Entries
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.segments import Segment
from consensus.leadership import Position
from tests.fakes.memory_disk import MemoryFile
from tests.simulation.patching import patched

Mutant = Callable[[], contextlib.AbstractContextManager[None]]


# --- log matching


def commits_unverified() -> contextlib.AbstractContextManager[None]:
    """S1: a follower commits what its leader has committed, as far as its own log goes, whether or
    not this message verified that."""

    def take_entries(self: Following, node: Node, message: Append) -> None:
        raft = self._raft
        base, commit = self._journal[0][1], raft.commit
        verified, accepted = following.match_log(self._journal, message, base, commit)
        raft.commit = max(commit, min(message.commit_index, raft.last_index))
        answer = Answer(message.term, verified + 1, accepted, message.sent_ms)
        raft.transport.send(node, answer)

    return patched(Following, take_entries=take_entries)


def cuts_what_matches() -> contextlib.AbstractContextManager[None]:
    """S2, B: a follower cuts all behind the point where a message begins, equal or not."""
    real = following.match_log

    def match_log(log: Any, message: Append, base: int, commit: int) -> tuple[int, bool]:
        previous = message.prev_index
        matches = base <= previous < log[-1][1] and log[previous - base][2] == message.prev_term
        if matches and message.entries:
            log.cut_from(previous + 1)
        return real(log, message, base, commit)

    return patched(following, match_log=match_log)


def commits_by_heartbeats() -> contextlib.AbstractContextManager[None]:
    """S1: a follower commits by a heartbeat, which verifies nothing of its log."""
    real = Following.take_heartbeat

    def take_heartbeat(self: Following, node: Node, message: Heartbeat) -> None:
        raft = self._raft
        raft.commit = max(raft.commit, min(message.commit_index, raft.last_index))
        real(self, node, message)

    return patched(Following, take_heartbeat=take_heartbeat)


def moves_forward_on_refusal() -> contextlib.AbstractContextManager[None]:
    """D: a refusal sets the next index, forward too."""
    real = Leading.take_answer

    def take_answer(self: Leading, node: Node, message: Answer | DumpAnswer) -> None:
        real(self, node, message)
        raft = self._raft
        if isinstance(message, Answer) and not message.accepted and raft.leads:
            raft.following[node] = min(message.next_index, raft.last_index + 1)

    return patched(Leading, take_answer=take_answer)


def ignores_terms_of_answers() -> contextlib.AbstractContextManager[None]:
    """S14: an answer of an earlier leadership counts in a later one."""
    real = Leading.take_answer

    def take_answer(self: Leading, node: Node, message: Answer | DumpAnswer) -> None:
        if isinstance(message, Answer) and message.term < self._raft.term:
            message = Answer(self._raft.term, message.next_index, message.accepted, message.sent_ms)
        real(self, node, message)

    return patched(Leading, take_answer=take_answer)


# --- durability


def forgets_votes() -> contextlib.AbstractContextManager[None]:
    """S6, S7: whom a replica voted for is in memory alone."""

    real = journal.pack_vote
    return patched(journal, pack_vote=lambda term, vote: real(term, None))


def never_syncs() -> contextlib.AbstractContextManager[None]:
    """S3: what was written is taken for durable."""

    def append(self: Segment, sequence: int, records: bytes) -> None:
        with patched(MemoryFile, sync=lambda file: None):
            real(self, sequence, records)

    real = Segment.append
    return patched(Segment, append=append)


def answers_before_sync() -> contextlib.AbstractContextManager[None]:
    """S3: answers and votes leave before the journal is synced."""

    def flush(self: PeerTransport) -> None:
        for link in self._links.values():
            for frames in (link.urgent, link.late):
                if frames:
                    link.flush(frames)
            link.flush_bulk()
        self._journal.sync()

    return patched(PeerTransport, flush=flush)


def counts_itself_unsynced() -> contextlib.AbstractContextManager[None]:
    """A leader counts its own log before it is synced: it syncs only when it must write a vote."""
    real = Raft._end_tick

    def end_tick(self: Raft) -> None:
        journal: Any = self.journal
        with patched(journal, sync=lambda: None) if self.leads else contextlib.nullcontext():
            real(self)

    return patched(Raft, _end_tick=end_tick)


@contextlib.contextmanager
def keeps_commit_index() -> Iterator[None]:
    """S4: the commit index is kept apart, and survives what the log does not."""
    kept: dict[int, int] = {}
    real: Any = Library.commit
    real_start = Raft.__init__

    def keep(raft: Library, index: int) -> None:
        real.fset(raft, index)
        token = raft.journal.identity.token
        kept[token] = max(kept.get(token, 0), index)

    def start(self: Raft, *parts: Any) -> None:
        real_start(self, *parts)
        self.commit = max(self.commit, kept.get(self.journal.identity.token, 0))

    with patched(Library, commit=property(real.fget, keep)), patched(Raft, __init__=start):
        yield


def shortens_before_dump() -> contextlib.AbstractContextManager[None]:
    """S5: the journal lets go of entries before the dump that holds them is in force."""
    real = Compaction.finish

    def finish(self: Compaction, result: Dump | Exception, now_s: float) -> Any:
        if isinstance(result, Dump) and result.position.index > self.dumped.index:
            self._journal.forget_before(self._trailing_start(result.position.index))
            self._journal.remove_obsolete()
        return real(self, result, now_s)

    return patched(Compaction, finish=finish)


def keeps_torn_tail() -> contextlib.AbstractContextManager[None]:
    """Stock: a torn last frame stays, and the next one is written behind it."""
    real = FileJournal.open

    def open_whole(disk: Disk, replica: str, cell: str, **options: Any) -> FileJournal:
        with patched(MemoryFile, cut=lambda file, size: None):
            return real(disk, replica, cell, **options)

    return patched(FileJournal, open=staticmethod(open_whole))


def sends_what_it_reads() -> contextlib.AbstractContextManager[None]:
    """Entries that are read back from the journal are not checked."""
    return patched(entries, zlib=SimpleNamespace(crc32=lambda command: 0))


def forgets_what_is_not_written() -> contextlib.AbstractContextManager[None]:
    """The content of an entry may leave the memory before it is on the disk."""
    real = Entries.add

    def add(self: Entries, *entry: Any) -> None:
        real(self, *entry)
        self.written()

    return patched(Entries, add=add)


def keeps_places() -> contextlib.AbstractContextManager[None]:
    """A cut leaves the places of what it cuts, and what follows is read back from there."""
    real = Entries.cut_from

    def cut_from(self: Entries, index: int) -> None:
        columns = [array[:] for array in (self._places, self._lengths, self._sums)]
        real(self, index)
        self._places, self._lengths, self._sums = columns

    return patched(Entries, cut_from=cut_from)


# --- dumps


def trusts_received_dumps() -> contextlib.AbstractContextManager[None]:
    """S9, S11: a received dump is taken as it is, without its digest."""

    def check_dump(disk: Disk, name: str) -> Dump:
        file = disk.open(name)
        found, _ = dump._describe(file, name, name)
        file.close()
        return found

    return patched(incoming, check_dump=check_dump)


def acknowledges_dump_early() -> contextlib.AbstractContextManager[None]:
    """A dump is acknowledged as log when its last piece has come, before it is in force."""
    real = Following.take_piece

    def take_piece(self: Following, node: Node, message: DumpChunk) -> None:
        real(self, node, message)
        if message.offset + len(message.piece) >= message.size:
            answer = Answer(message.term, message.index + 1, True, message.sent_ms)
            self._raft.transport.send(node, answer)

    return patched(Following, take_piece=take_piece)


# --- who may speak, vote and count


def keeps_old_connections() -> contextlib.AbstractContextManager[None]:
    """S15: a newer connection of a peer does not end its older one."""

    def introduced(self: PeerTransport, caller: Any, name: str) -> None:
        self._strangers.pop(caller, None)
        self._callers[name] = caller

    return patched(PeerTransport, introduced=introduced)


def lets_everybody_in() -> contextlib.AbstractContextManager[None]:
    """S17: an empty disk under an old id is taken for the old one."""
    return patched(gate, judge=lambda members, caller: None)


def lets_old_disks_in() -> contextlib.AbstractContextManager[None]:
    """A disk that was replaced is heard like the one that stands for its id."""

    def judge(members: Members, caller: Any) -> Goodbye | None:
        goodbye = real_judge(members, caller)
        return None if goodbye is not None and goodbye.reason == REPLACED else goodbye

    return patched(gate, judge=judge)


def quarantine_counts() -> contextlib.AbstractContextManager[None]:
    """What a disk holds counts for commits before it has joined."""
    return patched(MembershipLog, counts=lambda self, name: True)


def quarantine_votes() -> contextlib.AbstractContextManager[None]:
    """The vote of a disk counts before it has joined."""

    def has_quorum(self: MembershipLog, granted: set[str]) -> bool:
        return len(granted) * 2 > len(self.ids)

    return patched(MembershipLog, has_quorum=has_quorum)


def grown_do_not_count() -> contextlib.AbstractContextManager[None]:
    """A replica that joined a cell of one is not needed for its majority."""
    return patched(MembershipLog, electors=property(lambda self: self.ids[:1]))


def strangers_vote() -> contextlib.AbstractContextManager[None]:
    """An empty disk gives its vote before it was admitted."""
    return patched(MembershipLog, gives_vote=property(lambda self: True))


def stands_without_asking() -> contextlib.AbstractContextManager[None]:
    """No PreVote: who comes back from a cut deposes a healthy leader."""

    def may_stand(self: Elections) -> bool:
        return self._membership_log.may_vote

    return patched(Elections, may_stand=may_stand)


def votes_for_shorter_logs() -> contextlib.AbstractContextManager[None]:
    """A voter does not compare logs."""
    return patched(Elections, _is_behind=lambda self, message: False)


# --- cells that begin with a state


def mixes_lives() -> contextlib.AbstractContextManager[None]:
    """Disks of two lives of a cell let each other in, as far as their members let them."""
    return patched(gate, judge_life=lambda life, members, caller: None)


def forgets_life() -> contextlib.AbstractContextManager[None]:
    """Later dumps do not say which state the cell began with."""

    def restore(self: MembershipLog, *parts: Any, life: int = 0) -> None:
        real(self, *parts, life=life)
        if self.is_founded:
            self.life = 0

    real = MembershipLog.start
    return patched(MembershipLog, start=restore)


def elects_by_terms_alone() -> contextlib.AbstractContextManager[None]:
    """A seeded disk votes for a log of a newer term that ends before its own state."""

    def is_behind(self: Elections, message: PreVote | RequestVote) -> bool:
        raft = self._raft
        return (message.last_term, message.last_index) < (raft.last_term, raft.last_index)

    return patched(Elections, _is_behind=is_behind)


# --- reads


def reads_without_majority() -> contextlib.AbstractContextManager[None]:
    """A barrier believes in this replica's own leadership."""

    async def barrier(self: EngineLog, *, timeout_ms: int) -> Position:
        self._check_leads()
        return self._applied

    return patched(EngineLog, barrier=barrier)


def confirms_itself() -> contextlib.AbstractContextManager[None]:
    """A leader is confirmed by its own belief."""

    async def confirm(self: EngineLog, *, timeout_ms: int) -> None:
        self._check_leads()

    return patched(EngineLog, confirm=confirm)


MUTANTS: Final[dict[str, Mutant]] = {
    "commit-unverified": commits_unverified,
    "heartbeat-commits": commits_by_heartbeats,
    "cut-what-matches": cuts_what_matches,
    "forward-on-refusal": moves_forward_on_refusal,
    "answers-of-any-term": ignores_terms_of_answers,
    "votes-in-memory": forgets_votes,
    "no-sync": never_syncs,
    "answer-before-sync": answers_before_sync,
    "leader-unsynced": counts_itself_unsynced,
    "commit-index-kept": keeps_commit_index,
    "shorten-before-dump": shortens_before_dump,
    "torn-tail-kept": keeps_torn_tail,
    "read-back-unchecked": sends_what_it_reads,
    "evicts-unwritten": forgets_what_is_not_written,
    "cut-places-kept": keeps_places,
    "dump-unchecked": trusts_received_dumps,
    "dump-acknowledged-early": acknowledges_dump_early,
    "old-connections": keeps_old_connections,
    "no-gate": lets_everybody_in,
    "old-disk-let-in": lets_old_disks_in,
    "quarantine-counts": quarantine_counts,
    "quarantine-votes": quarantine_votes,
    "strangers-vote": strangers_vote,
    "grown-uncounted": grown_do_not_count,
    "no-prevote": stands_without_asking,
    "shorter-logs-elected": votes_for_shorter_logs,
    "lives-mixed": mixes_lives,
    "life-forgotten": forgets_life,
    "terms-alone": elects_by_terms_alone,
    "local-barrier": reads_without_majority,
    "local-confirm": confirms_itself,
}
