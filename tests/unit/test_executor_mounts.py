"""Paths on mounts that may hang are told from their names alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.executor.commands import spawn as mounts
from launcher.executor.commands.spawn import Mounts

TABLE = """\
25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 25 0:40 / /home rw shared:2 - autofs systemd-1 rw
31 30 0:41 / /home/ann rw - nfs4 files:/ann rw,vers=4.2
32 31 0:42 / /home/ann/scratch rw - tmpfs tmpfs rw
33 25 0:43 / /mnt/two\\040words rw - fuse.sshfs host: rw
34 25 0:44 / /srv rw - cifs //host/share rw
35 34 0:45 / /srv rw - xfs /dev/sdb1 rw
"""


@pytest.mark.parametrize(
    ("path", "hangs"),
    [
        ("/", False),
        ("/var/lib", False),
        ("/homes", False),
        ("/home/bob", True),
        ("/home/ann/jobs/", True),
        ("/var/../home/ann", True),
        ("/home/ann/scratch/x", False),
        ("/mnt/two words/x", True),
        ("/mnt/two", False),
        ("/srv/data", False),
    ],
)
def test_the_nearest_mount_above_a_path_decides(tmp_path: Path, path: str, *, hangs: bool) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(TABLE)
    assert Mounts(str(file)).may_hang(path) is hangs


def test_what_is_not_known_may_hang(tmp_path: Path) -> None:
    assert Mounts(str(tmp_path / "none")).may_hang("/tmp")


def test_the_table_is_read_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, now_ms = tmp_path / "mountinfo", [5_000]
    monkeypatch.setattr(mounts, "boot_ms", lambda: now_ms[0])
    file.write_text(TABLE)
    table = Mounts(str(file))
    assert not table.may_hang("/opt")
    file.write_text(TABLE + "36 25 0:46 / /opt rw - nfs files:/opt rw\n")
    assert not table.may_hang("/opt")
    now_ms[0] += mounts.KEPT_MS
    assert table.may_hang("/opt")


def test_this_hosts_own_table_can_be_read() -> None:
    assert not Mounts().may_hang("/proc/self")
