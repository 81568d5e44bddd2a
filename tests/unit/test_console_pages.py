"""The pages of the console, each with what a cell may have, and with names that mean something to
HTML, URLs and SVG."""

from __future__ import annotations

import itertools
import re
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from cron.alert_rules import AlertKind
from cron.api.access import ChangesReport, ChangeView, FieldView
from cron.api.alerts import (
    AlertsReport,
    AlertView,
    ChannelView,
    DeliveryView,
    MuteView,
    RuleView,
)
from cron.api.dead import DeadQuery, DeadReport
from cron.api.executors import (
    DuplicateIdView,
    ExecutorDetail,
    ExecutorReport,
    ExecutorsReport,
    ExecutorView,
    GroupView,
)
from cron.api.gates import GatesReport, GateView
from cron.api.graphs import GraphEdge, GraphNode, TaskGraph
from cron.api.groups import GroupsPage, TaskGroupView
from cron.api.jobs import JobNeeds, JobView, NextTimes, RevisionsReport, RevisionView
from cron.api.launches import LaunchView, OutputView, StoryLine, WhyReport
from cron.api.limits import LimitsReport, LimitView
from cron.api.members import OverloadView, StatusReport, StatusRow
from cron.api.overview import JobEntry, JobPage
from cron.api.queues import QueuesReport, QueueView, WaitsReport
from cron.api.snapshots import KeepingView
from cron.api.task_queues import TaskQueuesReport, TaskQueueView
from cron.api.tasks import TaskListQuery, TasksPage, TaskView
from cron.errors import NotLeader, Unavailable, UnknownJob, UnknownLaunch
from cron.web.console.alerts import found, subject_link
from launcher.protocol.names import NAME_PART_CHARS_MAX
from tests.unit.api_rig import NOON_S, FakeBackend, launch
from tests.unit.console_rig import HOSTILE, Browser, Reader, backend, check_sound
from tests.unit.web_rig import WALL_MS, Said, site

BYTES_MAX = 100_000


def job(name: str = "acme/mail", text: str = "mail", **fields: Any) -> JobView:
    said: dict[str, Any] = {
        "schedule": "30 6 * * MON-FRI",
        "resolved": "30 6 * * 1-5",
        "zone": "Europe/Berlin",
        "next_s": [NOON_S + 60],
        "command": text,
        "source": text,
        "user": text,
        "cwd": text,
        "pause_reason": text,
        "changed_by": text,
        "last": launch(detail=text),
        "needs": JobNeeds(collection=text, where=text, dead=2),
        "deadline_s": 300,
    }
    return JobView(name=name, **(said | fields))


def launches(count: int, text: str = "") -> list[LaunchView]:
    states = ["succeeded", "failed", "lost", "skipped", "cancelled"]
    return [
        launch(
            launch=f"acme/mail@2026-11-20T{15 - n // 60:02}:{59 - n % 60:02}:00Z",
            scheduled_s=NOON_S - 60 * n,
            state=states[n % 5],
            detail=text,
            executor=text,
            by=text,
        )
        for n in range(count)
    ]


def full(text: str) -> FakeBackend:
    """A cell in which everything has a row, with a text wherever a text may come from outside."""
    return backend(
        **of_the_cell(text),
        job_page=JobPage(
            jobs=[JobEntry(job=job(text=text), outcomes=["failed", "succeeded"] * 25)],
            total=3,
            next="acme/mail",
            tenants=["acme", text],
            sources=[text],
        ),
        jobs=[job(text=text, paused=True, held=text)],
        history=lambda asked: launches(min(120, asked.limit), text),
        next=NextTimes(job="acme/mail", schedule=text, times_s=[NOON_S, NOON_S + 60]),
        waits=WaitsReport(waits=launches(8, text), total=900, now_ms=WALL_MS),
        job_revisions=RevisionsReport(
            job="acme/mail",
            revision=3,
            revisions=[
                RevisionView(revision=9, schedule=text, command=text, by=text, current=True),
                RevisionView(revision=3, schedule=text, command=text, by=text, at_ms=WALL_MS),
            ],
            fields=[FieldView(text, text, text)],
        ),
        changes=ChangesReport(
            changes=[
                ChangeView(
                    at_ms=WALL_MS,
                    index=3,
                    by=text,
                    origin=text,
                    action=text,
                    object=text,
                    before=text,
                    after=text,
                    fields=[FieldView(text, text, text)],
                )
            ]
        ),
        output=OutputView(content=f"{text}\x1b[31mred\x1b[0m\x00\xff".encode(), note=text, size=99),
        show=[
            launch(
                detail=text,
                executor=text,
                by=text,
                is_open=True,
                waiting=text,
                parts=[launch(part=1, detail=text, executor=text)],
            )
        ],
        why=WhyReport(job="acme/mail", at_s=NOON_S, verdict=text, story=[StoryLine(WALL_MS, text)]),
    )


