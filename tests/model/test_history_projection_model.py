"""The projection against a list that is searched from end to end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cron.errors import Unavailable
from cron.history.gaps import Gap, widened
from cron.history.order import Query
from cron.history.projection import Projection
from cron.history.schema import Unusable
from cron.state.archive import SegmentRecord, Stream, Tail, content_digest, stream_of
from cron.state.rows import Row, RowKind
from launcher.launch import LaunchState, Reason
from launcher.names import LaunchName

_ENDS = sorted(set(LaunchState) - {LaunchState.DUE, LaunchState.BEGUN, LaunchState.LAUNCHED})
_JOBS = ("default/a", "default/b", "acme/a")
_times = st.integers(0, 40)


@st.composite
def _row(draw: st.DrawFn) -> Row:
    kind = draw(st.sampled_from(RowKind))
    first_s = draw(_times)
    is_range = kind is RowKind.RANGE
    last_s = first_s + draw(st.sampled_from((0, 1, 2, 3, 5, 9, 17, 64))) if is_range else 0
    return Row(
        kind=kind,
        job=draw(st.sampled_from(_JOBS)),
        revision=1,
        scheduled_s=first_s,
        trigger=0 if is_range else draw(st.integers(0, 1)),
        attempt=0 if is_range else draw(st.integers(0, 2)),
        state=LaunchState.SKIPPED if is_range else draw(st.sampled_from(_ENDS)),
        reason=Reason.NONE,
        ended_index=draw(st.integers(0, 3)),  # the step to the next row's index, see _in_log_order
        ended_at_ms=0,
        last_s=last_s,
        count=last_s - first_s + 1 if is_range else 1,
    )


def _in_log_order(rows: list[Row]) -> list[Row]:
    index, ordered = 1, []
    for row in rows:
        index += row.ended_index
        fields = {name: getattr(row, name) for name in row.__struct_fields__}
        ordered.append(Row(**(fields | {"ended_index": index})))
    return ordered


_queries = st.builds(
    lambda job, states, since_s, span_s, limit: Query(
        job, states, since_s * 1000, (since_s + span_s) * 1000, limit
    ),
    st.none() | st.sampled_from((*_JOBS, "default/never")),
    st.none() | st.frozensets(st.sampled_from(_ENDS)),
    _times,
    st.integers(-2, 60),
    st.integers(1, 20),
)


def _newest_s(row: Row) -> int:
    return row.last_s if row.kind is RowKind.RANGE else row.scheduled_s


def _overlaps(row: Row, from_s: int, to_s: int) -> bool:
    return from_s <= to_s and row.scheduled_s <= to_s and _newest_s(row) >= from_s


def _in_order(rows: list[Row]) -> list[Row]:
    """Rows as the projection orders those of one entry: the streams take turns."""
    counts: Counter[tuple[int, Stream]] = Counter()
    keyed = []
    for row in rows:
        key = (row.ended_index, stream_of(row))
        keyed.append((row.ended_index, counts[key], key[1], row))
        counts[key] += 1
    return [row for *_, row in sorted(keyed, key=lambda item: item[:3])]


def _in_lists(rows: list[Row]) -> list[Row]:
    """Rows as lists have those of one entry: one stream after the other."""
    return sorted(rows, key=lambda row: (row.ended_index, stream_of(row)))


def _newest(rows: list[Row], query: Query) -> list[Row]:
    found = [
        (_newest_s(row), row.attempt, seq, row)
        for seq, row in enumerate(_in_lists(rows))
        if query.job in (None, row.job)
        and (query.states is None or row.state in query.states)
        and _overlaps(row, query.since_ms // 1000, query.until_ms // 1000)
    ]
    found.sort(key=lambda item: item[:3], reverse=True)
    return [row for *_, row in found[: query.limit]]


async def _compare(
    path: Path, rows: list[Row], cuts: list[int], wanted: list[Query], at_s: int
) -> None:
    projection = Projection(path)
    projection.start()
    seen: list[Row] = []
    for cut in [*sorted(cuts), len(rows)]:
        batch = rows[len(seen) : cut]
        # A batch never ends inside an entry: all rows of a log index are applied together.
        while batch and cut < len(rows) and rows[cut].ended_index == batch[-1].ended_index:
            batch.append(rows[cut])
            cut += 1
        again = seen[-3:]  # offered a second time, as after a restart
        if batch:
            projection.offer(again + batch, batch[-1].ended_index)
            seen += batch
    await compare(projection, seen, wanted, at_s)
    projection.stop()


async def compare(projection: Projection, seen: list[Row], wanted: list[Query], at_s: int) -> None:
    """Compare all answers with those of a search of the list `seen`, which is in log order."""
    for query in wanted:
        assert await projection.newest(query) == _newest(seen, query)
    for job in _JOBS:
        of_job = [
            row for row in _in_order(seen) if row.job == job and _overlaps(row, at_s, at_s + 10)
        ]
        of_job.sort(key=lambda row: row.scheduled_s)
        assert await projection.of_job(job, at_s, at_s + 10) == of_job
        last = await projection.last_of_each([job])
        assert last.get(job) == next(iter(_newest(seen, Query(job))), None)
        for trigger in (0, 1):
            of_launch = [
                row
                for row in seen
                if row.job == job and row.trigger == trigger and _overlaps(row, at_s, at_s)
            ]
            found = await projection.of_launch(LaunchName(job, at_s, trigger))
            assert sorted(found, key=repr) == sorted(of_launch, key=repr)
            assert [row.ended_index for row in found] == sorted(r.ended_index for r in of_launch)
    counts = await projection.counts()
    assert counts.rows == len(seen)
    for state in LaunchState:
        assert counts.instants.get(state, 0) == sum(
            row.count for row in seen if row.state is state and row.kind is not RowKind.AMENDMENT
        )


@given(
    st.lists(_row(), max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
    st.lists(_queries, min_size=1, max_size=8),
    _times,
)
@settings(max_examples=60, deadline=None)
def test_every_query_answers_what_a_search_of_the_whole_list_answers(
    rows: list[Row], cuts: list[int], wanted: list[Query], at_s: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(
            _compare(Path(folder) / "history.sqlite", _in_log_order(rows), cuts, wanted, at_s)
        )


class _Life:
    """A replica's history, with everything that may befall it, beside the naive list of its rows.

    What has been applied is `rows`; `sealed_to` is where the tails begin; `gone` has the keys of
    segments that retention took.
    """

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path = path
        self.rng = rng
        self.index = 0
        self.sealed_to = 0
        self.rows: list[Row] = []
        self.records: list[SegmentRecord] = []
        self.contents: dict[tuple[int, int, int], bytes] = {}
        self.gone: set[tuple[int, int, int]] = set()
        self.projection = Projection(path)
        self.projection.start()

    def apply(self) -> None:
        """Apply an entry with a few rows."""
        self.index += self.rng.choice((1, 1, 1, 2, 7))
        more = [
            Row(
                RowKind.ENDED,
                self.rng.choice(_JOBS),
                1,
                self.rng.randrange(40),
                0,
                1,
                self.rng.choice(_ENDS),
                Reason.NONE,
                self.index,
                0,
            )
            for _ in range(self.rng.choice((0, 1, 1, 2, 5)))
        ]
        self.rows += more
        if more:
            self.projection.offer(more, self.index)

    def seal(self) -> None:
        """Close the tails, as State does."""
        rows = self._after(self.sealed_to)
        for stream in Stream:
            tail = Tail()
            for row in rows:
                if stream_of(row) is stream:
                    tail.append(row)
            if tail.rows:
                content = tail.whole()
                number = 1 + max((r.number for r in self.records), default=0)
                number -= any(r.to_index == self.index for r in self.records)
                record = SegmentRecord(
                    1, number, stream, self.sealed_to, self.index, tail.rows, len(content),
                    content_digest(content), 0, 0, 0,
                )  # fmt: skip
                self.records.append(record)
                self.contents[record.key] = content
        if rows:
            self.sealed_to = self.index
            self.projection.offer([], self.index)

    def _after(self, index: int) -> list[Row]:
        return [row for row in self.rows if row.ended_index > index]

    def restart(self) -> None:
        """End without writing what waits; perhaps without the file; begin like the applier."""
        self.projection.stop(flush=self.rng.random() < 0.3)
        if self.rng.random() < 0.4:
            self.path.unlink(missing_ok=True)
        self.projection = Projection(self.path)
        self.projection.start()
        mark = self.projection.mark
        self.projection.offer(
            self._after(max(mark, self.sealed_to)),
            self.index,
            gap_from=mark,
            gap_to=max(self.sealed_to, 0),
        )

    async def break_file(self) -> None:
        """Find the file damaged: all that was in it becomes a gap."""

        def find_damage(_db: object) -> None:
            raise Unusable("a test says so")

        with pytest.raises(Unavailable):
            await self.projection.ask(find_damage)

    def mend(self) -> None:
        """Give the tails again, as the filler does."""
        self.projection.mend(self._after(self.sealed_to), self.sealed_to, self.index)

    async def fill(self, record: SegmentRecord) -> None:
        """Fill from one segment; perhaps the replica is killed meanwhile."""
        seal = [r for r in self.records if r.number == record.number]
        keys = frozenset(r.key for r in seal if not self.gone & {r.key for r in seal})
        filling = asyncio.create_task(self.projection.fill(record, self.contents[record.key], keys))
        if self.rng.random() < 0.3:
            await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.005)))
            self.restart()
        with contextlib.suppress(Unavailable):
            await filling

    @property
    def kept(self) -> list[SegmentRecord]:
        """The records that the catalog still has."""
        return [record for record in self.records if record.key not in self.gone]

    async def retire(self) -> None:
        """Let the oldest segment of a stream go."""
        stream = self.rng.choice(list(Stream))
        mine = [record for record in self.kept if record.stream == stream]
        if mine:
            self.gone.add(mine[0].key)
            await self.projection.retain(self.kept, self.sealed_to)

    async def settle(self) -> None:
        """Do all that the filler does, until nothing is left to do."""
        await self.projection.retain(self.kept, self.sealed_to)
        self.mend()
        for record in self.kept:
            seal = [r for r in self.records if r.number == record.number]
            keys = frozenset(r.key for r in seal if not self.gone & {r.key for r in seal})
            await self.projection.fill(record, self.contents[record.key], keys)

    def expected(self) -> list[Row]:
        """The rows that are to be there: all but those of segments that are gone."""
        gone = [record for record in self.records if record.key in self.gone]
        return [
            row
            for row in self.rows
            if not any(
                r.stream == stream_of(row) and r.from_index < row.ended_index <= r.to_index
                for r in gone
            )
        ]

    def gone_gaps(self) -> list[Gap]:
        """What must be told as missing: what retention took."""
        gaps: list[Gap] = []
        for key in self.gone:
            record = next(r for r in self.records if r.key == key)
            gaps = widened(gaps, Gap(record.from_index, record.to_index))
        return gaps


async def _live(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    life = _Life(path, rng)
    for _ in range(rng.randrange(10, 60)):
        act = rng.random()
        if act < 0.55:
            life.apply()
        elif act < 0.70:
            life.seal()
        elif act < 0.76:
            life.restart()
        elif act < 0.79:
            await life.break_file()
        elif act < 0.82:
            life.mend()
        elif act < 0.94 and life.kept:
            await life.fill(rng.choice(life.kept))
        elif act >= 0.94:
            await life.retire()
    await life.settle()
    rows = life.expected()
    await compare(life.projection, rows, [Query(limit=1000), Query(_JOBS[0], limit=3)], 5)
    for gap in await life.projection.gaps():
        assert any(
            gone.from_index <= gap.from_index and gap.to_index <= gone.to_index
            for gone in life.gone_gaps()
        ), "what is here is told as missing"
    life.projection.stop()


@pytest.mark.parametrize("seed", range(60))
def test_history_is_whole_again_whatever_befell_it(seed: int, monkeypatch: Any) -> None:
    """Any order of live rows, segments, retention, kills and damage: in the end the projection has
    what a naive list has. Pieces are of two rows, so that kills fall between them."""
    monkeypatch.setattr("cron.history.inserts.PIECE_ROWS", 2)
    monkeypatch.setattr("cron.history.chores.PIECE_ROWS", 2)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_live(Path(folder) / "history.sqlite", seed))
