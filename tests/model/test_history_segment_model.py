"""A segment against the list of its rows: whatever was sealed is found again, by any question."""

from __future__ import annotations

import random
import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cron.history import segment as module
from cron.history.blocks import COLUMN_BYTES_MAX, Block, from_columns, pack, to_columns
from cron.history.order import Match, listed, newest_of
from cron.history.segment import Segment, check_sections, job_hash, sections_of
from cron.state.archive import (
    RowsDamaged,
    SegmentRecord,
    Stream,
    Tail,
    content_digest,
    decode_rows,
)
from cron.state.rows import Row, RowKind
from launcher.launch import LaunchState, Reason

JOBS = ("default/a", "default/b", "acme/a", "acme/twelve")
ENDS = (LaunchState.SUCCEEDED, LaunchState.SKIPPED, LaunchState.CANCELLED)


@st.composite
def drawn_rows(draw: st.DrawFn, *, is_numbered: bool | None = None) -> list[Row]:
    """Rows of one stream in log order; those of an entry are numbered, or all have none."""
    numbered = draw(st.booleans()) if is_numbered is None else is_numbered
    index, number, rows = 10**12, 0, []
    for _ in range(draw(st.integers(1, 60))):
        step = draw(st.integers(0, 2))
        index, number = index + step, 0 if step else number + draw(st.integers(1, 2))
        kind = draw(st.sampled_from(RowKind))
        first_s = 1_795_190_400 + draw(st.integers(0, 40))
        length = draw(st.sampled_from((0, 1, 5, 64))) if kind is RowKind.RANGE else 0
        rows.append(
            Row(
                kind,
                draw(st.sampled_from(JOBS)),
                1,
                first_s,
                0,
                draw(st.integers(0, 2)),
                LaunchState.SKIPPED if length else draw(st.sampled_from(ENDS)),
                Reason.NONE,
                index,
                first_s * 1000,
                first_s + length,
                output_bytes=draw(st.sampled_from((0, 0, 7))),
                detail="x" * draw(st.sampled_from((0, 0, 0, 3, COLUMN_BYTES_MAX))),
                number=number if numbered else -1,
            )
        )
    return rows


class Held:
    """A segment's sections in memory."""

    def __init__(self, sections: list[bytes]) -> None:
        self.sections = sections

    def __len__(self) -> int:
        return len(self.sections)

    def read(self, number: int) -> bytes:
        return self.sections[number]


def sealed(rows: list[Row]) -> tuple[Tail, SegmentRecord, Held]:
    tail = Tail()
    for row in rows:
        tail.append(row)
    record = SegmentRecord(
        1, 1, Stream.RUNS, rows[0].ended_index - 1, rows[-1].ended_index, tail.rows,
        len(tail.whole()), tail.digest(), tail.first_s, tail.last_s, 0,
    )  # fmt: skip
    return tail, record, Held(sections_of(tail))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_ROWS", 7)
    monkeypatch.setattr(module, "PIECE_ROWS", 5)
    monkeypatch.setattr(module, "BLOCK_BYTES", 3 * COLUMN_BYTES_MAX)


matches = st.builds(
    lambda since_s, span_s, states: Match(
        1_795_190_400 + since_s, 1_795_190_400 + since_s + span_s, sum(1 << one for one in states)
    ),
    st.integers(0, 50),
    st.integers(-2, 60),
    st.frozensets(st.sampled_from(ENDS)),
)


