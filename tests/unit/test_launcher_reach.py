"""launcher.reach: whose certificate is wrong, told before anything is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.reach import Unreached, reach
from launcher.tls import Credentials
from tests.unit.api_rig import FakeBackend, closed_address, in_thread, mute, serving, stranger
from tests.unit.certs_rig import CELL, EXECUTOR, PERSON, REPLICA, Certs
from tests.unit.tls_rig import secured


@pytest.fixture
def certs(tmp_path: Path) -> Certs:
    return Certs(tmp_path)


async def refusal(server: str, credentials: Credentials | None) -> Unreached:
    with pytest.raises(Unreached) as caught:
        await in_thread(reach, server, 60_000, credentials)
    return caught.value


@pytest.mark.parametrize("who", [REPLICA, EXECUTOR, PERSON])
async def test_every_certificate_of_the_cell_reaches_a_replica(
    certs: Certs, who: tuple[str, str]
) -> None:
    async with secured(certs, FakeBackend()) as server:
        await in_thread(reach, server, 60_000, certs.credentials(*who))


async def test_a_replica_without_tls_is_reached_without(certs: Certs) -> None:
    async with serving(FakeBackend()) as server:
        await in_thread(reach, server, 60_000)
        error = await refusal(server, certs.credentials(*PERSON))
    assert (str(error), error.is_distrust) == ("it does not speak TLS", True)
    assert "[tls]" in error.hint


async def test_who_has_no_certificate_is_told_to_get_one(certs: Certs) -> None:
    async with secured(certs, FakeBackend()) as server:
        error = await refusal(server, None)
    assert (str(error), error.is_distrust) == ("it wants a certificate", True)
    assert "--tls DIR" in error.hint
    assert "[tls]" in error.hint


async def test_a_certificate_that_the_replica_does_not_take_is_named(certs: Certs) -> None:
    # Ours verifies the replica, and states an identity, but another authority signed it.
    strange = certs.unchecked(*PERSON, authority="other")
    expired = certs.unchecked(*PERSON, begins_days=-11)
    async with secured(certs, FakeBackend()) as server:
        for credentials in (strange, expired):
            error = await refusal(server, credentials)
            assert str(error).startswith("it does not accept the certificate of ")
            assert credentials.files.cert in error.hint
            assert error.is_distrust


async def test_a_replica_of_another_authority_is_not_believed(certs: Certs) -> None:
    ours = certs.credentials(*PERSON)
    theirs = certs.credentials(*REPLICA, authority="other")
    async with secured(certs, FakeBackend(), credentials=theirs) as server:
        error = await refusal(server, ours)
    assert (str(error), error.is_distrust) == ("its certificate is of another authority", True)
    assert ours.files.ca in error.hint


@pytest.mark.parametrize(
    ("who", "begins_days", "what"),
    [
        (REPLICA, -11, "has expired"),
        (REPLICA, 2, "is not valid yet: a clock is wrong"),
        (PERSON, 0, "is not for this purpose"),
        (EXECUTOR, 0, "is not for this purpose"),
    ],
)
async def test_only_a_replica_whose_certificate_is_good_is_believed(
    certs: Certs, who: tuple[str, str], begins_days: int, what: str
) -> None:
    theirs = certs.unchecked(*who, begins_days=begins_days)
    async with secured(certs, FakeBackend(), credentials=theirs) as server:
        error = await refusal(server, certs.credentials(*PERSON))
    assert (str(error), error.is_distrust) == (f"its certificate {what}", True)


async def test_who_is_not_there_is_no_matter_of_trust(certs: Certs) -> None:
    for credentials in (None, certs.credentials(*PERSON)):
        error = await refusal(closed_address(), credentials)
        assert (str(error), error.is_distrust) == ("connection refused", False)
        with stranger(b"") as address:
            error = await refusal(address, credentials)
        assert str(error) in ("connection closed", "connection reset by peer")
        assert not error.is_distrust


async def test_who_says_nothing_is_not_waited_for(certs: Certs) -> None:
    with mute() as address:
        for credentials in (None, certs.credentials(*PERSON)):
            with pytest.raises(Unreached, match="no answer"):
                await in_thread(reach, address, 200, credentials)


async def test_who_speaks_something_else_is_no_replica(certs: Certs) -> None:
    with stranger(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n") as address:
        assert str(await refusal(address, None)) == "not a replica"
        assert str(await refusal(address, certs.credentials(*PERSON))) == "it does not speak TLS"


async def test_another_cells_replica_of_the_same_authority_is_reached(certs: Certs) -> None:
    # The cell is the callee's to judge: it sees the whole certificate, and says so in words.
    async with secured(certs, FakeBackend(), cell="munich") as server:
        await in_thread(reach, server, 60_000, certs.credentials(*PERSON, cell=CELL))


async def test_a_renewed_certificate_is_shown_to_the_next_caller(certs: Certs) -> None:
    shown = [certs.unchecked(*REPLICA, begins_days=-11)]
    ours = certs.credentials(*PERSON)
    async with secured(certs, FakeBackend(), credentials=lambda: shown[0]) as server:
        assert str(await refusal(server, ours)) == "its certificate has expired"
        shown[0] = certs.credentials(*REPLICA)
        await in_thread(reach, server, 60_000, ours)
