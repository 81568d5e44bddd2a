"""What bench.starts measured, and the table that it makes of it."""

from __future__ import annotations

import statistics
from typing import Any, Final

import msgspec

PEER: Final = "loop in C"
PEER_SESSIONS: Final = "loop in C, sessions"
SPAWNER: Final = "spawner"
EXECUTOR: Final = "executor"


class Sample(msgspec.Struct, frozen=True):
    """One run: `self_us` is the CPU time of who starts, `children_us` that of what is started,
    `client_us` that of who gives the orders; all per start. `others` is the share of the machine
    that went to anything else, warming up included: above 0.1 the rates say little."""

    who: str
    in_flight: int
    starts: int
    per_second: float
    self_us: float
    children_us: float
    client_us: float = 0.0
    round: int = 0
    others: float = 0.0

    @property
    def total_us(self) -> float:
        """CPU time per start of all of them."""
        return self.self_us + self.children_us + self.client_us


COLUMNS: Final = (
    "in flight",
    "who",
    "starts/s",
    "of the C loop's",
    "lowest",
    "highest",
    "CPU µs a start",
    "self",
    "what is started",
    "who orders",
    "of the C loop's CPU",
    "% others",
)


def summarize(samples: list[Sample]) -> list[list[Any]]:
    """Return a row of COLUMNS for each number in flight and each who, medians of all rounds; the
    ratios are those within a round."""
    groups: dict[tuple[int, str], list[Sample]] = {}
    for one in samples:
        groups.setdefault((one.in_flight, one.who), []).append(one)
    rows = []
    for (in_flight, who), group in sorted(groups.items(), key=lambda item: item[0][0]):
        peers = {one.round: one for one in groups.get((in_flight, PEER), [])}
        pairs = [(one, peers[one.round]) for one in group if one.round in peers]
        ratios = [one.per_second / peer.per_second for one, peer in pairs]
        costs = [one.total_us / peer.total_us for one, peer in pairs]
        parts = ("per_second", "total_us", "self_us", "children_us", "client_us")
        rate, *cpu = (_median([getattr(one, part) for one in group]) for part in parts)
        spread = (_median(ratios), min(ratios, default=None), max(ratios, default=None))
        others = 100 * statistics.median(one.others for one in group)
        rows.append([in_flight, who, rate, *spread, *cpu, _median(costs), others])
    return rows


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def table(rows: list[list[Any]]) -> str:
    """Return a Markdown table of what `summarize` returned."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "| --: | --- " + "| --: " * 10 + "|"]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"
    return "-" if value is None else str(value)
