"""The projection against a list that is searched from end to end."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from cron.history.projection import Projection
from cron.history.queries import Query
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


def _newest(rows: list[Row], query: Query) -> list[Row]:
    found = [
        (_newest_s(row), row.attempt, seq, row)
        for seq, row in enumerate(rows)
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
    for query in wanted:
        assert await projection.newest(query) == _newest(seen, query)
    for job in _JOBS:
        of_job = [row for row in seen if row.job == job and _overlaps(row, at_s, at_s + 10)]
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
    projection.stop()


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
