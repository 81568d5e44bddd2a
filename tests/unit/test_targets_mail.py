"""The target `mail` and a real SMTP server that is good, slow, away or refuses."""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from launcher.clock import boot_ms
from launcher.errors import BadConfig
from launcher.targets.config import MailConfig
from launcher.targets.mail import MailTarget
from launcher.targets.message import (
    RECIPIENTS_MAX,
    TEXT_BYTES_MAX,
    Mail,
    body_text,
    encode_mail,
    is_address,
    message_id,
    one_line,
    split_sender,
)
from launcher.worker.errors import BadPayload
from launcher.worker.outcome import Ended
from launcher.worker.wire import Result
from tests.fakes.bad_http import answer, bad_server
from tests.fakes.smtp_server import SmtpServer, smtp_server
from tests.unit.targets_rig import LAUNCH, OF_CELL, certificate, context_of, ended, read

TO = "ops@example.com"
PAYLOAD = {"to": TO, "subject": "hello", "text": "Good day."}


@pytest.fixture
def server() -> Iterator[SmtpServer]:
    with smtp_server() as one:
        yield one


def target(server: SmtpServer | str, folder: Path = Path(), **fields: Any) -> MailTarget:
    """A target for a server on loopback."""
    place = server if isinstance(server, str) else server.place
    said = {"tls": "none", "recipients": ("*",), "timeout": "20s"}
    return MailTarget(
        MailConfig(server=place, sender="raftcron <cron@example.com>", **said | fields), folder
    )


def sent(one: MailTarget, payload: object = PAYLOAD, **context: Any) -> Ended:
    return ended(one, payload, context_of(**context)[0])


# ---- what is sent


def test_a_mail_has_its_text_and_says_that_a_machine_sent_it(server: SmtpServer) -> None:
    end = sent(target(server))
    assert end == Ended(Result.OK, 0, f"accepted for {TO}")
    [mail] = server.received
    assert (mail.sender, mail.to) == ("cron@example.com", [TO])
    assert mail.text == "Good day.\n"
    assert mail.message["subject"] == "hello"
    assert mail.message["from"] == "raftcron <cron@example.com>"
    assert mail.message["to"] == TO
    assert mail.message["auto-submitted"] == "auto-generated"
    assert parsedate_to_datetime(mail.message["date"]).utcoffset() is not None
    assert mail.message.get_content_type() == "text/plain"
    assert mail.message.get_content_charset() == "utf-8"


def test_a_mail_that_is_sent_again_has_the_same_id(server: SmtpServer) -> None:
    one = target(server)
    sent(one)
    sent(one, attempt=2)
    sent(one, job="acme/other")
    first, again, other = (mail.message["message-id"] for mail in server.received)
    assert first == again
    assert first != other
    assert first.endswith("@example.com>")


def test_cells_with_the_same_jobs_have_other_ids(server: SmtpServer) -> None:
    for cell in ("prod", "stage"):
        sent(target(server, cell=cell))
    first, other = (mail.message["message-id"] for mail in server.received)
    assert first != other
    assert first == message_id(LAUNCH, "prod", "example.com")


def test_any_text_arrives_and_no_line_of_it_is_long(server: SmtpServer) -> None:
    text = "grün\r\n.\n..\nFrom here\n" + "x" * 5_000 + "\n\N{SNOWMAN}\x00\x1b[31mred\x1b[0m\tend"
    sent(target(server), PAYLOAD | {"text": text})
    [mail] = server.received
    assert mail.text == "grün\n.\n..\nFrom here\n" + "x" * 5_000 + "\n\N{SNOWMAN} red\tend\n"
    assert max(len(line) for line in mail.raw.split(b"\r\n")) <= 78
    assert mail.raw.isascii()


@pytest.mark.parametrize(
    "subject",
    ["a\r\nBcc: thief@example.com", "a\nb", "a\r\n\r\nbody", "a\x00b", "=?utf-8?q?x?=", "ä" * 90],
)
def test_no_subject_becomes_another_header(server: SmtpServer, subject: str) -> None:
    end = sent(target(server), PAYLOAD | {"subject": subject})
    assert end.result is Result.OK, end
    [mail] = server.received
    assert sorted(name.lower() for name in mail.message) == [
        "auto-submitted", "content-transfer-encoding", "content-type", "date", "from",
        "message-id", "mime-version", "subject", "to", "x-raftcron-launch",
    ]  # fmt: skip
    assert mail.to == [TO]
    assert mail.text == "Good day.\n"


