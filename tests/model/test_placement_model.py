"""Places agrees with a count of everything, whatever comes, goes, is taken and given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cron.job import COMMAND
from cron.scheduler import places as module
from cron.scheduler.places import Capacity, Need, Place, Places
from cron.scheduler.shortage import why_not
from tests.drawn import MODEL_EXAMPLES
from tests.model.naive_places import NaivePlaces
from tests.places import has_room, used, view_of

POOLS = (COMMAND, "a", "b", "c")
WHERES = ("", "zone=eu", "zone!=eu", "disk", "!disk", "zone=eu|us,disk", "zone=mars")
NUMBERS = st.integers(0, 5)
AVOIDED = st.sets(NUMBERS, max_size=3)

# Few, so that each is asked for again and again while its ranking follows what changes.
needs = st.sampled_from(
    (
        Need(),
        Need("a"),
        Need("b"),
        Need("a", "zone=eu"),
        Need("c"),
        Need("c", "zone!=eu,!disk", 400),
        Need("b", "", 0, 3),
        Need(COMMAND, "disk", 1000, 10),
        Need(COMMAND, "", 400),
        Need("c", "zone=eu|us", 1000, 3),
        Need("a", "zone=mars"),
        Need(COMMAND, "", 0, 0, "app"),
        Need(COMMAND, "zone=eu", 0, 0, "www"),
    )
)
# Pools stand in groups that change: so needs come to share rankings, and to part again.
capacities = st.sampled_from(
    (
        (Capacity(3),),
        (Capacity(2, ahead=3), Capacity(4, ("a", "b"))),
        (Capacity(2), Capacity(4, ("a", "b"))),
        (Capacity(2), Capacity(4, ("a", "b")), Capacity(1, ("c",))),
        (Capacity(1, ("a",)), Capacity(5, ("b", "c"))),
        (Capacity(7, ("a", "b", "c", COMMAND)), Capacity(2, ("a",))),
        (),
    )
)
labels = st.fixed_dictionaries(
    {}, optional={"zone": st.sampled_from(("eu", "us")), "disk": st.just("ssd")}
)


class PlacesAgainstNaive(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.places, self.naive = Places(), NaivePlaces()

    @initialize(offers=st.lists(capacities, min_size=2, max_size=5), cpu=st.booleans())
    def begin(self, offers: list[tuple[Capacity, ...]], *, cpu: bool) -> None:
        for number, offer in enumerate(offers):
            self.put(number, 1000 * cpu, 0, labels={"zone": "eu"}, capacities=offer)

    @rule(
        number=NUMBERS,
        labels=labels,
        capacities=capacities,
        cpu_milli=st.sampled_from((0, 1000, 2500)),
        memory_bytes=st.sampled_from((0, 9, 20)),
        users=st.sampled_from((None, None, (), ("app",), ("app", "www"))),
    )
    def put(self, number: int, cpu_milli: int, memory_bytes: int, **offer: object) -> None:
        granted = offer.get("users")
        labels, capacities = offer["labels"], offer["capacities"]
        place = Place(number, labels, capacities, cpu_milli, memory_bytes, granted)
        self.places.put(place)
        self.naive.places[number] = place

    @rule(number=NUMBERS)
    def drop(self, number: int) -> None:
        self.places.drop(number)
        self.naive.places.pop(number, None)

    @rule(number=NUMBERS, need=needs)
    def take(self, number: int, need: Need) -> None:
        # Also where there is no room: a new leader learns what runs, and it runs.
        self.places.take(number, need)
        self.naive.taken.append((number, need))

    @rule(need=needs, avoid=AVOIDED)
    def place(self, need: Need, avoid: set[int]) -> None:
        self.place_one(need, avoid)

    def place_one(self, need: Need, avoid: Collection[int] = ()) -> None:
        number = self.places.choose(need, avoid)
        assert number == self.naive.choose(need, avoid)
        if number is not None:
            self.places.take(number, need)
            self.naive.taken.append((number, need))

    @rule(need=needs, count=st.integers(0, 12))
    def place_many(self, need: Need, count: int) -> None:
        if need.takes_resources:
            return
        expected: Counter[int] = Counter()
        shares = self.places.spread(need, count)
        for _ in range(count):
            number = self.naive.choose(need)
            if number is None:
                break
            expected[number] += 1
            self.naive.taken.append((number, need))
        assert shares == dict(expected)
        for number, share in shares.items():
            self.places.take(number, need, share)

    @rule(draw=st.data())
    def give(self, draw: st.DataObject) -> None:
        if self.naive.taken:
            at = draw.draw(st.integers(0, len(self.naive.taken) - 1))
            self.places.give(*self.naive.taken.pop(at))

    @rule(random=st.randoms(use_true_random=False), few=st.lists(needs, min_size=1, max_size=3))
    def churn(self, random: Random, few: list[Need]) -> None:
        """As it is most of the time: the same needs come and go, and loads rise and fall."""
        for _ in range(30):
            if self.naive.taken and random.random() < 0.5:
                self.places.give(*self.naive.taken.pop(random.randrange(len(self.naive.taken))))
            else:
                self.place_one(random.choice(few))

    @rule(need=needs)
    def fill_up(self, need: Need) -> None:
        """At capacity is where executors are most of the time that matters."""
        while (number := self.places.choose(need)) is not None:
            assert number == self.naive.choose(need)
            self.take(number, need)
        assert self.naive.choose(need) is None

    @rule(need=needs, parts=st.integers(1, 4), avoid=AVOIDED)
    def place_parts(self, need: Need, parts: int, avoid: set[int]) -> None:
        found = self.places.choose_parts(need, parts, avoid)
        assert found == self.naive.choose_parts(need, parts, avoid)

    @rule(need=needs, each=st.sampled_from(WHERES))
    def place_each(self, need: Need, each: str) -> None:
        found = self.places.choose_each(need, each)
        assert found == self.naive.choose_each(need, each)
        if each:
            assert (why_not(self.places, need, each=each) == "") is bool(found)

    @rule(need=needs, number=NUMBERS)
    def ask_of_one(self, need: Need, number: int) -> None:
        place = self.naive.places.get(number)
        expected = place is not None and self.naive.has_room_at(place, need)
        assert has_room(self.places, number, need) is expected

    @rule(need=needs, parts=st.integers(1, 3))
    def ask_why(self, need: Need, parts: int) -> None:
        assert (self.places.choose(need) is not None) is bool(self.naive.ranked(need))
        can_be_placed = self.naive.choose_parts(need, parts) is not None
        assert (why_not(self.places, need, parts) == "") is can_be_placed

    @invariant()
    def what_is_used_is_what_was_taken(self) -> None:
        for number in range(6):
            needs, cpu_milli, memory_bytes = self.naive.used(number)
            view = view_of(self.places, number)
            taken = (view.cpu_milli, view.memory_bytes) if view else (0, 0)
            assert taken == (cpu_milli, memory_bytes)
            assert sum(used(self.places, number).values()) == len(needs)


class PlacesWithSmallBounds(PlacesAgainstNaive):
    """So small that needs are forgotten in these short stories too."""


TestPlacesAgainstNaive = PlacesAgainstNaive.TestCase
TestPlacesWithSmallBounds = PlacesWithSmallBounds.TestCase
TestPlacesAgainstNaive.settings = settings(max_examples=MODEL_EXAMPLES, stateful_step_count=40)
TestPlacesWithSmallBounds.settings = TestPlacesAgainstNaive.settings


@pytest.mark.nightly
class TestPlacesAtLength(TestPlacesAgainstNaive):
    settings = settings(TestPlacesAgainstNaive.settings, max_examples=100)


@pytest.mark.nightly
class TestPlacesWithSmallBoundsAtLength(TestPlacesWithSmallBounds):
    settings = TestPlacesAtLength.settings


@pytest.fixture(autouse=True)
def _bounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.cls and issubclass(request.cls, TestPlacesWithSmallBounds):
        monkeypatch.setattr(module, "FITS_MAX", 3)
