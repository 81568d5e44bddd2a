"""What the fuzzers begin with is good where it should be, and no target lets any bytes do anything.

`make fuzz` goes on from here by coverage, for a minute each.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import subject
from tests.fuzz.__main__ import FUZZERS, subject_of
from tests.fuzz.subject import Finding, Subject, check_same

SUBJECTS = {name: one for name in FUZZERS if (one := subject_of(name)) is not None}
TARGETS = [(name, place) for name, one in SUBJECTS.items() for place in range(len(one.names))]


FOUND = {
    "headers that go on before they began": (
        "http",
        "AgkAAAAEAAEAAAAAAAAJBAAAAAEABzpzdGF0dXMDMjAwAAAHAAAAAAABAAAAAAJvawANAQQAAAABAAc6c3RhdAMw"
        "MjAAAAcAAAAAAAEAAAAAAmdycGMtc3RhdHVzATA=",
    ),
    "nothing, which h11 takes for an end that uvicorn waits for": ("http", "TA=="),
    "a table of sections that is none": ("files", "AxQAACN5FW9Acndz"),
    "rows of an older journal that are of another type": (
        "ledger",
        "AiwAk5MAqmV1ZXR4Y29yLTGkYm9vdJIBkwABonIxkwORqWRlZmF1bHQvYZHEAWQdAJKaBAemMC4xLnIxkpEAApEB"
        "BZCQkMQBAZMIBZEBAUEAlJMAqmV4ZWN1dG9ALTHZJDRmYjkzZWYzLWEzNzktNGRhNi04MGY1LTFhNWUxNzM3ZDlk"
        "M5IBkwCSAAKgAJMJkJB5AJaTA5KuZGVmYXVsdC9iYWNrdXCpAMQAkwucAAmmMC4xLnIxkgABkc5rAGBwkgECkgMA"
        "kA==",
    ),
    "a row in a state that there is not": (
        "ledger",
        "AUEAlJMAqmV4ZWN1dG9yLTHZJDRmYjkzZWYzLWEzNzktNGRhNi04MGY1LTFhNWUxNzM3ZDlkM5IBkwAAoJICAJMJ"
        "kJB5AJaTA5KuZGVmYXVsdC9iYWNrdXCpc2hvcC9tYWlsksQAxACTC5wAGaYwLjEucjGSAAGRzmsAYHCSAQKSAAGQ"
        "kgACkJDCxAEwkwUJkQCSCpGfCQMAAJEAkJHPAAABofl4tYCQpGZpbmWQkJDDkJCTCAmRAJMJkZIHRpA=",
    ),
    "items of a segment that has fewer rows": ("state", "YwCUAWZh12VskYMBAGM="),
    "a place far behind the rows of a segment": (
        "state",
        "pwPjAP///////wUAAAD/If+UAAAAAAAAAAAAAWZh12VskYMAYQ==",
    ),
    "a setting of a timer that was taken back": (
        "imports",
        "A1tUaW1lcl0KT25DYWxlbmRhcj1kYWlseQpQZXJzaXN0ZW50PQo=",
    ),
    "launches in a year with five digits": (
        "pool",
        "BgoGEAEaAnIxMAFCNxIOZGVmYXVsdC9iYWNrdXAaJdwAEZOnL2Jpbi9zaKItY6R0cnVlkKCgoADCoMQAAAAABZCg"
        "kJBKIAgkEgEAGgEAKgXggYOwDSIGgNbFl79oMgEBOgEAQgEBQisICRABGiVkZWZhdWx0L2JhY2t1cEAyMDI2LTEx"
        "LTIwVDE1WiMyWgQQAxgJYgUICRIBAA==",
    ),
}
"""What the fuzzers found, each once: an exception of no parser, a hang, or gigabytes of memory."""


def ids() -> Iterator[str]:
    return (f"{name}-{SUBJECTS[name].names[place]}" for name, place in TARGETS)


def seeds_of(name: str, place: int) -> list[bytes]:
    one = SUBJECTS[name]
    return list(one.seeds[one.names[place]])


@pytest.mark.parametrize("name", SUBJECTS)
def test_each_target_of_a_fuzzer_takes_good_bytes(name: str) -> None:
    for place, target in enumerate(SUBJECTS[name].names):
        good = [SUBJECTS[name].feed(bytes([place]) + seed) for seed in seeds_of(name, place)]
        assert any(good), f"{target} would only see what is refused at once"


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_is_mended(what: str) -> None:
    name, content = FOUND[what]
    SUBJECTS[name].feed(base64.b64decode(content))


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "place"), TARGETS, ids=ids())
def test_no_target_lets_any_bytes_do_anything(name: str, place: int) -> None:
    seeds = seeds_of(name, place)

    @settings(max_examples=15, suppress_health_check=list(HealthCheck), deadline=None)
    @given(st.data())
    def feed(data: st.DataObject) -> None:
        seed = data.draw(st.sampled_from([b"", *seeds]))
        at = data.draw(st.integers(0, len(seed)))
        end = data.draw(st.integers(at, len(seed)))
        put = data.draw(st.binary(max_size=20))
        SUBJECTS[name].feed(bytes([place]) + seed[:at] + put + seed[end:])

    feed()


def test_a_fuzzer_notices_what_must_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def fall_over(content: bytes) -> bool:
        raise RecursionError("deep")

    def idle(content: bytes) -> bool:
        return bool(content)

    one = Subject((fall_over, idle), {"fall_over": [b""], "idle": [b"x"]})
    with pytest.raises(RecursionError):
        one.feed(b"\0x")
    assert one.feed(b"\1x")
    assert not one.feed(b"")
    with pytest.raises(Finding, match="a name does not come back"):
        check_same("a", "b", "a name")
    monkeypatch.setattr(subject, "CPU_S_MAX", -1.0)
    with pytest.raises(Finding, match=r"idle: 0\.0 s for 2 bytes"):
        one.feed(b"\1x")
    monkeypatch.setattr(subject, "CPU_S_MAX", 60.0)
    monkeypatch.setattr(subject, "MEMORY_BYTES_MAX", -1)
    with pytest.raises(Finding, match="idle: 0 MiB for 2 bytes"):
        one.feed(b"\1x")
