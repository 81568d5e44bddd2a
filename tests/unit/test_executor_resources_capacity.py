"""What a host has for launches: the least of all that limits the executor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.executor.resources import V2, Group, capacity, join_group, own_groups

GIB = 1 << 30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1000 kB\n"
UNIFIED = "31 23 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


class Host:
    """The files of a host below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", MEMINFO)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def unified(self, own: str, mounts: str = UNIFIED) -> None:
        """Cgroup v2 alone; the executor is in group `own`."""
        self.write("proc/self/cgroup", f"0::{own}\n")
        self.write("proc/self/mountinfo", mounts)
        self.write(f"sys/fs/cgroup{own}/cgroup.procs", "1\n")

    def found(self, cpus: int = 8) -> tuple[int, int]:
        got = capacity(root=str(self.root), cpus=cpus)
        return got.cpu_milli, got.memory_bytes


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_without_control_groups_it_is_all_of_the_host(host: Host) -> None:
    got = capacity(root=str(host.root), cpus=8)
    assert got == (8000, 16 * GIB, "the cpus that it may run on", "the memory of the host")


def test_what_cannot_be_found_out_is_not_limited(tmp_path: Path) -> None:
    got = capacity(root=str(tmp_path / "none"), cpus=2)
    assert (got.cpu_milli, got.memory_bytes, got.memory_source) == (2000, 0, "not known")


def test_what_is_configured_counts_whatever_is_found(host: Host) -> None:
    got = capacity(64_000, 0, root=str(host.root), cpus=8)
    assert got == (64_000, 0, "configured", "configured")
    assert capacity(None, GIB, root=str(host.root), cpus=8)[:2] == (8000, GIB)


def test_its_own_group_limits_it_and_so_do_those_above(host: Host) -> None:
    host.unified("/a/b")
    host.write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    host.write("sys/fs/cgroup/a/cpu.max", "150000 100000\n")
    host.write("sys/fs/cgroup/a/b/memory.max", f"{2 * GIB}\n")
    host.write("sys/fs/cgroup/a/memory.max", "max\n")
    got = capacity(root=str(host.root), cpus=8)
    assert got[:2] == (1500, 2 * GIB)
    assert got.cpu_source == f"the cpu quota of {host.root}/sys/fs/cgroup/a"
    assert got.memory_source == f"the memory limit of {host.root}/sys/fs/cgroup/a/b"


def test_a_limit_above_what_there_is_limits_nothing(host: Host) -> None:
    host.unified("/a")
    host.write("sys/fs/cgroup/a/cpu.max", "900000 100000\n")
    host.write("sys/fs/cgroup/a/memory.max", f"{99 * GIB}\n")
    assert host.found() == (8000, 16 * GIB)


def test_groups_beside_its_own_do_not_limit_it(host: Host) -> None:
    host.unified("/a/b")
    host.write("sys/fs/cgroup/c/cpu.max", "1000 100000\n")
    host.write("sys/fs/cgroup/a/b/c/cpu.max", "1000 100000\n")
    assert host.found() == (8000, 16 * GIB)


def test_the_limits_of_version_one_count_too(host: Host) -> None:
    host.write("proc/self/mountinfo", HYBRID)
    host.write("proc/self/cgroup", "5:memory:/m\n3:cpu,cpuacct:/c/d\n1:name=systemd:/\n0::/\n")
    host.write("sys/fs/cgroup/cpu,cpuacct/c/d/cpu.cfs_quota_us", "-1\n")
    host.write("sys/fs/cgroup/cpu,cpuacct/c/d/cpu.cfs_period_us", "100000\n")
    host.write("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "50000\n")
    host.write("sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "25000\n")
    host.write("sys/fs/cgroup/memory/m/memory.limit_in_bytes", f"{3 * GIB}\n")
    host.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert host.found() == (2000, 3 * GIB)


def test_in_a_container_the_mount_is_its_own_group(host: Host) -> None:
    # The path is that of the host, which mounted only this group here.
    mounts = UNIFIED.replace("0:27 / ", "0:27 /docker/abc ")
    host.write("proc/self/mountinfo", mounts)
    host.write("proc/self/cgroup", "0::/docker/abc\n")
    host.write("sys/fs/cgroup/memory.max", f"{GIB}\n")
    assert host.found() == (8000, GIB)


def test_a_path_that_is_not_to_be_seen_from_here_is_the_mount(host: Host) -> None:
    host.write("proc/self/mountinfo", UNIFIED)
    host.write("proc/self/cgroup", "0::/../../elsewhere\n")
    host.write("sys/fs/cgroup/memory.max", f"{GIB}\n")
    assert host.found() == (8000, GIB)


def test_mounts_with_spaces_in_their_names_are_found(host: Host) -> None:
    host.write("proc/self/mountinfo", UNIFIED.replace("/sys/fs/cgroup", "/sys/my\\040groups"))
    host.write("proc/self/cgroup", "0::/\n")
    host.write("sys/my groups/memory.max", f"{GIB}\n")
    mount = host.root / "sys/my groups"
    assert own_groups(str(host.root)) == {V2: Group(mount, mount)}
    assert host.found() == (8000, GIB)


@pytest.mark.parametrize("text", ["", "max", "100000", "x 100000", "100000 0", "1 2 3"])
def test_a_quota_that_cannot_be_read_limits_nothing(host: Host, text: str) -> None:
    host.unified("/a")
    host.write("sys/fs/cgroup/a/cpu.max", text)
    host.write("sys/fs/cgroup/a/memory.max", text)
    cpu_milli, _ = host.found()
    assert cpu_milli == 8000


@pytest.mark.parametrize("line", ["", "nonsense", "1 2 3 - cgroup2", "0::", "x:y"])
def test_lines_that_cannot_be_read_stop_nothing(host: Host, line: str) -> None:
    host.unified("/a")
    host.write("proc/self/mountinfo", f"{line}\n{UNIFIED}")
    host.write("proc/self/cgroup", f"{line}\n0::/a\n")
    host.write("sys/fs/cgroup/a/memory.max", f"{GIB}\n")
    assert host.found() == (8000, GIB)


def test_a_process_joins_a_group_by_its_number_and_by_itself_as_zero(tmp_path: Path) -> None:
    procs = tmp_path / "cgroup.procs"
    procs.write_text("")
    join_group(str(tmp_path), 123)
    assert procs.read_text() == "123"
    procs.write_text("")
    join_group(str(tmp_path))
    assert procs.read_text() == "0"
    with pytest.raises(FileNotFoundError):
        join_group(str(tmp_path / "none"))


def test_of_this_host_something_is_found() -> None:
    got = capacity()
    assert 0 < got.cpu_milli <= 1000 * len(os.sched_getaffinity(0))
    assert got.memory_bytes > 1 << 20