@given(drawn_rows(), matches, st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_a_segment_answers_what_a_search_of_its_rows_answers(
    rows: list[Row], match: Match, limit: int
) -> None:
    tail, record, sections = sealed(rows)
    segment = Segment(record, sections)
    assert segment.content() == tail.whole()
    assert decode_rows(tail.whole()) == rows
    by_job = sorted(rows, key=lambda row: (job_hash(row.job), row.job))
    assert list(segment.all_rows()) == by_job
    fitting = [row for row in rows if match.fits(row)]
    newest = newest_of(fitting, limit)
    assert [*map(listed, newest_of(segment.newest(match, limit), limit))] == [*map(listed, newest)]
    for job in (*JOBS, "default/never"):
        mine = [row for row in fitting if row.job == job]
        assert sorted(segment.of_job(job, match), key=repr) == sorted(mine, key=repr)
        some = newest_of(segment.of_job(job, match, limit), limit)
        assert [*map(listed, some)] == [*map(listed, newest_of(mine, limit))]
        begin, end = segment.span(job_hash(job))
        assert end - begin == sum(row.job == job for row in rows)
    indexes, places = segment.outputs()
    with_output = [row for row in rows if row.output_bytes]
    assert list(indexes) == [row.ended_index for row in with_output]
    assert [by_job[place] for place in places] == with_output
    times = segment.times()
    assert list(times.firsts_s) == [row.scheduled_s for row in by_job]
    assert list(times.states) == [row.state for row in by_job]
    assert [job for job, _, _ in segment.jobs()] == list(dict.fromkeys(row.job for row in by_job))


@given(drawn_rows())
@settings(max_examples=30, deadline=None)
def test_a_replica_that_began_with_an_image_writes_the_same_bytes(rows: list[Row]) -> None:
    tail, _, sections = sealed(rows)
    assert sections_of(Tail.of(tail.whole())) == sections.sections


@given(drawn_rows(is_numbered=True), st.data())
@settings(max_examples=60, deadline=None)
def test_rows_that_the_catalog_does_not_name_are_refused(
    rows: list[Row], data: st.DataObject
) -> None:
    """Also where the file is whole, and somebody has written others into it."""
    _, record, sections = sealed(rows)
    at = data.draw(st.integers(0, len(rows) - 1))
    changed = msgspec.structs.replace(rows[at], exit_code=77)
    _, _, others = sealed([*rows[:at], changed, *rows[at + 1 :]])
    with pytest.raises(RowsDamaged, match="catalog"):
        Segment(record, others).content()
    assert content_digest(Segment(record, sections).content()) == record.digest


@pytest.mark.parametrize("seed", range(40))
def test_sections_that_are_not_those_of_the_rows_are_refused(seed: int) -> None:
    """Also where their rows are right, and the index or the times are not."""
    rng = random.Random(seed)
    rows = [
        Row(
            RowKind.ENDED, rng.choice(JOBS), 1, 1_795_190_400 + at, 0, 1, rng.choice(ENDS),
            Reason.NONE, 10**12 + at // 3, 0, output_bytes=at % 2, number=at % 3,
        )
        for at in range(30)
    ]  # fmt: skip
    _, record, sections = sealed(rows)
    check_sections(record, sections)
    number = rng.choice([at for at, one in enumerate(sections.sections) if one])
    content = bytearray(sections.sections[number])
    if rng.random() < 0.7:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    else:
        content = content[: rng.randrange(len(content))]
    sections.sections[number] = bytes(content)
    with pytest.raises(RowsDamaged):
        check_sections(record, sections)


@given(st.lists(st.binary(max_size=40), max_size=60), st.data())
@settings(max_examples=50, deadline=None)
def test_a_block_returns_the_bytes_that_it_was_given(
    rows: list[bytes], data: st.DataObject
) -> None:
    block = Block(pack(rows))
    wanted = sorted(data.draw(st.sets(st.integers(0, max(len(rows) - 1, 0))))) if rows else []
    assert block.rows(wanted) == [rows[at] for at in wanted]
    assert block.rows(range(len(block))) == rows


def test_columns_are_of_one_byte_order() -> None:
    items = from_columns("q", bytes((1, 2)) + bytes((0, 0)) * 6 + bytes((0, 0xFF)))
    assert list(items) == [1, struct.unpack("<q", bytes((2, 0, 0, 0, 0, 0, 0, 0xFF)))[0]]
    assert to_columns(items) == bytes((1, 2)) + bytes((0, 0)) * 6 + bytes((0, 0xFF))
