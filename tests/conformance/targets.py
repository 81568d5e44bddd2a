"""The other sides of targets, as the conformance suite sees all of them alike."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import boto3

from launcher.targets.config import (
    HttpConfig,
    KubernetesConfig,
    MailConfig,
    SqsConfig,
    WebhookChannel,
    WebhookConfig,
)
from launcher.targets.http import HttpTarget
from launcher.targets.kube_api import KubeApi, Reply, access_of
from launcher.targets.kube_jobs import Named
from launcher.targets.kubernetes import KubernetesTarget
from launcher.targets.mail import MailTarget
from launcher.targets.message import message_id
from launcher.targets.sqs import FIFO, SqsTarget
from launcher.targets.target import Target
from launcher.targets.webhook import WebhookTarget
from launcher.worker.context import Cancellation
from tests.fakes.bad_http import answer, bad_server, silence
from tests.fakes.kubernetes_api import BATCH, CORE, kubernetes_fake
from tests.fakes.ports import free_address
from tests.fakes.s3_server import S3Server
from tests.fakes.smtp_server import smtp_server

_NUMBERS = itertools.count(1)
_CREDENTIALS = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


class OtherSide(Protocol):
    """A place that does work. `tells`: it can be asked what became of work. `deduplicates`: a
    second piece of work of one name is not done."""

    tells: bool
    deduplicates: bool

    def target(self, ending: str = "good") -> Target:
        """A target of it, for work that ends so."""

    def payload(self, ending: str = "good") -> Any:
        """The payload of work that ends `good`, is `refused`, fails as `busy`, is `slow`, or is for
        a place where nobody answers, `away`."""

    def finish(self, launch: str) -> None:
        """Let the work of a launch end well, where that does not happen by itself."""

    def pieces(self, launch: str) -> int:
        """How many pieces of work of that name were accepted."""

    def is_stopped(self, launch: str) -> bool:
        """Whether slow work of that name has been ended."""


class HttpSide:
    """An HTTP server."""

    tells = False
    deduplicates = False

    def __init__(self, stack: contextlib.ExitStack, servers: Servers) -> None:
        self._server = stack.enter_context(bad_server())
        self._server.ways |= {
            "/good": answer("200 OK", b"done it"), "/refused": answer("403 Forbidden", b"never"),
            "/busy": answer("503 Busy", b"later", "Retry-After: 7"),
            "/slow": silence(self._server),
        }  # fmt: skip

    def target(self, ending: str = "good") -> Target:
        return HttpTarget(HttpConfig(hosts=("127.0.0.1",), networks=("127.0.0.0/8",)), Path())

    def payload(self, ending: str = "good") -> Any:
        if ending == "away":
            return {"url": f"http://{free_address()}/good"}
        return {"url": self._server.url(f"/{ending}"), "body": {"a": 1}}

    def finish(self, launch: str) -> None:
        """A request ends with its answer."""

    def pieces(self, launch: str) -> int:
        keys = Counter(one.headers["idempotency-key"] for one in self._server.requests)
        return keys[launch]

    def is_stopped(self, launch: str) -> bool:
        return True


class SqsSide:
    """A queue of moto's server, or of another one that speaks SQS."""

    tells = False

    def __init__(
        self, stack: contextlib.ExitStack, servers: Servers, suffix: str = "", endpoint: str = ""
    ) -> None:
        self.deduplicates = bool(suffix)
        self._endpoint = endpoint or servers.moto.endpoint
        self._trouble = stack.enter_context(bad_server())
        self._trouble.ways["/"] = answer("503 Slow Down", b"")
        self._silent = stack.enter_context(bad_server())
        self._silent.ways["/"] = silence(self._silent)
        self._name = f"jobs-{next(_NUMBERS)}-{os.getpid()}{suffix}"
        self._client: Any = boto3.client(
            "sqs", endpoint_url=self._endpoint, region_name="us-east-1", **_CREDENTIALS
        )
        fifo = {"Attributes": {"FifoQueue": "true"}} if suffix else {}
        self._url = self._client.create_queue(QueueName=self._name, **fifo)["QueueUrl"]
        self.received: list[dict[str, Any]] = []

    def target(self, ending: str = "good") -> Target:
        endpoint = {
            "away": f"http://{free_address()}", "busy": self._trouble.url(""),
            "slow": self._silent.url(""),
        }.get(ending, self._endpoint)  # fmt: skip
        config = SqsConfig(queues=("jobs-*",), endpoint=endpoint, region="us-east-1", timeout="2s")
        return SqsTarget(config, Path())

    def payload(self, ending: str = "good") -> Any:
        name = self._name if ending != "refused" else f"jobs-none{FIFO * self.deduplicates}"
        return {"queue": name, "body": {"a": 1}}

    def finish(self, launch: str) -> None:
        """A message is done when it was accepted."""

    def pieces(self, launch: str) -> int:
        while found := self._client.receive_message(
            QueueUrl=self._url, MaxNumberOfMessages=10, MessageAttributeNames=["All"],
            AttributeNames=["All"],
        ).get("Messages"):  # fmt: skip
            self.received += found
            for one in found:
                self._client.delete_message(QueueUrl=self._url, ReceiptHandle=one["ReceiptHandle"])
        names = Counter(
            one["MessageAttributes"]["raftcron-launch"]["StringValue"] for one in self.received
        )
        return names[launch]

    def is_stopped(self, launch: str) -> bool:
        return True


