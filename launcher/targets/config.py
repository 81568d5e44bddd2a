"""The configuration of targets: one TOML file with a table for each. Each error names the place."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from launcher.errors import BadConfig
from launcher.limits import CONFIG_BYTES_MAX
from launcher.protocol.names import CELL_TENANT, NAME_PART_CHARS_MAX
from launcher.targets.target import Duration
from launcher.toml import parse_toml

EXAMPLE: Final = "see examples/targets.toml"
JSON: Final = "application/json"
EXAMPLES: Final = ("alertmanager", "opsgenie", "pagerduty", "slack", "teams")
"""Receivers for which `examples/alerts` has a template."""
SECRET_FILE_BYTES_MAX: Final = 64 << 10
T = TypeVar("T", bound=msgspec.Struct)
_Name = Annotated[
    str, Meta(pattern=rf"^[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{NAME_PART_CHARS_MAX - 1}}}$")
]
_Names = Annotated[tuple[str, ...], Meta(max_length=1_000)]


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One host of the http target. `secrets` is a file with the keys of its signatures, and
    `headers` a file with headers that requests to it get, such as `authorization`. A host with
    `headers` is asked over https:// only, unless it is on loopback."""

    host: str
    secrets: str = ""
    headers: str = ""


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The target `http`. Requests go to `hosts` only, and to private addresses only within
    `networks`. `secrets` signs requests to hosts that have no endpoint of their own. `ca` is a file
    of certificates to trust in place of the system's. `timeout` is that of one request, and
    `timeout_max` the longest that a payload may ask for."""

    handler: _Name = "http"
    hosts: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1_000)]
    networks: _Names = ()
    timeout: Duration = "30s"
    timeout_max: Duration = "15m"
    secrets: str = ""
    ca: str = ""
    endpoint: Annotated[tuple[Endpoint, ...], Meta(max_length=1_000)] = ()


class SqsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The target `sqs`. Messages go to `queues` only: names, or patterns such as `mail-*` or `*`.
    An `endpoint` other than that of AWS is for servers that are compatible. `timeout` is that of
    one call. Credentials come from where AWS's tools find them: the environment, a profile, the
    role of the machine."""

    handler: _Name = "sqs"
    queues: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1_000)]
    region: str = ""
    profile: str = ""
    endpoint: str = ""
    timeout: Duration = "5s"


class KubernetesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The target `kubernetes`. Without a `kubeconfig` it is that of the pod that this process runs
    in. Jobs are created in `namespaces` only; the first one is that of payloads which name none.
    `cell` keeps cells apart that share a namespace. A Job that is over is kept for `kept`, so that
    it can be looked up."""

    handler: _Name = "kubernetes"
    kubeconfig: str = ""
    context: str = ""
    namespaces: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1_000)]
    cell: str = ""
    kept: Duration = "1h"
    log_lines: Annotated[int, Meta(ge=0, le=10_000)] = 100


class MailConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The target `mail`. Mails go to `recipients` only: addresses, or patterns such as
    `*@example.com` or `*`. A recipient without `@`, such as `root`, is one of `domain`. `tls`:
    `starttls`, `tls` from the first byte, or `none`. `password` is a file that contains it. `ca` is
    a file of certificates to trust in place of the system's. `cell` keeps cells apart whose jobs
    have the same names. `console` is the address of the console, for links. `timeout` is that of
    one mail. `api` is the HTTP API of the cell, where the output of a launch with MAILTO is read;
    `api_headers` a file with headers such as `authorization`, `api_ca` one of certificates."""

    handler: _Name = "mail"
    server: Annotated[str, Meta(min_length=1, max_length=300)]
    sender: str = msgspec.field(name="from")
    recipients: Annotated[tuple[str, ...], Meta(min_length=1, max_length=1_000)]
    domain: str = ""
    tls: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password: str = ""
    ca: str = ""
    cell: str = ""
    console: str = ""
    timeout: Duration = "50s"
    api: str = ""
    api_headers: str = ""
    api_ca: str = ""


class WebhookChannel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A channel of alerts, by the name that `alerts.toml` has for it.

    `template` is a file: the Jinja2 template of the body, which is of the type `content_type`.
    Without one the body is plain JSON. With `each` there is a request for each incident. The URL is
    `url`, or the first line of `url_file` if it is a secret; behind its host it may be a template
    too. `key` is a file with a secret that the templates see, `secrets` one with the keys of
    signatures, `headers` one with headers such as `authorization`. A channel that is granted to
    `tenants` carries messages of their own launches, and no alerts. `shape` and `severity` of
    earlier releases are refused.
    """

    name: _Name
    template: str = ""
    content_type: str = JSON
    each: bool = False
    url: str = ""
    url_file: str = ""
    key: str = ""
    secrets: str = ""
    headers: str = ""
    severity: str = ""
    shape: str = ""
    tenants: Annotated[tuple[_Name, ...], Meta(max_length=1_000)] = ()

    def __post_init__(self) -> None:
        if self.shape in ("", "json") and self.shape + self.severity:
            raise ValueError("shape and severity are gone: take them away; the body is JSON")
        if self.shape + self.severity:
            name = f"{self.shape if self.shape in EXAMPLES else 'NAME'}.json.j2"
            raise ValueError(
                f'shape and severity are gone: write template = "{name}" and begin with '
                f"examples/alerts/{name} (docs/upgrade.md)"
            )
        if CELL_TENANT in self.tenants:
            raise ValueError(f"tenants: {CELL_TENANT} is the cell's own, which needs no grant")


class WebhookConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The target `webhook`. `ca` is a file of certificates to trust in place of the system's,
    `console` the address of the console, for links, `timeout` that of one request."""

    handler: _Name = "webhook"
    channel: Annotated[tuple[WebhookChannel, ...], Meta(min_length=1, max_length=1_000)]
    ca: str = ""
    console: str = ""
    timeout: Duration = "20s"


class TargetsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file: a table for each target that it configures."""

    http: HttpConfig | None = None
    sqs: SqsConfig | None = None
    kubernetes: KubernetesConfig | None = None
    mail: MailConfig | None = None
    webhook: WebhookConfig | None = None


def load(path: Path) -> TargetsConfig:
    """Return the configuration in a file.

    Raises:
        BadConfig: it cannot be read, or a value is invalid.
    """
    raw = read_bytes(path, CONFIG_BYTES_MAX, "name the file with --config")
    return parse_toml(raw, path, TargetsConfig, EXAMPLE)


def read_bytes(path: Path, bytes_max: int, hint: str = "") -> bytes:
    """Return the content of a file that is not larger than `bytes_max`.

    Raises:
        BadConfig: it cannot be read, or is larger.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(bytes_max + 1)
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read: {error.strerror}", hint) from error
    if len(raw) > bytes_max:
        raise BadConfig(f"{path}: is larger than {bytes_max} bytes", "is it the right file?")
    return raw


def read_private(path: Path) -> str:
    """Return the text of a file with secrets, which others may not read.

    Raises:
        BadConfig: it cannot be read, or others may read it.
    """
    raw = read_bytes(path, SECRET_FILE_BYTES_MAX)
    mode = os.stat(path).st_mode
    if mode & 0o007:
        raise BadConfig(f"{path}: everybody on this host may read it", f"chmod o= {path}")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BadConfig(f"{path}: is not text") from error


def trusting(ca: Path | None) -> ssl.SSLContext:
    """Return what checks certificates: by those in `ca`, or by the system's.

    Raises:
        BadConfig: the file has none.
    """
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise BadConfig(f"{ca}: has no certificates that can be read: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
