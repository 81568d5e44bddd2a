"""The options of `raftcron dev`."""

from __future__ import annotations

import msgspec


class DevOptions(msgspec.Struct, frozen=True):
    """How to run a cell on this machine.

    `crontab`: a file to apply, with prune, once there is a leader. `data`: a folder that keeps
    state between runs; None is one that is removed at the end. `port`: clients on P, P+1, P+2, Raft
    on P+10 to P+12. `for_ms`: how long to run once there are a leader and the crontab; None is
    until Ctrl-C. `restart`: whether a process that dies is started again. `system`: the crontab has
    a user column. `object_storage`: a URL to back up to. `restore`: begin a new generation of the
    cell from there. `http`: whether the replicas serve HTTP, on P+80 to
    P+82. `targets`: a configuration of targets that the executors serve.
    """

    crontab: str | None = None
    data: str | None = None
    port: int = 7400
    for_ms: int | None = None
    executors: int = 1
    restart: bool = True
    system: bool = False
    object_storage: str = ""
    restore: bool = False
    http: bool = True
    targets: str = ""
