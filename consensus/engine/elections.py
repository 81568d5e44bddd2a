"""Who may stand, and who is elected: PreVote and the counting of votes.

PreVote (Raft thesis 9.6): before a replica raises its term it asks whether it would be elected. A
replica that hears a leader says no, so one that comes back from a partition disturbs nobody. A
leader whose connection broke is taken for dead by who was connected: when its process dies, the
kernel says so at once, and an election need not wait for the timeout.
"""

from __future__ import annotations

from typing import Final

from pysyncobj.node import Node

from consensus.engine.library import Library
from consensus.engine.network.wire import PreVote, PreVoteAnswer, RequestVote, Vote

_NEVER: Final = float("-inf")


class Elections:
    """One replica's part in elections; times in seconds. In the tick thread."""

    def __init__(self, raft: Library) -> None:
        self._raft = raft
        self._roster = raft.roster
        self._quiet_s = raft.config.election_min_ms / 1000
        self._heard_s = _NEVER
        self._asked_term = 0
        self._granted: set[str] = set()
        self._ask_again_s = _NEVER
        self._votes_term = 0
        self._votes: set[str] = set()

    # --- as a candidate

    def may_stand(self) -> bool:
        """Return whether to stand now that the election timeout is over; asks the others first."""
        raft = self._raft
        if not self._roster.may_vote:
            raft.put_off_election()
            return False
        term, now_s = raft.term + 1, raft.mono()
        if self._asked_term != term or now_s >= self._ask_again_s:
            self._ask(term, now_s)
        if raft.is_called or self._roster.has_quorum(self._granted):
            self._asked_term = 0  # the answers are used up
            return True
        return False

    def _ask(self, term: int, now_s: float) -> None:
        raft = self._raft
        self._ask_again_s = now_s + self._quiet_s * (0.25 + raft.chance() / 4)
        if self._asked_term != term:
            self._asked_term, self._granted = term, {raft.me.id}
        for node in raft.connected():
            raft.transport.send(node, PreVote(term, raft.last_index, raft.last_term))

    def take_answer(self, node: Node, message: PreVoteAnswer) -> None:
        """Note what `node` said to our question."""
        if message.term > self._raft.term:
            self._raft.step_down(message.term)  # ask in a newer term
        elif message.granted and message.asked == self._asked_term and self._raft.is_member(node):
            self._granted.add(node.id)

    def take_vote(self, node: Node, message: Vote) -> None:
        """Count a vote."""
        raft = self._raft
        if not raft.is_candidate or message.term != raft.term or not raft.is_member(node):
            return
        if self._votes_term != raft.term:
            self._votes_term, self._votes = raft.term, {raft.me.id}
        self._votes.add(node.id)
        if self._roster.has_quorum(self._votes):
            raft.become_leader()

    # --- as a voter

    def hear_leader(self) -> None:
        """Note that the leader spoke: what was said about an election before that is over."""
        self._heard_s = self._raft.mono()
        self._asked_term = 0

    def lose_leader(self) -> None:
        """Note that the leader's connection broke."""
        self._heard_s = _NEVER

    def take_question(self, node: Node, message: PreVote) -> None:
        """Say whether we would vote for `node`; it changes nothing here."""
        raft = self._raft
        hears_leader = raft.mono() - self._heard_s < self._quiet_s
        granted = (
            message.term > raft.term
            and self._roster.gives_vote
            and not raft.leads
            and not hears_leader
            and not self._is_behind(message)
        )
        raft.transport.send(node, PreVoteAnswer(raft.term, message.term, granted))

    def take_request(self, node: Node, message: RequestVote) -> None:
        """Vote for `node`, if its log holds all that ours does and this term has our vote left."""
        raft = self._raft
        if message.term > raft.term:
            raft.step_down(message.term)
        if message.term < raft.term or raft.leader is not None:
            return  # a term that has a leader needs no other
        if not self._roster.gives_vote or self._is_behind(message):
            return
        if raft.vote not in (None, node.id):
            return
        raft.set_term(raft.term, node.id)
        raft.put_off_election()
        raft.transport.send(node, Vote(raft.term))

    def _is_behind(self, message: PreVote | RequestVote) -> bool:
        raft = self._raft
        if message.last_index < raft.commit:
            # Never so in one log. But terms of a log that a seeded disk knows nothing of, of one
            # that was never founded, say nothing about the state that it brings.
            return True
        return (message.last_term, message.last_index) < (raft.last_term, raft.last_index)