class KubernetesSide:
    """A cluster: a fake one, or one whose API server runs elsewhere."""

    tells = True
    deduplicates = True

    def __init__(self, stack: contextlib.ExitStack, servers: Servers, kubeconfig: str = "") -> None:
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if not kubeconfig:
            fake = stack.enter_context(kubernetes_fake())
            kubeconfig = json.dumps(kubeconfig_of(fake.url))
        (self._folder / "good").write_text(kubeconfig)
        self._trouble = stack.enter_context(bad_server())
        self._trouble.ways[f"{BATCH}jobs/jobs"] = answer("503 Slow Down", b"")
        (self._folder / "busy").write_text(json.dumps(kubeconfig_of(self._trouble.url(""))))
        away = kubeconfig_of(f"http://{free_address()}")
        (self._folder / "away").write_text(json.dumps(away))
        self._cell = f"cell-{next(_NUMBERS)}-{os.getpid()}"
        self._api = KubeApi(access_of(self._config("good"), self._folder))
        self._call("POST", CORE.rstrip("/"), body={"metadata": {"name": "jobs"}})

    def _config(self, ending: str) -> KubernetesConfig:
        name = ending if ending in ("busy", "away") else "good"
        return KubernetesConfig(namespaces=("jobs",), kubeconfig=name, cell=self._cell)

    def _call(self, method: str, path: str, **more: Any) -> Reply:
        return self._api.call(method, path, Cancellation(), **more)

    def _place(self, launch: str) -> str:
        return f"{BATCH}jobs/jobs/{Named(launch, 1, self._cell).job}"

    def target(self, ending: str = "good") -> Target:
        return KubernetesTarget(self._config(ending), self._folder)

    def payload(self, ending: str = "good") -> Any:
        container = {"name": "main"} if ending == "refused" else {"name": "main", "image": "x"}
        return {"template": {"spec": {"template": {"spec": {"containers": [container]}}}}}

    def finish(self, launch: str) -> None:
        place = self._place(launch)
        job = self._call("GET", place).body
        now = "2026-11-20T15:00:00Z"
        ended = [
            {"type": kind, "status": "True", "reason": "CompletionsReached",
             "lastTransitionTime": now}
            for kind in ("SuccessCriteriaMet", "Complete")
        ]  # fmt: skip
        job["status"] = {
            "startTime": now, "completionTime": now, "succeeded": 1, "conditions": ended,
            "uncountedTerminatedPods": {},
        }  # fmt: skip
        reply = self._call("PUT", f"{place}/status", body=job)
        assert reply.status == 200, reply

    def pieces(self, launch: str) -> int:
        return int(self._call("GET", self._place(launch)).status == 200)

    def is_stopped(self, launch: str) -> bool:
        reply = self._call("GET", self._place(launch))
        return reply.status == 404 or "deletionTimestamp" in reply.body["metadata"]