def test_a_text_over_64_kib_is_cut(server: SmtpServer) -> None:
    sent(target(server), PAYLOAD | {"text": "ä" * TEXT_BYTES_MAX})
    [mail] = server.received
    assert len(mail.text.encode()) <= TEXT_BYTES_MAX + 1
    assert mail.text.endswith("[the rest was cut: a mail has at most 64 KiB]\n")


def test_bodies_and_headers_have_no_control_characters() -> None:
    every = "".join(map(chr, range(0x100))) + "\u2028\u2029\u202e\ud800"
    assert all(one.isprintable() for one in one_line(every))
    assert all(one.isprintable() or one in "\n\t" for one in body_text(every))
    assert "\ud800" not in body_text(every)


def test_a_sender_is_a_name_and_an_address() -> None:
    assert split_sender("Cron, the <c@example.com>")[1] in ("", "c@example.com")
    assert split_sender("c@example.com") == ("", "c@example.com")
    mail = Mail((TO,), "s", "t")
    raw = encode_mail(mail, ('Ä "quoted" name', "c@example.com"), "<1@x>", 0, LAUNCH)
    assert b"Date: Thu, 01 Jan 1970 00:00:00 +0000\r\n" in raw


# ---- to whom


def test_a_name_without_a_domain_gets_the_one_of_the_configuration(server: SmtpServer) -> None:
    one = target(server, domain="example.com", recipients=("*@example.com",))
    end = sent(one, PAYLOAD | {"to": "root, ada@example.com root"})
    assert end == Ended(Result.OK, 0, "accepted for 2 recipients")
    [mail] = server.received
    assert mail.to == ["root@example.com", "ada@example.com"]


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ("root", "'root' is no address: the target's `domain` would complete it"),
        ("", "has 0 addresses"),
        ([], "has 0 addresses"),
        ("a@example.com\nBcc: b@example.com", "is no address"),
        (["a@example.com\r\nRCPT TO:<b@example.com>"], "is no address"),
        (["a b@example.com"], "is no address"),
        (["<a@example.com>"], "is no address"),
        (["ä@example.com"], "is no address"),
        (["a@exa_mple.com"], "is no address"),
        (["a@b@example.com"], "is no address"),
        (["x" * 250 + "@example.com"], "is no address"),
        (["a@elsewhere.com"], "is not one of the target's `recipients`"),
        ([f"{n}@example.com" for n in range(RECIPIENTS_MAX + 1)], "has 101 addresses"),
        (7, "to"),
    ],
)
def test_mail_goes_to_allowed_addresses_only(to: Any, problem: str) -> None:
    one = target("127.0.0.1:1", recipients=("*@example.com",))
    end = sent(one, PAYLOAD | {"to": to})
    assert end.result is Result.FATAL
    assert problem in end.detail


@pytest.mark.parametrize(
    "text", ["", "@", "a@", "@b", "a.@b", ".a@b", "a@-b", "a@b.", "a@b..c", "a@[1.2.3.4]", "a\n@b"]
)
def test_what_is_no_address_is_seen(text: str) -> None:
    assert not is_address(text)


@pytest.mark.parametrize(
    "payload",
    [{"to": TO}, {"to": TO, "text": "a", "alert": {"number": 1, "state": "firing"}}],
)
def test_a_payload_says_one_thing(payload: Any) -> None:
    with pytest.raises(BadPayload, match="payload: it has no"):
        read(target("127.0.0.1:1"), payload, job=OF_CELL)


# ---- MAILTO

LAUNCHED = {
    "name": "acme/b@2026-11-20T15:00:00Z", "job": "acme/b", "state": "failed", "exit": 3,
    "output_bytes": 9,
}  # fmt: skip
PLACE = "/v1/output/acme/b@2026-11-20T15:00:00Z"


def told(one: MailTarget, launch: object = LAUNCHED, **context: Any) -> Ended:
    """How a launch of the cell ends that mails what another one printed."""
    return sent(one, {"to": TO, "launch": launch}, job=OF_CELL, **context)


