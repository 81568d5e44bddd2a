"""The API of a Kubernetes cluster: where it is, who asks, one call, one watch.

The target needs six calls of plain HTTPS with JSON, so there is no client library.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import http.client
import os
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec

from launcher.address import is_loopback
from launcher.clock import boot_ms
from launcher.errors import BadConfig
from launcher.targets.config import KubernetesConfig, read_bytes, trusting
from launcher.targets.connecting import DEADLINES, connected, secured
from launcher.targets.http import Response, said_by
from launcher.targets.target import NotReached
from launcher.worker.context import Cancellation

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds the credentials of its service account."""
CALL_MS: Final = 10_000
BODY_BYTES_MAX: Final = 8 << 20
"""One answer: a Job has at most 1.5 MiB in etcd, and a list of its pods a few of them."""
EVENT_BYTES_MAX: Final = 4 << 20
FILE_BYTES_MAX: Final = 1 << 20
JSON_HINT: Final = (
    "write it with `kubectl config view --raw --minify --flatten -o json`: YAML is not read"
)
_STREAMED_MS: Final = 2_000
"""How long a watch may take beyond the time after which the server ends it."""


class Unanswered(NotReached):
    """A call was sent, and its answer did not come: it may have been done."""

    code = "unanswered"


class Reply(NamedTuple):
    """The answer to a call: its status, its headers, and its body as JSON, or as bytes."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def reason(self) -> str:
        """The reason in a Status, such as `AlreadyExists`."""
        return str(self.body.get("reason", "")) if isinstance(self.body, dict) else ""

    @property
    def message(self) -> str:
        """What a Status says for people."""
        text = str(self.body.get("message", "")) if isinstance(self.body, dict) else ""
        return f"HTTP {self.status}: {text}" if text else f"HTTP {self.status} {self.reason}"


class Access(NamedTuple):
    """A cluster and who asks it. `token_file` is read for each call: tokens of pods are replaced
    every hour."""

    server: str
    tls: ssl.SSLContext | None
    server_name: str = ""
    token: str = ""
    token_file: Path | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers that say who asks.

        Raises:
            NotReached: the file of the token cannot be read.
        """
        token = self.token
        if self.token_file is not None:
            try:
                token = self.token_file.read_text().strip()
            except OSError as error:
                raise NotReached(f"{self.token_file}: {error.strerror}") from error
        return {"authorization": f"Bearer {token}"} if token else {}


