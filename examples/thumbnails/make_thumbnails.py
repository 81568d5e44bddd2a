"""Make ten thousand thumbnails and then a page of them: `python make_thumbnails.py album-1`.

    raftcron dev --data cell                         # a cell, in a terminal of its own
    raftcron worker pictures --processes 2 --threads 4 --executor cell/executor-1/workers.sock
    python make_thumbnails.py album-1 --count 10000

Each thumbnail is a task of one group. The page is the group's `on_complete`: a task that the close
of the group submits, and that is due when all others are over. `raftcron group show album-1` counts
them meanwhile. It may be run again: a task whose key is known is not submitted twice.
"""

from __future__ import annotations

import argparse

from pictures import index, make
from raftcron import Client


def submit(client: Client, album: str, count: int) -> str:
    """Submit a task for each thumbnail, and the one that follows; return the name of that one."""
    with client.group(album, on_complete=(index, count)) as group:
        group.submit_many((make, number, {"key": f"{album}-{number}"}) for number in range(count))
    return group.status().on_complete


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("album")
    parser.add_argument("--count", type=int, default=10_000)
    asked = parser.parse_args()
    with Client() as client:
        ended = client.wait(submit(client, asked.album, asked.count), timeout=600)
        group = client.group_status(asked.album)
    print(f"{group.done} done, {group.failed} failed, {group.dropped} dropped")
    print(f"{ended.task} {ended.state}: {ended.result or ended.reason}")
    raise SystemExit(ended.state != "succeeded")
