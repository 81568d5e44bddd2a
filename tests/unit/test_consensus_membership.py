"""Who belongs to the cell: found, replace, admit, join, and who is let in."""

from __future__ import annotations

import msgspec
import pytest

from consensus.engine.admissions import Admissions, is_settled
from consensus.engine.envelope import MEMBERS, Origin, seal
from consensus.engine.membership import (
    REPLACED,
    TAKEN,
    UNKNOWN,
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
from consensus.engine.network.wire import PROTOCOL, Hello
from consensus.engine.roster import Roster
from consensus.engine.storage.segments import Identity
from consensus.errors import ChangeRefused, UnknownFormat

IDS = ("r1", "r2", "r3")
FOUND = Found([("r1", 11), ("r2", 22), ("r3", 33)])
FOUNDED = change_members({}, FOUND)


def hello(sender: str, number: int, token: int, *, joins: bool = False) -> Hello:
    return Hello(PROTOCOL, PROTOCOL, "c", sender, "r1", number, token, joins)


def entry(change: Change) -> bytes:
    return seal(MEMBERS, Origin("r1", 0, 0), encode_change(change))


def roster_of(token: int, *changes: tuple[int, Change], joins: bool = False) -> Roster:
    roster = Roster(Identity("c", "r2", token, joins), IDS)
    for index, change in changes:
        roster.added(index, 1, entry(change))
    return roster


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


@pytest.mark.parametrize(
    "change",
    [
        Found([("r1", 1), ("r2", 2), ("r3", 3)]),
        Replace("r2", 1, "", ""),
        Replace("r2", 3, "", ""),
        Replace("r9", 1, "", ""),
        Admit("r2", 1, 5),
        Admit("r2", 2, 5),
        Join("r2", 1),
        Join("r9", 1),
    ],
)
def test_a_change_that_does_not_fit_any_more_changes_nothing(change: Change) -> None:
    assert change_members(FOUNDED, change) is FOUNDED


def test_a_place_that_is_taken_is_not_given_twice() -> None:
    taken = change_members(change_members(FOUNDED, Replace("r2", 2, "", "")), Admit("r2", 2, 7))
    assert change_members(taken, Admit("r2", 2, 8)) is taken
    assert change_members(taken, Join("r2", 3)) is taken


def test_a_second_replacement_keeps_the_address_of_the_first_unless_it_has_its_own() -> None:
    once = change_members(FOUNDED, Replace("r2", 2, "h:1", "h:2"))
    twice = change_members(once, Replace("r2", 3, "", ""))
    assert twice["r2"] == Member(3, 0, False, "h:1", "h:2", (22,))
    assert change_members(once, Replace("r2", 3, "i:1", ""))["r2"].raft == "i:1"


def test_a_disk_that_was_replaced_is_out_whether_or_not_it_knows_its_number() -> None:
    # It was made to join, and did; but greeted with number 0, before it had read of its admission.
    once = change_members(change_members(FOUNDED, Replace("r2", 2, "", "")), Admit("r2", 2, 7))
    twice = change_members(once, Replace("r2", 3, "", ""))
    assert twice["r2"].past == (22, 7)
    for token in (22, 7):
        assert refusal("r2", 0, token, twice, joins=True) == REPLACED
        assert change_members(twice, Admit("r2", 3, token)) is twice
    assert refusal("r2", 0, 8, twice, joins=True) == "let in"


def test_members_are_the_same_bytes_whatever_their_order() -> None:
    turned = dict(reversed(FOUNDED.items()))
    assert encode_members(turned) == encode_members(FOUNDED)
    assert decode_members(encode_members(FOUNDED)) == FOUNDED
    with pytest.raises(msgspec.DecodeError):
        decode_members(b"\x93\x01")


# --- who is let in


def test_the_disks_of_the_log_are_let_in_also_before_they_know_their_number() -> None:
    assert refusal("r2", 1, 22, FOUNDED) == "let in"
    assert refusal("r2", 0, 22, FOUNDED) == "let in"


def test_a_founding_cell_lets_everybody_in_who_was_not_made_to_join() -> None:
    assert refusal("r2", 0, 5, {}) == "let in"
    assert refusal("r2", 0, 5, {}, joins=True) == WAIT
    assert refusal("r2", 2, 5, {}, joins=True) == "let in", "a new disk knows nobody yet"


def test_an_emptied_disk_of_a_member_is_told_from_the_one_that_was_founded_with() -> None:
    # S17: it forgot what it voted and acknowledged
    assert refusal("r2", 0, 5, FOUNDED) == UNKNOWN


def test_a_replaced_disk_is_out_and_an_open_place_takes_one_that_joins() -> None:
    opened = change_members(FOUNDED, Replace("r2", 2, "", ""))
    assert refusal("r2", 1, 22, opened) == REPLACED
    assert refusal("r2", 0, 5, opened, joins=True) == "let in"
    assert refusal("r2", 0, 5, opened) == UNKNOWN


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


# --- the roster follows the log


def test_the_newest_change_in_the_log_counts_until_it_is_cut_off_again() -> None:
    roster = roster_of(22, (3, FOUND), (7, Replace("r2", 2, "", "")))
    assert not roster.may_vote
    assert not roster.counts("r2")
    assert roster.at(6) == FOUNDED
    roster.cut(7)
    assert roster.may_vote
    assert roster.counts("r2")
    assert roster.members == FOUNDED


def test_a_replaced_disk_remembers_which_one_it_was() -> None:
    # otherwise a disk that was made to join would ask for the next place as a new one
    roster = roster_of(
        7,
        (3, FOUND),
        (4, Replace("r2", 2, "", "")),
        (5, Admit("r2", 2, 7)),
        (6, Join("r2", 2)),
        joins=True,
    )
    assert (roster.number, roster.may_vote) == (2, True)
    roster.added(9, 1, entry(Replace("r2", 3, "", "")))
    assert (roster.number, roster.may_vote) == (2, False)
    assert refusal("r2", roster.number, 7, roster.members, joins=True) == REPLACED


def test_a_disk_that_joins_does_not_vote_before_the_log_says_so() -> None:
    roster = roster_of(7, joins=True)
    assert not roster.may_vote
    for index, change in enumerate((FOUND, Replace("r2", 2, "", ""), Admit("r2", 2, 7)), 3):
        assert not roster.gives_vote
        roster.added(index, 1, entry(change))
        assert not roster.may_vote
    roster.added(9, 1, entry(Join("r2", 2)))
    assert roster.may_vote


def test_an_admitted_disk_gives_its_vote_to_who_may_know_that_it_has_joined() -> None:
    changes = ((3, FOUND), (4, Replace("r2", 2, "", "")), (5, Admit("r2", 2, 7)))
    newcomer = roster_of(7, *changes, joins=True)
    assert newcomer.gives_vote
    unaware, aware = roster_of(22, *changes), roster_of(22, *changes, (6, Join("r2", 2)))
    assert not unaware.has_quorum({"r1", "r2"}), "its vote is for nothing before it has joined"
    assert aware.has_quorum({"r1", "r2"})
    newcomer.added(9, 1, entry(Replace("r2", 3, "", "")))
    assert not newcomer.gives_vote, "nor does one that was replaced"


def test_a_cell_is_founded_by_all_and_led_by_a_majority_of_those_who_vote() -> None:
    roster = roster_of(22)
    assert not roster.has_quorum({"r1", "r2"})
    assert roster.has_quorum({"r1", "r2", "r3"})
    roster.added(3, 1, entry(FOUND))
    assert roster.has_quorum({"r1", "r2"})
    assert not roster.has_quorum({"r2"})
    roster.added(4, 1, entry(Replace("r3", 2, "", "")))
    assert not roster.has_quorum({"r2", "r3"}), "a disk that is out does not elect"
    assert roster.has_quorum({"r1", "r2"})


def test_what_is_in_a_dump_is_kept_as_its_last_state() -> None:
    roster = roster_of(22, (3, FOUND), (7, Replace("r3", 2, "", "")), (9, Admit("r3", 2, 5)))
    members = roster.members
    roster.based(8)
    assert roster.at(8)["r3"] == Member(2, 0, False, past=(33,))
    assert roster.members == members
    roster.start(8, roster.at(8), [(entry(Admit("r3", 2, 5)), 9, 1), (b"\x01", 10, 1)])
    assert roster.members == members
    assert roster.changed_at == 9


def test_a_change_of_a_newer_version_stops_the_replica() -> None:
    roster = roster_of(22, (3, FOUND))
    unknown = seal(MEMBERS, Origin("r1", 0, 0), msgspec.msgpack.encode([9, "r2"]))
    with pytest.raises(UnknownFormat, match="entry 4 changes members in an unknown way"):
        roster.added(4, 1, unknown)


def test_an_entry_of_the_user_that_looks_like_a_change_is_none() -> None:
    roster = roster_of(22, (3, FOUND))
    roster.added(4, 1, seal(0, Origin("r1", 1, 1), encode_change(Replace("r2", 2, "", ""))))
    assert roster.members == FOUNDED


# --- the leader's rules


def test_a_newcomer_joins_once_it_has_what_was_committed_when_it_came() -> None:
    roster = roster_of(22, (3, FOUND), (7, Replace("r3", 2, "", "")))
    admissions = Admissions(roster)
    callers = {"r3": hello("r3", 0, 5, joins=True)}
    assert admissions.next_change(10, callers.get) == Admit("r3", 2, 5)
    roster.added(11, 1, entry(Admit("r3", 2, 5)))
    assert admissions.next_change(11, callers.get) is None
    admissions.note("r3", 10)
    assert admissions.next_change(50, callers.get) is None, "its goal was 11"
    admissions.note("r3", 11)
    assert admissions.next_change(60, callers.get) == Join("r3", 2)


def test_only_a_disk_that_was_made_to_join_is_admitted() -> None:
    roster = roster_of(22, (3, FOUND), (7, Replace("r3", 2, "", "")))
    admissions = Admissions(roster)
    assert admissions.next_change(9, {"r3": hello("r3", 1, 33)}.get) is None
    assert admissions.next_change(9, {"r3": hello("r3", 0, 5)}.get) is None
    assert admissions.next_change(9, {}.get) is None


def test_a_replacement_needs_a_majority_without_the_one_that_goes() -> None:
    admissions = Admissions(roster_of(22, (3, FOUND)))
    made = admissions.replacement("r3", "a:1", "b:2", leader="r2", reached={"r1"})
    assert made == Replace("r3", 2, "a:1", "b:2")
    with pytest.raises(ChangeRefused, match="without r3 only r2 would be left"):
        admissions.replacement("r3", "", "", leader="r2", reached={"r3"})
    with pytest.raises(ChangeRefused, match="no replica 'r9' in this cell; there are r1, r2, r3"):
        admissions.replacement("r9", "", "", leader="r2", reached={"r1"})
    with pytest.raises(ChangeRefused, match="r2 leads this cell"):
        admissions.replacement("r2", "", "", leader="r2", reached={"r1", "r3"})


def test_a_disk_that_does_not_vote_is_nobody_to_rely_on() -> None:
    admissions = Admissions(roster_of(22, (3, FOUND), (4, Replace("r1", 2, "", ""))))
    with pytest.raises(ChangeRefused, match="no majority"):
        admissions.replacement("r3", "", "", leader="r2", reached={"r1", "r3"})


def test_one_change_at_a_time_and_none_before_an_entry_of_the_own_term() -> None:
    assert is_settled(changed_at=5, noop_at=8, commit=8)
    assert not is_settled(changed_at=5, noop_at=8, commit=7)
    assert not is_settled(changed_at=9, noop_at=8, commit=8)
    assert not is_settled(changed_at=0, noop_at=None, commit=8)
