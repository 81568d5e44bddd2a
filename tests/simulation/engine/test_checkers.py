"""Each checker bites, and bites only what is wrong."""

from __future__ import annotations

import hashlib

import pytest

from consensus.leadership import Position
from tests.simulation.engine.agreement import (
    Canon,
    Durability,
    DurableLog,
    Span,
    check_matching,
)
from tests.simulation.engine.applier import DigestState, read_name, write_entry
from tests.simulation.engine.promises import Calm, Ledger
from tests.simulation.engine.verdict import Elections, Health, Verdict

A, B, C = 10, 11, 12
VOTERS = (A, B, C)


@pytest.fixture
def verdict() -> Verdict:
    return Verdict()


@pytest.fixture
def canon(verdict: Verdict) -> Canon:
    return Canon(verdict, lambda command: int(command) if command.isdigit() else None)


class TestElections:
    def test_a_leader_with_a_majority_is_right(self, verdict: Verdict) -> None:
        elections = Elections(verdict)
        elections.voted(B, 1, A)
        elections.leads(A, 1, VOTERS, 0.0)
        elections.leads(A, 1, VOTERS, 1.0)
        assert verdict.kinds == []
        assert elections.changes == [(0.0, 1)]

    def test_two_leaders_of_one_term(self, verdict: Verdict) -> None:
        elections = Elections(verdict)
        elections.voted(C, 1, A)
        elections.leads(A, 1, VOTERS, 0.0)
        elections.leads(B, 1, VOTERS, 0.0)
        assert verdict.kinds == ["two-leaders"]

    def test_a_second_vote_in_a_term(self, verdict: Verdict) -> None:
        elections = Elections(verdict)
        elections.voted(C, 1, A)
        elections.voted(C, 1, A)
        elections.voted(C, 2, B)
        assert verdict.kinds == []
        elections.voted(C, 1, B)
        assert verdict.kinds == ["voted-twice"]

    def test_a_vote_that_is_gone_after_a_restart(self, verdict: Verdict) -> None:
        elections = Elections(verdict)
        elections.voted(C, 4, A)
        for term, vote in ((4, A), (5, None), (5, B)):
            elections.reopened(C, term, vote)
        elections.reopened(B, 0, None)
        assert verdict.kinds == []
        for term, vote in ((4, None), (4, B), (3, A)):
            elections.reopened(C, term, vote)
        assert [problem.kind for problem in verdict.problems] == ["vote-forgotten"] * 3

    def test_a_vote_of_a_disk_that_does_not_count(self, verdict: Verdict) -> None:
        elections = Elections(verdict)
        elections.voted(99, 1, A)
        elections.leads(A, 1, VOTERS, 0.0)
        assert verdict.kinds == ["elected-by-few"]

    def test_a_leader_that_has_no_vote_itself(self, verdict: Verdict) -> None:
        elections = Elections(verdict)
        elections.voted(B, 1, 99)
        elections.voted(C, 1, 99)
        elections.leads(99, 1, VOTERS, 0.0)
        assert verdict.kinds == ["leads-without-seat"]


