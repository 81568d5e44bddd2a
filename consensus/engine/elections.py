"""Elections: PreVote and the counting of votes.

PreVote (Raft thesis 9.6): before a replica raises its term, it asks whether it would be elected. A
replica that hears a leader answers no, so a replica that returns from a partition deposes no
leader. A follower treats a leader whose connection broke as dead: when the leader's process dies,
its kernel closes the connections, and the election need not wait for the timeout.
"""

from __future__ import annotations

from typing import Final

from pysyncobj.node import Node

from consensus.engine.library import Library
from consensus.engine.network.wire import PreVote, PreVoteAnswer, RequestVote, Vote

_NEVER: Final = float("-inf")


class Elections:
    """One replica's part in elections; times in seconds. Used in the tick thread."""

    def __init__(self, raft: Library) -> None:
        self._raft = raft
        self._membership_log = raft.membership_log
        self._quiet_s = raft.config.election_min_ms / 1000
        self._leader_s = _NEVER
        self._asked_term = 0
        self._granted: set[str] = set()
        self._ask_again_s = _NEVER
        self._votes_term = 0
        self._votes: set[str] = set()

    # --- as a candidate

    def may_stand(self) -> bool:
        """Return whether to become a candidate after the election timeout; sends PreVotes first."""
        raft = self._raft
        if not self._membership_log.may_vote:
            raft.put_off_election()
            return False
        term, now_s = raft.term + 1, raft.mono()
        if self._asked_term != term or now_s >= self._ask_again_s:
            self._ask_again_s = now_s + self._quiet_s * (0.25 + raft.chance() / 4)
            if self._asked_term != term:
                self._asked_term, self._granted = term, {raft.me.id}
            for node in raft.connected():
                raft.transport.send(node, PreVote(term, raft.last_index, raft.last_term))
        if raft.is_called or self._membership_log.has_quorum(self._granted):
            self._asked_term = 0  # each answer counts once
            return True
        return False

    def take_answer(self, node: Node, message: PreVoteAnswer) -> None:
        """Record the answer of `node` to a PreVote."""
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
        if self._membership_log.has_quorum(self._votes):
            raft.become_leader()

    # --- as a voter

    def note_leader(self) -> None:
        """Record a message from the leader; earlier PreVote answers become invalid."""
        self._leader_s = self._raft.mono()
        self._asked_term = 0

    def lose_leader(self) -> None:
        """Record that the leader's connection broke."""
        self._leader_s = _NEVER

    def take_question(self, node: Node, message: PreVote) -> None:
        """Answer a PreVote of `node`; changes nothing here."""
        raft = self._raft
        has_leader = raft.mono() - self._leader_s < self._quiet_s
        granted = (
            message.term > raft.term
            and self._membership_log.gives_vote
            and not raft.leads
            and not has_leader
            and not self._is_behind(message)
        )
        raft.transport.send(node, PreVoteAnswer(raft.term, message.term, granted))

    def take_request(self, node: Node, message: RequestVote) -> None:
        """Vote for `node` if its log is at least as complete and this replica has not voted in the
        term.
        """
        raft = self._raft
        if message.term > raft.term:
            raft.step_down(message.term)
        if message.term < raft.term or raft.leader is not None:
            return  # the term has a leader already
        if not self._membership_log.gives_vote or self._is_behind(message):
            return
        if raft.vote not in (None, node.id):
            return
        raft.set_term(raft.term, node.id)
        raft.put_off_election()
        raft.transport.send(node, Vote(raft.term))

    def _is_behind(self, message: PreVote | RequestVote) -> bool:
        raft = self._raft
        if message.last_index < raft.commit:
            # This cannot happen within one log. But a seeded disk may meet a disk whose cell was
            # never founded; the terms of that log say nothing about the state of the seeded disk.
            return True
        return (message.last_term, message.last_index) < (raft.last_term, raft.last_index)
