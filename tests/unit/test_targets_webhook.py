"""The target `webhook`: what chats and pagers are sent, and channels whose server is in trouble."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import BadConfig
from launcher.targets.alert_text import Alerted
from launcher.targets.config import WebhookChannel, WebhookConfig, load
from launcher.targets.shapes import KEY_CHARS_MAX, SHAPES, Manner, bodies, dedup_key
from launcher.targets.webhook import WebhookTarget
from launcher.worker.outcome import Ended
from launcher.worker.wire import Result
from tests.fakes.bad_http import BadServer, answer, bad_server
from tests.unit.targets_rig import LAUNCH, OF_CELL, context_of, ended, read

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


def shaped(shape: str, **alert: Any) -> list[Any]:
    manner = Manner(shape, "k3y", "critical", CONSOLE)
    return bodies(Alerted(**ALERT | alert), manner)


def private(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return path.name


# ---- shapes


def test_plain_json_has_the_alert_and_its_words() -> None:
    [body] = shaped("json")
    assert body["alert"] == ALERT | {"open": 0, "removed": []}
    assert body["title"] == "[raftcron prod] acme/backup failed 2 times in a row"
    assert "How to look:" in body["text"]
    assert body["link"] == "https://cron.example.com/jobs/acme/backup"


def test_slack_gets_a_text_with_a_colour_and_a_link() -> None:
    [body] = shaped("slack")
    assert body["text"] == "[raftcron prod] acme/backup failed 2 times in a row"
    [part] = body["attachments"]
    assert part["color"] == "danger"
    assert part["title_link"] == "https://cron.example.com/jobs/acme/backup"
    [over] = shaped("slack", state="resolved")
    assert over["attachments"][0]["color"] == "good"


def test_nothing_from_a_job_is_markup_of_slack() -> None:
    [body] = shaped("slack", evidence={"detail": "<!channel> & <http://x|y>"}, rule="<@U1>")
    said = body["attachments"][0]["text"]
    assert "&lt;!channel&gt; &amp; &lt;http://x|y&gt;" in said
    assert "<" not in said


def test_pagerduty_is_told_to_open_and_to_resolve_the_same_incident() -> None:
    [opened] = shaped("pagerduty")
    [resolved] = shaped("pagerduty", state="resolved", number=99)
    assert opened["event_action"] == "trigger"
    assert opened["payload"]["severity"] == "critical"
    assert opened["payload"]["source"] == "prod"
    assert opened["payload"]["summary"].endswith("acme/backup failed 2 times in a row")
    assert opened["payload"]["custom_details"]["Failures"] == "2"
    assert resolved == {
        "routing_key": "k3y",
        "dedup_key": "raftcron/prod/backups/acme/backup",
        "event_action": "resolve",
    }
    assert opened["dedup_key"] == resolved["dedup_key"]


def test_a_test_leaves_no_incident_open() -> None:
    opened, over = shaped("pagerduty", state="test", subjects=[])
    assert (opened["event_action"], over["event_action"]) == ("trigger", "resolve")
    assert opened["dedup_key"] == over["dedup_key"]
    assert opened["payload"]["severity"] == "info"


def test_each_name_of_a_delivery_is_an_incident_and_the_others_are_one() -> None:
    names = [f"acme/{n}" for n in range(20)]
    opened = shaped("pagerduty", subjects=names, count=10_000)
    assert len(opened) == 21
    assert len({one["dedup_key"] for one in opened}) == 21
    assert "9,980 jobs failed" in opened[-1]["payload"]["summary"]
    [later] = shaped("pagerduty", state="resolved", subjects=["acme/7"])
    assert later["dedup_key"] == opened[7]["dedup_key"]


def test_long_names_have_short_keys_of_their_own() -> None:
    long = [Alerted(**ALERT | {"subjects": [f"{'a' * 300}{n}"]}) for n in range(2)]
    keys = [dedup_key(one) for one in long]
    assert keys[0] != keys[1]
    assert max(map(len, keys)) <= KEY_CHARS_MAX


def test_alertmanager_gets_labels_that_stay_and_an_end() -> None:
    [[fires]] = shaped("alertmanager")
    [[over]] = shaped("alertmanager", state="resolved", at="2026-11-20T16:00:00Z", number=99)
    assert fires["labels"] == over["labels"] == {
        "alertname": "RaftcronFailed", "cell": "prod", "rule": "backups",
        "subject": "acme/backup", "severity": "critical",
    }  # fmt: skip
    assert fires["startsAt"] == "2026-11-20T15:00:00Z"
    assert fires["endsAt"] == "2026-12-20T15:01:00Z", "or it would end by itself in minutes"
    assert over["endsAt"] == "2026-11-20T16:00:00Z"
    [[tried]] = shaped("alertmanager", state="test", kind="", subjects=[], rule="")
    assert tried["labels"]["alertname"] == "RaftcronTest"
    assert tried["endsAt"] == "2026-11-20T15:06:00Z"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("state", ["firing", "resolved", "test"])
def test_an_alert_with_little_in_it_has_every_shape(shape: str, state: str) -> None:
    found = bodies(Alerted(number=1, state=state), Manner(shape))
    assert found
    json.dumps(found)


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
    one = target("", tmp_path, url_file=name, shape="slack")
    context, output = context_of(job=OF_CELL)
    end = ended(one, {"channel": "ops", "alert": ALERT}, context)
    assert end == Ended(Result.FATAL, 0, "HTTP 403 Forbidden: invalid_token")
    assert "channel ops at 127.0.0.1: 403" in output.text
    assert "s3cret" not in output.text


def test_the_routing_key_is_that_of_the_file(server: BadServer, tmp_path: Path) -> None:
    server.ways["/hook"] = answer("202 Accepted", b'{"status":"success"}')
    key = private(tmp_path / "key", "r0uting\n")
    one = target(server.url("/hook"), tmp_path, key=key, shape="pagerduty")
    assert told(one, subjects=["a/b", "a/c"], count=2).result is Result.OK
    assert [json.loads(one.body)["routing_key"] for one in server.requests] == ["r0uting"] * 2


def test_a_request_that_fails_stops_those_behind_it(server: BadServer, tmp_path: Path) -> None:
    server.ways["/hook"] = answer("429 Slow Down", b"", "Retry-After: 7")
    key = private(tmp_path / "key", "r0uting\n")
    one = target(server.url("/hook"), tmp_path, key=key, shape="pagerduty")
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


def test_alertmanager_has_its_own_path(server: BadServer) -> None:
    server.ways["/api/v2/alerts"] = answer("200 OK", b"")
    assert told(target(server.url(""), shape="alertmanager")).result is Result.OK
    [request] = server.requests
    assert json.loads(request.body)[0]["labels"]["subject"] == "acme/backup"


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
        ({"url": "https://example.com/", "shape": "pagerduty"}, "it has no key"),
        ({"url": "http://example.com/", "shape": "pagerduty", "key": "key"}, "without TLS"),
        ({"url": "http://example.com/", "headers": "headers"}, "needs https"),
        ({"url": "https://example.com/", "key": "open"}, "everybody on this host"),
        ({"url": "https://example.com/", "key": "empty"}, "no routing key"),
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
        ('shape = "teams"', "shape 'teams' is not one of json, slack, pagerduty, alertmanager"),
        ('severity = "bad"', "severity 'bad' is not one of critical, error, warning, info"),
    ],
)
def test_a_wrong_word_is_answered_with_those_that_there_are(
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


def test_pagerduty_needs_no_url(tmp_path: Path) -> None:
    key = private(tmp_path / "key", "k3y\n")
    one = target("", tmp_path, key=key, shape="pagerduty")
    calls = read(one, {"channel": "ops", "alert": ALERT}, job=OF_CELL)
    assert calls.requests[0].url.geturl() == "https://events.pagerduty.com/v2/enqueue"
