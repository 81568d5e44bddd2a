"""`python -m launcher.executor.target_worker PID OPTIONS`: a worker that ends with its executor.

It is the parent of the processes that run targets, and imports little.
"""

from __future__ import annotations

import sys

from launcher.executor.parent import die_with_parent
from launcher.worker.__main__ import main as work


def main(parent: str, options: str) -> int:
    """Run a worker until it is told to stop or its executor, the process `parent`, ends; return its
    exit code."""
    return work(options) if die_with_parent(int(parent)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
