"""launcher.private: what raftcron writes, only its user may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from launcher.errors import BadConfig
from launcher.private import make_private, private_files, umask_before


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


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


def test_a_folder_that_others_may_enter_becomes_its_owners(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o755)
    assert make_private(folder) == "0755"
    assert mode(folder) == 0o700
    assert make_private(folder) == ""


def test_a_group_of_workers_keeps_its_way_to_the_socket_and_no_more(tmp_path: Path) -> None:
    tmp_path.chmod(0o775)
    assert make_private(tmp_path, kept=0o010) == "0775"
    assert mode(tmp_path) == 0o710
    assert make_private(tmp_path, kept=0o010) == ""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a folder to another user")
def test_a_folder_of_another_user_is_refused_with_the_way_out(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o755)
    os.chown(folder, 12_345, -1)
    with pytest.raises(BadConfig, match=r"mode 0755.*user id 12345") as refused:
        make_private(folder)
    assert refused.value.hint == f"chmod 700 {folder}"
    assert mode(folder) == 0o755
    folder.chmod(0o700)
    assert make_private(folder) == "", "its user's alone: whoever starts us may have a reason"
