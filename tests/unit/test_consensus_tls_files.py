"""Addresses and certificates in a configuration: what is refused before anything starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from consensus.config import EngineConfig, TlsFiles, parse_address
from consensus.engine.network.tls import check_files, proven_replica, replica_uri
from consensus.errors import BadConfig
from tests.fakes.certificates import CELL, files_of, key_pem, private_key, put

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


def config(**changed: object) -> EngineConfig:
    settings: dict[str, object] = {
        "replica": "r1",
        "peers": {"r1": "127.0.0.1:7410", "r2": "127.0.0.1:7411", "r3": "[::1]:7412"},
        "data": "d",
    }
    return EngineConfig(**(settings | changed))  # type: ignore[arg-type]


# ---- addresses


@pytest.mark.parametrize(
    ("address", "is_tls", "place"),
    [
        ("127.0.0.1:7410", False, ("127.0.0.1", 7410)),
        ("127.9.9.9:1", False, ("127.9.9.9", 1)),
        ("[::1]:65535", False, ("::1", 65535)),
        ("[0:0:0:0:0:0:0:1]:7410", True, ("::1", 7410)),
        ("localhost:7410", False, ("127.0.0.1", 7410)),
        ("LocalHost:7410", True, ("127.0.0.1", 7410)),
        ("10.0.0.1:7410", True, ("10.0.0.1", 7410)),
        ("[2001:db8::1]:7410", True, ("2001:db8::1", 7410)),
        ("R1.Example.com:7410", True, ("r1.example.com", 7410)),
        ("r1:7410", True, ("r1", 7410)),
        ("raft_1.cell-2.local.:7410", True, ("raft_1.cell-2.local.", 7410)),
    ],
)
def test_an_address_is_a_host_and_a_port(
    address: str, is_tls: bool, place: tuple[str, int]
) -> None:
    assert parse_address(address, is_tls=is_tls) == place


@pytest.mark.parametrize(
    "address",
    [
        "", ":7410", "r1", "r1:", "r1:0", "r1:65536", "r1:-1", "r1:x", "r1:٣", "r1: 1", "r 1:7410",
        "-r1:7410", "r1-:7410", "r1..x:7410", "999.1.1.1:7410", "1.2.3:7410", "[::1:7410:",
        "r1/x:7410", "user@r1:7410", "a" * 64 + ":7410", ".".join(["a" * 60] * 5) + ":7410",
        "ü.example:7410", "r1\n:7410",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(BadConfig, match="peer address"):
        parse_address(address, is_tls=True)


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1:1",
        "0.0.0.0:1",
        "[::]:1",
        "[2001:db8::1]:1",
        "r1.example.com:1",
        "localhost.evil:1",
    ],
)
def test_without_tls_only_this_machine_is_spoken_to(address: str) -> None:
    with pytest.raises(BadConfig, match=r"not loopback.*`raftcron certs init`"):
        parse_address(address)


def test_two_spellings_of_one_address_are_one() -> None:
    with pytest.raises(BadConfig, match="one address"):
        config(peers={"r1": "localhost:1", "r2": "127.0.0.1:1"}).validate()


@pytest.mark.parametrize("cell", ["", "x" * 101])
def test_a_cell_has_a_name(cell: str) -> None:
    with pytest.raises(BadConfig, match="cell"):
        config(cell=cell).validate()


def test_with_tls_hosts_have_names_and_only_one_listens_everywhere(tmp_path: Path) -> None:
    tls = files_of(tmp_path)
    peers = {"r1": "0.0.0.0:7410", "r2": "r2.example.com:7410", "r3": "10.0.0.3:7410"}
    config(peers=peers, tls=tls).validate()
    with pytest.raises(BadConfig, match="can be listened on, but not dialled"):
        config(peers=peers | {"r2": "[::]:7410"}, tls=tls).validate()


# ---- whom a certificate proves


@pytest.mark.parametrize(
    ("uris", "proven"),
    [
        (["raftcron://default/replica/r1"], "r1"),
        (["raftcron://default/replica/eu-1.a_b"], "eu-1.a_b"),
        (["https://example.com", "raftcron://default/replica/r1"], "r1"),
        ([], None),
        (["raftcron://default/executor/r1"], None),
        (["raftcron://other/replica/r1"], None),
        (["raftcron://default/replica/r1", "raftcron://default/replica/r2"], None),
        (["raftcron://default/replica/r1", "raftcron://other/replica/r1"], None),
        (["raftcron://default/replica/"], None),
        (["raftcron://default/replica/r1/x"], None),
        (["raftcron://default/replica/r1\n"], None),
        (["raftcron://default/replica/.."], None),
        (["RAFTCRON://default/replica/r1"], None),
        (["raftcron://default/replica/r1?x"], None),
    ],
)
def test_a_certificate_proves_one_replica_of_one_cell_or_nobody(
    uris: list[str], proven: str | None
) -> None:
    certificate: dict[str, Any] = {"subjectAltName": tuple(("URI", uri) for uri in uris)}
    assert proven_replica(certificate, "default") == proven


def test_names_that_are_no_uris_prove_nobody() -> None:
    named = {"subjectAltName": (("DNS", "raftcron://default/replica/r1"), ("DNS", "r1"))}
    assert proven_replica(named, "default") is None
    assert proven_replica({"subject": ((("commonName", "r1"),),)}, "default") is None
    assert proven_replica({}, "default") is None
    assert proven_replica(None, "default") is None


# ---- files


def test_good_files_are_taken_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_files(files_of(tmp_path), CELL, "r1")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"uris": ()}, "states no identity, and this is raftcron://default/replica/r1"),
        ({"uris": (replica_uri(CELL, "r2"),)}, "states raftcron://default/replica/r2, and"),
        ({"uris": (replica_uri("other", "r1"),)}, "states raftcron://other/replica/r1, and"),
        ({"uris": ("raftcron://default/executor/r1",)}, "default/executor/r1, and this is"),
        ({"by": "another"}, "does not vouch for it .* unable to get local issuer"),
        ({"trusts": "another"}, "does not vouch for it .* unable to get local issuer"),
        ({"days": (-30, -1)}, "certificate has expired"),
        ({"days": (1, 30)}, "certificate is not yet valid"),
        ({"usages": (CLIENT,)}, "purpose"),
        ({"usages": (SERVER,)}, "purpose"),
    ],
    ids=str,
)
def test_a_certificate_that_peers_would_refuse_is_refused_first(
    tmp_path: Path, made: dict[str, Any], says: str
) -> None:
    files = files_of(tmp_path, **made)
    with pytest.raises(BadConfig, match=says) as caught:
        check_files(files, CELL, "r1")
    assert files.certificate in str(caught.value)
    assert "`raftcron certs issue" in str(caught.value)


@pytest.mark.parametrize("field", ["authority", "certificate", "key"])
def test_a_file_that_is_missing_or_a_folder_is_named(tmp_path: Path, field: str) -> None:
    files = files_of(tmp_path)
    missing = msgspec.structs.replace(files, **{field: str(tmp_path / "missing")})
    with pytest.raises(BadConfig, match=r"missing: no such file .* `raftcron certs issue`"):
        check_files(missing, CELL, "r1")
    folder = msgspec.structs.replace(files, **{field: str(tmp_path)})
    with pytest.raises(BadConfig, match="is a directory"):
        check_files(folder, CELL, "r1")


@pytest.mark.parametrize("field", ["authority", "certificate", "key"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no PEM",
        b"\0" * 100,
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ],
)
def test_a_file_of_something_else_is_named(tmp_path: Path, field: str, content: bytes) -> None:
    files = files_of(tmp_path)
    put(getattr(files, field), content)
    with pytest.raises(BadConfig, match="PEM") as caught:
        check_files(files, CELL, "r1")
    assert getattr(files, field) in str(caught.value)


def test_files_that_changed_places_are_noticed(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    swapped = TlsFiles(authority=files.authority, certificate=files.key, key=files.certificate)
    with pytest.raises(BadConfig, match="not a certificate and its key"):
        check_files(swapped, CELL, "r1")


def test_a_key_of_another_certificate_is_noticed(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    put(files.key, key_pem(private_key("another")))
    with pytest.raises(BadConfig, match="is not the key of"):
        check_files(files, CELL, "r1")


def test_a_key_with_a_password_is_refused_and_not_asked_for(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    put(files.key, key_pem(private_key("r1"), password=b"secret"))
    with pytest.raises(BadConfig, match="unencrypted"):
        check_files(files, CELL, "r1")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o660, 0o777])
def test_a_key_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    files = files_of(tmp_path)
    Path(files.key).chmod(mode)
    with pytest.raises(BadConfig, match=rf"key.pem: others .* \(mode 0{mode:o}\); chmod 600"):
        check_files(files, CELL, "r1")
    Path(files.key).chmod(0o400)
    check_files(files, CELL, "r1")


@pytest.mark.parametrize(("left", "is_said"), [(29.5, True), (1.5, True), (31, False)])
def test_a_certificate_that_ends_soon_is_told_of(
    tmp_path: Path, left: float, is_said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    files = files_of(tmp_path, days=(-1, left))
    with caplog.at_level(logging.WARNING, "consensus"):
        check_files(files, CELL, "r1")
    assert (f"ends in {int(left)} days" in caplog.text) == is_said
