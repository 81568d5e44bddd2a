"""What the processes of a cell have used so far, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Usage(msgspec.Struct, frozen=True):
    """CPU time of some processes and all their descendants, and bytes of a replica's journal."""

    cpu_us: int
    log_bytes: int


def usage(pids: list[int], journal: Path) -> Usage:
    """Return what these processes have used since they started.

    Children that have ended count, once their parent waited for them. The kernel counts in ticks
    of 10 ms, which is 0.1 % of a window of ten seconds.
    """
    family = _family(set(pids))
    return Usage(sum(_cpu_us(fields) for fields in family), journal_bytes(journal))


def cpu_us(pid: int) -> int:
    """Return the CPU time of one process and its descendants so far."""
    return sum(_cpu_us(fields) for fields in _family({pid}))


def resident_bytes(pid: int) -> int:
    """Return the memory of a process that is in RAM now. Raises FileNotFoundError if it is gone."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def journal_bytes(folder: Path) -> int:
    """Return the size of all files that the replica's log consists of."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def descendants(pids: list[int]) -> list[int]:
    """Return these processes and all below them, as far as they are there now."""
    return list(_tree(set(pids)))


def _family(pids: set[int]) -> list[list[str]]:
    """The stat fields of the processes and of those below them."""
    return list(_tree(pids).values())


def _tree(pids: set[int]) -> dict[int, list[str]]:
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(entry)) is not None:
            stats[int(entry.name)] = fields
    known = set(pids)
    while more := {pid for pid, fields in stats.items() if int(fields[1]) in known} - known:
        known |= more
    return {pid: stats[pid] for pid in known if pid in stats}


def _stat(entry: Path) -> list[str] | None:
    """Fields of proc(5)'s stat from the third one on; the second may contain anything."""
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has ended meanwhile


def _cpu_us(fields: list[str]) -> int:
    """utime, stime, cutime and cstime are the fields 14 to 17, counted from 1."""
    return sum(int(number) for number in fields[11:15]) * 1_000_000 // _TICKS_PER_S
