"""A dump on its way from the leader: in any order, over restarts, and never trusted unchecked."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import consensus.engine.storage.incoming as incoming_module
from consensus.engine.storage.dump import Dump
from consensus.engine.storage.incoming import Incoming, Target
from consensus.leadership import Position
from consensus.limits import ROOM_BYTES_MIN
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.storage_rig import Later, Sent, at_once

AT = Position(3, 90)
STATE = b"state " * 1000


class Follower:
    """Who receives: its disk, and the dumps that were whole."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.aside = Later()
        self.incoming = Incoming(self.disk, self.aside)
        self.whole: list[Dump] = []

    def take(self, sent: Sent, offset: int, count: int = 1000) -> int:
        message = sent.chunk(offset, count)
        target = Target(message.index_term, message.index, message.size, message.digest)
        return self.incoming.take(target, offset, message.piece, self.whole.append)

    def restarted(self) -> Follower:
        self.disk.crash()
        return Follower(self.disk)


@pytest.fixture
def sent() -> Sent:
    return Sent(AT, STATE)


def test_a_corrupt_dump_is_dropped_and_asked_for_again(sent: Sent) -> None:
    follower = Follower()
    good = sent.file
    sent.file = good[:3000] + b"?" + good[3001:]
    assert follower.take(sent, 0, 2**20) == len(good)
    follower.aside.run()
    assert follower.whole == []
    assert follower.disk.names() == []
    sent.file = good
    assert follower.take(sent, 5000) == 0, "it is wanted from its start"
    follower.take(sent, 0, 2**20)
    follower.aside.run()
    assert len(follower.whole) == 1


@pytest.mark.parametrize("target", [Target(3, 90, 2**40, b"d" * 32), Target(3, 90, 500, b"short")])
def test_what_is_too_big_or_has_no_digest_is_not_even_begun(target: Target) -> None:
    follower = Follower()
    assert follower.incoming.take(target, 0, b"x", follower.whole.append) == 0
    assert follower.disk.names() == []


def test_a_dump_is_not_begun_where_it_would_take_the_journals_room(
    sent: Sent, caplog: pytest.LogCaptureFixture
) -> None:
    follower = Follower(MemoryDisk(room=ROOM_BYTES_MIN + 5000))
    assert [follower.take(sent, 0), follower.take(sent, 0)] == [0, 0]
    assert follower.disk.names() == []
    assert len(caplog.records) == 1, "said once"
    follower.disk.room = 2 * ROOM_BYTES_MIN
    assert follower.take(sent, 0) == 1000


def test_a_disk_that_runs_full_on_the_way_drops_the_dump_not_the_replica(sent: Sent) -> None:
    follower = Follower()
    follower.take(sent, 0)
    follower.disk.room = 10
    assert follower.take(sent, 1000) == 0
    assert follower.disk.names() == []


@given(seed=st.integers(0, 2**32))
def test_no_power_cut_brings_a_wrong_dump_or_stops_a_transfer(seed: int) -> None:
    rng = random.Random(seed)
    sent = Sent(AT, STATE)
    follower = Follower()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(incoming_module, "DUMP_SYNC_BYTES", 1500)
        for _ in range(rng.randint(1, 4)):
            offset = follower.incoming.offset
            for _ in range(rng.randint(0, 8)):
                offset = follower.take(sent, offset, rng.randint(1, 1200))
                if follower.aside.waiting and rng.random() < 0.6:
                    then = follower.aside.work()
                    if rng.random() < 0.8:
                        then()
            follower.disk.power_cut(rng)
            follower = Follower(follower.disk)
        rounds = 0
        while not follower.whole:
            rounds += 1
            assert rounds < 50, "the transfer does not end"
            follower.take(sent, follower.incoming.offset, 1200)
            follower.aside.run()
    assert follower.disk.content("dump.incoming") == sent.file


@given(content=st.binary(max_size=200), marks=st.binary(max_size=200))
def test_any_bytes_left_behind_are_no_reason_to_fail(content: bytes, marks: bytes) -> None:
    disk = MemoryDisk()
    disk.put("dump.incoming", content)
    disk.put("dump.marks", marks)
    incoming = Incoming(disk, at_once)
    assert incoming.target is None
