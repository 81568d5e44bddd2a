"""State stays as large as the cell is, however often jobs are applied again and removed.

Half a year of deployments, hour by hour, in the log's time: a leader without a log accounts,
launches, seals, lets history go and forgets.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from cron.calendar.schedule import compile_or_none
from cron.history.audit import audit
from cron.job import Job, Overlap, Schedule
from cron.launch_state import LaunchState
from cron.scheduler.forgetting import LOOK_MS, ROUND_MS, Forgetting
from cron.service.proofs import audited_job
from cron.state import commands as c
from cron.state import earlier, launches, revisions
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from cron.state.outcome import Verdict
from cron.state.rows import Row
from launcher.protocol.status import Reason
from tests.batches import AttemptItem, BeginItem, begin_of
from tests.unit.state_rig import T0, StateRig, job

HOUR_S = 3_600
KEPT_S = 7 * 86_400
DAILY = Schedule("@every 6h", every_s=6 * HOUR_S)


class Deployments:
    """A cell of `jobs` jobs that are deployed again and again."""

    def __init__(self, jobs: int, seed: int) -> None:
        self.rig = StateRig()
        self.chance = Random(seed)
        self.mono_ms = 0
        self.forgetting = Forgetting(self.rig.state)
        self.names: Counter[str] = Counter()  # of attempts that began
        self.rows: list[Row] = []
        self.build = 0
        self.rig.join()
        self.put([self.made(f"j{n}") for n in range(jobs)])

    def made(self, name: str) -> Job:
        made = job(name, schedule=DAILY, overlap=Overlap.FORBID, deadline_s=HOUR_S)
        environ = (("BUILD", str(self.build)),)
        return msgspec.structs.replace(made, work=msgspec.structs.replace(made.work, env=environ))

    def put(self, jobs: list[Job], removed: tuple[str, ...] = ()) -> None:
        state, now_s = self.rig.state, self.rig.at_ms // 1000
        for name in [one.name for one in jobs] + list(removed):
            record = state.jobs.get(name)
            if record is not None and record.job is not None and record.horizon_s < now_s:
                self.account(name, now_s)
        assert self.rig.put(*jobs, removed=removed).verdict is Verdict.ACCEPTED

    def account(self, name: str, to_s: int) -> None:
        """Account for a job; each of its instants runs and ends."""
        record = self.rig.record(name.removeprefix("default/"))
        ticks = compile_or_none(record.spans[-1].schedule)
        due = tuple(
            c.Instants(tick.scheduled_s) for tick in ticks.between(record.horizon_s, to_s, limit=99)
        )
        item = c.AccountLine((record.number,), record.revision, record.horizon_s, to_s, due)
        assert self.rig.item(c.Account((item,))) is Verdict.ACCEPTED
        for one in due:
            self.run((record.number, one.scheduled_s, 0))

    def run(self, key: c.Key) -> None:
        state, at_ms = self.rig.state, self.rig.at_ms
        row, executor = state.due[key], max(state.executors)
        begin = BeginItem(key, row.attempt + 1, row.revision, executor, at_ms)
        if row.deadline_ms < at_ms:
            skip = c.SkippedItem(key, Reason.DEADLINE)
            assert self.rig.item(c.Skip((skip,))) is Verdict.ACCEPTED
            return
        assert self.rig.item(begin_of((begin,))) is Verdict.ACCEPTED
        self.names[f"{state.launch_name(key)}#{begin.attempt}"] += 1
        end = AttemptItem.of(
            key, begin.attempt, LaunchState.SUCCEEDED, Reason.NONE, 0, at_ms, at_ms
        )
        assert self.rig.item(c.Report((end,))) is Verdict.ACCEPTED

    def trigger(self, name: str) -> None:
        command = c.Trigger(name, f"q{self.rig.state.index}", "anna")
        result = self.rig.answer(command)
        assert result.verdict is Verdict.ACCEPTED
        self.run((self.rig.state.jobs[name].number, result.scheduled_s, result.number))

    def keep_house(self) -> None:
        """Seal what is a day old, let go of what is a week old, and forget."""
        state = self.rig.state
        history, now_ms = state.history, self.rig.at_ms
        if history.open_rows and now_ms - history.opened_at_ms >= 86_400_000:
            self.rig.append(c.Seal(history.seals + 1))
        gone = tuple(
            key
            for key, one in history.segments.items()
            if now_ms - one.sealed_at_ms > KEPT_S * 1000
        )
        if gone:
            self.rig.append(c.Retire((), gone))
        self.mono_ms += ROUND_MS + LOOK_MS
        for command in self.forgetting.next(self.mono_ms):
            self.rig.append(command)

    def hour(self) -> None:
        """An hour goes by: a deployment of some jobs, one of which has a new name."""
        self.rig.at_ms += HOUR_S * 1000
        self.build += 1
        state, chance = self.rig.state, self.chance
        live = [name for name, record in state.jobs.items() if record.job is not None]
        chosen = chance.sample(live, 4)
        again = [self.made(name.removeprefix("default/")) for name in chosen[:3]]
        new = chance.choice([f"build-{self.build}", f"often-{self.build % 3}"])
        if f"default/{new}" not in live:
            self.put([*again, self.made(new)], removed=(chosen[3],))
        else:
            self.put(again)
        self.trigger(chosen[0])
        self.keep_house()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2))
def test_half_a_year_of_deployments_leaves_the_image_flat_and_the_audit_clean(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "REQUEST_IDS_KEPT", 100)  # full after four days
    monkeypatch.setattr(revisions, "REVISIONS_KEPT", 100)
    cell = Deployments(12, seed)
    sizes, rows = [], cell.rig.rows
    for hour in range(24 * 365 // 2):
        cell.hour()
        if hour % 24 == 0:
            sizes.append(len(encode_state(cell.rig.state)))
    fortnight, last = max(sizes[10:24]), max(sizes[-14:])
    assert last < 1.5 * fortnight, (fortnight, last)
    assert max(cell.names.values()) == 1, "no attempt begins twice under one name"
    state = cell.rig.state
    assert len(state.by_number) < 12 + 24 * 10
    since_s = max(state.forgotten_s, *(record.forgotten_s for record in state.jobs.values()))
    assert cell.rig.at_ms // 1000 - since_s < KEPT_S + 4 * 86_400, "what history has is kept"
    for record in state.jobs.values():
        mine = [row for row in rows if row.job == record.name and row.scheduled_s > since_s]
        mine.sort(key=lambda row: row.scheduled_s)
        found = audit(audited_job(record), mine, since_s, record.horizon_s)
        assert [one for one in found if one.is_violation] == []
    assert encode_state(decode_state([encode_state(state)])) == encode_state(state)


def test_a_build_number_in_the_environment_of_a_job_leaves_the_image_as_large_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(revisions, "REVISIONS_KEPT", 5)
    monkeypatch.setattr(earlier, "REVISIONS_OF_JOB", 5)
    rig = StateRig()
    made = job()
    sizes = []
    for build in range(1, 3_000):
        rig.at_ms += 60_000
        environ = (("BUILD", f"{build:08}"),)
        work = msgspec.structs.replace(made.work, env=environ)
        if build > 1:
            assert rig.account(60 * build, to=60 * build) is Verdict.ACCEPTED
            assert rig.skip(60 * build) is Verdict.ACCEPTED
        assert rig.put(msgspec.structs.replace(made, work=work)).verdict is Verdict.ACCEPTED
        if rig.state.history.open_rows:
            rig.append(c.Seal(rig.state.history.seals + 1))
            rig.append(c.Retire((), tuple(rig.state.history.segments)))
        sizes.append(len(encode_state(rig.state)))
    assert max(sizes[1_000:]) < sizes[10] + 100
    assert rig.at_ms == (T0 + 60 * 2_999) * 1000


def test_numbers_of_jobs_are_never_given_twice() -> None:
    cell = Deployments(8, 7)
    given: dict[int, str] = {}
    for _ in range(24 * 30):
        cell.hour()
        for number, record in cell.rig.state.by_number.items():
            assert given.setdefault(number, record.name) == record.name
    assert len(given) > len(cell.rig.state.by_number) + 100, "records were forgotten meanwhile"
