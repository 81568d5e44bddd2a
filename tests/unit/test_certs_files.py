"""cron.certs.files: keys are for their owner, nothing is overwritten, folders appear whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cron.certs import files
from cron.certs.files import find_certificates, open_authority, write_authority, write_issued
from cron.certs.making import issue, make_authority
from cron.errors import InvalidInput
from tests.unit.test_certs_making import NOW_S


def authority_in(folder: Path) -> Path:
    write_authority(folder, make_authority("prod", now_s=NOW_S, days=99))
    return folder


def issue_into(authority: Path, out: Path, kind: str = "replica", name: str = "r1") -> Path:
    source = open_authority(authority)
    return write_issued(out, source.pem, issue(source, kind, name, now_s=NOW_S, days=9))


def modes(folder: Path) -> dict[str, int]:
    return {one.name: one.stat().st_mode & 0o777 for one in [folder, *folder.iterdir()]}


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """Whatever the user's umask gives away, a key is not in it."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_keys_and_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "deep" / "au")
    assert modes(authority) == {"au": 0o700, "ca.key": 0o600, "ca.pem": 0o644}
    issued = issue_into(authority, tmp_path / "out")
    assert modes(issued) == {
        "replica-r1": 0o700, "ca.pem": 0o644, "cert.pem": 0o644, "key.pem": 0o600,
    }  # fmt: skip
    assert (issued / "ca.pem").read_bytes() == (authority / "ca.pem").read_bytes()


def test_an_authority_is_never_overwritten(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "au")
    before = {one: one.read_bytes() for one in authority.iterdir()}
    with pytest.raises(InvalidInput, match=r"ca\.pem: is there already, and stays") as caught:
        authority_in(authority)
    assert caught.value.hint
    (authority / "ca.pem").unlink()
    with pytest.raises(InvalidInput, match=r"ca\.key: is there already"):
        authority_in(authority)
    assert (authority / "ca.key").read_bytes() == before[authority / "ca.key"]


def test_an_authority_may_stand_beside_other_files(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("mine")
    authority_in(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {"README", "ca.pem", "ca.key"}


def test_half_an_authority_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files._write

    def full(file: Path, content: bytes, mode: int) -> None:
        if file.name == "ca.pem":
            raise OSError(28, "No space left on device", str(file))
        real(file, content, mode)

    monkeypatch.setattr(files, "_write", full)
    with pytest.raises(InvalidInput, match=r"ca\.pem: no space left on device"):
        authority_in(tmp_path / "au")
    assert list((tmp_path / "au").iterdir()) == []


def test_what_was_issued_stays(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "au")
    issued = issue_into(authority, authority)
    assert issued == authority / "replica-r1"
    before = (issued / "key.pem").read_bytes()
    with pytest.raises(InvalidInput, match="replica-r1: is there already, and stays") as caught:
        issue_into(authority, authority)
    assert f"mv {issued}" in caught.value.hint
    assert (issued / "key.pem").read_bytes() == before


def test_a_folder_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = authority_in(tmp_path / "au")
    real = files._write

    def full(file: Path, content: bytes, mode: int) -> None:
        if file.name == "cert.pem":
            raise OSError(28, "No space left on device", str(file))
        real(file, content, mode)

    monkeypatch.setattr(files, "_write", full)
    with pytest.raises(InvalidInput, match="no space left on device"):
        issue_into(authority, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_authority_whose_key_others_may_read_issues_nothing(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "au")
    (authority / "ca.key").chmod(0o644)
    with pytest.raises(InvalidInput, match=r"ca\.key: others may use this private key") as caught:
        open_authority(authority)
    assert caught.value.hint == f"chmod 600 {authority / 'ca.key'}"


def test_a_folder_without_an_authority_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no ca\.key is in it") as caught:
        open_authority(tmp_path)
    assert "raftcron certs init" in caught.value.hint


def test_certificates_are_found_in_a_file_a_folder_and_an_authority(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "au")
    issued = issue_into(authority, authority)
    issue_into(authority, authority, "person", "ada")

    def names(place: Path) -> list[str]:
        return [one.identity.name for one in find_certificates(place) if one.identity]

    assert names(authority) == ["prod", "ada", "r1"]
    assert names(issued) == ["prod", "r1"]
    assert names(issued / "cert.pem") == ["r1"]
    with pytest.raises(InvalidInput, match=r"no ca\.pem or cert\.pem is in it"):
        find_certificates(tmp_path)
    with pytest.raises(InvalidInput, match="none: no such file"):
        find_certificates(tmp_path / "none")
