"""A leader hears from an executor that its log is old: it stops, says so, and launches nothing."""

from __future__ import annotations

import msgspec
import pytest

from cron.errors import OldDisk
from cron.leader.older_log import WAYS_OUT
from cron.service.executors import views_of
from cron.state import commands as c
from launcher.pool.errors import NotLeading, Refused
from launcher.protocol.proofs import prove
from launcher.protocol.reports import Greeting, Ordered
from launcher.protocol.work import Epoch
from tests.unit import pool_rig
from tests.unit.state_rig import job
from tests.unit.test_leader_term import Replica, reigning


def hello(ordered: Ordered, highest: Epoch | None = None) -> Greeting:
    greeting = pool_rig.joined("e1", "l1").greeting
    return msgspec.structs.replace(
        greeting, ordered=ordered, highest_epoch=highest or ordered.epoch, incarnation="i1"
    )


def lost(replica: Replica, term: int, proven: bool = True) -> Ordered:
    """What an executor was ordered in a life of this cell that its log does not know."""
    said = Ordered(Epoch(1, term, "r2"), b"lost", 77)
    key = replica.state.order_key if proven else b"guessed"
    return msgspec.structs.replace(said, proof=prove(key, "e1", said))


async def test_a_proof_of_a_newer_log_stops_the_leader_until_its_term_is_over() -> None:
    async with reigning() as replica:
        await replica.put(job())
        epoch = replica.leader.epoch
        assert epoch is not None
        with pytest.raises(NotLeading):
            replica.pool.join(hello(lost(replica, epoch.term)), "127.0.0.1:1")
        assert (replica.leader.epoch, replica.pool.epoch) == (None, None)
        with pytest.raises(OldDisk, match=r"disk of r1 is old: .* entry 77 in term") as caught:
            await replica.leader.append(c.Trigger("default/backup", "q", "anna"))
        assert caught.value.hint == WAYS_OUT
        with pytest.raises(OldDisk, match="r2 led then"):
            await replica.leader.confirm()
        before = replica.state.index
        replica.leader.start()  # the log says again that it leads
        replica.clock.ms += 120_000
        await replica.leader.stop()
        assert replica.state.index == before
        assert not replica.failures


async def test_the_proof_counts_also_where_a_higher_epoch_would_be_refused_without_one() -> None:
    async with reigning() as replica:
        with pytest.raises(Refused, match="which is above"):
            replica.pool.join(hello(lost(replica, 9, proven=False)), "127.0.0.1:1")
        assert replica.leader.epoch is not None
        with pytest.raises(NotLeading):
            replica.pool.join(hello(lost(replica, 9)), "127.0.0.1:1")
        assert replica.leader.epoch is None


async def test_a_lying_executor_is_named_and_stops_nobody() -> None:
    async with reigning() as replica:
        epoch = replica.leader.epoch
        lie = lost(replica, 0, proven=False)
        replica.pool.join(hello(lie), "127.0.0.1:1")
        assert replica.leader.epoch == epoch
        await replica.until(lambda: bool(replica.state.executors))
        [view] = views_of(replica.state, replica.state.executors.values(), replica.pool.sessions())
        assert "without a proof: executor e1 was ordered entry 77" in view.note


async def test_orders_carry_the_mark_of_the_term_and_a_proof_that_the_leader_believes() -> None:
    async with reigning() as replica:
        session = replica.pool.join(hello(Ordered()), "127.0.0.1:1")
        await replica.until(lambda: session.is_welcome)
        replica.pool.order("e1", "l1", starts=[pool_rig.order(1), pool_rig.order(5)])
        message = session.next_message()
        while message is not None and not message.HasField("orders"):
            message = session.next_message()
        assert message is not None
        [term] = replica.state.leader_terms
        orders, key = message.orders, replica.state.order_key
        assert (len(term.mark), len(key)) == (8, 32)
        assert orders.mark == term.mark
        said = Ordered(term.epoch, term.mark, 105)
        assert orders.proof == prove(key, "e1", said)


async def test_a_cell_of_the_format_before_marks_nothing_until_its_format_has_risen() -> None:
    async with reigning(log_format=11) as replica:
        assert replica.state.leader_terms[-1].mark == b""
        replica.leader.shared_format = lambda: c.FORMAT
        await replica.until(lambda: replica.state.format == c.FORMAT)
        [term] = replica.state.leader_terms
        assert replica.state.marks == {term.mark: replica.leader.epoch}
        session = replica.pool.join(hello(Ordered()), "127.0.0.1:1")
        await replica.until(lambda: session.is_welcome)
        replica.pool.order("e1", "l1", starts=[pool_rig.order(1)])
        message = session.next_message()
        while message is not None and not message.HasField("orders"):
            message = session.next_message()
        assert message is not None
        assert message.orders.mark == term.mark
