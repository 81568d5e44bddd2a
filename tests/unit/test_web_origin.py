"""cron.web.origin: requests that a page of somebody else made a browser send."""

from __future__ import annotations

import pytest

from cron.web.origin import check_host, check_origin
from cron.web.problems import Refusal
from tests.unit.api_rig import FakeBackend
from tests.unit.web_rig import site


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:7480",
        "LOCALHOST:7480",
        "localhost:",
        "127.0.0.1:7480",
        "127.9.9.9",
        "[::1]:7480",
        "[::1]",
        "",
    ],
)
def test_a_name_of_loopback_is_ours(host: str) -> None:
    check_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7480",
        "localhost.evil.example",
        "127.0.0.1.evil.example:7480",
        "10.0.0.1:7480",
        "localhost@evil.example",
        "[::1",
        "localhost, evil.example",
        "0.0.0.0:7480",
        " ",
        "/",
        "evil.example@localhost",
        "evil.example:7480@127.0.0.1:7480",
        "@localhost",
        "localhost/evil.example",
        "localhost#evil.example",
        "localhost?evil.example",
        "localhost\\evil.example",
        "localhost:7480:7481",
        "localhost:x",
        "localhost:-1",
        "localhost\t",
        "local%68ost",
        "[::1%25lo]",
        "[::1]evil.example",
        "::1",
        "localhost:\u0667",
    ],
)
def test_another_host_is_refused(host: str) -> None:
    # DNS rebinding: a page's own name resolves to 127.0.0.1, and its browser reads our answers.
    with pytest.raises(Refusal) as caught:
        check_host(host)
    assert caught.value.status == 421


@pytest.mark.parametrize("host", ["cell.example", "10.0.0.1:7480", "[2001:db8::1]:7480", ""])
def test_with_certificates_every_host_is_ours(host: str) -> None:
    check_host(host, is_secure=True)


@pytest.mark.parametrize(
    "host", ["evil@cell.example", "@", "a, b", "cell.example/", "cell.example:x", "[::1", "a b"]
)
def test_with_certificates_a_host_is_refused_that_is_none(host: str) -> None:
    with pytest.raises(Refusal) as caught:
        check_host(host, is_secure=True)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("origin", "site_", "is_ours"),
    [
        ("", "", True),
        ("", "none", True),
        ("http://localhost:7480", "same-origin", True),
        ("http://LOCALHOST:7480", "", True),
        ("https://localhost:7480", "", False),
        ("http://localhost:7481", "", False),
        ("http://evil.example", "", False),
        ("null", "", False),
        ("", "cross-site", False),
        ("", "same-site", False),
        ("http://localhost:7480", "cross-site", False),
    ],
)
def test_a_page_of_another_origin_is_refused(origin: str, site_: str, is_ours: bool) -> None:
    if is_ours:
        check_origin(origin, site_, "localhost:7480", "http")
        return
    with pytest.raises(Refusal) as caught:
        check_origin(origin, site_, "localhost:7480", "http")
    assert caught.value.status == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/healthz", "/v1/openapi.json", "/none"])
async def test_every_path_is_guarded(headers: dict[str, str], status: int, path: str) -> None:
    backend = FakeBackend(jobs=[])
    async with site(backend) as served:
        said = await served.ask("GET", path, headers=headers)
        preflight = await served.ask("OPTIONS", path, headers=headers)
    assert said.status == preflight.status == status
    assert "access-control-allow-origin" not in preflight.headers
    assert backend.calls == []


async def test_two_hosts_are_none() -> None:
    async with site(FakeBackend(jobs=[])) as served:
        said = await served.raw(
            b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n"
            b"Connection: close\r\n\r\n"
        )
    assert said.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 421 "))


@pytest.mark.parametrize(
    "target", ["http://evil.example/v1/jobs", "http://localhost/v1/jobs", "evil.example:80", "*"]
)
async def test_a_request_line_names_a_path_and_no_second_host(target: str) -> None:
    backend = FakeBackend(jobs=[])
    async with site(backend) as served:
        head = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        said = await served.raw(head.encode())
    assert said.startswith(b"HTTP/1.1 400 ")
    assert backend.calls == []


async def test_a_host_in_a_forwarded_header_is_not_read() -> None:
    async with site(FakeBackend(jobs=[])) as served:
        for name in ("forwarded", "x-forwarded-host", "x-original-host"):
            value = "host=localhost" if name == "forwarded" else "localhost"
            said = await served.ask("GET", "/v1/jobs", headers={"host": "e.example", name: value})
            assert said.status == 421
