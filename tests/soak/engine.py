"""A soak of the engine: real processes, rounds of faults under load, a verdict after each round.

    python -m tests.soak.engine --rounds 100 --seed 1 [--kind all]

Kinds: kill, power, stop, partition, full, mix.

A cell lives for a few rounds; then the next kind has its turn. Clients keep receipts of what was
acknowledged on a disk that nothing cuts; after each round the replicas must be equal, and hold all
of it, once, in order, at its place, and nothing that nobody sent. Exit code 1 says that one round
did not; its directory is kept. The seed decides what is done, not how the processes interleave.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.cluster.engine_disks import Mounts
from tests.cluster.engine_processes import FaultCell, Load, settle
from tests.conformance.cells import leader_of
from tests.soak.strikes import STRIKES, Strike

ROUNDS_PER_CELL = 8
ROUND_S = 180.0


class Tally(msgspec.Struct):
    """What the rounds of one kind came to."""

    rounds: int = 0
    acknowledged: int = 0
    unknown: int = 0
    missing: int = 0
    duplicates: int = 0
    reads: int = 0
    stale: int = 0
    invented: int = 0
    terms: int = 0
    unfinished: int = 0
    failures: int = 0
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        """Count another one in."""
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))


class Batch:
    """Some rounds of one kind on one cell."""

    def __init__(self, strike: Strike, cell: FaultCell, load: Load) -> None:
        self.strike = strike
        self.cell = cell
        self.load = load
        self.tally = Tally()
        self._seen = (0, 0)
        self._term = 0

    async def round(self) -> str:
        """Do one; return what was wrong with it and "" if nothing was."""
        started = time.monotonic()
        self.tally.rounds += 1
        said, wrong = "", ""
        try:
            async with asyncio.timeout(ROUND_S):
                self.load.start()
                await self.load.progress(self.strike.chance.randrange(20, 500))
                said = await self.strike.strike(self.cell, self.load)
                wrong = await self._verdict()
        except Exception as error:  # noqa: BLE001 - whatever it is, the round has failed
            wrong = f"{type(error).__name__}: {error}"
        took_s = time.monotonic() - started
        self.tally.unfinished = self.strike.unfinished
        self.tally.reads, self.tally.stale = self.load.reads, len(self.load.stale)
        self.tally.seconds += took_s
        self.tally.failures += bool(wrong)
        print(
            f"{self.strike.kind:9} {took_s:5.1f} s  acknowledged {self._seen[0]:6,}"
            f"  term {self._term:3}  {wrong or 'ok'}  ({said})",
            flush=True,
        )
        return wrong

    async def _verdict(self) -> str:
        verdict = await settle(self.cell, self.load)
        now = (verdict.acknowledged, verdict.unknown)
        self.tally.acknowledged += now[0] - self._seen[0]
        self.tally.unknown += now[1] - self._seen[1]
        self.tally.missing += len(verdict.missing)
        self.tally.duplicates += len(verdict.duplicates)
        self.tally.invented += len(verdict.strangers) + len(verdict.disorder)
        term = (await self.cell.belief(await leader_of(self.cell))).term
        self.tally.terms += term - (self._term or 1)
        self._seen, self._term = now, term
        return "; ".join(verdict.problems)


async def run_batch(strike: Strike, rounds: int) -> Tally:
    """Run `rounds` on a new cell, fewer if one fails."""
    cell = await strike.make()
    load = Load(cell, seed=strike.chance.randrange(2**32))
    batch = Batch(strike, cell, load)
    try:
        for _ in range(rounds):
            if await batch.round():
                break
    finally:
        await load.close()
        await cell.close()
    return batch.tally


def turns(kinds: list[str], rounds: int) -> Iterator[tuple[int, str, int]]:
    """The number, kind and rounds of each batch, until `rounds` are done."""
    share = min(ROUNDS_PER_CELL, -(-rounds // len(kinds)))
    for number, kind in enumerate(itertools.cycle(kinds)):
        count = min(share, rounds)
        if count <= 0:
            return
        yield number, kind, count
        rounds -= count


def possible(kinds: list[str], directory: Path) -> list[str]:
    """Those of `kinds` that this machine can do; says why it cannot do the others."""
    able = []
    for kind in kinds:
        trial = directory / f"trial-{kind}"
        trial.mkdir()
        reason = STRIKES[kind].why_not(trial)
        shutil.rmtree(trial, ignore_errors=True)
        if reason:
            print(f"skipped: {kind}: {reason}")
        else:
            able.append(kind)
    return able


def table(tallies: dict[str, Tally]) -> str:
    """The summary, as Markdown."""
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    lines = [
        "| fault | rounds | acknowledged | unknown | missing | twice | invented | reads | stale"
        " | terms | died compacting | failed rounds | s |",
        "| --- |" + " --: |" * 12,
    ]
    for name, one in {**tallies, "all": total}.items():
        lines.append(
            f"| {name} | {one.rounds:,} | {one.acknowledged:,} | {one.unknown:,} | {one.missing}"
            f" | {one.duplicates} | {one.invented} | {one.reads:,} | {one.stale}"
            f" | {one.terms} | {one.unfinished} | {one.failures} | {one.seconds:,.0f} |"
        )
    text = (
        "acknowledged, unknown: entries, by what their clients were told. twice, invented: entries"
        " that were found more than once, or that nobody sent, or not at their place. reads: behind"
        " a barrier; stale, if they miss what was acknowledged before. terms: begun by elections."
        " died compacting: replicas found with a dump or segment half written."
    )
    return "\n".join([*lines, "", *textwrap.wrap(text, 100)])


def run(kinds: list[str], rounds: int, seed: int, directory: Path) -> int:
    """Run them all; return the exit code."""
    able = possible(kinds, directory)
    if not able:
        return 2
    tallies = {kind: Tally() for kind in able}
    kept = []
    for number, kind, count in turns(able, rounds):
        place = directory / f"{number:03}-{kind}"
        mounts = Mounts(place / "mounts")
        strike = STRIKES[kind](place / "cell", mounts, seed * 1_000_003 + number)
        try:
            tally = asyncio.run(run_batch(strike, count))
        finally:
            if kind == "full":
                rescue(place, mounts)
            mounts.close()
        tallies[kind].add(tally)
        if tally.failures:
            kept.append(place)
        else:
            shutil.rmtree(place)
    print(f"\nSeed {seed}, {rounds} rounds.\n\n{table(tallies)}")
    for place in kept:
        print(f"failed, kept: {place}")
    return 1 if kept else 0


def rescue(place: Path, mounts: Mounts) -> None:
    """Copy what is on disks in memory, before they are unmounted."""
    for point in mounts.points:
        replica = point / "replica"
        if replica.is_dir():
            shutil.copytree(replica, place / "evidence" / point.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=[*STRIKES, "all"], default="all")
    parser.add_argument("--directory", type=Path, default=None)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unmount, as Ctrl-C does
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="raftcron-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    kinds = list(STRIKES) if chosen.kind == "all" else [chosen.kind]
    code = run(kinds, chosen.rounds, chosen.seed, directory)
    if code == 0 and chosen.directory is None:
        shutil.rmtree(directory)
    return code


if __name__ == "__main__":
    sys.exit(main())
