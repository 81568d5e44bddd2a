"""`raftcron config check`: what a file is, what is wrong with it, and with the files it names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import Result

from snapshots.encrypted import write_key
from tests.unit.api_rig import run_cli
from tests.unit.certs_rig import CELL, Certs

PEERS = "".join(
    f'r{n} = {{ client = "127.0.0.1:740{n}", raft = "127.0.0.1:741{n}" }}\n' for n in (1, 2, 3)
)


def replica(folder: Path, name: str = "r1", extra: str = "", head: str = "") -> str:
    """The configuration of a replica."""
    path = folder / f"{name}.toml"
    head = f'id = "{name}"\ndata = "data-{name}"\ncell = "{CELL}"\n{head}'
    path.write_text(f"{head}\n[peers]\n{PEERS}{extra}")
    return str(path)


def executor(folder: Path, extra: str = "", leaders: str = "127.0.0.1:7401") -> str:
    path = folder / "e1.toml"
    path.write_text(
        f'id = "e1"\ndata = "data-e1"\ncell = "{CELL}"\nleaders = ["{leaders}"]\n{extra}'
    )
    return str(path)


def change(file: str, old: str, new: str, to: str = "") -> str:
    """Write a file with `new` in place of `old`, under another name if one is given."""
    text = Path(file).read_text()
    assert old in text
    path = Path(file).with_name(to) if to else Path(file)
    path.write_text(text.replace(old, new))
    return str(path)


async def check(*files: str, code: int = 0) -> Result:
    result = await run_cli("config", "check", *files)
    assert result.exit_code == code, result.output
    return result


async def found(*files: str, code: int = 0) -> list[list[tuple[str, str]]]:
    """The findings of each file, as severity and message."""
    result = await run_cli("config", "check", *files, "-o", "json")
    assert result.exit_code == code, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["file"] for row in rows] == [*files]
    return [[(one["severity"], one["message"]) for one in row["findings"]] for row in rows]


# ---- what a file is


@pytest.fixture(autouse=True)
def _as_its_own_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests: an executor would not run as root."""
    monkeypatch.setattr("cron.cli.config._runs_as_root", lambda _folder: False)


async def test_the_examples_are_what_their_contents_say() -> None:
    result = await check("examples/replica.toml", "examples/executor.toml")
    assert result.stdout.splitlines() == [
        "examples/replica.toml: the configuration of a replica, no errors",
        "examples/executor.toml: the configuration of an executor, no errors",
    ]


