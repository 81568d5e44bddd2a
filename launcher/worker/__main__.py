"""`python -m launcher.worker OPTIONS`, what `raftcron worker` turns into; OPTIONS are JSON."""

from __future__ import annotations

import sys

import msgspec

from launcher.worker.main import run_worker
from launcher.worker.options import EXIT_APP, WorkerOptions, tell
from launcher.worker.terminal import say


def main(said: str) -> int:
    """Run one worker as its WorkerOptions, in JSON, say; return the exit code."""
    try:
        options = msgspec.json.decode(said, type=WorkerOptions)
    except msgspec.ValidationError as error:
        say(tell(error))
        return EXIT_APP
    return run_worker(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
