"""Names of files and objects: each means one thing, and none of ours is another's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.protocol.names import SCHEDULED_S_MAX, LaunchName
from snapshots import layout
from snapshots.layout import parse_segment_name, parse_snapshot_name, segment_name, snapshot_name
from snapshots.store import check_name

_numbers = st.integers(0, 2**62)
_generations = st.integers(0, 10**9 - 1)


@given(_generations, st.integers(0, 10**17), st.sampled_from(("runs", "failures")))
def test_names_of_segments_come_back(generation: int, number: int, stream: str) -> None:
    assert parse_segment_name(segment_name(generation, number, stream)) == (
        generation,
        number,
        stream,
    )


@given(_numbers, _numbers)
def test_names_of_snapshots_come_back(term: int, index: int) -> None:
    assert parse_snapshot_name(snapshot_name(term, index)) == (term, index)


@given(_generations, _numbers, _numbers)
def test_names_of_objects_come_back_and_are_names(generation: int, term: int, index: int) -> None:
    at = (generation, term, index)
    snapshot = layout.snapshot_object("prod", *at)
    manifest = layout.manifest_object("prod", *at)
    marker = layout.generation_object("prod", generation)
    assert layout.parse_snapshot_object(snapshot) == at
    assert layout.parse_manifest_object(manifest) == at
    assert layout.parse_generation_object(marker) == generation
    assert layout.parse_snapshot_object(manifest) is None
    assert layout.parse_manifest_object(snapshot) is None
    for name in (snapshot, manifest, marker):
        assert check_name(name) == name
        assert name.startswith(layout.cell_prefix("prod"))


@given(st.text(max_size=40))
def test_other_names_are_not_ours(name: str) -> None:
    assert parse_segment_name(name) is None
    assert parse_snapshot_name(name) is None
    assert layout.parse_generation_object(name) is None
    assert layout.parse_snapshot_object(name) is None
    assert layout.parse_manifest_object(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "0001-0000000001-runs.seg.unfinished",
        "0001-0000000001-runs.seg.damaged",
        "00001-0000000001-runs.seg",
        "0001-00000000001-runs.seg",
        "0001-0000000001-others.seg",
        "0001-0000000001-runs.seg\n",
        "\u0660\u0660\u0660\u0661-0000000001-runs.seg",
        "x/0001-0000000001-runs.seg",
    ],
)
def test_almost_a_segment_is_none(name: str) -> None:
    assert parse_segment_name(name) is None


def test_one_generation_has_one_name() -> None:
    """Two names of one thing would be counted, and deleted, as two."""
    place = f"{7:016x}-{9:016x}"
    assert layout.parse_generation_object("cells/prod/lineages/0002.json") == 2
    assert layout.parse_generation_object("cells/prod/lineages/00002.json") is None
    assert layout.parse_manifest_object(f"cells/prod/snapshots/0001-{place}.json") == (1, 7, 9)
    assert layout.parse_manifest_object(f"cells/prod/snapshots/00001-{place}.json") is None
    assert layout.parse_snapshot_object(f"cells/prod/snapshots/00001-{place}.snap") is None


def test_lexical_order_is_log_order() -> None:
    positions = [(1, 9), (1, 10), (2, 1), (10, 10**12)]
    names = [snapshot_name(*one) for one in positions]
    assert sorted(names) == names
    segments = [segment_name(1, number, "runs") for number in (1, 9, 10, 99, 10**9)]
    assert sorted(segments) == segments


def test_a_cell_sees_nothing_of_one_whose_name_begins_alike() -> None:
    assert not layout.segment_object("prod2", "x").startswith(layout.cell_prefix("prod"))


def test_the_output_of_an_attempt_is_an_objects_name() -> None:
    launch = "acme/back-up.2@2026-11-20T15:00:00Z+t1"
    name = layout.output_object("prod", 1_795_219_200_000, launch, 3)
    assert check_name(name) == f"cells/prod/output/2026-11-21/{launch}+a3.zst"
    assert name != layout.output_object("prod", 1_795_219_200_000, launch, 2)


def test_the_longest_name_of_an_attempt_is_an_objects_name() -> None:
    job = f"{'t' * 100}/{'j' * 100}"
    launch = str(LaunchName(job, SCHEDULED_S_MAX, 999_999_999))
    ended_ms = SCHEDULED_S_MAX * 1000 + 999
    name = check_name(layout.output_object("c" * 64, ended_ms, launch, 999_999_999))
    assert max(map(len, name.split("/"))) <= 255, "a directory's limit"
    assert layout.parse_output_day("c" * 64, name) == SCHEDULED_S_MAX // 86_400


@pytest.mark.parametrize("ended_ms", [0, 86_399_999, 86_400_000, 1_795_219_200_000])
def test_the_day_of_an_end_is_in_the_name_of_its_output(ended_ms: int) -> None:
    name = layout.output_object("prod", ended_ms, "default/a@2026-11-20T15:00:00Z", 1)
    assert layout.parse_output_day("prod", name) == ended_ms // 86_400_000


def test_names_of_outputs_are_in_the_order_of_days() -> None:
    day_ms = 86_400_000
    launches = ["zebra/z@2026-11-20T15:00:00Z", "a/a@2026-11-20T15:00:00Z"]
    names = [
        layout.output_object("prod", day * day_ms, launch, 1)
        for day in (1, 364, 365, 10_957, 20_778)
        for launch in sorted(launches)
    ]
    assert sorted(names) == names


@pytest.mark.parametrize(
    "name",
    [
        "cells/prod/output/2026-13-01/default/a@2026-11-20T15:00:00Z+a1.zst",
        "cells/prod/output/2026-02-30/default/a@2026-11-20T15:00:00Z+a1.zst",
        "cells/prod/output/2026-11-20/readme.txt",
        "cells/prod/output/2026-11-20/default/a@2026-11-20T15:00:00Z.zst",
        "cells/prod2/output/2026-11-20/default/a@2026-11-20T15:00:00Z+a1.zst",
        "2026-11-20/default/a@2026-11-20T15:00:00Z+a1.zst",
    ],
)
def test_what_is_no_name_of_an_output_is_not_ours(name: str) -> None:
    assert layout.parse_output_day("prod", name) is None
