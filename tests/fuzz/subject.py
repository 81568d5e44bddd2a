"""What a fuzzer has: targets, which give any bytes to a parser, and what is watched meanwhile.

A target takes bytes and returns whether they were good ones: read, and used. It passes over the
parser's own errors, which it names. All else is a finding: another exception, a value that does not
come back, too much processor time, too much memory.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

CPU_S_MAX: Final = 2.0
"""Of one input of some KiB. It is the process's own time: a busy machine makes no findings."""
MEMORY_BYTES_MAX: Final = 256 << 20
"""By which one input may raise the highest memory that the process ever had."""

Target = Callable[[bytes], object]


class Finding(Exception):
    """What must not be."""


class Subject:
    """Targets, and good bytes for each of them. The first byte of an input chooses a target."""

    def __init__(self, targets: Sequence[Target], seeds: Mapping[str, Sequence[bytes]]) -> None:
        self.targets = list(targets)
        self.seeds = seeds
        self._peak_bytes = 0

    @property
    def names(self) -> list[str]:
        """The names of the targets, which are those of their functions."""
        return [target.__name__ for target in self.targets]

    def inputs(self) -> list[bytes]:
        """Return all seeds as inputs."""
        return [
            bytes([place]) + seed
            for place, name in enumerate(self.names)
            for seed in self.seeds[name]
        ]

    def feed(self, content: bytes) -> bool:
        """Give an input to its target; return whether it was good.

        Raises:
            Finding: it takes too much. Whatever a target raises is a finding, too.
        """
        if not content:
            return False
        target = self.targets[content[0] % len(self.targets)]
        before_bytes, before_s = _peak_bytes(), time.process_time()
        is_good = target(content[1:])
        took_s = time.process_time() - before_s
        grown_bytes = _peak_bytes() - before_bytes
        if took_s > CPU_S_MAX:
            raise Finding(f"{target.__name__}: {took_s:.1f} s for {len(content)} bytes")
        if grown_bytes > MEMORY_BYTES_MAX:
            raise Finding(f"{target.__name__}: {grown_bytes >> 20} MiB for {len(content)} bytes")
        return bool(is_good)


def check_same(before: object, after: object, what: str) -> None:
    """Fail unless a value came back as it was."""
    if before != after:
        raise Finding(f"{what} does not come back: {before!r:.500} and {after!r:.500}")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
