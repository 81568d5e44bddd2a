"""TLS between replicas: who gets in, who is dialled, and certificates that change."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from consensus.config import TlsFiles
from consensus.engine.network.sockets import SocketNetwork
from consensus.engine.network.streams import SHAKEN_WITHIN_S
from consensus.engine.network.tls import LOOK_EVERY_S, replica_uri
from consensus.engine.network.wire import Append, Goodbye, Message, Vote, Welcome, encode_frame
from tests.fakes.certificates import CELL, authority, files_of, pem, put
from tests.fakes.ports import free_address
from tests.unit.network_rig import (
    WITHIN_S,
    Clock,
    Recorder,
    Station,
    frames_in,
    hello_of,
    until,
)
from tests.unit.socket_rig import RESET_IN_WRAP, Side, hear_out, in_thread, knock

pytestmark = pytest.mark.filterwarnings(RESET_IN_WRAP)

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
HELLO = encode_frame(hello_of("r3"))
APPEND = Append(4, 10, 9, 3, 1234, [(b"x", 10, 4)])


class Secured:
    """r1, which is attacked, and r2, its peer, with TLS."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.peers = {name: free_address() for name in ("r1", "r2", "r3")}
        self.address = self.peers["r1"]
        self.one, self.two = (
            Station(name, self.peers, SocketNetwork(files_of(folder / name, name), CELL))
            for name in ("r1", "r2")
        )
        self.parts = (self.one.transport, self.two.transport)
        until(lambda: self.one.reaches("r2") and self.two.reaches("r1"), self.parts, "the links")

    def heard_by(self, act: Callable[[], bytes]) -> list[Message]:
        return frames_in(in_thread(self.parts, act))

    def is_untouched(self) -> None:
        """Fail unless r1 heard nobody, kept its peer, and hears it now."""
        assert self.one.got == []
        assert self.one.gate.gone == []
        assert self.one.links == ["r2 up"]
        assert self.two.send("r1", Vote(77))
        until(lambda: self.one.got == [("r2", Vote(77))], self.parts, "the peer's message")


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Secured]:
    secured = Secured(tmp_path)
    yield secured
    for part in secured.parts:
        part.destroy()


