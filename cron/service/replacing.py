"""A replica's disk is lost: its id is opened for a new one, and the old one is shut out for good.
Or the cell grows by a replica.

The log would replace any member at any time. What a person must not do by mistake is refused here,
by what the leader sees: to shut out a disk that is well, or the one that the majority hangs on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import structlog

from consensus.cell import MemberView
from consensus.errors import ChangeRefused, ConsensusError
from consensus.errors import NotLeader as LogNotLeader
from consensus.errors import OutcomeUnknown as LogOutcomeUnknown
from cron.api.members import GrowReport, GrowRequest, ReplaceReport, ReplaceRequest
from cron.config import PeerAddresses
from cron.errors import (
    ConfigError,
    CronError,
    NotLeader,
    NotNow,
    OutcomeUnknown,
    StillAlive,
    UnknownReplica,
)
from cron.leader.requests import as_change_error
from cron.service.members import OPEN, VOTES, CellLog
from cron.service.replica import Replica
from cron.state.commands import NoteChange

_log = structlog.get_logger()

TIMEOUT_MS: Final = 8_000
"""Below what a client waits for a change."""

R = TypeVar("R", ReplaceReport, GrowReport)

ParseAddress = Callable[[str, str], tuple[str, int]]
"""Host and port of an address that may be used, and what it is for; raises ConfigError."""


async def replace(replica: Replica, request: ReplaceRequest) -> ReplaceReport:
    """Replace a member of the cell, and keep who did it among the changes; raises as
    `Replacing.replace`."""
    async with replica.members_turn:
        report = await replica.replacing.replace(request)
        number = report.incarnation
        after = f"incarnation {number} at raft {report.raft}, client {report.client}"
        subject = f"replica {report.replica}"
        before = f"incarnation {number - 1}"
        await note_change(replica, NoteChange("replace", subject, before, after, request.by))
    return report


async def grow(replica: Replica, request: GrowRequest) -> GrowReport:
    """Add a replica to the cell, and keep who did it among the changes; raises as
    `Replacing.grow`."""
    async with replica.members_turn:
        report = await replica.replacing.grow(request)
        if not (report.was_there and report.member_state == VOTES):
            subject = f"replica {report.replica}"
            after = f"added, at raft {report.raft}, client {report.client}"
            await note_change(replica, NoteChange("grow", subject, "", after, request.by))
    return report


async def note_change(replica: Replica, change: NoteChange) -> None:
    """Add the row of a change that has happened, unless it is there already, as of a request that
    came twice. What has happened is not undone if the row cannot be added; the log says so."""
    for kept in replica.state.revisions:
        is_alike = (kept.command, kept.subject) == (change.kind, change.subject)
        if is_alike and [one.after for one in kept.changed] == [change.after]:
            return
    try:
        await replica.leader.append(change)
    except CronError as error:
        about = {"action": change.kind, "object": change.subject, "after": change.after}
        _log.warning("change.not_noted", **about, by=change.by, error=str(error))


class Replacing:
    """Replaces and adds members of the cell; `peers` are the configured addresses."""

    def __init__(
        self, log: CellLog, peers: Mapping[str, PeerAddresses], parse_address: ParseAddress
    ) -> None:
        self._log = log
        self._peers = peers
        self._parse_address = parse_address

    async def replace(self, request: ReplaceRequest) -> ReplaceReport:
        """Open the id's next incarnation and return it; one that waits already, as it is.

        Raises:
            UnknownReplica, NotNow, StillAlive, InvalidInput, NotLeader: nothing happened.
            OutcomeUnknown: it may happen.
        """
        name, members = request.replica, self._log.members
        if name not in members:
            known = ", ".join(sorted(members or self._peers))
            raise UnknownReplica(f"replica {name} does not exist", f"the cell has {known}")
        now = {one: self._addresses(one, member) for one, member in members.items()}
        self._check_addresses(request, now)
        if self._is_open(request):  # as after a request that came twice
            return self._report(ReplaceReport, name, members[name], was_open=True)
        self._check_sense(request, members)
        said = {"replaced": name, "by": request.by, "raft": request.raft, "client": request.client}
        _log.info("replacement.asked", **said)
        try:
            member = await self._log.replace(
                name, raft=request.raft, about=request.client, timeout_ms=TIMEOUT_MS
            )
        except ConsensusError as error:
            if isinstance(error, ChangeRefused) and self._is_open(request):  # asked of two leaders
                return self._report(ReplaceReport, name, self._log.members[name], was_open=True)
            _log.warning("replacement.failed", **said, error=str(error))
            raise _as_cron_error(error, name, "replaced") from error
        _log.warning("replacement.committed", **said, incarnation=member.incarnation)
        return self._report(ReplaceReport, name, member, was_open=False)

    async def grow(self, request: GrowRequest) -> GrowReport:
        """Add the replica to the cell and return it; one that is there already, as it is.

        Raises:
            UnknownReplica, NotNow, NotLeader: nothing happened. OutcomeUnknown: it may happen.
        """
        name, members = request.replica, self._log.members
        if name in members:  # as after a request that came twice
            return self._report(GrowReport, name, members[name], was_there=True)
        if name not in self._peers:
            raise UnknownReplica(
                f"{self._log.replica} has no replica {name} in `peers`",
                f"write {name} into `peers` of all replicas, without `single`, and restart them;"
                " then repeat this",
            )
        said = {"replica": name, "by": request.by}
        _log.info("growth.asked", **said)
        try:
            member = await self._log.add(name, timeout_ms=TIMEOUT_MS)
        except ConsensusError as error:
            _log.warning("growth.failed", **said, error=str(error))
            raise _as_cron_error(error, name, "added") from error
        _log.warning("growth.committed", **said)
        return self._report(GrowReport, name, member, was_there=False)

    def _check_sense(self, request: ReplaceRequest, members: Mapping[str, MemberView]) -> None:
        name, peers = request.replica, self._log.peers()
        if name == self._log.replica:
            raise NotNow(
                f"{name} leads the cell, so it is well; nothing was changed",
                "stop it first: another one leads then",
            )
        electors = {one for one, member in members.items() if not member.is_new}
        missing = [
            one
            for one, member in members.items()
            if one in electors - {name, self._log.replica}
            and not (member.member_state == VOTES and one in peers and peers[one].connected)
        ]
        if len(electors - {name}) - len(missing) <= len(electors) // 2:
            if not missing:
                raise NotNow(
                    f"without {name} there is no majority of two; nothing was changed",
                    "add a third replica first: `raftcron cell grow`",
                )
            raise NotNow(
                f"without {name} there is no majority while {', '.join(missing)} does not take"
                " part; nothing was changed",
                f"bring {missing[0]} back first, or replace that one first, if its disk is lost",
            )
        peer = peers.get(name)
        if peer is not None and peer.connected and not request.is_confirmed:
            behind = max(0, self._log.applied.index - peer.matched)
            entries = "entry" if behind == 1 else "entries"
            level = f"{behind:,} {entries} behind it" if behind else "level with it"
            raise StillAlive(
                f"{name} is connected to the leader and {level}; its disk would be shut out"
                " for good",
                "stop it first, or repeat it with --yes; nothing was changed",
            )

    def _check_addresses(self, request: ReplaceRequest, now: Mapping[str, PeerAddresses]) -> None:
        """Refuse addresses of others; `now` are those in force."""
        name = request.replica
        taken = {
            self._parse_address(address, f"peers.{other}"): f"{other}'s"
            for other, addresses in now.items()
            if other != name
            for address in (addresses.client, addresses.raft)
        }
        wanted = (
            ("--raft", request.raft or now[name].raft),
            ("--client", request.client or now[name].client),
        )
        for option, address in wanted:
            place = self._parse_address(address, option)
            if place in taken:
                hint = "every replica needs two ports of its own"
                raise ConfigError(f"{option}: {address} is {taken[place]} already", hint)
            taken[place] = "its --raft"

    def _is_open(self, request: ReplaceRequest) -> bool:
        """Return whether the replica waits for a new disk already, at the requested addresses."""
        member = self._log.members[request.replica]
        now = self._addresses(request.replica, member)
        is_same = request.raft in ("", now.raft) and request.client in ("", now.client)
        return member.member_state == OPEN and is_same

    def _addresses(self, name: str, member: MemberView) -> PeerAddresses:
        """Return the addresses in force."""
        configured = self._peers[name]
        return PeerAddresses(member.about or configured.client, member.raft or configured.raft)

    def _report(self, kind: type[R], name: str, member: MemberView, **said: bool) -> R:
        """Return the report of that kind about a member; `said` are its own fields."""
        now = self._addresses(name, member)
        return kind(
            replica=name,
            incarnation=member.incarnation,
            member_state=member.member_state,
            raft=now.raft,
            client=now.client,
            **said,
        )


def _as_cron_error(error: ConsensusError, name: str, done: str) -> Exception:
    if isinstance(error, ChangeRefused):
        return NotNow(f"{error}; nothing was changed", error.hint or "try again in a moment")
    if isinstance(error, LogNotLeader):
        return NotLeader(None)
    if isinstance(error, LogOutcomeUnknown):
        hint = f"`raftcron status` shows whether {name} is open; then it was done"
        return OutcomeUnknown(f"{error}: {name} may still be {done}", hint)
    return as_change_error(error)
