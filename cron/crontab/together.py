"""Several files read together: each by itself, and what they cannot all declare."""

from __future__ import annotations

from collections.abc import Iterable

from cron.crontab.reader import read_file
from cron.crontab.reading import Problems, Reading


def read_together(
    files: Iterable[tuple[str, bytes]], *, system: bool, zone: str, tenant: str
) -> list[tuple[str, Reading]]:
    """Return each file's name and what is in it, as `read_file` does; in order.

    A file that is given twice, and a job that stands in two files, are errors of the later one.
    """
    readings: list[tuple[str, Reading]] = []
    places: dict[str, tuple[str, int]] = {}
    names: set[str] = set()
    for name, content in files:
        problems = Problems(name)
        if name in names:
            problems.error(0, 0, "file is given twice", "name it once")
            readings.append((name, problems.reading([])))
            continue
        names.add(name)
        reading = read_file(name, content, system=system, zone=zone, tenant=tenant)
        for job in reading.jobs:
            file, line = places.setdefault(job.name, (name, job.line))
            if file != name:
                where = f"{file}, line {line}" if line else file
                message = f"job {job.name} stands in {where} as well"
                hint = "give one of them another name, or remove one"
                problems.error(job.line, min(job.line, 1), message, hint)
        found = problems.reading([])
        reading.problems += found.problems
        reading.error_count += found.error_count
        readings.append((name, reading))
    return readings
