"""cron.certs.making: what is in the certificates, judged by OpenSSL and by what others read."""

from __future__ import annotations

import datetime
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID as Purpose

from cron.certs.making import DAY_S, Authority, Made, issue, make_authority, read_authority
from cron.certs.reading import read_certificates
from cron.errors import InvalidInput
from launcher.identity import KINDS, Identity

NOW_S = 1_795_186_800  # 2026-11-20T15:00:00Z
SERVER, CLIENT = Purpose.SERVER_AUTH, Purpose.CLIENT_AUTH


@pytest.fixture(scope="module")
def made() -> Made:
    return make_authority("prod", now_s=NOW_S, days=3_650)


@pytest.fixture(scope="module")
def authority(made: Made) -> Authority:
    return read_authority(made.certificate, made.key, "au")


def parsed(made: Made) -> x509.Certificate:
    return x509.load_pem_x509_certificate(made.certificate)


@pytest.mark.parametrize(
    ("kind", "purposes", "hosts"),
    [
        ("replica", {SERVER, CLIENT}, ["replica.raftcron"]),
        ("executor", {CLIENT}, []),
        ("person", {CLIENT}, []),
    ],
)
def test_a_certificate_says_who_and_what_for(
    authority: Authority, kind: str, purposes: set[object], hosts: list[str]
) -> None:
    certificate = parsed(issue(authority, kind, "a_1.x", now_s=NOW_S, days=365))
    get = certificate.extensions.get_extension_for_class
    names = get(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        f"raftcron://prod/{kind}/a_1.x"
    ]
    assert names.get_values_for_type(x509.DNSName) == hosts
    assert set(get(x509.ExtendedKeyUsage).value) == purposes
    assert get(x509.BasicConstraints).value == x509.BasicConstraints(ca=False, path_length=None)
    assert get(x509.BasicConstraints).critical
    assert get(x509.KeyUsage).value.digital_signature
    assert not get(x509.KeyUsage).value.key_cert_sign
    signer = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    assert get(x509.AuthorityKeyIdentifier).value.key_identifier == signer.value.digest


def test_an_authority_issues_for_as_many_days_as_it_was_made_for() -> None:
    # `certs issue --days 30` was refused a second after `certs init --days 30`.
    first = make_authority("prod", now_s=NOW_S, days=30)
    authority = read_authority(first.certificate, first.key, "au")
    made = issue(authority, "replica", "r1", now_s=NOW_S + 60, days=30)
    assert parsed(made).not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_a_certificate_begins_an_hour_back_and_ends_an_hour_later(
    authority: Authority,
) -> None:
    made = issue(authority, "replica", "r1", now_s=NOW_S, days=2)
    certificate = parsed(made)
    now = datetime.datetime(2026, 11, 20, 15, tzinfo=datetime.UTC)
    assert certificate.not_valid_before_utc == now - datetime.timedelta(hours=1)
    assert certificate.not_valid_after_utc == now + datetime.timedelta(days=2, hours=1)
    assert made.not_after_s == NOW_S + 2 * DAY_S + 3_600


def test_keys_are_of_p256_and_no_two_certificates_are_alike(authority: Authority) -> None:
    first, second = (
        parsed(issue(authority, "replica", "r1", now_s=NOW_S, days=1)) for _ in range(2)
    )
    for one in (authority.certificate, first, second):
        key = one.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert isinstance(key.curve, ec.SECP256R1)
    assert first.public_key() != second.public_key()
    assert first.serial_number != second.serial_number
    assert first.serial_number.bit_length() > 100


def test_an_authority_signs_and_does_nothing_else(authority: Authority) -> None:
    get = authority.certificate.extensions.get_extension_for_class
    assert get(x509.BasicConstraints).value == x509.BasicConstraints(ca=True, path_length=0)
    usage = get(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.crl_sign, usage.digital_signature) == (True, True, False)
    assert authority.cell == "prod"


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs the openssl command")
@pytest.mark.parametrize("kind", KINDS)
def test_openssl_verifies_what_is_issued(authority: Authority, tmp_path: Path, kind: str) -> None:
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    certificate = issue(authority, kind, "a", now_s=NOW_S, days=9).certificate
    (tmp_path / "cert.pem").write_bytes(certificate)

    def verify(purpose: str, at_s: int = NOW_S) -> int:
        return subprocess.run(
            ["openssl", "verify", "-x509_strict", "-attime", str(at_s), "-purpose", purpose,
             "-CAfile", "ca.pem", "cert.pem"],
            cwd=tmp_path, capture_output=True, check=False,
        ).returncode  # fmt: skip

    assert verify("sslclient") == 0
    assert (verify("sslserver") == 0) is (kind == "replica")
    assert verify("sslclient", NOW_S + 10 * DAY_S) != 0
    (tmp_path / "ca.pem").write_bytes(make_authority("prod", now_s=NOW_S, days=9).certificate)
    assert verify("sslclient") != 0


