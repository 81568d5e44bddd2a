"""Random walks over alerts: launches end in any way, leaders die between decision and entry, mutes
come and go. Every alert is told once, and what is open is what the ends say."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest

from cron.launch_state import LaunchState
from cron.scheduler.alerts import AlertIndex
from cron.state import alerting, deliveries, watching
from cron.state import alerts as a
from cron.state import commands as c
from cron.state.image import decode_state
from cron.state.imaging import encode_state
from launcher.protocol.columns import differences
from launcher.protocol.reports import BatchReport
from launcher.protocol.status import Reason, Status
from tests.drawn import seeds
from tests.unit.alerts_rig import rule
from tests.unit.state_rig import T0, job
from tests.unit.test_scheduler_alerts import Watcher

JOBS = 4
STEPS = 60


class Walk:
    """One walk, and how the newest launches of each job ended, as it saw them."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.rig = Watcher()
        self.rig.declare(rule("twice", "failed:2"), rule("often", "failed:3/5", to=("ops", "chat")))
        self.rig.put(*(job(f"j{n}", deadline_s=10_000) for n in range(JOBS)))
        self.rig.join()
        self.rig.turn()
        self.second = 60
        self.ends: dict[str, list[bool]] = {f"default/j{n}": [] for n in range(JOBS)}  # failed

    def run(self) -> None:
        for _ in range(STEPS):
            self.second += self.chance.choice((1, 7, 70))
            self.rig.to(self.second)
            self.chance.choice((self.end, self.end, self.end, self.lead, self.mute, self.image))()
            for command in self.rig.plan() if self.chance.random() < 0.7 else ():
                if self.chance.random() < 0.7:
                    self.rig.append(command)
                if self.chance.random() < 0.2:
                    self.rig.append(command)  # by a leader whose first try was applied after all
                else:
                    self.rig.elect()
            self.check()
        self.settle()

    def end(self) -> None:
        """Launches of some jobs begin and end alike, in one batch or one by one."""
        numbers = sorted(self.chance.sample(range(1, JOBS + 1), self.chance.randint(1, JOBS)))
        has_failed = self.chance.random() < 0.6
        rig, at_s = self.rig, T0 + self.second
        for number in numbers:
            rig.account(self.second, number=number)
        jobs = tuple(differences(numbers))
        rig.append(c.Begin((c.BatchSpec(1, rig.state.catalog, rig.at_ms + 1000, at_s, jobs),)))
        rows, times = [0, *(1 for _ in numbers[1:])], [rig.at_ms]
        said = BatchReport(
            rig.state.index, Status.ENDED, Reason.NONE, int(has_failed), rows, times, times
        )
        rig.append(c.Report(rows=((1, said),)))
        for number in numbers:
            self.ends[rig.state.by_number[number].name].append(has_failed)

    def lead(self) -> None:
        self.rig.elect()

    def mute(self) -> None:
        until_ms = self.rig.at_ms + self.chance.choice((5, 100)) * 1000
        self.rig.append(a.MuteAlerts(f"default/j{self.chance.randrange(JOBS)}", until_ms))

    def image(self) -> None:
        """A replica starts from an image."""
        self.rig.machine.state = decode_state([encode_state(self.rig.state)])
        self.rig.elect()

    def payloads(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(task.payload) for task in self.rig.state.tasks.values()]

    def check(self) -> None:
        """What was told, with what is gathered, is each alert once for each of its channels; but
        for an end that nobody was told of before it fired again, and that beginning."""
        alerts = self.rig.state.alerts
        told: Counter[tuple[str, str, str]] = Counter()
        for said in self.payloads():
            alert = said["alert"]
            told[alert["rule"], said.get("channel", "ops"), alert["state"]] += alert["count"]
        for name, mine in alerts.outgoing.items():
            for channel, out in mine.items():
                for state, gathered in (("firing", out.firing), ("resolved", out.resolved)):
                    told[name, channel, state] += gathered.count if gathered is not None else 0
        wanted: Counter[tuple[str, str, str]] = Counter()
        over = [(one.rule, one.is_told, "resolved") for one in alerts.closed]
        fires = [(one.rule, one.is_told, "firing") for one in alerts.closed]
        fires += [(name, one.is_told, "firing") for name, _, one in alerts.alerts()]
        for name, is_told, state in over + fires:
            for channel in alerts.rules[name].to if is_told else ():
                wanted[name, channel, state] += 1
        left = wanted.copy()
        left.subtract(told)
        for rule_name, channel, _ in wanted:
            folded = left[rule_name, channel, "resolved"]
            assert left[rule_name, channel, "firing"] == folded >= 0
        assert not +told - wanted
        assert alerts.open_count == sum(map(len, alerts.open.values()))

    def settle(self) -> None:
        """One leader stays: it comes to what the ends say, tells all of it, and rests."""
        self.rig.elect()
        for _ in range(3):
            self.second += 100
            self.rig.turn(self.second)
        self.check()
        alerts = self.rig.state.alerts
        assert not alerts.pending
        heard = {
            (said["alert"]["rule"], said.get("channel", "ops"), name): said["alert"]["state"]
            for said in self.payloads()
            for name in said["alert"]["subjects"]
        }
        for (rule_name, _, name), state in heard.items():
            assert (state == "firing") == (name in alerts.open.get(rule_name, ()))
        for name, failed in self.ends.items():
            assert (name in alerts.open.get("twice", ())) == (failed[-2:] == [True, True])
            assert (name in alerts.open.get("often", ())) == (sum(failed[-5:]) >= 3)
        assert all(one.is_told for _, _, one in alerts.alerts())
        count = len(self.rig.keys)
        self.rig.elect()
        self.rig.turn(self.second + 100)
        assert len(self.rig.keys) == count


