"""Configuration of an executor: one TOML file. Each error names the place and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from launcher.address import is_loopback, split_address
from launcher.errors import BadConfig
from launcher.limits import CONFIG_BYTES_MAX, GROUP_SLOTS_MAX, OUTPUT_BYTES_MAX_MIN, SLOTS_MAX
from launcher.protocol.limits import CPU_MILLI_MAX, LABEL_CHARS_MAX, LABELS_MAX, MEMORY_BYTES_MAX
from launcher.protocol.names import NAME_PART_CHARS_MAX
from launcher.tls import TlsFiles
from launcher.toml import parse_toml

_Name = Annotated[
    str, Meta(pattern=rf"^[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{NAME_PART_CHARS_MAX - 1}}}$")
]
_Handlers = Annotated[str, Meta(pattern=r"^[\x21-\x7e]{1,100}$")]
_Label = Annotated[str, Meta(max_length=LABEL_CHARS_MAX)]
_Ms = Annotated[int, Meta(ge=1, le=86_400_000)]


class WorkerRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Handlers, or patterns of handlers, that a worker of this host may serve: one whose process is
    of a Unix `group`, is of a `user`, and shows a token with a SHA-256; all of them that are given.
    """

    handlers: Annotated[tuple[_Handlers, ...], Meta(min_length=1, max_length=1_000)]
    group: _Name | Literal[""] = ""
    user: _Name | Literal[""] = ""
    token_sha256: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")] = ""


class ExecutorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The configuration of an executor. `data`, `targets` and `secrets` are absolute once loaded;
    times are milliseconds.

    `leaders` are the client addresses of the cell's replicas. `users` are the accounts that an
    executor of root runs commands as; it runs none as root, also none without `user=`, unless
    "root" is listed. `tls` names the files of its certificate; without, `leaders` are on this host.
    `start` is `none` where work is accepted and reported as succeeded without starting anything,
    for benches. `term_grace_ms` lies between TERM and KILL. A worker's process that runs something
    and says nothing for `worker_silence_ms` (0: any time) is stopped or stuck, and is killed.
    `cpu_milli` (thousandths of a CPU) and `memory_bytes` are what launches that declare them may
    use together: what this host has where absent, 0 for no bound. `cgroup` is where their limits
    are set: the executor's own control group where empty, or that directory, or "off". With
    `workers` there is a socket for those of this host, which `workers_group` may open beside the
    executor's user. `worker` are rules of who serves which handlers there; without any, whoever may
    open the socket serves what it says. `worker_buffer` launches of each of their groups, and as
    many commands, may wait here, if they are so short that this takes no time. `targets` is a
    configuration of targets, which this executor then serves by itself. `secrets` is the directory
    of the secrets that jobs name, $CREDENTIALS_DIRECTORY where empty; or `secret_command` prints
    them, with a name as its last argument. `host` is what people are shown as its host, the host's
    own name where empty. With `traces`, commands are told their place in a trace, as TRACEPARENT.
    """

    id: _Name
    data: str
    leaders: Annotated[tuple[str, ...], Meta(min_length=1, max_length=100)]
    cell: _Name = "default"
    host: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{0,253}$")] = ""
    slots: Annotated[int, Meta(ge=1, le=SLOTS_MAX)] = 64
    labels: Annotated[dict[_Name, _Label], Meta(max_length=LABELS_MAX)] = {}
    users: tuple[str, ...] = ()
    tls: TlsFiles | None = None
    output_bytes_max: Annotated[int, Meta(ge=OUTPUT_BYTES_MAX_MIN, le=1 << 30)] = 1 << 20
    outputs_kept: Annotated[int, Meta(ge=0, le=10_000_000)] = 10_000
    outputs_bytes_max: Annotated[int, Meta(ge=0)] = 1 << 30
    cpu_milli: Annotated[int, Meta(ge=0, le=CPU_MILLI_MAX)] | None = None
    memory_bytes: Annotated[int, Meta(ge=0, le=MEMORY_BYTES_MAX)] | None = None
    cgroup: Annotated[str, Meta(pattern=r"^(/[^\x00]*|off)?$")] = ""
    workers: bool = True
    workers_group: _Name | Literal[""] = ""
    worker: Annotated[tuple[WorkerRule, ...], Meta(max_length=1_000)] = ()
    worker_buffer: Annotated[int, Meta(ge=0, le=GROUP_SLOTS_MAX)] = 1_000
    targets: str = ""
    secrets: str = ""
    secret_command: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    term_grace_ms: _Ms = 10_000
    worker_silence_ms: _Ms = 60_000
    traces: bool = False
    stop_grace_ms: Annotated[int, Meta(ge=1, le=3_000)] = 3_000
    start: Literal["process", "none"] = "process"
    clock_offset_ms_max: _Ms = 10_000
    reconnect_ms_min: _Ms = 100
    reconnect_ms_max: _Ms = 250
    connect_ms: _Ms = 1_000
    welcome_ms: _Ms = 5_000
    answer_ms: _Ms = 2_000


_PATHS = ("data", "targets", "secrets")
"""Settings that are paths, relative to the file."""


def load(path: Path) -> ExecutorConfig:
    """Read an executor's configuration; relative paths are relative to the file's directory.

    Raises:
        BadConfig: the file cannot be read, or a value is invalid.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise BadConfig(
            f"{path}: cannot be read: {error.strerror}", "name the file with --config"
        ) from error
    if len(raw) > CONFIG_BYTES_MAX:
        raise BadConfig(f"{path}: is larger than {CONFIG_BYTES_MAX} bytes", "is it the right file?")
    return parse(raw, path)


