"""What executors say of their workers, their host and their handlers' wishes, as the pool takes it;
and how a drained one is sent away."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from launcher import limits as executor_limits
from launcher.pool.events import Joined, Offered, Reported
from launcher.protocol import limits
from launcher.protocol.reading import BadMessage, parse_hello, parse_offers, parse_reports
from launcher.protocol.reports import GroupOffer
from launcher.protocol.status import Limiting, Reason
from launcher.protocol.v1 import pool_pb2
from tests.unit.pool_rig import CELL, LEDGER, hello, reports, rigged, said


def offer(group: str = "app", slots: int = 16, handlers: tuple[str, ...] = ("a.b",)) -> Any:
    return pool_pb2.Offer(group=group, slots=slots, handlers=handlers)


def offers(*some: Any) -> pool_pb2.Offers:
    return pool_pb2.Offers(offers=some)


# ---- over the stream


async def test_offers_are_seen_in_the_session_and_told_only_when_they_change() -> None:
    async with rigged() as rig, rig.joined() as fake:
        assert rig.pool.sessions()[0].offers == ()
        await fake.send(offers=offers(offer(handlers=("a.b", "c"))))
        assert await rig.heard(Offered) == Offered("executor-7", LEDGER)
        assert rig.pool.sessions()[0].offers == (GroupOffer("app", 16, ("a.b", "c")),)
        await fake.send(offers=offers(offer(handlers=("a.b", "c"))))
        await fake.send(offers=offers())
        await rig.heard(Offered, 2)
        assert rig.pool.sessions()[0].offers == ()
        assert len(rig.of(Offered)) == 2


async def test_the_offer_of_commands_has_no_group_and_no_handlers() -> None:
    async with rigged() as rig, rig.joined() as fake:
        await fake.send(offers=offers(offer("", 80, ()), offer()))
        await rig.heard(Offered)
        commands, workers = rig.pool.sessions()[0].offers
        assert (commands, workers.group) == (GroupOffer("", 80, ()), "app")
    for wrong in (offer("", 80), offer("app", 80, ())):
        with pytest.raises(BadMessage):
            parse_offers(offers(wrong))


async def test_offers_may_come_before_the_welcome_and_belong_to_their_session() -> None:
    async with rigged() as rig:
        async with rig.executor() as fake:
            await fake.send(offers=offers(offer()))
            await rig.heard(Offered)
            assert rig.pool.sessions()[0].offers == (GroupOffer("app", 16, ("a.b",)),)
        await rig.gone()
        async with rig.joined():
            assert rig.pool.sessions()[0].offers == ()


async def test_bad_offers_end_the_stream_with_their_place() -> None:
    async with rigged() as rig, rig.joined() as fake:
        await fake.send(offers=offers(offer(), offer(slots=0)))
        code, details = await fake.status()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details == "offers[1].slots: 0 is not between 1 and 100000"
        assert not rig.of(Offered)


async def test_a_drained_executor_is_told_so_and_is_gone() -> None:
    async with rigged() as rig, rig.joined() as fake:
        rig.pool.dismiss("executor-7", "drained by alice")
        rig.pool.dismiss("executor-8", "nobody")
        [message] = await fake.rest()
        assert (message.goodbye.drained, message.goodbye.reason) == (True, "drained by alice")
        assert (await rig.gone()).reason == "drained by alice"
        assert not rig.pool.sessions()


async def test_one_that_is_refused_is_not_told_that_it_was_drained() -> None:
    async with rigged() as rig, rig.joined() as fake:
        rig.pool.refuse("executor-7", "not wanted")
        [message] = await fake.rest()
        assert not message.goodbye.drained


async def test_what_a_host_has_is_told_with_its_joining_and_seen_in_its_session() -> None:
    said = {"cpu_milli": 4_000, "memory_bytes": 8 << 30, "labels": {"zone": "eu"}}
    async with rigged() as rig, rig.joined(**said):
        joined, view = await rig.heard(Joined), rig.pool.sessions()[0]
        for one in (joined.greeting, view.greeting):
            assert (one.cpu_milli, one.memory_bytes, one.labels) == (4_000, 8 << 30, {"zone": "eu"})


async def test_when_a_handler_wants_another_try_is_in_its_fact() -> None:
    async with rigged() as rig, rig.joined() as fake:
        wish = said(1, reason=int(Reason.SNOOZE), retry_after_ms=[90_000])
        await fake.send(reports=reports(wish))
        [batch] = (await rig.heard(Reported)).batches
        assert (batch.reason, batch.retry_after_ms) == (Reason.SNOOZE, [90_000])


# ---- each field


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (offers(offer(group="")), "offers[0].group"),
        (offers(offer(group="a b")), "offers[0].group"),
        (offers(offer(group="g" * (limits.GROUP_CHARS_MAX + 1))), "offers[0].group"),
        (offers(offer(), offer(handlers=("c",))), "offers[1].group"),
        (offers(offer(slots=0)), "offers[0].slots"),
        (offers(offer(slots=limits.SLOTS_MAX + 1)), "offers[0].slots"),
        (offers(offer(handlers=())), "offers[0].handlers"),
        (offers(offer(handlers=("a", ""))), "offers[0].handlers[1]"),
        (offers(offer(handlers=("a\x1b",))), "offers[0].handlers[0]"),
        (offers(offer(handlers=("a", "a"))), "offers[0].handlers"),
        (offers(offer(), offer("other")), "offers[1].handlers"),
    ],
)
def test_a_bad_offer_is_refused_with_its_place(message: pool_pb2.Offers, place: str) -> None:
    with pytest.raises(BadMessage) as caught:
        parse_offers(message)
    assert caught.value.field == place
    assert str(caught.value).isascii()


def test_a_handler_in_two_groups_is_refused_with_the_other_group() -> None:
    with pytest.raises(BadMessage, match=r"'a\.b' is in group 'app' already"):
        parse_offers(offers(offer(), offer("other")))


def test_there_is_a_bound_on_groups_and_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUPS_MAX", 2)
    monkeypatch.setattr(limits, "HANDLERS_MAX", 3)
    one, two = offer("g1", handlers=("a",)), offer("g2", handlers=("b", "c"))
    assert len(parse_offers(offers(one, two))) == 2
    with pytest.raises(BadMessage, match="offers: 3 are more than 2"):
        parse_offers(offers(one, two, offer("g3", handlers=("d",))))
    with pytest.raises(BadMessage, match="offers: 4 handlers are more than 3"):
        parse_offers(offers(one, offer("g2", handlers=("b", "c", "d"))))
    with pytest.raises(BadMessage, match=r"offers\[0\].handlers: 4 handlers are not 1 to 3"):
        parse_offers(offers(offer(handlers=("a", "b", "c", "d"))))


@pytest.mark.parametrize(
    ("field", "most"),
    [("cpu_milli", limits.CPU_MILLI_MAX), ("memory_bytes", limits.MEMORY_BYTES_MAX)],
)
def test_what_a_host_has_is_within_bounds(field: str, most: int) -> None:
    assert getattr(parse_hello(hello(), CELL), field) == 0
    assert getattr(parse_hello(hello(**{field: most}), CELL), field) == most
    with pytest.raises(BadMessage) as caught:
        parse_hello(hello(**{field: most + 1}), CELL)
    assert caught.value.field == f"hello.{field}"


@pytest.mark.parametrize("after_ms", [-1, limits.RETRY_AFTER_MS_MAX + 1])
def test_a_time_of_the_next_try_that_cannot_be_is_refused(after_ms: int) -> None:
    with pytest.raises(BadMessage) as caught:
        parse_reports(reports(said(1, retry_after_ms=[after_ms])))
    assert caught.value.field == "reports.batches[0].retry_after_ms"


def test_the_pool_takes_all_that_an_executor_may_say_of_its_workers() -> None:
    assert executor_limits.WORKERS_MAX <= limits.GROUPS_MAX
    assert executor_limits.RUNNING_TOLD_MAX <= limits.SLOTS_MAX
    assert executor_limits.GROUP_SLOTS_MAX <= limits.SLOTS_MAX


def test_how_many_run_at_once_and_how_memory_is_held_may_be_left_out() -> None:
    older, newer = offer(), offer("web", handlers=("b",))
    newer.at_once, newer.memory_limiting = 4, Limiting.WATCHED
    found = parse_offers(offers(older, newer))
    assert [(one.at_once, one.running_max, one.memory_limiting) for one in found] == [
        (0, 16, Limiting.UNKNOWN),
        (4, 4, Limiting.WATCHED),
    ]
    newer.memory_limiting = 77
    assert parse_offers(offers(newer))[0].memory_limiting is Limiting.UNKNOWN
    newer.at_once = newer.slots + 1
    with pytest.raises(BadMessage, match="at_once"):
        parse_offers(offers(newer))
