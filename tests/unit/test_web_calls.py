"""cron.web: a call as HTTP, from the path to the Backend and back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from consensus.cell import Joining
from consensus.leadership import Freshness, Leadership
from cron.api.calls import PAGE_ROWS
from cron.api.dead import DeadChange, DeadOutcome, DeadQuery
from cron.api.gates import GatesReport
from cron.api.jobs import ApplyReport, PauseReport, RemoveReport
from cron.api.launches import AuditReport, HistoryCursor, HistoryQuery, OutputView, TriggerRequest
from cron.api.limits import LimitView
from cron.api.members import StatusRow
from cron.api.readiness import Readiness
from cron.api.reading import Behind, current
from cron.api.rpc import Where
from cron.api.status import TABLE as CODES
from cron.api.table import TABLE
from cron.api.tasks import (
    CancelRequest,
    RescheduleRequest,
    SubmitReport,
    SubmitVerdict,
    TaskError,
    TaskFilter,
    TaskListQuery,
    TasksPage,
    TasksReport,
    TaskView,
)
from cron.errors import (
    Conflict,
    CrontabError,
    InvalidInput,
    LimitExceeded,
    NotAllowed,
    NotLeader,
    OtherContent,
    OutcomeUnknown,
    Problem,
    QueueFull,
    RevisionConflict,
    ScheduleError,
    TooManyTimes,
    Unavailable,
    UnknownJob,
)
from cron.web.health import HealthChecks
from cron.web.problems import status_of
from cron.web.routes import routes
from launcher.identity import PERSON
from tests.unit.api_rig import FakeBackend, launch
from tests.unit.web_rig import site

LAUNCH = "default/backup@2026-11-20T15:00:00Z"


def test_every_call_that_people_may_make_has_a_route_of_its_own() -> None:
    listed = routes()
    assert {one.rpc.name for one in listed} == {
        name for name, rpc in TABLE.items() if PERSON in rpc.roles
    }
    places = [(one.method, one.path) for one in listed]
    assert len(places) == len(set(places))
    assert all(not one.field or one.path.endswith(f"{{{one.shown}}}") for one in listed)
    for one in listed:
        assert not one.field or one.field in one.rpc.request.__struct_fields__
        assert one.method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        assert (one.method == "GET") is (one.rpc.where is not Where.CHANGE), one.path


async def test_a_call_that_has_no_path_of_its_own_is_at_its_name(monkeypatch) -> None:
    monkeypatch.setattr("cron.web.routes.PATHS", {})
    paths = {one.rpc.name: (one.method, one.path) for one in routes()}
    assert paths["Trigger"] == ("POST", "/v1/calls/Trigger")
    assert paths["History"] == ("GET", "/v1/calls/History")
    async with site(FakeBackend(history=[])) as served:
        said = await served.ask("GET", "/v1/calls/History?limit=3")
    assert said.json == []


# ---- what reaches the backend


READS = [
    (
        "/v1/history?job=b&states=failed&states=lost&limit=7&is_all=true&since_ms=5",
        "history",
        HistoryQuery(job="default/b", states=["failed", "lost"], limit=7, is_all=True, since_ms=5),
        [launch()],
    ),
    (
        '/v1/history?after={"scheduled_s":5,"launch":"backup@2026-11-20T15:00:00Z"}',
        "history",
        HistoryQuery(after=HistoryCursor(scheduled_s=5, launch=LAUNCH)),
        [],
    ),
    ("/v1/jobs?pattern=b*&tenant=acme", "jobs", None, []),
    ("/v1/output/backup@2026-11-20T15:00:00Z?tail=1", "output", None, OutputView(content=b"\xff")),
    ("/v1/replica", "peer_status", None, StatusRow(kind="replica", id="r1")),
    (
        "/v1/tasks?queue=mail&state=waiting&limit=3",
        "list",
        TaskListQuery(filter=TaskFilter(queue="default/mail", state="waiting"), limit=3),
        TasksPage(),
    ),
]


@pytest.mark.parametrize(("path", "method", "request_", "answer"), READS)
async def test_a_read_has_its_fields_in_the_query(path, method, request_, answer) -> None:
    backend = FakeBackend(**{method: answer})
    path = path.replace("{", "%7B").replace("}", "%7D").replace('"', "%22")
    async with site(backend) as served:
        said = await served.ask("GET", path)
    assert said.status == 200, said.body
    assert said.headers["content-type"] == "application/json"
    ((called, (got,)),) = backend.calls
    assert called == method
    assert request_ is None or got == request_


@pytest.mark.parametrize(
    "path",
    [
        "acme/backup@2026-11-20T15:00:00Z",
        "acme%2Fbackup%402026-11-20T15%3A00%3A00Z",
        "acme/backup%402026-11-20T15:00:00Z",
        "acme/backup@2026-11-20T15:00:00Z+t1",
        "acme/backup@2026-11-20T15:00:00Z%2Bt1",
    ],
)
async def test_a_name_in_a_path_may_be_percent_encoded_or_not(path: str) -> None:
    backend = FakeBackend(show=[])
    async with site(backend) as served:
        said = await served.ask("GET", f"/v1/launches/{path}")
    assert said.status == 200, said.body
    assert backend.calls[0][1][0].launch.removesuffix("+t1") == "acme/backup@2026-11-20T15:00:00Z"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("acme/backup@2026-11-20T15:00:00Z%232", "#"),
        ("backup@2026-11-20T15:00:00Z+x", "+"),
        ("%00", "\x00"),
        ("a%0Ab@2026-11-20T15:00:00Z", "\n"),
        ("%FF", ""),
        ("../../etc/passwd", ".."),
        ("a/b/c", "a/b/c"),
    ],
)
async def test_a_path_that_names_nothing_is_refused(path: str, name: str) -> None:
    backend = FakeBackend()
    async with site(backend) as served:
        said = await served.ask("GET", f"/v1/launches/{path}")
    assert said.status in (400, 404), said.body
    assert said.json["status"] == said.status
    assert backend.calls == []


CHANGES = [
    (
        "POST",
        "/v1/launches",
        {"job": "b", "request_id": "1", "by": "ada"},
        TriggerRequest(job="default/b", request_id="1", by="ada"),
        launch(),
    ),
    ("PUT", "/v1/pauses/acme/b*", {"reason": "full"}, None, PauseReport()),
    ("DELETE", "/v1/pauses/%2A", None, None, PauseReport()),
    ("DELETE", "/v1/jobs?jobs=a&jobs=acme/b&by=ada", None, None, RemoveReport()),
    ("PATCH", "/v1/limits", {"tenant": "acme", "concurrent": 3}, None, LimitView()),
    ("DELETE", "/v1/gates?numbers=3&numbers=1", None, None, GatesReport()),
    (
        "POST",
        "/v1/dead/redrive",
        {"query": {"jobs": "b*"}},
        DeadChange(query=DeadQuery(jobs="default/b*")),
        DeadOutcome(),
    ),
    (
        "POST",
        "/v1/jobs",
        {"files": [{"name": "a.crontab", "content": "QGRhaWx5IHRydWU="}]},
        None,
        ApplyReport(),
    ),
    (
        "DELETE",
        "/v1/tasks/acme/mail:1",
        None,
        CancelRequest(names=["acme/mail:1"]),
        TasksReport(count=1),
    ),
    ("POST", "/v1/tasks/cancel", {"names": ["mail:1"]}, None, TasksReport()),
    (
        "PATCH",
        "/v1/tasks/mail:1",
        {"delay_ms": 0, "revision": 4},
        RescheduleRequest(name="default/mail:1", delay_ms=0, revision=4),
        TaskView(task="default/mail:1"),
    ),
]


@pytest.mark.parametrize(("method", "path", "body", "request_", "answer"), CHANGES)
async def test_a_change_reaches_the_backend(method, path, body, request_, answer) -> None:
    got: list[Any] = []

    class Answering(FakeBackend):
        async def answer(self, rpc: Any, request: Any) -> Any:
            got.append(request)
            return answer

    async with site(Answering()) as served:
        said = await served.ask(method, path, body)
    assert said.status == 200, said.body
    (request,) = got
    assert request_ is None or request == request_


BAD = [
    ("GET", "/v1/history?limt=1", None, "'limt' is not a parameter"),
    ("GET", "/v1/history?limit=x", None, "limit: expected `int`, got `str`"),
    ("GET", "/v1/history?limit=0", None, "limit 0 is below 1"),
    ("GET", "/v1/history?limit=1&limit=2", None, "limit is there twice"),
    ("GET", "/v1/history?after=x", None, "after is not a JSON object"),
    ("GET", "/v1/history?job=%FF", None, "query cannot be read"),
    ("GET", "/v1/launches/b@2026-11-20T15:00:00Z?launch=c", None, "in the path already"),
    ("GET", "/v1/jobs", b"{}", "takes no body"),
    ("GET", "/v1/next/b", None, "missing required field `count`"),
    ("POST", "/v1/launches?job=b", {"job": "b", "request_id": "1"}, "takes no query"),
    ("POST", "/v1/launches", b"{", "not JSON"),
    ("POST", "/v1/launches", b"[]", "expected `object`, got `array`"),
    ("POST", "/v1/launches", b'{"job":"\xc3\x28","request_id":"1"}', "not JSON"),
    ("POST", "/v1/launches", b'{"x":' + b"[" * 100_000, "recursion"),
    ("POST", "/v1/launches", None, "missing required field `job`"),
    ("POST", "/v1/launches", {"job": 7, "request_id": "1"}, "job: expected `str`, got `int`"),
    ("POST", "/v1/launches", {"job": "b", "request_id": "1", "x": 1}, "x: unknown field"),
    (
        "POST",
        "/v1/dead/drop",
        {"query": {"jobs": "b", "jbos": "c"}},
        "query.jbos: unknown field",
    ),
    ("POST", "/v1/tasks", {"tasks": [{"key": "1", "handler": "h", "dely": 1}]}, "tasks[0].dely"),
    ("POST", "/v1/tasks", {"key": "1", "handler": "h", "dely": 1}, "tasks[0].dely"),
    ("POST", "/v1/tasks", {"tasks": []}, "number of tasks 0 is below 1"),
]


@pytest.mark.parametrize(("method", "path", "body", "text"), BAD)
async def test_bad_input_is_refused_before_the_backend_sees_it(method, path, body, text) -> None:
    backend = FakeBackend()
    async with site(backend) as served:
        said = await served.ask(method, path, body)
    assert said.status == 400, said.body
    assert text in said.json["detail"], said.json
    assert backend.calls == []


# ---- what comes back


async def test_rows_are_one_array_however_many_pages_they_are() -> None:
    for count in (0, 1, PAGE_ROWS, PAGE_ROWS + 1, 3 * PAGE_ROWS):
        rows = [launch(attempt=number) for number in range(1, count + 1)]
        async with site(FakeBackend(history=rows)) as served:
            said = await served.ask("GET", "/v1/history")
            lined = await served.ask(
                "GET", "/v1/history", headers={"accept": "application/x-ndjson"}
            )
        assert [row["attempt"] for row in said.json] == list(range(1, count + 1))
        assert lined.body.count(b"\n") == count
        assert lined.headers["content-type"] == "application/x-ndjson"


async def test_a_list_in_an_answer_is_there_if_it_is_empty() -> None:
    empty, some = TasksPage(), TasksPage(tasks=[TaskView(task="a:b")], next="x")
    async with site(FakeBackend(list=empty, audit=AuditReport(jobs=3))) as served:
        none = await served.ask("GET", "/v1/tasks")
        audit = await served.ask("GET", "/v1/audit")
    async with site(FakeBackend(list=some)) as served:
        one = await served.ask("GET", "/v1/tasks")
    assert none.json == {"tasks": []}
    assert audit.json == {"violations": [], "jobs": 3}
    assert one.json == {"tasks": [{"task": "a:b"}], "next": "x"}


async def test_rows_that_take_time_come_as_they_are_there() -> None:
    more = asyncio.Event()

    async def rows() -> Any:
        yield launch(attempt=1)
        await more.wait()
        yield launch(attempt=2)

    backend = FakeBackend(verify_snapshots=lambda _: rows())
    async with site(backend) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /v1/snapshots/verification HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(30):
            first = await reader.readuntil(b'"attempt":1')
            assert b'"attempt":2' not in first
            more.set()
            await reader.readuntil(b'"attempt":2')
        writer.close()


async def test_a_watch_ends_when_its_client_goes_away() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def rows() -> Any:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield launch()
        finally:
            ended.set()

    async with site(FakeBackend(watch=lambda _: rows())) as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /v1/tasks/watch HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(30):
            await begun.wait()
            writer.close()
            await ended.wait()


async def test_an_error_after_the_first_row_cuts_the_answer_off() -> None:
    async def rows() -> Any:
        yield launch()
        raise Unavailable("gone")

    async with site(FakeBackend(verify_snapshots=lambda _: rows())) as served:
        said = await served.raw(
            b"GET /v1/snapshots/verification HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
    assert said.startswith(b"HTTP/1.1 200 ")
    assert not said.endswith(b"0\r\n\r\n"), "the client sees that rows are missing"


ERRORS = [
    (InvalidInput("bad", "so"), 400, "invalid_input"),
    (ScheduleError("minute 61", 3), 400, "schedule"),
    (TooManyTimes("many"), 400, "too_many_times"),
    (NotAllowed("no"), 403, "not_allowed"),
    (UnknownJob("no job"), 404, "unknown_job"),
    (Conflict("twice"), 409, "conflict"),
    (OtherContent("other"), 409, "other_content"),
    (RevisionConflict("old"), 412, "revision_conflict"),
    (LimitExceeded("full"), 429, "limit_exceeded"),
    (QueueFull("full"), 429, "queue_full"),
    (Unavailable("away"), 503, "unavailable"),
    (NotLeader(None), 503, "not_leader"),
    (OutcomeUnknown("who knows"), 504, "outcome_unknown"),
]


def test_every_error_that_grpc_has_a_code_for_has_a_status() -> None:
    assert [kind for kind, _ in CODES if status_of(kind.__new__(kind)) == 500] == []


@pytest.mark.parametrize(("error", "status", "code"), ERRORS)
async def test_an_error_is_a_problem_document(error, status, code) -> None:
    async with site(FakeBackend(trigger=error)) as served:
        said = await served.ask("POST", "/v1/launches", {"job": "b", "request_id": "1"})
    assert said.status == status
    assert said.headers["content-type"] == "application/problem+json"
    assert said.json["code"] == code
    assert said.json["type"] == f"urn:raftcron:problem:{code}"
    assert said.json["status"] == status
    assert said.json["detail"] == str(error)
    assert ("retry-after" in said.headers) is (status in (429, 503))


async def test_all_problems_of_a_file_are_told() -> None:
    error = CrontabError([Problem("a", number, 2, "minute 61", "0-59") for number in (1, 2)])
    async with site(FakeBackend(put_jobs=error)) as served:
        body = {"files": [{"name": "a", "content": ""}]}
        said = await served.ask("POST", "/v1/jobs", body)
    assert said.status == 400
    assert said.json["detail"] == "2 problems"
    assert [one["line"] for one in said.json["problems"]] == [1, 2]


async def test_a_bug_ends_the_request_without_its_insides_and_not_the_server() -> None:
    async with site(FakeBackend(jobs=KeyError("secret"), history=[])) as served:
        said = await served.ask("GET", "/v1/jobs")
        again = await served.ask("GET", "/v1/history")
    assert (said.status, said.json["code"]) == (500, "bug")
    assert b"secret" not in said.body
    assert again.status == 200


async def test_a_stale_read_is_answered_at_once_and_says_how_old_it_is() -> None:
    seen: list[bool] = []

    def jobs(_: Any) -> list[Any]:
        seen.append(current().is_stale)
        if current().is_stale:
            current().behind = Behind("r2", 7, 9, 120)
        return []

    async with site(FakeBackend(jobs=jobs)) as served:
        fresh = await served.ask("GET", "/v1/jobs")
        stale = await served.ask("GET", "/v1/jobs", headers={"raftcron-stale": "1"})
        others = [
            await served.ask("GET", "/v1/jobs", headers={"raftcron-stale": value})
            for value in ("yes", "")
        ]
    assert seen == [False, True]
    assert [(one.status, one.json["code"]) for one in others] == [(400, "invalid_input")] * 2
    assert "raftcron-behind" not in fresh.headers
    assert stale.headers["raftcron-behind"] == '{"replica":"r2","index":7,"known":9,"age_ms":120}'


# ---- tasks


@pytest.mark.parametrize(("is_new", "status"), [(True, 201), (False, 200)])
async def test_one_task_is_answered_with_its_own_verdict(is_new: bool, status: int) -> None:
    verdict = SubmitVerdict(task="acme/mail:a+1", state="waiting", is_new=is_new)
    backend = FakeBackend(submit=SubmitReport(tasks=[verdict]))
    body = {"key": "1", "handler": "mail", "payload": {"to": ["ada"], "n": 1.5}}
    async with site(backend) as served:
        said = await served.ask("POST", "/v1/tasks", body)
        many = await served.ask("POST", "/v1/tasks", {"tasks": [body]})
    assert said.status == status
    assert said.headers["location"] == "/v1/tasks/acme/mail:a%2B1"
    assert said.json["task"] == "acme/mail:a+1"
    assert (many.status, len(many.json["tasks"])) == (200, 1)
    one, two = [request for _, (request,) in backend.calls]
    assert one == two
    assert bytes(one.tasks[0].payload).replace(b" ", b"") == b'{"to":["ada"],"n":1.5}'


@pytest.mark.parametrize(
    ("code", "status", "after"),
    [
        ("other_content", 409, None),
        ("unknown_handler", 404, None),
        ("queue_full", 429, "3"),
        ("invalid_input", 400, None),
    ],
)
async def test_one_task_that_is_refused_is_a_problem(code, status, after) -> None:
    verdict = SubmitVerdict(
        task="mail:1", error=TaskError(code, "no", "why"), retry_after_ms=2_001 if after else 0
    )
    async with site(FakeBackend(submit=SubmitReport(tasks=[verdict]))) as served:
        said = await served.ask("POST", "/v1/tasks", {"key": "1", "handler": "mail"})
    assert said.status == status
    assert (said.json["code"], said.json["hint"]) == (code, "why")
    assert said.headers.get("retry-after") == after


# ---- methods, paths, types


async def test_head_and_options_are_answered() -> None:
    async with site(FakeBackend(jobs=[launch()])) as served:
        head = await served.ask("HEAD", "/v1/jobs")
        options = await served.ask("OPTIONS", "/v1/jobs")
        health = await served.ask("HEAD", "/healthz")
    assert (head.status, head.body) == (200, b"")
    assert (health.status, health.body) == (200, b"")
    assert (options.status, options.body) == (204, b"")
    assert options.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, POST"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/jobs/", 404),
        ("GET", "//v1/jobs", 404),
        ("GET", "/v1/launches/", 404),
        ("POST", "/v1/calls/Trigger", 404),
        ("POST", "/v1/history", 405),
        ("BREW", "/v1/history", 405),
        ("TRACE", "/v1/history", 405),
    ],
)
async def test_what_is_not_there_is_a_problem(method: str, path: str, status: int) -> None:
    async with site(FakeBackend()) as served:
        said = await served.ask(method, path)
    assert said.status == status, said.body
    assert said.json["status"] == status
    assert ("allow" in said.headers) is (status == 405)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_that_is_not_said_to_be_json_is_refused(kind: str) -> None:
    # Browsers send these types to other origins without asking.
    backend = FakeBackend()
    async with site(backend) as served:
        body = b'{"job":"b","request_id":"1"}'
        said = await served.ask("POST", "/v1/launches", body, {"content-type": kind})
    assert (said.status, said.headers["accept"]) == (415, "application/json")
    assert backend.calls == []


# ---- health


@pytest.mark.parametrize(
    ("leadership", "freshness", "reason"),
    [
        (Leadership(3, leads=True, leader="r1"), Freshness(9, 9, 5), ""),
        (Leadership(3, leader="r2"), Freshness(9, 9, 800), ""),
        (Leadership(3), Freshness(9, 9, 5), "no leader is known"),
        (Leadership(3, leader="r2"), Freshness(9, 9, 10_001), "10001 ms ago"),
        (Leadership(3, leader="r2"), Freshness(9, 9), "not level with the leader since its start"),
    ],
)
async def test_a_replica_is_ready_while_it_follows_a_leader(leadership, freshness, reason) -> None:
    async with site(FakeBackend(), leadership=leadership, freshness=freshness) as served:
        ready = await served.ask("GET", "/readyz")
        alive = await served.ask("GET", "/healthz")
    assert alive.status == 200
    assert ready.status == (503 if reason else 200)
    assert reason in ready.json.get("reason", "")
    assert ready.json["replica"] == "r1"


def test_a_replica_that_joins_is_not_ready_though_it_hears_its_leader() -> None:
    stages = iter([Joining("log", 7, 9, "secret of a peer"), None])
    readiness = Readiness(
        lambda: Leadership(3, leader="r2"), lambda: Freshness(9, 9, 5), lambda: next(stages)
    )
    checks = HealthChecks("r1", readiness)
    joins, votes = checks.ready(), checks.ready()
    assert (joins.status, votes.status) == (503, 200)
    assert b"does not vote yet" in joins.body
    assert b"secret" not in joins.body, "nobody signed in"


def test_a_daemon_and_the_command_line_import_no_http_server_unless_they_serve() -> None:
    program = (
        "import sys, cron.daemon, cron.main; import cron.dev.supervisor;"
        "print([one for one in ('starlette', 'uvicorn', 'h11', 'cron.web') if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
