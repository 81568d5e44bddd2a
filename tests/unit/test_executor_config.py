"""An executor's configuration: what it takes, and how it says what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.address import is_loopback
from launcher.config import load, parse
from launcher.errors import BadConfig
from launcher.limits import CONFIG_BYTES_MAX, GROUP_SLOTS_MAX, OUTPUT_BYTES_MAX_MIN, SLOTS_MAX
from launcher.protocol.limits import LABEL_CHARS_MAX, MEMORY_BYTES_MAX
from launcher.tls import TlsFiles

PATH = Path("/etc/raftcron/executor.toml")
TLS = '[tls]\nca = "tls/ca.pem"\ncert = "tls/cert.pem"\nkey = "/etc/key.pem"\n'
LEAST = 'id = "e1"\ndata = "data"\nleaders = ["127.0.0.1:7400"]\n'


def test_the_least_configuration_has_the_documented_defaults() -> None:
    config = parse(LEAST.encode(), PATH)
    assert (config.cell, config.slots, config.start, config.users) == ("default", 64, "process", ())
    assert (config.term_grace_ms, config.output_bytes_max) == (10_000, 1 << 20)
    assert config.data == "/etc/raftcron/data"
    assert (config.workers, config.workers_group, config.worker_buffer) == (True, "", 1_000)
    assert (config.cpu_milli, config.memory_bytes, config.cgroup) == (None, None, "")


def test_what_launches_may_use_can_be_said_or_not_limited() -> None:
    text = LEAST + 'cpu_milli = 1500\nmemory_bytes = 0\ncgroup = "/sys/fs/cgroup/launches"\n'
    config = parse(text.encode(), PATH)
    assert (config.cpu_milli, config.memory_bytes) == (1_500, 0)
    assert config.cgroup == "/sys/fs/cgroup/launches"
    assert parse((LEAST + 'cgroup = "off"\n').encode(), PATH).cgroup == "off"


def test_targets_are_named_beside_the_configuration_and_need_the_socket_of_workers() -> None:
    text = LEAST + 'targets = "targets.toml"\n'
    assert parse(text.encode(), PATH).targets == "/etc/raftcron/targets.toml"
    assert parse(LEAST.encode(), PATH).targets == ""
    with pytest.raises(BadConfig, match="targets need the socket of workers") as caught:
        parse((text + "workers = false\n").encode(), PATH)
    assert "workers = false" in caught.value.hint


def test_an_absolute_directory_stays() -> None:
    assert parse(LEAST.replace('"data"', '"/var/x"').encode(), PATH).data == "/var/x"


def test_an_executor_may_be_told_what_its_host_is_called() -> None:
    assert parse(LEAST.encode(), PATH).host == ""
    assert parse((LEAST + 'host = "node-7.example"\n').encode(), PATH).host == "node-7.example"
    with pytest.raises(BadConfig):
        parse((LEAST + 'host = "a b"\n').encode(), PATH)


def test_the_example_is_right() -> None:
    example = Path(__file__).resolve().parents[2] / "examples/executor.toml"
    assert load(example).id == "executor-1"


def test_the_example_shows_how_to_leave_this_host() -> None:
    example = Path(__file__).resolve().parents[2] / "examples/executor.toml"
    shown = re.sub(r"(?m)^# (?=\[tls\]|(ca|cert|key) =)", "", example.read_text())
    tls = parse(shown.encode(), PATH).tls
    assert tls == TlsFiles(*(f"/etc/raftcron/tls/{one}.pem" for one in ("ca", "cert", "key")))


@pytest.mark.parametrize("address", ["10.0.0.5:7400", "r1.example.org:7400", "[2001:db8::1]:7400"])
def test_with_certificates_the_leader_may_be_anywhere(address: str) -> None:
    config = parse((LEAST.replace("127.0.0.1:7400", address) + TLS).encode(), PATH)
    assert config.leaders == (address,)
    assert config.tls == TlsFiles(
        "/etc/raftcron/tls/ca.pem", "/etc/raftcron/tls/cert.pem", "/etc/key.pem"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LEAST + "slot = 4\n", "slot: not a known key"),
        (LEAST + "slots = 0\n", r"\$.slots"),
        (LEAST + "worker_buffer = -1\n", r"\$.worker_buffer"),
        (LEAST + f"worker_buffer = {GROUP_SLOTS_MAX + 1}\n", r"\$.worker_buffer"),
        (LEAST + 'workers_group = "a b"\n', r"\$.workers_group"),
        (LEAST + 'workers = "yes"\n', r"\$.workers"),
        (LEAST + "cpu_milli = -1\n", r"\$.cpu_milli"),
        (LEAST + 'cgroup = "launches"\n', r"\$.cgroup"),
        (LEAST + f"memory_bytes = {MEMORY_BYTES_MAX + 1}\n", r"\$.memory_bytes"),
        (LEAST + f"slots = {SLOTS_MAX + 1}\n", r"\$.slots"),
        (LEAST + 'slots = "many"\n', r"\$.slots"),
        (LEAST + 'start = "thread"\n', r"\$.start"),
        (LEAST + f"output_bytes_max = {OUTPUT_BYTES_MAX_MIN - 1}\n", "output_bytes_max"),
        (LEAST + "reconnect_ms_min = 300\n", "reconnect_ms_max 250 is below"),
        (LEAST + "stop_grace_ms = 3001\n", r"\$.stop_grace_ms"),
        (LEAST.replace("e1", "no/slash"), r"\$.id"),
        (LEAST.replace('"e1"', '""'), r"\$.id"),
        (LEAST.replace('"data"', '""'), "data names no directory"),
        (LEAST.replace('id = "e1"\n', ""), "missing required field `id`"),
        (LEAST.replace("127.0.0.1:7400", "127.0.0.1"), r"leaders\[0\].*is not an address"),
        (LEAST.replace("127.0.0.1:7400", "127.0.0.1:70000"), "is not an address"),
        (LEAST.replace("127.0.0.1:7400", "10.0.0.5:7400"), "not on this host.*no .tls"),
        (LEAST.replace("127.0.0.1:7400", "cron.example.org:7400"), "not on this host"),
        (LEAST.replace("127.0.0.1:7400", "unix:/tmp/a:7400"), "is not an address"),
        (LEAST + '[tls]\nca = "ca.pem"\ncert = "cert.pem"\n', "missing required field `key`"),
        (LEAST.replace("127.0.0.1:7400", "a b:1") + TLS, "is not an address"),
        (LEAST.replace('["127.0.0.1:7400"]', "[]"), r"\$.leaders"),
        (LEAST + '[labels]\n"a b" = "x"\n', "labels"),
        (LEAST + '[labels]\na = "x\\u0007"\n', "label a .* is not printable"),
        (LEAST + f'[labels]\na = "{"x" * (LABEL_CHARS_MAX + 1)}"\n', "labels"),
        (LEAST + "[labels]\n" + "".join(f'a{n} = "x"\n' for n in range(65)), "labels"),
        ("id = ", "is not TOML"),
        ("slots = " + "9" * 5_000, "is not TOML: Exceeds the limit"),
        ("labels = " + "[" * 5_000, "is nested too deeply"),
    ],
)
def test_every_mistake_is_named_with_file_and_way_out(text: str, message: str) -> None:
    with pytest.raises(BadConfig, match=message) as caught:
        parse(text.encode(), PATH)
    assert str(caught.value).startswith(f"{PATH}: ")
    assert caught.value.hint


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(BadConfig, match="byte 5 is not UTF-8"):
        parse(b'id = \xff"e1"\n', PATH)


def test_a_file_that_is_not_there_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="cannot be read: No such file"):
        load(tmp_path / "executor.toml")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (CONFIG_BYTES_MAX + 1))
    with pytest.raises(BadConfig, match="larger than"):
        load(large)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("192.168.1.1", False),
        ("example.org", False),
    ],
)
def test_only_this_host_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_rules_of_workers_say_whose_they_are_and_what_they_grant() -> None:
    digest = "ab" * 32
    text = LEAST + '[[worker]]\ngroup = "mail"\nhandlers = ["mail*"]\n[[worker]]\n'
    text += f'token_sha256 = "{digest}"\nhandlers = ["pay", "page.*"]\n'
    first, second = parse(text.encode(), PATH).worker
    assert (first.group, first.handlers) == ("mail", ("mail*",))
    assert (second.token_sha256, second.handlers) == (digest, ("pay", "page.*"))


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ('handlers = ["mail"]', r"`\$.worker\[0\]` does not say whose it is"),
        ('group = "mail"', "missing required field `handlers`"),
        ('group = "mail"\nhandlers = []', "length >= 1"),
        ('group = "ma il"\nhandlers = ["a"]', "group"),
        ('token_sha256 = "abc"\nhandlers = ["a"]', "token_sha256"),
        ('token = "abc"\nhandlers = ["a"]', "worker.token: not a known key"),
    ],
)
def test_rules_of_workers_that_are_none_are_refused(rule: str, error: str) -> None:
    with pytest.raises(BadConfig, match=error):
        parse((LEAST + f"[[worker]]\n{rule}\n").encode(), PATH)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("slot = 4\n", "slot: not a known key", "the nearest known key is slots"),
        ("[lables]\nrack = 'a'\n", "lables: not a known key", "the nearest known key is labels"),
        ("cert = 'a'\n", "cert: not a known key", "cert belongs to the table [tls]"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(
    text: str, said: str, hint: str
) -> None:
    with pytest.raises(BadConfig, match=said) as refused:
        parse((LEAST + text).encode(), Path("e1.toml"))
    assert refused.value.hint == hint


def test_secrets_are_in_a_directory_beside_the_configuration_or_come_from_a_command() -> None:
    config = parse((LEAST + 'secrets = "secrets"\n').encode(), PATH)
    assert (config.secrets, config.secret_command) == ("/etc/raftcron/secrets", ())
    config = parse((LEAST + 'secret_command = ["/bin/vault", "read"]\n').encode(), PATH)
    assert (config.secrets, config.secret_command) == ("", ("/bin/vault", "read"))
    both = LEAST + 'secrets = "/s"\nsecret_command = ["/bin/vault"]\n'
    with pytest.raises(BadConfig, match="both say where secrets are"):
        parse(both.encode(), PATH)
    with pytest.raises(BadConfig, match="'vault' is not an absolute path"):
        parse((LEAST + 'secret_command = ["vault"]\n').encode(), PATH)
