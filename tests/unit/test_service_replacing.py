"""What may be replaced, what is refused, and what a person is told."""

from __future__ import annotations

from typing import Any

import pytest

from consensus.cell import MemberView, PeerView
from consensus.errors import ChangeRefused, Stopped
from consensus.errors import NotLeader as LogNotLeader
from consensus.errors import OutcomeUnknown as LogOutcomeUnknown
from cron.api.members import GrowReport, GrowRequest, ReplaceReport, ReplaceRequest
from cron.config import PeerAddresses, parse_address
from cron.errors import (
    ConfigError,
    CronError,
    NotLeader,
    NotNow,
    OutcomeUnknown,
    StillAlive,
    Unavailable,
    UnknownReplica,
)
from cron.service.replacing import Replacing
from tests.unit.cell_fakes import FOUNDED, FakeCell

PEERS = {
    f"r{n}": PeerAddresses(f"127.0.0.1:740{n - 1}", f"127.0.0.1:741{n - 1}") for n in (1, 2, 3)
}
UP, DOWN = PeerView(True, 1_000), PeerView(False, 900)


def cell(**peers: PeerView) -> FakeCell:
    log = FakeCell()
    log.members = dict(FOUNDED)
    log.reached = {"r2": DOWN, "r3": UP} | peers
    return log


async def replace(log: FakeCell, replica: str = "r2", **fields: Any) -> ReplaceReport:
    some: Any = log
    request = ReplaceRequest(replica=replica, by="ada", **fields)
    return await Replacing(some, PEERS, parse_address).replace(request)


async def test_a_dead_replica_is_replaced_where_it_was() -> None:
    log = cell()
    report = await replace(log)
    assert log.replaced == [("r2", "", "")]
    assert report == ReplaceReport(
        replica="r2",
        incarnation=2,
        member_state="open",
        raft="127.0.0.1:7411",
        client="127.0.0.1:7401",
    )


async def test_its_new_addresses_are_those_it_is_reported_at() -> None:
    log = cell()
    log.answer = MemberView(2, "open", raft="127.0.0.1:7511", about="127.0.0.1:7501")
    report = await replace(log, raft="127.0.0.1:7511", client="127.0.0.1:7501")
    assert log.replaced == [("r2", "127.0.0.1:7511", "127.0.0.1:7501")]
    assert (report.raft, report.client) == ("127.0.0.1:7511", "127.0.0.1:7501")


@pytest.mark.parametrize(
    ("matched", "how"),
    [
        (1_000, "level with it"),
        (1_001, "level with it"),
        (999, "1 entry behind it"),
        (0, "1,000 entries behind it"),
    ],
)
async def test_one_that_is_connected_needs_a_confirmation(matched: int, how: str) -> None:
    log = cell(r2=PeerView(True, matched))
    with pytest.raises(StillAlive, match=how) as refused:
        await replace(log)
    assert "--yes" in refused.value.hint
    assert log.replaced == []
    assert (await replace(log, is_confirmed=True)).incarnation == 2


async def test_a_disk_that_joins_just_now_needs_a_confirmation_too() -> None:
    log = cell(r2=UP)
    log.members["r2"] = MemberView(2, "joining")
    with pytest.raises(StillAlive):
        await replace(log)


async def test_what_is_open_already_stays_as_it_is() -> None:
    log = cell()
    log.members["r2"] = MemberView(2, "open")
    report = await replace(log)
    assert (report.was_open, report.incarnation, log.replaced) == (True, 2, [])


async def test_what_another_leader_has_opened_meanwhile_is_reported_as_open() -> None:
    log = cell()

    class Refusing(FakeCell):
        async def replace(self, replica: str, **_: Any) -> MemberView:
            self.members[replica] = MemberView(2, "open")  # applied while this one was asked
            raise ChangeRefused("r2 waits for a new disk already")

    late = Refusing()
    late.members, late.reached = log.members, log.reached
    report = await replace(late)
    assert (report.was_open, report.incarnation) == (True, 2)


async def test_what_is_open_at_a_wrong_address_is_opened_anew() -> None:
    log = cell()
    log.members["r2"] = MemberView(2, "open", about="127.0.0.1:7501")
    log.answer = MemberView(3, "open", about="127.0.0.1:7502")
    assert (await replace(log, client="127.0.0.1:7501")).was_open
    assert (await replace(log, client="127.0.0.1:7502")).incarnation == 3
    assert len(log.replaced) == 1


async def test_the_leader_itself_is_well() -> None:
    log = cell()
    with pytest.raises(NotNow, match="r1 leads the cell"):
        await replace(log, "r1", is_confirmed=True)
    assert log.replaced == []


