"""An independent witness of what ran: the commands themselves write it down.

A witnessed command appends one line when it starts and one when it ends to a file that all share,
each in one write (O_APPEND), so the order of the lines is the order of what happened:

    default/a@2026-11-20T15:00:00Z 1 start 81234.56 0.3.r1 4711
    default/a@2026-11-20T15:00:00Z 1 end 81234.61

that is launch, attempt, word, /proc/uptime in seconds, then epoch and process id. The witness uses
nothing of ours but the names, and `judge` compares it with what the ledger says.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from launcher.protocol.names import parse_launch_name

RAN: Final = ("launched", "succeeded", "failed", "lost", "cancelled", "begun")
"""States in which a launch may have run."""
NEVER_RAN: Final = ("due", "skipped")


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the ledger says of one attempt, or of a run of skipped instants (`count` above 1)."""

    launch: str
    state: str
    attempt: int = 1
    reason: str = ""
    count: int = 1
    last_s: int = 0
    kind: str = "launch"


class Run(msgspec.Struct):
    """What the witness says of one attempt; places are line numbers, -1 where there is none."""

    launch: str
    attempt: int
    starts: list[int] = []
    end: int = -1
    at_s: float = 0.0
    epoch: str = ""
    pid: int = 0

    @property
    def job(self) -> str:
        """`tenant/job`."""
        return self.launch.partition("@")[0]


def witnessed(file: Path, body: str = ":", exit_code: int = 0) -> str:
    """Return a shell command that writes itself down around `body`; no process more than `body`'s.

    `%` must not be in it: crontabs give it a meaning.
    """
    path = shlex.quote(str(file))
    who = "$RAFTCRON_LAUNCH $RAFTCRON_ATTEMPT"
    start = f'echo "{who} start $u $RAFTCRON_EPOCH $$" >>{path}'
    end = f'echo "{who} end $u" >>{path}'
    uptime = "read -r u _ </proc/uptime"
    finish = f"; exit {exit_code}" if exit_code else ""
    return f"{uptime}; {start}; {body}; {uptime}; {end}{finish}"


def read_runs(file: Path) -> dict[tuple[str, int], Run]:
    """Return what was witnessed, by launch and attempt, in the order of the first starts.

    A last line that is still being written is left out.
    """
    runs: dict[tuple[str, int], Run] = {}
    text = file.read_text() if file.exists() else ""
    for place, line in enumerate(text[: text.rfind("\n") + 1].splitlines()):
        launch, attempt, word, at_s, *rest = line.split()
        run = runs.setdefault((launch, int(attempt)), Run(launch, int(attempt)))
        if word == "start":
            run.starts.append(place)
            run.at_s, run.epoch, run.pid = float(at_s), rest[0], int(rest[1])
        else:
            run.end = place
    return runs


def judge(
    file: Path,
    rows: Iterable[LedgerRow],
    *,
    every_s: Mapping[str, int] | None = None,
    forbids: Iterable[str] = (),
    violations: Iterable[str] = (),
) -> list[str]:
    """Return what is wrong, one sentence each; nothing if witness and ledger agree.

    `rows` is the whole ledger of the witnessed jobs. `every_s` has the period of the jobs whose
    instants must be there without a gap, `forbids` the jobs that must not overlap; `violations` is
    what `raftcron audit` found.
    """
    runs = read_runs(file)
    ledger: dict[tuple[str, int], LedgerRow] = {}
    wrong = [f"audit: {violation}" for violation in violations]
    instants: dict[str, set[int]] = {}
    for row in rows:
        if row.kind == "amendment":
            continue
        wrong += _enter(row, ledger, instants, every_s or {})
    wrong += _compare(runs, ledger)
    wrong += _look_for_gaps(instants, every_s or {})
    wrong += _look_for_overlaps(runs, set(forbids))
    return wrong


def _enter(
    row: LedgerRow,
    ledger: dict[tuple[str, int], LedgerRow],
    instants: dict[str, set[int]],
    every_s: Mapping[str, int],
) -> list[str]:
    name = parse_launch_name(row.launch)
    wrong = []
    if (row.launch, row.attempt) in ledger:
        wrong.append(f"{row.launch}#{row.attempt} has two rows")
    ledger[row.launch, row.attempt] = row
    if name.trigger:
        return wrong
    times = {name.scheduled_s}
    if row.count > 1:
        times = set(range(name.scheduled_s, row.last_s + 1, every_s.get(name.job, 1)))
        if name.job in every_s and len(times) != row.count:
            wrong.append(f"{row.launch} counts {row.count} instants, there are {len(times)}")
    known = instants.setdefault(name.job, set())
    if row.attempt <= 1 and (twice := known & times):
        wrong.append(f"{row.launch}: {len(twice)} of its instants are in two rows")
    known |= times
    return wrong


def _compare(
    runs: Mapping[tuple[str, int], Run], ledger: Mapping[tuple[str, int], LedgerRow]
) -> list[str]:
    wrong = []
    for key, run in runs.items():
        name = f"{run.launch}#{run.attempt}"
        if len(run.starts) > 1:
            wrong.append(f"{name} ran {len(run.starts)} times")
        if not run.starts:
            wrong.append(f"{name} ended and never started")
        if (row := ledger.get(key)) is None:
            wrong.append(f"{name} ran and is not in the ledger")
        elif row.state in NEVER_RAN:
            wrong.append(f"{name} ran and the ledger says {row.state} {row.reason}".rstrip())
    for key, row in ledger.items():
        if row.state == "succeeded" and (key not in runs or runs[key].end < 0):
            wrong.append(f"{row.launch}#{row.attempt} succeeded and nobody saw its end")
    return wrong


def _look_for_gaps(instants: Mapping[str, set[int]], every_s: Mapping[str, int]) -> list[str]:
    wrong = []
    for job, period_s in every_s.items():
        known = instants.get(job, set())
        if not known:
            wrong.append(f"{job} has no row at all")
            continue
        missing = sorted(set(range(min(known), max(known) + 1, period_s)) - known)
        if missing:
            wrong.append(f"{job} has no row for {len(missing)} instants, first {missing[0]}")
    return wrong


def _look_for_overlaps(runs: Mapping[tuple[str, int], Run], forbids: set[str]) -> list[str]:
    """Attempts of one launch must never overlap, launches of some jobs neither.

    Who never wrote its end was killed: nobody knows when, so it is not judged.
    """
    spans: dict[str, list[tuple[int, int, str]]] = {}
    for run in runs.values():
        if run.starts and run.end >= 0:
            group = run.job if run.job in forbids else run.launch
            spans.setdefault(group, []).append(
                (run.starts[0], run.end, f"{run.launch}#{run.attempt}")
            )
    wrong = []
    for group in spans.values():
        group.sort()
        for (_, end, one), (start, _, other) in itertools.pairwise(group):
            if start < end:
                wrong.append(f"{other} started while {one} ran")
    return wrong
