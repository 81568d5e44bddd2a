"""A Kubernetes API server for Jobs, in memory: what a real one answered to the same calls.

`make kubernetes` runs the same tests against a real one. There is no controller: `finish` plays it.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

BATCH = "/apis/batch/v1/namespaces/"
CORE = "/api/v1/namespaces/"
NAMESPACES = ("jobs",)


class KubernetesFake:
    """The objects of a cluster, and its changes. `horizon` is the oldest version that a watch may
    go on from. `broken` is a status with which all calls are answered, 0 for none."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.jobs: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.version = 100
        self.horizon = 0
        self.created: list[str] = []
        self.logs: dict[str, str] = {}
        self.strangers: list[dict[str, Any]] = []
        """Pods that have the labels of a Job's pods, and belong to another."""
        self.calls: list[str] = []
        self.tokens: list[str] = []
        self.broken = 0
        self.hangs_up = 0
        """So many creates are done and not answered."""
        self.is_over = False
        fake = self

        class Handler(Answers):
            cell = fake

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        with self.lock:
            self.is_over = True
            self.lock.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def changed(self, kind: str, job: dict[str, Any]) -> None:
        """Give an object its next version, and tell those who watch. The caller has the lock."""
        self.version += 1
        job["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, kind, copy.deepcopy(job)))
        self.lock.notify_all()

    def finish(self, name: str, condition: str = "Complete", **fields: str) -> None:
        """Let a Job be over, as its controller does."""
        with self.lock:
            job = self.jobs[name]
            one = {"type": condition, "status": "True", **fields}
            job["status"] = {"conditions": [one]}
            self.changed("MODIFIED", job)

    def remove(self, name: str) -> None:
        """Delete a Job, as a person does."""
        with self.lock:
            self.changed("DELETED", self.jobs.pop(name))

    def forget(self) -> None:
        """Forget all changes so far: watches from before are answered with 410."""
        with self.lock:
            self.events.clear()
            self.version += 1
            self.horizon = self.version


class Answers(BaseHTTPRequestHandler):
    """The answers of the server to one connection."""

    cell: KubernetesFake
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _json(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        if status == 429:
            self.send_header("retry-after", "1")
        self.end_headers()
        self.wfile.write(raw)

    def _status(self, code: int, reason: str, message: str) -> None:
        said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {}}
        self._json(code, {**said, "code": code, "reason": reason, "message": message})

    def _is_broken(self) -> bool:
        self.cell.calls.append(f"{self.command} {self.path}")
        self.cell.tokens.append(self.headers.get("authorization", ""))
        if self.cell.broken:
            self._status(self.cell.broken, "TooManyRequests", "too many requests")
        return bool(self.cell.broken)

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
        return body

    def do_POST(self) -> None:
        """Create a Job."""
        job = self._body()
        if self._is_broken():
            return
        if self.path == CORE.rstrip("/"):
            self._status(409, "AlreadyExists", "the namespace is there")
            return
        namespace = urlsplit(self.path).path.removeprefix(BATCH).split("/")[0]
        name = job["metadata"]["name"]
        if namespace not in NAMESPACES:
            self._status(404, "NotFound", f'namespaces "{namespace}" not found')
            return
        if not job["spec"]["template"]["spec"]["containers"][0].get("image"):
            field = "spec.template.spec.containers[0].image: Required value"
            self._status(422, "Invalid", f'Job.batch "{name}" is invalid: {field}')
            return
        with self.cell.lock:
            if name in self.cell.jobs:
                self._status(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
                return
            job["metadata"] |= {"namespace": namespace, "uid": f"uid-{self.cell.version}"}
            self.cell.jobs[name] = job
            self.cell.created.append(name)
            self.cell.changed("ADDED", job)
            if self.cell.hangs_up:
                self.cell.hangs_up -= 1
                self.close_connection = True
                return
        self._json(201, job)

    def do_PUT(self) -> None:
        """Write the status of a Job, as its controller does."""
        job = self._body()
        with self.cell.lock:
            known = self.cell.jobs[urlsplit(self.path).path.split("/")[-2]]
            known["status"] = job["status"]
            self.cell.changed("MODIFIED", known)
        self._json(200, known)

    def do_DELETE(self) -> None:
        """Delete a Job: at once, or with Foreground when its controller agrees, which there is
        not."""
        body = self._body()
        if self._is_broken():
            return
        name = urlsplit(self.path).path.rpartition("/")[2]
        with self.cell.lock:
            job = self.cell.jobs.get(name)
            if job is None:
                self._status(404, "NotFound", f'jobs.batch "{name}" not found')
                return
            if body["preconditions"]["uid"] != job["metadata"]["uid"]:
                self._status(409, "Conflict", "the UID in the precondition does not match")
                return
            if body["propagationPolicy"] == "Foreground":
                job["metadata"]["deletionTimestamp"] = "2026-11-20T15:00:00Z"
                self.cell.changed("MODIFIED", job)
            else:
                self.cell.changed("DELETED", self.cell.jobs.pop(name))
        self._json(200, job)

    def do_GET(self) -> None:
        """Give a Job, the pods of one, their log, or the changes of one."""
        if self._is_broken():
            return
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if query.get("watch"):
            self._watch(query)
            return
        rest = url.path.removeprefix(BATCH).removeprefix(CORE).split("/")
        with self.cell.lock:
            job = copy.deepcopy(self.cell.jobs.get(rest[2])) if rest[2:] else None
        if rest[1] == "jobs":
            if job is None:
                self._status(404, "NotFound", f'jobs.batch "{rest[2]}" not found')
            else:
                self._json(200, job)
        elif rest[2:]:
            raw = self.cell.logs.get(rest[2].removesuffix("-pod"), "forged").encode()
            self.send_response(200)
            self.send_header("content-type", "text/plain")
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
        else:
            name = query["labelSelector"].partition("=")[2]
            pods = [self._pod(name)] if name in self.cell.logs else []
            strangers = [one for one in self.cell.strangers if name in self.cell.logs]
            self._json(200, {"kind": "PodList", "items": pods + strangers})

    def _pod(self, job: str) -> dict[str, Any]:
        """The pod of a Job, as its controller makes it."""
        owner = {"kind": "Job", "name": job, "uid": self.cell.jobs[job]["metadata"]["uid"]}
        made = {"name": f"{job}-pod", "creationTimestamp": "2026-11-20T15:00:00Z"}
        return {"metadata": {**made, "ownerReferences": [{**owner, "controller": True}]}}

    def _watch(self, query: dict[str, str]) -> None:
        name = query["fieldSelector"].partition("=")[2]
        version = int(query["resourceVersion"])
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        while True:
            with self.cell.lock:
                if version < self.cell.horizon:
                    said = {"kind": "Status", "code": 410, "reason": "Expired"}
                    self._event("ERROR", said)
                    self._chunk(b"")
                    return
                events = [one for one in self.cell.events if one[0] > version]
                if not events:
                    if self.cell.is_over:
                        return
                    self.cell.lock.wait(1)
                    continue
            for number, kind, job in events:
                version = number
                if job["metadata"]["name"] == name:
                    self._event(kind, job)

    def _event(self, kind: str, job: dict[str, Any]) -> None:
        self._chunk(json.dumps({"type": kind, "object": job}).encode() + b"\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


@contextmanager
def kubernetes_fake() -> Iterator[KubernetesFake]:
    """A server while this is open."""
    fake = KubernetesFake()
    try:
        yield fake
    finally:
        fake.close()
