"""How a worker starts: its app, its options, and the socket of its executor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import BadConfig
from launcher.worker.options import EXIT_APP, EXIT_OK, GRACE_MS_MAX, token_of, worker_options
from launcher.worker.wire import TOKEN_CHARS_MAX, Result, Served
from tests.unit.worker_rig import WITHIN_S, Rig, exit_code, in_folder, task, write_app


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("app", "text", "said"),
    [
        ("missing", None, "there is no module missing"),
        ("a/b.py", None, "is no module like app.tasks"),
        ("tasks.py", None, "leave out the path and the .py"),
        ("empty", "", "empty registers no handler"),
        ("broken", "x = 1\nraise OSError('no database')", "broken.py:2: broken cannot be imported"),
        ("missing", "import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("exits", "raise SystemExit(3)", "exits cannot be imported: SystemExit: 3"),
        ("shows", "1 / 0", "`python -c 'import shows'` shows more"),
        ("wrong", "from launcher.worker.facade import handler\n@handler\ndef a(b, c, d): ...",
         "wrong.py:2: nobody would give a its parameter d"),
        ("shop:nothing", None, "nothing is no Registry of that module"),
    ],
)  # fmt: skip
def test_an_app_that_cannot_be_served_is_told_with_its_place(
    rig: Rig, app: str, text: str | None, said: str
) -> None:
    if text is not None:
        write_app(rig.folder, text, app)
    parent = rig.parent(rig.options(app=app))
    assert parent.stderr is not None
    assert said in parent.stderr.read().decode()
    assert exit_code(parent) == EXIT_APP


def test_a_registry_of_its_own_can_be_served(rig: Rig) -> None:
    text = (
        "from launcher.worker.facade import Registry, handler\nmine = Registry()\n"
        "@handler('all')\ndef a(): ...\n@mine.handler('mine')\ndef b(): ..."
    )
    write_app(rig.folder, text, "two")
    peer = rig.peer(app="two:mine")
    assert peer.hello.handlers == [Served("mine")]
    assert peer.hello.group == "two.mine"


def test_the_socket_is_found_by_the_environment(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAFTCRON_WORKERS", rig.hub.path)
    assert rig.peer(executor="").hello.pid > 0


def test_a_socket_may_lie_deeper_than_its_address_is_long(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    made = Rig(folder)
    try:
        assert made.peer().outcome_of(task(1, "noop")).result is Result.OK
    finally:
        made.close()


def test_a_program_can_embed_a_worker(rig: Rig) -> None:
    text = (
        "import sys, shop\nfrom launcher.worker.facade import Worker\n"
        f"sys.exit(Worker(executor={rig.hub.path!r}, threads=1, group='mine').run())"
    )
    write_app(rig.folder, text, "program")
    with in_folder(rig.folder):
        rig.processes.append(subprocess.Popen([sys.executable, "program.py"], env=os.environ))
    peer = rig.hub.welcome()
    assert (peer.hello.group, peer.hello.threads) == ("mine", 1)
    assert peer.outcome_of(task(1, "noop")).result is Result.OK
    rig.processes[0].send_signal(signal.SIGTERM)
    assert rig.processes[0].wait(WITHIN_S) == EXIT_OK


def test_one_that_finds_no_executor_says_where_it_looked_and_the_way_out(rig: Rig) -> None:
    parent = rig.parent(rig.options(executor=str(rig.folder / "none" / "w.sock")))
    assert parent.stderr is not None
    first, second = (parent.stderr.readline().decode() for _ in range(2))
    assert "in 1 process of 2 threads, for the executor at" in first
    assert second.endswith(
        "none/w.sock: no such file or directory; "
        "--executor or $RAFTCRON_WORKERS name another socket\n"
    )
    parent.terminate()
    assert exit_code(parent) == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"group": "a b"}, "its group is not up to 100 of A-Z a-z 0-9 _ . -"),
        ({"grace_ms": GRACE_MS_MAX + 1}, "its grace is not within 24 hours"),
        ({"threads": 0}, "at `$.threads`"),
    ],
)
def test_options_that_cannot_be_are_told_in_words(more: dict[str, object], said: str) -> None:
    with pytest.raises(BadConfig) as caught:
        worker_options("tasks", **more)
    assert str(caught.value).endswith(said)


# ---- the token that grants handlers


def test_a_worker_sends_the_token_of_its_file(rig: Rig) -> None:
    write_app(rig.folder, "from launcher.worker.facade import handler\n@handler('a')\ndef a(): ...")
    file = rig.folder / "token"
    file.write_text("5ec7e7\n")
    assert rig.peer(token_file=str(file)).hello.token == "5ec7e7"


def test_a_worker_without_a_file_sends_the_token_of_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert token_of("") == ""
    monkeypatch.setenv("RAFTCRON_WORKER_TOKEN", " 5ec7e7 ")
    assert token_of("") == "5ec7e7"


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff", b"x" * (TOKEN_CHARS_MAX + 1)])
def test_a_file_without_a_token_is_told(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadConfig, match=str(file)):
        token_of(str(file))
