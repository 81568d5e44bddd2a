"""Whose disks stand for the cell's ids, and what follows for addresses and for `status`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from consensus.cell import Joining, MemberView, PeerView
from consensus.log import ReplicatedLog
from cron.api.members import JoinProgress, StatusRow

OPEN: Final = "open"
JOINING: Final = "joining"
VOTES: Final = "votes"
UNREACHABLE: Final = "unreachable"
LEARNER: Final = "learner"
WAITING: Final = "waiting"
"""Its disk has no room: it takes no part, and says so."""

_OPEN = "waits for a new disk: start one with --join"
_ONLY_RAFT = "the leader reaches it, but its client address does not answer"


class CellLog(ReplicatedLog, Protocol):
    """A replicated log that tells of its members, and lets one be replaced."""

    @property
    def members(self) -> dict[str, MemberView]:
        """The ids of the cell as this replica's log has them; none before it is founded."""

    @property
    def joining(self) -> Joining | None:
        """How far this replica is until it votes; None if it does."""

    def peers(self) -> dict[str, PeerView]:
        """Return the others as this replica reaches them; to be asked of the leader."""

    async def replace(
        self, replica: str, *, raft: str = "", about: str = "", timeout_ms: int
    ) -> MemberView:
        """Open the next incarnation of `replica`; `about` is its client address.

        Raises:
            NotLeader, ChangeRefused: nothing happened. OutcomeUnknown: nobody knows.
        """


def client_address(members: Mapping[str, MemberView], replica: str, configured: str) -> str:
    """Return where clients find a replica: what its replacement gave, or what is configured."""
    member = members.get(replica)
    return member.about if member is not None and member.about else configured


def progress_of(joining: Joining | None) -> JoinProgress | None:
    """Return how far a replica has come, as the API shows it."""
    if joining is None:
        return None
    return JoinProgress(joining.stage, joining.done, joining.goal, joining.text)


def with_standing(
    rows: Sequence[StatusRow],
    members: Mapping[str, MemberView],
    peers: Mapping[str, PeerView],
    leader_applied: int | None,
) -> list[StatusRow]:
    """Return the rows of replicas with what a log says of each.

    `peers` and `leader_applied`, the index that the leader has applied, are the leader's own; from
    any other replica none and None.
    """
    return [
        _with_progress(
            msgspec.structs.replace(
                row, incarnation=members[row.id].incarnation, standing=members[row.id].standing
            ),
            peers.get(row.id),
            leader_applied,
        )
        if row.id in members
        else row
        for row in rows
    ]


def _with_progress(row: StatusRow, peer: PeerView | None, leader_applied: int | None) -> StatusRow:
    if row.role == "leader":
        return msgspec.structs.replace(row, matched=leader_applied)
    if peer is None or leader_applied is None or row.standing == OPEN:
        return row
    note = _ONLY_RAFT if peer.connected and row.role == UNREACHABLE else row.note
    joining = row.joining
    if joining is None and row.standing == JOINING:
        joining = JoinProgress("log", peer.matched, leader_applied)
        if peer.dump_size:
            joining = JoinProgress("dump", peer.dump_sent, peer.dump_size)
    return msgspec.structs.replace(row, matched=peer.matched, joining=joining, note=note)


def as_leader_says(rows: Sequence[StatusRow], told: Sequence[StatusRow]) -> list[StatusRow]:
    """Return the rows of replicas with what the leader's own answer has of each: who stands for an
    id, and how far it is."""
    of = {row.id: row for row in told if row.kind == "replica"}
    return [
        msgspec.structs.replace(
            row,
            incarnation=of[row.id].incarnation,
            standing=of[row.id].standing,
            matched=of[row.id].matched,
            joining=row.joining or of[row.id].joining,
            note=of[row.id].note if row.role == UNREACHABLE else row.note,
        )
        if row.id in of
        else row
        for row in rows
    ]


def noted(rows: Sequence[StatusRow]) -> list[StatusRow]:
    """Return the rows with a note where an id waits for a disk that nobody has started."""
    return [
        msgspec.structs.replace(row, note=_OPEN)
        if row.standing == OPEN and row.role == UNREACHABLE
        else row
        for row in rows
    ]
