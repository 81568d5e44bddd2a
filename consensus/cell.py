"""What a replica tells of its cell: whose disks stand for the ids, and how far each is."""

from __future__ import annotations

from typing import Literal

import msgspec


class MemberView(msgspec.Struct, frozen=True):
    """One id of the cell, as this replica's log says.

    `incarnation` counts the disks that stood for the id, from 1. `open` waits for a new disk that
    starts to join; `joining` has one that neither votes nor counts yet; `votes` is a full member.
    `raft` and `about` are what the replacement gave, "" for what is configured.
    """

    incarnation: int
    standing: Literal["open", "joining", "votes"]
    raft: str = ""
    about: str = ""


class PeerView(msgspec.Struct, frozen=True):
    """A peer, as the leader sees it: whether it can be reached, up to which index its log is known
    to equal the leader's, and how much of a dump (bytes) is on its way; 0 of 0 where none is."""

    connected: bool
    matched: int = 0
    dump_sent: int = 0
    dump_size: int = 0


class Joining(msgspec.Struct, frozen=True):
    """How far a replica that does not vote yet has come.

    `waiting`: for a peer that takes it in; `text` says what the last one answered. `dump`: `done`
    of `goal` bytes of the state are here. `log`: entries up to `done` of those to `goal` are.
    """

    stage: Literal["waiting", "dump", "log"]
    done: int = 0
    goal: int = 0
    text: str = ""
