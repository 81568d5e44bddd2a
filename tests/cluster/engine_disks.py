"""File systems that a test makes, fills and cuts the power of; and the syncs of a process.

A power cut is the kernel's own FS_IOC_SHUTDOWN without a flush of the journal: from that instant on
nothing reaches the disk's image, neither data nor metadata that waited in memory. Then the image is
copied, and the copy is what the machine finds when it is switched on. What such a disk does not do
is forget writes that it was given before a flush, or do them in another order.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Literal

import pytest

_IOC_SHUTDOWN = 0x8004587D
_WITHOUT_JOURNAL = struct.pack("I", 2)
_IMAGE_BYTES = 512 * 1024 * 1024


class Mounts:
    """Everything a test mounted; `close` unmounts it, whatever state it is in."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._mounted: list[Path] = []
        self._count = 0

    @property
    def points(self) -> tuple[Path, ...]:
        """Where something is mounted."""
        return tuple(self._mounted)

    def _point(self, name: str) -> Path:
        self._count += 1
        point = self._directory / f"{name}-{self._count}"
        point.mkdir(parents=True)
        return point

    def _mount(self, point: Path, *arguments: str) -> None:
        done = subprocess.run(
            ["mount", *arguments, str(point)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise OSError(f"cannot mount {' '.join(arguments)}: {done.stderr.strip()}")
        self._mounted.append(point)

    def small(self, name: str, size: str) -> Path:
        """A file system in memory with room for `size`, such as 16m."""
        point = self._point(name)
        self._mount(point, "-t", "tmpfs", "-o", f"size={size}", "tmpfs")
        return point

    def disk(self, name: str) -> Disk:
        """An empty ext4 in a file of its own."""
        image = self._directory / f"{name}.image"
        with image.open("wb") as file:
            file.truncate(_IMAGE_BYTES)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
        return self.mount(image, name)

    def mount(self, image: Path, name: str) -> Disk:
        """An image's file system, after its journal was replayed."""
        point = self._point(name)
        self._mount(point, "-o", "loop", str(image))
        return Disk(self, name, image, point)

    def unmount(self, point: Path) -> None:
        """Let go of a file system; one that is in use goes when nobody uses it any more."""
        for lazily in ([], ["-l"]):
            done = subprocess.run(["umount", *lazily, str(point)], capture_output=True, check=False)
            if done.returncode == 0:
                break
        self._mounted.remove(point)

    def close(self) -> None:
        for point in reversed(list(self._mounted)):
            self.unmount(point)


class Disk:
    """The disk of one replica."""

    def __init__(self, mounts: Mounts, name: str, image: Path, point: Path) -> None:
        self.name = name
        self.image = image
        self.point = point
        self._mounts = mounts

    @property
    def data(self) -> Path:
        """Where the replica's files are."""
        return self.point / "replica"

    def sync(self) -> None:
        """Bring everything to the image."""
        subprocess.run(["sync", "-f", str(self.point)], check=True)

    def cut(self) -> None:
        """Switch the power off: nothing reaches the image from now on. Whoever uses the disk must
        stand still: a sync that is under way may be answered with success and not be done."""
        root = os.open(self.point, os.O_RDONLY)
        try:
            fcntl.ioctl(root, _IOC_SHUTDOWN, _WITHOUT_JOURNAL)
        finally:
            os.close(root)

    def again(self, number: int) -> Disk:
        """The disk as it is found afterwards, from a copy of the image. All that used it has ended;
        the image of the cut stays as evidence until `forget`."""
        copy = self.image.with_name(f"{self.name}-{number}.image")
        subprocess.run(["cp", "--sparse=always", str(self.image), str(copy)], check=True)
        self._mounts.unmount(self.point)
        return self._mounts.mount(copy, self.name)

    def forget(self) -> None:
        """Remove the image."""
        self.image.unlink(missing_ok=True)


def why_no_mounts(directory: Path) -> str:
    """Why this machine cannot run tests with disks of their own; "" if it can."""
    if os.geteuid() != 0:
        return "only root may mount file systems"
    mounts = Mounts(directory)
    try:
        mounts.small("trial", "1m")
    except OSError as error:
        return str(error)
    finally:
        mounts.close()
    return ""


def why_no_power_cuts(directory: Path) -> str:
    """Why this machine cannot cut the power of a disk; "" if it can."""
    if os.geteuid() != 0:
        return "only root may mount file systems"
    if shutil.which("mkfs.ext4") is None:
        return "no mkfs.ext4"
    mounts = Mounts(directory)
    try:
        disk = mounts.disk("trial")
        disk.cut()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no loop device whose power can be cut: {error}"
    finally:
        mounts.close()
        (directory / "trial.image").unlink(missing_ok=True)
    return ""


class Shim:
    """A shared object that stands before libc in a process, and the file that steers it there."""

    def __init__(self, folder: Path, source: str, variable: str) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            pytest.skip("no C compiler: a process cannot be lied to")
        self._folder = folder
        self._variable = variable
        self._object = folder / Path(source).with_suffix(".so").name
        path = Path(__file__).with_name(source)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", self._object, path], check=True)

    def environment(self, name: str) -> dict[str, str]:
        """What a process named `name` is started with."""
        return {"LD_PRELOAD": str(self._object), self._variable: str(self._steer(name))}

    def _steer(self, name: str) -> Path:
        return self._folder / f"{name}.{self._variable.lower()}"

    def set(self, name: str, text: str) -> None:
        """Tell the process; it sees all of `text` or nothing of it."""
        aside = self._steer(f"{name}-new")
        aside.write_text(text)
        aside.replace(self._steer(name))


Lie = Literal["true", "lie", "fail"]
"""What happens to a sync: it is done, it is said to be done, it fails once with EIO."""


class Syncs(Shim):
    """The syncs of processes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "syncshim.c", "SYNCSHIM_FILE")

    def let(self, name: str, what: Lie) -> None:
        self.set(name, what)


class Clocks(Shim):
    """The wall clocks of processes; all other clocks stay as they are."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "wallshim.c", "WALLSHIM_FILE")

    def move(self, name: str, seconds: int) -> None:
        self.set(name, f"{seconds}\n")
