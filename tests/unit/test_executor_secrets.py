"""Secrets of jobs: read at the start of a command, from files or a program, and kept nowhere."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from launcher.clock import boot_ms, wall_ms
from launcher.config import ExecutorConfig
from launcher.executor import secrets
from launcher.executor.commands import children
from launcher.executor.rows import ENDED, INTERRUPTED, REFUSED
from launcher.executor.secrets import SECRET_BYTES_MAX, SecretReader, SecretRefused, Secrets
from launcher.protocol.status import Reason
from launcher.protocol.work import WorkSpec
from launcher.tls import TlsFiles
from tests.unit.rows_rig import Start, found, orders
from tests.unit.test_executor_loop import A, B, Shop
from tests.unit.workers_rig import until

VALUE = "correct horse battery staple"
WANTED = (("PGPASSWORD", "db/billing"),)
FAR_MS = 60_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory of secrets with one of them."""
    folder = tmp_path / "secrets"
    (folder / "db").mkdir(mode=0o755, parents=True)
    folder.chmod(0o700)
    put(folder / "db/billing", f"{VALUE}\n")
    return folder


def put(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def of(folder: Path | str = "", **settings: Any) -> Secrets:
    config = ExecutorConfig(id="e1", data="/d", leaders=("127.0.0.1:1",), secrets=str(folder))
    return Secrets(msgspec.structs.replace(config, **settings), {})


def read(secrets: Secrets, name: str = "db/billing", wait_ms: int = FAR_MS) -> str:
    return secrets.read((("PGPASSWORD", name),), boot_ms() + wait_ms)["PGPASSWORD"]


def refusal(secrets: Secrets, name: str = "db/billing", wait_ms: int = FAR_MS) -> str:
    with pytest.raises(SecretRefused) as refused:
        read(secrets, name, wait_ms)
    assert VALUE not in str(refused.value)
    return str(refused.value)


# ---- files


def test_a_secret_is_the_content_of_its_file_without_the_line_end(folder: Path) -> None:
    put(folder / "two", "a\nb\n\n")
    binary = b"\xff"
    (folder / "bytes").write_bytes(binary)
    wanted = (*WANTED, ("B", "two"), ("C", "bytes"))
    values = of(folder).read(wanted, boot_ms() + FAR_MS)
    assert values["PGPASSWORD"] == VALUE
    assert values["B"] == "a\nb\n"
    assert os.fsencode(values["C"]) == binary


def test_credentials_of_systemd_have_no_folders(tmp_path: Path, folder: Path) -> None:
    put(folder / "db_orders", "flat")
    assert read(of(folder), "db/orders") == "flat"
    assert read(of(folder)) == VALUE, "a file in a folder comes first"
    config = ExecutorConfig(id="e1", data="/d", leaders=("127.0.0.1:1",))
    assert not Secrets(config, {})
    assert read(Secrets(config, {"CREDENTIALS_DIRECTORY": str(folder)})) == VALUE


def test_links_of_kubernetes_stay_below_the_directory(folder: Path) -> None:
    version = folder / "..2026_11_28"
    version.mkdir()
    version.chmod(0o755)
    put(version / "token", VALUE)
    (folder / "..data").symlink_to("..2026_11_28")
    (folder / "token").symlink_to("..data/token")
    (folder / "absolute").symlink_to(folder / "token")
    assert read(of(folder), "token") == read(of(folder), "absolute") == VALUE


@pytest.mark.parametrize(
    "target", ["/etc/hostname", "../outside", "db/../../outside", "loop", "there/billing"]
)
def test_a_link_that_leads_elsewhere_is_refused(folder: Path, target: str) -> None:
    put(folder.parent / "outside", VALUE)
    (folder.parent / "back").symlink_to(folder / "db")
    (folder / "there").symlink_to(folder.parent / "back")
    (folder / "loop").symlink_to(target)
    assert refusal(of(folder), "loop") == f"secret loop: leads out of {folder}"


def test_a_name_cannot_leave_the_directory(folder: Path) -> None:
    put(folder.parent / "outside", VALUE)
    assert refusal(of(folder), "db/../../outside").endswith(f"leads out of {folder}")
    assert "no such file" in refusal(of(folder), f"{folder.parent}/outside")


def test_what_is_no_readable_secret_is_refused_by_name(folder: Path) -> None:
    assert refusal(of(folder), "db/no") == f"secret db/no: no such file in {folder}"
    assert refusal(of(folder), "db/billing/more").endswith(f"no such file in {folder}")
    assert refusal(of(folder), "db") == "secret db: db is no plain file"
    os.mkfifo(folder / "pipe", 0o600)
    assert "is no plain file" in refusal(of(folder), "pipe")
    (folder / "large").write_bytes(b"x" * (SECRET_BYTES_MAX + 1))
    assert refusal(of(folder), "large") == "secret large: is larger than 65536 bytes"
    (folder / "large").write_bytes(b"x" * SECRET_BYTES_MAX)
    assert len(read(of(folder), "large")) == SECRET_BYTES_MAX
    (folder / "nul").write_bytes(b"a\0b")
    assert "has a NUL" in refusal(of(folder), "nul")
    assert "No such file" in refusal(of(folder.parent / "gone"))
    assert "this executor has none" in refusal(of())


@pytest.mark.parametrize("place", ["", "db", "db/billing"])
@pytest.mark.parametrize("bit", [stat.S_IWGRP, stat.S_IWOTH])
def test_what_others_may_write_is_refused(folder: Path, place: str, bit: int) -> None:
    path = folder / place
    path.chmod(stat.S_IMODE(path.stat().st_mode) | bit)
    assert "others may write it" in refusal(of(folder))


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_what_belongs_to_another_user_is_refused(folder: Path) -> None:
    os.chown(folder / "db/billing", 65_534, 0)
    assert "others may write it" in refusal(of(folder))


def test_the_executors_own_key_is_no_secret_of_jobs(folder: Path) -> None:
    tls = TlsFiles(*(str(folder / name) for name in ("ca.pem", "cert.pem", "db/billing")))
    assert "executor's own certificate" in refusal(of(folder, tls=tls))


# ---- a command


def program(text: str, *arguments: str) -> Secrets:
    return of(secret_command=("/bin/sh", "-c", text, *arguments))


def test_a_command_prints_a_secret(tmp_path: Path) -> None:
    assert read(program('echo "$0 $1"', "of"), "db/billing") == "of db/billing"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo hunter2; echo hunter2 >&2; exit 3", "/bin/sh ended with exit code 3"),
        ("echo hunter2; kill -9 $$", "/bin/sh ended with signal 9"),
        ("head -c 70000 /dev/zero | tr '\\0' x; exit 1", "is larger than 65536 bytes"),
    ],
)
def test_a_command_that_fails_is_named_and_not_quoted(text: str, said: str) -> None:
    assert refusal(program(text)) == f"secret db/billing: {said}"


