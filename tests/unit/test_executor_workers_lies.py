"""Workers that lie, flood, or greet as nobody should: refused with the reason, and nothing of it
reaches a launch that is not theirs."""

from __future__ import annotations

import asyncio
import grp
import hashlib
import os
import pwd
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from launcher.config import WorkerRule
from launcher.errors import BadConfig
from launcher.executor.commands.trees import start_ticks
from launcher.executor.handlers.connection import Peer
from launcher.executor.handlers.grants import WorkerGrants
from launcher.executor.rows import ACCEPTED, ENDED
from launcher.protocol.limits import HANDLER_CHARS_MAX
from launcher.protocol.status import Reason
from launcher.protocol.v1 import pool_pb2
from launcher.worker import wire
from launcher.worker.wire import Result
from tests.unit.workers_rig import Floor, Puppet, floor, named, names_of, running, until

A, B, C, D = (named(number) for number in range(4))


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Floor]:
    async with floor(tmp_path) as one:
        yield one


# ---- lies and floods


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0\0\0\x05hello", "is no message"),
        (b"\xff\xff\xff\xff", "is over 16777216"),
        (wire.encode(wire.Beat([1])), "its first message is no hello"),
    ],
)
async def test_what_is_no_greeting_is_refused_with_the_reason(
    shop: Floor, data: bytes, text: str
) -> None:
    puppet = await shop.stranger()
    puppet.send(data)
    refused = await puppet.expect(wire.Refused)
    assert text in refused.text
    assert await puppet.read() is None
    assert puppet.process.poll() is None  # it never had anything: it may live


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0\0\0\x05hello", "is no message"),
        ((wire.FRAME_BYTES_MAX + 1).to_bytes(4, "big"), "a frame of 16777217 bytes is over"),
    ],
)
async def test_a_worker_that_sends_garbage_is_killed_and_its_launches_are_over(
    shop: Floor, data: bytes, text: str
) -> None:
    puppet = await running(shop, A)
    other = await shop.puppet()
    puppet.send(data)
    assert text in (await puppet.expect(wire.Refused)).text
    assert await puppet.exit_code() == -signal.SIGKILL
    row = await shop.told(A, ENDED)
    assert row.reason == Reason.WORKER_DIED
    assert text in row.detail
    shop.give(B)
    assert names_of(await other.tasks(1)) == [B], "nobody else heard of it"


async def test_what_a_worker_had_when_it_sent_garbage_may_have_begun_and_is_begun_by_no_other(
    shop: Floor,
) -> None:
    puppet = await shop.puppet(threads=1, buffer=1)
    shop.give(A, B)
    await puppet.tasks(2)
    other = await shop.puppet()
    puppet.send(wire.encode(wire.Started([puppet.number(A)])) + b"\0\0\0\x05hello")
    assert (await shop.told(A, ENDED)).reason == Reason.WORKER_DIED
    assert (await shop.told(B, ENDED)).reason == Reason.WORKER_DIED
    shop.give(C)
    assert names_of(await other.tasks(1)) == [C]


async def test_a_second_greeting_ends_the_connection(shop: Floor) -> None:
    puppet = await shop.puppet()
    puppet.greet()
    assert (await puppet.expect(wire.Refused)).text == "it said hello twice"


async def test_names_that_it_was_not_given_change_nothing(shop: Floor) -> None:
    other = await running(shop, A, threads=1, buffer=0)
    liar = await shop.puppet(threads=1, buffer=0)
    liar.start(A, "no name")
    liar.write(A, b"lies")
    liar.finish(A, result=Result.FATAL)
    liar.leave(A, "no name")
    await until(lambda: len(shop.executor_loop.workers.groups.of("app").serving()) == 1)
    assert shop.book.status(A) == ACCEPTED
    other.finish(A)
    assert (await shop.told(A, ENDED)).reason == Reason.NONE
    assert shop.executor_loop.output(pool_pb2.OutputRequest(name=A)).size == 0


async def test_an_end_that_is_told_twice_counts_once(shop: Floor) -> None:
    puppet = await running(shop, A)
    puppet.finish(A)
    puppet.finish(A, result=Result.FATAL)
    assert (await shop.told(A, ENDED)).reason == Reason.NONE
    shop.give(B)
    await puppet.tasks(1)
    assert shop.book.rows[A].reason == Reason.NONE


