"""Crontabs of the simulation: `@every` jobs of two tenants, with all policies, drawn."""

from __future__ import annotations

import random

PERIODS_S = (1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60)
DEADLINES_S = (2, 5, 10, 20, 40, 60, 90)
OVERLAPS = ("allow", "forbid", "queue", "replace")
CATCHUPS = ("none", "last", "all")
RUNS_S = (0, 0.2, 1, 3, 8, 15, 30, 60, 90)
FAILURES = ("0.3 1", "0.5 1,75", "0.9 75,2", "1.0 7,78")
"""How often a command fails, and with which exit codes: 75 is worth a retry, 78 is fatal."""


def draw_crontab(rng: random.Random, jobs: int) -> str:
    """Return a crontab of jobs with all policies."""
    lines = []
    for number in range(jobs):
        period_s = rng.choice(PERIODS_S if number else PERIODS_S[2:6])
        overlap = rng.choice(OVERLAPS)
        options = [
            f"name={'blue/' if number % 3 == 2 else ''}j{number}",
            f"overlap={overlap}",
            f"catchup={rng.choice(CATCHUPS)}",
            f"deadline={rng.choice(DEADLINES_S)}s",
        ]
        if rng.random() < 0.25:
            options.append(f"timeout={rng.choice((2, 10, 40))}s")
        if rng.random() < 0.3:
            options.append("on-lost=retry")
        if rng.random() < 0.3:
            options.append(f"parts={rng.choice((2, 2, 3))}")
        if overlap == "allow" and rng.random() < 0.4:
            options.append(f"concurrency={rng.choice((1, 2, 3))}")
        command = f"run {rng.choice(RUNS_S) if period_s > 2 else rng.choice(RUNS_S[:5])}"
        if rng.random() < 0.35:
            options += _draw_retries(rng)
            command += f" {rng.choice(FAILURES)}"
        lines += [f"#: {' '.join(options)}", f"@every {period_s}s {command}", ""]
    return "\n".join(lines)


def _draw_retries(rng: random.Random) -> list[str]:
    options = [f"retries={rng.choice((1, 2, 3))}", f"backoff={rng.choice((1, 2, 5))}s"]
    if rng.random() < 0.3:
        options.append("backoff-max=6s")
    if rng.random() < 0.3:
        options.append("retry-on=1,7,75")
    if rng.random() < 0.5:
        options.append("fatal-on=78")
    return options
