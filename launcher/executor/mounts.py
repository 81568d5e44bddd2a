"""Which paths are on a filesystem that may keep whoever touches it waiting: a network's, mostly.

Decided from the names alone, without touching them: a look at a dead mount is what must not happen.
So a symbolic link into one is not seen.
"""

from __future__ import annotations

import os
from typing import Final

from launcher.executor.clock import boot_ms

MOUNTINFO: Final = "/proc/self/mountinfo"
KEPT_MS: Final = 1_000
"""How long a reading of it is used."""
_LOCAL: Final = {
    *("bcachefs", "btrfs", "cgroup", "cgroup2", "debugfs", "devpts", "devtmpfs", "erofs", "exfat"),
    *("ext2", "ext3", "ext4", "f2fs", "hugetlbfs", "iso9660", "jfs", "mqueue", "overlay", "proc"),
    *("ramfs", "rootfs", "squashfs", "sysfs", "tmpfs", "tracefs", "vfat", "xfs", "zfs"),
}
"""The others may hang: also those that nobody thought of here."""


class Mounts:
    """The mounts of this process, read anew from time to time."""

    def __init__(self, file: str = MOUNTINFO) -> None:
        self._file = file
        self._read_ms = -KEPT_MS
        self._kinds: dict[str, str] = {}
        self._verdicts: dict[str, bool] = {}

    def may_hang(self, path: str) -> bool:
        """Whether the mount that `path` is below is not known for a local one."""
        if boot_ms() - self._read_ms >= KEPT_MS:
            self._read_ms = boot_ms()
            self._kinds, self._verdicts = self._read(), {}
        verdict = self._verdicts.get(path)
        if verdict is None:
            above = os.path.normpath(path)
            while above not in self._kinds and above not in ("", "/"):
                above = os.path.dirname(above)
            verdict = self._verdicts[path] = self._kinds.get(above) not in _LOCAL
        return verdict

    def _read(self) -> dict[str, str]:
        """Kinds by mount point; the last of several on one point is the one that counts."""
        try:
            with open(self._file, encoding="utf-8", errors="surrogateescape") as file:
                lines = file.read().splitlines()
        except OSError:
            return {}
        kinds = {}
        for line in lines:
            before, _, after = line.partition(" - ")
            # A space in a name is written as \040, and so on.
            point = before.split(" ")[4].encode("utf-8", "surrogateescape")
            name = point.decode("unicode_escape").encode("latin-1")
            kinds[os.fsdecode(name)] = after.split(" ")[0]
        return kinds
