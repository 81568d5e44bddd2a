"""launcher.private: what raftcron writes, only its user may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from launcher.private import private_files, tighten, umask_before


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as an older version made it."""
    old = tmp_path / "data"
    for one in (old, old / "segments"):
        one.mkdir()
        one.chmod(0o755)
    for file in (old / "lock", old / "segments" / "a.seg"):
        file.write_bytes(b"rows")
        file.chmod(0o644)
    return old


def test_an_older_versions_files_are_closed_to_others(folder: Path) -> None:
    assert tighten(folder) == 4
    assert mode(folder) == mode(folder / "segments") == 0o700
    assert mode(folder / "lock") == mode(folder / "segments" / "a.seg") == 0o600
    assert tighten(folder) == 0


def test_a_folder_that_is_shared_keeps_its_own_mode(folder: Path) -> None:
    assert tighten(folder, is_shared=True) == 3
    assert mode(folder) == 0o755
    assert mode(folder / "lock") == 0o600


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"")
    for one, wanted in ((outside, 0o755), (outside / "file", 0o644)):
        one.chmod(wanted)
    (folder / "folder").symlink_to(outside)
    (folder / "file").symlink_to(outside / "file")
    tighten(folder)
    assert (mode(outside), mode(outside / "file")) == (0o755, 0o644)


def test_a_start_looks_at_a_bounded_number_of_files(folder: Path) -> None:
    for number in range(20):
        (folder / f"{number}").write_bytes(b"")
        (folder / f"{number}").chmod(0o644)
    assert tighten(folder, files_max=5) <= 6
    assert mode(folder) == 0o700, "who may not enter reaches nothing in it"


def test_what_is_not_there_is_nothing_to_close(tmp_path: Path) -> None:
    assert tighten(tmp_path / "nothing") == 0


def test_the_umask_that_a_process_was_started_with_is_remembered(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with private_files():
            (tmp_path / "file").write_bytes(b"")
            assert umask_before() == 0o027
        (tmp_path / "other").write_bytes(b"")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "file"), mode(tmp_path / "other")) == (0o600, 0o640)
