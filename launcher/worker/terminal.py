"""What the processes of a worker tell whoever looks at the terminal or the journal."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"raftcron worker: {text}\n")
    sys.stderr.flush()
