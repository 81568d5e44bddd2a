"""`python -m bench.probes NAME JSON`: measure once, and print the row as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from bench.probes import load, overload, single
from cron.parent import die_with_parent

PROBES: Final[dict[str, Callable[..., dict[str, Any]]]] = {
    "cost": load.cost,
    "trial": load.trial,
    "overload": overload.overload,
    "drain": single.drain,
    "frozen": single.frozen,
    "cli": single.cli,
    "starts": single.starts,
}


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)  # so that all that was started is ended, and folders are removed


def main() -> int:
    """Run the probe; it ends with the process that started it."""
    signal.signal(signal.SIGTERM, _end)
    die_with_parent(os.getppid())
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    name, options = sys.argv[1], json.loads(sys.argv[2])
    if "work" in options:
        options["work"] = msgspec.convert(options["work"], load.Work)
    print(json.dumps({**PROBES[name](**options), "group_nice": group_nice()}))
    return 0


def group_nice() -> int:
    """Return the nice value of this session's scheduling group (sched(7), "The autogroup feature"),
    which counts beside other sessions; 0 if the kernel has no such groups."""
    try:
        return int(Path("/proc/self/autogroup").read_text().rpartition(" ")[2])
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
