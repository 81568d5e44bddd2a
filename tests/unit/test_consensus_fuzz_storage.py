"""Any order of the journal's steps with deaths between, at any change of the disk, also at starts.

A model beside the journal keeps what one frame after the other makes of it. After each death the
disk says what the last finished step made, or what the one that was under way would have; a power
cut after a start takes nothing back.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.records import (
    Entry,
    pack_begin,
    pack_cut,
    pack_entry,
    pack_start,
    pack_vote,
)
from consensus.engine.storage.segments import segment_name
from consensus.errors import LogDamaged, UnknownFormat
from tests.fakes.memory_disk import MemoryDisk
from tests.fuzz.storage_bytes import DOORS, feed
from tests.unit.storage_rig import BASE_COMMAND, IDENTITY, created, fill, opened, whole

FIRST = segment_name(1)


@pytest.fixture(autouse=True, scope="module")
def without_cache() -> Iterator[None]:
    """Everything but the last entry, and what is not synced, is read back from the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("consensus.engine.storage.entries.ENTRY_CACHE_BYTES", 0)
        yield


class Died(Exception):
    """The replica ended before a change of its disk."""


class Model(msgspec.Struct):
    """What a journal should say; it may begin anywhere up to `forgotten`."""

    entries: list[Entry] = msgspec.field(default_factory=lambda: [(BASE_COMMAND, 1, 0)])
    term: int = 0
    vote: str | None = None
    forgotten: int = 1

    @property
    def last(self) -> int:
        return self.entries[-1][1]

    def allows(self, journal: FileJournal) -> bool:
        begin = journal[0][1]
        slot = begin - self.entries[0][1]
        return (
            0 <= slot < len(self.entries)
            and begin <= self.forgotten
            and (journal.term, journal.vote) == (self.term, self.vote)
            and whole(journal)
            == [(BASE_COMMAND, begin, self.entries[slot][2]), *self.entries[slot + 1 :]]
        )


class Life:
    """A disk, the journal upon it, and the models: of what is durable, and of what was said."""

    def __init__(self, segment_bytes: int) -> None:
        self.disk = MemoryDisk()
        self.segment_bytes = segment_bytes
        self.steps: int | None = None
        self.journal = created(self.disk, segment_bytes=segment_bytes)
        self.synced = Model()
        self.live = Model()
        self.possible: list[Model] = [self.synced]
        self.deaths = 0
        self.disk.before = self.step

    def step(self, _act: str, _name: str) -> None:
        if self.steps is not None:
            self.steps -= 1
            if self.steps < 0:
                raise Died

    def add(self, count: int, size: int) -> None:
        for _ in range(count):
            index, term = self.live.last + 1, max(self.live.term, 1)
            entry = (b"%d/%d " % (term, index) + b"." * size, index, term)
            self.live.entries.append(entry)
            self.journal.add(*entry)

    def cut(self, back: int) -> None:
        index = max(self.live.forgotten, self.live.last - back) + 1
        if index <= self.live.last:
            del self.live.entries[index - self.live.entries[0][1] :]
            self.journal.cut_from(index)

    def sync(self) -> None:
        self.possible = [self.synced, self.live]
        self.journal.sync()

    def vote(self, name: str | None) -> None:
        self.live.term, self.live.vote = self.live.term + 1, name
        self.possible = [self.synced, self.live]
        self.journal.setCurrentTerm(self.live.term, name)

    def forget(self, back: int) -> None:
        index = max(self.live.forgotten, self.live.last - back)
        self.live.forgotten = index
        self.possible = [self.synced, self.live]
        self.journal.forget_before(index)
        self.journal.remove_obsolete()

    def set_base(self, ahead: int) -> None:
        index, term = max(self.live.forgotten, self.live.last + ahead), self.live.term
        before = copy.deepcopy(self.live)
        self.live.entries, self.live.forgotten = [(BASE_COMMAND, index, term)], index
        self.possible = [self.synced, before, self.live]
        self.journal.set_base(index, term)
        self.journal.remove_obsolete()

    def arm(self, steps: int) -> None:
        self.steps = steps

    def run(self, act: str, argument: Any, rng: random.Random) -> None:
        try:
            getattr(self, act)(*argument)
        except Died:
            self.revive(rng)
            return
        before, self.steps = self.steps, None
        assert self.live.allows(self.journal), f"{whole(self.journal)} is not {self.live}"
        self.steps = before
        if act in ("sync", "vote", "forget", "set_base"):
            self.synced = copy.deepcopy(self.live)
        self.possible = [self.synced]

    def die(self) -> None:
        raise Died

    def revive(self, rng: random.Random) -> None:
        """End, by a kill or with the machine; start again, and die in that too now and then."""
        self.deaths += 1
        while True:
            self.disk.crash() if rng.random() < 0.5 else self.disk.power_cut(rng)
            self.disk.before = self.step
            self.steps = rng.choice([None, None, rng.randint(0, 4)])
            try:
                self.journal = opened(self.disk, segment_bytes=self.segment_bytes)
                break
            except Died:
                continue
        self.steps = None
        allowed = [model for model in self.possible if model.allows(self.journal)]
        assert allowed, f"{whole(self.journal)} is none of {self.possible}"
        self.synced, self.live = copy.deepcopy(allowed[-1]), copy.deepcopy(allowed[-1])
        self.possible = [self.synced]


