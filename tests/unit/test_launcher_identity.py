from __future__ import annotations

import pytest

from launcher.identity import Identity, only_identity, parse_identity


def test_an_identity_is_read_as_it_is_written() -> None:
    identity = Identity("prod", "replica", "r1")
    assert identity.uri == "raftcron://prod/replica/r1"
    assert parse_identity(identity.uri) == identity
    assert str(identity) == "replica r1 of cell prod"


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "raftcron://prod/replica",
        "raftcron://prod/replica/r1/x",
        "raftcron://prod/replica/",
        "raftcron:///replica/r1",
        "raftcron://prod/admin/r1",
        "raftcron://prod/replica/../r1",
        "raftcron://prod/replica/r 1",
        "raftcron://prod/replica/r1?x",
        "RAFTCRON://prod/replica/r1",
        "https://prod/replica/r1",
        "prod/replica/r1",
    ],
)
def test_what_states_nobody_is_nobody(uri: str) -> None:
    assert parse_identity(uri) is None


def test_among_other_names_there_is_one_identity() -> None:
    r1, r2 = "raftcron://prod/replica/r1", "raftcron://prod/replica/r2"
    assert only_identity(["replica.raftcron", r1, "https://x/"]) == parse_identity(r1)
    assert only_identity([]) is None
    assert only_identity(["replica.raftcron"]) is None
    assert only_identity([r1, r2]) is None
    assert only_identity([r1, "raftcron://nonsense"]) is None
