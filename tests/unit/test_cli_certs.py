"""raftcron certs, and --tls: what a person types and reads."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from cron.api.jobs import PauseReport
from cron.errors import InvalidInput
from launcher.tls import files_of, load_credentials
from tests.unit.access_rig import AccessWorld
from tests.unit.api_rig import FakeBackend, launch, run_cli, serving
from tests.unit.certs_rig import EXECUTOR, PERSON, REPLICA, Certs
from tests.unit.tls_rig import secured


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path / "certs")


@pytest.fixture(autouse=True)
def no_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAFTCRON_TLS", raising=False)


# ---- making


async def test_a_cell_gets_its_authority_and_certificates(tmp_path: Path) -> None:
    place = str(tmp_path / "au")
    made = await run_cli("certs", "init", place, "--cell", "prod")
    assert made.exit_code == 0, made.output
    head, row, *rest = made.stdout.splitlines()
    assert head.split() == [
        "FILE",
        "KIND",
        "NAME",
        "CELL",
        "EXPIRES",
        "UTC",
        "DAYS",
        "LEFT",
        "NOTE",
    ]
    assert row.split()[:4] == [f"{place}/ca.pem", "authority", "prod", "prod"]
    assert row.split()[-1] == "3650"
    assert any("ca.key" in line and "backed up" in line for line in rest)
    for kind, name in (("replica", "r1"), ("executor", "e1"), ("person", "ada")):
        issued = await run_cli("certs", "issue", place, kind, name)
        assert issued.exit_code == 0, issued.output
        folder = f"{place}/{kind}-{name}"
        assert re.search(rf"{folder}/cert.pem +{kind} +{name} +prod +\S+ \S+ +365", issued.stdout)
        assert f"{folder}: goes to" in issued.stdout
        identity = load_credentials(files_of(folder)).identity
        assert (identity.cell, identity.kind, identity.name) == ("prod", kind, name)


@pytest.mark.parametrize(
    ("arguments", "answer", "granted"),
    [
        (["--role", "admin"], None, "admin"),
        ([], None, "viewer"),  # nobody can be asked
        ([], b"operator\n", "operator"),
        ([], b"\n", "viewer"),
        ([], b"king\nadmin\n", "admin"),
    ],
)
async def test_a_person_is_asked_for_a_role_and_told_how_to_grant_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    answer: bytes | None,
    granted: str,
) -> None:
    """Whoever holds a person's certificate is an admin until the first role is granted."""
    monkeypatch.setattr("cron.cli.certs.can_ask", lambda: answer is not None)
    place = str(tmp_path / "au")
    await run_cli("certs", "init", place, "--cell", "prod")
    issued = await run_cli("certs", "issue", place, "person", "ada", *arguments, stdin=answer)
    assert issued.exit_code == 0, issued.output
    assert issued.stdout.splitlines()[-3:] == [
        "ada may do everything until the cell's first `role grant`, and nothing after it",
        "without a role. The first role has to be that of an admin. Next, in the cell:",
        f"  raftcron role grant ada {granted}",
    ]
    assert ("Role of ada in the cell" in issued.stderr) == (answer is not None)


async def test_a_replica_has_no_role(tmp_path: Path) -> None:
    place = str(tmp_path / "au")
    await run_cli("certs", "init", place, "--cell", "prod")
    refused = await run_cli("certs", "issue", place, "replica", "r1", "--role", "admin")
    assert refused.exit_code == 2
    assert "--role is for a person" in refused.stderr


