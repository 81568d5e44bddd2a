"""`python -m tests.simulation SEED`: repeat one simulation and print what happened.

`--hash` prints only the digest of the trace; `--chaos-s` sets for how long there are faults;
`--mutant NAME` switches one safeguard off.
"""

from __future__ import annotations

import argparse
import contextlib
import sys

from tests.simulation.mutants import MUTANTS
from tests.simulation.world import simulate


def main() -> int:
    """Run one seed; return 1 where something went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("seed", type=int)
    parser.add_argument("--hash", action="store_true")
    parser.add_argument("--mutant", choices=sorted(MUTANTS))
    parser.add_argument("--chaos-s", type=float, help="for how long there are faults")
    options = parser.parse_args()
    mutant = MUTANTS[options.mutant]() if options.mutant else contextlib.nullcontext()
    with mutant:
        times = {} if options.chaos_s is None else {"chaos_s": options.chaos_s}
        world = simulate(options.seed, **times)
    if not options.hash:
        print(*world.trace, sep="\n")
        print(f"{len(world.judge.begun)} attempts, {world.judge.started} starts")
    print(*world.judge.problems, world.digest, sep="\n")
    return 1 if world.judge.problems else 0


if __name__ == "__main__":
    sys.exit(main())
