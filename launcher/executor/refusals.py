"""Why an executor refuses a start: the text of each reason, which the cell keeps with the attempt.

DESIGN.md, "Refusals", lists the functions that refuse. The spawner imports this module as well, so
it imports nothing but what a Python has loaded anyway.
"""

from __future__ import annotations

from typing import Final

STOPPING: Final = "the executor is stopping"
LEASE_OVER: Final = "the executor's lease is over"
KILLED: Final = "killed before it was started"
WITHDRAWN: Final = "fenced before it was started"
LATE: Final = "not started in time"
TWICE: Final = "an attempt of this name is here"
UNREADABLE: Final = "the work cannot be read by this executor"
WORKERLESS: Final = "no worker here serves it any more"
RETURNED: Final = "no worker here begins with it"
WAITED: Final = "it waited for a slot when its executor died"


def late_by(late_ms: int) -> str:
    """Return why an order is refused that arrived so long after its start window was over."""
    return f"{LATE}: its order was {late_ms} ms too late"
