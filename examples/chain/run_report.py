"""Make the report of a day in three steps: `python run_report.py 2026-11-20`.

    raftcron dev --data cell                         # a cell, in a terminal of its own
    raftcron worker report --executor cell/executor-1/workers.sock
    python run_report.py 2026-11-20

A step runs when those that it comes after have succeeded. If one fails, the later ones are
cancelled. It may be run again: a step whose key is known is not submitted twice.
"""

from __future__ import annotations

import sys

from raftcron import Client, Task
from report import fetch, publish, total


def submit(client: Client, day: str) -> Task:
    """Submit the steps for a day; return the last one."""
    fetched = client.submit(fetch, day, key=day)
    summed = client.submit(total, key=day, after=[fetched])
    return client.submit(publish, day, key=day, after=[fetched, summed])


if __name__ == "__main__":
    with Client() as client:
        ended = submit(client, sys.argv[1]).wait(timeout=60)
    print(f"{ended.task} {ended.state}: {ended.result or ended.reason}")
    sys.exit(ended.state != "succeeded")
