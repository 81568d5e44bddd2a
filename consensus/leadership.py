"""Who leads, as far as this replica knows.

Raft elects at most one leader per term, but a replica that was paused or cut off may believe for a
while that it still leads after another was elected (Raft §8; SRE book ch. 24, "Fast failover"). So
this belief alone does not permit a leader to act. A leader first appends a Claim with its term.
Once the Claim is applied, all older entries are applied too, and the state machine refuses entries
of an older epoch. Everything that leaves the cell carries the epoch as a fencing token.
"""

from __future__ import annotations

import msgspec


class Position(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """The position of a committed entry; totally ordered. Indexes may have gaps, because the engine
    appends entries of its own.
    """

    term: int = 0
    index: int = 0


class Freshness(msgspec.Struct, frozen=True):
    """How far a replica is behind its leader: the newest entry applied here, the newest entry known
    to be committed, and how many ms ago this replica was level with the leader (None: never since
    its start).
    """

    applied: int
    known: int
    age_ms: int | None = None


class Leadership(msgspec.Struct, frozen=True):
    """What this replica believes: the term, whether it leads, and the leader's id if known."""

    term: int = 0
    leads: bool = False
    leader: str | None = None