@pytest.mark.parametrize("third", [PeerView(False), None])
async def test_nobody_is_shut_out_of_whom_the_majority_depends(third: PeerView | None) -> None:
    log = cell(r2=UP)
    log.reached = {"r2": UP} | ({"r3": third} if third else {})
    with pytest.raises(NotNow, match="no majority while r3 does not take part") as refused:
        await replace(log, is_confirmed=True)
    assert "bring r3 back first, or replace that one first" in refused.value.hint
    assert log.replaced == []


async def test_nobody_is_shut_out_while_the_third_does_not_vote_yet() -> None:
    log = cell(r2=UP)
    log.members["r3"] = MemberView(2, "joining")
    with pytest.raises(NotNow, match="while r3 does not"):
        await replace(log, is_confirmed=True)


async def test_an_unknown_id_is_told_whom_the_cell_has() -> None:
    with pytest.raises(UnknownReplica, match="r9") as refused:
        await replace(cell(), "r9")
    assert refused.value.hint == "the cell has r1, r2, r3"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"raft": "127.0.0.1:7412"}, "--raft: 127.0.0.1:7412 is r3's"),
        ({"client": "127.0.0.1:7410"}, "--client: 127.0.0.1:7410 is r1's"),
        ({"client": "127.0.0.1:7411"}, "--client: 127.0.0.1:7411 is its --raft"),
        ({"client": "127.0.0.1:7600"}, "--client: 127.0.0.1:7600 is r3's"),
        ({"raft": "192.0.2.1:7411"}, "--raft: 192.0.2.1:7411 is not loopback"),
    ],
)
async def test_an_address_that_cannot_be_is_refused(fields: dict[str, str], says: str) -> None:
    log = cell()
    log.members["r3"] = MemberView(2, "votes", about="127.0.0.1:7600")
    with pytest.raises(ConfigError, match=says):
        await replace(log, **fields)
    assert log.replaced == []


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (ChangeRefused("a change is under way"), NotNow, "a change is under way; nothing"),
        (LogNotLeader("r3"), NotLeader, "does not lead"),
        (LogOutcomeUnknown("no answer"), OutcomeUnknown, "r2 may still be replaced"),
        (Stopped("the log is closed"), Unavailable, "did not happen"),
    ],
)
async def test_what_the_log_refuses_becomes_a_clear_message(
    error: Exception, kind: type[CronError], says: str
) -> None:
    log = cell()
    log.answer = error
    with pytest.raises(kind, match=says) as refused:
        await replace(log)
    assert type(refused.value) is kind


# ---- a cell that grows


ALONE = {"r1": MemberView(1, "votes")}
ADDED = MemberView(1, "open", is_new=True)


def growing(**members: MemberView) -> FakeCell:
    log = FakeCell()
    log.members = ALONE | members
    log.answer = ADDED
    return log


async def grow(log: FakeCell, replica: str = "r2") -> GrowReport:
    some: Any = log
    request = GrowRequest(replica=replica, by="ada")
    return await Replacing(some, PEERS, parse_address).grow(request)


async def test_a_replica_is_added_where_the_configuration_has_it() -> None:
    log = growing()
    assert await grow(log) == GrowReport(
        replica="r2",
        incarnation=1,
        member_state="open",
        raft="127.0.0.1:7411",
        client="127.0.0.1:7401",
    )
    assert log.added == ["r2"]


@pytest.mark.parametrize("member", [ADDED, MemberView(1, "joining", is_new=True)])
async def test_one_that_was_added_before_stays_as_it_is(member: MemberView) -> None:
    log = growing(r2=member)
    report = await grow(log)
    assert (report.was_there, report.member_state) == (True, member.member_state)
    assert log.added == []
    assert (await grow(log, "r1")).was_there


async def test_a_replica_that_no_configuration_has_is_not_added() -> None:
    log = growing()
    with pytest.raises(UnknownReplica, match="r9 in `peers`") as refused:
        await grow(log, "r9")
    assert "restart them" in refused.value.hint
    assert log.added == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ChangeRefused("r2 does not vote yet"), NotNow),
        (LogNotLeader(None), NotLeader),
        (LogOutcomeUnknown("no answer"), OutcomeUnknown),
        (Stopped("the log is closed"), Unavailable),
    ],
)
async def test_what_the_log_says_of_an_addition_reaches_the_person(
    error: Exception, expected: type[CronError]
) -> None:
    log = growing()
    log.answer = error
    with pytest.raises(expected):
        await grow(log)


async def test_a_new_replica_whose_disk_is_lost_is_replaced_by_a_cell_of_one() -> None:
    log = growing(r2=MemberView(1, "joining", is_new=True))
    log.reached = {"r2": DOWN}
    log.answer = MemberView(2, "open", is_new=True)
    assert (await replace(log)).incarnation == 2


async def test_the_second_voter_of_two_is_not_replaced() -> None:
    log = growing(r2=MemberView(1, "votes"))
    log.reached = {"r2": DOWN}
    with pytest.raises(NotNow, match="without r2 there is no majority of two") as refused:
        await replace(log)
    assert "cell grow" in refused.value.hint
