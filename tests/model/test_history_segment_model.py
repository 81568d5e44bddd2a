"""A segment against the list of its rows: whatever was sealed is found again, by any question."""

from __future__ import annotations

import random
import struct
from array import array
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cron.history import segment as module
from cron.history.blocks import Planes, from_columns, to_columns, to_planes
from cron.history.order import Match, listed, newest_of, newest_s
from cron.history.segment import HELD_JOBS_MAX, Segment, check_sections, job_hash, sections_of
from cron.launch_state import LaunchState
from cron.notes import Note, NoteCode
from cron.state.archive import SegmentRecord, Stream
from cron.state.rows import Chunk, Row, RowKind, column, rows_of
from cron.state.tail import RowsDamaged, Tail, content_digest
from launcher.protocol.status import Reason
from launcher.protocol.work import Epoch
from tests.drawn import seeds

LONG = 1024
"""Bytes of a long text."""
JOBS = ("default/a", "default/b", "acme/a", "acme/twelve")
ENDS = (LaunchState.SUCCEEDED, LaunchState.SKIPPED, LaunchState.CANCELLED)


@st.composite
def drawn_rows(draw: st.DrawFn, *, is_numbered: bool | None = None) -> list[Row]:
    """Rows of one stream in log order; those of an entry are numbered, or all have none."""
    numbered = draw(st.booleans()) if is_numbered is None else is_numbered
    index, number, rows = 10**12, 0, []
    for _ in range(draw(st.integers(1, 40))):
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
                detail="x" * draw(st.sampled_from((0, 0, 0, 3, LONG))),
                number=number if numbered else -1,
            )
        )
    return rows