def shake(
    address: str,
    files: TlsFiles | None,
    *said: bytes,
    newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> bytes:
    """Dial with TLS, believing everybody; say each and wait for an answer; what was heard. Any
    refusal is b""."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = newest
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    host, port = address.rsplit(":", 1)
    heard = b""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, int(port)), timeout=WITHIN_S) as sock,
        context.wrap_socket(sock) as secret,
    ):
        for one in said:
            secret.sendall(one)
            heard += secret.recv(65536)
    return heard


# ---- who gets in


def test_a_peer_whose_certificate_is_revoked_stays_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peers = {name: free_address() for name in ("r1", "r2")}
    revoked: set[str] = set()
    stations = [
        Station(name, peers, SocketNetwork(files_of(tmp_path / name, name), CELL, is_revoked))
        for name, is_revoked in (("r1", revoked.__contains__), ("r2", lambda digest: False))
    ]
    one, two = stations
    parts = [one.transport, two.transport]
    until(lambda: one.reaches("r2") and two.reaches("r1"), parts, "the links")
    der = ssl.PEM_cert_to_DER_cert((tmp_path / "r2" / "cert.pem").read_text())
    revoked.add(hashlib.sha256(der).hexdigest())
    one.transport.disconnect("r2", "its certificate was revoked")
    until(lambda: two.links == ["r1 up", "r1 down"], parts, "the end of the links")
    stranger = "connection of a stranger ended: "
    refused = f"{stranger}its certificate {next(iter(revoked))[:16]} of r2 was revoked"
    until(lambda: refused in caplog.text, parts, "the end of r2's call")
    hung_up = f"{stranger}closed by the other side"
    until(lambda: hung_up in caplog.text, parts, "the end of r1's call")
    assert one.links == ["r2 up", "r2 down"]
    for part in parts:
        part.destroy()


def test_peers_speak_and_prove_their_names(cell: Secured) -> None:
    large = Append(4, 10, 9, 3, 1234, [(bytes(range(256)) * 20_000, 10, 4)])
    assert cell.one.send("r2", large, Vote(4))

    def both_came() -> bool:
        cell.one.transport.flush()  # as each tick does
        return len(cell.two.got) == 2

    until(both_came, cell.parts)
    assert cell.two.got == [("r1", Vote(4)), ("r1", large)], "a vote overtakes entries"
    cell.is_untouched()


def test_a_right_certificate_gets_in_under_its_own_name(cell: Secured) -> None:
    files = files_of(cell.folder / "r3", "r3")
    heard = cell.heard_by(lambda: shake(cell.address, files, HELLO))
    assert [type(one) for one in heard] == [Welcome]
    until(lambda: cell.one.gate.gone == ["r3"], cell.parts)
    cell.one.gate.gone.clear()
    cell.is_untouched()


@pytest.mark.parametrize(
    ("replica", "sender"), [("r3", "r2"), ("r9", "r9"), ("r9", "r3"), ("r1", "r1")]
)
def test_the_authority_vouches_for_one_name_and_it_must_be_a_peers(
    cell: Secured, replica: str, sender: str
) -> None:
    files = files_of(cell.folder / "stranger", replica)
    hello = encode_frame(hello_of(sender))
    heard = cell.heard_by(lambda: shake(cell.address, files, hello, encode_frame(APPEND)))
    assert [type(one) for one in heard] == [Goodbye]
    cell.is_untouched()


@pytest.mark.parametrize(
    "made",
    [
        {"uris": ()},
        {"uris": ("raftcron://default/executor/r3",)},
        {"uris": ("raftcron://default/person/r3",)},
        {"uris": ("raftcron://other/replica/r3",)},
        {"uris": ("raftcron://default/replica/r3", "raftcron://default/replica/r2")},
        {"uris": ("raftcron://default/replica/r3", "raftcron://default/person/r3")},
        {"uris": ("raftcron://default/replica/",)},
        {"uris": ("raftcron://default/replica/r3/r3",)},
        {"uris": ("https://default/replica/r3",)},
        {"by": "another"},
        {"days": (-30, -1)},
        {"days": (1, 30)},
        {"usages": (SERVER,)},
    ],
    ids=str,
)
def test_what_does_not_prove_a_replica_of_the_cell_gets_no_answer(
    cell: Secured, made: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    files = files_of(cell.folder / "stranger", "r3", **made)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "consensus"):
        assert cell.heard_by(lambda: shake(cell.address, files, HELLO)) == []
        until(lambda: "stranger" in caplog.text, cell.parts)
    assert "certificate" in caplog.text
    cell.is_untouched()


def test_who_shows_no_certificate_gets_no_answer(cell: Secured) -> None:
    assert cell.heard_by(lambda: shake(cell.address, None, HELLO)) == []
    cell.is_untouched()


def test_older_tls_is_not_spoken(cell: Secured) -> None:
    files = files_of(cell.folder / "r3", "r3")
    assert (
        cell.heard_by(lambda: shake(cell.address, files, HELLO, newest=ssl.TLSVersion.TLSv1_2))
        == []
    )
    cell.is_untouched()


@pytest.mark.parametrize("said", [HELLO, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" * 40])
def test_what_is_no_tls_gets_no_message(cell: Secured, said: bytes) -> None:
    answer = in_thread(cell.parts, lambda: knock(cell.address, said))
    assert answer == b"" or answer.startswith(b"\x15\x03")  # TLS' own alert
    cell.is_untouched()


def test_tls_to_a_port_without_it_is_garbage(tmp_path: Path) -> None:
    peers = {name: free_address() for name in ("r1", "r2", "r3")}
    plain = Station("r1", peers, SocketNetwork(None, CELL))
    files = files_of(tmp_path, "r2")
    assert in_thread([plain.transport], lambda: shake(peers["r1"], files, HELLO)) == b""
    secret = Station("r2", peers, SocketNetwork(files, CELL))
    for _ in range(40):
        plain.transport.poll(0.001)
        secret.transport.poll(0.001)
    assert plain.links == secret.links == []
    plain.transport.destroy()
    secret.transport.destroy()


def test_who_shakes_hands_without_end_is_cut_off(cell: Secured) -> None:
    clock = Clock()
    cell.one.network.mono = clock
    host, port = cell.address.rsplit(":", 1)
    with (
        socket.create_connection((host, int(port)), timeout=WITHIN_S) as silent,
        socket.create_connection((host, int(port)), timeout=WITHIN_S) as slow,
    ):
        slow.sendall(b"\x16\x03\x01\x02\x00\x01")
        for _ in range(3):
            cell.one.transport.poll(0.01)
        clock.now += SHAKEN_WITHIN_S + 0.1
        assert in_thread(cell.parts, lambda: hear_out(silent)) == b""
        assert in_thread(cell.parts, lambda: hear_out(slow)) == b""
    cell.is_untouched()


def test_a_crowd_that_never_shakes_hands_keeps_no_peer_out(cell: Secured) -> None:
    host, port = cell.address.rsplit(":", 1)
    with contextlib.ExitStack() as crowd:
        for _ in range(80):
            crowd.enter_context(socket.create_connection((host, int(port)), timeout=WITHIN_S))
            cell.one.transport.poll(0.0)
        files = files_of(cell.folder / "r3", "r3")
        heard = cell.heard_by(lambda: shake(cell.address, files, HELLO))
        assert [type(one) for one in heard] == [Welcome]


# ---- who is dialled


def dialled(tmp_path: Path, shown: TlsFiles, expected: str = "r1") -> str:
    """Why r2 does not speak to somebody who listens and shows a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)
    far = Side(SocketNetwork(files_of(tmp_path / "r2", "r2"), CELL))
    owner = Recorder()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            sock, _ = listener.accept()
            with contextlib.suppress(OSError), context.wrap_socket(sock, server_side=True) as one:
                one.recv(1)

        connection = far.network.dial(f"127.0.0.1:{port}", expected, owner)
        connection.write(HELLO)
        in_thread([far.network], serve)
        until(lambda: owner.end is not None, [far.network])
    far.network.close()
    assert not owner.is_connected
    return str(owner.end)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"replica": "r3"}, "its certificate is of r3, not of r1"),
        ({"uris": ("raftcron://default/executor/r1",)}, "no replica of cell 'default'"),
        ({"uris": ("raftcron://other/replica/r1",)}, "no replica of cell 'default'"),
        ({"by": "another"}, "unable to get local issuer certificate"),
        ({"days": (-30, -1)}, "certificate has expired"),
        ({"days": (1, 30)}, "certificate is not yet valid"),
        ({"usages": (CLIENT,)}, "purpose"),
    ],
    ids=str,
)
def test_whoever_answers_in_the_place_of_a_peer_hears_nothing(
    tmp_path: Path, made: dict[str, object], says: str
) -> None:
    made = {"replica": "r1"} | made
    shown = files_of(tmp_path / "stranger", **made)  # type: ignore[arg-type]
    assert says in dialled(tmp_path, shown)


