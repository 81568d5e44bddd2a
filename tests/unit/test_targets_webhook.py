"""The target `webhook`: what chats and pagers are sent, and channels whose server is in trouble."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from launcher.errors import BadConfig
from launcher.targets.alert_text import Alerted
from launcher.targets.config import WebhookChannel, WebhookConfig, load
from launcher.targets.incidents import KEY_CHARS_MAX, incident_key, views_of
from launcher.targets.webhook import WebhookTarget
from launcher.worker.outcome import Ended
from launcher.worker.wire import Result
from tests.fakes.bad_http import BadServer, answer, bad_server
from tests.unit.targets_rig import LAUNCH, OF_CELL, context_of, ended

ALERT = {
    "number": 17, "state": "firing", "kind": "failed", "when": "failed:2", "rule": "backups",
    "subjects": ["acme/backup"], "count": 1, "since": "2026-11-20T15:00:00Z",
    "at": "2026-11-20T15:01:00Z", "evidence": {"failures": 2}, "cell": "prod",
}  # fmt: skip
CONSOLE = "https://cron.example.com"


@pytest.fixture
def server() -> Iterator[BadServer]:
    with bad_server() as one:
        one.ways["/hook"] = answer("200 OK", b"ok")
        yield one


def target(url: str, folder: Path = Path(), **fields: Any) -> WebhookTarget:
    """A target with one channel."""
    channel = WebhookChannel(name="ops", url=url, **fields)
    return WebhookTarget(WebhookConfig(channel=(channel,), console=CONSOLE), folder)


def told(one: WebhookTarget, **alert: Any) -> Ended:
    return ended(one, {"channel": "ops", "alert": ALERT | alert}, context_of(job=OF_CELL)[0])


def keyed(server: BadServer, folder: Path) -> WebhookTarget:
    """A target with a secret, which sends a request for each incident."""
    key = private(folder / "key", "r0uting\n")
    (folder / "body").write_text('{"key": {{ key | tojson }}, "of": {{ incident | tojson }}}')
    return target(server.url("/hook"), folder, key=key, template="body", each=True)


def private(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return path.name


# ---- what a template sees


def test_a_body_without_a_template_has_the_alert_and_its_words(server: BadServer) -> None:
    assert told(target(server.url("/hook"))).result is Result.OK
    body = json.loads(server.requests[0].body)
    assert body["alert"] == ALERT | {"open": 0, "removed": [], "reminder": 0}
    assert body["title"] == "[raftcron prod] acme/backup failed 2 times in a row"
    assert "How to look:" in body["text"]
    assert body["link"] == "https://cron.example.com/jobs/acme/backup"


def views(*, is_each: bool = True, **alert: Any) -> list[dict[str, Any]]:
    return views_of(Alerted(**cast(Any, ALERT | alert)), CONSOLE, "k3y", is_each=is_each)


def test_the_beginning_and_the_end_of_an_alert_are_of_the_same_incident() -> None:
    [opened] = views(state="firing")
    [resolved] = views(state="resolved", number=99)
    assert opened["incident"] == resolved["incident"] == "raftcron/prod/backups/acme/backup"
    assert opened["facts"] == {"Failures": "2"}
    assert opened["key"] == "k3y"


def test_a_test_opens_an_incident_and_resolves_it() -> None:
    opened, over = views(state="test", subjects=[])
    assert (opened["alert"]["state"], over["alert"]["state"]) == ("test", "resolved")
    assert opened["incident"] == over["incident"] == "raftcron/prod/test"
    [one] = views(state="test", subjects=[], is_each=False)
    assert one["alert"]["state"] == "test"


def test_each_name_of_a_delivery_is_an_incident_and_the_others_are_one() -> None:
    names = [f"acme/{n}" for n in range(20)]
    opened = views(subjects=names, count=10_000)
    assert len(opened) == 21
    assert len({one["incident"] for one in opened}) == 21
    assert "9,980 jobs failed" in opened[-1]["title"]
    [later] = views(state="resolved", subjects=["acme/7"])
    assert later["incident"] == opened[7]["incident"]
    [together] = views(subjects=names, count=10_000, is_each=False)
    known = [one["incident"] for one in together["incidents"]]
    assert known == [one["incident"] for one in opened]
    assert "10,000 jobs failed" in together["title"]


def test_long_names_have_short_keys_of_their_own() -> None:
    long = [
        Alerted(number=1, state="firing", subjects=[f"{'a' * 300}{n}"], cell="c" * 300)
        for n in range(2)
    ]
    keys = [incident_key(one) for one in long]
    keys.append(incident_key(Alerted(number=1, state="test", cell="c" * 300)))
    assert len(set(keys)) == 3
    assert max(map(len, keys)) <= KEY_CHARS_MAX


# ---- requests


def test_an_alert_is_a_request_and_its_answer_the_end(server: BadServer) -> None:
    assert told(target(server.url("/hook"))) == Ended(Result.OK, 0, "ok")
    [request] = server.requests
    assert request.method == "POST"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["idempotency-key"] == f"{OF_CELL}@2026-11-20T15:00:00Z"
    assert json.loads(request.body)["alert"]["number"] == 17


def test_a_url_that_is_a_secret_is_in_no_output(server: BadServer, tmp_path: Path) -> None:
    server.ways["/T0/s3cret"] = answer("403 Forbidden", b"invalid_token")
    name = private(tmp_path / "url", server.url("/T0/s3cret") + "\n")
    one = target("", tmp_path, url_file=name)
    context, output = context_of(job=OF_CELL)
    end = ended(one, {"channel": "ops", "alert": ALERT}, context)
    assert end == Ended(Result.FATAL, 0, "HTTP 403 Forbidden: invalid_token")
    assert "channel ops at 127.0.0.1: 403" in output.text
    assert "s3cret" not in output.text


def test_the_routing_key_is_that_of_the_file(server: BadServer, tmp_path: Path) -> None:
    server.ways["/hook"] = answer("202 Accepted", b'{"status":"success"}')
    one = keyed(server, tmp_path)
    assert told(one, subjects=["a/b", "a/c"], count=2).result is Result.OK
    assert [json.loads(one.body) for one in server.requests] == [
        {"key": "r0uting", "of": "raftcron/prod/backups/a/b"},
        {"key": "r0uting", "of": "raftcron/prod/backups/a/c"},
    ]


def test_a_request_that_fails_stops_those_behind_it(server: BadServer, tmp_path: Path) -> None:
    server.ways["/hook"] = answer("429 Slow Down", b"", "Retry-After: 7")
    one = keyed(server, tmp_path)
    end = told(one, subjects=["a/b", "a/c"], count=2)
    assert (end.result, end.after_ms) == (Result.RETRY, 7_000)
    assert len(server.requests) == 1


def test_a_server_in_trouble_is_asked_again_until_it_is_well(server: BadServer) -> None:
    # An hour of 500: the cell's retries are drawn out, and none of them is the last.
    one = target(server.url("/hook"))
    server.ways["/hook"] = answer("500 Oops", b"")
    assert {told(one).result for _ in range(10)} == {Result.RETRY}
    server.ways["/hook"] = answer("200 OK", b"")
    assert told(one) == Ended(Result.OK, 0, "HTTP 200")


def test_a_heartbeat_is_a_get_without_a_body(server: BadServer) -> None:
    context, _ = context_of(job="raftcron/heartbeat-ops")
    end = ended(target(server.url("/hook")), {"heartbeat": "ops"}, context)
    assert end.result is Result.OK
    [request] = server.requests
    assert (request.method, request.body) == ("GET", b"")


def test_a_channel_that_is_not_configured_yet_is_tried_again() -> None:
    payload = {"channel": "osp", "alert": ALERT}
    end = ended(target("https://hooks.example.com/"), payload, context_of(job=OF_CELL)[0])
    assert end == Ended(Result.RETRY, 0, "channel 'osp' is not configured here")


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"channel": "ops"},
        {"alert": ALERT},
        {"channel": "ops", "heartbeat": "ops"},
        {"channel": "ops", "alert": ALERT, "heartbeat": "ops"},
        {"channel": "ops", "alert": ALERT, "message": "m"},
        {"heartbeat": "ops", "message": "m"},
        {"message": "m"},
        {"channel": "ops", "alert": {"number": "x", "state": "firing"}},
        {"channel": "ops", "alert": ALERT, "url": "http://169.254.169.254/"},
    ],
)
def test_what_is_no_alert_and_no_heartbeat_is_refused(payload: Any) -> None:
    end = ended(target("https://hooks.example.com/"), payload, context_of(job=OF_CELL)[0])
    assert end.result is Result.FATAL
    assert end.detail.startswith("payload")


# ---- who may say what


@pytest.mark.parametrize("state", ["firing", "resolved", "test"])
@pytest.mark.parametrize("tenants", [(), ("acme",), ("other",)])
def test_nobody_but_the_cell_opens_or_resolves_an_incident(
    server: BadServer, state: str, tenants: tuple[str, ...]
) -> None:
    one = target(server.url("/hook"), tenants=tenants)
    end = ended(one, {"channel": "ops", "alert": ALERT | {"state": state}}, context_of()[0])
    assert end.result is Result.FATAL
    assert end.detail == (
        f"payload: `alert` comes from the cell alone, and {LAUNCH} is a launch of tenant acme: "
        "send a `message` to a channel that is granted to it"
    )
    assert server.requests == []


@pytest.mark.parametrize("said", [{"heartbeat": "ops"}, {"channel": "ops", "message": {"a": 1}}])
@pytest.mark.parametrize("tenants", [(), ("other", "acm", "acme2")])
def test_a_channel_that_is_not_granted_is_refused(
    server: BadServer, said: dict[str, Any], tenants: tuple[str, ...]
) -> None:
    end = ended(target(server.url("/hook"), tenants=tenants), said, context_of()[0])
    assert end.result is Result.FATAL
    assert end.detail == (
        f"payload: channel 'ops' is not granted to tenant acme, whose launch {LAUNCH} is: an "
        "operator adds it to `tenants` of the channel"
    )
    assert server.requests == []


def test_a_granted_channel_carries_messages_and_heartbeats_of_its_tenant(
    server: BadServer,
) -> None:
    one = target(server.url("/hook"), tenants=("other", "acme"))
    said = {"channel": "ops", "message": {"alert": ALERT, "text": "hello"}}
    assert ended(one, said, context_of()[0]).result is Result.OK
    assert ended(one, {"heartbeat": "ops"}, context_of()[0]).result is Result.OK
    message, beat = server.requests
    assert json.loads(message.body) == {
        "launch": LAUNCH, "job": "acme/mail", "message": said["message"],
    }  # fmt: skip
    assert (beat.method, beat.body) == ("GET", b"")


@pytest.mark.parametrize("payload", [{"channel": "ops", "alert": ALERT}, {"heartbeat": "ops"}])
def test_a_granted_channel_carries_nothing_of_the_cell(
    server: BadServer, payload: dict[str, Any]
) -> None:
    one = target(server.url("/hook"), tenants=("acme",))
    end = ended(one, payload, context_of(job=OF_CELL)[0])
    assert end == Ended(Result.RETRY, 0, "channel 'ops' is one of tenants: take `tenants` away"), (
        "the cell's alert waits until a person has mended the file"
    )
    assert server.requests == []


def test_a_signed_request_can_be_verified_and_a_killed_one_ends(
    server: BadServer, tmp_path: Path
) -> None:
    secret = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=" + "\n"
    one = target(server.url("/hook"), tmp_path, secrets=private(tmp_path / "secrets", secret))
    assert told(one).result is Result.OK
    assert server.requests[0].headers["webhook-signature"].startswith("v1,")
    release = threading.Event()
    server.ways["/hook"] = lambda end, request: release.wait(10) and None
    context, _ = context_of(job=OF_CELL)
    timer = threading.Timer(0.2, context.cancelled.set, ["killed"])
    timer.start()
    end = ended(one, {"channel": "ops", "alert": ALERT}, context)
    release.set()
    timer.join()
    assert end.result is Result.CANCELLED


# ---- the configuration


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"url": ""}, "it has no URL"),
        ({"url": "hooks.example.com"}, "its URL is none"),
        ({"url": "ftp://example.com/"}, "its URL is none"),
        ({"url": "https://[::1"}, "its URL is none"),
        ({"url": "https://user@example.com/"}, "a user in it"),
        ({"url": "https://example.com/", "url_file": "f"}, "remove one of them"),
        ({"url": "", "url_file": "missing"}, "cannot be read"),
        ({"url": "https://{{ alert.cell }}/"}, "the host of its URL is a template"),
        ({"url": "https://a{{ alert.cell }}.example/"}, "the host of its URL is a template"),
        ({"url": "https://a.example/{{ alert.cell }}"}, "only percent-encoded"),
        ({"url": "https://a.example/{{ alert.cell"}, "its URL: line 1: unexpected end"),
        ({"url": "http://example.com/", "key": "key"}, "without TLS"),
        ({"url": "https://example.com/", "template": "missing"}, "missing: cannot be read"),
        ({"url": "http://example.com/", "headers": "headers"}, "needs https"),
        ({"url": "https://example.com/", "key": "open"}, "everybody on this host"),
        ({"url": "https://example.com/", "key": "empty"}, "no key"),
    ],
)
def test_a_wrong_configuration_is_refused_with_the_channel(
    fields: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    private(tmp_path / "key", "k3y\n")
    private(tmp_path / "empty", "")
    private(tmp_path / "headers", "authorization: Bearer t\n")
    (tmp_path / "open").write_text("k3y")
    (tmp_path / "open").chmod(0o644)
    with pytest.raises(BadConfig, match=problem) as caught:
        target(folder=tmp_path, **fields)
    assert "channel ops" in str(caught.value) or "target" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *(
            (
                f'shape = "{name}"',
                f'shape and severity are gone: write template = "{name}.json.j2" and begin with '
                f"examples/alerts/{name}.json.j2 (docs/upgrade.md)",
            )
            for name in ("slack", "pagerduty", "alertmanager")
        ),
        ('shape = "json"', "shape and severity are gone: take them away; the body is JSON"),
        (
            'severity = "critical"',
            "shape and severity are gone: take them away; the body is JSON",
        ),
        ('tenants = ["raftcron"]', "tenants: raftcron is the cell's own, which needs no grant"),
    ],
)
def test_a_setting_that_cannot_be_is_answered_with_the_way_out(
    line: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "targets.toml"
    file.write_text(f'[[webhook.channel]]\nname = "ops"\nurl = "https://a.example"\n{line}\n')
    with pytest.raises(BadConfig) as refused:
        load(file)
    assert str(refused.value) == f"{file}: {said} - at `$.webhook.channel[0]`"


def test_two_channels_of_one_name_are_refused() -> None:
    one = WebhookChannel(name="ops", url="https://example.com/")
    with pytest.raises(BadConfig, match="ops is there twice"):
        WebhookTarget(WebhookConfig(channel=(one, one)), Path())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{\n{{ title | tojson }", "line 2: unexpected '}'"),
        ("{% if %}", "line 1: Expected an expression, got 'end of statement block'"),
        ("[\n{{ titel | tojson }}]", "line 2: there is no variable 'titel'"),
        ("[\n{% if alert.number > 5 %}{{ nonsense }}{% endif %}]", "line 2: there is no variable"),
        ("[1,\n\n{{ alert.sate | tojson }}]", "line 3: 'dict object' has no attribute 'sate'"),
        (
            '{"text": "{{ title }}"}',
            "it makes no JSON at line 1 of the body",
        ),
        ("{{ [1e999] | tojson }}", "it makes no JSON"),
        ("", "it makes no JSON"),
        ("{% include 'other' %}", "line 1: no loader for this environment specified"),
        ("{{ title | nothing }}", "line 1: No filter named 'nothing'"),
        ("[{{ 1 // 0 }}]", "line 1: integer division or modulo by zero"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_with_file_and_line(
    text: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "body.j2").write_text(text)
    with pytest.raises(BadConfig) as refused:
        target("https://example.com/", tmp_path, template="body.j2")
    assert str(refused.value).startswith(f"webhook: channel ops: {tmp_path / 'body.j2'}: {problem}")
    assert refused.value.hint == (
        "docs/targets.md says what a template may name; see examples/alerts"
    )


def test_a_template_of_a_granted_channel_sees_the_launch_and_its_message(
    server: BadServer, tmp_path: Path
) -> None:
    (tmp_path / "body").write_text(
        "{{ [tenant, job, launch, attempt, due, key, message.text] | tojson }}"
    )
    one = target(server.url("/hook"), tmp_path, template="body", tenants=("acme",))
    said = {"channel": "ops", "message": {"text": '"'}}
    assert ended(one, said, context_of(attempt=2)[0]).result is Result.OK
    assert json.loads(server.requests[0].body) == [
        "acme", "acme/mail", LAUNCH, 2, "2026-11-20T15:00:00Z", "", '"',
    ]  # fmt: skip
    (tmp_path / "body").write_text("{{ alert | tojson }}")
    with pytest.raises(BadConfig, match="there is no variable 'alert'"):
        target(server.url("/hook"), tmp_path, template="body", tenants=("acme",))


def test_what_a_template_cannot_tell_is_tried_again_and_says_why(
    server: BadServer, tmp_path: Path
) -> None:
    # A message has any form: whoever mends the template has lost nothing.
    (tmp_path / "body").write_text("[\n{{ message.text | tojson }}]")
    one = target(server.url("/hook"), tmp_path, template="body", tenants=("acme",))
    end = ended(one, {"channel": "ops", "message": {"txt": 1}}, context_of()[0])
    assert end.result is Result.RETRY
    assert end.detail == f"{tmp_path / 'body'}: line 2: 'dict object' has no attribute 'text'"
    assert server.requests == []


def test_the_path_of_a_url_is_a_template_and_another_type_is_sent_as_it_is(
    server: BadServer, tmp_path: Path
) -> None:
    server.ways["/a%2Fb/resolved"] = answer("200 OK", b"ok")
    (tmp_path / "body").write_text("{{ alert.subjects | join }} & co")
    url = server.url(
        "/{{ alert.subjects | first | default('x') | urlencode | replace('/', '%2F') }}"
    )
    one = target(
        f"{url}/{{{{ alert.state }}}}", tmp_path, template="body", content_type="text/plain"
    )
    assert told(one, subjects=["a/b"], state="resolved").result is Result.OK
    [request] = server.requests
    assert (request.headers["content-type"], request.body) == ("text/plain", b"a/b & co")
    beat = ended(one, {"heartbeat": "ops"}, context_of(job=OF_CELL)[0])
    assert beat.detail == "channel 'ops': its URL is a template, which is of alerts"
