"""Dumps: proven by their digest, in force only when whole, and never ahead of the journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from consensus.engine.compaction import Compaction
from consensus.engine.config import EngineConfig
from consensus.engine.handover import Dumped, TakeDump
from consensus.engine.loading import load
from consensus.engine.network.wire import DumpChunk
from consensus.engine.settings import Files
from consensus.engine.storage.dump import Dump, Incoming, read_dump, write_taken
from consensus.engine.storage.journal import FileJournal
from consensus.errors import LogDamaged
from consensus.leadership import Position

DUMP = Dump(Position(3, 90), b"state " * 1000)


def written(path: Path, dump: Dump = DUMP) -> bytes:
    write_taken(path, dump)
    return path.read_bytes()


def test_a_dump_comes_back(tmp_path: Path) -> None:
    written(tmp_path / "dump")
    assert read_dump(tmp_path / "dump") == DUMP


def test_an_empty_state_is_a_state(tmp_path: Path) -> None:
    empty = Dump(Position(1, 2), b"")
    written(tmp_path / "dump", empty)
    assert read_dump(tmp_path / "dump") == empty


def test_any_flipped_bit_and_any_missing_end_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    content = written(path, Dump(Position(3, 90), b"state"))
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(LogDamaged):
            read_dump(path)
        path.write_bytes(content[:place])
        with pytest.raises(LogDamaged):
            read_dump(path)


def pieces(content: bytes, size: int = 1000) -> list[tuple[int, bytes]]:
    return [(start, content[start : start + size]) for start in range(0, len(content), size)]


def test_a_dump_in_pieces_is_whole_only_at_its_end(tmp_path: Path) -> None:
    content = written(tmp_path / "dump")
    incoming = Incoming(tmp_path / "incoming")
    target = (3, 90, len(content))
    *first, last = pieces(content)
    for offset, piece in first:
        assert incoming.take(target, offset, piece) is None
        assert incoming.offset == offset + len(piece)
    assert incoming.take(target, *last) == DUMP


def test_lost_and_repeated_pieces_change_nothing(tmp_path: Path) -> None:
    # S11: a chunk lost at a reconnect went unnoticed, and a short dump replaced the good one
    content = written(tmp_path / "dump")
    incoming = Incoming(tmp_path / "incoming")
    target = (3, 90, len(content))
    parts = pieces(content)
    incoming.take(target, *parts[0])
    incoming.take(target, *parts[2])
    assert incoming.offset == 1000
    incoming.take(target, *parts[0])
    assert incoming.offset == 1000
    for part in parts[1:-1]:
        incoming.take(target, *part)
    assert incoming.take(target, *parts[-1]) == DUMP


def test_a_corrupt_dump_is_dropped_and_asked_for_again(tmp_path: Path) -> None:
    content = written(tmp_path / "dump")
    incoming = Incoming(tmp_path / "incoming")
    target = (3, 90, len(content))
    for offset, piece in pieces(content[:-1] + b"!"):
        assert incoming.take(target, offset, piece) is None
    assert incoming.offset == 0
    assert not (tmp_path / "incoming").exists()
    results = [incoming.take(target, *part) for part in pieces(content)]
    assert results[-1] == DUMP


def test_a_dump_for_another_position_than_announced_is_refused(tmp_path: Path) -> None:
    content = written(tmp_path / "dump")
    incoming = Incoming(tmp_path / "incoming")
    assert incoming.take((3, 91, len(content)), 0, content) is None
    assert incoming.offset == 0


def test_a_newer_dump_replaces_one_that_was_coming(tmp_path: Path) -> None:
    content = written(tmp_path / "dump")
    newer = Dump(Position(4, 95), b"newer")
    other = written(tmp_path / "other", newer)
    incoming = Incoming(tmp_path / "incoming")
    incoming.take((3, 90, len(content)), 0, content[:1000])
    assert incoming.take((4, 95, len(other)), 0, other) == newer


def test_a_dump_over_the_limit_is_not_even_begun(tmp_path: Path) -> None:
    incoming = Incoming(tmp_path / "incoming")
    assert incoming.take((3, 90, 2**40), 0, b"x") is None
    assert not (tmp_path / "incoming").exists()


class Rig:
    """A replica's files with `count` entries of term 1 in its journal."""

    def __init__(self, directory: Path, count: int = 100) -> None:
        self.files = Files(directory / "journal", directory / "dump")
        self.journal = FileJournal(self.files.journal, "r1")
        for index in range(1, count + 1):
            self.journal.add(b"entry %d" % index, index, min(index - 1, 1))
        self.journal.sync()
        config = EngineConfig(
            replica="r1",
            peers={"r1": "127.0.0.1:1"},
            data=str(directory),
            snapshot_entries=50,
            trailing_entries=10,
        )
        self.compaction = Compaction(config, self.journal, self.files, Position())

    def dump(self, applied: int) -> Dumped:
        event = self.compaction.begin(applied, 0.0)
        assert isinstance(event, TakeDump)
        write_taken(self.files.taken, Dump(event.position, b"state at %d" % applied))
        return self.compaction.finish(event.position, None, 0.0)


