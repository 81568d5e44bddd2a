"""What a start makes of the files, whatever moment the replica died in."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

import consensus.engine.storage.incoming as incoming_module
from consensus.engine.loading import Loaded, load
from consensus.engine.storage.dump import read_pieces, write_dump
from consensus.errors import (
    ConsensusError,
    DiskFull,
    LogDamaged,
    NoData,
    UnknownFormat,
)
from consensus.leadership import Position
from consensus.limits import ROOM_BYTES_MIN
from tests.fakes.memory_disk import MemoryDisk
from tests.unit.storage_rig import CONFIG, Rig, Sent, created, fill, segments, state, whole


def loaded(disk: MemoryDisk, start: str = "resume") -> Loaded:
    config = msgspec.structs.replace(CONFIG, start=start)  # type: ignore[arg-type]
    return load(disk, config, lambda: 99)


def test_an_empty_directory_is_refused_unless_its_meaning_is_said() -> None:
    with pytest.raises(NoData, match="r1: empty") as caught:
        loaded(MemoryDisk("r1"))
    assert "--join" in caught.value.hint


@pytest.mark.parametrize(("start", "joins"), [("bootstrap", False), ("join", True)])
def test_an_empty_directory_begins_as_it_was_told(start: str, joins: bool) -> None:
    disk = MemoryDisk()
    made = loaded(disk, start)
    assert (whole(made.journal), made.dump) == ([(b"\x01", 1, 0)], None)
    assert made.journal.identity.token == 99
    assert made.journal.identity.joins is joins
    again = loaded(disk, "resume")
    assert again.journal.identity == made.journal.identity


def test_how_to_start_means_nothing_to_a_directory_that_is_not_empty() -> None:
    disk = MemoryDisk()
    loaded(disk, "bootstrap").journal.setCurrentTerm(4, "r1")
    for start in ("join", "bootstrap"):
        journal = loaded(disk, start).journal
        assert (journal.term, journal.identity.joins) == (4, False)


def test_what_a_refused_start_left_begins_anew_as_it_is_told_now() -> None:
    """Killed before it was refused: nobody has a vote or an entry of it."""
    disk = MemoryDisk()
    loaded(disk, "bootstrap").journal._destroy()
    assert loaded(disk, "join").journal.identity.joins
    loaded(disk, "join").journal.setCurrentTerm(4, "r1")
    assert loaded(disk, "bootstrap").journal.term == 4


def test_a_new_disk_that_joins_keeps_its_token_which_the_others_may_know() -> None:
    disk = MemoryDisk()
    made = loaded(disk, "join").journal.identity
    again = load(disk, msgspec.structs.replace(CONFIG, start="join"), lambda: 55)
    assert again.journal.identity == made


def test_a_dump_without_a_journal_is_not_an_empty_directory() -> None:
    disk = MemoryDisk("r1")
    write_dump(disk, "dump", Position(3, 9), b"", [b"state"])
    for start in ("join", "bootstrap", "resume"):
        with pytest.raises(LogDamaged, match="journal is missing") as caught:
            loaded(disk, start)
        assert "--join" in caught.value.hint


PEERS = {name: f"127.0.0.1:{n}" for n, name in enumerate(("r1", "r2", "r3"), 1)}


def test_a_damaged_disk_proposes_a_replacement_only_where_the_others_have_a_leader() -> None:
    # With two damaged disks of three there is none, and a replica that starts sees its own only.
    rig = Rig()
    rig.dump(60)
    rig.disk.put("dump", rig.disk.content("dump")[:-1])
    config = msgspec.structs.replace(CONFIG, peers=PEERS)
    with pytest.raises(LogDamaged) as caught:
        load(rig.disk, config, lambda: 99)
    before, asked, after = caught.value.hint.partition("while the other replicas have a leader")
    assert "replica replace" not in before
    assert asked
    assert "without a leader that is refused" in after
    assert "`raftcron restore`" in after
    assert "--from-data" in after


def test_the_only_replica_of_a_cell_is_told_of_no_replacement() -> None:
    rig = Rig()
    rig.dump(60)
    rig.disk.put("dump", rig.disk.content("dump")[:-1])
    with pytest.raises(LogDamaged) as damaged:
        load(rig.disk, CONFIG, lambda: 99)
    with pytest.raises(NoData) as empty:
        loaded(MemoryDisk("r1"))
    for error in (damaged.value, empty.value):
        assert "replica replace" not in error.hint
        assert "`raftcron restore`" in error.hint


def test_the_journal_of_a_pre_release_is_refused_and_kept() -> None:
    disk = MemoryDisk("r1")
    disk.put("journal", b"RCJOURN1" + b"x" * 100)
    with pytest.raises(UnknownFormat, match="r1/journal: written by a pre-release") as caught:
        loaded(disk, "bootstrap")
    assert "empty directories" in caught.value.hint
    assert disk.names() == ["journal"]


def test_a_damaged_dump_is_never_taken_for_none() -> None:
    rig = Rig()
    rig.dump(60)
    content = bytearray(rig.disk.content("dump"))
    content[-50] ^= 1
    rig.disk.put("dump", bytes(content))
    with pytest.raises(LogDamaged, match="memory/dump: the dump fails its digest"):
        rig.loaded()


def test_without_room_a_replica_does_not_start_and_nothing_is_lost() -> None:
    disk = MemoryDisk("r1")
    entries = whole(fill(created(disk), 9))
    disk.put("dump.taken", b"x" * 1000)
    disk.put("dump.incoming", b"x" * 1000)
    disk.room = ROOM_BYTES_MIN - 2001
    with pytest.raises(DiskFull, match="r1: disk full: 167"):
        loaded(disk)
    disk.put("dump.incoming", b"x" * 1000)
    disk.room = ROOM_BYTES_MIN - 1000
    assert whole(loaded(disk).journal) == entries
    assert "dump.incoming" not in disk.names(), "what can be sent again makes room"
    with pytest.raises(DiskFull):
        loaded(MemoryDisk(room=1000), "bootstrap")


def test_a_dump_ahead_of_the_journal_is_where_the_log_begins_anew() -> None:
    disk = MemoryDisk()
    fill(created(disk), 20)
    write_dump(disk, "dump", Position(5, 90), b"", [b"state"])
    again = loaded(disk)
    assert [entry[1:] for entry in whole(again.journal)] == [(90, 5)]
    assert [entry[1:] for entry in whole(loaded(disk).journal)] == [(90, 5)]


class Died(Exception):
    """The process was killed, or the power went, before a step."""


def own_dump(rig: Rig) -> None:
    rig.dump(25)


def leaders_dump_ahead(rig: Rig) -> None:
    Sent(Position(7, 500)).deliver(rig, 40)


def leaders_dump_inside(rig: Rig) -> None:
    Sent(Position(1, 20)).deliver(rig, 40)


def overtaken_dump(rig: Rig) -> None:
    taken = rig.write(rig.begin(25))
    Sent(Position(7, 500)).deliver(rig, 40)
    rig.compaction.finish(taken, 0.0)


def votes_and_entries(rig: Rig) -> None:
    rig.journal.setCurrentTerm(9, "r3")
    fill(rig.journal, 60, 9)


def cut_and_another(rig: Rig) -> None:
    rig.journal.cut_from(28)
    fill(rig.journal, 45, 9)


ACTS: list[Callable[[Rig], None]] = [
    own_dump,
    leaders_dump_ahead,
    leaders_dump_inside,
    overtaken_dump,
    votes_and_entries,
    cut_and_another,
]
KEPT = {cut_and_another: 27}


def prepared() -> Rig:
    rig = Rig(30)
    rig.compaction.want()
    return rig


def check(rig: Rig, before: list[tuple[bytes, int, int]], kept: int) -> None:
    """Whatever became of the last act: what was promised is in dump or journal."""
    found = rig.restart()
    reached = found.dump.position.index if found.dump else 1
    here = {entry[1]: entry for entry in whole(found.journal)}
    for entry in before[1:]:
        index = entry[1]
        if reached < index <= kept:
            assert here.get(index) == entry
    assert max(reached, found.journal[-1][1]) >= kept
    if found.dump is not None:
        content = b"".join(read_pieces(rig.disk, found.dump))
        assert content == state(found.dump.position)
    fill(rig.journal, rig.journal[-1][1] + 9, 11)
    entries = whole(rig.journal)
    assert whole(rig.restart().journal) == entries, "it goes on"
    leftover = set(rig.disk.names()) - set(segments(rig.disk))
    assert leftover <= {"dump", "dump.incoming", "dump.marks"}


@pytest.mark.parametrize("act", ACTS)
def test_dying_before_any_step_of_anything_loses_nothing_that_was_promised(
    act: Callable[[Rig], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming_module, "DUMP_SYNC_BYTES", 60)
    died = 0
    for steps in range(200):
        rigs = [prepared() for _ in range(4)]
        for number, rig in enumerate(rigs):
            before = whole(rig.journal)
            kept = KEPT.get(act, 30)
            left = steps

            def step(_act: str, _name: str) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Died

            rig.disk.before = step
            try:
                act(rig)
            except Died:
                died += 1
            else:
                assert died > 5, "nothing was tried"
                return
            if number:
                rig.disk.power_cut(random.Random(100 * steps + number))
            check(rig, before, kept)
    pytest.fail("it does not end")


def test_a_failing_disk_at_the_start_is_not_an_empty_directory() -> None:
    rig = Rig()
    rig.disk.fail_sync()
    with pytest.raises(OSError, match="injected"):
        rig.loaded()


@pytest.mark.parametrize("name", ["wal-0", "wal-x", "lost+found", "wal-00000000000000000001.old"])
def test_what_is_not_ours_is_left_alone(name: str) -> None:
    disk = MemoryDisk()
    created(disk)
    disk.put(name, b"x")
    try:
        loaded(disk)
    except ConsensusError as error:
        pytest.fail(str(error))
    assert disk.content(name) == b"x"


def test_a_founder_that_is_started_again_keeps_its_token_which_the_first_entry_may_name() -> None:
    """The leader writes the tokens of all that it has heard, also of who has no entry yet."""
    disk = MemoryDisk()
    made = loaded(disk, "bootstrap").journal.identity
    again = load(disk, msgspec.structs.replace(CONFIG, start="bootstrap"), lambda: 55)
    assert again.journal.identity == made
