"""Outputs of commands: bounded on the disk, the last part kept, read from any place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.executor.commands import output
from launcher.executor.commands.output import Output, read
from launcher.executor.outputs import Outputs
from launcher.limits import OUTPUT_CHUNK_BYTES_MAX
from launcher.protocol.v1 import pool_pb2

NAME = "acme/" + "j" * 100 + "@2026-11-20T15:00:00Z+t123456789#123456789/123456789"


def written(tmp_path: Path, bound: int, *pieces: bytes) -> Path:
    stem = tmp_path / "one"
    target = Output(str(stem), bound)
    for piece in pieces:
        target.write(piece)
    target.close()
    return stem


def test_what_fits_is_kept_whole(tmp_path: Path) -> None:
    piece = read(written(tmp_path, 64, b"one ", b"two"), 0, 100, tail=False)
    assert piece == (b"one two", 0, 7, 0)


def test_nothing_written_is_no_file_and_an_empty_output(tmp_path: Path) -> None:
    stem = written(tmp_path, 64)
    assert not list(tmp_path.iterdir())
    assert read(stem, 5, 100, tail=True) == (b"", 0, 0, 0)


@pytest.mark.parametrize("piece_bytes", [1, 7, 20, 333])
def test_of_a_flood_the_last_part_is_kept_within_the_bound(
    tmp_path: Path, piece_bytes: int
) -> None:
    whole = b"".join(b"%06d\n" % number for number in range(143))
    bound = 40
    pieces = [whole[at : at + piece_bytes] for at in range(0, len(whole), piece_bytes)]
    stem = written(tmp_path, bound, *pieces)
    kept = read(stem, 0, 10_000, tail=False)
    assert whole.endswith(kept.data)
    assert bound // 2 <= kept.kept == len(kept.data) <= bound
    assert kept.offset == kept.dropped == len(whole) - len(kept.data)
    on_disk = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert on_disk <= bound + 2 * output.HEADER_BYTES


@pytest.mark.parametrize("piece_bytes", [1, 7, 20, 333])
def test_a_file_that_is_closed_between_two_pieces_has_the_same_in_it(
    tmp_path: Path, piece_bytes: int
) -> None:
    whole = b"".join(b"%06d\n" % number for number in range(143))
    pieces = [whole[at : at + piece_bytes] for at in range(0, len(whole), piece_bytes)]
    stem = written(tmp_path, 40, *pieces)
    rested = Output(str(tmp_path / "rested"), 40)
    for piece in pieces:
        rested.write(piece)
        rested.close()
    assert read(tmp_path / "rested", 0, 10_000, tail=False) == read(stem, 0, 10_000, tail=False)


def test_every_place_that_is_kept_can_be_read(tmp_path: Path) -> None:
    whole = bytes(range(200))
    stem = written(tmp_path, 64, whole)
    for offset in range(0, 201, 3):
        for limit in (1, 10, 500):
            piece = read(stem, offset, limit, tail=False)
            assert piece.offset == min(max(offset, piece.dropped), 200)
            assert piece.data == whole[piece.offset : piece.offset + limit]


def test_the_tail_is_the_last_bytes(tmp_path: Path) -> None:
    stem = written(tmp_path, 64, bytes(range(200)))
    assert read(stem, 0, 5, tail=True).data == bytes(range(195, 200))
    assert read(stem, 0, 50, tail=True).offset == 200 - read(stem, 0, 50, tail=True).kept


def test_files_that_do_not_fit_together_are_not_joined(tmp_path: Path) -> None:
    # Between reading `.old` and `.new` the writer may have turned the files.
    stem = written(tmp_path, 20, bytes(25))
    old = Path(f"{stem}.old")
    old.write_bytes((3).to_bytes(8, "big") + b"stale")
    piece = read(stem, 0, 100, tail=False)
    assert (piece.offset, piece.data) == (20, bytes(5))


def test_a_disk_that_takes_no_more_is_said_and_stops_nobody(tmp_path: Path) -> None:
    target = Output(str(tmp_path / "no" / "such" / "directory"), 64)
    target.write(b"lost")
    target.write(b"lost too")
    assert "output is not kept" in target.problem
    assert target.kept == 0


def test_the_longest_name_has_a_file_name() -> None:
    assert len(output.stem_of(NAME)) == 32
    assert output.stem_of(NAME) != output.stem_of(NAME[:-1])


def kept_names(outputs: Outputs, names: list[str]) -> list[str]:
    return [name for name in names if Path(f"{outputs.stem(name)}.new").exists()]


def fill(outputs: Outputs, name: str, size: int) -> None:
    target = Output(str(outputs.stem(name)), 1_000)
    target.write(bytes(size))
    target.close()
    outputs.finished(name, target.kept)


def test_the_oldest_outputs_go_when_there_are_too_many(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "output", 2, 10_000)
    for name in "abc":
        fill(outputs, name, 10)
    assert kept_names(outputs, ["a", "b", "c"]) == ["b", "c"]


def test_the_oldest_outputs_go_when_they_are_too_large(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "output", 100, 250)
    for name in "abc":
        fill(outputs, name, 100)
    assert kept_names(outputs, ["a", "b", "c"]) == ["b", "c"]
    outputs.finished("silent", 0)
    assert kept_names(outputs, ["a", "b", "c"]) == ["b", "c"]


def test_outputs_of_before_a_restart_count(tmp_path: Path) -> None:
    first = Outputs(tmp_path / "output", 2, 10_000)
    fill(first, "a", 10)
    fill(first, "b", 10)
    os.utime(f"{first.stem('a')}.new", (1, 1))
    again = Outputs(tmp_path / "output", 2, 10_000)
    fill(again, "c", 10)
    assert kept_names(again, ["a", "b", "c"]) == ["b", "c"]


def test_a_request_is_answered_with_its_part(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "output", 2, 10_000)
    fill(outputs, "a", 100)
    request = pool_pb2.OutputRequest(request=9, name="a", offset=90, limit=5)
    chunk = outputs.answer(request, running=False)
    assert (chunk.request, len(chunk.data), chunk.offset, chunk.size) == (9, 5, 90, 100)
    assert not chunk.ended
    request.offset = 95
    assert outputs.answer(request, running=False).ended
    assert not outputs.answer(request, running=True).ended


def test_an_answer_is_bounded(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "output", 2, 1 << 30)
    target = Output(str(outputs.stem("a")), 4 << 20)
    target.write(bytes(1 << 20))
    target.close()
    for limit in (0, 1 << 31):
        request = pool_pb2.OutputRequest(name="a", limit=limit)
        assert len(outputs.answer(request, running=True).data) == OUTPUT_CHUNK_BYTES_MAX


def test_an_output_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "output", 2, 10_000)
    Path(f"{outputs.stem('a')}.new").symlink_to(tmp_path)
    chunk = outputs.answer(pool_pb2.OutputRequest(request=1, name="a"), running=False)
    assert chunk.error.startswith("output of a: ")
