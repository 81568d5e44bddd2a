"""`python -m launcher.worker OPTIONS`, what `raftcron worker` turns into; OPTIONS are JSON."""

from __future__ import annotations

import sys

import msgspec

from launcher.worker.options import EXIT_APP, EXIT_OK, ChildOptions, WorkerOptions, explain, say
from launcher.worker.parent import Parent, start_child


def main(said: str) -> int:
    """Run a worker as its WorkerOptions, in JSON, say, until it is told to stop; return the exit
    code of the process.

    0: stopped in order. 1: some process had to be killed. 2: the app cannot be imported or
    registers no handler; that was said on stderr, and nothing was started.

    This process lives long and does little: it imports neither the app nor what runs handlers.
    """
    try:
        options = msgspec.json.decode(said, type=WorkerOptions)
    except msgspec.ValidationError as error:
        say(explain(error))
        return EXIT_APP
    checked = start_child(ChildOptions(worker=options, check=True)).wait()
    if checked != EXIT_OK:
        return checked if checked > 0 else 1
    return Parent(options, say).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
