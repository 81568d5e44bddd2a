"""What `raftcron logs` is told: from the executor, else from object storage, else why not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cron.api.launches import LaunchView, OutputQuery, OutputView
from cron.errors import Conflict, ExecutorAway, NotNow, Unavailable
from cron.service import outputs as stored_outputs
from cron.service.outputs import BYTES_MAX_MIN, FETCHED_MAX, StoredOutputs
from launcher.executor.commands.output import Output, read
from launcher.pool.errors import TimedOut
from launcher.protocol.names import AttemptName, LaunchName, parse_launch_name
from snapshots.backup_store import BackupStore
from snapshots.format import OutputHeader
from snapshots.layout import output_object
from tests.fakes.memory_store import MemoryStore
from tests.fakes.packed_output import put_output
from tests.unit.outputs_rig import FakeExecutors

AT_MS = 1_795_219_200_000
LAUNCH = "default/backup@2026-11-20T15:00:00Z"
CONTENT = b"printed on the executor\n"


class Rig:
    """A launch that is over, its executor, and a store."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore()
        self.backup_store = BackupStore(self.store, "prod")
        self.folder = folder / "outputs" / "read"
        self.stored = StoredOutputs(self.backup_store, self.folder)
        self.pool = FakeExecutors()
        self.views = [view()]

    def keep(self, content: bytes = CONTENT, dropped: int = 0, attempt: int = 1) -> None:
        """Have the executor keep an output."""
        name = str(AttemptName(parse_launch_name(LAUNCH), attempt))
        self.pool.kept[("e1", name)] = dropped, content

    def put(
        self, content: bytes = CONTENT, dropped: int = 0, attempt: int = 1, launch: str = LAUNCH
    ) -> None:
        """Have the store keep an output."""
        header = OutputHeader("prod", launch, attempt, len(content), dropped)
        put_output(self.backup_store, AT_MS, header, content)

    async def ask(self, query: OutputQuery, *, has_store: bool = True) -> OutputView:
        pool: Any = self.pool
        return await stored_outputs.read_of(
            pool, self.stored if has_store else None, self.views, query
        )

    async def read(self, **asked: object) -> tuple[bytes, str, str]:
        query = OutputQuery(**{"launch": LAUNCH, **asked})  # type: ignore[arg-type]
        found = await self.ask(query)
        return found.content, found.store, found.note


def view(attempt: int = 1, **fields: object) -> LaunchView:
    known = {
        "launch": LAUNCH, "job": "backup", "tenant": "default", "scheduled_s": AT_MS // 1000,
        "attempt": attempt, "state": "succeeded", "executor": "e1", "ended_at_ms": AT_MS,
        "output_bytes": len(CONTENT),
    }  # fmt: skip
    return LaunchView(**{**known, **fields})  # type: ignore[arg-type]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.stored.close()


async def test_a_connected_executor_is_asked_and_the_store_is_not(rig: Rig) -> None:
    rig.keep()
    rig.put(b"of another day")
    rig.store.calls.clear()
    assert await rig.read() == (CONTENT, "", "")
    assert rig.store.calls == []


async def test_the_store_has_it_where_the_executor_is_away(rig: Rig) -> None:
    rig.put()
    rig.pool.connected.clear()
    content, store, note = await rig.read()
    assert (content, store) == (CONTENT, "memory://test")
    assert note == "executor e1, which keeps the output, is not connected"


async def test_the_store_has_it_where_the_executor_has_let_it_go(rig: Rig) -> None:
    rig.put()
    content, store, note = await rig.read()
    assert (content, store) == (CONTENT, "memory://test")
    assert note == "executor e1 does not have the output any more"


@pytest.mark.parametrize("why", ["input/output error", ""])
async def test_the_store_has_it_where_the_executor_does_not_give_it(rig: Rig, why: str) -> None:
    rig.put()
    if why:
        rig.pool.failing["e1"] = why
    else:

        def late(_count: int) -> None:
            raise TimedOut("executor e1 did not give it within 5000 ms")

        rig.keep()
        rig.pool.after_slice = late
    content, store, note = await rig.read()
    assert (content, store) == (CONTENT, "memory://test")
    assert (why or "within 5000 ms") in note


async def test_what_is_nowhere_says_both_reasons(rig: Rig) -> None:
    rig.pool.connected.clear()
    with pytest.raises(ExecutorAway) as error:
        await rig.read()
    assert str(error.value) == (
        "executor e1, which keeps the output, is not connected; and it is not in memory://test"
    )
    assert error.value.hint == "`raftcron status` shows it"


