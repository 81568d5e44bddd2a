"""task, queue apply and queue list on the command line, before a service that a test plays."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import Result

from cron.api.groups import CancelGroupRequest
from cron.api.task_queues import (
    PutQueuesReport,
    PutQueuesRequest,
    QueueChange,
    TaskQueuesReport,
    TaskQueueView,
)
from cron.api.tasks import (
    CancelRequest,
    RefusedTask,
    RescheduleManyRequest,
    RescheduleRequest,
    SubmitReport,
    SubmitRequest,
    SubmitVerdict,
    TaskChange,
    TaskError,
    TaskFilter,
    TaskListQuery,
    TaskNames,
    TasksPage,
    TasksReport,
    TaskSubmission,
    TaskView,
    WatchRequest,
)
from cron.cli.options import Settings
from cron.cli.tasks import _changes
from cron.errors import NoQuorum, NotLeader, NotNow, Unavailable, UnknownTask
from launcher.payloads import whole_payload
from tests.unit.api_rig import NOON_S, FakeBackend, launch, run_cli, serving

AT = "2026-11-20T15:00:00.000Z"
QUEUE = "default/mail.send"
NAME = f"{QUEUE}:k1"


async def cli(backend: FakeBackend, *arguments: str, stdin: bytes | None = None) -> Result:
    async with serving(backend) as server:
        return await run_cli(*arguments, server=server, stdin=stdin)


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def task(**fields: Any) -> TaskView:
    given: dict[str, Any] = {
        "task": NAME, "queue": "mail.send", "key": "k1", "tenant": "default",
        "handler": "mail.send", "state": "waiting", "scheduled_at": AT, "at_ms": NOON_S * 1000,
        "submitted_at": AT, "revision": 7, "priority": 5,
    }  # fmt: skip
    return TaskView(**(given | fields))


def accepted(request: SubmitRequest) -> SubmitReport:
    """A cell that takes everything."""
    return SubmitReport(
        tasks=[
            SubmitVerdict(
                task=one.name, state="waiting", scheduled_at=AT, at_ms=NOON_S * 1000, is_new=True,
                revision=7,
            )
            for one in request.tasks
        ]
    )  # fmt: skip


def asked(backend: FakeBackend, method: str) -> Any:
    """The first request of a call."""
    return next(request for name, (request,) in backend.calls if name == method)


# ---- submit


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ("", {}),
        ('--payload {"a":1}', {"payload": msgspec.Raw(b'{"a":1}')}),
        ("--payload null", {"payload": msgspec.Raw(b"null")}),
        ("--at 2026-11-20T15:00:00Z", {"at_ms": NOON_S * 1000}),
        ("--delay 10ms", {"delay_ms": 10}),
        ("--delay 0s", {}),
        ("--delay 2h30m --queue slow --tenant acme",
         {"delay_ms": 9_000_000, "queue": "slow", "tenant": "acme"}),
        ("--priority 0 --tries 3 --backoff 10s --deadline 1h --attempt-timeout 5m",
         {"priority": 0, "tries": 3, "backoff_ms": 10_000, "deadline_ms": 3_600_000,
          "timeout_ms": 300_000}),
        ("--retries 0", {"tries": 1}),
        ("--retries 4", {"tries": 5}),
        ("--retries unlimited", {"tries": 999_999_999}),
        (f"--traceparent 00-{'a' * 32}-{'b' * 16}-01",
         {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}),
        ("--collection import --on-lost retry --label order=4711 --label a/b=c=d",
         {"collection": "import", "on_lost": "retry", "labels": {"order": "4711", "a/b": "c=d"}}),
    ],
)  # fmt: skip
async def test_submit_asks_for_what_was_said_and_nothing_else(
    arguments: str, fields: dict[str, Any]
) -> None:
    backend = FakeBackend(submit=accepted)
    result = await cli(
        backend, "task", "submit", "--handler", "mail.send", "--key", "k1", *arguments.split()
    )
    assert result.exit_code == 0, result.stderr
    expected = TaskSubmission(**({"key": "k1", "handler": "mail.send"} | fields))
    assert asked(backend, "submit") == SubmitRequest(tasks=[expected], by="ada")


async def test_submit_prints_the_task_and_when_it_is_due() -> None:
    arguments = ("task", "submit", "--handler", "mail.send", "--key", "k1")
    backend = FakeBackend(submit=accepted)
    shown = await cli(backend, *arguments)
    assert shown.stdout == "mail.send:k1 waiting, scheduled 2026-11-20 15:00:00.000 UTC\n"
    (row,) = rows(await cli(backend, *arguments, "-o", "json"))
    assert row == {
        "task": NAME, "state": "waiting", "scheduled_at": AT, "is_new": True, "revision": 7,
        "note": None,
    }  # fmt: skip


async def test_a_long_payload_is_put_into_the_store_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "payload.json"
    file.write_text(f'"{"x" * 300_000}"\n')
    submit = ("task", "submit", "--handler", "h", "--payload", f"@{file}")
    backend = FakeBackend(submit=accepted)
    refused = await cli(backend, *submit)
    assert (refused.exit_code, "name a store for it" in refused.stderr) == (2, True)
    store = tmp_path / "store"
    monkeypatch.setenv("RAFTCRON_PAYLOADS", store.as_uri())
    result = await cli(backend, *submit)
    assert result.exit_code == 0, result.stderr
    sent = bytes(asked(backend, "submit").tasks[0].payload)
    assert len(sent) < 1_000
    assert whole_payload(sent) == file.read_bytes().strip()
    file.write_text("x" * 300_000)
    assert "payload is not JSON" in (await cli(backend, *submit)).stderr
    file.write_text(f'"{"x" * 300_000}"')
    store.rename(tmp_path / "moved")
    store.write_text("a file where the folder was")
    away = await cli(backend, *submit)
    assert (away.exit_code, "cannot be written" in away.stderr) == (5, True)


async def test_a_key_is_drawn_once_and_repeated() -> None:
    backend = FakeBackend(submit=accepted)
    for _ in range(2):
        await cli(backend, "task", "submit", "--handler", "mail.send")
    first, second = (request.tasks[0].key for _, (request,) in backend.calls)
    assert len(first) == 32
    assert first != second


async def test_a_payload_comes_from_a_file_or_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_bytes(b' {"a": [1]}\n')
    submit = ("task", "submit", "--handler", "h", "--payload")
    for said, stdin in ((f"@{file}", None), ("@-", b'{"a": [1]}')):
        backend = FakeBackend(submit=accepted)
        result = await cli(backend, *submit, said, stdin=stdin)
        assert result.exit_code == 0, result.stderr
        assert bytes(asked(backend, "submit").tasks[0].payload) == b'{"a": [1]}'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--handler", "h", "--payload", "{"], "payload is not JSON"),
        (["--handler", "h", "--retries", "1", "--tries", "2"], "choose one"),
        (["--handler", "h", "--payload", "@/nowhere"], "no such file or directory"),
        (["--handler", "h", "--payload", '"' + "x" * 262_144 + '"'], "more than 262,144 bytes"),
        (["--handler", "h", "--at", "5m"], "write --delay 5m"),
        (["--handler", "h", "--at", "soon"], "cannot be read"),
        (["--handler", "h", "--delay", "soon"], "write 10ms, 90s, 5m"),
        (["--handler", "h", "--at", "2026-11-20T15:00:00Z", "--delay", "1s"], "choose one"),
        (["--handler", "h", "--label", "order"], "is not NAME=VALUE"),
        (["--handler", "h", "--key", ""], "it is empty"),
        (["--handler", "h", "--tries", "0"], "not a whole number from 1"),
        (["--handler", "h", "--delay", "3653d"], "delay 3653d is longer than 3,650d, ten years"),
        (["--handler", "h", "--delay", "87601h"], "write --delay 3650d or less"),
        (["--handler", "h", "--retries", "forever"], "or write unlimited"),
        ([], "name a handler with --handler"),
    ],
)
async def test_submit_refuses_what_cannot_be_meant(arguments: list[str], message: str) -> None:
    backend = FakeBackend(submit=accepted)
    result = await cli(backend, "task", "submit", *arguments)
    assert (result.exit_code, backend.calls) == (2, [])
    assert message in result.stderr


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("invalid_input", 2), ("other_content", 4), ("queue_full", 2), ("unknown_handler", 3),
     ("unavailable", 5), ("of_a_newer_release", 1)],
)  # fmt: skip
async def test_a_refused_task_is_an_error(code: str, exit_code: int) -> None:
    refused = SubmitVerdict(task=NAME, error=TaskError(code, "not this one", "another"))
    backend = FakeBackend(submit=SubmitReport(tasks=[refused]))
    result = await cli(backend, "task", "submit", "--handler", "mail.send")
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert result.stderr == "raftcron: not this one\n  hint: another\n"


async def test_submit_waits_for_the_executors_of_a_new_leader() -> None:
    unknown = TaskError("unavailable", "executors have not come yet", "try again")
    settling = SubmitVerdict(task=NAME, error=unknown, retry_after_ms=1)
    verdicts = [settling, settling, SubmitVerdict(task=NAME, state="due", at_ms=1)]
    left = iter(verdicts)
    backend = FakeBackend(submit=lambda _: SubmitReport(tasks=[next(left)]))
    result = await cli(backend, "task", "submit", "--handler", "mail.send")
    assert result.exit_code == 0, result.stderr
    assert len({request.tasks[0].key for _, (request,) in backend.calls}) == 1
    assert len(backend.calls) == len(verdicts)


async def test_submit_waits_for_executors_no_longer_than_its_timeout() -> None:
    unknown = TaskError("unavailable", "executors have not come yet", "try again")
    settling = SubmitVerdict(task=NAME, error=unknown, retry_after_ms=90_000)
    backend = FakeBackend(submit=SubmitReport(tasks=[settling]))
    submit = ("task", "submit", "--handler", "mail.send")
    result = await cli(backend, *submit, "--timeout", "60s")
    assert (result.exit_code, len(backend.calls)) == (5, 1)


@pytest.mark.parametrize(
    ("fields", "exit_code", "ending"),
    [
        ({"state": "succeeded", "result": "sent"}, 0, "succeeded: sent"),
        ({"state": "failed", "reason": "exit"}, 1, "failed (exit)"),
        ({"state": "cancelled"}, 1, "cancelled"),
    ],
)
async def test_submit_waits_for_the_end(
    fields: dict[str, Any], exit_code: int, ending: str
) -> None:
    looks = iter([task(), task(state="running"), task(**fields), task(), task(**fields)])
    backend = FakeBackend(submit=accepted, get=lambda _: next(looks))
    submit = ("task", "submit", "--handler", "mail.send", "--key", "k1", "--wait")
    result = await cli(backend, *submit)
    assert result.exit_code == exit_code
    assert result.stdout.splitlines()[-1] == f"mail.send:k1 {ending}"
    (row,) = rows(await cli(backend, *submit, "-o", "json"))
    assert list(row)[:5] == ["task", "state", "scheduled_at", "is_new", "revision"]
    assert row["state"] == fields["state"]


async def test_submit_says_what_it_waits_for_and_when_that_is_not_over() -> None:
    backend = FakeBackend(submit=accepted, get=task(state="due", reason="no free slot"))
    submit = ("task", "submit", "--handler", "mail.send", "--key", "k1", "--wait")
    result = await cli(backend, *submit, "--timeout", "1s")
    assert result.exit_code == 6
    assert "raftcron: mail.send:k1 waits: no free slot\n" in result.stderr
    assert "mail.send:k1 is not over within 1 s: due" in result.stderr


# ---- get and list


async def test_get_shows_payload_and_attempts() -> None:
    one = launch(launch="default/mail.send:k1@2026-11-20T15:00:00Z", job="mail.send:k1")
    view = task(state="succeeded", payload={"a": 1}, attempts=[one], launch=one.launch)
    backend = FakeBackend(get=view)
    shown = await cli(backend, "task", "get", "mail.send:k1")
    assert '{"a":1}' in shown.stdout
    assert "mail.send:k1@2026-11-20T15:00:00Z" in shown.stdout
    (row,) = rows(await cli(backend, "task", "get", "mail.send:k1", "-o", "json"))
    assert (row["task"], row["state"], row["payload"]) == (NAME, "succeeded", {"a": 1})
    assert [attempt["attempt"] for attempt in row["attempts"]] == [1]
    assert asked(backend, "get").name == NAME


async def test_get_of_what_never_was_is_not_found() -> None:
    backend = FakeBackend(get=UnknownTask("task mail.send:k1 does not exist"))
    result = await cli(backend, "task", "get", "mail.send:k1")
    assert (result.exit_code, result.stderr) == (3, "raftcron: task mail.send:k1 does not exist\n")


async def test_list_goes_on_page_by_page() -> None:
    def page(query: TaskListQuery) -> TasksPage:
        pages = {"": "p2", "p2": "p3", "p3": ""}
        found = [] if query.page == "p2" else [task(key=query.page or "p1")]
        return TasksPage(tasks=found, next=pages[query.page])

    backend = FakeBackend(list=page)
    result = await cli(backend, "task", "list", "--queue", "mail.send", "-o", "json")
    assert [row["key"] for row in rows(result)] == ["p1", "p3"]
    assert asked(backend, "list").filter == TaskFilter(queue="default/mail.send")
    cut = await cli(backend, "task", "list", "-n", "1", "--state", "waiting")
    assert "there may be more" in cut.stderr
    assert cut.stdout.splitlines()[1].split()[:2] == ["mail.send:k1", "waiting"]


async def test_list_without_tasks_says_so() -> None:
    assert (await cli(FakeBackend(list=TasksPage()), "task", "list")).stdout == "no tasks\n"


# ---- changes


async def test_cancel_by_name_and_by_filter() -> None:
    backend = FakeBackend(cancel=TasksReport(count=1, tasks=[task(state="cancelled")]))
    result = await cli(backend, "task", "cancel", "mail.send:k1")
    assert result.stdout == "mail.send:k1 cancelled\n"
    assert asked(backend, "cancel") == CancelRequest(names=[NAME], by="ada")


@pytest.mark.parametrize(
    ("method", "words", "wanted"),
    [
        ("cancel", "task cancel --queue mail.send", {"filter": TaskFilter(queue=QUEUE)}),
        ("cancel_group", "group cancel import", {"name": "default/import"}),
    ],
)
async def test_cancel_goes_on_portion_by_portion(
    method: str, words: str, wanted: dict[str, Any]
) -> None:
    requests: list[CancelRequest | CancelGroupRequest] = []

    def cancel(request: CancelRequest | CancelGroupRequest) -> TasksReport:
        requests.append(request)
        number = int(request.page or 0)
        views = [task(task=f"{QUEUE}:{number}-{n}") for n in range(400)]
        following = str(number + 1) if number < 2 else ""
        return TasksReport(count=400, tasks=views, next=following)

    backend = FakeBackend(**{method: cancel})
    plan = await cli(backend, *words.split(), "--dry-run")
    assert plan.stdout.endswith("1,200 tasks would be cancelled\n")
    assert {name: getattr(requests[-1], name) for name in wanted} == wanted
    result = await cli(backend, *words.split())
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "1,200 tasks cancelled")
    pages = [(dry, page) for dry in (True, False) for page in ("", "1", "2")]
    assert [(one.is_dry_run, one.page) for one in requests] == pages


async def test_cancel_of_a_running_task_says_that_it_still_runs() -> None:
    backend = FakeBackend(cancel=TasksReport(count=1, tasks=[task(state="running")]))
    result = await cli(backend, "task", "cancel", "mail.send:k1")
    assert result.stdout == "mail.send:k1 cancelled and still runs\n"


@pytest.mark.parametrize("arguments", [[], ["mail.send:k1", "--queue", "mail.send"]])
async def test_cancel_takes_names_or_a_filter(arguments: list[str]) -> None:
    result = await cli(FakeBackend(), "task", "cancel", *arguments)
    assert result.exit_code == 2


async def test_tasks_that_were_refused_beside_others_are_named() -> None:
    refused = RefusedTask("default/mail.send:k2", TaskError("not_now", "k2 is over: succeeded"))
    report = TasksReport(count=1, tasks=[task(state="cancelled")], errors=[refused])
    result = await cli(FakeBackend(cancel=report), "task", "cancel", "mail.send:k1", "mail.send:k2")
    assert (result.exit_code, result.stdout) == (4, "mail.send:k1 cancelled\n")
    assert result.stderr == "raftcron: k2 is over: succeeded\n"


async def test_reschedule_says_what_changes() -> None:
    backend = FakeBackend(reschedule=task(revision=8))
    reschedule = ("task", "reschedule", "mail.send:k1")
    result = await cli(backend, *reschedule, "--delay", "1h", "--revision", "7")
    assert result.stdout == "mail.send:k1 waiting, scheduled 2026-11-20 15:00:00.000 UTC\n"
    assert asked(backend, "reschedule") == RescheduleRequest(
        name=NAME, delay_ms=3_600_000, revision=7, by="ada"
    )
    (row,) = rows(await cli(backend, *reschedule, "--payload", "[]", "-o", "json"))
    assert row["revision"] == 8
    assert (await cli(backend, *reschedule)).exit_code == 2
    over = FakeBackend(reschedule=NotNow("it is over"))
    assert (await cli(over, *reschedule, "--priority", "0")).exit_code == 4


async def test_reschedule_of_many_tasks_is_one_call_and_names_those_that_were_refused() -> None:
    refused = RefusedTask("default/mail.send:k2", TaskError("not_now", "k2 is over: succeeded"))
    backend = FakeBackend(
        reschedule_many=TasksReport(count=1, tasks=[task(revision=8)], errors=[refused])
    )
    line = ("task", "reschedule", "mail.send:k1", "mail.send:k2", "mail.send:k1")
    result = await cli(backend, *line, "--delay", "1h", "--payload", "[7]")
    assert (result.exit_code, result.stderr) == (4, "raftcron: k2 is over: succeeded\n")
    assert result.stdout == "mail.send:k1 waiting, scheduled 2026-11-20 15:00:00.000 UTC\n"
    each = [
        RescheduleRequest(name=name, delay_ms=3_600_000, payload=msgspec.Raw(b"[7]"))
        for name in (NAME, "default/mail.send:k2")
    ]
    assert asked(backend, "reschedule_many") == RescheduleManyRequest(tasks=each, by="ada")
    (row,) = rows(await cli(backend, *line, "--priority", "0", "-o", "json"))
    assert (row["task"], row["revision"]) == (NAME, 8)


async def test_reschedule_bounds_the_tasks_of_a_command_and_the_bytes_of_a_call(
    tmp_path: Path,
) -> None:
    sizes: list[int] = []

    def take(request: RescheduleManyRequest) -> TasksReport:
        sizes.append(len(request.tasks))
        return TasksReport(count=len(request.tasks), tasks=[task()])

    backend = FakeBackend(reschedule_many=take)
    names = [f"mail.send:k{n}" for n in range(1_001)]
    too_many = await cli(backend, "task", "reschedule", *names, "--delay", "1h")
    assert (too_many.exit_code, sizes) == (2, [])
    assert "number of tasks" in too_many.stderr
    file = tmp_path / "payload.json"
    file.write_text(f'"{"x" * 200_000}"')
    done = await cli(backend, "task", "reschedule", *names[:100], "--payload", f"@{file}")
    assert (done.exit_code, sizes) == (0, [41, 41, 18])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (("--priority", "1", "--revision", "7"), "that of one task"),
        ((), "nothing is to change"),
    ],
)
async def test_reschedule_of_many_tasks_takes_no_revision_and_some_change(
    said: tuple[str, ...], why: str
) -> None:
    result = await cli(FakeBackend(), "task", "reschedule", "mail.send:k1", "mail.send:k2", *said)
    assert (result.exit_code, why in result.stderr) == (2, True)


async def test_run_now_names_tasks() -> None:
    backend = FakeBackend(run_now=TasksReport(count=1, tasks=[task(state="due")]))
    result = await cli(backend, "task", "run-now", "mail.send:k1")
    assert result.stdout == "mail.send:k1 is due\n"
    assert asked(backend, "run_now") == TaskNames(names=[NAME], by="ada")


async def test_watch_goes_on_from_the_position_it_has() -> None:
    positions: list[str] = []

    def watch(request: WatchRequest) -> list[TaskChange]:
        positions.append(request.position)
        number = len(positions)
        changes = [TaskChange(position=f"{number}.1", task=task(revision=number))]
        return [*changes, TaskChange(position=f"{number}.9")]

    result = await cli(FakeBackend(watch=watch), "task", "watch", "--count", "2", "-o", "json")
    assert [row["position"] for row in rows(result)] == ["1.1", "2.1"]
    assert positions == ["", "1.9"]


async def test_watch_goes_on_at_the_next_leader_and_misses_nothing() -> None:
    """The first replica answers once, and then it is gone; the second has been a follower."""
    changes = [
        TaskChange(position=f"{index}.1", task=task(revision=index)) for index in range(1, 7)
    ]
    asked_of: list[tuple[str, str]] = []
    is_led_by_first = True

    def after(position: str) -> list[TaskChange]:
        seen = [change.position for change in changes].index(position) + 1 if position else 0
        return changes[seen : seen + 2]

    def first(request: WatchRequest) -> list[TaskChange]:
        nonlocal is_led_by_first
        asked_of.append(("first", request.position))
        if request.position:
            is_led_by_first = False
            raise NoQuorum("it has lost its majority")
        return after(request.position)

    def second(request: WatchRequest) -> list[TaskChange]:
        asked_of.append(("second", request.position))
        if is_led_by_first:
            raise NotLeader(None)
        return after(request.position)

    watch = ("task", "watch", "--count", "6", "-o", "json")
    async with (
        serving(FakeBackend(watch=first)) as one,
        serving(FakeBackend(watch=second)) as other,
    ):
        result = await run_cli(*watch, server=f"{one},{other}")
    assert [row["position"] for row in rows(result)] == [change.position for change in changes]
    assert ("first", "2.1") in asked_of
    assert ("second", "4.1") in asked_of


def test_watch_ends_if_nobody_answers_for_longer_than_its_timeout(monkeypatch) -> None:
    """Each answer gives it its whole time again."""
    clock = SimpleNamespace(now_ms=0.0)
    settings = Settings()
    settings.clock = SimpleNamespace(mono_ms=lambda: int(clock.now_ms))
    settings.timeout_ms = 3_000
    answers = [[TaskChange(position="7.1", task=task())], [TaskChange(position="8")]]
    asked_at: list[float] = []

    def ask(_rpc: Any, request: WatchRequest) -> list[TaskChange]:
        clock.now_ms += 2_000
        asked_at.append(clock.now_ms)
        if answers:
            return answers.pop(0)
        raise NoQuorum("nobody leads")

    def sleep(seconds: float) -> None:
        clock.now_ms += seconds * 1000

    monkeypatch.setattr("cron.cli.waiting.time", SimpleNamespace(sleep=sleep))
    client: Any = SimpleNamespace(ask=ask)
    seen: list[str] = []
    with pytest.raises(Unavailable, match="no replica answered within 3 s") as caught:
        seen.extend(one.position for one in _changes(settings, client, WatchRequest()))
    assert seen == ["7.1", "8"]
    assert "--position 8 goes on" in caught.value.hint
    assert len(asked_at) == 4


# ---- queues


async def test_queue_apply_sends_the_file_and_prints_what_changed(tmp_path: Path) -> None:
    file = tmp_path / "queues.toml"
    file.write_text('[[queue]]\nname = "mail"\nhandler = "mail.send"\n')
    changes = [
        QueueChange("changed", "default/mail", "mail.send", ["rate"]),
        QueueChange("unchanged", "default/slow"),
        QueueChange("kept", "acme/old", "", [], "12 tasks wait"),
    ]
    backend = FakeBackend(put_queues=PutQueuesReport(changes=changes, is_dry_run=True))
    result = await cli(backend, "queue", "apply", str(file), "--plan")
    assert result.stdout.splitlines() == [
        "queue mail would be changed (rate)",
        "queue acme/old would be kept: 12 tasks wait",
    ]
    assert asked(backend, "put_queues") == PutQueuesRequest(
        source="queues.toml", text=file.read_text(), is_dry_run=True, by="ada"
    )
    as_json = rows(await cli(backend, "queue", "apply", str(file), "-o", "json"))
    assert [row["action"] for row in as_json] == ["changed", "unchanged", "kept"]


async def test_queue_list_shows_counts_and_limits() -> None:
    view = TaskQueueView(
        queue="default/mail", handler="mail.send", waiting=3, waiting_max=100, remember_s=86_400,
        rate_per_s=50, notes=["no worker serves mail.send"], on_disk=2,
    )  # fmt: skip
    backend = FakeBackend(list_queues=TaskQueuesReport(queues=[view]))
    result = await cli(backend, "queue", "list")
    assert result.stdout.splitlines()[1].split() == [
        "mail", "mail.send", "3", "0", "0", "0", "0", "100", "50/s", "24h00m", "-",
        "no", "worker", "serves", "mail.send;", "2", "of", "those", "that", "wait", "are", "on",
        "disk",
    ]  # fmt: skip
    (row,) = rows(await cli(backend, "queue", "list", "-o", "json"))
    assert (row["queue"], row["waiting"], row["priority"]) == ("default/mail", 3, None)
    assert row["on_disk"] == 2


async def test_queue_apply_needs_a_name_for_standard_input() -> None:
    result = await cli(FakeBackend(), "queue", "apply", "-", stdin=b"")
    assert result.exit_code == 2
    assert "--source" in result.stderr
