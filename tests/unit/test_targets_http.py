"""The target `http` and a server that answers in every bad way."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from launcher.clock import wall_ms
from launcher.errors import BadConfig
from launcher.targets import connecting
from launcher.targets import http as http_target
from launcher.targets.config import Endpoint, HttpConfig
from launcher.targets.http import BODY_BYTES_MAX, HttpTarget, retry_after_ms
from launcher.targets.target import RETRY_AFTER_MS_MAX
from launcher.worker.outcome import Ended
from launcher.worker.wire import Result
from tests.fakes.bad_http import (
    Answering,
    BadServer,
    Request,
    answer,
    bad_server,
    raw,
    reset,
    silence,
    trickle,
)
from tests.unit.targets_rig import LAUNCH, Output, certificate, context_of, ended, read

LOOPBACK = "127.0.0.0/8"
SECRET = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def server() -> Iterator[BadServer]:
    with bad_server() as one:
        yield one


def target(**fields: Any) -> HttpTarget:
    """A target that may reach the loopback address."""
    said = {"hosts": ("127.0.0.1", "localhost"), "networks": (LOOPBACK,), "timeout": "20s"}
    return HttpTarget(HttpConfig(**said | fields), fields.pop("folder", Path()))


def sent(server: BadServer, way: Answering | None = None, **fields: Any) -> tuple[Ended, Output]:
    """How a request ends, and the output of its attempt."""
    if way is not None:
        server.ways["/"] = way
    context, output = context_of()
    return ended(target(), {"url": server.url(), **fields}, context), output


# ---- what is sent


def test_a_request_says_which_launch_it_is_of(server: BadServer) -> None:
    server.ways["/hook"] = answer("200 OK", b"thanks")
    context, output = context_of(attempt=3)
    payload = {
        "url": server.url("/hook?page=1"), "headers": {"X-Shop": "7"}, "body": {"to": [1, 2.50]},
        "event_type": "invoice.paid", "subject": "in \u00e4",
    }  # fmt: skip
    assert ended(target(), payload, context) == Ended(Result.OK, 0, "thanks")
    [request] = server.requests
    assert (request.method, request.path) == ("POST", "/hook?page=1")
    assert json.loads(request.body) == {"to": [1, 2.5]}
    expected = {
        "host": f"127.0.0.1:{server.port}", "idempotency-key": LAUNCH, "x-shop": "7",
        "ce-specversion": "1.0", "ce-id": LAUNCH, "ce-source": "/raftcron/acme/mail",
        "ce-type": "invoice.paid", "ce-subject": "in%20%C3%A4", "ce-time": "2026-11-20T15:00:00Z",
        "ce-raftcronattempt": "3", "content-type": "application/json",
        "content-length": str(len(request.body)),
    }  # fmt: skip
    assert expected.items() <= request.headers.items()
    assert not [name for name in request.headers if name.startswith("webhook")]
    place = f"http://127.0.0.1:{server.port}/hook"
    assert output.text.startswith(f"POST {place}: 200 in "), "a query may be a credential"
    assert output.text.endswith(" ms\nthanks\n")


@pytest.mark.parametrize(
    ("fields", "method", "body", "kind"),
    [
        ({}, "POST", b"", None),
        ({"body": "plain \u00e4"}, "POST", "plain \u00e4".encode(), "text/plain; charset=utf-8"),
        ({"body": None}, "POST", b"null", "application/json"),
        (
            {"body": 7, "headers": {"Content-Type": "text/x"}, "method": "put"},
            "PUT",
            b"7",
            "text/x",
        ),
        ({"method": "GET"}, "GET", b"", None),
        ({"method": "DELETE"}, "DELETE", b"", None),
    ],
)
def test_a_body_is_a_text_or_json(
    server: BadServer, fields: dict[str, Any], method: str, body: bytes, kind: str | None
) -> None:
    assert sent(server, answer("204 No Content"), **fields)[0] == Ended(Result.OK, 0, "HTTP 204")
    [request] = server.requests
    assert (request.method, request.body) == (method, body)
    assert request.headers.get("content-type") == kind
    assert ("content-length" in request.headers) == (method in ("POST", "PUT"))


def test_a_request_is_signed_with_each_secret_of_its_host(
    server: BadServer, tmp_path: Path
) -> None:
    # The verification is written anew here, as the specification of Standard Webhooks says it.
    server.ways["/"] = answer("200 OK")
    other = base64.b64encode(b"x" * 24).decode()
    for name, text in (
        ("all", f"whsec_{other}\n"), ("own", f"# new\nwhsec_{SECRET}\n\n# old\n{other}\n"),
        ("headers", "Authorization: Bearer t0ken\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    endpoint = Endpoint(host="LocalHost", secrets="own", headers="headers")
    config = HttpConfig(
        hosts=("*",), networks=(LOOPBACK, "::1/128"), secrets="all", endpoint=(endpoint,)
    )
    one = HttpTarget(config, tmp_path)
    for host, secrets in (("localhost", (SECRET, other)), ("127.0.0.1", (other,))):
        context, output = context_of()
        payload = {"url": server.url(host=host), "body": {"a": 1}}
        assert ended(one, payload, context).result is Result.OK
        headers = server.requests[-1].headers
        name, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
        assert "." not in name
        assert abs(int(timestamp) - wall_ms() // 1000) < 60
        signed = f"{name}.{timestamp}.".encode() + server.requests[-1].body
        expected = [
            "v1," + base64.b64encode(
                hmac.new(base64.b64decode(secret), signed, hashlib.sha256).digest()
            ).decode()
            for secret in secrets
        ]  # fmt: skip
        assert headers["webhook-signature"].split(" ") == expected
        assert headers.get("authorization") == ("Bearer t0ken" if host == "localhost" else None)
        assert "t0ken" not in output.text
    first, second = (request.headers["webhook-id"] for request in server.requests)
    assert first == second, "it is that of the launch"


# ---- what an answer means


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (200, Result.OK), (201, Result.OK), (202, Result.OK), (299, Result.OK),
        (408, Result.RETRY), (409, Result.RETRY), (425, Result.RETRY), (429, Result.RETRY),
        (500, Result.RETRY), (503, Result.RETRY), (599, Result.RETRY), (799, Result.RETRY),
        (400, Result.FATAL), (401, Result.FATAL), (404, Result.FATAL), (410, Result.FATAL),
        (300, Result.FATAL), (304, Result.FATAL), (101, Result.FATAL),
    ],
)  # fmt: skip
def test_the_status_decides(server: BadServer, status: int, result: Result) -> None:
    end, _ = sent(server, answer(f"{status} Said So", b"why"))
    assert end.result is result
    if result is not Result.OK:
        assert end.detail.startswith(f"HTTP {status} Said So")
        assert end.trace == ""


@pytest.mark.parametrize(
    ("said", "ms"),
    [
        ("120", 120_000), (" 0 ", 0), ("Fri, 20 Nov 2026 15:01:00 GMT", 60_000),
        ("Fri, 20 Nov 2026 14:00:00 GMT", 0), ("999999999999999999", RETRY_AFTER_MS_MAX),
        ("Fri, 20 Nov 2099 14:00:00 GMT", RETRY_AFTER_MS_MAX), ("-5", 0), ("soon", 0), ("", 0),
        ("1.5", 0), ("\u0663", 0), (None, 0), ("Fri, 99 Nov 2026 14:00:00 GMT", 0),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(said: str | None, ms: int) -> None:
    now = datetime(2026, 11, 20, 15, tzinfo=UTC)
    assert retry_after_ms(said, int(now.timestamp() * 1000)) == ms


def test_a_server_says_when_to_come_again(server: BadServer) -> None:
    end, _ = sent(server, answer("429 Slow Down", b"", "Retry-After: 7"))
    assert (end.result, end.after_ms) == (Result.RETRY, 7_000)
    end, _ = sent(server, answer("503 Later", b""))
    assert (end.result, end.after_ms) == (Result.RETRY, 0), "the job's backoff"


def test_the_beginning_of_the_body_is_the_result(server: BadServer) -> None:
    body = ("\u00e4\x1b[2J\n" * 1_000).encode()
    context, output = context_of()
    server.ways["/"] = answer("200 OK", body)
    text = http_target.excerpt(body)
    assert "\x1b" not in text
    assert len(text.encode()) <= 1_024
    end = ended(target(), {"url": server.url()}, context)
    assert text.startswith(end.detail.removesuffix("..."))
    assert output.text.endswith(f"\n{text}\n")


# ---- every bad way


OK_HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("way", "detail"),
    [
        (raw(b""), "the connection was closed before an answer"),
        (reset(), "the connection was closed before an answer"),
        (reset(b"HTTP/1.1 200"), "the connection was closed before an answer"),
        (raw(b"HTTP/1.1 200"), "the connection was closed before an answer"),
        (raw(OK_HEAD), "the connection was closed before an answer"),
        (raw(OK_HEAD + b"x: y"), "the connection was closed before an answer"),
        (raw(b"\x16\x03\x01 garbage\r\n\r\n"), "what it answered is not HTTP"),
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "what it answered is not HTTP"),
        (raw(b"HTTP/1.1 OK fine\r\n\r\n"), "what it answered is not HTTP"),
        (raw(b"HTTP/9.9.9 200 OK\r\n\r\n"), "HTTP/9.9.9"),
        (raw(OK_HEAD + b"x: " + b"y" * 70_000 + b"\r\n\r\n"), "too long"),
        (raw(OK_HEAD + b"x: y\r\n" * 200 + b"\r\n"), "got more than 100 headers"),
        (raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 200), "over 100 interim answers"),
        (raw(b"HTTP/1.1 103 Early Hints\r\n\r\n"), "the connection was closed before an answer"),
    ],
)
def test_what_is_no_answer_is_tried_again(server: BadServer, way: Answering, detail: str) -> None:
    end, output = sent(server, way)
    assert end.result is Result.RETRY, end
    assert detail in end.detail
    assert end.trace == ""
    assert output.text == ""


@pytest.mark.parametrize(
    "way",
    [
        raw(OK_HEAD + b"content-length: 100\r\n\r\nshort"),
        reset(OK_HEAD + b"content-length: 100\r\n\r\nshort"),
        raw(OK_HEAD + b"content-length: 3\r\n\r\nshort and more"),
        raw(OK_HEAD + b"content-length: many\r\n\r\nshort"),
        raw(OK_HEAD + b"content-length: -1\r\n\r\nshort"),
        raw(OK_HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\nshort"),
        raw(OK_HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nshort\r\n"),
        raw(OK_HEAD + b"transfer-encoding: chunked\r\n\r\nffffffff\r\nshort"),
        raw(OK_HEAD + b"broken header\r\n\r\nshort"),
        raw(OK_HEAD + b"\r\nshort"),
        raw(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK_HEAD + b"\r\nshort"),
        raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 P\r\n\r\n" + OK_HEAD + b"\r\nshort"),
        raw(b"HTTP/1.0 200\r\n\r\nshort"),
    ],
)
def test_a_success_is_one_whatever_its_body(server: BadServer, way: Answering) -> None:
    # A server that was told no, and has done it, would do it again.
    end, _ = sent(server, way)
    assert end.result is Result.OK, end
    assert end.detail[:5] in ("short", "HTTP ", "sho")


def test_an_endless_body_is_read_up_to_a_bound(server: BadServer) -> None:
    took: list[int] = []

    def flood(end: socket.socket, request: Request) -> None:
        end.sendall(OK_HEAD + b"\r\n")
        while not server.over.is_set():
            took.append(end.send(b"x" * 65_536))

    end, _ = sent(server, flood)
    assert end.result is Result.OK
    server.over.set()
    assert sum(took) < 64 * BODY_BYTES_MAX, "it hung up"


def test_a_slow_body_ends_with_its_time(server: BadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_target, "BODY_MS", 300)
    end, _ = sent(server, trickle(server, OK_HEAD + b"\r\n", b"x"))
    assert end.result is Result.OK
    assert set(end.detail) == {"x"}


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nx: "])
def test_slow_headers_end_with_the_time_of_the_request(server: BadServer, first: bytes) -> None:
    # Each byte comes in time for a socket's timeout; all of them never would.
    end, _ = sent(server, trickle(server, first, b"H" if not first else b"y"), timeout="500ms")
    assert end.result is Result.RETRY
    assert "no answer in time" in end.detail


def test_a_silent_server_ends_with_the_time_of_the_request(server: BadServer) -> None:
    end, _ = sent(server, silence(server), timeout="300ms")
    assert (end.result, end.detail) == (Result.RETRY, "127.0.0.1: no answer in time")


def test_the_time_of_the_launch_bounds_that_of_the_request(server: BadServer) -> None:
    server.ways["/"] = silence(server)
    context, _ = context_of(timeout_ms=300)
    assert ended(target(), {"url": server.url()}, context).result is Result.RETRY


def test_a_cancelled_launch_hangs_up(server: BadServer) -> None:
    server.ways["/"] = silence(server)
    context, _ = context_of()
    timer = threading.Timer(0.2, context.cancelled.set, ["killed"])
    timer.start()
    assert ended(target(), {"url": server.url()}, context).result is Result.CANCELLED
    timer.join()


def test_an_answer_before_the_request_was_read_counts(server: BadServer) -> None:
    def refuse(end: socket.socket, request: Request) -> None:
        raise AssertionError("the whole request was read")

    def early(end: socket.socket) -> None:
        end.recv(1_000)
        end.sendall(b"HTTP/1.1 413 Too Big\r\ncontent-length: 0\r\n\r\n")
        end.shutdown(socket.SHUT_WR)
        while end.recv(65_536):
            pass
        end.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=lambda: early(listening.accept()[0]))
        thread.start()
        context, _ = context_of()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        end = ended(target(), {"url": url, "body": "x" * 200_000}, context)
        thread.join()
    assert (end.result, end.detail) == (Result.FATAL, "HTTP 413 Too Big")


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    context, _ = context_of()
    end = ended(target(), {"url": f"http://127.0.0.1:{port}/"}, context)
    assert end.result is Result.RETRY
    assert "connection refused" in end.detail


def test_what_was_sent_before_its_worker_died_is_lost(server: BadServer) -> None:
    context, _ = context_of(is_resumed=True)
    end = ended(target(), {"url": server.url()}, context)
    assert end.result is Result.LOST
    assert "may have been received" in end.detail
    assert server.connections == 0


# ---- redirects


def redirect(status: str, place: str) -> Answering:
    return answer(status, b"", f"Location: {place}")


@pytest.mark.parametrize(
    ("status", "place", "method", "result"),
    [
        ("307 Temporary", "/there?x=1", "POST", Result.OK),
        ("308 Permanent", "/there?x=1", "POST", Result.OK),
        ("302 Found", "/there", "GET", Result.OK),
        ("302 Found", "/there", "POST", Result.FATAL),
        ("301 Moved", "http://localhost:{port}/there", "GET", Result.FATAL),
        ("307 Temporary", "https://127.0.0.1:{port}/there", "POST", Result.FATAL),
        ("307 Temporary", "http://127.0.0.1:1/there", "POST", Result.FATAL),
        ("307 Temporary", "//169.254.169.254/there", "POST", Result.FATAL),
        ("307 Temporary", "file:///etc/passwd", "POST", Result.FATAL),
        ("307 Temporary", "http://user@127.0.0.1:{port}/there", "POST", Result.FATAL),
        ("307 Temporary", "http://[::1/there", "POST", Result.FATAL),
    ],
)
def test_redirects_stay_at_their_host(
    server: BadServer, status: str, place: str, method: str, result: Result
) -> None:
    server.ways["/there"] = answer("200 OK", b"here")
    body = {"body": "x"} if method == "POST" else {}
    way = redirect(status, place.format(port=server.port))
    end, output = sent(server, way, method=method, **body)
    assert end.result is result, end
    if result is Result.OK:
        first, second = server.requests
        assert second.path == place
        assert (second.method, second.body) == (first.method, first.body)
        assert second.headers["idempotency-key"] == LAUNCH
        assert output.text.count(" ms\n") == 2
    else:
        assert server.connections == 1


def test_a_redirect_loop_ends(server: BadServer) -> None:
    end, _ = sent(server, redirect("307 Temporary", "/"))
    assert (end.result, end.detail) == (Result.FATAL, "redirected more than 5 times")
    assert server.connections == 6


# ---- where requests may go


@pytest.mark.parametrize("networks", [(), ("10.0.0.0/8",)], ids=["none", "others"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
def test_an_address_that_is_not_allowed_is_never_connected_to(
    server: BadServer, host: str, networks: tuple[str, ...]
) -> None:
    one = HttpTarget(HttpConfig(hosts=("*",), networks=networks), Path())
    context, _ = context_of()
    end = ended(one, {"url": server.url(host=host)}, context)
    assert end.result is Result.FATAL
    assert "loopback" in end.detail
    assert server.connections == 0


def test_the_address_that_was_checked_is_the_one_that_is_connected_to(
    server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A name that answers with a public address first and a private one later (DNS rebinding).
    asked: list[str] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        place = ("192.0.2.7" if len(asked) > 1 else "127.0.0.1", port)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place)]

    monkeypatch.setattr(connecting.socket, "getaddrinfo", resolve)
    server.ways["/"] = answer("200 OK")
    one = HttpTarget(HttpConfig(hosts=("*",), networks=(LOOPBACK,)), Path())
    context, _ = context_of()
    assert ended(one, {"url": server.url(host="rebinding.example")}, context).result is Result.OK
    assert asked == ["rebinding.example"], "it was asked once"


def test_of_several_addresses_the_allowed_ones_are_tried(
    server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        places = ["169.254.169.254", "10.0.0.1", "127.0.0.2", "127.0.0.1"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in places]

    monkeypatch.setattr(connecting.socket, "getaddrinfo", resolve)
    server.ways["/"] = answer("200 OK")
    one = HttpTarget(HttpConfig(hosts=("*.example",), networks=(LOOPBACK,)), Path())
    context, _ = context_of()
    assert ended(one, {"url": server.url(host="many.example")}, context).result is Result.OK


def test_a_name_that_is_not_found_in_time_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = threading.Event()

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        over.wait(60)
        return []

    monkeypatch.setattr(connecting.socket, "getaddrinfo", resolve)
    context, _ = context_of()
    one = HttpTarget(HttpConfig(hosts=("*",)), Path())
    end = ended(one, {"url": "http://slow.example/", "timeout": "200ms"}, context)
    over.set()
    assert end.result is Result.RETRY
    assert "was not found in time" in end.detail


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"", "expected `object`, got `null`"),
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        ({}, "missing required field `url`"),
        ({"url": 7}, "expected `str`"),
        ({"url": "http://h/", "secret": "x"}, "unknown field `secret`"),
        ({"url": "ftp://h/"}, "no http://"),
        ({"url": "http:///x"}, "no http://"),
        ({"url": "h/x"}, "no http://"),
        ({"url": "http://h:99999/"}, "url: "),
        ({"url": "http://h:0/"}, "port 0"),
        ({"url": "http://ada:pass@h/"}, "a user in it"),
        ({"url": "http://h/a b"}, "percent-encoded"),
        ({"url": "http://h/\r\nx: y"}, "percent-encoded"),
        ({"url": "http://\u00e4.example/"}, "percent-encoded"),
        ({"url": "http://h\\@other/"}, "a backslash"),
        ({"url": "http://%68/"}, "a percent sign"),
        ({"url": "http://h/" + "x" * 9_000}, "over 8192 characters"),
        ({"url": "http://other/"}, "host other is not one of"),
        ({"url": "http://h/", "method": "BREW"}, "method 'BREW'"),
        ({"url": "http://h/", "method": "GET", "body": 1}, "a GET request has no body"),
        ({"url": "http://h/", "headers": {"Host": "x"}}, "header host is set by the target"),
        ({"url": "http://h/", "headers": {"Ce-Id": "x"}}, "header ce-id is set by the target"),
        ({"url": "http://h/", "headers": {"webhook-signature": "x"}}, "set by the target"),
        ({"url": "http://h/", "headers": {"Transfer-Encoding": "x"}}, "set by the target"),
        ({"url": "http://h/", "headers": {"a b": "x"}}, "no name of a header"),
        ({"url": "http://h/", "headers": {"": "x"}}, "no name of a header"),
        ({"url": "http://h/", "headers": {"a": "x\r\ny: z"}}, "not printable ASCII"),
        ({"url": "http://h/", "headers": {str(one): "" for one in range(51)}}, "over 50 headers"),
        ({"url": "http://h/", "timeout": "soon"}, "is not a length"),
        ({"url": "http://h/", "timeout": 0}, "no time at all"),
        ({"url": "http://h/", "timeout": "1h"}, "over `timeout_max`"),
    ],
)
def test_a_payload_that_is_no_request_is_refused(payload: object, problem: str) -> None:
    context, _ = context_of()
    end = ended(HttpTarget(HttpConfig(hosts=("h",)), Path()), payload, context)
    assert end.result is Result.FATAL
    assert problem in end.detail
    assert "pass" not in end.detail


@pytest.mark.parametrize("url", ["http://api.example.com/", "http://API.example.com.:443/"])
def test_headers_with_credentials_are_not_sent_without_tls(url: str, tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("authorization: Bearer t0ken")
    (tmp_path / "headers").chmod(0o600)
    endpoint = Endpoint(host="api.example.com", headers="headers")
    one = HttpTarget(HttpConfig(hosts=("*.example.com",), endpoint=(endpoint,)), tmp_path)
    end = ended(one, {"url": url}, context_of()[0])
    assert end.result is Result.FATAL
    assert "gets a secret header, and needs https://" in end.detail
    read(one, {"url": "https://api.example.com/"})
    read(one, {"url": "http://www.example.com/"})


# ---- TLS


@pytest.mark.parametrize(
    ("name", "trusted", "days", "detail"),
    [
        ("127.0.0.1", True, 1, ""),
        ("127.0.0.1", False, 1, "the certificate is not trusted"),
        ("other.example", True, 1, "the certificate is not trusted"),
        ("127.0.0.1", True, -1, "the certificate is not trusted: certificate has expired"),
    ],
)
def test_a_certificate_is_checked(
    tmp_path: Path, name: str, trusted: bool, days: float, detail: str
) -> None:
    path = certificate(tmp_path, name, days=days)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    with bad_server(context) as server:
        server.ways["/"] = answer("200 OK", b"safe")
        one = target(ca=str(path)) if trusted else target()
        attempt, _ = context_of()
        end = ended(one, {"url": server.url()}, attempt)
    if detail:
        assert end.result is Result.RETRY
        assert detail in end.detail
        assert server.requests == []
    else:
        assert end == Ended(Result.OK, 0, "safe")


def test_a_server_without_tls_is_no_https(server: BadServer) -> None:
    context, _ = context_of()
    url = server.url().replace("http:", "https:")
    end = ended(target(), {"url": url, "timeout": "60s"}, context)
    assert end.result is Result.RETRY
    assert "TLS" in end.detail


def test_a_handshake_that_does_not_end_ends_with_the_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/"
        context, _ = context_of()
        end = ended(target(), {"url": url, "timeout": "300ms"}, context)
    assert end.result is Result.RETRY


# ---- the configuration


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"hosts": ("http://h",)}, "is no host"),
        ({"hosts": ("",)}, "is no host"),
        ({"hosts": ("*.*.example",)}, "is no host"),
        ({"networks": ("10.0.0.1/8",)}, "has host bits set"),
        ({"timeout": "soon"}, "http.timeout"),
        ({"secrets": "missing"}, "cannot be read"),
        ({"secrets": "open"}, "everybody on this host may read it"),
        ({"secrets": "short"}, "line 1 is a secret of 3 bytes"),
        ({"secrets": "bad"}, "line 2 is not base64"),
        ({"secrets": "empty"}, "it has 0 secrets"),
        ({"endpoint": (Endpoint(host="h", headers="bad"),)}, "line 2 is no header"),
        ({"ca": "bad"}, "has no certificates"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(
    tmp_path: Path, fields: dict[str, Any], problem: str
) -> None:
    for name, text in (
        ("open", SECRET), ("short", "whsec_YWJj"), ("bad", "# x\nnot base64"), ("empty", "#\n"),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o644 if name == "open" else 0o600)
    with pytest.raises(BadConfig) as caught:
        HttpTarget(HttpConfig(**{"hosts": ("h",)} | fields), tmp_path)
    assert problem in str(caught.value)
    assert "not base64 " not in str(caught.value)