def of_the_cell(text: str) -> dict[str, Any]:
    """Answers about everything but jobs and their launches."""
    letters = [launch(detail=text, executor=text, state="failed", tries=3)]
    task = TaskView(
        task="acme/mail:k", queue="acme/mail", key="k", handler=text, state="waiting",
        at_ms=WALL_MS, reason=text, by=text, result=text, payload={text: text},
        labels={text: text}, revision=12, attempts=launches(2, text),
        launch="acme/mail:k@2026-11-20T15:00:00Z",
    )  # fmt: skip
    group = TaskGroupView(group="acme/import", state="closed", failed=2, by=text)
    return {
        "alerts": alerts_with(text),
        "queues": QueuesReport(
            queues=[QueueView(pool=text, tenant=text, waiting=9, oldest_ms=5, blocked_by=text)],
            now_ms=WALL_MS,
        ),
        "limits": LimitsReport(
            limits=[LimitView(tenant="*", pool=text, weight=3, rate_milli=1500)]
        ),
        "gates": GatesReport(
            gates=[GateView(number=7, action="pause", reason=text, by=text, jobs=text)]
        ),
        **executors_with(text),
        "dead": DeadReport(letters=letters, total=1),
        "list": TasksPage(tasks=[task], next=text),
        "list_queues": TaskQueuesReport(
            queues=[TaskQueueView(queue="acme/mail", handler=text, source=text, notes=[text])]
        ),
        "get": task,
        "get_group": group,
        "task_graph": graph_with(text),
        "list_groups": GroupsPage(groups=[group]),
        "status": StatusReport(
            rows=[
                StatusRow(
                    kind="replica",
                    id=f"r{n}",
                    role="leader" if n == 1 else "unreachable",
                    note=text,
                    address=text,
                    version=text,
                    tzdata=text,
                    applied=3,
                    digest="ab",
                    keeping=KeepingView(store=text, failing=text),
                    overload=OverloadView(since_s=NOON_S, queue=text) if n == 1 else None,
                )
                for n in (1, 2)
            ]
        ),
    }


def executors_with(text: str) -> dict[str, Any]:
    return {
        "executors": ExecutorsReport(
            executors=[
                ExecutorView(
                    id="e1",
                    role="connected",
                    host=text,
                    labels=[text],
                    note=text,
                    groups=[GroupView(group=text, handlers=[text])],
                )
            ],
            duplicate_ids=[DuplicateIdView(executor=text, host=text, held_by=text)],
        ),
        "executor": ExecutorReport(
            details=[
                ExecutorDetail(
                    executor=ExecutorView(
                        id="e1",
                        role="connected",
                        host=text,
                        labels=[text],
                        note=text,
                        silent_ms=2_000,
                        groups=[GroupView(group=text, handlers=[text])],
                        open=3,
                    ),
                    runs=launches(2, text),
                )
            ]
        ),
    }


def alerts_with(text: str) -> AlertsReport:
    firing = AlertView(
        number=3, rule=text, when="late:10m", subject=f"acme/{text}", since_ms=WALL_MS, value=700,
        launches=[f"acme/{text}@2026-11-20T15:00:00Z"], is_told=True,
        deliveries=[
            DeliveryView(channel=text, state="gathered"),
            DeliveryView(
                channel="ops", state="waiting", task="raftcron/alerts:3-firing-ops", detail=text
            ),
        ],
    )  # fmt: skip
    over = msgspec.structs.replace(firing, number=2, state="resolved", ended_ms=WALL_MS, by=text)
    return AlertsReport(
        firing=[firing, msgspec.structs.replace(firing, is_muted=True, when="gate-open:1h")],
        closed=[over],
        firing_count=2,
        closed_count=9,
        mutes=[MuteView(number=4, pattern=text, until_ms=WALL_MS + 1, by=text, reason=text)],
        rules=[RuleView(name=text, when="failed:2", subjects=[text], to=[text])],
        channels=[
            ChannelView(name="ops", kind="mail", to=[text]),
            ChannelView(name=text, kind="heartbeat"),
        ],
    )


