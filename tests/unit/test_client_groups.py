"""The library's groups, chains, lists and cancels by filter, before the service itself."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from launcher.client.aio import AsyncClient
from launcher.client.client import Client
from launcher.client.errors import (
    BadTask,
    GroupClosed,
    GroupOpen,
    NotAllSubmitted,
    NotOver,
    UnknownGroup,
    UnknownPredecessor,
)
from tests.unit.service_cell import ServiceCell
from tests.unit.tasks_world import HANDLER


@pytest.fixture
def cell() -> ServiceCell:
    return ServiceCell()


@pytest.fixture
def client(cell: ServiceCell) -> Client:
    return Client(cell=cell, timeout=60)


def test_a_task_comes_after_tasks_and_groups_however_they_are_given(client: Client) -> None:
    first = client.submit(HANDLER, key="a")
    with client.group("parts") as group:
        member = group.submit(HANDLER, key="b")
    last = client.submit(HANDLER, key="c", after=[first, group], after_any=[member.get()])
    view = last.get()
    assert view.after == [first.name, "default/parts"]
    assert (view.after_any, view.waits_for, view.state) == ([member.name], 3, "waiting")
    assert (member.get().group, first.get().group) == ("default/parts", "")
    with pytest.raises(UnknownPredecessor, match="task h:gone, which it comes after"):
        client.submit(HANDLER, after=["h:gone"])
    with pytest.raises(BadTask, match=r"after: 'h:a' is no list"):
        client.submit(HANDLER, after="h:a")


def test_a_group_is_closed_at_the_end_of_its_block_with_the_task_that_follows(
    client: Client, cell: ServiceCell
) -> None:
    with client.group("import", on_complete=(HANDLER, {"import": 42})) as group:
        tasks = group.submit_many((HANDLER, n, {"key": f"k{n}"}) for n in range(3))
        assert (group.status().state, group.status().waiting) == ("open", 3)
        with pytest.raises(GroupOpen):
            client.submit(HANDLER, after=[group])
    view = client.group_status("import")
    assert (view.state, view.on_complete) == ("closed", f"default/{HANDLER}:import.complete")
    assert client.get(view.on_complete).payload == {"import": 42}
    with pytest.raises(GroupClosed, match="takes no more tasks"):
        group.submit(HANDLER)
    with pytest.raises(NotOver, match="import is not complete after 0 s"):
        group.wait(0)
    cell.end(*(task.key for task in tasks))
    done = group.wait(60)
    assert (done.is_complete, done.succeeded, done.dropped) == (True, False, 3)
    assert group.close() == done, "a close may be repeated"


def test_a_block_that_raises_leaves_its_group_open_and_says_so(client: Client) -> None:
    group = client.group("import")

    def broken() -> None:
        with group:
            group.submit(HANDLER)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        broken()
    assert caught.value.__notes__ == [
        "group import stays open: close or cancel it, or submit the rest to it"
    ]
    assert group.status().state == "open"
    assert group.cancel() == 1
    assert group.status().is_complete


def test_a_group_of_a_tenant_is_named_with_it(cell: ServiceCell) -> None:
    client = Client(cell=cell, tenant="acme", timeout=60)
    with client.group("import", on_complete=(HANDLER, None)) as group:
        task = group.submit(HANDLER, key="a")
    assert (group.name, task.get().group) == ("acme/import", "acme/import")
    assert group.status().on_complete == f"acme/{HANDLER}:import.complete"
    other = Client(cell=cell, timeout=60).group("acme/other")
    other.submit(HANDLER)
    assert other.status().group == "acme/other"


def test_a_group_that_was_never_made_is_unknown(client: Client) -> None:
    with pytest.raises(UnknownGroup, match="group nothing does not exist"):
        client.group("nothing").close()
    with pytest.raises(BadTask, match="is not \\(handler, payload"):
        client.group("g", on_complete=HANDLER)


def test_tasks_are_listed_as_they_are_read(client: Client, cell: ServiceCell) -> None:
    client.submit_many((HANDLER, None, {"key": f"k{n:04}"}) for n in range(1_500))
    listed = client.list(queue=HANDLER)
    first = next(listed)
    assert cell.calls.count("List") == 1
    keys = [first.key, *(one.key for one in listed)]
    assert sorted(keys) == [f"k{n:04}" for n in range(1_500)]
    assert cell.calls.count("List") == 2
    assert {one.key for one in client.list(prefix="k000", state="due")} == {
        f"k{n:04}" for n in range(10)
    }
    assert [*client.list(due_to="2026-01-01T00:00:00Z")] == []
    for wanted, said in (({"que": "x"}, "que: tasks cannot"), ({"due_to": "x"}, "due_to: 'x'")):
        with pytest.raises(BadTask, match=said):
            next(client.list(**wanted))  # type: ignore[arg-type]


def test_tasks_are_cancelled_by_a_filter_after_a_look(client: Client) -> None:
    client.submit_many((HANDLER, None, {"key": f"a{n}", "labels": {"n": "1"}}) for n in range(3))
    client.submit(HANDLER, key="b")
    assert client.cancel_all(prefix="a", is_dry_run=True) == 3
    assert client.cancel_all(prefix="a") == 3
    assert client.cancel_all(prefix="a") == 0
    assert [one.key for one in client.list(state="due")] == ["b"]
    with pytest.raises(BadTask, match="fits every task"):
        client.cancel_all()


class Overtaking(ServiceCell):
    """A cell whose first call is answered after the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.overtaken = threading.Event()

    def call(self, method: str, content: bytes, *given: Any, **said: Any) -> bytes:
        first = b'"key":"k0"' in content
        if method == "Submit" and first and len(self.calls) == 0:
            self.calls.append("held")
            self.overtaken.wait(10)
        answer = super().call(method, content, *given, **said)
        self.overtaken.set()
        return answer