class TestHealth:
    def test_a_leader_that_was_well_for_long_is_not_deposed(self, verdict: Verdict) -> None:
        health = Health(verdict)
        health.leads("a", 1, 0.0, {"a": 0.0})
        health.leads("b", 2, 10.0, {"a": 0.0})
        assert verdict.kinds == ["healthy-deposed"]

    def test_a_leader_whose_process_is_over_was_not_deposed(self, verdict: Verdict) -> None:
        health = Health(verdict)
        health.leads("a", 1, 0.0, {})
        health.gone("b")
        health.gone("a")
        health.leads("b", 2, 10.0, {"a": 0.0})
        assert verdict.kinds == []

    def test_one_that_was_ended_while_it_was_well_is_not_excused(self, verdict: Verdict) -> None:
        health = Health(verdict)
        health.leads("a", 1, 0.0, {"a": 0.0})
        health.ends("a", 9.0, {"a": 0.0})
        health.leads("b", 2, 10.0, {"a": 0.0})
        assert verdict.kinds == ["healthy-deposed"]

    @pytest.mark.parametrize("well_since_s", [None, 8.0])
    def test_one_that_gave_up_when_it_was_not_well(
        self, verdict: Verdict, well_since_s: float | None
    ) -> None:
        # nobody was elected until it had been well again for long
        health = Health(verdict)
        health.leads("a", 1, 0.0, {"a": 0.0})
        health.ends("b", 9.0, {"a": 0.0})
        health.ends("a", 9.0, {"a": well_since_s})
        health.leads("a", 2, 20.0, {"a": 10.0})
        assert verdict.kinds == []

    @pytest.mark.parametrize(("began_s", "well_since_s"), [(0.0, None), (0.0, 8.0), (8.0, 0.0)])
    def test_one_that_was_not_may_be(
        self, verdict: Verdict, began_s: float, well_since_s: float | None
    ) -> None:
        health = Health(verdict)
        health.leads("a", 1, began_s, {})
        health.leads("b", 2, 10.0, {"a": well_since_s})
        assert verdict.kinds == []
        assert health.changes == 1

    def test_a_change_that_was_asked_for_is_right(self, verdict: Verdict) -> None:
        health = Health(verdict)
        health.leads("a", 1, 0.0, {})
        health.forget()
        health.leads("b", 2, 10.0, {"a": 0.0})
        assert verdict.kinds == []

    def test_a_late_look_at_an_older_term_is_no_change(self, verdict: Verdict) -> None:
        health = Health(verdict)
        health.leads("a", 2, 0.0, {})
        health.leads("b", 1, 10.0, {"a": 0.0})
        assert (verdict.kinds, health.changes) == ([], 0)


class TestCanon:
    def test_all_may_say_the_same(self, verdict: Verdict, canon: Canon) -> None:
        canon.committed("a", [(b"1", 2, 1), (b"noop", 3, 1)])
        canon.committed("b", [(b"1", 2, 1)])
        assert verdict.kinds == []
        assert (canon.last, canon.where) == (3, {1: 2})

    @pytest.mark.parametrize("other", [(b"2", 2, 1), (b"1", 2, 2)])
    def test_another_entry_or_term_at_an_index(
        self, verdict: Verdict, canon: Canon, other: tuple[bytes, int, int]
    ) -> None:
        canon.committed("a", [(b"1", 2, 1)])
        canon.committed("b", [other])
        assert verdict.kinds == ["committed-changed"]

    def test_an_entry_twice(self, verdict: Verdict, canon: Canon) -> None:
        canon.committed("a", [(b"1", 2, 1), (b"1", 3, 1)])
        assert verdict.kinds == ["committed-twice"]

    def test_a_refused_entry_before_and_after(self, verdict: Verdict, canon: Canon) -> None:
        canon.refuse(1)
        canon.committed("a", [(b"1", 2, 1)])
        canon.committed("a", [(b"2", 3, 1)])
        assert verdict.kinds == ["refused-committed"]
        canon.refuse(2)
        assert len(verdict.problems) == 2

    def test_other_states_at_one_index(self, verdict: Verdict, canon: Canon) -> None:
        canon.applied("a", 2, b"x")
        canon.applied("b", 2, b"x")
        canon.applied("c", 2, b"y")
        assert verdict.kinds == ["states-differ"]

    def test_a_committed_entry_that_is_cut(self, verdict: Verdict, canon: Canon) -> None:
        canon.committed("a", [(b"1", 2, 1)])
        canon.cut("b", 2, 3)
        canon.cut("b", 3, 1)
        assert verdict.kinds == []
        canon.cut("b", 2, 1)
        assert verdict.kinds == ["committed-cut"]

    def test_a_leader_that_lacks_what_is_committed(self, verdict: Verdict, canon: Canon) -> None:
        canon.committed("a", [(b"1", 2, 1)])
        canon.complete("b", 2, lambda index: 1)
        canon.complete("b", 9, lambda index: None)
        assert verdict.kinds == []
        canon.complete("b", 1, lambda index: 1)
        canon.complete("b", 2, lambda index: 3)
        assert [problem.kind for problem in verdict.problems] == ["leader-lacks"] * 2

    def test_a_restored_state_lacks_nothing(self, verdict: Verdict, canon: Canon) -> None:
        canon.committed("a", [(b"1", 2, 1), (b"2", 3, 1), (b"noop", 4, 1)])
        canon.applied("a", 2, b"x")
        canon.applied("a", 3, b"y")
        canon.restored("b", 4, 3, b"y")
        assert verdict.kinds == []
        canon.restored("b", 4, 2, b"x")
        canon.restored("b", 4, 3, b"z")
        assert len(verdict.problems) == 2