async def test_what_is_given_back_twice_waits_once(shop: Floor) -> None:
    """Its payload was counted each time, until the executor was full of what was not there."""
    puppet = await running(shop, A, threads=1, buffer=1)
    shop.give(B, payload=b"x" * 100)
    await puppet.tasks(1)
    group = shop.executor_loop.workers.groups.of("app")
    puppet.leave(*[B] * 1000)
    await until(lambda: len(group.ready) == 1)
    assert group.ready.payload_bytes == 100
    other = await shop.puppet()
    assert names_of(await other.tasks(1)) == [B]
    assert group.ready.payload_bytes == 0


async def test_a_flood_of_output_is_bounded_and_the_end_is_heard(tmp_path: Path) -> None:
    async with floor(tmp_path, output_bytes_max=64 << 10) as shop:
        puppet = await running(shop, A)
        piece = b"x" * wire.OUTPUT_PIECE_BYTES_MAX

        def flood() -> None:
            for _ in range(200):
                puppet.send(wire.encode(wire.Output(puppet.number(A), piece)))
            puppet.send(wire.encode(wire.Output(puppet.number(A), b"the end")))

        await asyncio.to_thread(flood)
        puppet.finish(A)
        await shop.told(A, ENDED)
        request = pool_pb2.OutputRequest(name=A, limit=7, tail=True)
        assert shop.executor_loop.output(request).data == b"the end"
        assert shop.executor_loop.output(request).size <= 64 << 10
        [worker] = shop.executor_loop.workers.groups.workers()
        await until(lambda: worker.unwritten_bytes == 0)


@pytest.mark.parametrize(
    ("hello", "text"),
    [
        ({"group": ""}, "group '' is not a name"),
        ({"group": "a b"}, "group 'a b' is not a name"),
        ({"handlers": []}, "it serves no handlers"),
        ({"handlers": ["x" * (HANDLER_CHARS_MAX + 1)]}, "is not a name of 1 to 200"),
        ({"handlers": ["a", "a"]}, "handler a is there twice"),
        ({"threads": 0}, "0 threads are not between 1 and 1000"),
        ({"buffer": -1}, "a buffer of -1 is not between 0 and 10000"),
        ({"version": 1}, "it speaks version 1 of the protocol, this executor speaks 2"),
    ],
)
async def test_a_greeting_that_cannot_be_is_refused(
    shop: Floor, hello: dict[str, Any], text: str
) -> None:
    puppet = await shop.stranger()
    puppet.greet(**hello)
    assert text in (await puppet.expect(wire.Refused)).text
    assert await puppet.read() is None
    assert shop.executor_loop.workers.groups.offers == ()


async def test_a_handler_of_another_group_is_refused_with_the_way_out(shop: Floor) -> None:
    first = await shop.puppet(group="mail", handlers=["a", "b"])
    puppet = await shop.stranger()
    puppet.greet(group="new", handlers=["c", "b"])
    assert (await puppet.expect(wire.Refused)).text == (
        f"handler b is served here by group mail already (process {first.pid}): stop that worker, "
        "start this one with --group mail, or let it serve other handlers"
    )
    second = await shop.puppet(group="mail", handlers=["b", "c"])  # the same group may
    await until(lambda: shop.executor_loop.workers.groups.offers[0].handlers == ("a", "b", "c"))
    assert second.process.poll() is None


