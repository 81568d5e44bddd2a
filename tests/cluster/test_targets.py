"""Targets as people use them: a job file, `raftcron target`, and a server on the other side."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from launcher.targets.kube_jobs import Named
from tests.cluster.failover import PATIENT
from tests.cluster.harness import Cell, wait_until
from tests.cluster.worker_rig import HOST, WITHIN_S, Shop, Worker, handler_job
from tests.conformance.targets import kubeconfig_of
from tests.fakes.bad_http import Request, answer, bad_server
from tests.fakes.kubernetes_api import kubernetes_fake
from tests.fakes.smtp_server import smtp_server

pytestmark = pytest.mark.timeout(180)


def serve(shop: Shop, kind: str, config: str, *, name: str = "target") -> Worker:
    """Start a target beside the executor, and return once it is offered."""
    path = shop.folder / "targets.toml"
    path.write_text(config)
    end = shop.cell.folder / HOST / "workers.sock"
    argv = ["-P", "-m", "cron.main", "target", kind, "--config", str(path), "--grace", "2s"]
    log = shop.folder / f"{name}.log"
    worker = Worker(name, [*argv, "--executor", str(end)], shop.folder, log, {})
    shop.workers.append(worker)
    shop.wait_served(HOST)
    wait_until(lambda: len(worker.children()) == 1, WITHIN_S, "its process")
    return worker


def has_other_child(worker: Worker, dead: int) -> bool:
    """Whether a worker has another process than one that died."""
    return worker.children() not in ([], [dead])


HTTP = '[http]\nhosts = ["127.0.0.1"]\nnetworks = ["127.0.0.0/8"]\n'


def http_job(name: str, url: str, *options: str) -> str:
    """A job whose launches are requests."""
    return handler_job(name, "http", f'payload = {{ url = "{url}", body = {{ n = 1 }} }}', *options)


def test_launches_are_requests_and_their_answers_are_the_ends(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    tried = threading.Event()

    def busy(end: socket.socket, request: Request) -> None:
        way = answer("200 OK", b"at last") if tried.is_set() else answer("503 Busy", b"")
        tried.set()
        way(end, request)

    with bad_server() as server, Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        server.ways |= {"/ok": answer("200 OK", b"thanks"), "/busy": busy}
        server.ways["/no"] = answer("404 Not Found", b"no such hook")
        jobs = [
            http_job("ok", server.url("/ok")),
            http_job("busy", server.url("/busy"), "retries = 2", 'backoff = "1s"'),
            http_job("no", server.url("/no"), "retries = 2"),
        ]
        shop.apply("".join(jobs))
        serve(shop, "http", HTTP)
        ok, busy_, no = shop.trigger("ok", "busy", "no")
        assert shop.wait_row(ok, "succeeded").detail == "thanks"
        row = shop.wait_row(no, "dead", "failed")
        assert "HTTP 404 Not Found: no such hook" in row.detail
        assert shop.wait_row(busy_, "succeeded").attempt == 2
        keys = [one.headers["idempotency-key"] for one in server.requests if one.path == "/busy"]
        assert keys == [busy_, busy_], "the same name in every attempt"
        [request] = [one for one in server.requests if one.path == "/ok"]
        assert json.loads(request.body) == {"n": 1}
        assert "thanks" in shop.cell.cli("logs", ok).stdout
        assert len([one for one in server.requests if one.path == "/no"]) == 1, "no second try"
        payload = json.dumps({"url": server.url("/ok"), "body": {"n": 2}})
        shop.cell.cli(
            "task", "submit", "--handler", "http", "--payload", payload, "--key", "k7", "--wait"
        )
        task = server.requests[-1]
        assert json.loads(task.body) == {"n": 2}
        assert task.headers["idempotency-key"].startswith("default/http:k7@")
        assert task.headers["ce-source"] == "/raftcron/default/http:k7"


def test_a_request_under_way_when_its_target_dies_is_lost_or_sent_again_as_the_job_says(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    died = threading.Event()

    def slow(end: socket.socket, request: Request) -> None:
        if died.wait(0):
            answer("200 OK", b"again")(end, request)
        else:
            end.settimeout(None)
            end.recv(1)  # until the target dies

    with bad_server() as server, Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        server.ways |= {"/once": slow, "/again": slow}
        again = http_job("again", server.url("/again"), 'on-lost = "retry"', "retries = 1")
        shop.apply(http_job("once", server.url("/once")) + again)
        worker = serve(shop, "http", HTTP)
        names = shop.trigger("once", "again")
        wait_until(lambda: len(server.requests) == 2, WITHIN_S, "both requests")
        died.set()
        [child] = worker.children()
        os.kill(child, signal.SIGKILL)
        once = shop.wait_row(names[0], "lost", "dead")
        assert "may have been received" in once.detail
        assert shop.wait_row(names[1], "succeeded").attempt == 2
        paths = sorted(one.path for one in server.requests)
        assert paths == ["/again", "/again", "/once"]
        assert {one.headers["idempotency-key"] for one in server.requests} == set(names)


def test_a_job_of_kubernetes_outlives_its_target_and_is_never_created_twice(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    container = '{ name = "main", image = "busybox" }'
    payload = f"{{ template = {{ spec = {{ template.spec.containers = [{container}] }} }} }}"
    with kubernetes_fake() as fake, Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        jobs = handler_job("report", "kubernetes", f"payload = {payload}")
        shop.apply(jobs + handler_job("stopped", "kubernetes", f"payload = {payload}"))
        (shop.folder / "kubeconfig").write_text(json.dumps(kubeconfig_of(fake.url)))
        config = '[kubernetes]\nnamespaces = ["jobs"]\nkubeconfig = "kubeconfig"\n'
        worker = serve(shop, "kubernetes", config)
        launch, stopped = shop.trigger("report", "stopped")
        wait_until(lambda: len(fake.created) == 2, WITHIN_S, "both Jobs")
        for _ in range(2):  # its process dies, and another one is started
            [child] = worker.children()
            os.kill(child, signal.SIGKILL)
            wait_until(partial(has_other_child, worker, child), WITHIN_S, "another process")
        assert worker.end() == 0  # the whole target is stopped, as for an upgrade
        shop.workers.remove(worker)
        serve(shop, "kubernetes", config, name="second")
        assert shop.cell.cli("kill", stopped).returncode == 0
        name = Named(stopped, 1, "").job
        wait_until(lambda: "deletionTimestamp" in fake.jobs[name]["metadata"], WITHIN_S, "its end")
        fake.remove(name)
        assert shop.wait_row(stopped, "cancelled", "failed").attempt == 1
        fake.logs[Named(launch, 1, "").job] = "all is well\n"
        fake.finish(Named(launch, 1, "").job)
        row = shop.wait_row(launch, "succeeded")
        assert (row.attempt, row.detail) == (1, "all is well")
        assert len(fake.created) == 2
        assert "all is well" in shop.cell.cli("logs", launch).stdout


def test_a_lost_launch_takes_over_the_job_that_its_dead_executor_left(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with kubernetes_fake() as fake, Shop(make_cell(replica_extra=PATIENT), tmp_path) as shop:
        container = '{ name = "main", image = "busybox" }'
        payload = f"{{ template = {{ spec = {{ template.spec.containers = [{container}] }} }} }}"
        options = (f"payload = {payload}", 'on-lost = "retry"', 'deadline = "1h"')
        shop.apply(handler_job("report", "kubernetes", *options))
        (shop.folder / "kubeconfig").write_text(json.dumps(kubeconfig_of(fake.url)))
        config = '[kubernetes]\nnamespaces = ["jobs"]\nkubeconfig = "kubeconfig"\n'
        serve(shop, "kubernetes", config)
        [launch] = shop.trigger("report")
        wait_until(lambda: fake.created, WITHIN_S, "the Job")
        shop.cell.kill(HOST)
        shop.cell.start(HOST)
        wait_until(
            lambda: any("attempt 1" in line for line in outputs(shop, launch)), WITHIN_S, "a look"
        )
        name = Named(launch, 1, "").job
        fake.finish(name)
        row = shop.wait_row(launch, "succeeded")
        assert row.attempt == 2
        assert fake.created == [name]
        assert {one.state for one in shop.attempts(launch)} == {"lost", "succeeded"}


def test_an_executor_serves_the_targets_of_its_configuration_by_itself(
    make_cell: Callable[..., Cell], tmp_path: Path
) -> None:
    with smtp_server() as server:
        config = tmp_path / "targets.toml"
        config.write_text(
            f'[mail]\nserver = "{server.place}"\nfrom = "cron@example.com"\n'
            'recipients = ["*@example.com"]\ntls = "none"\n'
        )
        cell = make_cell(replica_extra=PATIENT, executor_extra=f'targets = "{config}"')
        with Shop(cell, tmp_path) as shop:
            shop.wait_served(HOST)
            payload = 'payload = { to = "ops@example.com", subject = "hello", text = "you" }'
            shop.apply(handler_job("mail", "mail", payload))
            [launch] = shop.trigger("mail")
            assert shop.wait_row(launch, "succeeded").detail == "accepted for ops@example.com"
            [mail] = server.received
            assert mail.message["subject"] == "hello"
            shop.cell.kill(HOST)  # its targets end with it, and come again with the next one
            shop.cell.start(HOST)
            shop.wait_served(HOST)
            [launch] = shop.trigger("mail")
            shop.wait_row(launch, "succeeded")
            assert len(server.received) == 2


def outputs(shop: Shop, launch: str) -> list[str]:
    """The lines of what the newest attempt of a launch has written."""
    return shop.cell.cli("logs", launch, expect=None).stdout.splitlines()
