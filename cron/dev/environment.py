"""What the processes of a local cell find in their environment."""

from __future__ import annotations

from collections.abc import Mapping

import cron.failpoints
import launcher.failpoints
from cron.dev.files import EXECUTOR, REPLICA, Member
from cron.errors import ConfigError
from cron.parent import PARENT_VARIABLE

_VARIABLE = cron.failpoints.VARIABLE
_NAMES = {REPLICA: cron.failpoints.NAMES, EXECUTOR: launcher.failpoints.NAMES}


def child_environment(
    environment: Mapping[str, str], member: Member, parent: int, ids: list[str]
) -> dict[str, str]:
    """Return the environment of `member`, made from ours; `parent` is our pid.

    RAFTCRON_FAILPOINTS_R2 is for r2 alone and takes the place of RAFTCRON_FAILPOINTS, which is for
    everybody: replicas get the daemon's points of it, executors their own.

    Raises:
        ConfigError: a variable names a failpoint, or a process of `ids`, that does not exist.
    """
    _check_variables(environment, ids)
    child = {k: v for k, v in environment.items() if not k.startswith(_VARIABLE)}
    child["PYTHONTZPATH"] = ""  # the tzdata package, pinned, and not what the host happens to have
    child[PARENT_VARIABLE] = str(parent)
    child["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    shared = _meant_for(member.kind, environment.get(_VARIABLE, ""))
    if points := environment.get(variable_of(member.id), shared):
        child[_VARIABLE] = points
    return child


def variable_of(name: str) -> str:
    """Return the variable with the failpoints of one process: RAFTCRON_FAILPOINTS_EXECUTOR_1."""
    return f"{_VARIABLE}_{name.upper().replace('-', '_')}"


def _meant_for(kind: str, text: str) -> str:
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    for piece in pieces:
        if not any(_name(piece) in names for names in _NAMES.values()):
            known = ", ".join(name for names in _NAMES.values() for name in names)
            raise ConfigError(
                f"{_VARIABLE}: {_name(piece)!r} is no failpoint", f"there are {known}"
            )
    return ",".join(piece for piece in pieces if _name(piece) in _NAMES[kind])


def _name(piece: str) -> str:
    return piece.partition("=")[0]


def _check_variables(environment: Mapping[str, str], ids: list[str]) -> None:
    known = {_VARIABLE, *(variable_of(name) for name in ids)}
    for variable in environment:
        if variable.startswith(_VARIABLE) and variable not in known:
            hint = f"the processes of this cell are {', '.join(ids)}"
            raise ConfigError(f"{variable}: no process has that name", hint)
