"""The archive: which segments a question fetches, what of them it gets, and what it may cost."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.errors import Conflict, LimitExceeded, Unavailable
from cron.history.order import Match, Query
from cron.launch_state import LaunchState
from cron.service.launches import listed
from cron.service.replica import Replica
from cron.state import commands as c
from cron.state.archive import History, SegmentRecord, Stream
from cron.state.commands import SegmentKey
from cron.state.rows import Row, RowKind
from cron.state.tail import Tail
from cron.storage import archived_rows as archives
from cron.storage.archived_rows import SEGMENTS_MAX, ArchivedRows, archived
from cron.storage.folders import name_of
from snapshots.layout import segment_object
from tests.fakes.memory_store import MemoryStore
from tests.unit.restore_rig import CELL, Backed
from tests.unit.state_rig import T0, skips

FAILED = frozenset({LaunchState.FAILED})
SUCCEEDED = frozenset({LaunchState.SUCCEEDED})


class Away(Backed):
    """A cell of which some segments are in the store alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        assert isinstance(self.store, MemoryStore)
        self.objects = self.store.objects
        self.data = folder / "reader"
        self.data.mkdir()
        self.archive = ArchivedRows(self.backup_store, self.data)

    def retire(self, records: list[SegmentRecord]) -> None:
        self.rig.append(c.Retire(local=tuple(one.key for one in records)))

    def rows_in(self, *records: SegmentRecord) -> list[Row]:
        found = [row for one in records for row in Tail.of(self.folders.read(one)).all_rows()]
        return sorted(found, key=lambda row: row.ended_index)

    def keys(self, query: Query) -> list[SegmentKey]:
        return [one.key for one in archived(self.state.history, query)]

    async def ask(self, **fields: Any) -> list[Row]:
        return await self.archive.rows(self.state.history, Query(**({"limit": 1_000} | fields)))


@pytest.fixture
def away(tmp_path: Path) -> Away:
    return Away(tmp_path)


# --- what is fetched


async def test_only_what_is_in_the_store_alone_is_fetched_in_log_order(away: Away) -> None:
    old, newer = away.seal(rows=3) + away.seal(rows=2), away.seal(rows=4)
    assert await away.ask() == [], "all is on the disks: the row_store answers"
    away.retire(old)
    assert await away.ask() == away.rows_in(*old)
    assert {row.scheduled_s for row in away.rows_in(*newer)}.isdisjoint(
        row.scheduled_s for row in await away.ask()
    )
    assert list(away.data.iterdir()) == [], "nothing stays on the disk"


async def test_states_choose_the_streams_that_are_fetched(away: Away) -> None:
    runs, failures = away.seal(rows=3)
    assert (runs.stream, failures.stream) == (Stream.RUNS, Stream.FAILURES)
    away.retire([runs, failures])
    for states, record in ((FAILED, failures), (SUCCEEDED, runs)):
        assert isinstance(away.store, MemoryStore)
        away.store.calls.clear()
        assert await away.ask(states=states) == away.rows_in(record)
        fetched = {name for operation, name in away.store.calls if operation == "get"}
        assert fetched == {segment_object(CELL, name_of(record))}
    both = frozenset({LaunchState.LOST, LaunchState.CANCELLED})
    assert away.keys(Query(states=both)) == [runs.key, failures.key]
    assert await away.ask(states=both) == []


async def test_a_period_chooses_segments_and_then_rows(away: Away) -> None:
    first, second = away.seal(rows=3), away.seal(rows=3)
    away.retire(first + second)
    rows = away.rows_in(*first, *second)
    instants = sorted(row.scheduled_s for row in rows)
    since_ms, until_ms = instants[1] * 1000, instants[2] * 1000
    found = await away.ask(since_ms=since_ms, until_ms=until_ms)
    assert [row.scheduled_s for row in found] == instants[1:3], "both ends are in it"
    found = await away.ask(since_ms=since_ms + 1, until_ms=until_ms - 1)
    assert found == [], "whole seconds between them"
    assert away.keys(Query(until_ms=since_ms)) == [one.key for one in first]


async def test_a_job_chooses_rows(away: Away) -> None:
    records = away.seal()
    away.retire(records)
    assert await away.ask(jobs=frozenset(("default/backup",))) == away.rows_in(*records)
    assert await away.ask(jobs=frozenset(("default/other", "default/more"))) == []