class TestDurability:
    def log(self, base: int, *terms: int) -> DurableLog:
        made = DurableLog()
        made.load(base, terms)
        return made

    def test_a_majority_holds_it(self, verdict: Verdict) -> None:
        durability = Durability(verdict)
        durability.disks = {A: self.log(1, 0, 1, 1), B: self.log(5, 1), C: self.log(1, 0)}
        durability.committed("a", 3, 1, VOTERS)
        assert verdict.kinds == []

    def test_one_disk_is_not_enough(self, verdict: Verdict) -> None:
        durability = Durability(verdict)
        durability.disks = {A: self.log(1, 0, 1, 1), B: self.log(1, 0, 1, 2), 99: self.log(9, 1)}
        durability.committed("a", 3, 1, VOTERS)
        assert verdict.kinds == ["committed-by-few"]

    def test_a_leader_believes_of_a_follower_what_it_holds(self, verdict: Verdict) -> None:
        durability = Durability(verdict)
        durability.disks = {B: self.log(3, 1, 1)}
        durability.matched("a", B, 4, 1)
        durability.matched("a", B, 2, None)
        assert verdict.kinds == []
        durability.matched("a", B, 5, 1)
        durability.matched("a", B, 4, 2)
        durability.matched("a", C, 1, None)
        assert [problem.kind for problem in verdict.problems] == ["matched-wrong"] * 3

    def test_nothing_counts_before_its_sync(self) -> None:
        log = self.log(1, 0, 1)
        log.changed("add", 3, 1)
        assert not log.holds(3, 1)
        log.synced()
        assert log.holds(3, 1)
        log.changed("cut", 2)
        log.changed("add", 2, 2)
        assert log.holds(2, 1)
        log.synced()
        assert (log.holds(2, 1), log.holds(2, 2), log.last) == (False, True, 2)

    def test_a_base_and_a_shorter_journal(self) -> None:
        log = self.log(1, 0, 1, 1, 1)
        log.changed("forget", 3)
        log.synced()
        assert (log.base, log.terms, log.holds(4, 1), log.holds(2, 1)) == (3, [1, 1], True, True)
        log.changed("base", 9, 2)
        log.synced()
        assert (log.last, log.holds(9, 2), log.holds(10, 2)) == (9, True, False)

    def test_another_life_forgets_what_was_not_synced(self) -> None:
        log = self.log(1, 0)
        log.changed("add", 2, 1)
        log.reopen()
        assert log.is_stale
        log.load(1, [0])
        assert (log.last, log.is_stale) == (1, False)


class TestMatching:
    def test_a_common_beginning_and_other_tails(self, verdict: Verdict) -> None:
        check_matching(verdict, {"a": Span(1, [0, 1, 1, 2]), "b": Span(2, [1, 1, 3, 3])})
        assert verdict.kinds == []

    def test_logs_that_part_and_meet_again(self, verdict: Verdict) -> None:
        check_matching(verdict, {"a": Span(1, [0, 1, 1, 2]), "b": Span(1, [0, 1, 3, 2])})
        assert verdict.kinds == ["logs-mismatch"]


