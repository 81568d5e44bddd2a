"""The folder of a cell on one machine: the configuration, log and state of each of its processes.

    DIR/r1.toml r2.toml r3.toml executor-1.toml ...   read by the processes as they are
    DIR/r1/ ... executor-1/                           what each of them keeps
    DIR/r1.log ...                                    what each of them says
    DIR/dev.lock                                      held by whoever runs the cell

Every replica is started with --bootstrap, at every start: it says that an empty directory is one of
a new cell, and a cell that exists believes that of none of its ids. A folder whose state is gone is
refused by the other two, where it could otherwise vote a second time.

Files that are there are not written again, so whoever wants other times or limits edits them. Only
the addresses are brought up to date where the cell is to run on other ports: replicas are known by
name, so their state does not care where they listen.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import tomllib
from pathlib import Path
from typing import Final

import msgspec

from cron.config import load_replica_config
from cron.errors import ConfigError
from launcher.address import DEV_REPLICAS as REPLICAS

HOST: Final = "127.0.0.1"
RAFT_OFFSET: Final = 10
"""Raft listens on the client port + 10, by convention of `raftcron dev`."""
HTTP_OFFSET: Final = 80
"""HTTP listens on the client port + 80."""
NO_HTTP: Final = "--no-http"

REPLICA: Final = "replica"
EXECUTOR: Final = "executor"
_ADDRESS: Final = re.compile(rf'"{re.escape(HOST)}:\d+"')
_MODULES: Final = {REPLICA: "cron.daemon", EXECUTOR: "launcher.executor"}


class Ports(msgspec.Struct, frozen=True):
    """The ports of r1, r2 and r3 for clients and for Raft."""

    client: tuple[int, ...]
    raft: tuple[int, ...]

    @staticmethod
    def from_first(port: int) -> Ports:
        """Return `port` and the two behind it for clients, the same plus 10 for Raft."""
        client = tuple(range(port, port + REPLICAS))
        return Ports(client, tuple(number + RAFT_OFFSET for number in client))

    @property
    def servers(self) -> list[str]:
        """Return the client addresses."""
        return [f"{HOST}:{port}" for port in self.client]

    @property
    def http(self) -> tuple[int, ...]:
        """The ports of r1, r2 and r3 for HTTP."""
        return tuple(number + HTTP_OFFSET for number in self.client)

    def all(self, *, is_http: bool = True) -> list[tuple[str, int]]:
        """Every port with what it is for."""
        clients = [(f"clients of r{n}", port) for n, port in enumerate(self.client, 1)]
        rafts = [(f"Raft of r{n}", port) for n, port in enumerate(self.raft, 1)]
        https = [(f"HTTP of r{n}", port) for n, port in enumerate(self.http, 1)]
        return clients + rafts + (https if is_http else [])


class Member(msgspec.Struct, frozen=True):
    """One process of the cell: its id, what it is, its configuration, its log, and options of the
    command that starts it."""

    id: str
    kind: str
    config: Path
    log: Path
    options: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str]:
        """Return the command that starts it; `-P` ignores a folder `cron` where the user is."""
        program = [sys.executable, "-P", "-m", _MODULES[self.kind], "--config", str(self.config)]
        # A replica learns from the environment whom it must not outlive, an executor from this.
        if self.kind == EXECUTOR:
            return [*program, f"--die-with-parent={os.getpid()}", *self.options]
        return [*program, "--bootstrap", "--die-with-parent", *self.options]


def write_cell(
    folder: Path,
    ports: Ports,
    *,
    executors: int = 1,
    replica_extra: str = "",
    executor_extra: str = "",
    http: bool | None = None,
    targets: Path | None = None,
) -> list[Member]:
    """Return the processes of the cell in `folder`, after writing what is missing there.

    The extras are TOML text that new files get as well: fields of the executors, tables of the
    replicas. With `http` also replicas that had no HTTP get some; with False none serves it.
    `targets` is a configuration of targets, which the executors serve.

    Raises:
        ConfigError: a file that is there cannot be used, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        members = [_replica(folder, ports, n, replica_extra) for n in range(1, REPLICAS + 1)]
        if http:
            for member, port in zip(members, ports.http, strict=True):
                _allow_http(member.config, port)
        elif http is False:
            members = [msgspec.structs.replace(one, options=(NO_HTTP,)) for one in members]
        hosts = [_executor(folder, ports, n, executor_extra) for n in range(1, executors + 1)]
        if targets is not None:
            options = ("--targets", str(targets))
            hosts = [msgspec.structs.replace(one, options=options) for one in hosts]
        members += hosts
    except OSError as error:
        message = f"{error.filename or folder}: {(error.strerror or str(error)).lower()}"
        raise ConfigError(message, "give --data a folder that you may write") from error
    _check(folder, ports)
    return members


def _replica(folder: Path, ports: Ports, number: int, extra: str) -> Member:
    member = _member(folder, f"r{number}", REPLICA)
    if not member.config.exists():
        member.config.write_text(_replica_text(ports, number, extra))
    return member


def _executor(folder: Path, ports: Ports, number: int, extra: str) -> Member:
    member = _member(folder, f"executor-{number}", EXECUTOR)
    if not member.config.exists():
        leaders = ", ".join(f'"{server}"' for server in ports.servers)
        text = f'id = "{member.id}"\ndata = "{member.id}"\nleaders = [{leaders}]\n'
        member.config.write_text(text + (extra.rstrip() + "\n" if extra else ""))
    if os.geteuid() == 0:
        _allow_root(member.config)
    return member