@given(
    first=st.integers(0, 50), length=st.integers(0, 20), since=st.integers(0, 70_000),
    until=st.integers(0, 70_000), local=st.booleans(),
)  # fmt: skip
def test_no_segment_that_may_have_a_row_is_left_out(
    first: int, length: int, since: int, until: int, local: bool
) -> None:
    last = first + length
    record = SegmentRecord(1, 1, 0, 0, 9, 1, 1, bytes(16), first, last, 3, is_local=local)
    history = History()
    history.segments[record.key] = record
    may = any(since <= second * 1000 <= until for second in range(first, last + 1))
    found = archived(history, Query(since_ms=since, until_ms=until))
    assert (record in found) >= (may and not local)
    assert not (found and local)


@given(at=st.integers(0, 60), length=st.integers(0, 9), since=st.integers(0, 70_000),
       until=st.integers(0, 70_000))  # fmt: skip
def test_a_row_is_meant_if_one_of_its_instants_is_in_the_period(
    at: int, length: int, since: int, until: int
) -> None:
    kind = RowKind.RANGE if length else RowKind.ENDED
    row = _row(T0 + at, kind=kind, last_s=T0 + at + length if length else 0)
    query = Query(since_ms=T0 * 1000 + since, until_ms=T0 * 1000 + until)
    expected = (T0 + at) * 1000 <= query.until_ms and (T0 + at + length) * 1000 >= query.since_ms
    is_period = query.since_ms <= query.until_ms // 1000 * 1000
    assert Match.of(query).fits(row) == (expected and is_period)


def _row(scheduled_s: int, **fields: Any) -> Row:
    backed = _SAMPLE
    return msgspec.structs.replace(backed, scheduled_s=scheduled_s, **fields)


def _sample() -> Row:
    from tests.unit.disk_rig import more
    from tests.unit.state_rig import with_job

    rig = with_job()
    more(rig, 1)
    return rig.rows[0]


_SAMPLE = _sample()


# --- what it may cost


async def test_no_more_rows_are_kept_than_are_asked_for_and_they_are_the_newest(
    away: Away,
) -> None:
    """The newest are not those that ended last: a backfill ends late."""
    records = away.seal(rows=5) + away.seal(rows=5)
    away.retire(records)
    rows = away.rows_in(*records)
    newest = sorted(rows, key=lambda row: row.scheduled_s)[-4:]
    found = await away.ask(limit=4)
    assert found == sorted(newest, key=lambda row: row.ended_index)


def fetched(away: Away) -> list[str]:
    return [name for operation, name in away.store.calls if operation == "get"]


async def test_what_is_older_than_enough_rows_is_not_fetched(away: Away) -> None:
    first, second, third = away.seal(rows=4), away.seal(rows=4), away.seal(rows=4)
    away.retire(first + second)
    known = away.rows_in(*third)
    wanted = Query(limit=len(known))
    away.store.calls.clear()
    assert await away.archive.rows(away.state.history, wanted, known) == []
    assert fetched(away) == [], "all that it asks for is known"
    found = await away.archive.rows(away.state.history, Query(limit=len(known) + 2), known)
    newest = sorted(away.rows_in(*second), key=lambda row: row.scheduled_s)[-2:]
    assert found == sorted(newest, key=lambda row: row.ended_index)
    holding = [one for one in second if set(newest) & set(away.rows_in(one))]
    assert fetched(away) == [segment_object(CELL, name_of(one)) for one in holding]


async def test_what_is_as_old_as_the_last_row_is_fetched(away: Away) -> None:
    """Of rows of one instant the later attempt is the newer."""
    first, second = away.seal(rows=3), away.seal(rows=3)
    away.retire(first)
    last = max(away.rows_in(*first), key=lambda row: row.scheduled_s)
    known = [msgspec.structs.replace(last, attempt=0, ended_index=last.ended_index + 1)]
    assert await away.archive.rows(away.state.history, Query(limit=1), known) == [last]
    assert second


async def test_a_row_that_is_known_is_not_returned_again(away: Away) -> None:
    """A segment was let go from the disks between two answers."""
    records = away.seal(rows=4)
    rows = away.rows_in(*records)
    away.retire(records)
    assert await away.archive.rows(away.state.history, Query(), rows[:3]) == rows[3:]


async def test_enough_known_rows_make_many_segments_no_fault(
    away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "SEGMENTS_MAX", 3)
    old = away.seal() + away.seal()
    new = away.seal(rows=5)
    away.retire(old)
    known = away.rows_in(*new)
    assert await away.archive.rows(away.state.history, Query(limit=3), known) == []
    with pytest.raises(LimitExceeded):
        await away.archive.rows(away.state.history, Query(limit=300), known)


