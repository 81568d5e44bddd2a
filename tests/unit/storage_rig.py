"""A replica's disk, for the tests of what is on it: journals, chunks, work that is done aside."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from consensus.config import EngineConfig
from consensus.engine.compaction import Compaction
from consensus.engine.handover import Dumped, TakeDump
from consensus.engine.loading import Loaded, load
from consensus.engine.network.wire import DumpChunk
from consensus.engine.storage.dump import TAKEN, Dump, write_dump
from consensus.engine.storage.journal import FileJournal
from consensus.engine.storage.records import Entry
from consensus.engine.storage.segments import Identity
from consensus.leadership import Position
from tests.fakes.memory_disk import MemoryDisk

T = TypeVar("T")
BASE_COMMAND = b"\x01"
"""What stands for the content of a log's base: the engine's no-op."""
IDENTITY = Identity("default", "r1", 77, joins=False)
CONFIG = EngineConfig(
    replica="r1",
    peers={"r1": "127.0.0.1:1"},
    data="unused",
    start="bootstrap",
    snapshot_entries=50,
    trailing_entries=10,
)
TINY = 300
"""Bytes of a segment: two or three frames."""


class Later:
    """Work aside that is done when the test says so; what follows in the tick thread too."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], object], Callable[[object], None]]] = deque()

    def __call__(self, work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
        self.waiting.append((work, then))  # type: ignore[arg-type]

    def work(self) -> Callable[[], None]:
        """Do the oldest piece of work; return what is still to be told to the tick thread."""
        work, then = self.waiting.popleft()
        result: object
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - handed on, as the real one does
            result = error
        return partial(then, result)

    def run(self) -> None:
        """Do all of it."""
        while self.waiting:
            self.work()()


def at_once(work: Callable[[], T], then: Callable[[T | Exception], None]) -> None:
    """Do work at once, in the same thread."""
    later = Later()
    later(work, then)
    later.run()


def created(disk: MemoryDisk, *, segment_bytes: int = 2**20) -> FileJournal:
    return FileJournal.create(disk, IDENTITY, segment_bytes=segment_bytes)


def opened(disk: MemoryDisk, *, segment_bytes: int = 2**20) -> FileJournal:
    return FileJournal.open(disk, "r1", "default", segment_bytes=segment_bytes)


def whole(journal: FileJournal) -> list[Entry]:
    """Return all entries, beginning with the point that has no content."""
    log = journal.log
    found: list[Entry] = [(BASE_COMMAND, log.begin, log.term_at(log.begin))]
    return found + log.read(log.begin + 1, log.last, 2**62)


def fill(journal: FileJournal, upto: int, term: int = 3, *, each: bool = True) -> FileJournal:
    """Append `entry N` up to the index `upto`; `each` in a frame of its own."""
    for index in range(journal[-1][1] + 1, upto + 1):
        journal.add(b"entry %d" % index, index, term)
        if each:
            journal.sync()
    journal.sync()
    return journal


def forget(journal: FileJournal, index: int) -> None:
    """Let go of what is before `index`, on the disk too."""
    journal.forget_before(index)
    journal.remove_obsolete()


def segments(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.names() if name.startswith("wal-")]


class Rig:
    """A replica whose journal has entries up to index `count`, the ones after 1 of term 1."""

    def __init__(self, count: int = 100, *, segment_bytes: int = TINY) -> None:
        self.disk = MemoryDisk()
        self.segment_bytes = segment_bytes
        self.aside = Later()
        self.take(self.loaded())
        fill(self.journal, count, 1)

    def loaded(self) -> Loaded:
        return load(self.disk, CONFIG, lambda: 77, segment_bytes=self.segment_bytes)

    def take(self, loaded: Loaded) -> None:
        self.journal = loaded.journal
        self.compaction = Compaction(CONFIG, self.journal, self.disk, loaded.dump, self.aside)

    def restart(self) -> Loaded:
        """Kill the process and start it again."""
        self.disk.crash()
        self.aside.waiting.clear()
        loaded = self.loaded()
        self.take(loaded)
        return loaded

    def begin(self, applied: int) -> Position:
        event = self.compaction.begin(applied, 0.0)
        assert isinstance(event, TakeDump)
        return event.position

    def write(self, position: Position) -> Dump:
        return write_dump(self.disk, TAKEN, position, b"members", [state(position)])

    def dump(self, applied: int) -> Dumped:
        done = self.compaction.finish(self.write(self.begin(applied)), 0.0)
        self.aside.run()
        return done


def state(position: Position) -> bytes:
    return b"state at %d" % position.index


class Sent:
    """A leader's dump, as its file's chunks."""

    def __init__(self, position: Position, content: bytes | None = None) -> None:
        self.disk = MemoryDisk()
        pieces = [state(position) if content is None else content]
        self.dump = write_dump(self.disk, "dump", position, b"members", pieces)
        self.file = self.disk.content("dump")

    def chunk(self, offset: int, count: int | None = None) -> DumpChunk:
        end = len(self.file) if count is None else offset + count
        index, term = self.dump.position.index, self.dump.position.term
        return DumpChunk(
            5, index, term, len(self.file), offset, 0, self.file[offset:end], self.dump.digest
        )

    def deliver(self, rig: Rig, count: int = 2**40) -> list[Dump]:
        """Send it as the follower asks, until it wants nothing more; return what was installed."""
        done: list[Dump] = []
        offset = 0
        while offset < len(self.file):
            offset = rig.compaction.receive(self.chunk(offset, count), done.append)
        rig.aside.run()
        return done
