"""The target `kubernetes`: a launch is a Job, which is watched until it is over.

Theory of operation. The name of the Job follows from that of the launch. So to create it is the
question whether it is there: the API server answers a second create with AlreadyExists, and the Job
that is there is looked at and watched. A launch never has two Jobs. A later attempt replaces a Job
only if that has failed, and takes over one that runs or has succeeded.

What cannot be reached for a while is asked again until the time of the launch is over: the Job goes
on meanwhile.
"""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from launcher.clock import boot_ms
from launcher.errors import BadConfig
from launcher.protocol.names import LaunchName
from launcher.targets.config import KubernetesConfig
from launcher.targets.http import retry_after_ms
from launcher.targets.kube_api import KubeApi, Reply, Unanswered, access_of
from launcher.targets.kube_jobs import (
    KEPT_S_MIN,
    KubernetesSpec,
    Named,
    attempt_of,
    is_of,
    is_pod_of,
    job_of,
    manifest_of,
    metadata,
    seen_of,
    version_of,
)
from launcher.targets.seen import Seen, State
from launcher.targets.target import NotReached, Work, decoded, duration_ms, excerpt
from launcher.worker.context import Cancellation
from launcher.worker.errors import BadPayload

WATCH_S: Final = 60
"""After this time a watch is begun anew, from where it was: a connection that is dead without a
word is noticed."""
PAUSE_S: Final = 1.0
"""Before the next call, when the API server cannot be reached or a Job is being deleted."""
REPLACED_MS: Final = 30_000
"""How long a Job that has failed may take to go, before another takes its name."""
STOP_MS: Final = 6_000
"""How long the pods of a Job that is stopped are waited for: less than the executor's grace."""
LOG_BYTES_MAX: Final = 64 << 10
NEVER_MS: Final = 1 << 61
_GONE: Final = "its Job was deleted"


class Request(NamedTuple):
    """A Job that may be created."""

    namespace: str
    manifest: dict[str, Any]