def graph_with(text: str) -> TaskGraph:
    return TaskGraph(
        nodes=[
            GraphNode(name="acme/import", is_group=True, state="closed", total=3),
            GraphNode(name=f"acme/mail:{text}", state="waiting"),
            GraphNode(name="acme/mail:k", state=text),
        ],
        edges=[
            GraphEdge("acme/import", f"acme/mail:{text}", "after-any"),
            GraphEdge("acme/mail:k", "acme/import", "member"),
        ],
    )


PAGES = [
    "/", "/jobs", "/jobs?text=x&state=paused", "/jobs/acme/mail",
    "/launches/acme/mail@2026-11-20T15:00:00Z", "/queues",
    "/executors", "/executors/e1", "/dead", "/tasks", "/tasks/acme/mail:k", "/groups/acme/import",
    "/alerts", "/cell",
]  # fmt: skip


async def page_of(path: str, of: FakeBackend) -> tuple[Said, Reader]:
    async with site(of, has_console=True) as served:
        browser = Browser(served)
        said = await browser.get(path)
    return said, check_sound(browser.page)


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_shows_whatever_a_job_says_as_text(path: str) -> None:
    said, read = await page_of(path, full(HOSTILE))
    assert said.status == 200
    assert len(said.body) < BYTES_MAX
    assert b"<script>alert" not in said.body
    assert "<script>alert(1)</script>" in read.text


LONG = "n" * NAME_PART_CHARS_MAX


def longest(text: str, count: int, **fields: Any) -> list[LaunchView]:
    """Launches with the longest names and texts."""
    fields = {"launch": f"acme/{LONG}@2026-11-20T15:00:00Z", "waiting": text, **fields}
    return [msgspec.structs.replace(one, **fields) for one in launches(count, text)]


def most(of: FakeBackend, text: str) -> FakeBackend:
    """The same cell with as many rows as pages ask for, each with its longest texts."""
    answers = of.answers
    known = answers["jobs"][0]
    needs = msgspec.structs.replace(known.needs, payload=text, handler="")
    one_job = msgspec.structs.replace(
        known, name=f"acme/{LONG}", command=text * 4, needs=needs, alerts=[text] * 20
    )
    entry = JobEntry(job=one_job, outcomes=["failed", "succeeded"] * 25)
    (plain,) = answers["show"]
    plain = msgspec.structs.replace(plain, parts=plain.parts * 100, exit_code=None)
    diff = [FieldView(text, text, text)] * 9
    change = msgspec.structs.replace(answers["changes"].changes[0], fields=diff)
    answers |= {
        "job_page": JobPage(
            jobs=[entry] * 25,
            total=99,
            next="acme/z",
            tenants=[LONG] * 100,
            sources=[text[:255]] * 100,
        ),
        "jobs": [one_job],
        "history": lambda asked: longest(text, min(120, asked.limit), reason="missed"),
        "waits": WaitsReport(waits=longest(text, 8), total=900),
        "job_revisions": msgspec.structs.replace(
            answers["job_revisions"],
            revisions=answers["job_revisions"].revisions * 30,
            fields=answers["job_revisions"].fields * 30,
        ),
        "changes": ChangesReport(changes=[change] * 30),
        "output": OutputView(content=b'"' * 49_152, size=1 << 20),
        "show": [plain] * 60,
        "why": WhyReport(
            job="acme/mail", at_s=NOON_S, verdict=text, story=[StoryLine(WALL_MS, text)] * 300
        ),
        **most_of_the_cell(answers, text),
    }
    return of


