"""Seals, snapshots, backups and retention in the replicated state (rule R12)."""

from __future__ import annotations

import pytest

from cron.errors import InvariantViolated
from cron.history.segment import sections_of
from cron.launch_state import LaunchState
from cron.state import commands as c
from cron.state.archive import History, Stream
from cron.state.image import decode_state
from cron.state.imaging import Imaging, encode_state
from cron.state.outcome import Verdict
from cron.state.state import State
from cron.state.tail import RowsDamaged, Tail, content_digest
from launcher.protocol.status import Reason
from tests.batches import AttemptItem
from tests.states import ended_rows, is_imaging
from tests.unit.state_rig import T0, StateRig, image_of, image_parts, with_job


def ran(rig: StateRig, second: int, *, fails: bool = False) -> None:
    """Let one launch run to its end."""
    rig.to(second)
    rig.account(second)
    rig.begin(second)
    rig.launched(second)
    state = LaunchState.FAILED if fails else LaunchState.SUCCEEDED
    rig.finished(second, state=state, exit_code=int(fails))


def three_ran() -> StateRig:
    rig = with_job()
    ran(rig, 60)
    ran(rig, 120, fails=True)
    ran(rig, 180)
    return rig


def test_a_seal_makes_a_segment_of_each_stream_that_has_rows() -> None:
    rig = three_ran()
    outcome = rig.append(c.Seal(1))
    runs, failures = outcome.sealed
    assert (runs.record.stream, failures.record.stream) == (Stream.RUNS, Stream.FAILURES)
    assert [row.scheduled_s - T0 for row in Tail.of(runs.tail.whole()).all_rows()] == [60, 180]
    assert [row.scheduled_s - T0 for row in Tail.of(failures.tail.whole()).all_rows()] == [120]
    for sealed in outcome.sealed:
        record = sealed.record
        assert record.digest == content_digest(sealed.tail.whole())
        assert (record.from_index, record.to_index) == (0, rig.state.index)
        assert record.size == len(sealed.tail.whole())
        assert record.rows == len(Tail.of(sealed.tail.whole()).all_rows())
    assert (runs.record.first_s - T0, runs.record.last_s - T0) == (60, 180)
    assert rig.state.history.open_rows == 0
    assert ended_rows(rig.state.history) == []


def test_seals_meet_without_a_gap_and_the_rows_between_are_in_one_of_them() -> None:
    rig = three_ran()
    rig.append(c.Seal(1))
    ran(rig, 240)
    (second,) = rig.append(c.Seal(2)).sealed
    first = rig.state.history.segments[(1, 1, 0)]
    assert second.record.from_index == first.to_index
    assert second.record.key == (1, 2, 0)


@pytest.mark.parametrize(("number", "verdict"), [(0, "ALREADY"), (2, "WRONG_STATE")])
def test_a_seal_of_another_number_changes_nothing(number: int, verdict: str) -> None:
    rig = three_ran()
    with rig.unchanged():
        assert rig.answer(c.Seal(number)).verdict is Verdict[verdict]


def test_nothing_is_sealed_where_there_are_no_rows() -> None:
    rig = with_job()
    with rig.unchanged():
        assert rig.answer(c.Seal(1)).verdict is Verdict.WRONG_STATE


def test_two_replicas_seal_the_same_bytes_also_when_one_began_with_an_image() -> None:
    rig = three_ran()
    duplicate_id = StateRig(is_claimed=False)
    duplicate_id.machine.state = decode_state([encode_state(rig.state)])
    duplicate_id.log, duplicate_id.epoch, duplicate_id.at_ms = list(rig.log), rig.epoch, rig.at_ms
    ours, theirs = (
        [(one.record, sections_of(one.tail)) for one in each.append(c.Seal(1)).sealed]
        for each in (rig, duplicate_id)
    )
    assert ours == theirs
    assert encode_state(rig.state) == encode_state(duplicate_id.state)


def test_rows_of_the_entry_of_a_seal_are_sealed_with_it() -> None:
    rig = with_job()
    ran(rig, 60)
    rig.to(120).account(120)
    rig.begin(120)
    end = AttemptItem.of((1, T0 + 120, 0), 1, LaunchState.SUCCEEDED, Reason.NONE, 0, 1, 2)
    (sealed,) = rig.append(c.Seal(1), c.Report((end,))).sealed
    assert [row.scheduled_s - T0 for row in Tail.of(sealed.tail.whole()).all_rows()] == [60, 120]
    assert rig.state.history.open_rows == 0


