"""Checkers that no mutant reaches bite, and bite only what is wrong.

The others have a mutant each (`test_mutants.py`), and the seeds show that they bite nothing else.
"""

from __future__ import annotations

import hashlib

import pytest

from consensus.leadership import Position
from tests.simulation.engine.agreement import Canon, Span, check_matching
from tests.simulation.engine.applier import DigestState, read_name, write_entry
from tests.simulation.engine.promises import Calm, Ledger
from tests.simulation.engine.verdict import Elections, Verdict

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

    def test_a_leader_that_has_no_vote_itself(self, verdict: Verdict) -> None:
        elections = Elections(verdict)
        elections.voted(B, 1, 99)
        elections.voted(C, 1, 99)
        elections.leads(99, 1, VOTERS, 0.0)
        assert verdict.kinds == ["leads-without-seat"]


class TestCanon:
    def test_all_may_say_the_same(self, verdict: Verdict, canon: Canon) -> None:
        canon.committed("a", [(b"1", 2, 1), (b"noop", 3, 1)])
        canon.committed("b", [(b"1", 2, 1)])
        assert verdict.kinds == []
        assert (canon.last, canon.where) == (3, {1: 2})

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

    def test_an_append_after_a_read_comes_later(self, verdict: Verdict, canon: Canon) -> None:
        ledger = Ledger(verdict, canon)
        ledger.read("a", 5, ledger.begin(), b"x")
        ledger.appended(1, 5, ledger.begin(), {5: 1})
        assert verdict.kinds == ["goes-back"]

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