@pytest.mark.parametrize(
    "said",
    [
        {"launch": LAUNCHED},
        {"launch": LAUNCHED | {"name": "b/secret@2026-11-20T15:00:00Z"}},
        {"launch": LAUNCHED | {"name": "b/secret@2026-11-20T15:00:00Z", "job": "acme/own"}},
        {"alert": {"number": 1, "state": "resolved"}},
    ],
)
@pytest.mark.parametrize(
    "job", ["acme/mail", "acme/mail:1", "Raftcron/x", "raftcron2/x", "acme/raftcron"]
)
def test_nobody_but_the_cell_says_in_a_mail_what_the_cell_knows(
    server: SmtpServer, said: dict[str, Any], job: str
) -> None:
    with bad_server() as api:
        api.ways |= {
            place: answer("200 OK", json.dumps({"content": b64encode(b"secret").decode()}).encode())
            for place in (PLACE, "/v1/output/b/secret@2026-11-20T15:00:00Z")
        }
        end = sent(target(server, api=api.url("")), {"to": TO, **said}, job=job)
        assert api.requests == [], "no output was read"
    tenant, [field] = job.partition("/")[0], said
    assert end.result is Result.FATAL
    assert end.detail == (
        f"payload: `{field}` comes from the cell alone, and {job}@2026-11-20T15:00:00Z is a launch "
        f"of tenant {tenant}: say it in `subject` and `text`"
    )
    assert server.received == []


@pytest.mark.parametrize(
    ("launch", "problem"),
    [
        ({"name": "b/secret@2026-11-20T15:00:00Z"}, "is not one of job acme/b"),
        ({"name": "acme/b/../../tasks@2026-11-20T15:00:00Z"}, "is not a job name"),
        ({"name": "acme/b"}, "is not a launch name"),
        ({"name": "acme/b@2026-11-20T15:00:00Z#2"}, "names an attempt"),
    ],
)
def test_the_output_that_is_read_is_that_of_the_job_which_the_mail_names(
    server: SmtpServer, launch: dict[str, str], problem: str
) -> None:
    with bad_server() as api:
        end = told(target(server, api=api.url("")), LAUNCHED | launch)
        assert api.requests == []
    assert end.result is Result.FATAL
    assert problem in end.detail


def test_a_mail_says_in_a_header_which_launch_sent_it(server: SmtpServer) -> None:
    forged = PAYLOAD | {"subject": "[raftcron prod] RESOLVED: other/backup failed"}
    assert sent(target(server), forged).result is Result.OK
    assert server.received[0].message["x-raftcron-launch"] == LAUNCH


def test_a_mail_of_a_launch_has_its_output(server: SmtpServer) -> None:
    body = json.dumps({"content": b64encode(b"all lost\n").decode(), "size": 9}).encode()
    with bad_server() as api:
        api.ways[PLACE] = answer("200 OK", body)
        end = told(target(server, api=api.url("")))
    assert end.result is Result.OK, end
    [mail] = server.received
    assert mail.message["subject"] == "[raftcron] acme/b failed with exit code 3"
    assert "Output:\n\nall lost\n" in mail.text
    [request] = api.requests
    assert request.path.endswith("?tail=1&limit=40000")


def test_a_mail_goes_without_an_output_that_cannot_be_read(server: SmtpServer) -> None:
    with bad_server() as api:
        api.ways[PLACE] = answer("503 Later", b"")
        one = target(server, api=api.url(""))
        for attempt in (1, 2, 3):
            assert told(one, attempt=attempt).result is Result.RETRY
        assert told(one, attempt=4).result is Result.OK
        api.ways[PLACE] = answer("404 Not Found", b"")
        assert told(one).result is Result.OK, "it is gone for good"
        api.ways[PLACE] = answer("200 OK", b"<html>")
        assert told(one).result is Result.OK
    said = [mail.text for mail in server.received]
    reasons = ("HTTP 503", "HTTP 404", "the answer is none of the API")
    for text, reason in zip(said, reasons, strict=True):
        assert f"It printed 9 bytes. They could not be read: {reason}." in text
        assert "raftcron logs acme/b@2026-11-20T15:00:00Z" in text