def test_a_snapshot_is_noted_where_it_is_taken() -> None:
    rig = three_ran()
    assert rig.answer(c.SnapshotAt()).verdict is Verdict.ACCEPTED
    taken = rig.state.history.taken
    assert (taken.term, taken.index, taken.at_ms) == (1, rig.state.index, rig.at_ms)


def test_what_is_stored_may_leave_the_disks_and_nothing_else() -> None:
    rig = three_ran()
    rig.append(c.Seal(1))
    key = (1, 1, 0)
    assert rig.items(c.Retire(local=(key,))) == [Verdict.NOT_STORED]
    rig.append(c.BackedUp("s3://b", (key,)))
    assert rig.state.history.segments[key].is_stored
    assert rig.items(c.Retire(local=(key,))) == [Verdict.ACCEPTED]
    assert rig.items(c.Retire(local=(key, (9, 9, 9)))) == [
        Verdict.ALREADY,
        Verdict.UNKNOWN_SEGMENT,
    ]
    assert not rig.state.history.segments[key].is_local
    assert rig.items(c.Retire(gone=(key,))) == [Verdict.ACCEPTED]
    assert key not in rig.state.history.segments


def test_what_the_store_has_lost_is_stored_no_more() -> None:
    rig = three_ran()
    rig.append(c.Seal(1))
    keys = tuple(rig.state.history.segments)
    rig.append(c.BackedUp("s3://b", keys, 1, 1, rig.state.index, 5))
    backup = rig.state.history.backup
    rig.append(c.BackedUp("s3://b", missing=(keys[0], (9, 9, 9))))
    stored = [one.is_stored for one in rig.state.history.segments.values()]
    assert stored == [False] + [True] * (len(keys) - 1)
    assert rig.state.history.backup == backup, "the snapshot is there"
    assert rig.items(c.Retire(local=(keys[0],))) == [Verdict.NOT_STORED]


def test_another_store_has_nothing_yet() -> None:
    rig = three_ran()
    rig.append(c.Seal(1))
    rig.append(c.BackedUp("s3://a", ((1, 1, 0), (1, 1, 1)), 1, 1, rig.state.index, 5))
    rig.append(c.BackedUp("s3://b", ((1, 1, 1),)))
    stored = {key: one.is_stored for key, one in rig.state.history.segments.items()}
    assert stored == {(1, 1, 0): False, (1, 1, 1): True}
    assert (rig.state.history.backup.store, rig.state.history.backup.index) == ("s3://b", 0)


def test_an_older_snapshot_does_not_take_the_place_of_a_newer_one() -> None:
    rig = three_ran()
    rig.append(c.BackedUp("s3://a", (), 1, 1, 9, 5))
    rig.append(c.BackedUp("s3://a", (), 1, 1, 7, 4))
    assert rig.state.history.backup.index == 9
    rig.append(c.BackedUp("s3://a", (), 2, 1, 8, 4))
    assert rig.state.history.backup.index == 8, "another generation is newer"


def test_bytes_that_are_no_rows_are_refused() -> None:
    rig = three_ran()
    content = rig.append(c.Seal(1)).sealed[0].tail.whole()
    for damaged in (b"", content[:-1], b"\x00" + content[1:], b"\xdd\xff\xff\xff\xff"):
        with pytest.raises(RowsDamaged):
            Tail.of(damaged).all_rows()


def test_history_that_lacks_a_tail_is_refused() -> None:
    head, *parts = image_parts(encode_state(three_ran().state))
    tails = State.__struct_fields__.index("history"), History.__struct_fields__.index("tails")
    del head[2][tails[0]][tails[1]][1]
    with pytest.raises(InvariantViolated):
        decode_state([image_of([head, *parts])])


def test_two_images_may_be_under_way_and_each_is_of_its_moment() -> None:
    rig = three_ran()
    before = encode_state(rig.state)
    first = Imaging.begin(rig.state)
    ran(rig, 240)
    middle = encode_state(rig.state)
    second = Imaging.begin(rig.state)
    ran(rig, 300)
    assert b"".join(second.pieces()) == middle
    ran(rig, 360)
    assert b"".join(first.pieces()) == before
    assert not is_imaging(rig.state)


def test_an_image_that_nobody_asks_for_is_forgotten() -> None:
    rig = three_ran()
    imaging: Imaging | None = Imaging.begin(rig.state)
    assert is_imaging(rig.state)
    imaging = None
    ran(rig, 240)
    assert not is_imaging(rig.state)
    assert imaging is None
    assert rig.state.imagings == []


def test_a_state_without_history_has_an_image() -> None:
    assert decode_state([encode_state(State())]).history.seals == 0
