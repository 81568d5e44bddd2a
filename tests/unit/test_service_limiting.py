"""What no executor can do for jobs is said when they are applied: hold their limits of cpu and
memory, and run commands as their users. How a limit is held is said of a launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cron.api.jobs import ApplyRequest, SourceFile
from cron.api.launches import WhyRequest
from cron.scheduler.places import Capacity, Place, Places
from cron.service.catalog import put
from cron.service.executors import views_of
from cron.service.launches import of_open, with_limits
from cron.service.proofs import why
from cron.service.replica import Replica
from launcher.protocol.reports import Accounts, GroupOffer, Ordered
from launcher.protocol.status import Limiting
from launcher.protocol.work import WorkSpec
from tests.unit.pool_people_rig import FakeClock, FakeQueues
from tests.unit.state_rig import T0, StateRig, job
from tests.unit.test_service_catalog import Committing

MIB = 1 << 20
HANDLER = "mail.send"


def world(
    *memory: Limiting,
    cpu: Limiting = Limiting.NONE,
    handlers: Limiting,
    accounts: Accounts | None = None,
) -> Committing:
    """Executors e1 and so on that hold the memory of commands in these ways, and run commands as
    `accounts`."""
    rig = StateRig()
    rig.put(job("greedy", work=WorkSpec(("/bin/true",), memory_bytes=64 * MIB)))
    places = Places()
    made = Committing(rig)
    for number, how in enumerate(memory, 1):
        rig.join(f"e{number}", f"l{number}")
        greeting = SimpleNamespace(
            pid=1,
            version="1",
            incarnation="",
            cpu_limiting=cpu,
            memory_limiting=how,
            accounts=accounts,
            ordered=Ordered(),
            slots=4,
        )
        offers = (GroupOffer("web", 8, (HANDLER,), 4, handlers),)
        made.seat(f"e{number}", f"l{number}", greeting=greeting, offers=offers)
        capacities = (Capacity(4), Capacity(8, (HANDLER,)))
        labels = {"zone": f"z{number}"}
        places.put(Place.of(number, f"e{number}", f"h{number}", labels, capacities))
    queues: Any = FakeQueues()
    queues.places = places
    made.queues = queues
    return made


async def _no_rows(*_asked: object) -> list[object]:
    return []


NO_HISTORY: Any = SimpleNamespace(of_job=_no_rows)


def served(made: Any) -> Replica:
    clock: Any = FakeClock(made.rig)
    return Replica(made, made, NO_HISTORY, clock)


async def warned(made: Any, text: str) -> list[tuple[str, str]]:
    file = SourceFile("tab", text.encode())
    report = await put(served(made), ApplyRequest(files=[file], source="other"))
    assert report.applied
    return [(one.message, one.hint) for one in report.problems]


TAB = "#: name={} memory=64M\n0 3 * * *  true\n"
THREE = "".join(map(TAB.format, ("c", "a", "b", "d")))
NO_GROUPS = (
    "no executor that may run it has control groups: the processes are looked at each second, "
    "and may have more for a moment"
)
NOT_HELD = "no executor that may run it holds that: it counts only where launches are placed"
DELEGATE = "give the executor a control group of its own (systemd: Delegate=yes)"


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ((Limiting.WATCHED, Limiting.KERNEL), []),
        (
            (Limiting.WATCHED, Limiting.NONE),
            [(f"4 jobs declare memory=, and {NO_GROUPS}: a, b, c and 1 more", DELEGATE)],
        ),
        (
            (Limiting.NONE,),
            [(f"4 jobs declare memory=, and {NOT_HELD}: a, b, c and 1 more", DELEGATE)],
        ),
        (
            (Limiting.UNKNOWN,),
            [
                (
                    "4 jobs declare memory=, and no executor that may run it says how it holds "
                    "that: a, b, c and 1 more",
                    "upgrade the executors, and give them control groups of their own",
                )
            ],
        ),
        ((), []),  # that no executor may run them is another matter
    ],
)
async def test_apply_says_once_of_all_jobs_that_no_executor_holds_their_limit(
    memory: tuple[Limiting, ...], expected: list[tuple[str, str]]
) -> None:
    assert await warned(world(*memory, handlers=Limiting.NONE), THREE) == expected


async def test_only_executors_count_that_may_run_the_job() -> None:
    made = world(Limiting.WATCHED, Limiting.KERNEL, handlers=Limiting.NONE)
    tab = "#: name={0} memory=64M where=zone={0}\n0 3 * * *  true\n"
    text = f"1 job declares memory=, and {NO_GROUPS}: z1"
    assert await warned(made, tab.format("z1") + tab.format("z2")) == [(text, DELEGATE)]


@pytest.mark.parametrize("handlers", [Limiting.NONE, Limiting.WATCHED])
async def test_a_handler_is_held_where_its_worker_has_one_thread(handlers: Limiting) -> None:
    made = world(Limiting.KERNEL, cpu=Limiting.KERNEL, handlers=handlers)
    tab = f"#: name=a memory=64M handler={HANDLER}\n0 3 * * *  {{}}\n"
    hint = "give the worker processes instead of threads (--threads 1 --processes N)"
    text = f"1 job of handlers declares memory=, and {NOT_HELD}: a"
    assert await warned(made, tab) == ([(text, hint)] if handlers is Limiting.NONE else [])


async def test_a_limit_of_cpu_is_said_as_well() -> None:
    made = world(Limiting.KERNEL, cpu=Limiting.NONE, handlers=Limiting.WATCHED)
    tab = "#: name=a cpu=0.5\n0 3 * * *  true\n"
    assert await warned(made, tab) == [(f"1 job declares cpu=, and {NOT_HELD}: a", DELEGATE)]


async def test_a_launch_says_how_its_limit_is_held_by_its_executor() -> None:
    made = world(Limiting.WATCHED, handlers=Limiting.WATCHED)
    made.rig.to(60).account(60)
    made.rig.begin(60)
    row = next(iter(made.state.open_rows()))
    view = of_open(made.state, row, frozenset({1}), T0 * 1000)
    replica = served(made)
    shown = with_limits(replica, "default/greedy", view)
    assert shown.limits == "memory 64 MiB, looked at each second"
    made.seated.clear()  # it is gone: how it held the limit is not known any more
    assert with_limits(replica, "default/greedy", view).limits == "memory 64 MiB"
    made.rig.put(job("greedy", work=WorkSpec(("/bin/true",), memory_bytes=32 * MIB)))
    assert with_limits(replica, "default/greedy", view).limits == ""  # another revision


async def test_why_says_how_the_limit_of_a_launch_is_held() -> None:
    made = world(Limiting.NONE, handlers=Limiting.NONE)
    made.rig.to(60).account(60)
    made.rig.begin(60)
    made.rig.to(61)
    report = await why(served(made), WhyRequest(job="default/greedy", at_s=T0 + 60))
    assert report.verdict.endswith("; its limits: memory 64 MiB, not held")


ROOT_ALONE = Accounts("", ())
"""An executor of root whose configuration lists no users."""
TWO_USERS = "#: name=a\n0 3 * * *  true\n#: name=b user=www\n0 3 * * *  true\n"
NAMELESS = "1 job cannot run, since no executor that they fit runs commands that name no user: a"
OF_WWW = "1 job cannot run, since no executor that they fit runs commands as user www: b"


@pytest.mark.parametrize(
    ("accounts", "expected"),
    [
        (None, []),  # of an older release
        (ROOT_ALONE, [NAMELESS, OF_WWW]),
        (Accounts("", ("www",)), [NAMELESS]),
        (Accounts("raftcron", ()), [OF_WWW]),
        (Accounts("root", ("www",)), []),
    ],
)
async def test_apply_says_which_jobs_no_executor_runs_as_their_user(
    accounts: Accounts | None, expected: list[str]
) -> None:
    """All jobs of a cell failed at once, and only `why` said so."""
    made = world(Limiting.KERNEL, handlers=Limiting.NONE, accounts=accounts)
    assert [text for text, _ in await warned(made, TWO_USERS)] == expected


async def test_handlers_have_no_user_and_jobs_without_an_executor_are_another_matter() -> None:
    made = world(Limiting.KERNEL, handlers=Limiting.NONE, accounts=ROOT_ALONE)
    text = f"#: name=a handler={HANDLER}\n0 3 * * *  {{}}\n"
    assert await warned(made, f"{text}#: name=b where=zone=far\n0 3 * * *  true\n") == []


@pytest.mark.parametrize(
    ("accounts", "note"),
    [
        (None, ""),
        (Accounts("raftcron"), ""),
        (
            ROOT_ALONE,
            "commands are refused: it runs as root, and `users` of its configuration lists",
        ),
        (
            Accounts("", ("www",)),
            "commands without user= are refused: it runs as root, and `users` does",
        ),
    ],
)
def test_an_executor_that_refuses_commands_says_so(accounts: Accounts | None, note: str) -> None:
    made = world(Limiting.KERNEL, handlers=Limiting.NONE, accounts=accounts)
    (view,) = views_of(made.state, made.state.executors.values(), made.seated)
    assert view.refuses_commands == (accounts == ROOT_ALONE)
    assert view.note.startswith(note) if note else view.note == ""