class KubernetesTarget:
    """Creates Jobs in the namespaces that its configuration allows.

    Raises:
        BadConfig: there is no cluster, or a value is invalid.
    """

    def __init__(self, config: KubernetesConfig, folder: Path) -> None:
        self.handler = config.handler
        self._config = config
        self._api = KubeApi(access_of(config, folder))
        try:
            self._kept_s = duration_ms(config.kept, "kubernetes.kept") // 1000
        except BadPayload as error:
            raise BadConfig(str(error)) from error
        if self._kept_s < KEPT_S_MIN:
            raise BadConfig(f"kubernetes.kept: {config.kept} is below {KEPT_S_MIN} s")

    def read(self, payload: bytes, asker: LaunchName) -> Request:
        """Return the Job that a payload describes; whoever asks, `namespaces` decide.

        Raises:
            BadPayload: it describes none, or one in a namespace that is not allowed.
        """
        spec: KubernetesSpec = decoded(payload, KubernetesSpec)
        namespace = spec.namespace or self._config.namespaces[0]
        if namespace not in self._config.namespaces:
            raise BadPayload(
                f"payload: namespace {namespace[:63]!r} is not one of the target's `namespaces`"
            )
        return Request(namespace, manifest_of(spec))

    def start(self, work: Work) -> Seen:
        """Create the Job, or take over the one of this launch that is there."""
        named, request = self._named(work), work.spec
        left_s = (work.ends_ms - boot_ms()) // 1000
        deadline_s = left_s if work.ends_ms < NEVER_MS else None
        job = job_of(request.manifest, named, self._kept_s, deadline_s)
        until_ms = boot_ms() + REPLACED_MS
        while boot_ms() < until_ms:
            try:
                reply = self._api.call("POST", _jobs(work), work.cancelled, body=job)
            except Unanswered as error:
                work.write(f"{error}: looks whether the Job is there")
                return Seen(State.RUNNING)
            if reply.status == http.client.CREATED:
                work.write(f"created Job {request.namespace}/{named.job}")
                work.cursor = version_of(reply.body)
                return Seen(State.RUNNING)
            if reply.status != http.client.CONFLICT:
                return _refused(reply)
            try:
                seen = self._taken_over(work, named)
            except NotReached:
                return Seen(State.RUNNING)  # it is there: it is asked again
            if seen is not None:
                return seen
            if work.cancelled.wait(PAUSE_S / 4):
                break
        return Seen(State.RETRY, "an earlier Job of this launch is still being deleted")

    def look(self, work: Work) -> Seen:
        """Return what the Job says of itself; of one that runs, once it changes or after a
        while."""
        try:
            return self._watched(work) if work.cursor else self._got(work)
        except NotReached as error:
            work.cancelled.wait(PAUSE_S)
            return Seen(State.RUNNING, str(error))

    def stop(self, work: Work) -> None:
        """Delete the Job with its pods, and wait a few seconds until these are gone."""
        named, calm = self._named(work), Cancellation()
        place, until_ms = _job(work, named), boot_ms() + STOP_MS
        try:
            reply = self._api.call("GET", place, calm)
            if reply.status != http.client.OK or not is_of(reply.body, named):
                return
            if seen_of(reply.body).state is not State.RUNNING:
                return
            self._delete(work, named, reply.body, "Foreground", calm)
            work.write(f"deletes Job {work.spec.namespace}/{named.job}")
            while boot_ms() < until_ms and reply.status == http.client.OK:
                calm.wait(PAUSE_S / 4)
                reply = self._api.call("GET", place, calm)
        except NotReached as error:
            work.write(f"Job {named.job} may go on: {error}")

    # ---- a Job that is there

    def _taken_over(self, work: Work, named: Named) -> Seen | None:
        """Return what became of the Job that has the name; None if it is gone, or goes."""
        reply = self._api.call("GET", _job(work, named), work.cancelled)
        if reply.status == http.client.NOT_FOUND:
            return None
        if reply.status != http.client.OK:
            return _refused(reply)
        job = reply.body
        if not is_of(job, named):
            return Seen(State.FATAL, f"Job {named.job} is not that of this launch")
        seen = seen_of(job)
        if metadata(job).get("deletionTimestamp"):
            return None
        if seen.state is State.RETRY and attempt_of(job) < work.context.attempt:
            # Another attempt was granted, so another Job may run. Its pods are all over.
            self._delete(work, named, job, "Background", work.cancelled)
            return None
        work.write(f"found Job {work.spec.namespace}/{named.job} of attempt {attempt_of(job)}")
        return self._noted(work, job, seen)

    def _delete(
        self,
        work: Work,
        named: Named,
        job: dict[str, Any],
        policy: str,
        cancelled: Cancellation,
    ) -> None:
        """Delete this very Job, and none that has its name since."""
        conditions = {"uid": metadata(job).get("uid")}
        body = {"preconditions": conditions, "propagationPolicy": policy}
        self._api.call("DELETE", _job(work, named), cancelled, body=body)

    def _got(self, work: Work) -> Seen:
        named = self._named(work)
        reply = self._api.call("GET", _job(work, named), work.cancelled)
        if reply.status == http.client.NOT_FOUND:
            return Seen(State.ABSENT, "its Job is not there")
        if reply.status != http.client.OK:
            raise NotReached(reply.message)  # also what it refuses: the Job may run
        if not is_of(reply.body, named):
            return Seen(State.FATAL, f"Job {named.job} is not that of this launch")
        return self._noted(work, reply.body, seen_of(reply.body))

    def _watched(self, work: Work) -> Seen:
        """Return what the Job says after its next changes."""
        named = self._named(work)
        events = self._api.watch(
            _jobs(work),
            work.cancelled,
            WATCH_S,
            fieldSelector=f"metadata.name={named.job}",
            resourceVersion=work.cursor,
        )
        for event in events:
            job = event.get("object")
            kind = event.get("type")
            if not isinstance(job, dict) or kind == "ERROR":
                # What was between is gone from the server (410), or it has trouble: asked anew.
                work.cursor = ""
                if not isinstance(job, dict) or job.get("code") != http.client.GONE:
                    work.cancelled.wait(PAUSE_S)
                break
            if kind == "BOOKMARK":
                work.cursor = version_of(job) or work.cursor
                continue
            if kind == "DELETED" and seen_of(job).state is State.RUNNING:
                return Seen(State.RETRY, _GONE)
            seen = self._noted(work, job, seen_of(job))
            if seen.state is not State.RUNNING:
                return seen
        return Seen(State.RUNNING)

    def _noted(self, work: Work, job: dict[str, Any], seen: Seen) -> Seen:
        """Note where the next look goes on; of a Job that is over, keep the end of its log."""
        work.cursor = version_of(job)
        if seen.state is State.RUNNING:
            return seen
        tail = self._tail(work, job)
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        if tail:
            work.write(tail.rstrip("\n"))
        if seen.state is State.DONE and lines:
            return Seen(State.DONE, excerpt(lines[-1].encode()))
        return seen

    def _tail(self, work: Work, job: dict[str, Any]) -> str:
        """Return the last lines of the log of the newest pod; "" where there is none."""
        if not self._config.log_lines:
            return ""
        calm = Cancellation()  # of a launch that is killed, too
        pods = f"/api/v1/namespaces/{quote(work.spec.namespace)}/pods"
        selector = f"job-name={metadata(job).get('name')}"
        try:
            reply = self._api.call("GET", pods, calm, labelSelector=selector)
            items = reply.body.get("items") if isinstance(reply.body, dict) else None
            found = [one for one in items or () if isinstance(one, dict) and is_pod_of(one, job)]
            if not found:
                return ""
            newest = max(found, key=lambda one: str(metadata(one).get("creationTimestamp", "")))
            containers = work.spec.manifest["spec"]["template"]["spec"]["containers"]
            reply = self._api.call(
                "GET",
                f"{pods}/{quote(str(metadata(newest).get('name')))}/log",
                calm,
                container=str(containers[0].get("name", "")),
                tailLines=self._config.log_lines,
                limitBytes=LOG_BYTES_MAX,
            )
        except NotReached as error:
            return f"[the log could not be read: {error}]"
        if reply.status != http.client.OK:
            return f"[the log could not be read: {reply.message}]"
        return bytes(reply.body).decode("utf-8", "replace") if reply.body else ""

    def _named(self, work: Work) -> Named:
        return Named(work.name, work.context.attempt, self._config.cell)


def _jobs(work: Work) -> str:
    return f"/apis/batch/v1/namespaces/{quote(work.spec.namespace)}/jobs"


def _job(work: Work, named: Named) -> str:
    return f"{_jobs(work)}/{named.job}"


def _refused(reply: Reply) -> Seen:
    """Return what an answer means that is no success. A quota is exceeded for a while only, and
    credentials are replaced."""
    after_ms = retry_after_ms(reply.headers.get("retry-after"), 0)
    is_passing = reply.status >= 500 or reply.status in (
        http.client.UNAUTHORIZED,
        http.client.REQUEST_TIMEOUT,
        http.client.TOO_MANY_REQUESTS,
    )
    if is_passing or "exceeded quota" in reply.message:
        return Seen(State.RETRY, excerpt(reply.message.encode()), after_ms)
    return Seen(State.FATAL, excerpt(reply.message.encode()))