@pytest.mark.parametrize("seed", seeds(200))
def test_every_alert_is_told_once_whoever_leads(seed: int) -> None:
    Walk(seed).run()


def _forgets_told(patch: pytest.MonkeyPatch) -> None:
    """Each leader tells again of what is open."""
    opened = alerting._opened

    def again(context: Any, rule: Any, subject: str, *rest: Any, **named: Any) -> Any:
        mine = context.state.alerts.open.get(rule.name, {})
        if subject in mine:
            mine[subject] = msgspec.structs.replace(mine[subject], is_told=False)
        return opened(context, rule, subject, *rest, **named)

    patch.setattr(alerting, "_opened", again)


def _drops_gathered(patch: pytest.MonkeyPatch) -> None:
    """What comes within a minute of a delivery is lost."""
    patch.setattr(a.Gathered, "joined", lambda self, _more: self)


def _finds_no_failed(patch: pytest.MonkeyPatch) -> None:
    """A job that failed is not known when it succeeds."""
    patch.setattr(a.AlertState, "note_marks", lambda *_: None)


def _tells_muted(patch: pytest.MonkeyPatch) -> None:
    """Who resolves an alert tells of it, told before or not."""
    tell = deliveries.tell
    patch.setattr(alerting, "tell", lambda *rest, **named: [tell(*rest, **named) for _ in (1, 2)])


def _counts_no_success(patch: pytest.MonkeyPatch) -> None:
    """A success does not end a row of failures."""
    with_end = watching._with_end

    def unended(context: Any, watch: Any, marks: Any, row: Any, **named: Any) -> Any:
        if row.state is LaunchState.SUCCEEDED:
            return marks
        return with_end(context, watch, marks, row, **named)

    patch.setattr(watching, "_with_end", unended)


def _starts_from_nothing(patch: pytest.MonkeyPatch) -> None:
    """A new leader looks at nothing of before its term."""
    start = AlertIndex._start

    def blind(index: AlertIndex) -> None:
        start(index)
        index._is_scanning = False

    patch.setattr(AlertIndex, "_start", blind)


MUTANTS = (
    _forgets_told,
    _drops_gathered,
    _finds_no_failed,
    _tells_muted,
    _counts_no_success,
    _starts_from_nothing,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.strip("_"))
def test_a_walk_notices(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        _run(20)


def _run(count: int) -> None:
    for seed in range(count):
        Walk(seed).run()
