"""launcher.private: what raftcron writes, only its user may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from launcher.private import private_files, umask_before


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