class TestLedger:
    def test_what_is_answered_is_applied_there(self, verdict: Verdict, canon: Canon) -> None:
        ledger = Ledger(verdict, canon)
        ledger.appended(1, 2, ledger.begin(), {2: 1})
        assert verdict.kinds == []
        ledger.appended(2, 3, 0, {3: 9})
        assert verdict.kinds == ["answered-unapplied"]

    def test_a_read_sees_what_was_answered_before_it(self, verdict: Verdict, canon: Canon) -> None:
        ledger = Ledger(verdict, canon)
        early = ledger.begin()
        ledger.appended(1, 5, early, {5: 1})
        ledger.read("a", 4, early, b"x")
        assert verdict.kinds == []
        ledger.read("a", 4, ledger.begin(), b"x")
        assert verdict.kinds == ["stale-read"]

    def test_reads_do_not_go_back(self, verdict: Verdict, canon: Canon) -> None:
        ledger = Ledger(verdict, canon)
        ledger.read("a", 5, ledger.begin(), b"x")
        ledger.read("b", 4, ledger.begin(), b"x")
        assert verdict.kinds == ["stale-read"]

    def test_an_append_after_a_read_comes_later(self, verdict: Verdict, canon: Canon) -> None:
        ledger = Ledger(verdict, canon)
        ledger.read("a", 5, ledger.begin(), b"x")
        ledger.appended(1, 5, ledger.begin(), {5: 1})
        assert verdict.kinds == ["goes-back"]

    def test_a_read_of_another_state(self, verdict: Verdict, canon: Canon) -> None:
        ledger = Ledger(verdict, canon)
        canon.applied("a", 5, b"x")
        ledger.read("b", 5, 0, b"y")
        assert verdict.kinds == ["states-differ"]

    def test_in_the_end_everything_is_where_it_was_told(
        self, verdict: Verdict, canon: Canon
    ) -> None:
        ledger = Ledger(verdict, canon)
        ledger.appended(1, 2, 0, {2: 1})
        ledger.appended(2, 3, 0, {3: 2})
        canon.committed("a", [(b"1", 2, 1)])
        ledger.finish()
        assert [str(problem) for problem in verdict.problems] == [
            "0.000 acknowledged-lost: entry 2, told at 3, is at None"
        ]


class TestCalm:
    def test_what_is_well_in_the_end(self, verdict: Verdict, canon: Canon) -> None:
        canon.committed("a", [(b"1", 2, 1)])
        calm = Calm(verdict, canon)
        calm.leader(["a"])
        calm.level({"a": 2, "b": 2})
        calm.gone([])
        calm.replaced([])
        calm.progress(10, 10)
        calm.rest(0, 0)
        assert verdict.kinds == []

    def test_what_is_not(self, verdict: Verdict, canon: Canon) -> None:
        canon.committed("a", [(b"1", 2, 1)])
        calm = Calm(verdict, canon)
        calm.leader([])
        calm.leader(["a", "b"])
        calm.level({"a": 2, "b": 1})
        calm.gone(["c"])
        calm.replaced(["b"])
        calm.progress(9, 10)
        calm.rest(1, 0)
        assert verdict.kinds == (
            ["no-leader", "not-level", "old-disk-lives", "not-replaced", "no-progress", "flapping"]
        )
        assert len(verdict.problems) == 7


class TestState:
    def state(self, verdict: Verdict, canon: Canon) -> DigestState:
        return DigestState("a", verdict, canon, 200_000)

    def test_it_travels_in_pieces_cut_anywhere(self, verdict: Verdict, canon: Canon) -> None:
        one, other = self.state(verdict, canon), self.state(verdict, canon)
        assert one.apply(Position(1, 2), write_entry(7, 100)) == 1
        content = b"".join(one.take())
        other.restore(Position(1, 3), [content[:10], content[10:70_000], content[70_000:]])
        assert (other.digest, other.index) == (one.digest, 2)
        assert len(content) > 200_000
        assert verdict.kinds == []

    def test_a_damaged_one_is_seen(self, verdict: Verdict, canon: Canon) -> None:
        content = bytearray(b"".join(self.state(verdict, canon).take()))
        content[100_000] ^= 1
        self.state(verdict, canon).restore(Position(1, 3), [bytes(content)])
        assert verdict.kinds == ["restored-garbage"]

    def test_an_entry_again_and_garbage(self, verdict: Verdict, canon: Canon) -> None:
        state = self.state(verdict, canon)
        state.apply(Position(1, 2), write_entry(7, 0))
        state.apply(Position(1, 2), write_entry(7, 0))
        state.apply(Position(1, 3), b"garbage")
        assert verdict.kinds == ["applied-again", "states-differ", "applied-garbage"]

    def test_names_are_read_back(self) -> None:
        assert read_name(write_entry(2**40, 1000)) == 2**40
        assert read_name(b"something") is None

    def test_order_matters_to_the_digest(self, verdict: Verdict) -> None:
        digests = set()
        for names in ((1, 2), (2, 1)):
            state = self.state(verdict, Canon(verdict, read_name))
            for index, name in enumerate(names, 2):
                state.apply(Position(1, index), write_entry(name, 0))
            digests.add(hashlib.sha256(state.digest).digest())
        assert len(digests) == 2