async def test_a_file_with_misspelt_keys_is_still_known_by_the_others(tmp_path: Path) -> None:
    path = change(replica(tmp_path), "[peers]", "[peer]")
    result = await check(path, code=2)
    assert result.stdout.splitlines() == [
        f"{path}: peer: not a known key", "  hint: the nearest known key is peers",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"x = 1\n", "configures no replica, executor or target"),
        (b"", "configures no replica, executor or target"),
        (b"id = \n", "not TOML"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b"#" * ((1 << 20) + 1), "is larger than"),
    ],
)
async def test_a_file_that_is_nothing_of_ours_says_so(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    result = await check(str(path), code=2)
    assert said in result.stdout
    assert "  hint: " in result.stdout
    missing = await check(str(tmp_path / "none.toml"), code=2)
    assert "no such file" in missing.stdout


async def test_as_json_each_file_has_a_row(tmp_path: Path) -> None:
    good, bad = replica(tmp_path), executor(tmp_path, "slot = 4\n")
    result = await run_cli("config", "check", good, bad, "-o", "json")
    assert result.exit_code == 2
    one, other = map(json.loads, result.stdout.splitlines())
    assert one == {"file": good, "kind": "replica", "ok": True, "findings": []}
    assert (other["kind"], other["ok"]) == ("executor", False)
    assert other["findings"] == [
        {
            "severity": "error",
            "message": f"{bad}: slot: not a known key",
            "hint": "the nearest known key is slots",
        }
    ]


# ---- the files that it names


def tls(certs: Certs, kind: str, name: str) -> str:
    files = certs.files(kind, name)
    return f'[tls]\nca = "{files.ca}"\ncert = "{files.cert}"\nkey = "{files.key}"\n'


async def test_certificates_are_checked_and_belong_to_this_member(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs")
    good = replica(tmp_path, extra=tls(certs, "replica", "r1"))
    [[(severity, text)]] = await found(good)
    assert (severity, "ends in" in text) == ("warning", True), "the rig's last ten days"
    for extra, said in (
        (tls(certs, "replica", "r2"), "it is of replica r2"),
        (tls(certs, "executor", "r1"), "it is of executor r1"),
        ('[tls]\nca = "none.pem"\ncert = "none.pem"\nkey = "none.pem"\n', "none.pem: no such file"),
    ):
        [[(severity, text)]] = await found(replica(tmp_path, extra=extra), code=2)
        assert (severity, said in text) == ("error", True), text


async def test_a_key_that_others_may_read_is_an_error(tmp_path: Path) -> None:
    certs = Certs(tmp_path / "certs")
    files = certs.files("executor", "e1")
    os.chmod(files.key, 0o640)
    extra = f'[tls]\nca = "{files.ca}"\ncert = "{files.cert}"\nkey = "{files.key}"\n'
    result = await check(executor(tmp_path, extra), code=2)
    assert "others may use this private key (mode 0640)" in result.stdout
    assert f"  hint: chmod 600 {files.key}" in result.stdout


async def test_the_url_and_the_key_of_object_storage_are_checked(tmp_path: Path) -> None:
    def stored(url: str) -> str:
        return replica(tmp_path, extra=f'[object_storage]\nurl = "{url}"\n')

    key = tmp_path / "store.key"
    assert "no such file" in (await found(stored(f"file:///store?key={key}"), code=2))[0][0][1]
    write_key(key)
    assert await found(stored(f"file:///store?key={key}")) == [[]]
    key.chmod(0o644)
    [[(_, text)]] = await found(stored(f"file:///store?key={key}"), code=2)
    assert "others may read it (mode 0644)" in text
    [[(_, text)]] = await found(stored("s3://bucket/x?ssse=AES256"), code=2)
    assert "option ssse is not known" in text


async def test_a_data_directory_that_others_may_use_is_named(tmp_path: Path) -> None:
    file, data = replica(tmp_path), tmp_path / "data-r1"
    assert await found(file) == [[]]
    data.mkdir()
    data.chmod(0o755)
    result = await check(file)
    assert f"warning: {file}: data: other users may use {data} (mode 0755)" in result.stdout
    assert f"  hint: chmod 700 {data}; a start does so" in result.stdout
    data.rmdir()
    data.write_text("")
    [[(severity, text)]] = await found(file, code=2)
    assert (severity, "is not a directory" in text) == ("error", True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a folder to another user")
async def test_a_data_directory_of_another_user_is_an_error_if_it_is_open(tmp_path: Path) -> None:
    file, data = replica(tmp_path), tmp_path / "data-r1"
    data.mkdir()
    data.chmod(0o755)
    os.chown(data, 12_345, -1)
    [[(severity, _)]] = await found(file, code=2)
    assert severity == "error"


async def test_targets_are_checked_alone_and_with_their_executor(tmp_path: Path) -> None:
    targets = tmp_path / "targets.toml"
    targets.write_text('[http]\nhosts = ["example.com"]\nsecrets = "signing.keys"\n')
    result = await check(str(targets), code=2)
    assert "signing.keys: cannot be read" in result.stdout
    with_executor = await check(executor(tmp_path, 'targets = "targets.toml"\n'), code=2)
    assert "signing.keys: cannot be read" in with_executor.stdout
    targets.write_text('[http]\nhost = ["example.com"]\n')
    result = await check(str(targets), code=2)
    assert "http.host: not a known key" in result.stdout


async def test_an_account_that_is_not_on_this_host_is_a_warning(tmp_path: Path) -> None:
    extra = 'users = ["root", "nobody-here"]\nworkers_group = "no-such-group"\n'
    [findings] = await found(executor(tmp_path, extra))
    assert [severity for severity, _ in findings] == ["warning", "warning"]
    assert "this host has no nobody-here" in findings[0][1]
    assert "workers_group: this host has no no-such-group" in findings[1][1]


async def test_an_executor_that_would_refuse_each_command_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All jobs of a cell failed at once, and the configuration had no errors."""
    monkeypatch.setattr("cron.cli.config._runs_as_root", lambda _folder: True)
    [findings] = await found(executor(tmp_path, ""))
    assert [severity for severity, _ in findings] == ["warning"]
    assert "users: lists nobody, and the executor would run as root" in findings[0][1]
    assert await found(executor(tmp_path, 'users = ["root"]\n')) == [[]]
    monkeypatch.setattr("cron.cli.config._runs_as_root", lambda _folder: False)
    assert await found(executor(tmp_path, "")) == [[]]


# ---- several files


async def test_replicas_of_one_cell_have_to_agree(tmp_path: Path) -> None:
    one, two = replica(tmp_path), replica(tmp_path, "r2", "[lease]\ngive_up_ms = 40000\n")
    other = change(replica(tmp_path, "r3"), "7413", "7499")
    first, second, third = await found(one, two, other, code=2)
    assert first == []
    assert [text for _, text in second] == [
        f"{two}: lease: differs from {one}, and must not in one cell"
    ]
    assert [text for _, text in third] == [
        f"{other}: peers: differs from {one}, and must not in one cell"
    ]


async def test_two_replicas_of_one_id_are_an_error(tmp_path: Path) -> None:
    one = replica(tmp_path)
    namesake = change(one, "r1", "r1", to="namesake.toml")
    first, second = await found(one, namesake, code=2)
    assert (first, second) == ([], [("error", f"{namesake}: id: r1 is that of {one}")])


async def test_an_executor_that_asks_no_replica_of_its_cell_is_told(tmp_path: Path) -> None:
    right = executor(tmp_path)
    wrong = change(right, "7401", "7999", to="e2.toml")
    one, first, second = await found(replica(tmp_path), right, wrong)
    assert (one, first) == ([], [])
    [(severity, text)] = second
    assert severity == "warning"
    assert "127.0.0.1:7999: no replica has this client address" in text