async def test_days_and_place_may_be_chosen(tmp_path: Path) -> None:
    place, out = str(tmp_path / "au"), str(tmp_path / "out")
    await run_cli("certs", "init", place, "--cell", "prod", "--days", "30")
    issued = await run_cli(
        "certs", "issue", place, "person", "ada", "--days", "7", "--out", out, "-o", "json"
    )
    row = json.loads(issued.stdout)
    assert (row["kind"], row["name"], row["cell"]) == ("person", "ada", "prod")
    assert (row["file"], row["days_left"], row["trouble"]) == (
        f"{out}/person-ada/cert.pem",
        7,
        None,
    )
    assert row["expires"].endswith("Z")
    assert sorted(os.listdir(f"{out}/person-ada")) == ["ca.pem", "cert.pem", "key.pem"]
    too_long = await run_cli("certs", "issue", place, "person", "bob", "--days", "31")
    assert too_long.exit_code == 2
    assert "hint: --days 30" in too_long.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["init", "AU", "--cell", "prod"], "AU/ca.pem: is there already, and stays"),
        (["init", "NEW", "--cell", "a b"], "cell: 'a b' is not a name"),
        (["init", "NEW"], "--cell"),
        (["init", "NEW", "--cell", "x", "--days", "0"], "days 0 is not between"),
        (["issue", "AU", "robot", "r1"], "'robot' is not one of"),
        (["issue", "AU", "replica", "r/1"], "replica: 'r/1' is not a name"),
        (["issue", "NEW", "replica", "r1"], "NEW: no ca.key is in it"),
        (["show", "NEW"], "NEW: no such file or directory"),
        (["show", "AU/ca.key"], "AU/ca.key: is a private key"),
    ],
)
async def test_a_mistake_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    await run_cli("certs", "init", "AU", "--cell", "prod")
    before = sorted(os.walk(tmp_path))
    done = await run_cli("certs", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert sorted(os.walk(tmp_path)) == before


async def test_show_tells_of_all_and_of_what_has_ended(certs: Certs) -> None:
    folder = certs.issued(*PERSON, begins_days=-12)
    shown = await run_cli("certs", "show", str(folder))
    assert shown.exit_code == 0
    assert re.search(r"cert.pem +person +ada +berlin +\S+ \S+ +-[23] +expired", shown.stdout)
    rows = [
        json.loads(line)
        for line in (await run_cli("certs", "show", str(folder), "-o", "json")).stdout.splitlines()
    ]
    assert [(row["kind"], row["days_left"] < 0, row["trouble"]) for row in rows] == [
        ("authority", False, None),
        ("person", True, "expired"),
    ]


# ---- revoking


async def test_a_certificate_is_revoked_by_its_file_or_directory(certs: Certs) -> None:
    folder, world = certs.issued(*EXECUTOR), AccessWorld()
    async with world.serving() as server:
        done = await run_cli("certs", "revoke", str(folder), server=server)
        assert done.exit_code == 0, done.output
        (revoked,) = world.state.access.revoked.values()
        assert (revoked.kind, revoked.name) == EXECUTOR
        short = revoked.digest[:16]
        assert done.stdout == f"certificate {short} of executor executor-7 is revoked\n"
        again = await run_cli("certs", "revoke", str(folder / "cert.pem"), server=server)
        assert again.stdout.endswith("was revoked already\n")
        listed = await run_cli("certs", "revoked", "-o", "json", server=server)
    row = json.loads(listed.stdout)
    shown = await run_cli("certs", "show", str(folder / "cert.pem"), "-o", "json")
    assert row["digest"] == json.loads(shown.stdout)["digest"]
    assert (row["kind"], row["name"]) == EXECUTOR


async def test_what_is_not_one_certificate_is_not_revoked(certs: Certs) -> None:
    replica, world = certs.issued(*REPLICA), AccessWorld()
    wrong = [
        (str(certs.authority() / "ca.pem"), "is not one certificate of a replica, executor"),
        (str(certs.folder), "no such file"),
        (str(replica / "key.pem"), "is a private key"),
        (str(replica), "revoke the old one with --yes"),
    ]
    async with world.serving() as server:
        for place, message in wrong:
            done = await run_cli("certs", "revoke", place, server=server)
            assert done.exit_code == 2
            assert message in done.stderr
        assert world.state.access.revoked == {}
        done = await run_cli("certs", "revoke", str(replica), "--yes", server=server)
        assert done.exit_code == 0, done.output


# ---- using


async def test_the_folder_of_a_certificate_opens_the_cell(
    certs: Certs, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(certs.issued(*PERSON))
    paused = PauseReport(changed=["default/a"], unchanged=[])
    backend = FakeBackend(trigger=launch(), pause=paused)
    async with secured(certs, backend) as server:
        done = await run_cli("trigger", "a", "--tls", folder, server=server)
        assert done.exit_code == 0, done.output
        monkeypatch.setenv("RAFTCRON_TLS", folder)
        done = await run_cli("pause", "a", server=server)
        assert done.exit_code == 0, done.output
    (_, (triggered,)), (_, (pause,)) = backend.calls
    # The name is the certificate's, not that of the account.
    assert triggered.by == "ada"
    assert pause.by == "ada"


async def test_without_the_folder_the_way_out_is_told(certs: Certs) -> None:
    async with secured(certs, FakeBackend()) as server:
        done = await run_cli("jobs", server=server)
    assert done.exit_code == 7
    assert done.stderr.splitlines() == [
        f"raftcron: {server}: it wants a certificate",
        "  hint: give --tls DIR or RAFTCRON_TLS; an executor, [tls] in its configuration",
    ]


async def test_a_cell_without_tls_is_not_told_our_secrets(certs: Certs) -> None:
    async with serving(FakeBackend()) as server:
        done = await run_cli("jobs", "--tls", str(certs.issued(*PERSON)), server=server)
    assert done.exit_code == 7
    assert done.stderr.startswith(f"raftcron: {server}: it does not speak TLS\n  hint: ")


async def test_an_executors_certificate_is_not_a_persons(certs: Certs) -> None:
    async with secured(certs, FakeBackend()) as server:
        done = await run_cli("jobs", "--tls", str(certs.issued(*EXECUTOR)), server=server)
    assert done.exit_code == 7
    assert "executor executor-7 of cell berlin may not use Admin" in done.stderr


async def test_a_replica_of_another_authority_is_not_believed(certs: Certs) -> None:
    other = certs.credentials("replica", "r1", authority="other")
    async with secured(certs, FakeBackend(), credentials=other) as server:
        done = await run_cli("jobs", "--tls", str(certs.issued(*PERSON)), server=server)
    assert done.exit_code == 7
    assert f"{server}: its certificate is of another authority" in done.stderr


async def test_a_certificate_that_has_ended_is_named_before_anybody_is_asked(certs: Certs) -> None:
    folder = certs.issued(*PERSON, begins_days=-11)
    done = await run_cli("jobs", "--tls", str(folder), server="192.0.2.1:7400")
    assert done.exit_code == 2
    assert f"{folder}/cert.pem: the certificate has expired" in done.stderr
    assert "raftcron certs issue" in done.stderr


async def test_a_key_that_others_may_read_is_refused(certs: Certs) -> None:
    folder = certs.issued(*PERSON)
    (folder / "key.pem").chmod(0o644)
    done = await run_cli("jobs", "--tls", str(folder))
    assert done.exit_code == 2
    assert f"hint: chmod 600 {folder}/key.pem" in done.stderr


async def test_a_folder_without_certificates_is_named(tmp_path: Path) -> None:
    done = await run_cli("jobs", "--tls", str(tmp_path))
    assert done.exit_code == 2
    assert f"{tmp_path}/ca.pem: no such file or directory" in done.stderr


def test_beyond_loopback_a_certificate_is_needed(
    monkeypatch: pytest.MonkeyPatch, certs: Certs
) -> None:
    from cron.cli.options import Settings

    monkeypatch.setenv("RAFTCRON_SERVER", "r1.example.org,[2001:db8::2]:7401")
    settings = Settings()
    with pytest.raises(InvalidInput, match="beyond loopback") as caught:
        settings.client()
    assert "--tls DIR" in caught.value.hint
    settings.tls = str(certs.issued(*PERSON))
    settings.client().close()
