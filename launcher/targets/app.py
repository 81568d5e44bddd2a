"""The app of a worker that serves one target: what `raftcron target KIND` imports.

A worker's app is a module, so the kind and the configuration come through the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from launcher.errors import BadConfig
from launcher.targets.config import TargetsConfig, load
from launcher.targets.target import Target, run
from launcher.worker.context import Context
from launcher.worker.errors import BadApp
from launcher.worker.options import TARGET_VARIABLE
from launcher.worker.registry import Registry, describe

KIND_VARIABLE: Final = TARGET_VARIABLE
CONFIG_VARIABLE: Final = "RAFTCRON_TARGETS"
KINDS: Final = ("http", "sqs", "kubernetes", "mail", "webhook")


def registry_of(target: Target) -> Registry:
    """Return a registry with the one handler that hands launches over to a target."""

    def hand_over(payload: bytes, context: Context) -> str:
        return run(target, payload, context)

    registry = Registry()
    registry.add(describe(hand_over, target.handler, resumes=True))
    return registry


def target_of(kind: str, config: TargetsConfig, path: Path) -> Target:
    """Return the target of a kind, with its part of the configuration at `path`.

    Raises:
        BadConfig: it has no such part, or a value in it is invalid.
    """
    hint = f"add a table [{kind}]; see examples/targets.toml"
    none = BadConfig(f"{path}: has no [{kind}]", hint)
    folder = path.resolve().parent
    match kind:
        case "http":
            if config.http is None:
                raise none
            from launcher.targets.http import HttpTarget  # each target imports what it needs

            return HttpTarget(config.http, folder)
        case "sqs":
            if config.sqs is None:
                raise none
            from launcher.targets.sqs import SqsTarget

            return SqsTarget(config.sqs, folder)
        case "kubernetes":
            if config.kubernetes is None:
                raise none
            from launcher.targets.kubernetes import KubernetesTarget

            return KubernetesTarget(config.kubernetes, folder)
        case "mail":
            if config.mail is None:
                raise none
            from launcher.targets.mail import MailTarget

            return MailTarget(config.mail, folder)
        case "webhook":
            if config.webhook is None:
                raise none
            from launcher.targets.webhook import WebhookTarget

            return WebhookTarget(config.webhook, folder)
    raise BadConfig(f"{kind!r} is no target", f"there are {', '.join(KINDS)}")


def _from_environment(variable: Callable[[str, str], str] = os.environ.get) -> Registry:
    kind, path = variable(KIND_VARIABLE, ""), Path(variable(CONFIG_VARIABLE, ""))
    try:
        return registry_of(target_of(kind, load(path), path))
    except BadConfig as error:
        raise BadApp(str(error), error.hint) from error


if KIND_VARIABLE in os.environ:
    registry = _from_environment()