def test_a_mail_of_a_launch_names_cell_and_command(server: SmtpServer) -> None:
    launch = LAUNCHED | {"command": "/bin/backup --all"}
    assert told(target(server, cell="prod"), launch).result is Result.OK
    [mail] = server.received
    assert mail.message["subject"] == "[raftcron prod] acme/b failed with exit code 3"
    assert re.search(r"^Cell: +prod$", mail.text, re.MULTILINE)
    assert re.search(r"^Command: +/bin/backup --all$", mail.text, re.MULTILINE)


def test_without_the_api_a_mail_says_how_to_look(server: SmtpServer) -> None:
    assert told(target(server)).result is Result.OK
    assert "It printed 9 bytes.\n" in server.received[0].text


# ---- a server that refuses


def test_a_refused_recipient_is_a_dead_letter(server: SmtpServer) -> None:
    server.refused[TO] = "550 5.1.1 no such user"
    end = sent(target(server))
    assert end == Ended(Result.FATAL, 0, f"{TO}: 550 5.1.1 no such user")
    assert server.received == []


def test_the_others_get_the_mail_if_one_recipient_is_refused(server: SmtpServer) -> None:
    server.refused["gone@example.com"] = "550 no such user"
    end = sent(target(server), PAYLOAD | {"to": [TO, "gone@example.com"]})
    assert end.result is Result.OK
    assert end.detail == f"accepted for {TO}; refused: gone@example.com: 550 no such user"
    assert [mail.to for mail in server.received] == [[TO]]


def test_a_recipient_who_is_asked_to_wait_gets_it_later_and_the_others_once(
    server: SmtpServer,
) -> None:
    one = target(server)
    server.refused["full@example.com"] = "452 mailbox full"
    payload = PAYLOAD | {"to": [TO, "full@example.com"]}
    end = sent(one, payload)
    assert end == Ended(Result.RETRY, 0, "full@example.com: 452 mailbox full")
    assert sent(one, payload, attempt=2).result is Result.RETRY
    server.refused.clear()
    assert sent(one, payload, attempt=3) == Ended(Result.OK, 0, "accepted for 2 recipients")
    assert [mail.to for mail in server.received] == [[TO], ["full@example.com"]]
    assert len({mail.message["message-id"] for mail in server.received}) == 1


@pytest.mark.parametrize(
    ("answer", "result"),
    [("554 looks like spam", Result.FATAL), ("451 try later", Result.RETRY)],
)
def test_the_answer_to_the_mail_itself_counts(
    server: SmtpServer, answer: str, result: Result
) -> None:
    server.answer = answer
    assert sent(target(server)) == Ended(result, 0, f"{TO}: {answer}")


# ---- a server that is away, slow or strange


def test_nobody_at_the_port_is_tried_again() -> None:
    with smtp_server() as gone:
        place = gone.place
    end = sent(target(place))
    assert end.result is Result.RETRY
    assert "connection refused" in end.detail


def test_a_silent_server_is_given_up_in_time(server: SmtpServer) -> None:
    server.hurried.clear()
    began_ms = boot_ms()
    end = sent(target(server, timeout="500ms"))
    server.hurried.set()
    assert end == Ended(Result.RETRY, 0, "127.0.0.1: no answer in time")
    assert boot_ms() - began_ms < 10_000