@pytest.mark.parametrize("name", ["", "a b", "-a", ".a", "a/b", "ä", "x" * 65, "a\n", "*"])
def test_a_name_that_cannot_be_an_id_is_refused(authority: Authority, name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^replica: .*is not a name") as caught:
        issue(authority, "replica", name, now_s=NOW_S, days=1)
    assert "A-Z" in caught.value.hint
    with pytest.raises(InvalidInput, match=r"^cell: .*is not a name"):
        make_authority(name, now_s=NOW_S, days=1)


def test_the_longest_name_is_issued(authority: Authority) -> None:
    made = issue(authority, "person", "x" * 64, now_s=NOW_S, days=1)
    [shown] = read_certificates(made.certificate, "f")
    assert shown.identity == Identity("prod", "person", "x" * 64)


@pytest.mark.parametrize("days", [0, -1, 36_501])
def test_days_are_bounded(authority: Authority, days: int) -> None:
    with pytest.raises(InvalidInput, match=f"days {days} is not between"):
        issue(authority, "person", "ada", now_s=NOW_S, days=days)
    with pytest.raises(InvalidInput, match=f"days {days} is not between"):
        make_authority("prod", now_s=NOW_S, days=days)


def test_nothing_outlives_its_authority(authority: Authority) -> None:
    issue(authority, "person", "ada", now_s=NOW_S + DAY_S, days=3_649)
    with pytest.raises(InvalidInput, match="more than the authority of prod has left: 3649") as one:
        issue(authority, "person", "ada", now_s=NOW_S + DAY_S, days=3_650)
    assert one.value.hint == "--days 3649"
    with pytest.raises(InvalidInput, match="has left: 0") as none:
        issue(authority, "person", "ada", now_s=NOW_S + 4_000 * DAY_S, days=1)
    assert "certs init" in none.value.hint


def test_an_unknown_kind_is_refused(authority: Authority) -> None:
    with pytest.raises(InvalidInput, match="kind 'authority' is none of replica, executor, person"):
        issue(authority, "authority", "prod", now_s=NOW_S, days=1)


def test_what_is_no_authority_issues_nothing(made: Made, authority: Authority) -> None:
    other = make_authority("prod", now_s=NOW_S, days=1)
    leaf = issue(authority, "replica", "r1", now_s=NOW_S, days=1)
    for certificate, key, message in (
        (made.certificate, other.key, "ca.key is not the key of ca.pem"),
        (leaf.certificate, leaf.key, "ca.pem is not a cell's authority"),
        (b"", made.key, "no authority can be read"),
        (made.certificate, b"x", "no authority can be read"),
    ):
        with pytest.raises(InvalidInput, match=message) as caught:
            read_authority(certificate, key, "au")
        assert str(caught.value).startswith("au: ")
        assert caught.value.hint


def test_a_certificate_is_read_back_as_it_was_made(authority: Authority) -> None:
    made = issue(authority, "executor", "e1", now_s=NOW_S, days=30)
    both = read_certificates(made.certificate + authority.pem, "both.pem")
    assert [one.identity for one in both] == [
        Identity("prod", "executor", "e1"),
        Identity("prod", "authority", "prod"),
    ]
    shown = both[0]
    assert (shown.file, shown.subject) == ("both.pem", "CN=e1,OU=executor,O=prod")
    assert (shown.days_left(NOW_S), shown.days_left(NOW_S + 31 * DAY_S)) == (30, -1)
    assert shown.trouble(NOW_S) == ""
    assert shown.trouble(NOW_S + 31 * DAY_S) == "expired"
    assert shown.trouble(NOW_S - DAY_S) == "not valid yet"


def test_what_is_no_certificate_is_not_shown(made: Made) -> None:
    with pytest.raises(InvalidInput, match="f: is a private key"):
        read_certificates(made.key, "f")
    with pytest.raises(InvalidInput, match="f: no certificate can be read"):
        read_certificates(b"nothing", "f")
