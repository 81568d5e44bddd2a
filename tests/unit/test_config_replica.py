"""cron.config: what a replica's TOML file may say, and how it is told what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cron.config import (
    ElectionConfig,
    LeaseConfig,
    LimitsConfig,
    load_replica_config,
    parse_address,
    parse_replica_config,
)
from cron.errors import ConfigError
from launcher.tls import TlsFiles

PEERS = """
[peers]
r1 = { client = "127.0.0.1:7400", raft = "127.0.0.1:7410" }
r2 = { client = "127.0.0.1:7401", raft = "127.0.0.1:7411" }
r3 = { client = "127.0.0.1:7402", raft = "127.0.0.1:7412" }
"""
HEAD = 'id = "r1"\ndata = "d"\n'


def refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_replica_config(text, "r1.toml")
    assert str(caught.value).startswith("r1.toml: ")
    assert caught.value.hint, "every error names the way out"
    return caught.value


def test_the_example_is_a_complete_configuration() -> None:
    config = load_replica_config("examples/replica.toml")
    assert (config.id, config.cell, config.zone) == ("r1", "default", "UTC")
    assert config.data == str(Path("examples/data/r1").absolute())
    assert list(config.peers) == ["r1", "r2", "r3"]
    assert config.lease == LeaseConfig()
    assert config.limits == LimitsConfig()


def test_the_example_shows_how_to_leave_loopback() -> None:
    text = Path("examples/replica.toml").read_text()
    shown = re.sub(r"(?m)^# (?=\[tls\]|(client|raft|ca|cert|key) =)", "", text)
    config = parse_replica_config(shown, "r1.toml")
    assert (config.client, config.raft) == ("0.0.0.0:7400", "0.0.0.0:7410")
    assert config.tls == TlsFiles("tls/ca.pem", "tls/cert.pem", "tls/key.pem")


def test_what_is_left_out_has_a_default() -> None:
    config = parse_replica_config(HEAD + PEERS, "r1.toml")
    assert (config.client, config.raft) == ("127.0.0.1:7400", "127.0.0.1:7410")
    assert config.lease == LeaseConfig(5_000, 20_000, 30_000)
    assert config.election == ElectionConfig(None, None, None)
    assert config.limits.start_window_ms == 5_000


def test_data_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "r1.toml").write_text(HEAD + PEERS)
    assert load_replica_config(tmp_path / "r1.toml").data == str(tmp_path / "d")
    (tmp_path / "r1.toml").write_text('id = "r1"\ndata = "/srv/r1"\n' + PEERS)
    assert load_replica_config(str(tmp_path / "r1.toml")).data == "/srv/r1"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: no such file") as caught:
        load_replica_config(tmp_path / "none.toml")
    assert "--config" in caught.value.hint
    (tmp_path / "latin.toml").write_bytes(b'id = "r\xe9"')
    with pytest.raises(ConfigError, match=r"latin\.toml: byte 7 is not UTF-8"):
        load_replica_config(tmp_path / "latin.toml")


def test_text_that_is_no_toml_is_refused_with_its_line() -> None:
    assert "line 2" in str(refusal("id = 'r1'\ndata\n"))


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ("zon = 'UTC'\n", "zon: not a known key"),
        ("cell = 7\n", "cell: expected `str`"),
        ("zone = 'Europe/Atlantis'\n", "zone: 'Europe/Atlantis'"),
        ("zone = '../etc/passwd'\n", "zone: "),
        ("cell = 'a b'\n", "cell: 'a b'"),
    ],
)
def test_a_wrong_field_is_named(extra: str, field: str) -> None:
    assert field in str(refusal(HEAD + extra + PEERS))


@pytest.mark.parametrize(
    ("tables", "field"),
    [
        ("[lease]\nheartbeat_s = 5\n", "lease.heartbeat_s: not a known key"),
        ("[lease]\nheartbeat_ms = 0\n", "lease.heartbeat_ms: expected `int` >= 1"),
        ("[lease]\nheartbeat_ms = '5s'\n", "lease.heartbeat_ms: expected `int`"),
        ("[lease]\nheartbeat_ms = 10000\n", "lease.heartbeat_ms: 10000 does not fit twice"),
        ("[lease]\nself_kill_ms = 29000\n", "lease.give_up_ms: 30000 is too near"),
        ("[election]\nmin_ms = 100\n", "election.max_ms: missing"),
        ("[election]\nmax_ms = 100\n", "election.min_ms: missing"),
        ("[election]\nmin_ms = 100\nmax_ms = 100\n", "election.max_ms: 100 is below 1.5 times"),
        (
            "[election]\nmin_ms = 100\nmax_ms = 200\nheartbeat_ms = 21\n",
            "election.heartbeat_ms: 21 does not fit five times",
        ),
        ("[limits]\nsnapshot_entries = 9\n", "limits.snapshot_entries: 9 is too few"),
        ("[limits]\nsnapshot_entries = -1\n", "limits.snapshot_entries: expected `int` >= 0"),
    ],
)
def test_times_that_do_not_fit_together_are_refused(tables: str, field: str) -> None:
    assert field in str(refusal(HEAD + PEERS + tables))


@pytest.mark.parametrize(
    ("self_kill_ms", "give_up_ms", "is_fine"),
    [(500, 600, False), (500, 601, True), (20_000, 22_000, False), (20_000, 22_001, True)],
)
def test_old_work_is_dead_before_the_leader_gives_up(
    self_kill_ms: int, give_up_ms: int, is_fine: bool
) -> None:
    lease = f"[lease]\nheartbeat_ms=100\nself_kill_ms={self_kill_ms}\ngive_up_ms={give_up_ms}\n"
    if is_fine:
        assert parse_replica_config(HEAD + PEERS + lease, "f").lease.give_up_ms == give_up_ms
    else:
        assert "lease.give_up_ms" in str(refusal(HEAD + PEERS + lease))


def test_a_missing_field_is_named() -> None:
    assert "missing required field `data`" in str(refusal('id = "r1"\n' + PEERS))


def test_a_cell_has_three_replicas_and_this_is_one_of_them() -> None:
    two = "\n".join(line for line in PEERS.splitlines() if not line.startswith("r3"))
    error = refusal(HEAD + two)
    assert "peers: 2 replicas, not 3 or 5" in str(error)
    assert "`single = true`" in error.hint
    assert "r1 itself is missing" in str(refusal(HEAD + PEERS.replace("r1 =", "r9 =")))


ONE = "\n".join(line for line in PEERS.splitlines() if not line.startswith(("r2", "r3")))


def test_a_cell_of_one_says_that_it_is_one() -> None:
    config = parse_replica_config(HEAD + "single = true\n" + ONE, "f")
    assert config.single
    assert list(config.peers) == ["r1"]
    error = refusal(HEAD + ONE)
    assert "peers: 1 replicas, not 3 or 5" in str(error)
    assert "`single = true`" in error.hint


def test_three_replicas_are_not_single() -> None:
    error = refusal(HEAD + "single = true\n" + PEERS)
    assert "single: true, but peers names 3 replicas" in str(error)
    assert "docs/cell.md" in error.hint


@pytest.mark.parametrize(("count", "is_fine"), [(4, False), (5, True), (6, False)])
def test_a_cell_may_have_five_replicas(count: int, is_fine: bool) -> None:
    more = "".join(
        f'r{n} = {{ client = "127.0.0.1:{7399 + n}", raft = "127.0.0.1:{7499 + n}" }}\n'
        for n in range(1, count + 1)
    )
    if is_fine:
        assert len(parse_replica_config(HEAD + "[peers]\n" + more, "f").peers) == count
    else:
        assert f"peers: {count} replicas" in str(refusal(HEAD + "[peers]\n" + more))


def test_an_address_that_the_peers_do_not_know_is_refused() -> None:
    error = refusal(HEAD + 'client = "127.0.0.1:9"\n' + PEERS)
    assert "client: 127.0.0.1:9, but peers.r1.client is 127.0.0.1:7400" in str(error)


def test_an_address_is_given_once() -> None:
    error = refusal(HEAD + PEERS.replace("7411", "7401"))
    assert "peers.r2.raft: 127.0.0.1:7401 is already peers.r2.client" in str(error)


@pytest.mark.parametrize("address", ["10.0.0.1:7400", "0.0.0.0:7400", "example.org:7400", "[::]:1"])
@pytest.mark.parametrize("field", ["client", "raft"])
def test_without_certificates_only_loopback_is_accepted(address: str, field: str) -> None:
    port = {"client": "7402", "raft": "7412"}[field]
    error = refusal(HEAD + PEERS.replace(f"127.0.0.1:{port}", address))
    assert f"peers.r3.{field}: {address} is not loopback, and there is no [tls]" in str(error)
    assert "raftcron certs init" in error.hint
    own = refusal(HEAD + f'{field} = "{address}"\n' + PEERS)
    assert f"r1.toml: {field}: {address} is not loopback" in str(own)


TLS = '[tls]\nca = "tls/ca.pem"\ncert = "tls/cert.pem"\nkey = "/etc/r1/key.pem"\n'
FAR = """
[peers]
r1 = { client = "r1.example.org:7400", raft = "10.0.0.1:7410" }
r2 = { client = "R2.example.org:7400", raft = "[2001:db8::2]:7410" }
r3 = { client = "r3:7400", raft = "r3:7410" }
"""


def test_with_certificates_replicas_may_be_anywhere() -> None:
    config = parse_replica_config(HEAD + FAR + TLS, "r1.toml")
    assert (config.client, config.raft) == ("r1.example.org:7400", "10.0.0.1:7410")


@pytest.mark.parametrize(
    ("client", "raft"),
    [
        ("0.0.0.0:7400", "0.0.0.0:7410"),
        ("[::]:7400", "[::]:7410"),
        ("192.168.7.1:8400", "172.17.0.2:7410"),
        ("localhost:7400", "127.0.0.1:7410"),
    ],
)
def test_with_certificates_it_listens_where_it_likes(client: str, raft: str) -> None:
    lines = f'client = "{client}"\nraft = "{raft}"\n'
    config = parse_replica_config(HEAD + lines + FAR + TLS, "r1.toml")
    assert (config.client, config.raft) == (client, raft)
    assert config.peers["r1"].raft == "10.0.0.1:7410"


def test_one_host_has_one_port_also_with_certificates() -> None:
    error = refusal(HEAD + 'raft = "10.0.0.1:7411"\n' + FAR + TLS)
    assert "raft: 10.0.0.1:7411, but peers.r1.raft is 10.0.0.1:7410" in str(error)
    error = refusal(HEAD + 'client = "0.0.0.0:1"\nraft = "0.0.0.0:1"\n' + FAR + TLS)
    assert "raft: 0.0.0.0:1 is already client" in str(error)


@pytest.mark.parametrize("address", ["0.0.0.0:7400", "[::]:7400"])
def test_nobody_is_reached_everywhere(address: str) -> None:
    error = refusal(HEAD + FAR.replace("r3:7400", address) + TLS)
    assert f"peers.r3.client: nobody is reached at {address}" in str(error)


@pytest.mark.parametrize("address", ["unix:/tmp/a:1", "a b:1", "[r3]:1", "-r3:1", "r3:\uff17"])
def test_with_certificates_an_address_is_still_one(address: str) -> None:
    assert "is not host:port" in str(refusal(HEAD + FAR.replace("r3:7400", address) + TLS))


def test_the_files_of_tls_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "r1.toml").write_text(HEAD + FAR + TLS)
    tls = load_replica_config(tmp_path / "r1.toml").tls
    assert tls is not None
    assert (tls.ca, tls.key) == (str(tmp_path / "tls/ca.pem"), "/etc/r1/key.pem")


def test_a_file_of_tls_that_is_missing_is_named() -> None:
    assert "tls: object missing required field `key`" in str(
        refusal(HEAD + PEERS + '[tls]\nca = "a"\ncert = "b"\n')
    )


@pytest.mark.parametrize("address", ["7400", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "a:70000"])
def test_an_address_has_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ConfigError, match="is not host:port"):
        parse_address(address, "f: client")


def test_loopback_has_several_names() -> None:
    assert parse_address("localhost:1", "f") == ("127.0.0.1", 1)
    assert parse_address("[::1]:7400", "f") == ("::1", 7400)
    assert parse_address("127.0.0.2:7400", "f") == ("127.0.0.2", 7400)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('http = "127.0.0.1:7400"', r"http: 127\.0\.0\.1:7400 is already client"),
        ('http = "localhost:7410"', r"http: localhost:7410 is already raft"),
        ('http = "10.0.0.1:7480"', r"http: 10\.0\.0\.1:7480 is not loopback"),
        ('http = "0.0.0.0:7480"', r"http: 0\.0\.0\.0:7480 is not loopback"),
        ('http = "7480"', "http: '7480' is not host:port"),
        ("http = 7480", "http: expected `str`"),
    ],
)
def test_an_http_address_has_a_port_of_its_own_on_loopback(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_replica_config(f"{HEAD}{line}\n{PEERS}", "r1.toml")


def test_http_is_served_where_it_is_configured_and_with_tls_anywhere() -> None:
    assert parse_replica_config(HEAD + PEERS, "r1.toml").http == ""
    tls = '[tls]\nca = "a"\ncert = "b"\nkey = "c"\n'
    for address in ("0.0.0.0:7480", "r1.example.com:7480"):
        text = f'{HEAD}http = "{address}"\n{PEERS}{tls}'
        assert parse_replica_config(text, "r1.toml").http == address
    text = f'{HEAD}http = "127.0.0.1:7480"\n{PEERS}'
    assert parse_replica_config(text, "r1.toml").http == "127.0.0.1:7480"


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("zon = 'UTC'\n", "zon: not", "the nearest known key is zone"),
        ("[lease]\ngive_up = 5\n", "lease.give_up: not", "the nearest known key is give_up_ms"),
        ("[object-storage]\n", "object-storage: not", "the nearest known key is object_storage"),
        ("give_up_ms = 5\n", "give_up_ms: not", "give_up_ms belongs to the table [lease]"),
        ("[snapshots]\nkeep_days = 1\n", "snapshots.keep_days: not", "to the table [history]"),
        ("[tls]\nkeyfile = 'k'\n", "tls.keyfile: not", "nearest known key is key"),
        ("[tls]\nxyz = 'k'\n", "tls.xyz: not", "keys of the table [tls] are ca, cert, key"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(
    text: str, said: str, hint: str
) -> None:
    at = text.index("[") if "[" in text else len(text)
    error = refusal(text[:at] + HEAD + PEERS + text[at:])
    assert f"r1.toml: {said} a known key" in str(error)
    assert hint in error.hint


def test_an_unknown_key_of_a_peer_is_named() -> None:
    error = refusal(HEAD + PEERS.replace("raft =", "rafft =", 1))
    assert str(error) == "r1.toml: peers.rafft: not a known key"
    assert error.hint == "the nearest known key is raft"


@pytest.mark.parametrize(
    ("text", "why"),
    [("a = " + "9" * 5_000, "not TOML: exceeds the limit"), ("a = " + "[" * 5_000, "too deeply")],
)
def test_toml_that_python_cannot_read_is_refused(text: str, why: str) -> None:
    assert why in str(refusal(text))
