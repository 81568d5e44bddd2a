"""The HTTP API of a cell of real processes."""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from launcher.tls import files_of
from tests.cluster.dev_process import DevProcess, first_port
from tests.cluster.harness import Cell, wait_until
from tests.cluster.secured_cell import Secured
from tests.unit import relay_rig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
CRONTAB = "#: name=tick\n@every 1s true\n#: name=once\n@yearly true\n"
QUEUE = '[[queue]]\nname = "mail"\nhandler = "mail"\nunknown-handler = "wait"\n'


class Said(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    json: Any


class Site:
    """A cell whose replicas serve HTTP."""

    def __init__(self, cell: Cell, tls: ssl.SSLContext | None = None) -> None:
        self.cell = cell
        self.tls = tls

    def ask(self, replica: str, method: str, path: str, body: Any = None, **headers: str) -> Said:
        """Ask one replica. Raises OSError where it does not answer."""
        port = self.cell.ports.http[int(replica[1:]) - 1]
        connection: http.client.HTTPConnection
        if self.tls is None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        else:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", port, timeout=60, context=self.tls
            )
        content = None if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"content-type": "application/json"}
        try:
            connection.request(method, path, content, {**kind, **headers})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Said(answer.status, found, json.loads(answer.read() or b"null"))
        finally:
            connection.close()

    def wait_ready(self, *replicas: str) -> None:
        """Return once these replicas say that they are ready."""

        def ready() -> bool:
            try:
                return all(self.ask(one, "GET", "/readyz").status == 200 for one in replicas)
            except OSError:
                return False

        wait_until(ready, what=f"{replicas} to be ready")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Site]:
    with Cell(tmp_path / "cell", http=True) as cell:
        yield Site(cell)


def test_any_replica_answers_over_http_and_again_after_the_leaders_death(served: Site) -> None:
    cell = served.cell.start()
    cell.wait_connected()
    served.wait_ready(*cell.replicas)
    leader, follower = cell.leader(), cell.follower()
    files = [{"name": "crontab", "content": base64.b64encode(CRONTAB.encode()).decode()}]
    applied = served.ask(follower, "POST", "/v1/jobs", {"files": files, "by": "ada"})
    assert (applied.status, len(applied.json["changes"])) == (200, 2), applied
    queued = served.ask(follower, "POST", "/v1/task-queues", {"source": "q", "text": QUEUE})
    assert queued.status == 200, queued
    task = {"key": "1", "handler": "mail", "delay_ms": 3_600_000}
    assert served.ask(follower, "POST", "/v1/tasks", task).status == 201
    assert served.ask(leader, "POST", "/v1/tasks", task).status == 200, "the same task"
    cell.kill(leader)
    seen: list[Said] = []
    body = {"job": "once", "request_id": "one", "by": "ada"}

    def triggered() -> bool:
        seen.append(served.ask(follower, "POST", "/v1/launches", body))
        assert seen[-1].status in (200, 503, 504), seen[-1]
        return seen[-1].status == 200

    stale = served.ask(follower, "GET", "/v1/jobs", **{"raftcron-stale": "1"})
    assert [job["name"] for job in stale.json] == ["default/once", "default/tick"]
    assert json.loads(stale.headers["raftcron-behind"])["replica"] == follower
    wait_until(triggered, what="a trigger")
    assert all(one.headers["retry-after"] == "1" for one in seen if one.status == 503)
    survivors = [name for name in cell.replicas if name != leader]
    served.wait_ready(*survivors)
    for name in survivors:
        again = served.ask(name, "POST", "/v1/launches", body)
        assert again.json["launch"] == seen[-1].json["launch"], "the same launch"
        shown = served.ask(name, "GET", "/v1/tasks/mail:1")
        assert (shown.status, shown.json["state"]) == (200, "waiting")
    second = next(name for name in survivors if name != follower)
    cell.kill(second)
    alone = wait_until(lambda: _not_ready(served, follower), what="a replica without a majority")
    assert alone.json["status"] == "unavailable"
    assert served.ask(follower, "GET", "/healthz").status == 200
    refused = served.ask(follower, "GET", "/v1/jobs")
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert served.ask(follower, "GET", "/v1/jobs", **{"raftcron-stale": "1"}).status == 200
    cell.start(second)
    served.wait_ready(follower, second)
    body["request_id"] = "two"
    wait_until(triggered, what="a trigger, once there is a majority again")


