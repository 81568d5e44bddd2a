"""How much cpu and memory the executor has for launches.

The lowest limit of this process counts: the cpus that it may run on, the host's memory, and the
limits of its control group and of those above it, as far as they are visible. In a container, the
groups above are hidden, and /proc/meminfo may be that of the host: then its own group's limit
counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

V2: Final = ""
"""Stands for the unified hierarchy of cgroup v2, as in /proc/PID/cgroup."""


class Capacity(NamedTuple):
    """What launches may use together: thousandths of a CPU, and bytes; 0 for no limit. The texts
    describe the source of each."""

    cpu_milli: int
    memory_bytes: int
    cpu_source: str
    memory_source: str


UNLIMITED: Final = Capacity(0, 0, "", "")


class Group(NamedTuple):
    """A control group of this process in one hierarchy: the hierarchy's mount, and the group's
    directory, which is the mount's or below it."""

    mount: Path
    own: Path


def capacity(
    cpu_milli: int | None = None,
    memory_bytes: int | None = None,
    *,
    root: str = "/",
    cpus: int | None = None,
) -> Capacity:
    """Return what this host has for launches; configured amounts (not None) replace it.

    `root` is the parent of /proc and the hierarchies. `cpus` replaces the number of cpus that the
    kernel reports. An unknown amount is not limited.
    """
    groups = own_groups(root)
    found_cpu, found_memory = _cpu(groups, cpus), _memory(groups, Path(root))
    if cpu_milli is not None:
        found_cpu = (cpu_milli, "configured")
    if memory_bytes is not None:
        found_memory = (memory_bytes, "configured")
    return Capacity(found_cpu[0], found_memory[0], found_cpu[1], found_memory[1])


def _cpu(groups: dict[str, Group], cpus: int | None) -> tuple[int, str]:
    milli = 1000 * (len(os.sched_getaffinity(0)) if cpus is None else cpus)
    source = "the cpus that it may run on"
    for version, directory in _limiting(groups, "cpu"):
        quota = _v2_quota(directory) if version == V2 else _v1_quota(directory)
        if 0 < quota < milli:
            milli, source = quota, f"the cpu quota of {directory}"
    return milli, source


def _v2_quota(directory: Path) -> int:
    """Return thousandths of a CPU by `cpu.max`, such as `150000 100000`; 0 for no limit."""
    words = read(directory / "cpu.max").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words) or not int(words[1]):
        return 0
    return max(1, int(words[0]) * 1000 // int(words[1]))


def _v1_quota(directory: Path) -> int:
    quota_us = read(directory / "cpu.cfs_quota_us").strip()  # -1 for none
    period_us = read(directory / "cpu.cfs_period_us").strip()
    if not quota_us.isdecimal() or not period_us.isdecimal() or not int(period_us):
        return 0
    return max(1, int(quota_us) * 1000 // int(period_us))


def _memory(groups: dict[str, Group], root: Path) -> tuple[int, str]:
    memory, source = 0, "not known"
    for line in read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        kib = value.strip().removesuffix(" kB")
        if name == "MemTotal" and kib.isdecimal():
            memory, source = int(kib) << 10, "the memory of the host"
    for version, directory in _limiting(groups, "memory"):
        name = "memory.max" if version == V2 else "memory.limit_in_bytes"
        limit = read(directory / name).strip()  # no limit: `max`, in v1 more than any host has
        if limit.isdecimal() and 0 < int(limit) < (memory or 1 << 60):
            memory, source = int(limit), f"the memory limit of {directory}"
    return memory, source


def _limiting(groups: dict[str, Group], controller: str) -> Iterator[tuple[str, Path]]:
    """Yield the directories of this process's groups and of all visible groups above them."""
    for version in (V2, controller):
        if version in groups:
            mount, own = groups[version]
            yield version, own
            if own != mount:
                above = (path for path in own.parents if path.is_relative_to(mount))
                yield from ((version, path) for path in above)


# ---- the hierarchies


def own_groups(root: str = "/") -> dict[str, Group]:
    """Return the control groups of this process by controller of v1, and under V2 that of v2.

    Without hierarchies that are not mounted. From /proc/self/cgroup and /proc/self/mountinfo,
    cgroups(7).
    """
    paths: dict[str, str] = {}
    for line in read(Path(root) / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            paths[V2] = path
        else:
            paths.update((controller, path) for controller in controllers.split(","))
    groups: dict[str, Group] = {}
    for mounted, top, point in _mounts(Path(root)):
        mount = Path(root) / point.lstrip("/")
        for controller in mounted:
            if controller in paths and controller not in groups:
                groups[controller] = Group(mount, _below(mount, top, paths[controller]))
    return groups


def _mounts(root: Path) -> Iterator[tuple[list[str], str, str]]:
    """Yield (controllers, mounted group of the hierarchy, mount point) of each mount."""
    for line in read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5:
            continue
        top, point = _unescaped(fields[3]), _unescaped(fields[4])
        if kind[0] == "cgroup2":
            yield [V2], top, point
        elif kind[0] == "cgroup" and len(kind) > 2:
            yield kind[2].split(","), top, point


def _below(mount: Path, top: str, path: str) -> Path:
    """Return the directory of the group `path`, if the group `top` is mounted on `mount`. A
    container may see other paths; then the mount itself is its group."""
    relative = os.path.relpath(path, top)
    own = mount / relative
    is_inside = relative == "." or not relative.startswith("..")
    return own if is_inside and own.is_dir() else mount


def _unescaped(text: str) -> str:
    """Return a name of mountinfo, which has \\040 for a space."""
    if "\\" not in text:
        return text
    return os.fsdecode(text.encode().decode("unicode_escape").encode("latin-1"))


def join_group(directory: str, pid: int = 0) -> None:
    """Move a process into a control group, with everything that it starts later; 0 for this one.

    Raises:
        OSError: the group does not exist, or is not permitted.
    """
    fd = os.open(f"{directory}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(pid).encode())
    finally:
        os.close(fd)


def read(path: Path) -> str:
    """Return a small file of the kernel, "" if it does not exist or is not permitted."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
