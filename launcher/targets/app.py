"""The app of a worker that serves one target, or all: what `raftcron target KIND` imports.

A worker's app is a module, so the kind and the configuration come through the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from launcher.errors import BadConfig, LauncherError
from launcher.targets.config import TargetsConfig, load
from launcher.targets.target import Target, run
from launcher.worker.context import Context
from launcher.worker.errors import BadApp
from launcher.worker.options import TARGET_VARIABLE
from launcher.worker.registry import Registry, describe

KIND_VARIABLE: Final = TARGET_VARIABLE
CONFIG_VARIABLE: Final = "RAFTCRON_TARGETS"
CELL_VARIABLE: Final = "RAFTCRON_TARGETS_CELL"
"""The cell of the executor that serves the targets: mails name it unless their table has another.
"""
KINDS: Final = ("http", "sqs", "kubernetes", "mail", "webhook")
ALL: Final = "all"
"""Every target that the configuration has a table for, in one process."""


def registry_of(*targets: Target) -> Registry:
    """Return a registry with a handler for each target, which hands launches over to it.

    Raises:
        BadConfig: two of them have handlers of one name.
    """
    registry = Registry()
    names: set[str] = set()
    for target in targets:
        if target.handler in names:
            hint = "give one of them another name: handler = ..."
            raise BadConfig(f"two targets have the handler {target.handler}", hint)
        names.add(target.handler)
        registry.add(describe(_hands_over_to(target), target.handler, resumes=True))
    return registry


def _hands_over_to(target: Target) -> Callable[[bytes, Context], str]:
    def hand_over(payload: bytes, context: Context) -> str:
        return run(target, payload, context)

    return hand_over


def targets_of(kind: str, config: TargetsConfig, path: Path) -> list[Target]:
    """Return the target of a kind, or with ALL each one that the configuration at `path` has.

    Raises:
        BadConfig: it has none, or a value in it is invalid.
    """
    if kind != ALL:
        return [target_of(kind, config, path)]
    kinds = [one for one in KINDS if getattr(config, one) is not None]
    if not kinds:
        hint = f"add a table: {', '.join(KINDS)}; see examples/targets.toml"
        raise BadConfig(f"{path}: configures no target", hint)
    return [target_of(one, config, path) for one in kinds]


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
    raise BadConfig(f"{kind!r} is no target", f"there are {', '.join(KINDS)}, and {ALL}")


def registry_from(path: Path, kind: str = ALL, cell: str = "") -> Registry:
    """Return the registry that the configuration at `path` makes, with all files that it names read
    and checked; `cell` is what mails name where their table has no cell. Nothing is connected.

    Raises:
        BadConfig: it cannot be read, or no target of that kind can be made of it.
    """
    config = load(path)
    if config.mail is not None and not config.mail.cell:
        mail = msgspec.structs.replace(config.mail, cell=cell)
        config = msgspec.structs.replace(config, mail=mail)
    try:
        return registry_of(*targets_of(kind, config, path))
    except LauncherError as error:
        text = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise BadConfig(text, error.hint) from error


def _from_environment(variable: Callable[[str, str], str] = os.environ.get) -> Registry:
    kind, path = variable(KIND_VARIABLE, ""), Path(variable(CONFIG_VARIABLE, ""))
    try:
        return registry_from(path, kind, variable(CELL_VARIABLE, ""))
    except BadConfig as error:
        raise BadApp(str(error), error.hint) from error


if KIND_VARIABLE in os.environ:
    registry = _from_environment()