def most_of_the_cell(answers: dict[str, Any], text: str) -> dict[str, Any]:
    """Answers about everything but jobs and their launches."""
    alerts, executors, row = answers["alerts"], answers["executors"], answers["status"].rows[1]
    fires = msgspec.structs.replace(alerts.firing[0], subject=f"acme/{LONG}", rule=text)
    firing = [fires] * 200
    (known,) = executors.executors
    executor = msgspec.structs.replace(known, id=LONG, labels=[text] * 64, groups=known.groups * 9)
    task = msgspec.structs.replace(
        answers["get"],
        task=f"acme/{LONG}:k",
        after=[f"acme/{LONG}:{n}" for n in range(99)],
        attempts=longest(text, 50),
        payload={text: text},
        labels={f"{text[:99]}{n}": text for n in range(32)},
    )
    nodes = [GraphNode(name=f"acme/{LONG}:{n}", state="waiting") for n in range(200)]
    return {
        "alerts": msgspec.structs.replace(
            alerts, firing=firing, closed=firing, firing_count=200, closed_count=200,
            mutes=alerts.mutes * 1000, rules=alerts.rules * 1000, channels=alerts.channels * 50,
        ),
        "queues": QueuesReport(queues=answers["queues"].queues * 300, now_ms=WALL_MS),
        "limits": LimitsReport(limits=answers["limits"].limits * 300),
        "gates": GatesReport(gates=[GateView(number=n, reason=text, by=text, jobs=text)
                                    for n in range(300)]),
        "executors": ExecutorsReport(executors=[executor] * 100,
                                     duplicate_ids=executors.duplicate_ids * 300),
        "executor": ExecutorReport(
            details=[ExecutorDetail(executor=msgspec.structs.replace(executor, labels=["a=b"] * 64),
                                    runs=longest(text, 100))]
        ),
        "dead": DeadReport(letters=longest(text, 50, tries=3), total=9_999),
        "list": TasksPage(tasks=[task] * 50, next="x"),
        "list_queues": TaskQueuesReport(queues=answers["list_queues"].queues * 200),
        "list_groups": GroupsPage(groups=answers["list_groups"].groups * 20, next="x"),
        "get": task,
        "task_graph": TaskGraph(nodes=nodes, edges=[
            GraphEdge(one.name, two.name) for one, two in itertools.pairwise(nodes)
        ]),
        "status": StatusReport(rows=[*answers["status"].rows, row, row]),
    }  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("text", ['"' * 2_000, "ß" * 2_000], ids=["quotation marks", "letters"])
async def test_a_page_is_below_100_kb_whatever_its_rows_say(path: str, text: str) -> None:
    said, _ = await page_of(path, most(full(text), text))
    assert said.status == 200
    assert len(said.body) < BYTES_MAX


async def test_a_page_says_what_it_has_no_room_for_and_where_that_is() -> None:
    of = most(full("plain"), '"' * 2_000)
    _, read = await page_of("/launches/acme/mail@2026-11-20T15:00:00Z", of)
    assert re.search(r"the first \d+\.\d KiB are not shown, raftcron logs prints all", read.text)
    _, read = await page_of("/jobs/acme/mail", of)
    assert "The whole command has 8,000 characters: raftcron jobs show" in read.text
    _, read = await page_of("/cell", of)
    assert re.search(r"\d+ more would make this page too large; raftcron changes", read.text)


async def test_the_next_page_of_jobs_goes_on_behind_the_last_row_that_had_room() -> None:
    of = most(full("plain"), '"' * 2_000)
    page = of.answers["job_page"]
    names = [f"acme/{number:02}{'n' * 280}" for number in range(25)]
    entries = [
        msgspec.structs.replace(one, job=msgspec.structs.replace(one.job, name=name))
        for one, name in zip(page.jobs, names, strict=True)
    ]
    of.answers["job_page"] = msgspec.structs.replace(page, jobs=entries, next="")
    said, read = await page_of("/jobs?text=n", of)
    shown = [name for name in names if f'value="{name}"' in said.body.decode()]
    assert 0 < len(shown) < 25
    (following,) = [attrs["href"] for _, attrs in read.tags if attrs.get("rel") == "next"]
    assert following == f"/jobs?text=n&after={quote(shown[-1])}"


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_stands_without_what_only_the_leader_knows(path: str) -> None:
    of = full("plain")
    for name in ("queues", "executors", "executor", "waits", "output", "status"):
        of.answers[name] = NotLeader(None)
    for name in ("activity", "changes", "why", "next", "limits", "gates"):
        of.answers[name] = Unavailable("history cannot be read", "ask another replica")
    said, _ = await page_of(path, of)
    assert said.status == 200


