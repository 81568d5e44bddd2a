"""Changes that the log has no command of their own for: members replaced, cells restored."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog

from consensus.cell import MemberView, PeerView
from cron.api.access import ChangesQuery
from cron.api.members import GrowReport, GrowRequest, ReplaceReport, ReplaceRequest
from cron.config import PeerAddresses, parse_address
from cron.errors import NotNow, StillAlive
from cron.service import access
from cron.service.replacing import Replacing, grow, note_change, replace
from cron.state import commands as c
from cron.state.outcome import Verdict
from cron.state.state import Restored
from tests.unit.access_rig import AccessWorld
from tests.unit.cell_fakes import FOUNDED, FakeCell
from tests.unit.state_rig import StateRig

REPORT = ReplaceReport(
    replica="r2", incarnation=2, member_state="open", raft="h:7411", client="h:7401"
)


class Members:
    def __init__(self, error: Exception | None = None, *added: GrowReport) -> None:
        self.error = error
        self.added = list(added)

    async def grow(self, _request: GrowRequest) -> GrowReport:
        return self.added.pop(0)

    async def replace(self, _request: ReplaceRequest) -> ReplaceReport:
        if self.error is not None:
            raise self.error
        return REPORT


def replica_with(members: Any) -> Any:
    replica: Any = AccessWorld().cell.replica
    return msgspec.structs.replace(replica, replacing=members)


async def rows_of(replica: Any) -> list[tuple[str, ...]]:
    report = await access.changes(replica, ChangesQuery())
    return [(one.action, one.object, one.before, one.after, one.by) for one in report.changes]


async def test_who_replaced_a_replica_is_kept_once() -> None:
    replica = replica_with(Members())
    request = ReplaceRequest(replica="r2", by="ada")
    for _ in range(2):  # the first answer was lost
        assert await replace(replica, request) == REPORT
    after = "incarnation 2 at raft h:7411, client h:7401"
    assert await rows_of(replica) == [("replace", "replica r2", "incarnation 1", after, "ada")]


async def test_two_replacements_at_once_are_one_and_the_second_says_so() -> None:
    class Slow(FakeCell):
        async def replace(self, replica: str, **asked: Any) -> MemberView:
            self.replaced.append((replica, "", ""))
            await asyncio.sleep(0)  # the other request has its turn while this one commits
            self.members[replica] = opened = MemberView(
                self.members[replica].incarnation + 1, "open"
            )
            return opened

    slow = Slow()
    slow.members = dict(FOUNDED)
    slow.reached = {"r2": PeerView(False, 0), "r3": PeerView(True, 9)}
    peers = {f"r{n}": PeerAddresses(f"127.0.0.1:740{n}", f"127.0.0.1:741{n}") for n in (1, 2, 3)}
    some: Any = slow
    replica = replica_with(Replacing(some, peers, parse_address))
    request = ReplaceRequest(replica="r2", by="ada")
    first, second = await asyncio.gather(replace(replica, request), replace(replica, request))
    assert (first.incarnation, first.was_open) == (2, False)
    assert (second.incarnation, second.was_open) == (2, True)
    assert len(slow.replaced) == len(await rows_of(replica)) == 1


async def test_who_added_a_replica_is_kept_once() -> None:
    place = {"replica": "r2", "incarnation": 1, "raft": "h:7411", "client": "h:7401"}
    first = GrowReport(**place, member_state="open")
    again = GrowReport(**place, member_state="joining", was_there=True)
    voter = GrowReport(replica="r1", member_state="votes", was_there=True)
    replica = replica_with(Members(None, first, again, voter))
    for name, report in (("r2", first), ("r2", again), ("r1", voter)):
        assert await grow(replica, GrowRequest(replica=name, by="ada")) == report
    after = "added, at raft h:7411, client h:7401"
    assert await rows_of(replica) == [("grow", "replica r2", "", after, "ada")]


async def test_a_replacement_that_was_refused_leaves_no_row() -> None:
    replica = replica_with(Members(StillAlive("r2 is connected")))
    with pytest.raises(StillAlive):
        await replace(replica, ReplaceRequest(replica="r2", by="ada"))
    assert await rows_of(replica) == []


async def test_what_has_happened_is_answered_although_no_row_can_be_added() -> None:
    async def refuse(*_commands: Any) -> None:
        raise NotNow("the cell has format 10, too old for this")

    replica = replica_with(Members())
    replica = msgspec.structs.replace(replica, leader=SimpleNamespace(append=refuse))
    with structlog.testing.capture_logs() as logs:
        assert await replace(replica, ReplaceRequest(replica="r2", by="ada")) == REPORT
    [line] = logs
    assert (line["event"], line["object"], line["by"]) == ("change.not_noted", "replica r2", "ada")


async def test_any_change_of_members_is_noted_alike() -> None:
    replica = replica_with(Members())
    grown = c.NoteChange("grow", "replica r2", "", "h:7411", "ada")
    await note_change(replica, grown)
    await note_change(replica, msgspec.structs.replace(grown, subject="replica r3"))
    assert [row[:2] for row in await rows_of(replica)] == [
        ("grow", "replica r3"),
        ("grow", "replica r2"),
    ]


@pytest.mark.parametrize("kind", ["", "Grow", "grow it", "g" * 33, "put\n"])
def test_a_note_that_is_none_is_refused(kind: str) -> None:
    rig = StateRig()
    with rig.unchanged():
        note = c.NoteChange(kind, "replica r2", "", "", "ada")
        assert rig.answer(note).verdict is Verdict.BAD_ACCESS
    assert rig.state.revisions == []


# ---- restored


@pytest.mark.parametrize("log_format", [c.FORMAT, 10])
def test_a_restore_leaves_a_row_once_the_cell_launches_again(log_format: int) -> None:
    rig = StateRig()
    rig.state.format = log_format
    rig.state.restored = Restored(2, 77, rig.at_ms - 60_000, rig.at_ms, "ada")
    to_s = rig.at_ms // 1000
    assert rig.answer(c.Resolve(to_s)).verdict is Verdict.ACCEPTED
    assert rig.answer(c.Resolve(to_s)).verdict is Verdict.ALREADY
    rows = [(one.command, one.by, one.count) for one in rig.state.revisions]
    assert rows == ([("restore", "ada", 1)] if log_format == c.FORMAT else [])
    for row in rig.state.revisions:
        [changed] = row.changed
        assert changed.name == "cell"
        assert changed.before.startswith("restored from 2026-11-20T")
        assert changed.after.startswith("generation 2, accounted for up to 2026-11-20T")
