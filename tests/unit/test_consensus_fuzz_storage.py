"""Any order of journal, dump and restart steps, with deaths between: what was synced is there.

A model beside the journal keeps what it promised: entries and hard state as of the last sync that
returned, and what was written after it. After each death the disk must say a state between the two.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consensus.engine.compaction import Compaction
from consensus.engine.handover import TakeDump
from consensus.engine.loading import load
from consensus.engine.storage.dump import TAKEN, read_pieces, write_dump
from consensus.engine.storage.records import Entry
from consensus.leadership import Position
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.storage_rig import CONFIG, Later, Sent, state

Hard = tuple[int, str | None]


class Died(Exception):
    """The replica ended before a step of its disk."""


class JournalLife(RuleBasedStateMachine):
    """One replica's disk over many lives. `committed` is what may be in dumps, and never cut."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.durable: list[Entry] = []
        self.hard: Hard = (0, None)
        self.term = 1
        self.committed = 1
        self.steps_left = -1

    @initialize(segment_bytes=st.integers(100, 900))
    def begin(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.load()
        self.durable = list(self.journal.entries)

    def load(self) -> None:
        found = load(self.disk, CONFIG, lambda: 5, segment_bytes=self.segment_bytes)
        self.journal = found.journal
        self.aside = Later()
        self.compaction = Compaction(CONFIG, found.journal, self.disk, found.dump, self.aside)
        self.disk.before = self.step

    def step(self, _act: str, _name: str) -> None:
        if self.steps_left == 0:
            raise Died
        self.steps_left -= 1

    @property
    def last(self) -> int:
        return self.journal[-1][1]

    @rule(count=st.integers(1, 5), size=st.integers(0, 120), new_term=st.booleans())
    def add(self, count: int, size: int, new_term: bool) -> None:
        self.term += new_term
        for index in range(self.last + 1, self.last + 1 + count):
            self.journal.add(b"%d/%d " % (self.term, index) + b"." * size, index, self.term)

    @precondition(lambda self: self.last > self.committed)
    @rule(draw=st.randoms(use_true_random=False))
    def cut(self, draw: random.Random) -> None:
        begin = max(self.committed, self.journal[0][1])
        if begin < self.last:
            self.journal.cut_from(draw.randint(begin + 1, self.last))

    @rule()
    def sync(self) -> None:
        self.promise(self.journal.sync)

    @rule(vote=st.sampled_from([None, "r1", "r2"]))
    def vote(self, vote: str | None) -> None:
        self.term += 1
        self.promise(lambda: self.journal.setCurrentTerm(self.term, vote))

    @precondition(lambda self: self.last > self.committed)
    @rule(draw=st.randoms(use_true_random=False))
    def commit(self, draw: random.Random) -> None:
        self.promise(self.journal.sync)
        self.committed = draw.randint(self.committed, self.last)

    @rule()
    def dump(self) -> None:
        self.promise(self.dump_or_nothing)

    def dump_or_nothing(self) -> None:
        self.compaction.want()
        event = self.compaction.begin(self.committed, 0.0)
        if isinstance(event, TakeDump):
            pieces = [state(event.position)]
            dump = write_dump(self.disk, TAKEN, event.position, b"", pieces)
            self.compaction.finish(dump, 0.0)

    @rule(ahead=st.integers(-5, 30))
    def receive(self, ahead: int) -> None:
        self.promise(self.journal.sync)
        index = max(self.committed + ahead, self.compaction.dumped.index + 1)
        held = index <= self.committed
        term = self.journal[index - self.journal[0][1]][2] if held else self.term
        self.committed = max(self.committed, index)
        self.promise(lambda: self.deliver(Position(term, index)))

    def deliver(self, position: Position) -> None:
        sent, offset = Sent(position), 0
        while offset < len(sent.file):
            offset = self.compaction.receive(sent.chunk(offset, 90), lambda _: None)
        self.aside.run()

    def promise(self, act: Any) -> None:
        act()
        self.durable = list(self.journal.entries)
        self.hard = (self.journal.term, self.journal.vote)

    @rule(
        doing=st.sampled_from(["sync", "vote", "dump", "receive", "nothing"]),
        steps=st.integers(0, 12),
        seed=st.integers(0, 2**32),
        power=st.booleans(),
    )
    def die(self, doing: str, steps: int, seed: int, power: bool) -> None:
        rng = random.Random(seed)
        self.steps_left = steps
        acts: dict[str, Any] = {
            "sync": self.journal.sync,
            "vote": lambda: self.vote("r3"),
            "dump": self.dump_or_nothing,
            "receive": lambda: self.deliver(Position(self.term, self.committed + 7)),
            "nothing": lambda: None,
        }
        attempted = list(self.journal.entries)
        try:
            acts[doing]()
            self.durable, self.hard = attempted, (self.journal.term, self.journal.vote)
            if doing == "nothing":
                self.durable, self.hard = self.promised
        except Died:
            pass
        self.steps_left = -1
        tried = (self.journal.term, self.journal.vote)
        self.disk.power_cut(rng) if power else self.disk.crash()
        self.load()
        self.check(attempted, tried)

    def check(self, attempted: list[Entry], tried: Hard) -> None:
        """What is there now is what was promised, or also some of what was tried."""
        found = self.compaction.dump
        reached = found.position.index if found else 1
        here = {entry[1]: entry for entry in self.journal.entries[1:]}
        kept = {entry[1]: entry for entry in self.durable[1:]}
        new = {entry[1]: entry for entry in attempted[1:]}
        for index, entry in here.items():
            assert entry in (kept.get(index), new.get(index), None) or index <= reached
        for index, entry in kept.items():
            if index > reached and new.get(index) == entry:
                assert here.get(index) == entry, f"{index} was lost"
        assert max(reached, self.last) >= self.committed
        assert (self.journal.term, self.journal.vote) in (self.hard, tried)
        if found is not None:
            assert b"".join(read_pieces(self.disk, found)) == state(found.position)
        self.committed = max(self.committed, reached)
        self.durable = list(self.journal.entries)
        self.hard = (self.journal.term, self.journal.vote)

    @invariant()
    def begins_where_a_dump_ends(self) -> None:
        if hasattr(self, "journal"):
            self.promised = (self.durable, self.hard)
            assert self.journal[0][1] <= max(self.compaction.dumped.index, 1)
