"""Recent rows: bounded, deterministic, cheap to snapshot."""

from __future__ import annotations

import pytest

from cron.errors import InvariantViolated
from cron.state.recent import RecentRows, RowsDamaged
from cron.state.rows import Row, RowKind
from launcher.launch import LaunchState, Reason


def row(index: int, scheduled_s: int | None = None) -> Row:
    return Row(
        kind=RowKind.ENDED,
        job="default/backup",
        revision=1,
        scheduled_s=index * 60 if scheduled_s is None else scheduled_s,
        trigger=0,
        attempt=1,
        state=LaunchState.SUCCEEDED,
        reason=Reason.NONE,
        ended_index=index,
        ended_at_ms=index * 60_000,
    )


def filled(count: int, rows_per_chunk: int = 4, chunks_max: int = 3) -> RecentRows:
    recent = RecentRows(rows_per_chunk, chunks_max)
    for index in range(1, count + 1):
        recent.append(row(index))
    return recent


def test_all_rows_come_back_in_log_order_until_the_bound() -> None:
    recent = filled(14)
    assert len(recent) == 14
    assert list(recent.rows_after(0)) == [row(index) for index in range(1, 15)]
    assert recent.gap_after(0) is None


@pytest.mark.parametrize("after", range(16))
def test_rows_after_an_index_are_exactly_the_later_ones(after: int) -> None:
    assert [r.ended_index for r in filled(14).rows_after(after)] == list(range(after + 1, 15))


def test_the_oldest_chunk_is_dropped_whole() -> None:
    assert len(filled(15)) == 15
    recent = filled(16)  # the fourth chunk is sealed, so the first goes
    assert len(recent) == 12
    assert [r.ended_index for r in recent.rows_after(0)] == list(range(5, 17))
    assert (recent.dropped_rows, recent.dropped_up_to) == (4, 4)


def test_what_was_dropped_and_not_seen_is_a_gap() -> None:
    recent = filled(16)
    assert recent.gap_after(2) == (2, 4)
    assert recent.gap_after(4) is None


def test_memory_is_bounded_however_many_rows_are_appended() -> None:
    recent = filled(10_000)
    assert len(recent) <= 3 * 4 + 3
    assert recent.last_index == 10_000
    assert recent.dropped_rows + len(recent) == 10_000


def test_equal_rows_make_equal_bytes_also_through_a_snapshot() -> None:
    whole = filled(30)
    for cut in range(30):
        first = filled(cut)
        restored = RecentRows.decode(first.encode())
        assert restored.encode() == first.encode()
        for index in range(cut + 1, 31):
            restored.append(row(index))
        assert restored.encode() == whole.encode()
        assert list(restored.rows_after(0)) == list(whole.rows_after(0))


def test_a_snapshot_takes_sealed_chunks_as_they_are() -> None:
    recent = filled(10)
    before, after = recent.encode(), recent.encode()
    assert len(before) == 2 + 2
    for old, new in zip(before[1:-1], after[1:-1], strict=True):
        assert old is new


def test_a_snapshot_is_not_changed_by_later_appends() -> None:
    recent = filled(5)
    parts = recent.encode()
    recent.append(row(6))
    assert [r.ended_index for r in RecentRows.decode(parts).rows_after(0)] == [1, 2, 3, 4, 5]


def test_an_iterator_sees_what_was_there_when_it_was_made() -> None:
    recent = filled(6)
    rows = recent.rows_after(0)
    for index in range(7, 40):
        recent.append(row(index))
    assert [r.ended_index for r in rows] == [1, 2, 3, 4, 5, 6]


def test_rows_of_one_entry_may_lie_on_both_sides_of_a_chunk() -> None:
    recent = RecentRows(2, 2)
    for scheduled_s in range(7):
        recent.append(row(5, scheduled_s))
    # Rows of entry 5 were dropped: who knows only up to 4 has a gap, who knows 5 has none.
    assert recent.gap_after(4) == (4, 5)
    assert recent.gap_after(5) is None
    assert [r.scheduled_s for r in recent.rows_after(4)] == [2, 3, 4, 5, 6]
    assert list(recent.rows_after(5)) == []


def test_a_log_index_that_goes_back_stops_the_replica() -> None:
    recent = filled(5)
    with pytest.raises(InvariantViolated, match="log index went back"):
        recent.append(row(4))


def test_the_bounds_of_the_snapshot_win_over_the_defaults() -> None:
    restored = RecentRows.decode(filled(6, rows_per_chunk=4, chunks_max=1).encode())
    for index in range(7, 9):
        restored.append(row(index))
    assert restored.encode() == filled(8, rows_per_chunk=4, chunks_max=1).encode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda parts: [],
        lambda parts: parts[:1],
        lambda parts: [b"", *parts[1:]],
        lambda parts: [b"\xc1", *parts[1:]],
        lambda parts: parts[:-2] + parts[-1:],
        lambda parts: [parts[0], parts[1], *parts[1:]],
        lambda parts: [bytes([parts[0][0], 9]) + parts[0][2:], *parts[1:]],
        lambda parts: [bytes([parts[0][0], 1, 0]) + parts[0][3:], *parts[1:]],
    ],
)
def test_parts_that_do_not_belong_together_are_refused(damage: object) -> None:
    parts = filled(10).encode()
    with pytest.raises(RowsDamaged):
        RecentRows.decode(damage(parts))  # type: ignore[operator]


@pytest.mark.parametrize(("rows_per_chunk", "chunks_max"), [(0, 1), (1, 0)])
def test_impossible_bounds_are_refused(rows_per_chunk: int, chunks_max: int) -> None:
    with pytest.raises(InvariantViolated):
        RecentRows(rows_per_chunk, chunks_max)
