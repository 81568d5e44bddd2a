"""How fast does the log agree, beside etcd on the same machine in the same minutes?

    python -m bench.consensus [--seconds 3] [--rounds 5] [--kills 20] [--json] [--only PART ...]

Each round starts a cell of ours and one of etcd, with empty directories on one file system, in
turns, and puts the same items into both. Ratios are taken within a round, then their median. Writes
its section of bench/README.md; with --json it prints all rows instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import catching_up, failover
from bench.consensus_cells import Cell, EtcdCell, OursCell, drive_outside, etcd_version
from bench.consensus_table import Report, write
from bench.physics import fdatasyncs_per_second, loops_per_second
from bench.processes import cpu_us, resident_bytes
from bench.workloads import WARM_UP_S, Measured, Workload
from bench.workloads import WORKLOADS as ALL

PARTS: Final = ("rates", "failover", "idle", "catching-up")
IDLE_S: Final = 10.0
Row = dict[str, Any]


class Bench:
    """One run: where its files are, how long it may take, and what it found so far."""

    def __init__(self, directory: Path, options: argparse.Namespace) -> None:
        self.directory = directory
        self.options = options
        self.etcd = etcd_version()
        self.report = Report(etcd=self.etcd, seconds=options.seconds, rounds=options.rounds)
        self._count = 0

    def fresh(self) -> Path:
        """Return a directory that no cell has used."""
        self._count += 1
        return self.directory / str(self._count)

    def ours(self) -> OursCell:
        """Return a new cell of ours."""
        return OursCell(self.fresh())

    def theirs(self) -> EtcdCell:
        """Return a new cell of etcd."""
        folder = self.fresh()
        folder.mkdir()
        return EtcdCell(folder)

    def both(self) -> list[Cell]:
        """Return a new cell of each, as far as they are installed."""
        return [self.ours(), self.theirs()] if self.etcd is not None else [self.ours()]

    # --- rates

    async def rates(self) -> None:
        """Put into both, round after round; who is first changes."""
        for number in range(self.options.rounds):
            self.report.physics.append(
                {
                    "fdatasync_100": fdatasyncs_per_second(0.5, 100),
                    "fdatasync_2048": fdatasyncs_per_second(0.5, 2_048),
                    "loops": loops_per_second(),
                }
            )
            turns: list[Callable[[], Awaitable[Row]]] = [self._our_rates]
            if self.etcd is not None:
                turns.insert(number % 2, self._etcd_rates)
            row: Row = {}
            for turn in turns:
                row |= await turn()
            self.report.rates.append(row)
            note(f"round {number + 1} of {self.options.rounds}: rates are measured")

    async def _our_rates(self) -> Row:
        cell, seconds = self.ours(), self.options.seconds
        try:
            await cell.start()
            inside = {w.name: await self._costed(cell, cell.drive_inside(w, seconds)) for w in ALL}
            outside = {w.name: await self._outside("ours", cell, w) for w in ALL}
            return {"inside": inside, "outside": outside}
        finally:
            await cell.close()

    async def _etcd_rates(self) -> Row:
        cell = self.theirs()
        crowded = [w for w in ALL if w.items == 1 and w.in_flight > 1]
        try:
            await cell.start()
            return {
                "etcd": {w.name: await self._outside("etcd", cell, w) for w in ALL},
                "etcd_two_clients": {
                    w.name: await self._outside("etcd", cell, w, 2) for w in crowded
                },
                "etcd_grpcio": {
                    w.name: await self._outside("etcd-grpcio", cell, w) for w in crowded
                },
            }
        finally:
            await cell.close()

    async def _outside(
        self, kind: str, cell: OursCell | EtcdCell, workload: Workload, clients: int = 1
    ) -> Measured:
        seconds = self.options.seconds
        return await self._costed(cell, drive_outside(kind, cell, workload, seconds, clients))

    async def _costed(self, cell: Cell, driving: Awaitable[Measured]) -> Measured:
        """Return what `driving` measures, with what it cost the replicas, warming up included."""
        before = sum(cpu_us(cell.pid(name)) for name in cell.names)
        measured = await driving
        spent = sum(cpu_us(cell.pid(name)) for name in cell.names) - before
        items = measured.items_per_second * (self.options.seconds + WARM_UP_S)
        return msgspec.structs.replace(measured, replicas_us_per_item=round(spent / items, 1))

    # --- failover

    async def failover(self) -> None:
        """Lose the leader of either cell in turn: first by kill -9, then by silence."""
        cells = self.both()
        try:
            for cell in cells:
                await cell.start()
            for how, is_silent in (("kill -9", False), ("silence", True)):
                took: dict[str, list[float]] = {cell.name: [] for cell in cells}
                for _ in range(self.options.kills):
                    for cell in cells:
                        took[cell.name].append(
                            await failover.lose_the_leader(cell, is_silent=is_silent)
                        )
                self.report.failovers_ms[how] = took
                note(f"failover by {how}: {self.options.kills} leaders of each were lost")
        finally:
            for cell in cells:
                await cell.close()

    # --- idle

    async def idle(self) -> None:
        """Let either cell do nothing, and see what it costs."""
        for cell in self.both():
            try:
                await cell.start()
                await asyncio.sleep(1)
                pids = {name: cell.pid(name) for name in cell.names}
                before = {name: cpu_us(pid) for name, pid in pids.items()}
                await asyncio.sleep(IDLE_S)
                cpu = [(cpu_us(pid) - before[name]) / IDLE_S / 1e4 for name, pid in pids.items()]
                self.report.idle[cell.name] = {
                    "cpu_percent": round(max(cpu), 2),
                    "cpu_percent_mean": round(sum(cpu) / len(cpu), 2),
                    "rss_mb": round(max(resident_bytes(pid) for pid in pids.values()) / 1e6, 1),
                }
            finally:
                await cell.close()
        note("idle cells are measured")

    # --- catching up

    async def catching_up(self) -> None:
        """Bring back a follower that is far behind."""
        for case in catching_up.CASES:
            self.report.catching_up.append(await catching_up.measure(self.fresh(), case))
        note("catching up is measured")


def note(text: str) -> None:
    """Tell on stderr how far we are."""
    print(text, file=sys.stderr, flush=True)


async def measure(options: argparse.Namespace) -> Report:
    """Return all that was asked for."""
    with tempfile.TemporaryDirectory(prefix="raftcron-bench-", dir=options.directory) as folder:
        bench = Bench(Path(folder), options)
        if bench.etcd is None:
            note("etcd is not installed (Debian: apt install etcd-server); ours is measured alone")
        for part in PARTS:
            if part in options.only:
                await getattr(bench, part.replace("-", "_"))()
        return bench.report


def main() -> int:
    """Measure, then write the section of README.md or print the rows."""
    parser = argparse.ArgumentParser(prog="bench.consensus", description="our log beside etcd")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of rates")
    parser.add_argument("--kills", type=int, default=20, help="leaders of each to kill")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts of it")
    parser.add_argument("--directory", help="where cells keep their files; default: TMPDIR")
    parser.add_argument("--json", action="store_true", help="print rows, leave README.md alone")
    options = parser.parse_args()
    if set(options.only) != set(PARTS) and not options.json:
        parser.error("--only needs --json: README.md is written whole")
    report = asyncio.run(measure(options))
    if options.json:
        print(msgspec.json.encode(report).decode())
    else:
        write(report)
        print(json.dumps(report.ratios()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