def _allow_http(config: Path, port: int) -> None:
    """Let a replica serve HTTP at the port if its file does not say where."""
    try:
        text = config.read_text(encoding="utf-8")
        if "http" not in tomllib.loads(text):
            config.write_text(f'http = "{HOST}:{port}"\n{text}', encoding="utf-8")
    except ValueError:
        return  # no TOML: `_check` says what is wrong with it


def _allow_root(config: Path) -> None:
    """Let an executor run commands as root if its file does not say who may: an executor of root
    refuses that otherwise, and here root is the person who runs this cell."""
    try:
        text = config.read_text(encoding="utf-8")
        if "users" not in tomllib.loads(text):
            config.write_text(f'users = ["root"]\n{text}', encoding="utf-8")
    except ValueError:
        return  # no TOML: `_check` says what is wrong with it


def _member(folder: Path, name: str, kind: str) -> Member:
    return Member(name, kind, folder / f"{name}.toml", folder / f"{name}.log")


def _replica_text(ports: Ports, number: int, extra: str) -> str:
    client, raft = ports.client[number - 1], ports.raft[number - 1]
    lines = [
        f'id = "r{number}"',
        f'data = "r{number}"',
        f'client = "{HOST}:{client}"',
        f'raft = "{HOST}:{raft}"',
        "",
        "[peers]",
    ]
    for n, (one, other) in enumerate(zip(ports.client, ports.raft, strict=True), 1):
        lines.append(f'r{n} = {{ client = "{HOST}:{one}", raft = "{HOST}:{other}" }}')
    if "[lease]" not in extra:
        # An executor notices that the leader is frozen after two or three heartbeats.
        lines += ["", "[lease]", "heartbeat_ms = 1000"]
    return "\n".join(lines) + "\n" + (f"\n{extra.strip()}\n" if extra else "")


def ports_of(folder: Path) -> Ports | None:
    """Return where the cell in `folder` runs by its configuration, None if there is no cell yet.

    Raises:
        ConfigError: its first replica's file cannot be used.
    """
    first = folder / "r1.toml"
    if not first.exists():
        return None
    peers = load_replica_config(first).peers
    names = [f"r{n}" for n in range(1, REPLICAS + 1)]
    if sorted(peers) != names:
        hint = "give --data another folder; dev runs cells of r1, r2 and r3"
        raise ConfigError(f"{first}: peers: {', '.join(peers)}", hint)
    return Ports(
        tuple(int(peers[name].client.rpartition(":")[2]) for name in names),
        tuple(int(peers[name].raft.rpartition(":")[2]) for name in names),
    )


def move_cell(folder: Path, old: Ports, new: Ports) -> None:
    """Write the addresses of `new` over those of `old` in all files of the cell; nothing else.

    Raises:
        ConfigError: a file cannot be read or written.
    """
    pairs = zip(old.client + old.raft + old.http, new.client + new.raft + new.http, strict=True)
    moves = {f'"{HOST}:{before}"': f'"{HOST}:{after}"' for before, after in pairs}
    for path in sorted([*folder.glob("r[123].toml"), *folder.glob("executor-*.toml")]):
        try:
            text = path.read_text(encoding="utf-8")
            moved = _ADDRESS.sub(lambda match: moves.get(match[0], match[0]), text)
            # Written aside and renamed: a half-written file would end the cell.
            aside = path.with_suffix(".new")
            aside.write_text(moved, encoding="utf-8")
            aside.replace(path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}", "give --data another folder") from error


def _check(folder: Path, ports: Ports) -> None:
    """Refuse files that together make no cell on these ports."""
    cells: dict[str, Path] = {}
    for n in range(1, REPLICAS + 1):
        path = folder / f"r{n}.toml"
        config = load_replica_config(path)
        if config.id != f"r{n}":
            raise ConfigError(f"{path}: id: {config.id}, but the file is r{n}'s", "correct id")
        client, raft = f"{HOST}:{ports.client[n - 1]}", f"{HOST}:{ports.raft[n - 1]}"
        if (config.client, config.raft) != (client, raft):
            is_at = f"client {config.client} and raft {config.raft}"
            hint = "addresses in r1.toml, r2.toml and r3.toml must agree"
            hint += "; or give --data another folder"
            raise ConfigError(f"{path}: {is_at}, but r1.toml says {client} and {raft}", hint)
        cells.setdefault(config.cell, path)
    for path in sorted(folder.glob("executor-*.toml")):
        cells.setdefault(_cell_of(path), path)
    if len(cells) > 1:
        named = ", ".join(f"{path.name} of {cell}" for cell, path in cells.items())
        hint = "give --data a folder of one cell, or correct `cell`"
        raise ConfigError(f"{folder}: files of several cells: {named}", hint)


def _cell_of(path: Path) -> str:
    try:
        return str(tomllib.loads(path.read_text(encoding="utf-8")).get("cell", "default"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: {error}", "correct it, or give --data another folder"
        ) from error


def taken(ports: Ports, *, is_http: bool = True) -> list[tuple[str, int]]:
    """Return what somebody else listens on already: what it would be for, and the port."""
    return [one for one in ports.all(is_http=is_http) if not _is_free(one[1])]


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: connections in TIME_WAIT are no reason to refuse.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


async def check_ports(ports: Ports, *, patience_ms: int = 1_000, is_http: bool = True) -> None:
    """Return once all ports are free; those of a cell that just died take a moment.

    Raises:
        ConfigError: after `patience_ms` some are still in use; all of them are named.
    """
    for _ in range(max(1, patience_ms // 100)):
        if not (rest := taken(ports, is_http=is_http)):
            return
        await asyncio.sleep(0.1)
    named = ", ".join(f"{port} ({purpose})" for purpose, port in rest)
    ways = f"choose others with --port, such as --port {ports.client[0] + 100}"
    raise ConfigError(f"port in use on {HOST}: {named}", f"{ways}, or end what listens there")