@pytest.mark.parametrize("path", [f"{path}{HOSTILE}" for path in ("/jobs/", "/launches/")])
async def test_a_name_that_is_none_is_not_found(path: str) -> None:
    said, _ = await page_of(quote(path), full("plain"))
    assert said.status == 404


async def test_what_does_not_exist_is_not_found() -> None:
    of = full("plain")
    of.answers |= {"jobs": UnknownJob("no such job"), "show": UnknownLaunch("no such launch")}
    assert (await page_of("/jobs/acme/mail", of))[0].status == 404
    assert (await page_of("/launches/acme/mail@2026-11-20T15:00:00Z", of))[0].status == 404


async def test_the_page_of_a_job_says_when_it_is_due_in_words_and_in_its_zone() -> None:
    _, read = await page_of("/jobs/acme/mail", full("plain"))
    assert "At 06:30 from Monday to Friday, Europe/Berlin time." in read.text
    assert "User plain Directory plain Overlap" in read.text
    assert "2026-11-20 15:00:00 Fri 2026-11-20 16:00:00 CET" in read.text
    assert "Duration: median 1.5 s" in read.text
    assert "Revision Applied, UTC By Schedule Command Act 9" in read.text
    assert "From revision 3 to what it is now plain plain → plain" in read.text


async def test_the_page_of_a_launch_shows_both_log_points_and_harmless_output() -> None:
    said, read = await page_of("/launches/acme/mail@2026-11-20T15:00:00Z", full("plain"))
    assert "entry 88" in read.text
    assert "entry 89" in read.text
    assert "plain␛[31mred␛[0m␀ÿ" in read.text
    assert b"\x1b" not in said.body
    assert b"\x00" not in said.body


async def test_queues_show_first_what_is_held_back() -> None:
    of = full("plain")
    of.answers["queues"] = QueuesReport(
        queues=[
            QueueView(pool="idle", waiting=1),
            QueueView(pool="held", waiting=9, blocked_by="gate 7"),
        ]
    )
    _, read = await page_of("/queues", of)
    assert read.text.index("held") < read.text.index("idle")


async def test_the_page_of_the_cell_points_out_what_is_wrong() -> None:
    of = full("plain")
    rows = [
        StatusRow(kind="replica", id="r1", role="leader", applied=5, digest="aa", version="1"),
        StatusRow(kind="replica", id="r2", role="follower", applied=5, digest="bb", version="2",
                  clock_offset_ms=-4000),
        StatusRow(kind="replica", id="r3", role="unreachable"),
    ]  # fmt: skip
    of.answers["status"] = rows
    _, read = await page_of("/cell", of)
    for note in (
        "2 of 3 replicas answer; r3 does not.",
        "The replicas run several versions: 1, 2.",
        "The clock of r2 is off by -4000 ms.",
        "different state. This is a bug.",
    ):
        assert note in read.text


async def test_a_replica_that_the_cell_does_not_have_yet_is_not_missed() -> None:
    of = full("plain")
    grow = "it is no replica of the cell yet: `raftcron cell grow r3` adds it"
    of.answers["status"] = [
        StatusRow(kind="replica", id="r1", role="leader", member_state="votes"),
        StatusRow(kind="replica", id="r2", role="unreachable", member_state="votes"),
        StatusRow(kind="replica", id="r3", role="unreachable", note=grow),
    ]
    _, read = await page_of("/cell", of)
    assert "1 of 2 replicas answer; r2 does not." in read.text
    assert "raftcron cell grow r3" in read.text


