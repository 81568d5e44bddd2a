"""The progress of a replica that does not vote yet, for display."""

from __future__ import annotations

from consensus.cell import Joining
from consensus.engine.raft import Raft
from consensus.engine.standing import Standing


def joining(raft: Raft, standing: Standing) -> Joining | None:
    """Return the progress of `raft`; None once it votes and has applied that entry. Reads variables
    of the tick thread; two of them may be of different moments.
    """
    if raft.roster.may_vote and standing.may_vote:
        return None
    incoming = raft.compaction.incoming
    if (target := incoming.target) is not None:
        return Joining("dump", incoming.offset, target.size)
    if raft.leader is not None:
        return Joining("log", raft.applied, max(raft.applied, raft.followed.leader_commit))
    return Joining("waiting", text=raft.parts.gate.refusal or "no peer has answered yet")
