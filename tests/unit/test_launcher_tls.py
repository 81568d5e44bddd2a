"""launcher.tls: certificates that would not do are refused before anything is connected."""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
from pathlib import Path

import pytest
import structlog

from launcher.errors import BadConfig
from launcher.identity import REPLICA_HOST, Identity
from launcher.renewal import LiveCredentials
from launcher.tls import (
    PEM_BYTES_MAX,
    TlsFiles,
    check_identity,
    files_of,
    load_credentials,
)
from tests.unit.certs_rig import CELL, Certs


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path)


def refusal(files: TlsFiles) -> BadConfig:
    with pytest.raises(BadConfig) as caught:
        load_credentials(files)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("kind", ["replica", "executor", "person"])
def test_a_certificate_tells_whose_it_is_and_until_when(certs: Certs, kind: str) -> None:
    folder = certs.issued(kind, "a")
    credentials = load_credentials(files_of(str(folder)))
    assert credentials.identity == Identity(CELL, kind, "a")
    assert credentials.key == (folder / "key.pem").read_bytes()
    # Of ten days, and an authority of a thousand that began a hundred days ago.
    between_s = credentials.authority_not_after_s - credentials.not_after_s
    assert between_s == pytest.approx(890 * 86_400, abs=3_600)
    assert credentials.context().minimum_version == ssl.TLSVersion.TLSv1_3


def test_the_certificate_of_another_authority_is_refused(certs: Certs) -> None:
    files = certs.files("person", "ada")
    files = TlsFiles(str(certs.authority("other") / "ca.pem"), files.cert, files.key)
    assert str(refusal(files)) == f"{files.cert}: the certificate is of another authority"


@pytest.mark.parametrize(
    ("begins_days", "what"), [(-11, "has expired"), (2, "is not valid yet: a clock is wrong")]
)
def test_a_certificate_that_is_not_good_now_is_refused(
    certs: Certs, begins_days: int, what: str
) -> None:
    folder = certs.issued("person", "ada", begins_days=begins_days)
    error = refusal(files_of(str(folder)))
    assert str(error) == f"{folder}/cert.pem: the certificate {what}"
    assert "raftcron certs issue" in error.hint


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o620, 0o666, 0o601])
def test_a_key_that_others_may_use_is_refused_with_the_command_to_run(
    certs: Certs, mode: int
) -> None:
    files = certs.files("replica", "r1")
    Path(files.key).chmod(mode)
    error = refusal(files)
    assert str(error) == f"{files.key}: others may use this private key (mode {mode:04o})"
    assert error.hint == f"chmod 600 {files.key}"


def test_a_key_is_its_owners_whatever_less_they_may(certs: Certs) -> None:
    files = certs.files("replica", "r1")
    for mode in (0o600, 0o400):
        Path(files.key).chmod(mode)
        assert load_credentials(files)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a key of root")
