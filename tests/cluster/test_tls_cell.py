"""A cell with certificates, as real processes: who has one is served, who has none is told so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import wait_until
from tests.cluster.secured_cell import Secured

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

EVERY_SECOND = "#: name=tick\n@every 1s echo tick\n"


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secured]:
    one = Secured(tmp_path, executors=2)
    monkeypatch.setenv("RAFTCRON_TLS", str(one.person))
    with one.cell:
        yield one


def test_a_cell_with_certificates_works_and_fails_over(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = secured.cell.start()
    cell.wait_connected()
    cell.apply(EVERY_SECOND)
    cell.wait_launches(2, "tick")
    told = [json.loads(line) for line in cell.cli("executors", "-o", "json").stdout.splitlines()]
    assert [len(one["certificate_ends"] or "") for one in told] == [24, 24]
    cell.cli("trigger", "tick")
    [manual] = [row for row in cell.history() if "+t" in row.launch]
    assert manual.by == "ada"
    leader = cell.leader()
    cell.kill(leader)
    cell.leader(but=leader)
    cell.wait_connected()
    before = len(cell.history("tick", states=["succeeded"]))
    cell.wait_launches(before + 2, "tick")
    monkeypatch.delenv("RAFTCRON_TLS")
    done = cell.cli("status", expect=7)
    assert "it wants a certificate" in done.stderr
    assert "--tls DIR" in done.stderr
    done = cell.cli("status", "--tls", str(secured.folders["executor-1"]), expect=7)
    assert "executor executor-1 of cell default may not use Admin" in done.stderr


def test_a_renewed_certificate_is_taken_and_nothing_stops(secured: Secured) -> None:
    cell = secured.cell.start()
    cell.wait_connected()
    cell.apply(EVERY_SECOND)
    for name, folder in secured.folders.items():
        kind = "replica" if name in cell.replicas else "executor"
        new = secured.certs.issued(kind, name, cell="default")
        for file in ("cert.pem", "key.pem"):
            (new / file).rename(folder / file)
    cell.cli("status")  # a new connection, to any of them
    leader = cell.leader()
    cell.kill(leader)
    cell.leader(but=leader)
    cell.wait_connected()
    cell.start(leader)
    cell.wait_launches(3, "tick")
    wait_until(
        lambda: all("certificate.renewed" in cell.log(name) for name in cell.executors),
        what="executors with their new certificates",
    )
    wait_until(
        lambda: len({row.applied for row in cell.status() if row.kind == "replica"}) == 1,
        what="all replicas at one position",
    )


def test_who_is_somebody_else_does_not_start_and_who_has_none_is_not_served(
    secured: Secured, tmp_path: Path
) -> None:
    cell = secured.cell
    cell.start(*cell.replicas, "executor-1")
    cell.wait_connected("executor-1")
    config = cell.members["executor-2"].config
    text = config.read_text()
    config.write_text(
        text.replace(*map(str, (secured.folders[n] for n in ("executor-2", "executor-1"))))
    )
    done = subprocess.run(
        [sys.executable, "-P", "-m", "launcher.executor", "--config", str(config)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "it is of executor executor-1 of cell default" in done.stderr
    config.write_text(text.partition("[tls]")[0])
    cell.start("executor-2")
    wait_until(lambda: "it wants a certificate" in cell.log("executor-2"), what="a word of why")
    assert [row.id for row in cell.status() if row.role == "connected"] == ["executor-1"]


def test_a_replica_does_not_start_with_the_certificate_of_another(secured: Secured) -> None:
    cell = secured.cell
    config = cell.members["r1"].config
    text = config.read_text().replace(str(secured.folders["r1"]), str(secured.folders["r2"]))
    config.write_text(text)
    cell.start("r1")
    cell.wait_down("r1")
    assert "it is of replica r2 of cell default, and this is replica r1" in cell.log("r1")
    assert "raftcron certs issue DIR replica r1" in cell.log("r1")


def test_roles_and_tokens_hold_on_every_leader_and_after_a_restart(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = secured.cell.start()
    cell.wait_connected()
    bob = str(secured.certs.issued("person", "bob", cell="default"))
    cell.apply("#: name=billing/tick\n@every 1h echo tick\n#: name=ops/tick\n@every 1h echo tick\n")
    cell.cli("jobs", "--tls", bob)  # no role was granted yet: every person is an admin
    assert "makes an admin" in cell.cli("role", "grant", "bob", "viewer", expect=4).stderr
    cell.cli("role", "grant", "ada", "admin")
    cell.cli("role", "grant", "bob", "viewer", "--tenant", "billing")
    token = cell.cli("token", "create", "ci", "--role", "operator").stdout.strip()
    assert "person bob" in cell.cli("pause", "tick", "--tls", bob, expect=7).stderr

    leader = cell.leader()
    cell.kill(leader)
    cell.leader(but=leader)
    assert "ops/tick" not in cell.cli("jobs", "--tls", bob).stdout
    assert "billing/tick" in cell.cli("jobs", "--tls", bob).stdout
    nobody = str(secured.certs.issued("person", "eve", cell="default"))
    assert "eve of cell default has no role" in cell.cli("jobs", "--tls", nobody, expect=7).stderr
    with monkeypatch.context() as shown:
        shown.setenv("RAFTCRON_TOKEN", token)  # beside a certificate without a role
        cell.cli("pause", "ops/tick", "--tls", nobody)
        assert "may not use Roles" in cell.cli("role", "list", expect=7).stderr
    cell.cli("token", "revoke", "ci")
    cell.cli("role", "revoke", "bob", "viewer", "--tenant", "billing")

    for name in cell.replicas:
        if name != leader:
            cell.kill(name)
    cell.start(*cell.replicas)
    cell.leader()
    assert "bob of cell default has no role" in cell.cli("jobs", "--tls", bob, expect=7).stderr
    with monkeypatch.context() as shown:
        shown.setenv("RAFTCRON_TOKEN", token)
        assert "of ci was revoked" in cell.cli("jobs", expect=7).stderr
    changes = cell.cli("changes", "--by", "ci").stdout
    assert "token rc1_" in changes
    assert "ops/tick" in changes


@pytest.mark.nightly
def test_an_executor_has_what_the_cell_grants_its_id(secured: Secured) -> None:
    for name in ("executor-1", "executor-2"):
        with secured.cell.members[name].config.open("a") as config:
            config.write('\n[labels]\nzone = "eu"\n')
    cell = secured.cell.start()
    cell.wait_connected()
    cell.apply("#: name=eu where=zone=eu deadline=5s\n@every 1s echo\n")
    cell.wait_launches(2, "eu")
    cell.cli("executor", "grant", "executor-1", "--labels", "zone=eu", "--pools", "command")
    shown = cell.cli("executors", "executor-2").stdout
    assert "no work pool is granted to it" in shown
    assert "label zone=eu" in shown
    leader = cell.leader()
    cell.kill(leader)  # who leads next knows it from the log
    cell.leader(but=leader)
    cell.wait_connected()
    before = len(cell.history("eu", states=["succeeded"]))
    cell.wait_launches(before + 3, "eu")
    newest = cell.history("eu", states=["succeeded"])[:3]
    assert {row.executor for row in newest} == {"executor-1"}
    assert "executor.claims_refused" in cell.log(cell.leader())
    cell.cli("executor", "revoke", "executor-1")
    wait_until(
        lambda: "2 would, which are not granted that" in cell.cli("why", "eu", expect=None).stdout,
        what="a launch that finds no executor",
    )


@pytest.mark.nightly
def test_a_revoked_certificate_keeps_its_owner_out_until_it_has_another_one(
    secured: Secured,
) -> None:
    cell = secured.cell.start()
    cell.wait_connected()
    cell.apply(EVERY_SECOND)
    leader = cell.leader()
    replica = next(name for name in cell.replicas if name != leader)
    eve = str(secured.certs.issued("person", "eve", cell="default"))
    cell.cli("jobs", "--tls", eve)
    cell.cli("certs", "revoke", eve, str(secured.folders["executor-1"]))
    cell.cli("certs", "revoke", str(secured.folders[replica]), "--yes")
    assert "of person eve was revoked" in cell.cli("jobs", "--tls", eve, expect=7).stderr

    def connected() -> set[str]:
        return {row.id for row in cell.status() if row.role == "connected"}

    wait_until(lambda: connected() == {"executor-2"}, what="the end of the executor's stream")
    refused = f"of {replica} was revoked"
    wait_until(lambda: refused in cell.log(leader), what="the end of the replica's connections")
    known = len(cell.history("tick"))
    cell.wait_launches(known + 2, "tick")
    for kind, name in (("executor", "executor-1"), ("replica", replica)):
        new = secured.certs.issued(kind, name, cell="default")
        for file in ("key.pem", "cert.pem"):
            (new / file).rename(secured.folders[name] / file)
    cell.wait_connected()
    wait_until(
        lambda: len({row.applied for row in cell.status() if row.kind == "replica"}) == 1,
        what="all replicas at one position",
    )
