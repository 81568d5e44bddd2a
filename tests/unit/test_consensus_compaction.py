"""Dumps come into force only when whole, let only whole segments go, and never go back."""

from __future__ import annotations

import pytest

from consensus.engine.handover import Dumped, TakeDump
from consensus.errors import LogDamaged
from consensus.leadership import Position
from tests.unit.storage_rig import TINY, Rig, Sent, fill, segments, state, whole


def test_a_dump_is_due_after_so_many_entries_and_one_at_a_time() -> None:
    rig = Rig()
    assert rig.compaction.begin(49, 0.0) is None
    assert rig.compaction.begin(50, 0.0) == TakeDump(Position(1, 50))
    assert rig.compaction.begin(99, 0.0) is None


def test_entries_before_the_dump_go_but_for_the_trailing_ones() -> None:
    rig = Rig()
    before = len(segments(rig.disk))
    assert rig.dump(60) == Dumped(Position(1, 60), None)
    assert (rig.journal[0][1], rig.journal[-1][1]) == (50, 100)
    assert len(segments(rig.disk)) < before
    live = whole(rig.journal)
    loaded = rig.restart()
    assert loaded.dump == rig.compaction.dump
    assert rig.in_force() == b"state at 60"
    assert whole(loaded.journal)[-50:] == live[1:]
    assert 40 < loaded.journal[0][1] <= 50, "whole segments stay"


def test_nothing_that_was_written_is_written_again() -> None:
    rig = Rig()
    before = {name: rig.disk.content(name) for name in segments(rig.disk)}
    rig.dump(60)
    after = {name: rig.disk.content(name) for name in segments(rig.disk)}
    assert after.items() < before.items()


def test_the_journal_is_as_small_as_its_segments_say() -> None:
    rig = Rig()
    sizes = []
    for upto in range(200, 1200, 100):
        rig.dump(upto - 105)
        fill(rig.journal, upto, 1)
        sizes.append(rig.journal.size_bytes)
        assert rig.journal.size_bytes == sum(
            len(rig.disk.content(name)) for name in segments(rig.disk)
        )
    assert max(sizes) <= 30 * TINY * 2
    assert len({name for name in rig.disk.names() if not name.startswith("wal-")}) == 1


def test_a_dump_that_was_not_written_lets_nothing_go_and_waits() -> None:
    rig = Rig()
    rig.begin(60)
    error = OSError(28, "no space")
    assert rig.compaction.finish(error, 5.0) == Dumped(Position(), error)
    assert len(rig.journal) == 100
    assert "dump" not in rig.disk.names()
    assert rig.compaction.begin(60, 6.0) is None
    assert rig.compaction.begin(60, 16.0) is not None


def test_a_wanted_dump_with_nothing_new_is_the_one_that_is_there() -> None:
    rig = Rig()
    rig.compaction.want()
    assert rig.compaction.begin(20, 0.0) == TakeDump(Position(1, 20))
    rig.compaction.finish(rig.write(Position(1, 20)), 0.0)
    rig.compaction.want()
    assert rig.compaction.begin(20, 0.0) == Dumped(Position(1, 20), None)
    assert rig.compaction.begin(20, 0.0) is None


def test_a_journal_that_grew_is_a_reason_too() -> None:
    rig = Rig()
    rig.dump(100)
    rig.journal.add(b"x" * (64 * 1024 * 1024), 101, 1)
    rig.journal.sync()
    assert rig.compaction.begin(101, 0.0) == TakeDump(Position(1, 101))


def test_a_received_dump_replaces_a_journal_that_does_not_reach_it() -> None:
    rig = Rig(count=20)
    sent = Sent(Position(3, 90))
    (done,) = sent.deliver(rig, 64)
    assert done == rig.compaction.dump
    assert (done.position, done.members) == (Position(3, 90), b"members")
    assert [entry[1:] for entry in whole(rig.journal)] == [(90, 3)]
    assert rig.in_force() == state(done.position)
    loaded = rig.restart()
    assert loaded.dump == done
    assert [entry[1:] for entry in whole(loaded.journal)] == [(90, 3)]
    assert sorted(set(rig.disk.names()) - set(segments(rig.disk))) == ["dump"]