async def test_the_page_of_the_cell_compares_states_only_at_one_entry_and_says_nothing_twice() -> (
    None
):
    of = full("plain")
    overload = OverloadView(since_s=NOON_S, queue="queue command/5 of tenant acme", skipped=7)
    note = "took over from r2; overloaded since 15:00: more falls due; 7 are skipped/overload"
    of.answers["status"] = [
        StatusRow(kind="replica", id="r1", role="leader", applied=5, digest="aa", note=note,
                  overload=overload),
        StatusRow(kind="replica", id="r2", role="follower", applied=5, digest="aa"),
        StatusRow(kind="replica", id="r3", role="follower", applied=4, digest="bb"),
    ]  # fmt: skip
    _, read = await page_of("/cell", of)
    assert "same state" in read.text
    assert "1 entry behind when asked" in read.text
    assert "in the pool command, priority 5, by jobs of tenant acme. 7 instants" in read.text
    assert "r1: took over from r2 Snapshots" in read.text


async def test_the_page_of_the_cell_tells_when_certificates_end() -> None:
    of, day_ms = full("plain"), 86_400_000
    of.answers["status"] = [
        StatusRow(
            kind="replica",
            id=name,
            role="follower",
            certificate_ends_ms=WALL_MS + days * day_ms,
            authority_ends_ms=WALL_MS + 700 * day_ms,
        )
        for name, days in (("r1", 40), ("r2", 3), ("r3", -1))
    ]
    _, read = await page_of("/cell", of)
    assert "The certificate of r2 ends in 3 d." in read.text
    assert "The certificate of r3 ended 1 d ago." in read.text
    assert "The certificate of r1" not in read.text
    assert "2026-12-30 15:00:00 in 40 d" in read.text
    of.answers["executors"] = ExecutorsReport(
        executors=[
            ExecutorView(id=f"e{days}", certificate_ends_ms=WALL_MS + days * day_ms)
            for days in (90, 9, 5)
        ]
    )
    _, read = await page_of("/cell", of)
    first = "The certificate of e5 ends in 5 d. Those of 1 other executors end soon, too."
    assert first in read.text
    _, read = await page_of("/executors", of)
    assert "in 90 d" in read.text
    of.answers["status"] = [StatusRow(kind="replica", id="r1", role="leader")]
    _, read = await page_of("/cell", of)
    assert "Certificates" not in read.text


async def test_a_queue_tells_why_its_oldest_launch_waits_and_names_its_gates() -> None:
    of, name = full("plain"), "acme/mail@2026-11-20T14:58:00Z"
    waiting = QueueView(
        pool="command",
        priority=5,
        tenant="acme",
        waiting=3,
        oldest_ms=WALL_MS - 120_000,
        oldest=name,
        why="gate 7, closed by ada",
        gates=[7],
    )
    of.answers["queues"] = QueuesReport(queues=[waiting], now_ms=WALL_MS)
    said, read = await page_of("/queues", of)
    warning = "The oldest launch of acme in command, priority 5, waits for 2 min: gate 7, closed by"
    assert warning in read.text
    assert f'href="/launches/{name}">2 min' in said.body.decode()
    assert ('href="#gate-7"' in said.body.decode(), 'id="gate-7"' in said.body.decode()) == (
        True,
        True,
    )


async def test_the_page_of_a_dead_letter_has_a_button_instead_of_a_command() -> None:
    of, name = full("plain"), "acme/mail@2026-11-20T15:00:00Z"
    verdict = (
        f"it failed; it became a dead letter, and `raftcron dead redrive '{name}'` launches it"
    )
    of.answers |= {
        "show": [launch(launch=name, state="failed")],
        "why": WhyReport(job="acme/mail", at_s=NOON_S, verdict=f"{verdict} again"),
    }
    _, read = await page_of(f"/launches/{name}", of)
    assert "it became a dead letter Launch it again" in read.text
    assert "raftcron dead" not in read.text
    of.answers["dead"] = DeadReport()
    _, read = await page_of(f"/launches/{name}", of)
    assert "Launch this instant again" in read.text


