"""History against a list that is searched from end to end, whatever befalls a replica."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cron.history import segment, store
from cron.history.order import Query
from cron.history.store import Gap, RowStore
from cron.launch_state import LaunchState
from cron.state.archive import HISTORY, SegmentRecord, stream_of
from cron.state.rows import Chunk, Column, Row, RowKind, column, rows_of
from launcher.protocol.names import LaunchName
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch
from tests.drawn import seeds
from tests.unit.history_rig import BACKUP, Fed, row

_ENDS = sorted(set(LaunchState) - {LaunchState.DUE, LaunchState.BEGUN, LaunchState.LAUNCHED})
_JOBS = ("default/a", "default/b", "acme/a")


def _drawn(rng: random.Random, index: int, number: int) -> Row:
    kind = rng.choice((*RowKind, RowKind.ENDED, RowKind.ENDED))
    is_range = kind is RowKind.RANGE
    first_s = rng.randrange(40) + (index // 4 if rng.random() < 0.8 else 0)
    last_s = first_s + rng.choice((0, 1, 2, 3, 5, 9, 17, 64)) if is_range else 0
    state = LaunchState.SKIPPED if rng.random() < 0.8 else LaunchState.LOST
    return Row(
        kind=kind,
        job=rng.choice(_JOBS),
        revision=1,
        scheduled_s=first_s,
        trigger=0 if is_range else rng.randrange(2),
        attempt=0 if is_range else rng.randrange(3),
        state=state if is_range else rng.choice(_ENDS),
        reason=Reason.NONE,
        ended_index=index,
        ended_at_ms=0,
        last_s=last_s,
        count=last_s - first_s + 1 if is_range else 1,
        output_bytes=0 if is_range else rng.choice((0, 0, 5)),
        number=number,
    )


def _drawn_items(rng: random.Random, index: int, items: int) -> list[Row | Chunk]:
    """What one entry ends: rows, and chunks of them."""
    found: list[Row | Chunk] = []
    number = 0
    for _ in range(items):
        item = rng.choice((_drawn, _drawn, _chunk, _skipped))(rng, index, number)
        found.append(item)
        number += len(rows_of(item))
    return found


def _skipped(rng: random.Random, index: int, number: int) -> Chunk:
    first_s, count = rng.randrange(40) + index // 4, rng.choice((1, 2, 5))
    like = Row(
        RowKind.ENDED, "", 1, first_s, 0, 0, LaunchState.SKIPPED, Reason.NONE, index, 0,
        first_s + count - 1, count, number=number,
    )  # fmt: skip
    return Chunk.skipped(like, rng.sample(_JOBS, rng.randint(1, len(_JOBS))), (1,))


def _chunk(rng: random.Random, index: int, number: int) -> Chunk:
    rows = rng.choice((1, 2, 5, 20))
    first_s = rng.randrange(40) + index // 4

    def drawn_column(*values: int) -> Column:
        return column(rng.choices(values, k=rows if rng.random() < 0.5 else 1))

    return Chunk(
        state=rng.choice(_ENDS),
        reason=Reason.NONE,
        exit_code=0,
        ended_index=index,
        ended_at_ms=0,
        begun_index=index - 1,
        begun_at_ms=first_s * 1000,
        epoch=Epoch(1, 1, "r1"),
        executor="e1",
        ledger="l1",
        jobs="\n".join(rng.choices(_JOBS, k=rows)),
        revisions=1,
        scheduled_s=drawn_column(first_s, first_s + 1, first_s + 5),
        triggers=drawn_column(0, 1),
        attempts=drawn_column(0, 1, 2),
        started_ms=drawn_column(first_s, first_s + 3),
        output_bytes=drawn_column(0, 0, 5),
        cpu_ms=drawn_column(0, 0, 7),
        memory_peak_bytes=drawn_column(0, 0, 1 << 30),
        number=number,
    )


# ---- the naive answers


def _newest_s(row: Row) -> int:
    return row.last_s if row.kind is RowKind.RANGE else row.scheduled_s


def _overlaps(row: Row, from_s: int, to_s: int) -> bool:
    return from_s <= to_s and row.scheduled_s <= to_s and _newest_s(row) >= from_s


def _newest(rows: list[Row], query: Query) -> list[Row]:
    """By ScheduledTime, attempt and entry; within an entry, one stream after the other."""
    found = [
        row
        for row in rows
        if (query.jobs is None or row.job in query.jobs)
        and (query.states is None or row.state in query.states)
        and _overlaps(row, query.since_ms // 1000, query.until_ms // 1000)
    ]
    found.sort(
        key=lambda row: (_newest_s(row), row.attempt, row.ended_index, stream_of(row), row.number),
        reverse=True,
    )
    return found[: query.limit]


def _outlived(rows: list[Row], record: SegmentRecord, newer: int) -> bool:
    inside = [row for row in rows if _is_in(row, record)]
    return all(
        sum(other.job == row.job and _newest_s(other) > _newest_s(row) for other in rows) >= newer
        for row in inside
    )


def _is_in(row: Row, record: SegmentRecord) -> bool:
    is_between = record.from_index < row.ended_index <= record.to_index
    return is_between and stream_of(row) == record.stream


def _some_jobs(rng: random.Random) -> list[frozenset[str]]:
    """Each job alone, and some of them together."""
    known = [*_JOBS, "default/never"]
    return [
        *(frozenset((job,)) for job in known),
        *(frozenset(rng.sample(known, rng.randrange(len(known)))) for _ in known),
    ]


async def _compare(row_store: RowStore, rows: list[Row], rng: random.Random) -> None:
    """Compare all answers with those of a search of `rows`, which are in log order."""
    top_s = 50 + rows[-1].ended_index // 4 if rows else 50
    for _ in range(8):
        since_s = rng.randrange(top_s)
        query = Query(
            rng.choice((None, *_some_jobs(rng))),
            rng.choice((None, frozenset(rng.sample(_ENDS, rng.randrange(4))))),
            since_s * 1000,
            (since_s + rng.choice((-2, 0, 3, 20, 200))) * 1000,
            rng.choice((1, 2, 5, 20, 1000)),
        )
        assert await row_store.newest(query) == _newest(rows, query)
    for job in _JOBS:
        at_s = rng.randrange(top_s)
        of_job = [row for row in rows if row.job == job and _overlaps(row, at_s, at_s + 10)]
        of_job.sort(key=lambda row: row.scheduled_s)
        assert await row_store.of_job(job, at_s, at_s + 10) == of_job
        for trigger in (0, 1):
            of_launch = [
                row
                for row in rows
                if row.job == job and row.trigger == trigger and _overlaps(row, at_s, at_s)
            ]
            of_launch.sort(key=lambda row: (row.ended_index, row.attempt))
            found = await row_store.of_launch(LaunchName(job, at_s, trigger))
            assert sorted(found, key=repr) == sorted(of_launch, key=repr)
            assert [row.ended_index for row in found] == [row.ended_index for row in of_launch]
    last = await row_store.last_of_each([*_JOBS, "default/never"])
    assert last == {
        job: found[0]
        for job in _JOBS
        if (found := _newest(rows, Query(frozenset((job,)), limit=1)))
    }
    limit, is_scheduled = rng.choice((1, 2, 5)), rng.random() < 0.5
    newest = await row_store.newest_of_each(_JOBS, limit, is_scheduled=is_scheduled)
    wanted = [row for row in rows if not (is_scheduled and row.trigger)]
    assert {job: list(map(_newest_s, found)) for job, found in newest.items()} == {
        job: list(map(_newest_s, found))
        for job in _JOBS
        if (found := _newest(wanted, Query(frozenset((job,)), limit=limit)))
    }
    assert await _ends(row_store) == {
        job: bytes(row.state for row in mine)
        for job in _JOBS
        if (mine := [one for one in rows if one.job == job and one.kind is not RowKind.AMENDMENT])
    }
    some = rng.sample(rows, min(len(rows), 5))
    attempts = [(row.job, row.scheduled_s, row.attempt) for row in some]
    told = [
        row
        for row in rows
        if (row.job, row.scheduled_s, row.attempt) in attempts and row.kind is not RowKind.RANGE
    ]
    assert sorted(await row_store.of_attempts(attempts), key=repr) == sorted(told, key=repr)


async def _ends(row_store: RowStore) -> dict[str, bytes]:
    """How all launches ended, by job, put together from the stretches of history."""
    found: dict[str, bytes] = {}
    index = 1 << 40
    while index:
        index, ends = await row_store.ends_before(index)
        for job, states in ends.items():
            found[job] = states + found.get(job, b"")
    return {job: states for job, states in found.items() if states}


# ---- a life


class _Life:
    """A replica's history beside the naive list of its rows."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.fed = Fed(folder)
        self.rng = rng
        self.index = 0
        self.rows: list[Row] = []
        self.seals: list[tuple[Gap, bool]] = []  # of each Seal: its stretch, whether all is here

    def act(self) -> None:
        """Let something happen."""
        act, rng = self.rng.random(), self.rng
        if act < 0.6:
            self.index += rng.choice((1, 1, 1, 2, 7))
            items = _drawn_items(rng, self.index, rng.choice((0, 1, 1, 2, 5, 30)))
            self.fed.add(*items)
            self.rows += [row for item in items for row in rows_of(item)]
        elif act < 0.8 and self.fed.history.open_rows:
            self.seals.append((Gap(self.fed.history.sealed_to, self.index), True))
            self.fed.seal(self.index, writes=rng.random() < 0.6)
        elif act < 0.85:
            self.fed.segment_files.write()
        elif act < 0.92:
            self.fed.restart()
        elif act < 0.95 and self.fed.history.segments:
            self._retire()
        else:
            self._store()

    def _retire(self) -> None:
        """A segment goes altogether, or stays in object storage alone."""
        records = self.fed.history.segments
        key = self.rng.choice(list(records))
        record = records[key]
        if self.rng.random() < 0.5:
            del records[key]
        else:
            records[key] = msgspec.structs.replace(record, is_local=False)
        self.fed.segment_files.remove(record)
        self.rows = [row for row in self.rows if not _is_in(row, record)]
        self.seals = [
            (gap, is_here and gap.to_index != record.to_index) for gap, is_here in self.seals
        ]

    def _store(self) -> None:
        """Object storage has got a segment: the record is another one."""
        records = self.fed.history.segments
        for key in list(records)[:1]:
            records[key] = msgspec.structs.replace(records[key], is_stored=True)

    async def check(self) -> None:
        """Compare all answers."""
        row_store = self.fed.row_store
        await _compare(row_store, self.rows, self.rng)
        assert row_store.gaps() == _joined([gap for gap, is_here in self.seals if not is_here])
        for record in list(self.fed.history.segments.values())[:3]:
            newer = self.rng.randrange(1, 6)
            is_file = record.key not in {one.record.key for one in self.fed.segment_files.waiting}
            is_outlived = record.is_local and is_file and _outlived(self.rows, record, newer)
            assert await row_store.outlived(record, newer) == is_outlived