async def test_there_is_a_bound_on_workers(shop: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.executor.handlers.groups.WORKERS_MAX", 1)
    await shop.puppet()
    puppet = await shop.stranger()
    puppet.greet()
    text = (await puppet.expect(wire.Refused)).text
    assert text == "1 worker processes are here already, the most there can be"


async def test_who_says_nothing_is_sent_away(shop: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.executor.handlers.workers.HELLO_WITHIN_S", 0.05)
    puppet = await shop.stranger()
    assert (await puppet.expect(wire.Refused)).text == "it did not say hello"
    assert not shop.executor_loop.workers.visitors


# ---- who comes in


def test_a_peer_is_the_process_at_the_other_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = Peer(ours)
        assert (peer.pid, peer.uid) == (os.getpid(), os.getuid())
        assert peer.ticks == start_ticks(os.getpid())
        peer.close()


# ---- handlers that are not theirs


def rules(*some: dict[str, Any]) -> dict[str, Any]:
    return {"worker": tuple(WorkerRule(**one) for one in some)}


OWN_GROUP = grp.getgrgid(os.getgid()).gr_name
OTHER_GROUP = next(
    one.gr_name for one in grp.getgrall() if one.gr_gid not in {os.getgid(), *os.getgroups()}
)
TOKEN = "5ec7e7" * 8
DIGEST = hashlib.sha256(TOKEN.encode()).hexdigest()


async def greeted(tmp_path: Path, some: dict[str, Any], **hello: Any) -> str:
    """Why a worker is refused, "" if it is let in."""
    async with floor(tmp_path, **some) as shop:
        puppet = await shop.stranger()
        puppet.greet(**hello)
        said = await puppet.read()
        return said.text if isinstance(said, wire.Refused) else ""


async def test_without_rules_whoever_may_open_the_socket_serves_what_it_says(
    tmp_path: Path,
) -> None:
    assert await greeted(tmp_path, {}, handlers=["pay", "mail.send"]) == ""


@pytest.mark.parametrize(
    ("handlers", "refused"),
    [(["mail.send", "mail"], ""), (["mail.send", "pay"], "pay"), (["Mail"], "Mail")],
)
async def test_a_group_serves_the_handlers_that_are_granted_to_it(
    tmp_path: Path, handlers: list[str], refused: str
) -> None:
    some = rules(
        {"group": OWN_GROUP, "handlers": ("mail*",)}, {"group": OTHER_GROUP, "handlers": ("*",)}
    )
    text = await greeted(tmp_path, some, handlers=handlers)
    if not refused:
        assert text == ""
    else:
        assert text.startswith(f"handler {refused} is not granted to group {OWN_GROUP} (user ")
        assert "no token" in text


@pytest.mark.parametrize(
    ("token", "is_let_in"),
    [(TOKEN, True), ("", False), (TOKEN[:-1], False), (TOKEN + "0", False), (DIGEST, False)],
)
async def test_a_token_serves_the_handlers_that_are_granted_to_it(
    tmp_path: Path, token: str, is_let_in: bool
) -> None:
    some = rules({"token_sha256": DIGEST, "handlers": ("pay",)})
    text = await greeted(tmp_path, some, handlers=["pay"], token=token)
    assert (text == "") is is_let_in
    if token:
        assert token not in text


async def test_all_that_a_rule_says_has_to_hold(tmp_path: Path) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    some = rules(
        {"token_sha256": DIGEST, "group": OTHER_GROUP, "handlers": ("a",)},
        {"token_sha256": DIGEST, "group": OWN_GROUP, "user": user, "handlers": ("b",)},
    )
    text = await greeted(tmp_path, some, handlers=["a", "b"], token=TOKEN)
    assert text.startswith("handler a is not granted")
    (tmp_path / "2").mkdir()
    assert await greeted(tmp_path / "2", some, handlers=["b"], token=TOKEN) == ""


async def test_a_hello_of_an_older_worker_has_no_token(tmp_path: Path) -> None:
    some = rules({"group": OWN_GROUP, "handlers": ("pay",)})
    async with floor(tmp_path, **some) as shop:
        puppet = await shop.stranger()
        fields = ("hello", wire.VERSION, "app", [["pay"]], 2, 2, puppet.pid, os.getpid(), 0, 0)
        body = msgspec.msgpack.encode(fields)
        puppet.send(len(body).to_bytes(4, "big") + body)
        assert isinstance(await puppet.read(), wire.Welcome)


async def test_a_token_that_is_too_long_is_no_message(tmp_path: Path) -> None:
    text = await greeted(tmp_path, {}, handlers=["pay"], token="x" * (wire.TOKEN_CHARS_MAX + 1))
    assert "is no message" in text


@pytest.mark.parametrize("one", [{"group": "no-such-group"}, {"user": "no-such-user"}])
async def test_rules_name_groups_and_users_of_this_host(one: dict[str, str]) -> None:
    with pytest.raises(BadConfig, match="no-such"):
        WorkerGrants([WorkerRule(handlers=("*",), **one)])  # type: ignore[arg-type]


async def test_the_executors_own_targets_are_let_in_by_its_own_token(tmp_path: Path) -> None:
    some = rules({"group": OTHER_GROUP, "handlers": ("*",)})
    async with floor(tmp_path, **some) as shop:
        own = shop.executor_loop.workers.grants.own_token
        assert isinstance(await shop.puppet(handlers=["mail"], token=own), Puppet)
