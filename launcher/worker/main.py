"""`raftcron worker`, below its command line: checks the app, then runs the parent of its children.

This process lives long and does little: it imports neither the app nor what runs handlers.
"""

from __future__ import annotations

from launcher.worker.options import EXIT_OK, ChildOptions, WorkerOptions
from launcher.worker.parent import Parent
from launcher.worker.place import start_child
from launcher.worker.terminal import say


def run_worker(options: WorkerOptions) -> int:
    """Run a worker until it is told to stop; return the exit code of the process.

    0: stopped in order. 1: some process had to be killed. 2: the app cannot be imported or
    registers no handler; that was said on stderr, and nothing was started.
    """
    checked = start_child(ChildOptions(worker=options, check=True)).wait()
    if checked != EXIT_OK:
        return checked if checked > 0 else 1
    return Parent(options, say).run()