def _joined(gaps: list[Gap]) -> list[Gap]:
    joined: list[Gap] = []
    for gap in gaps:
        if joined and joined[-1].to_index == gap.from_index:
            gap = Gap(joined.pop().from_index, gap.to_index)
        joined.append(gap)
    return joined


@pytest.mark.parametrize("seed", seeds(60))
async def test_history_answers_what_a_search_of_all_rows_answers(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live rows, Seals, files that are late, restarts, retention; with tiny blocks and caches."""
    monkeypatch.setattr(segment, "BLOCK_ROWS", 7)
    monkeypatch.setattr(store, "JOBS_AT_ONCE", 2)
    rng = random.Random(seed)
    if seed % 3 == 0:
        monkeypatch.setattr(store, "INDEX_BYTES_MAX", 0)
    life = _Life(tmp_path, rng)
    for _ in range(rng.randrange(5, 60)):
        life.act()
        if rng.random() < 0.1:
            await life.check()
    await life.check()
    life.fed.row_store.stop()


async def test_a_segment_that_goes_while_it_is_read_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention takes the file between the moment that a question sees and its reading."""
    rng = random.Random(7)
    fed = Fed(tmp_path)
    rows = [_drawn(rng, index, 0) for index in range(1, 40)]
    fed.add(*rows)
    fed.seal(40)
    kept = [_drawn(rng, index, 0) for index in range(41, 60)]
    fed.add(*kept)
    opening = fed.segment_files.open_rows

    def gone(record: SegmentRecord) -> Any:
        for key in list(fed.history.segments):
            fed.segment_files.remove(fed.history.segments.pop(key))
        return opening(record)

    monkeypatch.setattr(fed.segment_files, "open_rows", gone)
    asked = Query(limit=1000)
    assert await asyncio.wait_for(fed.row_store.newest(asked), 60) == _newest(kept, asked)
    assert fed.row_store.gaps() == [Gap(0, 40)]
    fed.row_store.stop()


def test_streams_are_two() -> None:
    """A Seal is whole with one segment, or with two: `is_pair` knows no third."""
    assert len(HISTORY) == 2


@pytest.mark.parametrize("jobs", [None, frozenset((BACKUP,)), frozenset((BACKUP, "other"))])
async def test_a_row_of_the_same_instant_in_an_older_segment_may_come_first(
    tmp_path: Path, jobs: frozenset[str] | None
) -> None:
    fed = Fed(tmp_path)
    rows = [row(1, 60, attempt=3), row(2, 60, attempt=2), row(3, 60, attempt=1)]
    for one in rows[:2]:
        fed.add(one)
        fed.seal(one.ended_index)
    fed.add(rows[2])
    for limit in (1, 2, 3):
        assert await fed.row_store.newest(Query(jobs, limit=limit)) == rows[:limit]
    assert await fed.row_store.last_of_each([BACKUP]) == {BACKUP: rows[0]}
    fed.row_store.stop()
