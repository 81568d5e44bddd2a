"""What a restore changes in State: field by field, so that a new one waits for a decision."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consensus.leadership import Position
from cron.limits import LIFE_ENTRIES
from cron.state import commands as c
from cron.state.archive import Backup, History, SegmentRecord
from cron.state.imaging import encode_state
from cron.state.machine import Machine
from cron.state.outcome import Verdict
from cron.state.pool import Gate, GateAction, OpenedGate
from cron.state.state import Reset, Restored, State
from cron.storage.new_generation import NewGeneration, begin_generation, first_index
from launcher.protocol.work import Epoch
from tests.unit.restore_rig import copy_of, rich
from tests.unit.state_rig import T0, StateRig, executors_of

UNTOUCHED = {
    "format", "job_numbers", "forgotten_s", "revisions", "opened", "resets",
    "digest", "at_ms", "leader_terms", "tzdata", "catalog", "jobs", "by_number", "due", "active",
    "executors", "by_ledger", "executor_numbers", "requests", "lost", "lost_at",
    "limits", "gates", "gate_numbers", "dead", "budgets", "access",
    "task_numbers", "tasks", "tasks_by_number", "queues", "queues_revision", "groups", "holds",
    "alerts", "calendars", "order_key", "marks",
    "own", "unpaid",
}  # fmt: skip
CHANGED = {"term", "index", "epoch", "staged", "history", "restored"}
NOT_KEPT = {
    "imagings",
    "delays_s",
    "limited",
    "piles",
    "doubtful",
    "running",
    "over_jobs",
    "lost_tasks",
    "spilled",
    "followers",
    "unfollowed",
    "_follows",
    "pausing",
    "failing",
    "measured",
    "earlier_bytes",
    "earlier_order",
    "earlier_peak",
}
HISTORY_UNTOUCHED = {"seals", "sealed_to", "opened_at_ms", "taken", "spills", "spilled"}
HISTORY_CHANGED = {"segments", "backup", "retired"}
TAIL = ("content", "rows", "first_s", "last_s", "last_index")
RECORD_CHANGED = {"is_local", "is_stored"}

HERE = "memory://test"
LIFE = NewGeneration(2, 1_000, "ada", HERE, "drawn")


def record(number: int = 1, stream: int = 0, **fields: Any) -> SegmentRecord:
    made = SegmentRecord(1, number, stream, 0, 9, 1, 1, bytes(16), 1, 2, 3)
    return msgspec.structs.replace(made, **fields)


def with_records(*records: SegmentRecord, store: str = HERE) -> State:
    state = State()
    state.history.segments = {one.key: one for one in records}
    state.history.backup = Backup(store, 1, 1, 7, 8, 9, "first") if store else Backup()
    return state


def begun(state: State, **fields: Any) -> History:
    begin_generation(state, msgspec.structs.replace(LIFE, **fields))
    return state.history


def test_every_field_of_state_was_thought_of() -> None:
    """Whoever adds one decides here what a restored cell does with it."""
    assert set(State.__struct_fields__) | vars(State()).keys() == UNTOUCHED | CHANGED | NOT_KEPT


def test_every_field_of_history_was_thought_of() -> None:
    assert set(History.__struct_fields__) == HISTORY_UNTOUCHED | HISTORY_CHANGED | {"tails"}


def test_what_is_not_listed_is_untouched() -> None:
    state = copy_of(rich().state)
    before = copy_of(state)
    for one in (state, before):
        one.forgotten_s = 9  # no job of that rich life was forgotten
        one.opened.append(OpenedGate(Gate(1, GateAction.PAUSE, "why", "anna", 5), 9))
        one.resets.append(Reset(9, 8, 7, "anna"))
        one.own[1] = one.by_number[1]  # nobody was told anything
        one.unpaid["default"] = [(9, (1, T0, 0))]  # there was a budget for each retry
    for name in UNTOUCHED | CHANGED - {"restored"}:
        assert getattr(state, name), f"{name} is empty: it would prove nothing"
    begin_generation(state, LIFE)
    for name in UNTOUCHED:
        if name not in ("executors", "by_ledger"):
            assert getattr(state, name) == getattr(before, name), name
    assert executors_of(state) == executors_of(before)
    for name in HISTORY_UNTOUCHED:
        assert getattr(state.history, name) == getattr(before.history, name) != 0, name
    for ours, theirs in zip(state.history.tails, before.history.tails, strict=True):
        assert ours.rows > 0
        assert [getattr(ours, name) for name in TAIL] == [getattr(theirs, name) for name in TAIL]


def test_what_is_listed_becomes_that_of_the_new_life() -> None:
    state = copy_of(rich().state)
    index, at_ms, term = state.index, state.at_ms, state.term
    position = begin_generation(state, LIFE)
    assert state.restored == Restored(2, index, at_ms, 1_000, "ada")
    assert state.is_resolving
    assert (state.term, state.index) == (term, LIFE_ENTRIES)
    assert position == Position(state.term, state.index)
    assert state.epoch == Epoch(2, 0, "")
    assert state.staged == {}


def test_a_life_after_a_life_names_the_one_it_was_restored_from() -> None:
    state = copy_of(rich().state)
    begin_generation(state, LIFE)
    state.index += 5
    assert state.restored is not None
    state.restored = msgspec.structs.replace(state.restored, resolved_at_ms=1)
    begin_generation(
        state, msgspec.structs.replace(LIFE, generation=3, by="bob", restored_ms=2_000)
    )
    assert state.restored == Restored(3, LIFE_ENTRIES + 5, state.at_ms, 2_000, "bob")
    assert state.index == 2 * LIFE_ENTRIES


@example(index=LIFE_ENTRIES - 1, generation=2)
@example(index=LIFE_ENTRIES, generation=2)
@example(index=5 * LIFE_ENTRIES, generation=3)
@given(index=st.integers(0, 5 * LIFE_ENTRIES), generation=st.integers(2, 9))
def test_a_life_begins_behind_all_of_those_before(index: int, generation: int) -> None:
    begins = first_index(index, generation)
    assert begins > index
    assert begins >= (generation - 1) * LIFE_ENTRIES
    if index < (generation - 1) * LIFE_ENTRIES:
        assert begins == (generation - 1) * LIFE_ENTRIES, "the same wherever the snapshot was"


@given(
    generation=st.integers(1, 5), newer=st.integers(1, 4), term=st.integers(0, 9),
    index=st.integers(0, 4 * LIFE_ENTRIES), replica=st.sampled_from(["", "r1", "r3"]),
)  # fmt: skip
def test_its_epoch_is_above_all_of_the_old_life_and_below_every_claim_of_the_new(
    generation: int, newer: int, term: int, index: int, replica: str
) -> None:
    state = State()
    state.term, state.index, state.epoch = term, index, Epoch(generation, term, replica)
    old = Epoch(generation, 10**9, "zzz")
    position = begin_generation(state, msgspec.structs.replace(LIFE, generation=generation + newer))
    assert old < state.epoch < Epoch(generation + newer, 1, "a")
    assert position.index > index
    assert position.term >= max(term, 1), "a state is at a position that elections can follow"


def test_who_led_the_old_life_is_refused_and_who_leads_the_new_one_is_not() -> None:
    rig = rich()
    state = copy_of(rig.state)
    position = begin_generation(state, LIFE)
    again = StateRig(is_claimed=False)
    again.machine = Machine(state)
    again.base, again.at_ms = position.index, rig.at_ms
    before = encode_state(state)
    assert again.append(c.Seal(9)).verdict is Verdict.STALE_EPOCH
    assert again.append(c.Claim("2026b", "9")).verdict is Verdict.STALE_EPOCH
    assert before != encode_state(state), "place and digest move"
    again.epoch = Epoch(2, position.term + 1, "r1")
    assert again.append(c.Claim("2026b", "9")).verdict is Verdict.ACCEPTED
    assert state.epoch == again.epoch
    assert again.trigger("request-2").verdict is Verdict.RESOLVING


def test_the_image_of_a_life_is_a_function_of_snapshot_and_choice() -> None:
    """Two tools that restore the same make the same."""
    one, two = copy_of(rich().state), copy_of(rich().state)
    assert begin_generation(one, LIFE) == begin_generation(two, LIFE)
    assert encode_state(one) == encode_state(two)
    assert copy_of(one).restored == one.restored


# --- history

FLAGS = st.tuples(st.booleans(), st.booleans())
PLACES = st.sampled_from(["lost", "stored", "nowhere"])


@given(
    flags=st.lists(st.tuples(FLAGS, PLACES), max_size=8),
    store=st.sampled_from(["", HERE, "memory://other"]),
    before=st.sampled_from(["", HERE]),
    retired=st.integers(0, 9),
)
def test_the_catalog_says_of_each_segment_where_it_is(
    flags: list[tuple[tuple[bool, bool], str]], store: str, before: str, retired: int
) -> None:
    records = [
        record(number, number % 2, is_local=local, is_stored=stored)
        for number, ((local, stored), _) in enumerate(flags, 1)
    ]
    state = with_records(*records, store=before)
    state.history.retired = retired
    where = {one.key: place for one, (_, place) in zip(records, flags, strict=True)}
    lost = frozenset(key for key, place in where.items() if place == "lost")
    stored = frozenset(key for key, place in where.items() if place == "stored")
    history = begun(state, store=store, stored=stored, lost=lost)
    assert list(history.segments) == [key for key in where if key not in lost], "in log order"
    for one in records:
        if one.key in lost:
            continue
        now = history.segments[one.key]
        assert now.is_stored == (bool(store) and one.key in stored)
        assert now.is_stored or now.is_local, "it is somewhere"
        assert now.is_local or not one.is_local, "what was on the disks is on the disks"
        if now.is_stored:
            assert now.is_local == one.is_local
        same = msgspec.structs.asdict(one).items() - {
            (name, getattr(one, name)) for name in RECORD_CHANGED
        }
        assert same <= msgspec.structs.asdict(now).items()
    assert history.retired == max([retired, *(key[1] for key in lost)])


def test_what_is_lost_and_was_never_there_is_no_matter() -> None:
    history = begun(with_records(record(1)), lost=frozenset({(1, 99, 0)}))
    assert list(history.segments) == [(1, 1, 0)]
    assert history.retired == 0


def test_half_of_a_seal_may_be_lost() -> None:
    records = record(3, 0), record(3, 1)
    history = begun(with_records(*records), lost=frozenset({(1, 3, 1)}), stored={(1, 3, 0)})
    assert list(history.segments) == [(1, 3, 0)]
    assert history.retired == 3, "an audit must not take the gap for damage"


@pytest.mark.parametrize(
    ("before", "store", "expected"),
    [
        (HERE, HERE, Backup(HERE, 1, 1, 7, 8, 9, "drawn")),
        (HERE, "memory://other", Backup("memory://other", claim="drawn")),
        (HERE, "", Backup()),
        ("", HERE, Backup(HERE, claim="drawn")),
        ("", "", Backup()),
    ],
)
def test_the_backup_is_that_of_the_store_and_its_claim_that_of_the_life(
    before: str, store: str, expected: Backup
) -> None:
    assert begun(with_records(store=before), store=store).backup == expected


@pytest.mark.parametrize("before", [HERE, "memory://other", ""])
def test_the_newest_stored_snapshot_is_the_one_that_is_restored(before: str) -> None:
    """The snapshot itself knows only of those before it."""
    life = begun(with_records(store=before), store=HERE, snapshot=(1, 3, 50, 60))
    assert life.backup == Backup(HERE, 1, 3, 50, 60, LIFE.restored_ms, "drawn")
