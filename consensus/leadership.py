"""Who leads, as far as this replica knows.

Theory of operation. Raft gives at most one leader per term, but a replica that was paused or cut
off may believe in its leadership for a while after another was elected (Raft §8; SRE book ch. 24,
"Fast failover"). So nothing here is a licence to act. A leader first appends a Claim with its term;
once that is applied, everything older is applied too, and from then on the state machine refuses
what carries an older epoch. What leaves the cell carries the epoch as a fencing token.
"""

from __future__ import annotations

import msgspec


class Position(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """The place of a committed entry; totally ordered. Indexes of two entries may leave a gap,
    since the engine writes entries of its own."""

    term: int = 0
    index: int = 0


class Freshness(msgspec.Struct, frozen=True):
    """How far a replica is behind its leader: the newest entry applied here, the newest that is
    known to be committed, and how many ms ago this replica had all that the leader had. None: never
    since it was started."""

    applied: int
    known: int
    age_ms: int | None = None


class Leadership(msgspec.Struct, frozen=True):
    """This replica's belief: the term, whether it leads, and the leader's id if it knows one."""

    term: int = 0
    leads: bool = False
    leader: str | None = None