def test_a_killed_launch_ends_soon(server: SmtpServer) -> None:
    server.hurried.clear()
    context, _ = context_of()
    timer = threading.Timer(0.2, context.cancelled.set, ["killed"])
    timer.start()
    began_ms = boot_ms()
    assert ended(target(server), PAYLOAD, context).result is Result.CANCELLED
    timer.join()
    server.hurried.set()
    assert boot_ms() - began_ms < 10_000


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        (b"220 hello\r\n", "the connection was closed before an answer"),
        (b"554 go away\r\n", "554 go away"),
        (b"421 too busy\r\n", "421 too busy"),
        (b"HTTP/1.1 400 Bad\r\n\r\n", "what it answered is not SMTP"),
        (b"220-" + b"x" * 20_000, "500 Line too long"),
    ],
)
def test_what_is_no_mail_server_is_tried_again(said: bytes, detail: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            end, _ = listening.accept()
            with end:
                end.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        end = sent(target(f"127.0.0.1:{listening.getsockname()[1]}", timeout="5s"))
        thread.join(10)
    assert end.result is Result.RETRY
    assert detail in end.detail


def test_a_web_server_is_no_mail_server() -> None:
    with bad_server() as web:
        end = sent(target(f"127.0.0.1:{web.port}", timeout="500ms"))
    assert end == Ended(Result.RETRY, 0, "127.0.0.1: no answer in time")


# ---- TLS and passwords


@pytest.fixture
def encrypted(tmp_path: Path) -> tuple[ssl.SSLContext, str]:
    """A server's side of TLS, and the file of its certificate."""
    path = certificate(tmp_path, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context, str(path)


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_a_password_is_sent_over_tls(
    tls: str, encrypted: tuple[ssl.SSLContext, str], tmp_path: Path
) -> None:
    context, ca = encrypted
    path = tmp_path / "password"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    with smtp_server(**{tls: context}, users={"cron": "s3cret"}) as server:
        said = {"tls": tls, "ca": ca, "user": "cron", "password": "password"}
        end = sent(target(server, tmp_path, **said))
        assert end.result is Result.OK, end
        path.write_text("wrong\n")
        end = sent(target(server, tmp_path, **said))
        assert end.result is Result.RETRY, "an operator can mend it"
        assert "535" in end.detail
        assert "wrong" not in end.detail
    assert [mail.user for mail in server.received] == ["cron"]


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_a_certificate_that_is_not_trusted_gets_no_mail(
    tls: str, encrypted: tuple[ssl.SSLContext, str]
) -> None:
    with smtp_server(**{tls: encrypted[0]}) as server:
        end = sent(target(server, tls=tls))
    assert end.result is Result.RETRY
    assert "the certificate is not trusted" in end.detail
    assert server.received == []


def test_a_server_that_hides_starttls_gets_no_mail(server: SmtpServer) -> None:
    end = sent(target(server, tls="starttls"))
    assert end == Ended(Result.RETRY, 0, "127.0.0.1: it offers no STARTTLS")
    assert server.received == []


# ---- the configuration


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"sender": "nobody"}, "mail.from: 'nobody' is no address"),
        ({"server": "mail:0"}, "mail.server: 'mail:0' is no host with a port"),
        ({"server": "mail:smtp"}, "is no host with a port"),
        ({"server": ":25"}, "is no host with a port"),
        ({"domain": "a b"}, "mail.domain"),
        ({"timeout": "soon"}, "mail.timeout"),
        ({"user": "cron"}, "belong together"),
        ({"password": "file"}, "belong together"),
        ({"user": "cron", "password": "missing"}, "cannot be read"),
        ({"server": "mail.example.com", "tls": "none", "user": "c"}, "without TLS"),
        ({"ca": "missing", "tls": "tls"}, "no certificates"),
        ({"api": "r1:7480"}, "mail.api: it is no URL"),
        ({"api": "ftp://r1/"}, "mail.api: url has no http"),
        ({"api": "https://r1/", "api_headers": "missing"}, "cannot be read"),
        ({"api_headers": "headers"}, "of no use without `api`"),
    ],
)
def test_a_wrong_configuration_is_refused(fields: dict[str, Any], problem: str) -> None:
    said = {"server": "127.0.0.1:25", "sender": "c@example.com", "recipients": ("*",)}
    with pytest.raises(BadConfig, match=problem):
        MailTarget(MailConfig(**said | {"tls": "none"} | fields), Path())


def test_a_password_that_others_may_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret")
    (tmp_path / "password").chmod(0o644)
    with pytest.raises(BadConfig, match="everybody on this host may read it"):
        target("127.0.0.1:25", tmp_path, user="cron", password="password")


@pytest.mark.parametrize(
    ("place", "tls", "expected"),
    [
        ("mail.example.com", "starttls", ("mail.example.com", 587)),
        ("mail.example.com", "tls", ("mail.example.com", 465)),
        ("mail.example.com:2525", "tls", ("mail.example.com", 2525)),
        ("[::1]:25", "none", ("::1", 25)),
        ("::1", "none", ("::1", 25)),
    ],
)
def test_a_server_has_the_usual_port(place: str, tls: Any, expected: tuple[str, int]) -> None:
    one = target(place, tls=tls)
    assert (one._host, one._port) == expected
