"""`python -m tests.simulation.engine [SEED | --seeds A-B]`: repeat runs of the engine's simulation.

A seed stands for a profile, unless `--profile` names one. `--trace` prints what happened, one line
each; `--mutant NAME` switches one safeguard off, to see that it is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

from tests.simulation.engine.mutants import MUTANTS
from tests.simulation.engine.profiles import PROFILES
from tests.simulation.engine.runs import simulate


def seeds_of(text: str) -> range:
    """Return the seeds in `7` or `0-199`."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    """Run the seeds; return 1 where something went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.engine")
    parser.add_argument("seed", nargs="?", type=seeds_of, default=range(1))
    parser.add_argument("--seeds", type=seeds_of)
    parser.add_argument("--profile", choices=sorted(PROFILES))
    parser.add_argument("--mutant", choices=sorted(MUTANTS))
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    seeds = options.seeds or options.seed
    bad, began = [], time.perf_counter()
    simulated_s = 0.0
    mutant = MUTANTS[options.mutant]() if options.mutant else contextlib.nullcontext()
    with mutant:
        for seed in seeds:
            run = simulate(seed, options.profile, tracing=options.trace)
            simulated_s += run.counts["seconds"]
            print(*run.trace, sep="\n", end="\n" if run.trace else "")
            if run.problems or len(seeds) == 1:
                print(run, *run.problems[:5], sep="\n  ")
            if run.problems:
                bad.append(seed)
    took_s = time.perf_counter() - began
    print(f"{len(seeds)} seeds, {len(bad)} bad: {bad}; {simulated_s / took_s:.0f} s a second")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