def parse(raw: bytes, path: Path) -> ExecutorConfig:
    """Return the configuration in `raw`; `path` is for messages and for relative paths.

    Raises:
        BadConfig: it is no TOML, or a value is invalid.
    """
    config = parse_toml(raw, path, ExecutorConfig, "see examples/executor.toml")
    _check(config, path)
    folder = path.resolve().parent
    tls = config.tls.below(folder) if config.tls else None
    below = {key: str(folder / name) if (name := getattr(config, key)) else "" for key in _PATHS}
    return msgspec.structs.replace(config, tls=tls, **below)


def _check(config: ExecutorConfig, path: Path) -> None:
    for number, address in enumerate(config.leaders):
        place = f"{path}: `$.leaders[{number}]`"
        check_address(address, place, is_secure=config.tls is not None)
    if config.reconnect_ms_max < config.reconnect_ms_min:
        raise BadConfig(
            f"{path}: reconnect_ms_max {config.reconnect_ms_max} is below reconnect_ms_min "
            f"{config.reconnect_ms_min}",
            "set it to at least the same",
        )
    for key, value in config.labels.items():
        if not value.isprintable():
            raise BadConfig(f"{path}: label {key} {value!r} is not printable", "write plain text")
    for number, rule in enumerate(config.worker):
        if not (rule.group or rule.user or rule.token_sha256):
            hint = "give it group, user or token_sha256"
            raise BadConfig(f"{path}: `$.worker[{number}]` does not say whose it is", hint)
    if config.targets and not config.workers:
        hint = "remove workers = false: targets connect to the socket of workers"
        raise BadConfig(f"{path}: targets need the socket of workers", hint)
    if config.secrets and config.secret_command:
        text = f"{path}: secrets and secret_command both say where secrets are"
        raise BadConfig(text, "remove one of the two")
    if config.secret_command and not config.secret_command[0].startswith("/"):
        text = f"{path}: secret_command {config.secret_command[0]!r} is not an absolute path"
        raise BadConfig(text, "begin it with /")
    if not config.data or "\0" in config.data:
        raise BadConfig(f"{path}: data names no directory", "give a directory of its own")


def check_address(address: str, place: str, *, is_secure: bool = False) -> None:
    """Check `host:port`, which without TLS must be on this host; `place` begins the message.

    Raises:
        BadConfig: it is no address, or neither secure nor a loopback address.
    """
    found = split_address(address)
    if found is None:
        raise BadConfig(f"{place}: {address!r} is not an address", "write 127.0.0.1:7400")
    if not is_secure and not is_loopback(found[0]):
        raise BadConfig(
            f"{place}: {address} is not on this host, and there is no [tls]: anybody on the way "
            "could start commands here",
            "`raftcron certs issue DIR executor ID` makes a certificate for [tls]; "
            "or use a loopback address such as 127.0.0.1:7400",
        )