@pytest.mark.parametrize("text", ["sleep 600", "exec >&-; sleep 600", "sleep 600 & echo x"])
def test_a_command_that_does_not_end_is_killed_with_its_group(tmp_path: Path, text: str) -> None:
    pids = tmp_path / "pid"
    assert "does not end in time" in refusal(program(f"echo $$ > {pids}; {text}"), wait_ms=500)
    group = int(pids.read_text())
    until_ms = boot_ms() + FAR_MS
    while any(group_of(pid) == group for pid in map(int, filter(str.isdigit, os.listdir("/proc")))):
        assert boot_ms() < until_ms


def group_of(pid: int) -> int:
    """The process group of a process, 0 if it has ended."""
    try:
        state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return 0
    return int(group) if state not in "ZX" else 0


def test_a_command_that_is_not_there_is_an_error_and_no_secret() -> None:
    assert "No such file" in refusal(of(secret_command=("/no/such/program",)))


def test_nobody_else_takes_the_exit_code_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor reaps children that it adopted; a code that is gone would look like success."""
    monkeypatch.setattr(children, "adopter", os.getpid)
    other = children.Children(lambda _: None, 1, "", lambda: 0)
    output, seen = secrets._output, list[int]()

    def output_and_look(process: Any, until_ms: int) -> bytes | None:
        said = output(process, until_ms)
        other._reap_orphans()
        seen.append(process.pid)
        return said

    monkeypatch.setattr(secrets, "_output", output_and_look)
    assert refusal(program("exit 3")).endswith("ended with exit code 3")
    assert len(seen) == 1


# ---- in threads


async def test_a_reader_that_hangs_is_given_up_and_others_are_read(folder: Path) -> None:
    pipe = folder.parent / "pipe"
    os.mkfifo(pipe)
    reader = SecretReader(program(f'[ "$0" = slow ] && cat {pipe}; echo "$0"'))
    answers: dict[str, Any] = {}
    over = asyncio.Event()

    def take(name: str, answer: Any) -> None:
        answers[name] = answer
        if len(answers) == 2:
            over.set()

    reader.read((("A", "slow"),), lambda answer: take("slow", answer), wait_ms=300)
    reader.read((("A", "fast"), ("B", "faster")), lambda answer: take("fast", answer))
    await asyncio.wait_for(over.wait(), 60)
    assert answers["fast"] == {"A": "fast", "B": "faster"}
    assert str(answers["slow"]).startswith("secret slow: ")


# ---- commands with secrets


class SecretShop(Shop):
    """An executor loop that orders a command with a secret."""

    def start(self, name: str = A, command: str = "", **work: Any) -> None:
        argv = ("/bin/sh", "-c", command or f'printf "%s" "$PGPASSWORD" > {self.directory}/out')
        spec = msgspec.msgpack.encode(WorkSpec(argv, cwd="/", **{"secrets": WANTED, **work}))
        start = Start(name, spec, wall_ms() + FAR_MS, 9)
        self.executor_loop.order(self.ear, orders(start))

    async def reads(self) -> None:
        """Return once the program that prints secrets runs."""
        await until((self.directory / "asked").exists)

    async def over(self, name: str, status: int) -> Any:
        await self.turns_until(lambda: (name, status) in self.ear.told)
        return found(self.ledger)[name]


@pytest.fixture
async def shop(tmp_path: Path, folder: Path) -> AsyncIterator[SecretShop]:
    shop = SecretShop(tmp_path)
    await shop.open(secrets=str(folder))
    shop.executor_loop.attach(shop.ear)
    yield shop
    await shop.close()


@pytest.fixture
async def hanging(tmp_path: Path) -> AsyncIterator[SecretShop]:
    """One whose secrets are read until a line is written to `pipe`."""
    os.mkfifo(tmp_path / "pipe")
    text = f"touch {tmp_path}/asked; cat {tmp_path}/pipe"
    shop = SecretShop(tmp_path)
    await shop.open(secret_command=("/bin/sh", "-c", text))
    shop.executor_loop.attach(shop.ear)
    yield shop
    await shop.close()


async def test_a_command_gets_its_secrets_and_nothing_else_has_them(shop: SecretShop) -> None:
    with structlog.testing.capture_logs() as lines:
        shop.start(env=(("PGPASSWORD", "of the crontab"), ("OTHER", "x")))
        shop.start(B, command="exit 4")
        await shop.over(A, ENDED)
        await shop.over(B, ENDED)
    assert (shop.directory / "out").read_text() == VALUE
    assert VALUE not in str(lines)
    kept = [path for path in shop.directory.rglob("*") if path.is_file() and path.name != "out"]
    having = [path for path in kept if VALUE.encode() in path.read_bytes()]
    assert having == [shop.directory / "secrets/db/billing"]


async def test_a_secret_that_is_not_there_fails_the_launch_before_its_start(
    shop: SecretShop,
) -> None:
    shop.start(secrets=(("PGPASSWORD", "db/none"),))
    row = await shop.over(A, ENDED)
    assert (row.reason, row.exit_code, row.started_ms) == (Reason.SECRET, 127, 0)
    assert row.detail == f"secret db/none: no such file in {shop.directory}/secrets"
    assert not (shop.directory / "out").exists()
    assert shop.executor_loop.running == 0


async def test_each_start_reads_the_secret_anew(shop: SecretShop) -> None:
    shop.start()
    await shop.over(A, ENDED)
    put(shop.directory / "secrets/db/billing", "rotated")
    shop.start(B)
    await shop.over(B, ENDED)
    assert (shop.directory / "out").read_text() == "rotated"


async def test_others_run_while_secrets_are_read(hanging: SecretShop) -> None:
    hanging.start(A)
    await hanging.turn()
    await hanging.reads()
    hanging.start(B, command="exit 0", secrets=())
    await hanging.over(B, ENDED)
    assert hanging.executor_loop.running == 1
    pipe = hanging.directory / "pipe"
    await asyncio.to_thread(pipe.write_text, VALUE)
    await hanging.over(A, ENDED)
    assert (hanging.directory / "out").read_text() == VALUE


@pytest.mark.parametrize("how", ["kill", "lapse", "drain"])
async def test_a_command_that_must_not_start_any_more_does_not(
    hanging: SecretShop, how: str
) -> None:
    hanging.start(A)
    await hanging.turn()
    await hanging.reads()
    loop = hanging.executor_loop
    drain: asyncio.Task[None] | None = None
    if how == "kill":
        loop.order(hanging.ear, orders(kills=[(A, int(Reason.KILLED))]))
    elif how == "lapse":
        loop.lease.until_ms = 0
        loop.answered(1)
    else:
        drain = asyncio.create_task(loop.drain(10, 0))
    row = await hanging.over(A, REFUSED)
    assert row.detail
    await asyncio.to_thread((hanging.directory / "pipe").write_text, VALUE)
    if drain is not None:
        await drain
    assert loop.running == 0
    assert not (hanging.directory / "out").exists()


async def test_a_command_whose_secrets_are_read_when_the_spawner_dies_is_interrupted(
    hanging: SecretShop,
) -> None:
    hanging.start(A)
    await hanging.turn()
    await hanging.reads()
    os.kill(hanging.executor_loop._children.pid, 9)
    await hanging.over(A, INTERRUPTED)
    await asyncio.to_thread((hanging.directory / "pipe").write_text, VALUE)
    hanging.start(B, command="exit 0", secrets=())
    await hanging.over(B, ENDED)
    assert not (hanging.directory / "out").exists()
    assert hanging.executor_loop.running == 0
