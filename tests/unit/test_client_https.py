"""A program with a token and the authority's file alone, at the HTTPS of a real replica."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cron.access import Role
from cron.api.groups import TaskGroupView
from cron.api.tasks import TaskChange, TasksPage, TasksReport, TaskView
from cron.errors import NoQuorum, OutcomeUnknown, UnknownTask
from launcher.client import cell, errors
from launcher.client.client import Client
from launcher.client.https import request_of
from tests.fakes.ports import free_address
from tests.unit.api_rig import FakeBackend
from tests.unit.certs_rig import Certs
from tests.unit.https_rig import HttpsSite

VIEW = TaskView(task="acme/mail:a", state="waiting", revision=3)


@pytest.fixture
def door(tmp_path: Path) -> HttpsSite:
    return HttpsSite(tmp_path)


async def test_a_token_alone_submits_and_asks_about_tasks(door: HttpsSite) -> None:
    door.backend.answers |= {
        "get": VIEW,
        "cancel": TasksReport(count=1, tasks=[VIEW]),
        "reschedule": VIEW,
        "run_now": TasksReport(count=1, tasks=[VIEW]),
        "list": TasksPage(tasks=[VIEW]),
        "reschedule_many": TasksReport(count=1, tasks=[VIEW]),
        "get_many": TasksReport(count=1, tasks=[VIEW]),
        "get_group": TaskGroupView(group="acme/g", state="open"),
        "watch": [TaskChange(position="7"), TaskChange(position="8.0", task=VIEW)],
    }

    def work(client: Client) -> None:
        first, second = client.submit_many([("mail", {"n": n}, {"key": f"k{n}"}) for n in (1, 2)])
        assert (first.name, second.is_new) == ("default/mail:k1", True)
        assert client.get("acme/mail:a").revision == 3
        assert client.cancel("acme/mail:a").state == "waiting"
        assert client.run_now("mail:a").task == VIEW.task
        assert client.reschedule("mail:a", delay="1h", payload=[1]).task == VIEW.task
        again = [("acme/mail:a", {"priority": 2}), ("acme/mail:a", {"at": "2126-01-01T00:00Z"})]
        assert [one.task for one in client.reschedule_many(again)] == [VIEW.task] * 2
        with pytest.raises(errors.NotAllChanged, match="says nothing of it"):
            client.cancel_many(["acme/mail:b", "acme/mail:c"])
        assert [one.task for one in client.list(queue="mail", state="waiting")] == [VIEW.task]
        assert client.group_status("acme/g").state == "open"
        assert next(client.watch(queue="mail")).position == "8.0"

    async with door.serves() as one:
        await door.asks(one, what=work)
    asked = {name: request for name, (request,) in door.backend.calls}
    assert asked["get"].name == "acme/mail:a"
    assert (asked["reschedule"].name, asked["reschedule"].delay_ms) == ("default/mail:a", 3_600_000)
    assert asked["get_many"].names == ["acme/mail:b", "acme/mail:c"]
    assert asked["list"].filter.queue == asked["watch"].filter.queue == "default/mail"
    assert asked["submit"].by == "ci", "as the token says"


async def test_the_next_replica_is_asked_where_one_is_gone_or_knows_no_leader(
    door: HttpsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_request: Any) -> Any:
        raise NoQuorum("no leader within 2 s", "try again")

    async with door.serves(FakeBackend(submit=refuses)) as lost, door.serves() as one:
        made = await door.asks(
            free_address(), lost, one, what=lambda it: it.submit("mail", key="k")
        )
        assert made.name == "default/mail:k"
        looks = itertools.count(time.monotonic(), 5.0)  # each at the clock takes five seconds
        monkeypatch.setattr(cell, "time", SimpleNamespace(monotonic=lambda: next(looks)))
        with pytest.raises(errors.Unavailable, match="no leader within 2 s"):
            await door.asks(lost, what=lambda it: it.submit("mail"))


async def test_refusals_are_errors_of_the_library(door: HttpsSite) -> None:
    def unknown(_request: Any) -> Any:
        raise UnknownTask("there is no task mail:a", "list them")

    def lost(_request: Any) -> Any:
        raise OutcomeUnknown("it took too long")

    door.backend.answers |= {"get": unknown, "reschedule": lost}
    async with door.serves() as one:
        with pytest.raises(errors.UnknownTask, match="no task mail:a") as caught:
            await door.asks(one, what=lambda it: it.get("mail:a"))
        assert caught.value.hint == "list them"
        with pytest.raises(errors.OutcomeUnknown, match="it took too long"):
            await door.asks(one, what=lambda it: it.reschedule("mail:a", delay=1))
        with pytest.raises(errors.Denied):
            await door.asks(one, what=lambda it: it.submit("mail"), token="rct_unknown")
        calls = len(door.backend.calls)
        viewer = door.world.token(Role.VIEWER, name="sees")
        with pytest.raises(errors.Denied, match="may not"):
            await door.asks(one, what=lambda it: it.submit("mail"), token=viewer)
        assert len(door.backend.calls) == calls


async def test_https_addresses_are_asked_over_https_also_beside_a_certificate(
    door: HttpsSite,
) -> None:
    for name in ("cert.pem", "key.pem"):
        (door.folder / name).write_text("not looked at")
    async with door.serves() as one, door.serves() as two:
        places = [f"https://127.0.0.1:{one.port}", f"https://127.0.0.1:{two.port}/"]
        made = await door.asks(*places, what=lambda it: it.submit("mail", key="k"))
    assert made.name == "default/mail:k"


@pytest.mark.parametrize(
    ("server", "tls", "token", "why"),
    [
        ("https://r1:7480", "", "rct_1", "https:// needs the file of the cell's authority"),
        ("https://r1:7480", "here", "", "https:// needs a token"),
        ("https://r1:7480,r2:7480", "here", "rct_1", "some servers are https:// and others not"),
        ("https://r1:7480/v1", "here", "rct_1", "is not host:port"),
        ("http://r1:7480", "here", "rct_1", "is not host:port"),
    ],
)
def test_an_https_address_says_what_it_needs(
    tmp_path: Path, server: str, tls: str, token: str, why: str
) -> None:
    (tmp_path / "ca.pem").touch()
    with pytest.raises(errors.BadTask, match=why) as caught:
        Client(server, tls=str(tmp_path) if tls else "", token=token)
    assert caught.value.hint


async def test_a_replica_of_another_authority_is_not_trusted(
    door: HttpsSite, tmp_path: Path
) -> None:
    theirs = Certs(tmp_path / "theirs").authority("theirs")
    shutil.copy(theirs / "ca.pem", door.folder)
    async with door.serves() as one:
        with pytest.raises(errors.Denied, match="certificate is refused"):
            await door.asks(one, what=lambda it: it.submit("mail"))
    assert door.backend.calls == []


def test_what_a_call_is_in_http() -> None:
    content = json.dumps({"names": ["a"], "by": "ada"}).encode()
    assert request_of("Cancel", content) == ("POST", "/v1/tasks/cancel", content)
    said = {"filter": {"queue": "a b", "state": ""}, "page": "", "limit": 9}
    listed = request_of("List", json.dumps(said).encode())
    assert listed == ("GET", "/v1/tasks?limit=9&queue=a+b", b"")
    named = request_of("GetMany", b'{"names": ["q:a", "acme/q:b"]}')
    assert named == ("GET", "/v1/tasks/named?names=q%3Aa&names=acme%2Fq%3Ab", b"")
    group = request_of("CancelGroup", b'{"name": "acme/g", "by": "ada", "page": "p"}')
    assert group == ("DELETE", "/v1/groups/acme/g?page=p", b"")
    with pytest.raises(errors.TaskError, match="PutJobs"):
        request_of("PutJobs", b"{}")
