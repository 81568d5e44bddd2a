"""Work for targets, and what its attempt writes and how it ends."""

from __future__ import annotations

import ipaddress
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from launcher.clock import boot_ms
from launcher.targets.app import registry_of
from launcher.targets.target import Target, Work
from launcher.worker.context import Context
from launcher.worker.outcome import Ended
from launcher.worker.thread_pool import invoke
from launcher.worker.wire import TaskWork
from tests.sent_tasks import tasks_of

LAUNCH = "acme/mail@2026-11-20T15:00:00Z"
SCHEDULED_S = 1_795_186_800
OF_CELL = "raftcron/alerts:17-firing-ops"
"""A task of the cell itself, which tells of an alert."""


class Output:
    """Gets the output and the heartbeats of an attempt."""

    def __init__(self) -> None:
        self.text = ""
        self.beats = 0

    def beat(self, number: int) -> None:
        self.beats += 1

    def write(self, number: int, text: str) -> None:
        self.text += text


def context_of(
    *, job: str = "acme/mail", attempt: int = 1, timeout_ms: int = 60_000, is_resumed: bool = False
) -> tuple[Context, Output]:
    """The context of an attempt, and its output."""
    output = Output()
    work = TaskWork(0, job, "target", b"")
    tasks = tasks_of(1, 7, "1.1.r1", [0], [SCHEDULED_S], [attempt], [0], [1])
    context = Context(work, tasks, 0, output, boot_ms() + timeout_ms if timeout_ms else 0)
    context.is_resumed = is_resumed
    return context, output


def ended(target: Target, payload: object, context: Context) -> Ended:
    """How an attempt ends that runs on a target, as its worker reports it."""
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    [handler] = registry_of(target)
    return invoke(handler, context, raw)


def read(target: Target, payload: object, **said: Any) -> Any:
    """The spec that a target reads from the payload of a launch."""
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return target.read(raw, context_of(**said)[0].launch_name)


def work_for(target: Target, payload: object, **said: Any) -> Work:
    """The work of an attempt, with a spec that the target has read."""
    return Work(context_of(**said)[0], read(target, payload, **said))


def certificate(folder: Path, name: str, *, days: float = 1) -> Path:
    """A self-signed certificate for a name or an address, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    alternative: x509.GeneralName = x509.DNSName(name)
    if name[0].isdigit():
        alternative = x509.IPAddress(ipaddress.ip_address(name))
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject).issuer_name(subject).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2)).not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    path = folder / f"{name}.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(built.public_bytes(serialization.Encoding.PEM) + secret)
    return path
