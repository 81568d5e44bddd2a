"""The leader's side of replication: appends, sending, answers, members, leadership transfer.

At each heartbeat, the leader sends an empty Append to a follower for which no message is in flight;
this also compares the logs. If entries or a dump are in flight, it sends a Heartbeat, which
overtakes them. While a call waits for this leadership to be confirmed, all followers get
Heartbeats.

An answer contains its term and the leader's time of sending; answers of older terms do not count
(S14). A refusal only moves the next index back, and not below the match index (D).

A leader resigns when a majority does not acknowledge a new entry (`may_acknowledge`), and truncates
its own uncommitted entries of this term. It never leads that term again, so no replica counts its
copy of those entries: truncating them is equivalent to dying before writing them. If it kept them,
it could be elected for its longer log, and would have the same entries again.

`Confirming` has the rounds of heartbeats that confirm that a leader still leads. A round has a
number, which is in the heartbeats sent after a call. Once a majority has answered them in this
term, no other leader was elected before the call. A round needs no entry, so it waits neither for
other work nor for a disk.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from pysyncobj.node import Node

from consensus.cell import PeerView
from consensus.engine.admissions import Admissions
from consensus.engine.compaction import Compaction
from consensus.engine.envelope import MEMBERS, Origin, seal
from consensus.engine.handover import Refused
from consensus.engine.library import Library
from consensus.engine.membership import Change, Found, encode_change
from consensus.engine.membership_log import MembershipLog
from consensus.engine.network.wire import (
    Answer,
    DumpAnswer,
    Heartbeat,
    HeartbeatAnswer,
    TimeoutNow,
)
from consensus.engine.sender import Sender
from consensus.errors import ChangeRefused
from consensus.limits import TICK_BYTES

_log = logging.getLogger(__name__)

_TRANSFER_S: Final = 1.0
_WITHHELD_S: Final = 1.0
"""How long a majority may refuse to acknowledge an entry before the leader resigns."""


class Leading:
    """The leader's side of replication. Used in the tick thread.

    `logged` is the number of the last append of this process that was written to the log.
    `confirmed_s` is the time of sending of the newest message that a majority has answered.
    """

    def __init__(self, raft: Library, compaction: Compaction) -> None:
        self.logged = 0
        self.confirmed_s: float | None = None
        self.sender = Sender(raft.parts.journal, raft.transport, raft.parts.disk)
        self.confirming = Confirming(raft.membership_log, raft.me.id)
        self._raft = raft
        self._compaction = compaction
        self._journal = raft.journal
        self._membership_log = raft.membership_log
        self._admissions = Admissions(raft.membership_log)
        self._sent = 0  # the last index that was sent
        self._transfer: tuple[str | None, float] | None = None
        self._withheld: set[str] = set()  # followers that did not accept our newest entries yet
        self._stuck_s: float | None = None  # since when a majority cannot acknowledge them

    def begin(self) -> None:
        """Start a leadership: nothing is known about the followers."""
        self.sender.reset()
        self._admissions.reset()
        self._transfer = None
        self._withheld.clear()
        self._stuck_s = None

    # --- appends and sending

    def log(self, appends: deque[tuple[int, bytes]]) -> None:
        """Write waiting appends to the log, up to a tick's limit; none while leadership is
        transferred.
        """
        if self.is_handing_over:
            return
        index, term = self._raft.last_index, self._raft.term
        taken_bytes = 0
        while appends and taken_bytes < TICK_BYTES:
            counter, command = appends.popleft()
            index += 1
            self._journal.add(command, index, term)
            self.logged = max(self.logged, counter)
            taken_bytes += len(command)

    def end_tick(self) -> None:
        """Send the entries and the commit index of this tick."""
        raft = self._raft
        if self.confirming.is_due:
            self._confirm()
        self._tend_members()
        never = float("-inf")
        answered = [raft.mono(), *(raft.answered_s.get(node, never) for node in raft.electors)]
        confirmed_s = sorted(answered, reverse=True)[len(answered) // 2]
        if confirmed_s != never:
            self.confirmed_s = confirmed_s
        announce = raft.last_index != self._sent
        self.sender.reads_on = False
        if announce or self.sender.lags(raft.last_index, raft.following):
            self.send(heartbeat=False, announce=announce)
        if self._transfer is not None:
            self._try_transfer(*self._transfer)
        if self._withheld:
            self._consider_resigning()

    def _confirm(self) -> None:
        self.confirming.is_due = False
        for node in self._raft.connected():
            self._beat(node)
        self.confirming.finish_rounds()  # a single replica needs no answer

    def _beat(self, node: Node) -> None:
        raft, number = self._raft, self.confirming.round
        sent_ms = int(raft.mono() * 1000)
        raft.transport.send(node, Heartbeat(raft.term, raft.commit, sent_ms, number))

    def _consider_resigning(self) -> None:
        raft, now_s = self._raft, self._raft.mono()
        able = {node.id for node in raft.connected()} - self._withheld | {raft.me.id}
        if self._membership_log.has_quorum(able):
            self._stuck_s = None
        elif self._stuck_s is None:
            self._stuck_s = now_s
        elif now_s - self._stuck_s >= _WITHHELD_S:
            self._resign()

    def _resign(self) -> None:
        raft = self._raft
        _log.warning(
            "resigns as leader of term %d: its new entries are not acknowledged by %s",
            raft.term,
            ", ".join(sorted(self._withheld)),
        )
        heirs = [node for node in raft.connected() if self._membership_log.counts(node.id)]
        heir = max(heirs, key=lambda node: raft.matched[node], default=None)
        raft.stand_aside()
        log = self._journal.log
        unsure = range(raft.commit + 1, log.last + 1)
        own = next((index for index in unsure if log.term_at(index) == raft.term), None)
        if own is not None:
            self._journal.cut_from(own)
        if heir is not None:
            raft.transport.send(heir, TimeoutNow(raft.term))

    def send(self, *, heartbeat: bool, announce: bool) -> None:
        """Send every follower the entries that it lacks; with `announce`, send at least an empty
        message. Entries that wait behind nothing are a heartbeat as well.
        """
        raft, now_s = self._raft, self._raft.mono()
        if announce:
            self._sent = raft.last_index
        self.sender.begin(raft.term, raft.commit, int(now_s * 1000), self._compaction.dump)
        is_heartbeat = heartbeat or announce
        for node in raft.connected():
            is_busy = self.confirming.is_waiting or self.sender.is_busy(node)
            was_sent = self.sender.feed(
                node, raft.following, heartbeat=heartbeat, announce=announce
            )
            if heartbeat and is_busy:
                self._beat(node)
            is_heartbeat = is_heartbeat and (heartbeat or (was_sent and not is_busy))
        if is_heartbeat:
            raft.note_heartbeat(now_s)

    def take_answer(self, node: Node, message: Answer | DumpAnswer | HeartbeatAnswer) -> None:
        """Record the progress of `node`; its match index counts only if it votes."""
        raft = self._raft
        if message.term > raft.term:
            raft.step_down(message.term)
        if not raft.leads or message.term != raft.term:
            return
        if isinstance(message, Answer) and not message.next_index:
            return  # a refusal of our older term, by a peer that was in this term before us
        counts = raft.is_member(node) and self._membership_log.counts(node.id)
        sent_s = min(message.sent_ms / 1000, raft.mono())
        if counts:
            raft.answered_s[node] = max(raft.answered_s[node], sent_s)
        elif raft.is_member(node):
            self._admissions.note_answer(node.id, sent_s)
        if isinstance(message, HeartbeatAnswer):
            if counts:
                self.confirming.answered(node.id, message.round)
            return
        if isinstance(message, DumpAnswer):
            self.sender.resume_dump(node, message.index, message.offset)
        elif message.withholds:
            self._note_withheld(node, message.next_index, counts=counts)
        elif not message.accepted:
            back = min(raft.following[node], message.next_index)
            raft.following[node] = max(raft.matched[node] + 1, back)
            self.sender.probe(node)
        elif message.next_index <= raft.last_index + 1:
            self._note_matched(node, message.next_index - 1, counts=counts)
            raft.following[node] = max(raft.following[node], message.next_index)
            self._withheld.discard(node.id)
            self.sender.accepted(node, message.next_index)

    def _note_matched(self, node: Node, index: int, *, counts: bool) -> None:
        if counts:
            self._raft.matched[node] = max(self._raft.matched[node], index)
        elif self._raft.is_member(node):
            self._admissions.note(node.id, index)

    def _note_withheld(self, node: Node, next_index: int, *, counts: bool) -> None:
        """Record that `node` accepts nothing from `next_index` on before it is committed; offer it
        again with each heartbeat.
        """
        raft = self._raft
        if next_index > raft.last_index:
            return
        self._note_matched(node, next_index - 1, counts=counts)
        raft.following[node] = max(raft.matched[node] + 1, min(raft.following[node], next_index))
        self._withheld.add(node.id)
        self.sender.rest(node)

    def peers(self) -> dict[str, PeerView]:
        """Return the progress of each peer, for display."""
        raft, views = self._raft, {}
        connected = raft.connected()
        for node in raft.others:
            matched = raft.matched.get(node, 0) if raft.leads else 0
            matched = max(matched, self._admissions.learned(node.id))
            dump = self.sender.dump_progress(node)
            views[node.id] = PeerView(node in connected, matched, *dump)
        return views

    # --- members

    def found(self) -> None:
        """Append the first entry of a new cell, which names its disks."""
        raft = self._raft
        peers = [(node.id, raft.transport.peer(node.id)) for node in raft.others]
        tokens = [(name, peer.token) for name, peer in peers if peer is not None]
        if len(tokens) < len(peers):
            raft.step_down(raft.term)  # a voter is unreachable again
            return
        tokens.append((raft.me.id, self._membership_log.identity.token))
        self._log_change(Found(sorted(tokens)))

    def heed_membership_log(self) -> None:
        """Count only voters for commits."""
        raft = self._raft
        for node in raft.others:
            if not self._membership_log.counts(node.id):
                raft.matched[node] = 0
                raft.answered_s[node] = float("-inf")
            elif learned := self._admissions.learned(node.id):
                raft.matched[node] = max(raft.matched[node], learned)
                heard_s = self._admissions.heard_s(node.id)
                raft.answered_s[node] = max(raft.answered_s[node], heard_s)
                self._admissions.forget(node.id)

    def replace(self, name: str, raft_address: str, about: str, origin: Origin) -> None:
        """Append the Replace of the present disk of `name`, as the append `origin`; if it is not
        possible, queue ChangeRefused for the event loop.
        """

        def decide(reached: set[str]) -> Change:
            change = self._admissions.replacement(
                name, raft_address, about, leader=self._raft.me.id, reached=reached
            )
            self._admissions.forget(name)
            return change

        self._change(origin, decide)

    def add(self, name: str, origin: Origin) -> None:
        """Append the Add of the id `name`, as the append `origin`; if it is not possible, queue
        ChangeRefused for the event loop.
        """
        leader, peer = self._raft.me.id, self._raft.transport.peer
        self._change(
            origin,
            lambda reached: self._admissions.addition(
                name, leader=leader, reached=reached, peer=peer
            ),
        )

    def _change(self, origin: Origin, decide: Callable[[set[str]], Change]) -> None:
        """Append the change that `decide` returns; it is given the voters that are reached."""
        raft = self._raft
        if not raft.leads:
            raft.parts.handover.post(Refused([origin.counter]))
            return
        recent_s = self._recent_s
        # A new leadership begins as if all peers had answered; a match index proves an answer.
        reached = {n.id for n in raft.others if raft.matched[n] and raft.answered_s[n] > recent_s}
        try:
            if not self._may_change():
                raise ChangeRefused("another change of the members is under way; try again soon")
            change = decide(reached)
        except ChangeRefused as refusal:
            raft.parts.handover.post(Refused([origin.counter], refusal))
            return
        self.logged = max(self.logged, origin.counter)
        self._log_change(change, origin)

    @property
    def _recent_s(self) -> float:
        """Since when a peer must have answered to count as reached."""
        return self._raft.mono() - self._raft.config.fallback_ms / 1000

    def _tend_members(self) -> None:
        raft = self._raft
        if self._membership_log.is_complete or not self._may_change():
            return
        change = self._admissions.next_change(
            raft.commit, raft.transport.peer, since_s=self._recent_s
        )
        if change is not None:
            self._log_change(change)

    def _may_change(self) -> bool:
        """Return whether the next change of members may be appended: the last change is committed,
        and so is an entry of this leadership (Raft thesis 4.1, and its erratum of 2015).
        """
        raft = self._raft
        if raft.noop_at is None or raft.noop_at > raft.commit:
            return False
        return self._membership_log.changed_at <= raft.commit

    def _log_change(self, change: Change, origin: Origin | None = None) -> None:
        raft = self._raft
        command = seal(MEMBERS, origin or Origin(raft.me.id, 0, 0), encode_change(change))
        self._journal.add(command, raft.last_index + 1, raft.term)

    # --- leadership transfer

    @property
    def is_handing_over(self) -> bool:
        """Return whether leadership is being transferred, so that appends wait."""
        return self._transfer is not None

    def begin_transfer(self, replica: str | None) -> None:
        """Transfer to `replica`, or to the most advanced one, as soon as it has all entries."""
        if self._raft.leads and self._raft.electors:
            self._transfer = (replica, self._raft.mono() + _TRANSFER_S)

    def end_transfer(self) -> None:
        """End the transfer; leadership is lost, or stays."""
        self._transfer = None

    def _try_transfer(self, replica: str | None, until_s: float) -> None:
        raft = self._raft
        if raft.mono() > until_s:
            self._transfer = None
            return
        for node in raft.connected():
            is_level = raft.matched.get(node, 0) == raft.last_index
            if is_level and self._membership_log.counts(node.id) and replica in (None, node.id):
                raft.transport.send(node, TimeoutNow(raft.term))
                return


class Confirming:
    """The rounds of one leadership; used in the tick thread. `round` is the number for the next
    heartbeats; `is_due` says that no heartbeat with this number was sent yet.
    """

    def __init__(self, membership_log: MembershipLog, me: str) -> None:
        self.round = 0
        self.is_due = False
        self._membership_log = membership_log
        self._me = me
        self._asked: deque[tuple[int, Callable[[bool], None]]] = deque()
        self._answered: dict[str, int] = {}

    @property
    def is_waiting(self) -> bool:
        """Return whether a round waits for answers of a majority."""
        return bool(self._asked)

    def ask(self, answer: Callable[[bool], None]) -> None:
        """Call `answer(True)` once a majority has answered a heartbeat that is sent after this
        call, `answer(False)` if the leadership ends before.
        """
        if not self.is_due:
            self.is_due = True
            self.round += 1
        self._asked.append((self.round, answer))

    def answered(self, name: str, number: int) -> None:
        """Record that the voter `name` answered a heartbeat of the round `number`."""
        self._answered[name] = max(number, self._answered.get(name, 0))
        self.finish_rounds()

    def finish_rounds(self) -> None:
        """Call the callbacks of rounds that a majority has answered."""
        while self._asked:
            number, answer = self._asked[0]
            names = {name for name, newest in self._answered.items() if newest >= number}
            if not self._membership_log.has_quorum(names | {self._me}):
                return
            self._asked.popleft()
            answer(True)

    def end(self) -> None:
        """Call all waiting callbacks with False: the leadership is over."""
        self._answered.clear()
        self.is_due = False
        asked, self._asked = self._asked, deque()
        for _, answer in asked:
            answer(False)
