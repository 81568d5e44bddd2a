"""Crontabs of the simulation: `@every` jobs of two tenants, with all policies, drawn."""

from __future__ import annotations

import json
import random
from typing import Any

PERIODS_S = (1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60)
DEADLINES_S = (2, 5, 10, 20, 40, 60, 90)
OVERLAPS = ("allow", "forbid", "queue", "replace")
CATCHUPS = ("none", "last", "all")
RUNS_S = (0, 0.2, 1, 3, 8, 15, 30, 60, 90)
FAILURES = ("0.3 1", "0.5 1,75", "0.9 75,2", "1.0 7,78", "0.7 1,75,78")
"""How often a command fails, and with which exit codes: 75 is worth a retry, 78 is fatal."""
HANDLERS = ("sim.mail", "sim.bill")
NOBODYS = "sim.nobody"
"""A handler that no worker serves."""
ENDS = ("retry", "fatal", "snooze", "raised")
PRIORITIES = (2, 5, 5, 8)


def draw_crontab(rng: random.Random, jobs: int, *, has_workers: bool = False) -> str:
    """Return a crontab of jobs with all policies; with workers some of them are handlers'."""
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
        if rng.random() < 0.4:
            options.append(rng.choice(("parts=2", "parts=2", "parts=3", "each=rack=a")))
        if overlap == "allow" and rng.random() < 0.4:
            options.append(f"concurrency={rng.choice((1, 2, 3))}")
        if rng.random() < 0.3:
            options.append(f"priority={rng.choice(PRIORITIES)}")
        run_s = rng.choice(RUNS_S) if period_s > 2 else rng.choice(RUNS_S[:5])
        has_retries = rng.random() < 0.4
        if has_workers and rng.random() < 0.5:
            handler = NOBODYS if rng.random() < 0.1 else rng.choice(HANDLERS)
            options += [f"handler={handler}", *(_draw_tries(rng) if has_retries else ())]
            work = json.dumps(_draw_payload(rng, run_s))
        else:
            options += [*_draw_tries(rng), *_draw_codes(rng)] if has_retries else []
            work = f"run {run_s}" + (f" {rng.choice(FAILURES)}" if has_retries else "")
        lines += [f"#: {' '.join(options)}", f"@every {period_s}s {work}", ""]
    return "\n".join(lines)


def _draw_payload(rng: random.Random, run_s: float) -> dict[str, Any]:
    """Return what a handler is told: how long it runs, how often it does not succeed, and how."""
    return {
        "run": run_s,
        "fails": rng.choice((0.1, 0.5, 0.9)),
        "how": rng.sample(ENDS, rng.randint(1, 3)),
        "after": rng.choice((0, 0, 500, 3_000, 9_000)),
    }


def _draw_tries(rng: random.Random) -> list[str]:
    options = [f"retries={rng.choice((1, 2, 3))}", f"backoff={rng.choice((1, 2, 5))}s"]
    if rng.random() < 0.3:
        options.append("backoff-max=6s")
    return options


def _draw_codes(rng: random.Random) -> list[str]:
    options = ["retry-on=1,7,75"] if rng.random() < 0.3 else []
    return [*options, "fatal-on=78"] if rng.random() < 0.6 else options