async def test_a_store_that_is_away_is_told_of_with_the_executor(rig: Rig) -> None:
    rig.pool.connected.clear()
    rig.store.away = "connection refused"
    with pytest.raises(Unavailable, match=r"e1, which keeps .* connection refused"):
        await rig.read()
    rig.store.away, rig.store.refused = "", "no permission"
    with pytest.raises(Conflict, match=r"e1, which keeps .* no permission"):
        await rig.read()


async def test_damage_is_told_of_and_not_shown(rig: Rig) -> None:
    rig.put()
    rig.pool.connected.clear()
    name = output_object("prod", AT_MS, LAUNCH, 1)
    rig.store.objects[name] = rig.store.objects[name][:-1]
    with pytest.raises(Conflict, match="checksum does not match") as error:
        await rig.read()
    assert "it is not shown" in error.value.hint


async def test_without_a_store_it_is_as_it_was(rig: Rig) -> None:
    rig.keep()
    query = OutputQuery(launch=LAUNCH)
    assert (await rig.ask(query, has_store=False)).content == CONTENT
    rig.pool.connected.clear()
    with pytest.raises(ExecutorAway, match=r"is not connected$"):
        await rig.ask(query, has_store=False)


async def test_a_running_launch_is_read_from_its_executor_alone(rig: Rig) -> None:
    rig.views = [view(state="launched", is_open=True, ended_at_ms=0, output_bytes=0)]
    assert (await rig.ask(OutputQuery(launch=LAUNCH))).content == b"", "nothing yet"
    rig.pool.connected.clear()
    with pytest.raises(ExecutorAway):
        await rig.read()
    assert rig.store.calls == []


async def test_a_launch_that_wrote_nothing_has_an_empty_output(rig: Rig) -> None:
    rig.views = [view(output_bytes=0)]
    found = await rig.ask(OutputQuery(launch=LAUNCH))
    assert (found.content, found.ended, found.store) == (b"", True, "")


async def test_what_has_not_begun_has_no_output_yet(rig: Rig) -> None:
    due = view(attempt=0, executor="", output_bytes=0, state="due", is_open=True)
    rig.views = [due]
    with pytest.raises(NotNow, match="has not begun, it has no output yet"):
        await rig.read()
    rig.views = [view(1, state="failed"), due]
    with pytest.raises(NotNow, match=r"^attempt 2 of launch .* has not begun"):
        await rig.read(attempt=2)


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        ("skipped", "overlap", f"launch {LAUNCH} was never begun, it has no output: the launch is "
         "skipped (overlap)"),
        ("lost", "restored", f"nobody knows whether launch {LAUNCH} was begun, there is no output: "
         "the launch is lost (restored)"),
    ],
)  # fmt: skip
async def test_what_will_never_begin_is_not_told_as_if_it_would(
    rig: Rig, state: str, reason: str, text: str
) -> None:
    unbegun = view(attempt=0, executor="", output_bytes=0, state=state, reason=reason)
    rig.views = [unbegun]
    with pytest.raises(NotNow) as error:
        await rig.read()
    assert str(error.value) == text
    assert error.value.hint == "`raftcron why backup 2026-11-20T15:00:00Z` tells more"


async def test_of_a_lost_launch_without_output_nobody_knows_what_it_printed(rig: Rig) -> None:
    lost = view(state="lost", output_bytes=0)
    rig.views = [lost]
    with pytest.raises(Conflict, match="executor e1 has no output of it: whether it printed"):
        await rig.read()
    rig.keep()
    assert (await rig.read())[0] == CONTENT, "what it printed before it was lost"
    rig.pool.kept.clear()
    rig.views = [lost, view(executor="", output_bytes=0, kind="amendment")]
    assert (await rig.read())[0] == b"", "late report say that it printed nothing"


async def test_each_attempt_has_its_own_and_the_newest_is_shown_first(rig: Rig) -> None:
    rig.views = [view(1, state="failed"), view(2)]
    rig.put(b"first", attempt=1)
    rig.put(b"second", attempt=2)
    rig.pool.connected.clear()
    assert (await rig.read())[0] == b"second"
    assert (await rig.read(attempt=1))[0] == b"first"


async def test_late_report_of_a_lost_attempt_says_where_it_is(rig: Rig) -> None:
    lost = view(state="lost", output_bytes=0, ended_at_ms=AT_MS - 86_400_000)
    rig.views = [lost, view(executor="", kind="amendment")]
    rig.put()
    rig.pool.connected.clear()
    assert (await rig.read())[0] == CONTENT
    rig.pool.connected.add("e1")
    assert (await rig.read())[0] == CONTENT, "the executor has let it go"