def test_a_received_dump_keeps_the_tail_that_continues_it() -> None:
    rig = Rig()
    assert len(Sent(Position(1, 90)).deliver(rig)) == 1
    assert rig.journal[-1][1] == 100


def test_nothing_is_in_force_before_it_was_checked() -> None:
    rig = Rig(count=20)
    rig.compaction.receive(Sent(Position(3, 90)).chunk(0), lambda _: None)
    then = rig.aside.work()
    assert rig.compaction.dump is None
    assert rig.journal[-1][1] == 20
    then()
    assert rig.compaction.dumped == Position(3, 90)


def test_an_own_dump_that_was_overtaken_does_not_replace_the_newer_one() -> None:
    rig = Rig()
    taken = rig.write(rig.begin(60))
    Sent(Position(1, 90)).deliver(rig)
    assert rig.compaction.finish(taken, 0.0) == Dumped(Position(1, 90), None)
    assert rig.in_force() == b"state at 90"
    assert "dump.taken" not in rig.disk.names()


def test_a_dump_from_the_leader_that_was_overtaken_is_dropped() -> None:
    rig = Rig()
    sent = Sent(Position(1, 60))
    called: list[object] = []
    rig.compaction.receive(sent.chunk(0, 50), called.append)
    rig.dump(80)
    assert rig.compaction.incoming.target is None
    rig.compaction.receive(sent.chunk(0), called.append)
    rig.aside.run()
    assert called == []
    assert rig.in_force() == b"state at 80"
    assert "dump.incoming" not in rig.disk.names()


def test_what_was_coming_and_is_old_by_now_is_dropped_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("consensus.engine.storage.incoming.DUMP_SYNC_BYTES", 10)
    rig = Rig()
    rig.compaction.receive(Sent(Position(1, 60)).chunk(0, 50), lambda _: None)
    rig.aside.run()
    rig.restart()
    assert rig.compaction.incoming.target is not None
    rig.compaction.receive(Sent(Position(1, 60)).chunk(50, 10), lambda _: None)
    taken = rig.write(Position(1, 80))
    rig.disk.rename(taken.name, "dump")
    rig.restart()
    assert rig.compaction.incoming.target is None


def test_a_disk_that_fails_while_a_dump_comes_into_force_stops_the_replica() -> None:
    rig = Rig()
    taken = rig.write(rig.begin(60))
    rig.disk.fail_sync()
    with pytest.raises(OSError, match="injected"):
        rig.compaction.finish(taken, 0.0)


def test_a_journal_that_begins_after_the_dump_is_reported() -> None:
    rig = Rig()
    rig.dump(60)
    rig.disk.remove("dump")
    with pytest.raises(LogDamaged, match="missing, but the journal begins at"):
        rig.loaded()
    rig.write(Position(1, 20))
    rig.disk.rename("dump.taken", "dump")
    with pytest.raises(LogDamaged, match="up to 20, but the journal begins at"):
        rig.loaded()


def test_the_tick_thread_lets_go_of_no_great_file() -> None:
    rig = Rig()
    rig.dump(60)
    rig.compaction.want()
    taken = rig.write(rig.begin(100))
    acts: list[str] = []
    rig.disk.before = lambda act, name: acts.append(f"{act} {name}".strip())
    rig.compaction.finish(taken, 0.0)
    assert acts == ["rename dump.taken dump", "sync_names"]
    names = segments(rig.disk)
    rig.aside.run()
    removals = [act.split()[0] for act in acts[2:] if act.startswith(("remove wal", "sync"))]
    assert removals == ["remove", "sync_names"] * (len(removals) // 2), "each before the next"
    assert len(segments(rig.disk)) < len(names)


def test_old_segments_that_cannot_be_removed_are_tried_again_in_order() -> None:
    rig = Rig()
    names = segments(rig.disk)
    taken = rig.write(rig.begin(60))

    def before(act: str, name: str) -> None:
        if act == "remove" and name == names[2]:
            raise OSError(5, "injected")

    rig.disk.before = before
    rig.compaction.finish(taken, 0.0)
    rig.aside.run()
    assert segments(rig.disk) == names[2:], "a later one would leave a gap"
    assert rig.restart().journal[-1][1] == 100
    rig.compaction.want()
    rig.dump(100)
    assert names[2] not in segments(rig.disk)
