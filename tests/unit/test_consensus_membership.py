"""Who belongs to the cell: found, replace, admit, join, and who is let in."""

from __future__ import annotations

import msgspec
import pytest

from consensus.engine.admissions import Admissions
from consensus.engine.envelope import MEMBERS, Origin, seal
from consensus.engine.membership import (
    REPLACED,
    TAKEN,
    WAIT,
    Admit,
    Change,
    Found,
    Join,
    Member,
    Replace,
    change_members,
    decode_members,
    encode_change,
    encode_members,
    judge,
)
from consensus.engine.membership_log import MembershipLog
from consensus.engine.network.wire import PROTOCOL, Hello
from consensus.engine.storage.segments import Identity
from consensus.errors import ChangeRefused, UnknownFormat

IDS = ("r1", "r2", "r3")
FOUND = Found([("r1", 11), ("r2", 22), ("r3", 33)])
FOUNDED = change_members({}, FOUND)


def hello(sender: str, number: int, token: int, *, joins: bool = False) -> Hello:
    return Hello(PROTOCOL, PROTOCOL, "c", sender, "r1", number, token, joins)


def entry(change: Change) -> bytes:
    return seal(MEMBERS, Origin("r1", 0, 0), encode_change(change))


def membership_log_of(
    token: int, *changes: tuple[int, Change], joins: bool = False
) -> MembershipLog:
    membership_log = MembershipLog(Identity("c", "r2", token, joins), IDS)
    for index, change in changes:
        membership_log.added(index, 1, entry(change))
    return membership_log


def refusal(sender: str, number: int, token: int, members: dict[str, Member], **more: bool) -> str:
    goodbye = judge(members, hello(sender, number, token, **more))
    return goodbye.reason if goodbye else "let in"


# --- changes


def test_a_replacement_goes_from_open_to_joining_to_voting() -> None:
    opened = change_members(FOUNDED, Replace("r2", 2, "h:1", "h:2"))
    assert opened["r2"] == Member(2, 0, False, "h:1", "h:2", (22,))
    admitted = change_members(opened, Admit("r2", 2, 99))
    assert admitted["r2"] == Member(2, 99, False, "h:1", "h:2", (22,))
    joined = change_members(admitted, Join("r2", 2))
    assert joined["r2"] == Member(2, 99, True, "h:1", "h:2", (22,))
    assert {name: joined[name] for name in ("r1", "r3")} == {
        name: FOUNDED[name] for name in ("r1", "r3")
    }


def test_members_are_the_same_bytes_whatever_their_order() -> None:
    turned = dict(reversed(FOUNDED.items()))
    assert encode_members(turned) == encode_members(FOUNDED)
    assert decode_members(encode_members(FOUNDED)) == FOUNDED
    with pytest.raises(msgspec.DecodeError):
        decode_members(b"\x93\x01")


# --- who is let in


def test_a_second_disk_finds_the_place_taken() -> None:
    taken = change_members(change_members(FOUNDED, Replace("r2", 2, "", "")), Admit("r2", 2, 7))
    assert refusal("r2", 0, 7, taken, joins=True) == "let in"
    assert refusal("r2", 0, 8, taken, joins=True) == TAKEN
    assert refusal("r2", 1, 22, taken) == REPLACED


def test_a_disk_that_joins_without_a_replacement_is_told_what_to_run() -> None:
    goodbye = judge(FOUNDED, hello("r2", 0, 5, joins=True))
    assert goodbye is not None
    assert goodbye.reason == TAKEN
    assert "raftcron replica replace r2" in goodbye.text


def test_who_knows_less_than_the_caller_does_not_judge_it_for_good() -> None:
    assert refusal("r2", 2, 7, FOUNDED, joins=True) == WAIT


# --- the membership log follows the log


def test_what_is_in_a_dump_is_kept_as_its_last_state() -> None:
    membership_log = membership_log_of(
        22, (3, FOUND), (7, Replace("r3", 2, "", "")), (9, Admit("r3", 2, 5))
    )
    members = membership_log.members
    membership_log.based(8)
    assert membership_log.at(8)["r3"] == Member(2, 0, False, past=(33,))
    assert membership_log.members == members
    membership_log.start(
        8, membership_log.at(8), [(entry(Admit("r3", 2, 5)), 9, 1), (b"\x01", 10, 1)]
    )
    assert membership_log.members == members
    assert membership_log.changed_at == 9


def test_a_change_of_a_newer_version_stops_the_replica() -> None:
    membership_log = membership_log_of(22, (3, FOUND))
    unknown = seal(MEMBERS, Origin("r1", 0, 0), msgspec.msgpack.encode([9, "r2"]))
    with pytest.raises(UnknownFormat, match="entry 4 changes members in an unknown way"):
        membership_log.added(4, 1, unknown)


def test_an_entry_of_the_user_that_looks_like_a_change_is_none() -> None:
    membership_log = membership_log_of(22, (3, FOUND))
    membership_log.added(4, 1, seal(0, Origin("r1", 1, 1), encode_change(Replace("r2", 2, "", ""))))
    assert membership_log.members == FOUNDED


# --- the leader's rules


def test_a_replacement_needs_a_majority_without_the_one_that_goes() -> None:
    admissions = Admissions(membership_log_of(22, (3, FOUND)))
    made = admissions.replacement("r3", "a:1", "b:2", leader="r2", reached={"r1"})
    assert made == Replace("r3", 2, "a:1", "b:2")
    with pytest.raises(ChangeRefused, match="without r3 only r2 would be left"):
        admissions.replacement("r3", "", "", leader="r2", reached={"r3"})
    with pytest.raises(ChangeRefused, match="no replica 'r9' in this cell; there are r1, r2, r3"):
        admissions.replacement("r9", "", "", leader="r2", reached={"r1"})
    with pytest.raises(ChangeRefused, match="r2 leads this cell"):
        admissions.replacement("r2", "", "", leader="r2", reached={"r1", "r3"})


def test_what_waits_for_a_disk_is_opened_again_only_at_another_address() -> None:
    opened = Replace("r3", 2, "a:1", "b:2")
    admissions = Admissions(membership_log_of(22, (3, FOUND), (4, opened)))
    for raft, about in (("", ""), ("a:1", ""), ("a:1", "b:2")):
        with pytest.raises(ChangeRefused, match=r"waits for a new disk already \(incarnation 2\)"):
            admissions.replacement("r3", raft, about, leader="r2", reached={"r1"})
    moved = admissions.replacement("r3", "a:3", "", leader="r2", reached={"r1"})
    assert moved == Replace("r3", 3, "a:3", "")
