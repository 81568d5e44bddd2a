"""Who stands for an id, as `status` shows it, and where it is found."""

from __future__ import annotations

from typing import Any

from consensus.cell import Joining, MemberView, PeerView
from cron.api.members import JoinProgress, StatusRow
from cron.service.members import (
    as_leader_says,
    client_address,
    progress_of,
    with_member_state,
)
from tests.unit.cell_fakes import FOUNDED


def row(name: str, role: str = "follower", **fields: Any) -> StatusRow:
    return StatusRow(kind="replica", id=name, role=role, **fields)


def test_a_replica_is_found_where_its_replacement_said() -> None:
    moved = {"r2": MemberView(2, "votes", about="127.0.0.1:7501")}
    assert client_address(moved, "r2", "127.0.0.1:7401") == "127.0.0.1:7501"
    assert client_address(FOUNDED, "r2", "127.0.0.1:7401") == "127.0.0.1:7401"
    assert client_address({}, "r2", "127.0.0.1:7401") == "127.0.0.1:7401"


def test_the_leader_knows_how_far_each_one_is() -> None:
    rows = [row("r1", "leader"), row("r2"), row("r3", "unreachable", note="it does not answer")]
    peers = {"r2": PeerView(True, 90), "r3": PeerView(False, 70)}
    shown = with_member_state(rows, FOUNDED, peers, 100)
    assert [one.matched for one in shown] == [100, 90, 70]
    assert {one.member_state for one in shown} == {"votes"}
    assert {one.incarnation for one in shown} == {1}
    assert shown[2].note == "it does not answer"


def test_a_follower_knows_who_stands_for_an_id_but_not_how_far_it_is() -> None:
    shown = with_member_state([row("r1"), row("r2")], FOUNDED, {}, None)
    assert [(one.member_state, one.matched) for one in shown] == [("votes", None)] * 2


def test_before_the_cell_is_founded_nothing_is_known() -> None:
    rows = [row("r1"), row("r2")]
    assert with_member_state(rows, {}, {}, None) == rows


def test_one_that_only_the_leader_reaches_is_not_called_silent() -> None:
    away = row("r2", "unreachable", note="it does not answer")
    (shown,) = with_member_state([away], FOUNDED, {"r2": PeerView(True, 9)}, 10)
    assert shown.note == "the leader reaches it, but its client address does not answer"


def test_a_joining_replica_that_does_not_answer_is_shown_as_the_leader_sees_it() -> None:
    members = FOUNDED | {"r2": MemberView(2, "joining")}
    away = row("r2", "unreachable")
    (dump,) = with_member_state([away], members, {"r2": PeerView(True, 0, 40, 100)}, 10)
    (log,) = with_member_state([away], members, {"r2": PeerView(True, 7)}, 10)
    assert (dump.member_state, dump.incarnation) == ("joining", 2)
    assert dump.joining == JoinProgress("dump", 40, 100)
    assert log.joining == JoinProgress("log", 7, 10)


def test_what_a_joining_replica_says_of_itself_counts_more() -> None:
    members = FOUNDED | {"r2": MemberView(2, "joining")}
    own = progress_of(Joining("dump", 50, 100))
    (shown,) = with_member_state(
        [row("r2", "learner", joining=own)], members, {"r2": PeerView(True, 0, 40, 100)}, 10
    )
    assert shown.joining == JoinProgress("dump", 50, 100)


def test_an_open_place_says_what_it_waits_for_unless_one_waits_to_be_taken_in() -> None:
    members = FOUNDED | {"r2": MemberView(2, "open")}
    old = {"r2": PeerView(False, 70)}
    (shown,) = with_member_state([row("r2", "unreachable")], members, old, 100)
    assert shown.note == "waits for a new disk: start one with --join"
    assert shown.matched is None, "how far the old one was is of no use"
    (shown,) = with_member_state([row("r2", "learner")], members, old, 100)
    assert shown.note == ""


def test_a_replica_repeats_what_the_leader_says_and_keeps_what_it_heard_itself() -> None:
    told = [
        row("r1", "leader", incarnation=1, member_state="votes", matched=100, note="leads again"),
        row("r2", "unreachable", incarnation=2, member_state="joining", matched=9, note="client",
            joining=JoinProgress("dump", 4, 5)),
        StatusRow(kind="executor", id="r3"),
    ]  # fmt: skip
    heard = [row("r1", "leader", applied=101), row("r2", "unreachable", note="no"), row("r3")]
    shown = as_leader_says(heard, told)
    assert [one.matched for one in shown] == [100, 9, None]
    assert [one.note for one in shown] == ["", "client", ""]
    assert (shown[0].applied, shown[1].incarnation, shown[2].incarnation) == (101, 2, 0)
    assert shown[1].joining == JoinProgress("dump", 4, 5)