# ---- certificates that change


def shown_by(side: Side) -> bytes:
    """The certificate that a side shows now."""

    def look() -> bytes:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, port = side.address.rsplit(":", 1)
        with (
            socket.create_connection((host, int(port)), timeout=WITHIN_S) as sock,
            context.wrap_socket(sock) as secret,
        ):
            return secret.getpeercert(binary_form=True) or b""

    return in_thread([side.network], look)


@pytest.fixture
def side(tmp_path: Path) -> Iterator[tuple[Side, Clock]]:
    """r1, listening, with a clock for how often it looks at its files."""
    clock = Clock()
    near = Side(SocketNetwork(files_of(tmp_path / "r1", "r1"), CELL))
    assert near.network.contexts is not None
    near.network.contexts._mono = clock
    near.network.contexts._looked_at = clock.now
    near.listen()
    yield near, clock
    near.network.close()


def test_a_renewed_certificate_is_shown_without_a_restart(
    side: tuple[Side, Clock], tmp_path: Path
) -> None:
    near, clock = side
    before = shown_by(near)
    files_of(tmp_path / "r1", "r1")
    assert shown_by(near) == before, "files are looked at once a second"
    clock.now += LOOK_EVERY_S
    after = shown_by(near)
    assert after != before
    clock.now += LOOK_EVERY_S
    assert shown_by(near) == after


@pytest.mark.parametrize("broken", ["gone", "half", "of r2", "of another", "expired"])
def test_files_that_will_not_do_change_nothing(
    side: tuple[Side, Clock], tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    near, clock = side
    before = shown_by(near)
    certificate = tmp_path / "r1" / "cert.pem"
    match broken:
        case "gone":
            certificate.unlink()
        case "half":
            put(str(certificate), certificate.read_bytes()[:100])
        case "of r2":
            files_of(tmp_path / "r1", "r1", uris=(replica_uri(CELL, "r2"),))
        case "of another":
            files_of(tmp_path / "r1", "r1", by="another")
        case "expired":
            files_of(tmp_path / "r1", "r1", days=(-3, -1))
    clock.now += LOOK_EVERY_S
    with caplog.at_level(logging.ERROR, "consensus"):
        assert shown_by(near) == before
        clock.now += LOOK_EVERY_S
        assert shown_by(near) == before
    errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(errors) == 1, "said once, not at each connection"
    assert str(certificate) in caplog.text
    files_of(tmp_path / "r1", "r1")
    clock.now += LOOK_EVERY_S
    assert shown_by(near) != before


def test_an_authority_can_be_changed_by_trusting_both_for_a_while(
    side: tuple[Side, Clock], tmp_path: Path
) -> None:
    near, clock = side
    both = pem(authority("cell").certificate) + pem(authority("next").certificate)
    put(str(tmp_path / "r1" / "ca.pem"), both)
    clock.now += LOOK_EVERY_S
    theirs = files_of(tmp_path / "r2", "r2", by="next", trusts="next")
    put(theirs.authority, both)
    far = Side(SocketNetwork(theirs, CELL))
    owner = Recorder()
    far.network.dial(near.address, "r1", owner)
    until(
        lambda: bool(near.accepted) and near.accepted[0][1].is_connected,
        (near.network, far.network),
    )
    assert near.accepted[0][0].proven == "r2"
    assert owner.is_connected
    far.network.close()