class WebhookSide(HttpSide):
    """The server of a channel."""

    def target(self, ending: str = "good") -> Target:
        urls = {one.removeprefix("/"): self._server.url(one) for one in self._server.ways}
        urls["away"] = f"http://{free_address()}/good"
        channels = tuple(
            WebhookChannel(name=name, url=url, tenants=("acme",)) for name, url in urls.items()
        )
        return WebhookTarget(WebhookConfig(channel=channels), Path())

    def payload(self, ending: str = "good") -> Any:
        return {"channel": ending, "message": {"a": 1}}


class MailSide:
    """An SMTP server."""

    tells = False
    deduplicates = False

    def __init__(self, stack: contextlib.ExitStack, servers: Servers) -> None:
        self._server = stack.enter_context(smtp_server())
        self._server.refused |= {"refused@example.com": "550 no", "busy@example.com": "451 later"}

    def target(self, ending: str = "good") -> Target:
        place = free_address() if ending == "away" else self._server.place
        return MailTarget(
            MailConfig(server=place, sender="cron@example.com", recipients=("*",), tls="none"),
            Path(),
        )

    def payload(self, ending: str = "good") -> Any:
        if ending == "slow":
            self._server.hurried.clear()
        return {"to": f"{ending}@example.com", "subject": "a", "text": "b"}

    def finish(self, launch: str) -> None:
        """A mail is done when it was accepted."""

    def pieces(self, launch: str) -> int:
        ids = Counter(one.message["message-id"] for one in self._server.received)
        return ids[message_id(launch, "", "example.com")]

    def is_stopped(self, launch: str) -> bool:
        return True


def kubeconfig_of(server: str) -> dict[str, Any]:
    """A kubeconfig with a token, as kubectl writes it."""
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t0ken"}}],
    }  # fmt: skip


class Servers:
    """Servers that several sides share, each started when it is first needed."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    @functools.cached_property
    def moto(self) -> S3Server:
        """moto's server."""
        server = S3Server()
        self._stack.callback(server.stop)
        server.start()
        return server

    def close(self) -> None:
        """End those that were started."""
        self._stack.close()


SIDES: dict[str, Callable[[contextlib.ExitStack, Servers], OtherSide]] = {
    "http": HttpSide,
    "sqs": SqsSide,
    "sqs-fifo": functools.partial(SqsSide, suffix=FIFO),
    "kubernetes": KubernetesSide,
    "mail": MailSide,
    "webhook": WebhookSide,
}
"""The sides of the default suite."""
REAL_SIDES: dict[str, Callable[[contextlib.ExitStack, Servers], OtherSide]] = {
    "sqs-real": functools.partial(SqsSide, endpoint=os.environ.get("SQS", "")),
    "sqs-fifo-real": functools.partial(SqsSide, suffix=FIFO, endpoint=os.environ.get("SQS", "")),
    "kubernetes-real": lambda stack, servers: KubernetesSide(
        stack, servers, Path(os.environ["KUBERNETES"]).read_text()
    ),
}
"""The sides of nightly runs: SQS= is the URL of a server, KUBERNETES= a kubeconfig in JSON."""


@contextmanager
def other_side(kind: str, servers: Servers) -> Iterator[OtherSide]:
    """The other side of a kind of target, while this is open."""
    with contextlib.ExitStack() as stack:
        yield {**SIDES, **REAL_SIDES}[kind](stack, servers)
