"""What people are told of a launch that finds no executor."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cron.job import COMMAND, WorkSpec
from cron.scheduler.placed import placed_of
from cron.scheduler.places import Capacity, Need, Place, Places
from cron.scheduler.shortage import SEEN_MAX, why_not
from launcher.protocol.reports import Accounts
from tests.unit.state_rig import job

GIB = 1 << 30
BOTH = (Capacity(2), Capacity(1, ("mail", "bill")))


def put(places: Places, number: int, cpu_milli: int = 0, memory: int = 0, **labels: str) -> None:
    name = f"e{number}"
    place = Place.of(number, name, f"h{number}", labels, BOTH, cpu_milli, memory)
    places.put(place)


def three(cpu_milli: int = 0, memory: int = 0) -> Places:
    """e0 and e1 in eu, e2 in us with a disk."""
    places = Places()
    put(places, 0, cpu_milli, memory, zone="eu")
    put(places, 1, cpu_milli, memory, zone="eu")
    put(places, 2, cpu_milli, memory, zone="us", disk="")
    return places


def fill(places: Places, number: int, need: Need, count: int = 1) -> None:
    for _ in range(count):
        places.take(number, need)


def test_nothing_is_said_where_there_is_room() -> None:
    assert why_not(three(), Need(where="zone=eu"), parts=2) == ""
    assert why_not(three(), Need("mail"), each="zone") == ""


def test_nobody_is_connected() -> None:
    assert why_not(Places(), Need()) == "no executor that may get work is connected"


def test_nobody_serves_the_handler() -> None:
    assert why_not(three(), Need("x.y")) == "no executor serves handler x.y"
    places = Places()
    places.put(Place.of(0, "e0", "h0", {}, BOTH[1:]))
    assert why_not(places, Need(COMMAND)) == "no executor runs commands"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            "zone=asia",
            "none of the 3 executors that run commands fits zone=asia (there: zone=eu, zone=us)",
        ),
        (
            "zone=eu,gpu",
            "none of the 3 executors that run commands fits gpu (there is no label gpu)",
        ),
        ("host", ""),
        (
            "!host",
            "none of the 3 executors that run commands fits !host "
            "(there: host=h0, host=h1, host=h2)",
        ),
        (
            "zone=eu,disk",
            "none of the 3 executors that run commands fits all of disk,zone=eu together",
        ),
        (
            "zone=",
            "its where cannot be read: column 6: label zone has no value here; write zone=eu, "
            "or zone alone where any value will do",
        ),
    ],
)
def test_labels_that_nobody_has_are_named_with_those_seen(where: str, message: str) -> None:
    assert why_not(three(), Need(where=where)) == message


def test_of_one_executor_is_spoken_as_of_one() -> None:
    places = Places()
    put(places, 0, 1000)
    one = "not even the only executor that"
    assert (
        why_not(places, Need("mail", "gpu"))
        == f"{one} serves handler mail fits gpu (there is no label gpu)"
    )
    assert (
        why_not(places, Need(cpu_milli=1500))
        == f"it asks for 1.5 CPUs: {one} matches has more than 1 CPU"
    )
    fill(places, 0, Need("mail"))
    assert (
        why_not(places, Need("bill"))
        == "the only executor that matches is full: 1 without a free slot"
    )


def test_only_some_of_many_values_are_named() -> None:
    places = Places()
    for number in range(SEEN_MAX + 3):
        put(places, number)
    message = why_not(places, Need(where="executor=x"))
    assert message.count("executor=e") == SEEN_MAX
    assert message.endswith(" and 3 more)")


def test_nobody_is_large_enough() -> None:
    places = three(2000, 2 * GIB)
    none = "none of the 3 executors that match has"
    assert why_not(places, Need(cpu_milli=4000)) == f"it asks for 4 CPUs: {none} more than 2 CPUs"
    assert (
        why_not(places, Need(memory_bytes=3 * GIB))
        == f"it asks for 3 GiB of memory: {none} more than 2 GiB of memory"
    )
    put(places, 3, 4000, GIB)
    assert why_not(places, Need(cpu_milli=4000, memory_bytes=GIB + (GIB >> 1))) == (
        "it asks for 4 CPUs and 1.5 GiB of memory: none of the 4 executors that match has both"
    )


def test_all_that_match_are_full_each_for_its_reason() -> None:
    places = three(2000, 512 << 20)
    fill(places, 0, Need(), 2)
    fill(places, 1, Need("mail", cpu_milli=1500))
    fill(places, 2, Need("mail", memory_bytes=500 << 20))
    need = Need(cpu_milli=1000, memory_bytes=100 << 20)
    assert why_not(places, need) == (
        "all of the 3 executors that match are full: 1 without a free slot, "
        "1 without enough free cpu, 1 without enough free memory"
    )
    assert why_not(places, Need()) == ""


def test_one_that_is_too_small_for_it_is_counted_as_such() -> None:
    places = Places()
    put(places, 0, 1000)
    put(places, 1, 4000)
    fill(places, 1, Need("mail", cpu_milli=3000))
    assert why_not(places, Need(cpu_milli=2000)) == (
        "all of the 2 executors that match are full: 1 too small for it, 1 without enough free cpu"
    )


def test_parts_need_as_many_executors_at_once() -> None:
    places = three()
    assert why_not(places, Need(), parts=4) == "it runs on 4 executors at once, and only 3 match"
    assert (
        why_not(places, Need(where="disk"), parts=2)
        == "it runs on 2 executors at once, and only 1 matches"
    )
    fill(places, 1, Need(), 2)
    assert why_not(places, Need(), parts=2) == ""
    fill(places, 2, Need(), 2)
    assert why_not(places, Need(), parts=3) == (
        "it runs on 3 executors at once, and 1 of the 3 that match has room: 2 without a free slot"
    )


def test_each_needs_all_of_them() -> None:
    places = three()
    fill(places, 1, Need(), 2)
    assert why_not(places, Need(), each="zone=eu") == (
        "it runs on each of 2 executors at once, and 1 of them has room: 1 without a free slot"
    )
    assert why_not(places, Need(where="disk"), each="zone=eu") == (
        "none of the 3 executors that run commands fits all of disk,zone=eu together"
    )
    assert why_not(places, Need(), each="a=").startswith("its each cannot be read: column 3: ")


def test_secrets_that_no_executor_can_read() -> None:
    need = Need(has_secrets=True)
    assert why_not(three(), need) == (
        "it names secrets: none of the 3 executors that match can read any; "
        "set secrets or secret_command in the configuration of one"
    )
    places = three()
    place = Place.of(3, "e3", "h3", {"zone": "eu"}, BOTH)
    places.put(msgspec.structs.replace(place, knows_secrets=True))
    assert why_not(places, need) == ""
    assert (places.choose(need), places.choose_parts(need, 1)) == (3, [3])
    assert why_not(places, need, parts=2) == (
        "it runs on 2 executors at once, and 1 of the 4 that match has room: 3 without secrets"
    )
    assert places.choose_each(need, "zone=eu") is None
    assert why_not(places, need, each="zone=eu") == (
        "it runs on each of 3 executors at once, and 1 of them has room: 2 without secrets"
    )


@pytest.mark.parametrize(
    ("user", "message"),
    [
        (
            "",
            "none of the 2 executors that match runs commands that name no user: they run as root, "
            "and `users` of their configuration does not list root",
        ),
        (
            "eve",
            "none of the 2 executors that match runs commands as user eve: list the user in `users`"
            " of the configuration of one that runs as root",
        ),
        ("www", ""),
    ],
)
def test_executors_that_refuse_the_user(user: str, message: str) -> None:
    places = Places()
    for number in range(2):
        place = Place.of(number, f"e{number}", "h", {}, BOTH)
        places.put(msgspec.structs.replace(place, accounts=Accounts("", ("www",))))
    assert why_not(places, Need(user=user, has_account=True)) == message
    assert (places.choose(Need(user=user, has_account=True)) is None) == bool(message)
    # Each of the executors, and a handler, are placed whatever their accounts are.
    assert places.choose_each(Need(user=user), "host") == [0, 1]
    assert places.choose(Need("mail")) is not None


def test_a_command_asks_for_its_account_and_a_handler_or_a_launch_on_each_does_not() -> None:
    def needed(**fields: Any) -> bool:
        return placed_of("default/a", job("a", **fields)).wanted.need.has_account

    assert needed()
    assert not needed(each="zone=eu")
    assert not needed(work=WorkSpec((), handler="mail"))


def test_an_executor_of_an_older_release_does_not_say_its_accounts() -> None:
    assert three().choose(Need(has_account=True)) is not None