def random_chunk(rng: random.Random, index: int, number: int) -> Chunk:
    """A chunk of an entry, whose rows are numbered from `number`."""
    rows = rng.randint(1, 12)
    begun_s = 1_795_190_400 + rng.randint(0, 40)
    started = begun_s * 1000

    def some(*values: int) -> int | bytes:
        """One value for all, mostly, or any for each."""
        return column(rng.choices(values, k=1 if rng.random() < 0.7 else rows))

    return Chunk(
        rng.choice(ENDS),
        rng.choice((Reason.NONE, Reason.KILLED)),
        rng.choice((-1, 0, 7)),
        index,
        started + rng.randint(-5, 500),
        rng.choice((0, index - 1)),
        rng.choice((0, started, 2**62, -(2**63))),
        rng.choice((Epoch(), Epoch(1, 2, "r1"))),
        rng.choice(("", "e1", "e2")),
        rng.choice(("", "l1")),
        "\n".join(rng.choices(JOBS, k=rows)),
        some(1, 2),
        some(begun_s, begun_s, begun_s - 3, begun_s + 1),
        some(0, 0, 4),
        some(1, 1, 2, 0),
        some(-1, begun_s // 60),
        some(0, index),
        some(0, started + 2),
        some(started, started + 1, 0, 2**63 - 1),
        some(started + 2, started + 9, 0, -(2**63)),
        some(0, 0, 7),
        number,
        rng.choice((None, None, Note(NoteCode.REMOVED))),
        cpu_ms=some(0, 0, 30, 2**63 - 1),
        memory_peak_bytes=some(0, 0, 1 << 20),
    )


def random_skipped(rng: random.Random, index: int, number: int) -> Chunk:
    """Skipped instants of some jobs, whose rows are numbered from `number`."""
    first_s, count = 1_795_190_400 + rng.randint(0, 40), rng.choice((1, 2, 6))
    like = Row(
        RowKind.ENDED, "", 1, first_s, 0, 0, LaunchState.SKIPPED, Reason.OVERLOAD, index, 7,
        first_s + count - 1, count, rng.choice((-1, 5)),
        note=rng.choice((None, Note(NoteCode.GATE, (1, "x" * rng.choice((1, LONG)))))),
        number=number,
    )  # fmt: skip
    rows = rng.randint(1, 12)
    return Chunk.skipped(like, rng.choices(JOBS, k=rows), rng.choices((1, 2), k=rows))


@st.composite
def drawn_items(draw: st.DrawFn, *, is_numbered: bool | None = None) -> list[Row | Chunk]:
    """Rows and chunks of one stream in log order."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    items: list[Row | Chunk] = []
    number, index = 0, 0
    for row in draw(drawn_rows(is_numbered=is_numbered)):
        if row.ended_index != index:
            index, number = row.ended_index, 0
        number += rng.randint(0, 1)
        made = rng.choice((random_chunk, random_skipped, None, None))
        if made is not None:
            items.append(made(rng, index, number))
        else:
            items.append(msgspec.structs.replace(row, number=number if row.number >= 0 else -1))
        number += len(rows_of(items[-1]))
    return items


class Held:
    """A segment's sections in memory."""

    def __init__(self, sections: list[bytes]) -> None:
        self.sections = sections

    def __len__(self) -> int:
        return len(self.sections)

    def read(self, number: int) -> bytes:
        return self.sections[number]


def sealed(items: Sequence[Row | Chunk]) -> tuple[Tail, SegmentRecord, Held]:
    tail = Tail()
    for item in items:
        tail.append(item)
    record = SegmentRecord(
        1, 1, Stream.RUNS, items[0].ended_index - 1, items[-1].ended_index, tail.rows,
        len(tail.whole()), tail.digest(), tail.first_s, tail.last_s, 0,
    )  # fmt: skip
    return tail, record, Held(sections_of(tail))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_ROWS", 7)
    monkeypatch.setattr(module, "BLOCK_BYTES", 3 * LONG)


matches = st.builds(
    lambda since_s, span_s, states: Match(
        1_795_190_400 + since_s, 1_795_190_400 + since_s + span_s, sum(1 << one for one in states)
    ),
    st.integers(0, 50),
    st.integers(-2, 60),
    st.frozensets(st.sampled_from(ENDS)),
)


@given(drawn_items(), matches, st.integers(1, 9), st.sampled_from([0, HELD_JOBS_MAX]))
def test_a_segment_answers_what_a_search_of_its_rows_answers(
    items: list[Row | Chunk], match: Match, limit: int, held_jobs_max: int
) -> None:
    tail, record, sections = sealed(items)
    rows = [row for item in items for row in rows_of(item)]
    segment = Segment(record, sections, held_jobs_max)
    assert segment.content() == tail.whole()
    assert Tail.of(tail.whole()).all_rows() == rows
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
    lasts_s = {
        job: max(newest_s(row) for row in rows if row.job == job)
        for job in {row.job for row in rows}
    }
    assert segment.lasts_s() == lasts_s
    than_s = {job: match.since_s for job in JOBS}
    later = Counter(row.job for row in rows if newest_s(row) > match.since_s)
    assert Counter(segment.later(than_s)) == Counter(
        {job: later[job] for job in JOBS if later[job]}
    )


@given(drawn_items())
@settings(max_examples=30)
def test_a_replica_that_began_with_an_image_writes_the_same_bytes(
    items: list[Row | Chunk],
) -> None:
    tail, _, sections = sealed(items)
    assert sections_of(Tail.of(tail.whole())) == sections.sections


@given(drawn_items(is_numbered=True), st.data())
def test_rows_that_the_catalog_does_not_name_are_refused(
    items: list[Row | Chunk], data: st.DataObject
) -> None:
    """Also where the file is whole, and somebody has written others into it."""
    _, record, sections = sealed(items)
    at = data.draw(st.integers(0, len(items) - 1))
    changed = msgspec.structs.replace(items[at], exit_code=77)
    _, _, others = sealed([*items[:at], changed, *items[at + 1 :]])
    with pytest.raises(RowsDamaged, match="catalog"):
        Segment(record, others).content()
    assert content_digest(Segment(record, sections).content()) == record.digest


@pytest.mark.parametrize("seed", seeds(40))
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
    chunk = Chunk(
        rng.choice(ENDS), Reason.NONE, 0, 10**12 + 10, 0, 9, 1_795_190_400_000, Epoch(), "e1", "l1",
        "\n".join(rng.choices(JOBS, k=20)), 1, 1_795_190_400, number=0,
        started_ms=column([1_795_190_400_000 + at for at in range(20)]),
    )  # fmt: skip
    _, record, sections = sealed([*rows, chunk])
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


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30))
def test_integers_come_back_from_planes(items: list[int]) -> None:
    numbers = array("q", items)
    content = to_planes(numbers) + to_planes(numbers[:1]) + b"rest"
    planes = Planes(content)
    assert planes.read(len(items)) == numbers
    assert planes.read(1) == numbers[:1]
    assert planes.rest() == b"rest"


def test_columns_are_of_one_byte_order() -> None:
    items = from_columns("q", bytes((1, 2)) + bytes((0, 0)) * 6 + bytes((0, 0xFF)))
    assert list(items) == [1, struct.unpack("<q", bytes((2, 0, 0, 0, 0, 0, 0, 0xFF)))[0]]
    assert to_columns(items) == bytes((1, 2)) + bytes((0, 0)) * 6 + bytes((0, 0xFF))
