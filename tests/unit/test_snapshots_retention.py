"""What a store may lose: never what the newest snapshot needs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapshots import layout
from snapshots.manifest import Manifest
from snapshots.retention import (
    DAY_MS,
    GRACE_MS,
    SnapshotPolicy,
    segments_to_delete,
    snapshots_to_delete,
)
from tests.unit.backup_store_rig import manifest_at


def test_the_newest_ones_stay_and_the_last_of_each_day() -> None:
    manifests = [manifest_at(day * 10 + hour, day) for day in range(5) for hour in range(3)]
    gone = snapshots_to_delete(manifests, SnapshotPolicy(newest=2, daily=3))
    kept = {one.index for one in manifests} - {one.index for one in gone}
    assert kept == {42, 41, 32, 22}


_names = st.lists(st.integers(0, 9).map(lambda n: layout.segment_name(1, n, "runs")), max_size=4)
_manifests = st.lists(
    st.builds(
        manifest_at,
        st.integers(0, 50),
        st.integers(0, 9),
        _names.map(tuple),
        st.integers(1, 2),
    ),
    max_size=12,
    unique_by=lambda one: one.position,
)


@given(_manifests, st.integers(0, 4), st.integers(-1, 4), _names, st.integers(0, 10**15))
def test_what_the_newest_snapshot_needs_is_never_deleted(
    manifests: list[Manifest], newest: int, daily: int, wanted: list[str], now_ms: int
) -> None:
    policy = SnapshotPolicy(newest, daily)
    gone = snapshots_to_delete(manifests, policy)
    kept = [one for one in manifests if one not in gone]
    stored = {layout.segment_name(1, number, "runs"): 0 for number in range(10)}
    deleted = set(segments_to_delete(stored, kept, wanted, now_ms))
    assert not deleted & set(wanted)
    if manifests:
        last = max(manifests, key=lambda one: one.position)
        assert last in kept
        for one in kept:
            assert not deleted & {segment.name for segment in one.segments}
    else:
        assert not deleted
    assert snapshots_to_delete(kept, policy) == [], "once is enough"


def test_a_young_segment_may_be_on_its_way() -> None:
    stored = {layout.segment_name(1, 1, "runs"): 5 * DAY_MS}
    assert segments_to_delete(stored, [manifest_at(1)], (), 5 * DAY_MS + GRACE_MS) == []
    assert segments_to_delete(stored, [manifest_at(1)], (), 5 * DAY_MS + GRACE_MS + 1) != []


def kept_of(manifests: list[Manifest], policy: SnapshotPolicy) -> list[Manifest]:
    gone = snapshots_to_delete(manifests, policy)
    return [one for one in manifests if one not in gone]


@given(_manifests, st.integers(0, 4), st.integers(0, 4), st.integers(0, 3), st.integers(0, 3))
def test_who_keeps_more_loses_nothing_that_who_keeps_less_has(
    manifests: list[Manifest], newest: int, daily: int, more: int, days: int
) -> None:
    few = kept_of(manifests, SnapshotPolicy(newest, daily))
    many = kept_of(manifests, SnapshotPolicy(newest + more, daily + days))
    assert all(one in many for one in few)


@given(_manifests, st.integers(0, 4), st.integers(0, 4))
def test_what_is_deleted_once_does_not_come_back_with_the_next_snapshot(
    manifests: list[Manifest], newest: int, daily: int
) -> None:
    policy = SnapshotPolicy(newest, daily)
    gone = snapshots_to_delete(manifests, policy)
    later = [*manifests, manifest_at(99, 9, life=9)]
    assert all(one in snapshots_to_delete(later, policy) for one in gone)


@given(_manifests, st.data())
def test_of_those_that_are_whole_the_newest_stays_and_the_broken_cost_none(
    manifests: list[Manifest], data: st.DataObject
) -> None:
    policy = SnapshotPolicy(data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3)))
    places = [one.place for one in manifests]
    broken = data.draw(st.sets(st.sampled_from(places))) if places else set()
    gone = snapshots_to_delete(manifests, policy, broken)
    whole = [one for one in manifests if one.place not in broken]
    assert [one for one in whole if one not in gone] == kept_of(whole, policy)
    if whole:
        assert max(whole, key=lambda one: one.position) not in gone
    plain = snapshots_to_delete(manifests, policy)
    assert all(one in plain for one in gone if one.place in broken)


@given(st.integers(-(2**62), 2**62), st.integers(0, 2**62))
def test_no_clock_makes_it_delete_what_is_named_or_wanted_or_not_ours(
    now_ms: int, modified_ms: int
) -> None:
    named, wanted, free = (layout.segment_name(1, number, "runs") for number in (1, 2, 3))
    names = (named, wanted, free, "readme.txt", f"{free}.damaged", "../x")
    stored = dict.fromkeys(names, modified_ms)
    kept = [manifest_at(1, names=(named,))]
    assert segments_to_delete(stored, kept, {wanted}, now_ms) in ([], [free])


@given(_names, st.integers(0, 2**50), st.integers(0, 2**50))
def test_time_alone_only_adds_to_what_may_go(wanted: list[str], first: int, second: int) -> None:
    stored = {layout.segment_name(1, n, "runs"): n * DAY_MS for n in range(10)}
    early, late = sorted((first, second))
    before = segments_to_delete(stored, [manifest_at(1)], wanted, early)
    after = segments_to_delete(stored, [manifest_at(1)], wanted, late)
    assert set(before) <= set(after)
    left = {name: age for name, age in stored.items() if name not in after}
    assert segments_to_delete(left, [manifest_at(1)], wanted, late) == []


def test_where_no_snapshot_is_left_no_segment_goes() -> None:
    stored = {layout.segment_name(1, 1, "runs"): 0}
    assert segments_to_delete(stored, [], (), 10**15) == []