def _not_ready(served: Site, replica: str) -> Said | None:
    said = served.ask(replica, "GET", "/readyz")
    return said if said.status == 503 else None


@pytest.mark.nightly
def test_over_https_a_follower_tells_the_leader_whose_certificate_it_was_shown(
    tmp_path: Path,
) -> None:
    secured = Secured(tmp_path, http=True)
    ada = files_of(str(secured.person))
    tls = ssl.create_default_context(cafile=ada.ca)
    tls.check_hostname = False
    tls.load_cert_chain(ada.cert, ada.key)
    nobody = ssl.create_default_context(cafile=ada.ca)
    nobody.check_hostname = False
    with secured.cell as cell:
        cell.start()
        served = Site(cell, tls)
        served.wait_ready(*cell.replicas)
        files_ = [{"name": "crontab", "content": base64.b64encode(CRONTAB.encode()).decode()}]
        for name in cell.replicas:
            applied = served.ask(name, "POST", "/v1/jobs", {"files": files_, "by": "eve"})
            assert applied.status == 200, applied
            body = {"job": "once", "request_id": name, "by": "eve"}
            assert served.ask(name, "POST", "/v1/launches", body).status == 200
            assert Site(cell, nobody).ask(name, "GET", "/v1/jobs").status == 401
        rows = served.ask("r2", "GET", "/v1/history?job=once").json
        assert [row["by"] for row in rows] == ["ada"] * 3
        jobs = served.ask("r1", "GET", "/v1/jobs").json
        assert {job["changed_by"] for job in jobs} == {"ada"}


@pytest.mark.nightly
def test_a_relay_with_a_token_alone_goes_on_over_https_after_the_leaders_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secured = Secured(tmp_path, http=True)
    trusted = tmp_path / "trusted"
    trusted.mkdir()
    shutil.copy(secured.person / "ca.pem", trusted)
    file, queues = tmp_path / "shop.db", tmp_path / "queues.toml"
    queues.write_text(QUEUE.replace('"mail"', '"h"'))
    with secured.cell as cell:
        cell.start()
        cell.leader()
        monkeypatch.setenv("RAFTCRON_TLS", str(secured.person))
        cell.cli("queue", "apply", str(queues))
        token = cell.cli("token", "create", "shop", "--role", "submitter").stdout.strip()
        monkeypatch.setenv("RAFTCRON_TOKEN", token)
        servers = ",".join(f"https://127.0.0.1:{port}" for port in cell.ports.http)
        line = ("relay", f"sqlite:{file}", "--once", "--server", servers, "--tls", str(trusted))
        rows = relay_rig.shop(file, range(20))
        relay_rig.run_killed(*line, failpoint="carry-submitted=kill")
        cell.kill(cell.leader())
        connection = sqlite3.connect(file)
        with connection:  # as if the claim of the dead relay were over
            connection.execute("UPDATE raftcron_outbox SET not_before_ms = 0")
        connection.close()
        done = relay_rig.run(*line, "--timeout", "60s")
        assert (done.returncode, rows()) == (0, []), done.stderr
        monkeypatch.delenv("RAFTCRON_TOKEN")
        listed = cell.rows("task", "list", "--queue", "h", "-n", "100")
        assert len(listed) == 20
        assert {row["by"] for row in listed} == {"shop"}


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples are of curl")
def test_the_examples_of_the_manual_run_as_written() -> None:
    manual = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(curl -s .*?)^```$", manual, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    port = first_port()
    program = [sys.executable, "-P", "-m", "cron.main", "dev", "--port", str(port)]
    dev = DevProcess([*program, str(ROOT / "examples" / "crontab")], ROOT)
    try:
        dev.read_until(rf"HTTP API: http://127\.0\.0\.1:{port + 80}, ")
        dev.read_until("leads now")
        dev.read_until("succeeded")
        count = 0
        for block in blocks:
            script = re.sub(r":748([012])", lambda found: f":{port + 80 + int(found[1])}", block)
            for command in re.split(r"\n(?=curl )", script.strip()):
                fails = command.replace("curl -s", "curl -sS --fail-with-body", 1)
                done = subprocess.run(
                    ["sh", "-c", fails], capture_output=True, text=True, timeout=60, check=False
                )
                assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
                assert done.stdout, command
                count += 1
        assert count == manual.count("\ncurl -s ")
    finally:
        dev.close()