async def test_what_is_far_larger_than_its_launch_wrote_is_not_fetched(rig: Rig) -> None:
    rig.pool.connected.clear()
    name = output_object("prod", AT_MS, LAUNCH, 1)
    rig.store.objects[name] = bytes(BYTES_MAX_MIN * 2)
    rig.store.calls.clear()
    with pytest.raises(Conflict, match="far more than its launch wrote"):
        await rig.read()
    assert {operation for operation, _ in rig.store.calls} == {"head"}
    rig.put(bytes(BYTES_MAX_MIN + 1))
    with pytest.raises(Conflict, match="it holds more than"):
        await rig.read()
    assert list(rig.folder.iterdir()) == []


# ---- pieces


async def test_a_large_one_is_fetched_once_however_many_pieces_are_read(rig: Rig) -> None:
    content = b"".join(b"%09d\n" % n for n in range(20_000))
    rig.views = [view(output_bytes=len(content))]
    rig.put(content, dropped=500)
    rig.pool.connected.clear()
    rig.store.calls.clear()
    whole, offset, ended = b"", 0, False
    while not ended:
        found = await rig.ask(OutputQuery(launch=LAUNCH, offset=offset, limit=30_000))
        assert found.offset == max(offset, 500)
        assert (found.size, found.dropped) == (len(content), 500)
        whole += found.content
        offset, ended = found.offset + len(found.content), found.ended
    assert whole == content
    assert [operation for operation, _ in rig.store.calls] == ["head", "get"]


async def test_only_the_newest_few_stay_on_the_disk(rig: Rig) -> None:
    names = [str(LaunchName("default/backup", AT_MS // 1000 + n)) for n in range(FETCHED_MAX + 3)]
    for name in names:
        rig.put(name.encode(), launch=name)
    for _ in range(2):
        for name in names:
            found = await rig.stored.read(view(), OutputQuery(launch=name))
            assert found is not None
            assert found.content == name.encode()
    assert len(list(rig.folder.iterdir())) == FETCHED_MAX


async def test_what_an_earlier_process_has_left_goes_with_the_first_question(rig: Rig) -> None:
    rig.folder.mkdir(parents=True)
    (rig.folder / "1").write_bytes(b"of another launch")
    (rig.folder / "77").write_bytes(b"left")
    rig.put()
    found = await rig.stored.read(view(), OutputQuery(launch=LAUNCH))
    assert found is not None
    assert found.content == CONTENT
    assert [path.name for path in rig.folder.iterdir()] == ["1"]


async def test_what_came_into_the_store_since_is_found(rig: Rig) -> None:
    query = OutputQuery(launch=LAUNCH)
    assert await rig.stored.read(view(), query) is None
    rig.put()
    assert await rig.stored.read(view(), query) is not None


async def test_a_store_that_hangs_is_not_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_outputs, "FETCH_TIMEOUT_S", 0.05)
    rig.put()
    released = threading.Event()

    def hang(_operation: str, _name: str) -> None:
        released.wait()

    rig.store.hook = hang
    with pytest.raises(Unavailable, match="did not give the output within"):
        await rig.stored.read(view(), OutputQuery(launch=LAUNCH))
    released.set()
    monkeypatch.undo()
    found = await rig.stored.read(view(), OutputQuery(launch=LAUNCH))
    assert found is not None, "what was fetched meanwhile is there"


async def test_a_disk_that_refuses_is_told_of(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("this is no directory")
    rig.put()
    with pytest.raises(Unavailable, match="output"):
        await rig.stored.read(view(), OutputQuery(launch=LAUNCH))


@given(
    written=st.integers(1, 300),
    bound=st.integers(10, 200),
    offset=st.integers(0, 400),
    limit=st.integers(1, 120),
    tail=st.booleans(),
)
@settings(suppress_health_check=list(HealthCheck))
async def test_the_store_answers_every_question_as_the_executor_does(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    written: int,
    bound: int,
    offset: int,
    limit: int,
    tail: bool,
) -> None:
    folder = tmp_path_factory.mktemp("both")
    stem = folder / "kept"
    kept = Output(str(stem), bound)
    kept.write(bytes(n % 251 for n in range(written)))
    kept.close()
    whole = read(stem, 0, 10_000, tail=False)
    rig = Rig(folder)
    try:
        rig.put(whole.data, whole.dropped)
        query = OutputQuery(launch=LAUNCH, offset=offset, limit=limit, tail=tail)
        found = await rig.stored.read(view(), query)
    finally:
        rig.stored.close()
    assert found is not None
    told = read(stem, offset, limit, tail=tail)
    assert (found.content, found.offset) == (told.data, told.offset)
    assert (found.size, found.dropped) == (told.kept, told.dropped)