async def test_ranges_of_skipped_instants_count_for_nothing(away: Away) -> None:
    """Where a range ends is not where its newest instant of the period is."""
    horizon_s = away.rig.record().horizon_s - T0
    away.rig.to(horizon_s + 600)
    skipped = (skips(horizon_s + 60, horizon_s + 600, 10),)
    away.rig.account(to=horizon_s + 600, skipped=skipped)
    records = away.seal(rows=6)
    away.retire(records)
    found = await away.ask(limit=2)
    assert len(found) == 3
    assert sum(row.last_s > row.scheduled_s for row in found) == 1


async def test_too_many_segments_are_refused_before_any_is_fetched(
    away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SEGMENTS_MAX == 64
    monkeypatch.setattr(archives, "SEGMENTS_MAX", 3)
    away.retire(away.seal() + away.seal())
    assert isinstance(away.store, MemoryStore)
    away.store.calls.clear()
    with pytest.raises(LimitExceeded, match="4 segments are in this period, at most 3") as caught:
        await away.ask()
    assert "--since" in caught.value.hint
    assert away.store.calls == []
    monkeypatch.setattr(archives, "SEGMENTS_MAX", 4)
    assert await away.ask()


# --- what may be wrong


async def test_without_a_store_it_says_what_to_configure(away: Away, tmp_path: Path) -> None:
    records = away.seal()
    archive = ArchivedRows(None, tmp_path)
    assert await archive.rows(away.state.history, Query()) == []
    away.retire(records)
    with pytest.raises(Conflict, match="none is configured here") as caught:
        await archive.rows(away.state.history, Query())
    assert "[object_storage] url" in caught.value.hint


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
async def test_damage_is_told_with_the_segments_name(away: Away, how: str) -> None:
    (runs, *_) = records = away.seal()
    away.retire(records)
    name = segment_object(CELL, name_of(runs))
    content = away.objects.pop(name)
    if how != "gone":
        cut = content[:-1] if how == "cut" else content[:90] + b"?" + content[91:]
        away.objects[name] = cut
    with pytest.raises(Conflict, match=re.escape(name_of(runs))):
        await away.ask()
    assert list(away.data.iterdir()) == []


@pytest.mark.parametrize(("field", "kind"), [("away", Unavailable), ("refused", Conflict)])
async def test_a_store_that_does_not_answer_is_told(
    away: Away, field: str, kind: type[Exception]
) -> None:
    away.retire(away.seal())
    setattr(away.store, field, "in its own words")
    with pytest.raises(kind, match="in its own words") as caught:
        await away.ask()
    assert caught.value.hint


async def test_a_full_disk_is_told_and_left_clean(
    away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: MemoryStore, name: str, path: Path, **_: Any) -> int:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device", str(path))

    away.retire(away.seal())
    monkeypatch.setattr(MemoryStore, "get_file", full)
    with pytest.raises(Unavailable, match="No space left on device") as caught:
        await away.ask()
    assert caught.value.hint
    assert list(away.data.iterdir()) == []


# --- as a person asks


class Projected:
    """A history that has only what is on the disks."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    async def newest(self, query: Query) -> list[Row]:
        wanted = [row for row in self.rows if Match.of(query).fits(row)]
        return sorted(wanted, key=lambda row: row.scheduled_s)[-query.limit :]


async def test_history_with_and_without_the_archive(away: Away) -> None:
    from cron.api.launches import HistoryQuery

    old, new = away.seal(rows=3), away.seal(rows=3)
    away.retire(old)
    row_store: Any = Projected(away.rows_in(*new))

    class Applied:
        state = away.state

    applier: Any = Applied()
    nobody: Any = SimpleNamespace(epoch=None, queues=None, wall_ms=lambda: 0)
    replica = Replica(nobody, applier, row_store, nobody, archive=away.archive)
    without = await listed(replica, HistoryQuery(limit=50))
    whole = await listed(replica, HistoryQuery(limit=50, archive=True))
    assert (len(without), len(whole)) == (3, 6)
    instants = [view.scheduled_s for view in whole]
    assert instants == sorted(instants, reverse=True)
    assert whole[:3] == without
    few = await listed(replica, HistoryQuery(limit=4, archive=True))
    assert few == whole[:4]