def test_the_group_may_read_a_key_that_is_roots(
    certs: Certs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So Kubernetes mounts secrets for a process that is not root, and systemd its credentials."""
    files = certs.files("replica", "r1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for mode in (0o640, 0o440):
        Path(files.key).chmod(mode)
        assert load_credentials(files)
    for mode in (0o660, 0o444, 0o641):
        Path(files.key).chmod(mode)
        assert "others may use" in str(refusal(files))


def test_a_key_that_belongs_to_another_certificate_is_refused(certs: Certs) -> None:
    ours, other = certs.files("replica", "r1"), certs.files("replica", "r1")
    error = refusal(TlsFiles(ours.ca, ours.cert, other.key))
    assert str(error) == f"{other.key}: is not the key of {ours.cert}"


def test_a_file_that_is_not_there_is_named(certs: Certs) -> None:
    files = certs.files("replica", "r1")
    for field in ("ca", "cert", "key"):
        broken = {name: getattr(files, name) for name in ("ca", "cert", "key")}
        broken[field] = str(certs.folder / "none.pem")
        error = refusal(TlsFiles(**broken))
        assert str(error) == f"{certs.folder}/none.pem: no such file or directory"


def test_files_that_hold_something_else_are_named(certs: Certs) -> None:
    files = certs.files("replica", "r1")
    Path(files.ca).write_text("no certificate")
    assert str(refusal(files)).startswith(f"{files.ca}: no certificate of an authority")
    files = certs.files("replica", "r1")
    Path(files.cert).write_text("no certificate")
    assert str(refusal(files)).startswith(f"{files.cert}, {files.key}: not a certificate and its")
    files = certs.files("replica", "r1")
    Path(files.cert).write_bytes(b"x" * (PEM_BYTES_MAX + 1))
    assert str(refusal(files)).startswith(f"{files.cert}: is larger than")


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(certs: Certs) -> None:
    from cryptography.hazmat.primitives import serialization

    files = certs.files("replica", "r1")
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    sealed = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    Path(files.key).write_bytes(sealed)
    assert "in PEM, unencrypted" in str(refusal(files))


def test_an_authority_is_nobodys_certificate(certs: Certs) -> None:
    authority = certs.authority()
    files = TlsFiles(*(str(authority / name) for name in ("ca.pem", "ca.pem", "ca.key")))
    with pytest.raises(BadConfig):
        check_identity(load_credentials(files), Identity(CELL, "replica", "r1"))


def test_only_the_one_it_is_of_may_use_it(certs: Certs) -> None:
    credentials = certs.credentials("executor", "e1")
    check_identity(credentials, Identity(CELL, "executor", "e1"))
    for wanted in (
        Identity(CELL, "executor", "e2"),
        Identity(CELL, "replica", "e1"),
        Identity("test", "executor", "e1"),
    ):
        with pytest.raises(
            BadConfig, match="it is of executor e1 of cell berlin, and this is"
        ) as no:
            check_identity(credentials, wanted)
        assert f"raftcron certs issue DIR {wanted.kind} {wanted.name}" in no.value.hint


def test_two_authorities_in_one_file_are_both_trusted(certs: Certs) -> None:
    # How a cell moves to a new authority: first everybody trusts both.
    both = certs.folder / "both.pem"
    both.write_bytes(
        b"".join((certs.authority(name) / "ca.pem").read_bytes() for name in ("other", "ours"))
    )
    for authority in ("ours", "other"):
        files = certs.files("person", "ada", authority=authority)
        assert load_credentials(TlsFiles(str(both), files.cert, files.key)).identity.name == "ada"


# ---- renewed


def put(new: TlsFiles, old: TlsFiles, *names: str) -> None:
    """Put files in the place of others, as `mv` does."""
    for name in names:
        Path(getattr(new, name)).rename(getattr(old, name))


def test_a_renewed_certificate_is_taken_when_it_is_whole(certs: Certs) -> None:
    files, new = certs.files("replica", "r1"), certs.files("replica", "r1")
    live = LiveCredentials(files, Identity(CELL, "replica", "r1"))
    first = live.current()
    assert live.current() is first
    put(new, files, "cert")
    assert live.current() is first, "the key of the new certificate is not there yet"
    put(new, files, "key")
    renewed = live.current()
    assert renewed.certificate != first.certificate
    assert live.current() is renewed


@pytest.mark.parametrize(
    ("who", "how"),
    [
        (("replica", "r2"), {}),
        (("replica", "r1"), {"begins_days": -11}),
        (("replica", "r1"), {"authority": "other"}),
    ],
)
def test_what_was_good_stays_in_use_where_the_new_is_not(
    certs: Certs, who: tuple[str, str], how: dict[str, object]
) -> None:
    files, new = certs.files("replica", "r1"), files_of(str(certs.issued(*who, **how)))
    live = LiveCredentials(files, Identity(CELL, "replica", "r1"))
    first = live.current()
    put(new, files, "cert", "key")
    with structlog.testing.capture_logs() as lines:
        assert live.current() is first
        assert live.current() is first
    assert [line["event"] for line in lines] == ["certificate.refused"], "told once"


def test_files_that_vanish_do_not_end_anything(certs: Certs) -> None:
    files = certs.files("replica", "r1")
    live = LiveCredentials(files, Identity(CELL, "replica", "r1"))
    first = live.current()
    for name in ("ca", "cert", "key"):
        Path(getattr(files, name)).unlink()
    assert live.current() is first


def test_a_connection_that_was_reset_before_its_handshake_leaves_no_descriptor(
    certs: Certs,
) -> None:
    context = load_credentials(certs.files("person", "ada")).context()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
    reset = select.poll()
    reset.register(ours, select.POLLHUP)
    assert reset.poll(60_000)
    number = ours.fileno()
    with pytest.raises(ConnectionResetError) as caught:
        context.wrap_socket(ours, server_hostname=REPLICA_HOST)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    assert caught.tb, "what the error refers to still exists"