def test_a_dump_is_due_after_so_many_entries_and_one_at_a_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.compaction.begin(49, 0.0) is None
    assert rig.compaction.begin(50, 0.0) == TakeDump(Position(1, 50))
    assert rig.compaction.begin(99, 0.0) is None


def test_entries_before_the_dump_go_but_for_the_trailing_ones(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.dump(60) == Dumped(Position(1, 60), None)
    assert rig.journal[0][1] == 50
    assert rig.journal[-1][1] == 100
    journal, dump = load(rig.files, "r1")
    assert journal.entries == rig.journal.entries
    assert dump == Dump(Position(1, 60), b"state at 60")


def test_a_dump_that_was_not_written_lets_nothing_go_and_waits(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    event = rig.compaction.begin(60, 5.0)
    assert isinstance(event, TakeDump)
    error = OSError(28, "no space")
    assert rig.compaction.finish(event.position, error, 5.0) == Dumped(Position(), error)
    assert len(rig.journal) == 100
    assert not rig.files.dump.exists()
    assert rig.compaction.begin(60, 6.0) is None
    assert rig.compaction.begin(60, 16.0) is not None


def test_a_wanted_dump_with_nothing_new_is_the_one_that_is_there(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.dump(60)
    rig.compaction.want()
    assert rig.compaction.begin(60, 0.0) == Dumped(Position(1, 60), None)
    assert rig.compaction.begin(60, 0.0) is None
    rig.compaction.want()
    assert rig.compaction.begin(61, 0.0) == TakeDump(Position(1, 61))


def test_a_crash_between_dump_and_journal_loses_no_entry(tmp_path: Path) -> None:
    # S5a: stock PySyncObj clears the journal when the dump is newer than it
    rig = Rig(tmp_path)
    write_taken(rig.files.taken, Dump(Position(1, 60), b"state"))
    rig.files.taken.rename(rig.files.dump)
    journal, dump = load(rig.files, "r1")
    assert dump is not None
    assert journal.entries == rig.journal.entries


def chunk(content: bytes, index: int, term: int) -> DumpChunk:
    return DumpChunk(5, index, term, len(content), 0, 0, content)


def test_a_received_dump_replaces_a_journal_that_does_not_reach_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path, count=20)
    sent = Dump(Position(3, 90), b"leader's state")
    content = written(tmp_path / "sent", sent)
    assert rig.compaction.receive(chunk(content, 90, 3)) == sent
    assert rig.compaction.dumped == Position(3, 90)
    journal, dump = load(rig.files, "r1")
    assert dump == sent
    assert [entry[1:] for entry in journal.entries] == [(90, 3)]


def test_a_received_dump_keeps_the_tail_that_continues_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path, count=100)
    content = written(tmp_path / "sent", Dump(Position(1, 90), b"leader's state"))
    assert rig.compaction.receive(chunk(content, 90, 1)) is not None
    assert rig.journal[-1][1] == 100


def test_an_own_dump_that_was_overtaken_does_not_replace_the_newer_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    event = rig.compaction.begin(60, 0.0)
    assert isinstance(event, TakeDump)
    write_taken(rig.files.taken, Dump(event.position, b"old"))
    sent = Dump(Position(1, 90), b"leader's state")
    rig.compaction.receive(chunk(written(tmp_path / "sent", sent), 90, 1))
    assert rig.compaction.finish(event.position, None, 0.0) == Dumped(Position(1, 90), None)
    assert read_dump(rig.files.dump) == sent


def test_a_journal_that_begins_after_the_dump_is_reported(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.dump(60)
    rig.files.dump.unlink()
    with pytest.raises(LogDamaged, match="missing"):
        load(rig.files, "r1")
    write_taken(rig.files.dump, Dump(Position(1, 20), b"an older dump"))
    with pytest.raises(LogDamaged, match="begins at 50"):
        load(rig.files, "r1")
