"""What a replica reports about its cell: the members, their disks, and their progress."""

from __future__ import annotations

from typing import Literal

import msgspec


class MemberView(msgspec.Struct, frozen=True):
    """One id of the cell, according to this replica's log.

    `incarnation` counts the disks that have represented the id, from 1. The state `open` means that
    the id waits for a new disk; `joining`, that its disk does not vote or count yet; `votes`, that
    it is a full member. `raft` and `about` are addresses from the replacement, "" for the
    configured ones. `is_new`: the id was added to the cell and never voted, so that no majority
    needs it.
    """

    incarnation: int
    member_state: Literal["open", "joining", "votes"]
    raft: str = ""
    about: str = ""
    is_new: bool = False


class PeerView(msgspec.Struct, frozen=True):
    """A peer, as the leader sees it: whether it is reachable, its match index, and how many bytes
    of a dump were sent to it; 0 of 0 if none is being sent.
    """

    connected: bool
    matched: int = 0
    dump_sent: int = 0
    dump_size: int = 0


class Joining(msgspec.Struct, frozen=True):
    """The progress of a replica that does not vote yet.

    Stage `waiting`: no peer has admitted it; `text` is the last answer of a peer. Stage `dump`: it
    has `done` of `goal` bytes of the state. Stage `log`: it has the entries up to `done` of `goal`.
    """

    stage: Literal["waiting", "dump", "log"]
    done: int = 0
    goal: int = 0
    text: str = ""