def test_a_chain_over_several_calls_waits_for_the_call_before() -> None:
    cell = Overtaking()
    client = Client(cell=cell, timeout=20)
    items = [
        (HANDLER, None, {"key": f"k{n}"} | ({"after": [f"{HANDLER}:k{n - 1}"]} if n else {}))
        for n in range(1_001)
    ]
    tasks = client.submit_many(items)
    assert cell.calls[:2] == ["held", "Submit"]
    assert cell.calls.count("Submit") >= 3, "the second call was made again"
    assert tasks[-1].get().after == [tasks[-2].name]
    with pytest.raises(NotAllSubmitted, match="which it comes after, does not exist"):
        client.submit_many([(HANDLER, None, {"after": [f"{HANDLER}:gone"]})])


def test_the_same_with_await(cell: ServiceCell) -> None:
    class Threaded:
        """Each call in a thread of its own loop, as a client makes it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(cell, name)

    async def told() -> None:
        async with AsyncClient(cell=Threaded(), timeout=60) as client:
            async with client.group("import", on_complete=(HANDLER, None)) as group:
                await group.submit(HANDLER, key="a")
                await group.submit_many([(HANDLER, 1, {"key": "b"})])
            assert (await client.group_status(group)).waiting == 2
            assert [one.key async for one in client.list(group=group)] == ["b", "a"]
            assert await client.cancel_all(group="import", is_dry_run=True) == 2
            assert await group.cancel() == 2
            assert (await group.wait(60)).is_complete
            assert (await group.close()).on_complete == (await group.status()).on_complete
            with pytest.raises(ValueError, match="broken") as caught:
                async with client.group("other"):
                    raise ValueError("broken")
            assert "group other stays open" in caught.value.__notes__[0]

    asyncio.run(told())


def test_what_a_cell_says_of_a_group_is_read_also_from_a_newer_one() -> None:
    from launcher.client.messages import GroupView

    content = b'{"group": "default/g", "state": "complete", "later": [1]}'
    assert msgspec.json.decode(content, type=GroupView).succeeded