ACTS = st.one_of(
    st.tuples(st.just("add"), st.tuples(st.integers(1, 4), st.integers(0, 90))),
    st.tuples(st.just("cut"), st.tuples(st.integers(0, 6))),
    st.tuples(st.just("sync"), st.just(())),
    st.tuples(st.just("vote"), st.tuples(st.sampled_from([None, "r1", "r2"]))),
    st.tuples(st.just("forget"), st.tuples(st.integers(0, 12))),
    st.tuples(st.just("set_base"), st.tuples(st.integers(-3, 20))),
    st.tuples(st.just("arm"), st.tuples(st.integers(0, 9))),
    st.tuples(st.just("die"), st.just(())),
)


@given(
    acts=st.lists(ACTS, min_size=5, max_size=50),
    segment_bytes=st.integers(100, 700),
    seed=st.integers(0, 2**32),
)
def test_no_order_of_steps_and_deaths_loses_what_was_synced(
    acts: list[tuple[str, Any]], segment_bytes: int, seed: int
) -> None:
    rng = random.Random(seed)
    life = Life(segment_bytes)
    for act, argument in acts:
        life.run(act, argument, rng)
    life.steps = None
    life.run("sync", (), rng)
    life.disk.power_cut(rng)
    assert life.live.allows(opened(life.disk))


def drawn(rng: random.Random) -> tuple[str, Any]:
    return rng.choice(
        [
            ("add", (rng.randint(1, 4), rng.randint(0, 90))),
            ("cut", (rng.randint(0, 6),)),
            ("sync", ()),
            ("vote", (rng.choice([None, "r1"]),)),
            ("forget", (rng.randint(0, 12),)),
            ("arm", (rng.randint(0, 9),)),
        ]
    )


def test_a_long_life_with_many_deaths() -> None:
    for seed in range(2):
        rng = random.Random(seed)
        life = Life(rng.randint(100, 700))
        for _ in range(800):
            act, argument = drawn(rng)
            life.run(act, argument, rng)
        assert life.deaths > 30
        assert life.live.last > 50


def test_the_model_notices_a_journal_that_does_not_wait_for_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.fakes.memory_disk.MemoryFile.sync", lambda _: None)
    for seed in range(50):
        life, rng = Life(2**20), random.Random(seed)
        life.disk.put(FIRST, life.disk.content(FIRST))
        life.run("add", (3, 50), rng)
        life.run("sync", (), rng)
        life.disk.power_cut(rng)
        if not life.live.allows(opened(life.disk)):
            return
    raise AssertionError("a lost entry went unnoticed")


@given(data=st.data(), garbage=st.binary(min_size=1, max_size=60))
def test_garbage_over_any_part_of_a_segment_never_invents(data: Any, garbage: bytes) -> None:
    disk = MemoryDisk()
    before = whole(fill(FileJournal.create(disk, IDENTITY, segment_bytes=250), 9))
    name = data.draw(st.sampled_from(disk.names()))
    content = disk.content(name)
    place = data.draw(st.integers(0, len(content)))
    disk.put(name, content[:place] + garbage + content[place + len(garbage) :])
    with suppress(LogDamaged, UnknownFormat):
        journal = opened(disk)
        assert whole(journal) == before[: len(journal)]
        assert len(journal) >= len(before) - 4


@pytest.mark.parametrize("door", range(len(DOORS)), ids=[door.__name__ for door in DOORS])
@given(content=st.binary(max_size=300))
def test_any_bytes_are_refused_or_read_and_never_a_crash(door: int, content: bytes) -> None:
    feed(bytes([door]) + content)


@given(
    frames=st.lists(
        st.lists(
            st.one_of(
                st.builds(pack_cut, st.integers(0, 9)),
                st.builds(pack_vote, st.integers(0, 9), st.sampled_from([None, "r1"])),
                st.builds(pack_begin, st.integers(0, 9), st.integers(0, 9)),
                st.builds(pack_start, st.integers(0, 9), st.integers(0, 9)),
                st.integers(0, 9).map(lambda index: pack_entry(b"ab", index, 1) + b"ab"),
            ),
            max_size=3,
        ).map(b"".join),
        max_size=8,
    )
)
def test_records_in_any_order_are_a_log_or_damage(frames: list[bytes]) -> None:
    feed(b"\x02" + b"".join(bytes([len(frame)]) + frame for frame in frames))
