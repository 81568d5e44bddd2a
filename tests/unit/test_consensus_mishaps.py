"""Rare orders of events: what was cut off again, answers of a while ago, a disk without room."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from msgspec import structs

from consensus.config import EngineConfig
from consensus.engine import replica
from consensus.engine.envelope import Origin
from consensus.engine.handover import Event, Failed, Refused
from consensus.engine.membership import (
    REPLACED,
    UNKNOWN,
    WAIT,
    Admit,
    Member,
    Replace,
    encode_members,
)
from consensus.engine.network.wire import (
    Answer,
    Append,
    DumpAnswer,
    DumpChunk,
    Message,
    PreVoteAnswer,
    RequestVote,
    TimeoutNow,
    Vote,
)
from consensus.engine.raft import tick
from consensus.engine.storage.disk import DirectoryDisk
from consensus.engine.storage.dump import IN_FORCE, Dump, write_dump
from consensus.errors import DataInUse, InvariantViolated
from consensus.leadership import Position
from consensus.limits import HANDOVER_ENTRIES_MAX
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.raft_rig import R2, R3, TOKENS, CollectingHandover, Rig

ORIGIN = Origin("r1", 5, 1)
NEW = 99


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(monkeypatch)
    yield made
    made.close()


def heartbeat(rig: Rig, node: object, term: int) -> None:
    at, last = rig.raft.last_index, rig.raft.last_term
    rig.hear(node, Append(term, at, at, last, 1, []))  # type: ignore[arg-type]


# --- changes of members that were cut off again


def test_a_disk_whose_admission_was_cut_off_is_admitted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.hear(R2, Append(1, 4, 4, 1, 1, [rig.log_change(Replace("r3", 2, "", ""), 5, 1)]))
    rig.raft.stand_at_once()
    rig.raft.doTick(0.0)
    rig.hear(R2, Vote(rig.raft.term))
    # The log of an earlier leader had given it number 2, and it said so when it dialled.
    rig.transport.callers["r3"] = rig.hello("r3", NEW, 2, joins=True)
    rig.hear(R2, Answer(rig.raft.term, rig.raft.last_index + 1, True, rig.now_ms()))
    rig.raft.doTick(0.0)
    assert rig.membership_log.members["r3"] == Member(2, NEW, False, past=(TOKENS["r3"],))
    rig.close()


def test_a_disk_forgets_a_number_that_was_cut_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, joins=True)
    change = rig.log_change(Replace("r1", 2, "", ""), 5, 1)
    admit = rig.log_change(Admit("r1", 2, TOKENS["r1"] + 1), 6, 1)
    rig.membership_log.identity = type(rig.membership_log.identity)(
        "default", "r1", TOKENS["r1"] + 1, True
    )
    rig.membership_log.number = 0
    rig.hear(R2, Append(1, 5, 4, 1, 1, [change, admit]))
    assert rig.gate.hello("r2").number == 2
    rig.hear(R3, Append(2, 5, 5, 1, 1, [(b"\x01", 6, 2)]))
    assert rig.gate.hello("r2").number == 0
    rig.close()


def test_no_number_alone_ends_a_disk_for_good(rig: Rig) -> None:
    # r3 was replaced in an earlier cell of this name, of which a disk came back
    rig.hear(R2, Append(1, 7, 4, 1, 1, [rig.log_change(Replace("r3", 2, "", ""), 5, 1)]))
    assert rig.raft.commit == 5
    refused = rig.gate.judge(rig.hello("r3", 4_711))
    assert refused is not None
    assert refused.reason == UNKNOWN
    assert rig.gate.judge(rig.hello("r3", 4_711, 1, joins=True)) is None, "an Admit was cut off"


def test_the_address_of_a_replacement_that_was_cut_off_is_not_dialled_any_more(rig: Rig) -> None:
    moved = rig.log_change(Replace("r3", 2, "h:1", ""), 5, 1)
    rig.hear(R2, Append(1, 4, 4, 1, 1, [moved]))
    assert rig.transport.addresses["r3"] == "h:1"
    rig.hear(R2, Append(2, 4, 4, 1, 1, [(b"\x01", 5, 2)]))
    assert rig.transport.addresses["r3"] == rig.config.peers["r3"]


def test_a_follower_hears_a_disk_that_its_log_replaces_as_long_as_that_may_be_cut_off(
    rig: Rig,
) -> None:
    # r3 may lead in a newer term and have to cut this very entry: Raft thesis 4.2.2
    old = rig.hello("r3", TOKENS["r3"], 1)
    rig.hear(R2, Append(1, 4, 4, 1, 1, [rig.log_change(Replace("r3", 2, "", ""), 5, 1)]))
    assert rig.gate.judge(old) is None
    heartbeat(rig, R2, 1)
    refused = rig.gate.judge(old)
    assert refused is not None
    assert refused.reason == REPLACED, "it is committed now"


def test_a_follower_that_was_away_hears_a_leader_of_a_disk_it_does_not_know(rig: Rig) -> None:
    heartbeat(rig, R2, 1)
    assert rig.raft.commit == 4
    newer = rig.hello("r3", NEW, 2, joins=True)
    assert rig.gate.judge(newer) is None
    assert rig.gate.judge(rig.hello("r3", NEW, 0, joins=True)) is not None, "it was not admitted"


def test_a_leader_that_moved_meanwhile_is_answered_where_it_says(rig: Rig) -> None:
    heartbeat(rig, R2, 1)
    moved = structs.replace(rig.hello("r3", NEW, 2, joins=True), address="h:7")
    assert rig.gate.judge(moved) is None
    assert rig.transport.addresses["r3"] == "h:7"
    rig.gate.judge(structs.replace(rig.hello("r2", TOKENS["r2"], 1), address="h:8"))
    assert rig.transport.addresses["r2"] == rig.config.peers["r2"], "what the log says is as new"


def test_a_replaced_disk_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    assert rig.gate.hello("r2").address == ""
    rig.hear(R2, Append(1, 4, 4, 1, 1, [rig.log_change(Replace("r1", 2, "h:9", ""), 5, 1)]))
    assert rig.gate.hello("r2").address == "h:9"
    rig.close()


def test_what_a_disk_votes_that_does_not_stand_for_its_id_here_does_not_count(rig: Rig) -> None:
    rig.transport.callers["r2"] = rig.hello("r2", NEW, 2, joins=True)
    question = rig.ask()
    rig.hear(R2, PreVoteAnswer(1, question.term, True))
    assert rig.raft.term == 1
    rig.raft.stand_at_once()
    rig.raft.doTick(0.0)
    rig.hear(R2, Vote(rig.raft.term))
    assert not rig.raft.leads
    rig.hear(R3, Vote(rig.raft.term))
    assert rig.raft.leads
    at = rig.raft.last_index
    rig.hear(R2, Answer(rig.raft.term, at + 1, True, rig.now_ms()))
    rig.raft.doTick(0.0)
    assert rig.raft.commit < at
    rig.hear(R3, Answer(rig.raft.term, at + 1, True, rig.now_ms()))
    rig.raft.doTick(0.0)
    assert rig.raft.commit == at


def test_who_was_let_in_before_a_replacement_was_committed_is_judged_again_after_it(
    rig: Rig,
) -> None:
    rig.hear(R2, Append(1, 4, 4, 1, 1, [rig.log_change(Replace("r3", 2, "", ""), 5, 1)]))
    judged = rig.transport.judged
    heartbeat(rig, R2, 1)
    assert rig.transport.judged == judged + 1
    heartbeat(rig, R2, 1)
    assert rig.transport.judged == judged + 1


def test_a_leader_hears_no_disk_that_its_log_replaces(rig: Rig) -> None:
    rig.hear(R2, Append(1, 4, 4, 1, 1, [rig.log_change(Replace("r3", 2, "", ""), 5, 1)]))
    judged = rig.transport.judged
    rig.raft.stand_at_once()
    rig.raft.doTick(0.0)
    rig.hear(R2, Vote(rig.raft.term))
    rig.raft.doTick(0.0)
    refused = rig.gate.judge(rig.hello("r3", TOKENS["r3"], 1))
    assert refused is not None
    assert refused.reason == WAIT
    assert rig.transport.judged > judged


def test_who_has_not_answered_this_leader_yet_is_not_relied_on(rig: Rig) -> None:
    rig.lead()
    rig.hear(R2, Answer(rig.raft.term, rig.raft.last_index + 1, True, rig.now_ms()))
    rig.raft.doTick(0.0)
    rig.raft.ask(lambda: rig.raft.leading.replace("r2", "", "", ORIGIN))
    rig.raft.doTick(0.0)
    declined = [e for e in rig.handover.events if isinstance(e, Refused)]
    assert "without r2 only r1 would be left" in str(declined[-1].error)


# --- elections


def test_what_was_said_before_a_leader_was_heard_elects_nobody_later(rig: Rig) -> None:
    question = rig.ask()
    rig.transport._onMessageReceived(R2, PreVoteAnswer(1, question.term, True))
    heartbeat(rig, R3, rig.raft.term)
    term = rig.raft.term
    rig.tick(4.0)
    assert rig.raft.term == term, "nobody has answered since"


def test_a_call_to_lead_is_over_with_its_term(rig: Rig) -> None:
    heartbeat(rig, R2, 2)
    rig.transport._onMessageReceived(R2, TimeoutNow(2))
    rig.transport._onMessageReceived(R3, RequestVote(3, 9, 2))
    rig.tick(4.0)
    assert rig.raft.term == 3, "it stood without asking"


# --- a cell of one


def test_nothing_is_handed_over_that_is_not_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, [], alone=True)
    unsynced: list[int] = []

    def post(event: Event) -> None:
        rig.handover.events.append(event)
        if rig.handed():
            unsynced.append(len(rig.journal._buffer))

    monkeypatch.setattr(rig.handover, "post", post)
    rig.tick(3.0)
    assert rig.raft.leads
    assert unsynced
    assert not any(unsynced)
    assert list(rig.membership_log.members) == ["r1"], "it is founded like any other"
    rig.close()


# --- dumps


def members_here(rig: Rig) -> bytes:
    return encode_members(rig.membership_log.members)


def test_a_dump_that_entries_have_overtaken_takes_back_no_commit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, later = MemoryDisk(), deque[Callable[[], None]]()
    dump = write_dump(other, IN_FORCE, Position(1, 5), members_here(rig), [b"state"])
    whole = other.open(IN_FORCE)
    rig.raft.compaction.incoming._aside = lambda work, then: later.append(lambda: then(work()))
    piece = whole.read(0, whole.size)
    rig.hear(R2, DumpChunk(1, 5, 1, whole.size, 0, 1, piece, dump.digest))
    monkeypatch.setattr(CollectingHandover, "entries", HANDOVER_ENTRIES_MAX)  # the loop is busy
    rig.hear(R2, Append(1, 7, 4, 1, 1, [(b"\x01", at, 1) for at in (5, 6, 7)]))
    assert rig.raft.commit == 7
    while later:
        later.popleft()()
    assert rig.raft.applied == 5
    assert rig.raft.commit == 7


def test_a_piece_that_is_not_taken_is_sent_again_at_the_next_heartbeat_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dump(disk: MemoryDisk) -> Dump:
        members = {name: Member(1, token, votes=True) for name, token in TOKENS.items()}
        return write_dump(disk, IN_FORCE, Position(1, 50), encode_members(members), [b"x" * 9])

    rig = Rig(monkeypatch, [], dump=dump)
    rig.lead()
    assert pieces(rig.hear(R2, Answer(rig.raft.term, 3, False, 1)))
    full = DumpAnswer(rig.raft.term, 50, 0, 1)
    assert not pieces(rig.hear(R2, full)), "it has no room, and that will not change at once"
    assert pieces([message for _, message in rig.tick(0.2)])
    rig.close()


def pieces(sent: list[Message]) -> list[DumpChunk]:
    return [message for message in sent if isinstance(message, DumpChunk)]


# --- the end


def test_a_failure_is_told_though_the_disk_is_full_at_the_end(rig: Rig) -> None:
    def fail(timeout_s: float) -> None:
        rig.journal.add(b"\x01", 5, 1)
        rig.disk.room = 0
        raise InvariantViolated("first")

    rig.transport.poll = fail  # type: ignore[method-assign]
    tick(rig.raft)
    [failed] = [event for event in rig.handover.events if isinstance(event, Failed)]
    assert str(failed.error) == "first"
    rig.disk.room = None


async def test_a_start_that_is_given_up_holds_the_directory_while_it_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def load_slowly(*_: object) -> None:
        begun.set()
        goes_on.wait(60)

    monkeypatch.setattr(replica, "load", load_slowly)
    config = EngineConfig(replica="r1", peers={"r1": "127.0.0.1:1"}, data=str(tmp_path))
    log = replica.EngineLog(config, NoApplier(), on_failure=lambda _: None)
    start = asyncio.create_task(log.start())
    await asyncio.to_thread(begun.wait, 10)
    start.cancel()
    await asyncio.wait([start], timeout=0)
    with pytest.raises(DataInUse):
        DirectoryDisk(tmp_path)
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await start
    DirectoryDisk(tmp_path).close()


class NoApplier:
    """Nothing is ever applied."""

    def apply(self, position: Position, entry: bytes) -> object:
        raise AssertionError(position)

    def take(self) -> Iterable[bytes]:
        raise AssertionError

    def restore(self, position: Position, pieces: Iterable[bytes]) -> None:
        raise AssertionError(position)