async def test_the_story_of_a_launch_is_told_without_words_of_the_cells_own() -> None:
    of, name = full("plain"), "acme/mail@2026-11-20T15:00:00Z"
    story = [
        StoryLine(WALL_MS, "attempt 1: log point 1 committed at index 88 by r2"),
        StoryLine(WALL_MS, "log point 2 committed at index 89: it was started"),
        StoryLine(WALL_MS, "failed: exit code 2; recorded at index 90"),
    ]
    needs = JobNeeds(fatal_codes=[2])
    of.answers |= {
        "why": WhyReport(job="acme/mail", at_s=NOON_S, verdict="it failed", story=story),
        "show": [launch(launch=name, state="failed", exit_code=2)],
        "jobs": [msgspec.structs.replace(of.answers["jobs"][0], needs=needs)],
    }
    _, read = await page_of(f"/launches/{name}", of)
    for said in (
        "attempt 1: begun (entry 88 of the log) by r2",
        "known to be started (entry 89 of the log)",
        "failed: exit code 2 (entry 90 of the log)",
        "Its job says fatal-on=2 : after exit code 2 a launch is given up at once",
    ):
        assert said in read.text


async def test_a_young_cell_has_a_figure_of_its_few_minutes() -> None:
    of = full("plain")
    _, read = await page_of("/", of)
    assert "launches per minute from 14:56 to 15:01 UTC: 7 succeeded, 2 did not" in read.text
    assert "The last day" not in read.text


async def test_now_shows_what_fires_and_links_to_what_it_is_about() -> None:
    of = full("plain")
    _, read = await page_of("/", of)
    assert "Alerts that fire 2 in all" in read.text
    assert "a launch is more than 10m late rule plain 11 min 40 s" in read.text, "700 s"
    said, read = await page_of("/alerts", of)
    assert "ops waiting plain" in read.text
    assert b'href="/tasks/raftcron/alerts:3-firing-ops"' in said.body
    of.answers["alerts"] = AlertsReport()
    _, read = await page_of("/", of)
    assert "Alerts that fire" not in read.text
    of.answers["alerts"] = Unavailable("no", "")
    assert (await page_of("/", of))[0].status == 200


@pytest.mark.parametrize(
    ("when", "value", "text"),
    [("failed:2", 3, "3 failures"), ("dead", 1, "1 dead letter"), ("late:10m", 700, "11 min 40 s"),
     ("clock-off:2s", 2_500, "2.5 s"), ("disk-filling:90%", 93, "93 %"), ("missed", 0, "")],
)  # fmt: skip
def test_what_a_rule_found_is_said_in_its_unit(when: str, value: int, text: str) -> None:
    assert found(when, value) == text


SUBJECTS = ["acme/mail", "acme/mail & more:50%?", "acme/größe"]


@pytest.mark.parametrize("kind", AlertKind)
async def test_each_kind_of_alert_leads_to_a_page_that_is_there(kind: AlertKind) -> None:
    of = full("plain")
    subjects = ["raftcron/r2"] if kind.is_of_cell else SUBJECTS
    asked: list[str] = []

    def listed(query: TaskListQuery) -> TasksPage:
        asked.append(query.filter.queue)
        return TasksPage()

    of.answers["list"] = listed
    for subject in subjects:
        address = subject_link(subject, f"{kind.label}:5m")
        assert re.fullmatch(r"/[\w./?=%:+&-]*", address, re.ASCII), address
        if subject == "acme/größe" and address.startswith("/jobs/"):
            continue  # no job has such a name
        said, _ = await page_of(address, of)
        assert said.status in (200, 400), address
        assert said.status == 200 or subject != "acme/mail"
    if kind is AlertKind.QUEUE_OLDER:
        assert asked[0] == "acme/mail"


async def test_dead_letters_of_a_queue_of_tasks_are_found_by_the_name_of_the_queue() -> None:
    of = full("plain")
    letter = launch(launch="shop/invoice:order-7@2026-11-20T15:00:00Z", state="failed")

    def dead(query: DeadQuery) -> DeadReport:
        is_of_queue = query.queue == "shop/invoice"
        return DeadReport(letters=[letter], total=1) if is_of_queue else DeadReport()

    of.answers["dead"] = dead
    said, read = await page_of(subject_link("shop/invoice", "dead"), of)
    assert said.status == 200
    assert "shop/invoice:order-7" in read.text
    # What the page's buttons change is what it shows.
    assert 'name="queue" value="shop/invoice"' in said.body.decode()


async def test_the_page_of_dead_letters_says_how_many_the_cell_itself_has() -> None:
    of = full("plain")
    of.answers["dead"] = DeadReport(own=3)
    assert "The cell itself has 3 more" in (await page_of("/dead", of))[1].text
