"""A start on a disk without a log, refused or not."""

from __future__ import annotations

from pathlib import Path

from cron.fresh import ASIDE, FreshStart, keep


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }


def work(data: Path) -> None:
    """Leave what a replica makes."""
    for folder in ("raft", "segments"):
        (data / folder).mkdir(exist_ok=True)
        (data / folder / "new").write_text("new")
    (data / "snapshots").write_text("new")


def test_a_refused_start_leaves_an_empty_folder_empty(tmp_path: Path) -> None:
    fresh = FreshStart(tmp_path)
    work(tmp_path)
    fresh.undo()
    assert tree(tmp_path) == {}


def test_a_refused_start_leaves_what_an_earlier_life_kept(tmp_path: Path) -> None:
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft" / "lock").touch()
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "old").write_text("old")
    (tmp_path / "snapshots").write_text("old")
    (tmp_path / "mine.txt").write_text("a person's")
    before = tree(tmp_path)
    fresh = FreshStart(tmp_path)
    assert not (tmp_path / "snapshots").exists(), "a new log begins without it"
    work(tmp_path)
    fresh.undo()
    assert tree(tmp_path) == before


def test_what_was_set_aside_goes_once_the_cell_has_taken_the_replica_in(tmp_path: Path) -> None:
    (tmp_path / "snapshots").write_text("old")
    FreshStart(tmp_path)
    work(tmp_path)
    keep(tmp_path)
    assert (tmp_path / "snapshots").read_text() == "new"
    assert not (tmp_path / ASIDE).exists()
    keep(tmp_path)


def test_a_second_start_after_one_that_was_killed_sets_the_rest_aside(tmp_path: Path) -> None:
    (tmp_path / "snapshots").write_text("old")
    FreshStart(tmp_path)
    (tmp_path / "snapshots").write_text("of the start that was killed")
    FreshStart(tmp_path).undo()
    assert (tmp_path / "snapshots").read_text() == "old"


def test_an_empty_folder_on_another_disk_stays_where_it_is(tmp_path: Path) -> None:
    data, disk = tmp_path / "data", tmp_path / "disk"
    data.mkdir()
    disk.mkdir()
    (data / "segments").symlink_to(disk)
    fresh = FreshStart(data)
    work(data)
    assert (disk / "new").exists(), "a replica keeps its segments there"
    fresh.undo()
    assert tree(disk) == {}
    assert (data / "segments").is_symlink()
