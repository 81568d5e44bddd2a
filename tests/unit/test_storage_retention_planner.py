"""The retention planner: when to seal, to take a snapshot, and what may go."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.state import commands as c
from cron.state.archive import Backup, History, SegmentRecord, Stream, Taken
from cron.storage.retention_planner import RETIRED_AT_ONCE, LogPlace, RetentionSettings, due, retire
from tests.unit.state_rig import StateRig, with_job
from tests.unit.test_state_keeping import ran

URL = "file:///backups"
DAY_MS = 86_400_000
NOW_MS = 1_000 * DAY_MS
STORED = RetentionSettings(store=URL)
ALONE = RetentionSettings()
QUIET = LogPlace(0, 0)


def record(number: int, *, age_days: float = 0, stream: int = Stream.RUNS, **fields: Any) -> Any:
    at_ms = NOW_MS - int(age_days * DAY_MS)
    usual = SegmentRecord(1, number, stream, 0, 10, 1, 1, b"", 0, 0, at_ms)
    return msgspec.structs.replace(usual, **fields)


def history_of(*records: SegmentRecord, store: str = URL) -> History:
    history = History()
    history.segments = {one.key: one for one in records}
    history.backup = Backup(store)
    return history


def settings(base: RetentionSettings = STORED, **fields: Any) -> RetentionSettings:
    return msgspec.structs.replace(base, **fields)


# ---- seals


def with_rows(number: int) -> StateRig:
    rig = with_job()
    for one in range(number):
        ran(rig, 60 * (one + 1))
    return rig


def seals(rig: StateRig, later_ms: int = 0, **fields: Any) -> list[c.Command]:
    found = due(rig.state.history, rig.at_ms + later_ms, QUIET, settings(ALONE, **fields))
    return [one for one in found if isinstance(one, c.Seal)]


def test_nothing_is_sealed_while_there_is_nothing() -> None:
    assert seals(with_rows(0), later_ms=365 * DAY_MS, segment_rows=1) == []


def test_rows_are_sealed_once_they_are_enough() -> None:
    assert seals(with_rows(3), segment_rows=4) == []
    assert seals(with_rows(4), segment_rows=4) == [c.Seal(1)]


def test_rows_are_sealed_once_they_are_large_enough() -> None:
    size = with_rows(2).state.history.open_bytes
    assert seals(with_rows(2), segment_bytes=size + 1) == []
    assert seals(with_rows(2), segment_bytes=size) == [c.Seal(1)]


def test_rows_are_sealed_once_the_oldest_is_old_enough() -> None:
    rig = with_rows(2)
    opened_ms = rig.state.history.opened_at_ms
    assert opened_ms < rig.at_ms
    left_ms = DAY_MS - (rig.at_ms - opened_ms)
    assert seals(rig, later_ms=left_ms - 1) == []
    assert seals(rig, later_ms=left_ms) == [c.Seal(1)]


def test_seals_are_numbered_one_by_one() -> None:
    rig = with_rows(1)
    rig.append(c.Seal(1))
    assert seals(rig, segment_rows=1) == []
    ran(rig, 600)
    assert seals(rig, segment_rows=1) == [c.Seal(2)]


# ---- snapshots


def shoots(taken: Taken, log: LogPlace, now_ms: int = NOW_MS) -> bool:
    history = History()
    history.taken = taken
    limits = settings(ALONE, interval_ms=600_000, entries=1_000)
    return due(history, now_ms, log, limits) == [c.SnapshotAt()]


@pytest.mark.parametrize(
    ("index", "changed", "age_ms", "is_due"),
    [
        (100, 100, DAY_MS, False),  # nothing since
        (103, 100, DAY_MS, False),  # nothing but what keeping takes itself
        (5_000, 100, DAY_MS, False),
        (101, 101, 599_999, False),  # too early
        (101, 101, 600_000, True),  # a single change counts
        (1_099, 1_099, 0, False),
        (1_100, 1_099, 0, True),  # many at once do not wait
    ],
)
def test_a_snapshot_is_due_with_a_change_and_time_or_entries(
    index: int, changed: int, age_ms: int, is_due: bool
) -> None:
    assert shoots(Taken(1, 100, NOW_MS - age_ms), LogPlace(index, changed)) is is_due


def test_a_new_cell_has_its_first_snapshot_at_once() -> None:
    assert shoots(Taken(), LogPlace(1, 1))
    assert not shoots(Taken(), LogPlace(0, 0))


def test_a_restored_cell_has_one_of_its_own_at_once() -> None:
    taken = Taken(1, 100, NOW_MS - 1)
    assert shoots(taken, LogPlace(501, 501, restored=100))
    assert shoots(taken, LogPlace(501, 501, restored=400)), "restored from the log after it"
    taken = Taken(2, 501, NOW_MS)
    assert not shoots(taken, LogPlace(502, 502, restored=100)), "and then as usual"


# ---- retention


def gone(found: c.Retire | None) -> list[int]:
    return [number for _, number, _ in found.gone] if found is not None else []


def local(found: c.Retire | None) -> list[int]:
    return [number for _, number, _ in found.local] if found is not None else []


def test_everything_stays_for_ever_unless_somebody_says_how_long() -> None:
    old = record(1, age_days=900, is_stored=True)
    assert retire(history_of(old), NOW_MS, STORED) is None


def test_segments_go_once_all_in_them_is_old_enough() -> None:
    history = history_of(
        record(1, age_days=31, is_stored=True), record(2, age_days=29, is_stored=True)
    )
    assert gone(retire(history, NOW_MS, settings(keep_ms=30 * DAY_MS))) == [1]


def test_failures_are_kept_longer() -> None:
    history = history_of(
        record(1, age_days=31, is_stored=True, stream=Stream.FAILURES),
        record(2, age_days=91, is_stored=True, stream=Stream.FAILURES),
        record(3, age_days=31, is_stored=True),
    )
    limits = settings(keep_ms=30 * DAY_MS, keep_failed_ms=90 * DAY_MS)
    assert gone(retire(history, NOW_MS, limits)) == [2, 3]
    assert gone(retire(history, NOW_MS, settings(keep_ms=30 * DAY_MS))) == [1, 2, 3]


def test_what_is_not_stored_yet_waits_whatever_its_age() -> None:
    history = history_of(record(1, age_days=900), record(2, age_days=900, is_stored=True))
    limits = settings(keep_ms=DAY_MS, local_ms=DAY_MS)
    assert gone(retire(history, NOW_MS, limits)) == [2]
    outlived = [one.key for one in history.segments.values()]
    assert gone(retire(history, NOW_MS, settings(keep_runs=1), outlived)) == [2]


def test_what_another_store_has_is_not_stored() -> None:
    history = history_of(record(1, age_days=900, is_stored=True), store="file:///old")
    assert retire(history, NOW_MS, settings(keep_ms=DAY_MS, local_ms=DAY_MS)) is None


def test_without_a_store_old_history_is_deleted_for_good() -> None:
    history = history_of(record(1, age_days=31), store="")
    assert gone(retire(history, NOW_MS, settings(ALONE, keep_ms=30 * DAY_MS))) == [1]
    # It was stored once, in a store that is not configured any more.
    history = history_of(record(1, age_days=31, is_stored=True))
    assert gone(retire(history, NOW_MS, settings(ALONE, keep_ms=30 * DAY_MS))) == [1]
    assert retire(history, NOW_MS, settings(ALONE, local_ms=DAY_MS)) is None


def test_old_segments_leave_the_disks_once() -> None:
    history = history_of(
        record(1, age_days=8, is_stored=True, is_local=False),
        record(2, age_days=8, is_stored=True),
        record(3, age_days=8),
        record(4, age_days=6, is_stored=True),
    )
    found = retire(history, NOW_MS, settings(local_ms=7 * DAY_MS))
    assert (local(found), gone(found)) == ([2], [])


def test_outlived_segments_go_by_count_failures_not_before_their_time() -> None:
    records = (
        record(1, age_days=1, is_stored=True),
        record(2, age_days=1, is_stored=True),
        record(3, age_days=1, is_stored=True, stream=Stream.FAILURES),
        record(4, age_days=91, is_stored=True, stream=Stream.FAILURES),
    )
    history = history_of(*records)
    outlived = {one.key for one in records if one.number != 2}
    limits = settings(keep_runs=100, keep_failed_ms=90 * DAY_MS)
    assert gone(retire(history, NOW_MS, limits, outlived)) == [1, 4]
    assert gone(retire(history, NOW_MS, settings(keep_runs=100), outlived)) == [1, 3, 4]


def test_a_flood_goes_in_pieces() -> None:
    records = [record(n, age_days=9, is_stored=True) for n in range(1, RETIRED_AT_ONCE + 50)]
    found = gone(retire(history_of(*records), NOW_MS, settings(keep_ms=DAY_MS)))
    assert found == list(range(1, RETIRED_AT_ONCE + 1))


RECORDS = st.builds(
    record,
    st.integers(1, 60),
    age_days=st.floats(0, 200),
    stream=st.sampled_from(Stream),
    is_stored=st.booleans(),
    is_local=st.booleans(),
)
LIMITS = st.builds(
    RetentionSettings,
    store=st.sampled_from(["", URL]),
    keep_ms=st.integers(0, 100).map(lambda days: days * DAY_MS),
    keep_failed_ms=st.integers(0, 150).map(lambda days: days * DAY_MS),
    local_ms=st.integers(0, 50).map(lambda days: days * DAY_MS),
)


@given(st.lists(RECORDS), LIMITS, st.sampled_from(["", URL, "file:///old"]), st.data())
def test_retention_never_takes_what_it_must_not(
    records: list[SegmentRecord], limits: RetentionSettings, store: str, data: st.DataObject
) -> None:
    history = history_of(*records, store=store)
    keys = list(history.segments)
    outlived = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
    found = retire(history, NOW_MS, limits, outlived)
    if found is None:
        return
    assert not set(found.local) & set(found.gone)
    for key in (*found.local, *found.gone):
        one = history.segments[key]
        if limits.store and one.is_local:
            assert one.is_stored, "the disks have the only one"
            assert store == limits.store
    for key in found.local:
        assert limits.store
        assert history.segments[key].is_local
    for key in found.gone:
        one = history.segments[key]
        age_ms = NOW_MS - one.sealed_at_ms
        failed_ms = limits.keep_failed_ms if one.stream == Stream.FAILURES else 0
        assert age_ms > failed_ms
        assert key in outlived or (0 < limits.keep_ms < age_ms)


@given(st.lists(RECORDS), LIMITS)
def test_what_was_let_go_is_not_asked_for_again(
    records: list[SegmentRecord], limits: RetentionSettings
) -> None:
    history = history_of(*records)
    found = retire(history, NOW_MS, limits)
    while found is not None:
        for key in found.gone:
            del history.segments[key]
        for key in found.local:
            one = history.segments[key]
            history.segments[key] = msgspec.structs.replace(one, is_local=False)
        again = retire(history, NOW_MS, limits)
        assert again is None or again != found
        found = again