class KubeApi:
    """The calls of one cluster."""

    def __init__(self, access: Access) -> None:
        self._access = access
        url = urlsplit(access.server)
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._netloc, self._prefix = url.netloc, url.path.rstrip("/")

    def call(
        self, method: str, path: str, cancelled: Cancellation, *, body: Any = None, **query: Any
    ) -> Reply:
        """Return the answer to one call; one that is no JSON is bytes.

        Raises:
            NotReached: the call was not sent.
            Unanswered: it was sent, and no answer came.
        """
        until_ms = boot_ms() + CALL_MS
        with self._asked(method, path, cancelled, until_ms, body, query) as answer:
            raw = answer.read(BODY_BYTES_MAX)
            headers = {name.lower(): value for name, value in answer.getheaders()}
        found: Any = raw
        if headers.get("content-type", "").startswith("application/json"):
            try:
                found = msgspec.json.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise Unanswered(f"{self._host}: its answer is not JSON") from error
        return Reply(answer.status, headers, found)

    def watch(
        self, path: str, cancelled: Cancellation, seconds: int, **query: Any
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of a watch until the server ends it, after `seconds` at the latest. An
        answer other than 200 is an event of the type ERROR.

        Raises:
            NotReached: there is no connection, or it broke.
        """
        until_ms = boot_ms() + seconds * 1000 + _STREAMED_MS
        query |= {"watch": "1", "timeoutSeconds": seconds, "allowWatchBookmarks": "true"}
        with self._asked("GET", path, cancelled, until_ms, None, query) as answer:
            if answer.status != http.client.OK:
                yield {"type": "ERROR", "object": {"code": answer.status}}
                return
            while line := answer.readline(EVENT_BYTES_MAX):
                try:
                    event = msgspec.json.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    return  # cut short: the next watch begins where the last event was
                if isinstance(event, dict):
                    yield event

    @contextlib.contextmanager
    def _asked(
        self,
        method: str,
        path: str,
        cancelled: Cancellation,
        until_ms: int,
        body: Any,
        query: dict[str, Any],
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request, and give its answer while this is open."""
        access = self._access
        sent = b"" if body is None else msgspec.json.encode(body)
        headers = {
            "host": self._netloc,
            "connection": "close",
            "user-agent": "raftcron",
            "accept": "application/json, */*",
            **access.headers(),
        }
        if sent:
            headers |= {"content-type": "application/json", "content-length": str(len(sent))}
        end = connected(self._host, self._port, None, until_ms, cancelled)
        if access.tls is not None:
            name = access.server_name or self._host
            end = secured(end, name, access.tls, until_ms, cancelled)
        place = f"{self._prefix}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            with DEADLINES.watch(end, until_ms, cancelled):
                end.settimeout(max(0.001, (until_ms - boot_ms()) / 1000))
                connection = http.client.HTTPConnection(self._host)
                connection.auto_open = 0
                connection.sock = end
                connection.response_class = Response
                connection.putrequest(method, place, skip_host=True, skip_accept_encoding=True)
                for name, value in headers.items():
                    connection.putheader(name, value)
                connection.endheaders(sent or None)
                yield connection.getresponse()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unanswered(f"{self._host}: {said_by(error)}") from error
        finally:
            end.close()


# ---- where the cluster is


def access_of(config: KubernetesConfig, folder: Path) -> Access:
    """Return the cluster that a configuration means: that of its kubeconfig, or that of the pod
    that this process runs in.

    Raises:
        BadConfig: there is none, or it cannot be used.
    """
    if config.kubeconfig:
        return _of_kubeconfig(folder / config.kubeconfig, config.context)
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        raise BadConfig(
            "kubernetes: this process runs in no pod", "set kubeconfig = in [kubernetes]"
        )
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    shown = f"[{host}]" if ":" in host else host
    tls = trusting(ACCOUNT / "ca.crt")
    return Access(f"https://{shown}:{port}", tls, token_file=ACCOUNT / "token")


def _of_kubeconfig(path: Path, context: str) -> Access:
    try:
        found = msgspec.json.decode(read_bytes(path, FILE_BYTES_MAX))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: is not JSON", JSON_HINT) from error
    if not isinstance(found, dict):
        raise BadConfig(f"{path}: is no kubeconfig", JSON_HINT)
    chosen = context or str(found.get("current-context", ""))
    pair = _named(found, "contexts", chosen, "context", path)
    cluster = _named(found, "clusters", str(pair.get("cluster", "")), "cluster", path)
    user = _named(found, "users", str(pair.get("user", "")), "user", path)
    for unread in ("exec", "auth-provider", "username", "as"):
        if unread in user:
            raise BadConfig(
                f"{path}: its user has {unread!r}, which is not supported",
                "use a token or a client certificate, such as those of a service account",
            )
    server = str(cluster.get("server", ""))
    url = urlsplit(server)
    is_local = url.scheme == "http" and is_loopback(url.hostname or "")
    if not url.hostname or not (url.scheme == "https" or is_local):
        raise BadConfig(f"{path}: server {server!r} is neither https:// nor on this host")
    token_file = str(user.get("tokenFile", ""))
    return Access(
        server,
        _tls(cluster, user, path),
        str(cluster.get("tls-server-name", "")),
        str(user.get("token", "")),
        path.parent / token_file if token_file else None,
    )


def _named(found: dict[str, Any], list_: str, name: str, kind: str, path: Path) -> dict[str, Any]:
    """Return the entry of a list of a kubeconfig that has a name."""
    entries = found.get(list_)
    for one in entries if isinstance(entries, list) else ():
        if isinstance(one, dict) and one.get("name") == name and isinstance(one.get(kind), dict):
            entry: dict[str, Any] = one[kind]
            return entry
    raise BadConfig(f"{path}: has no {kind} {name!r}", JSON_HINT)


def _tls(cluster: dict[str, Any], user: dict[str, Any], path: Path) -> ssl.SSLContext | None:
    """Return what checks the server's certificate, and shows the user's if there is one."""
    if str(cluster.get("server", "")).startswith("http:"):
        return None
    if cluster.get("insecure-skip-tls-verify"):
        raise BadConfig(
            f"{path}: insecure-skip-tls-verify is not supported",
            "give the cluster's certificate-authority",
        )
    try:
        ca = _content(cluster, "certificate-authority", path)
        tls = trusting(None)
        if ca:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            tls.minimum_version = ssl.TLSVersion.TLSv1_2
            tls.load_verify_locations(cadata=ca.decode())
        certificate = _content(user, "client-certificate", path)
        if certificate:
            # The standard library reads a certificate and its key from a file only.
            with tempfile.NamedTemporaryFile() as file:
                file.write(certificate + b"\n" + _content(user, "client-key", path))
                file.flush()
                tls.load_cert_chain(file.name)
    except (ssl.SSLError, UnicodeDecodeError, OSError) as error:
        raise BadConfig(f"{path}: its certificates cannot be used: {error}") from error
    return tls


def _content(entry: dict[str, Any], name: str, path: Path) -> bytes:
    """Return what an entry has itself, as NAME-data in base64, or names as a file; b"" for
    neither."""
    if said := entry.get(f"{name}-data"):
        try:
            return base64.b64decode(str(said), validate=True)
        except binascii.Error as error:
            raise BadConfig(f"{path}: {name}-data is not base64") from error
    if said := entry.get(name):
        return read_bytes(path.parent / str(said), FILE_BYTES_MAX)
    return b""
