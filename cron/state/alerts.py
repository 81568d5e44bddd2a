"""Alerts as State keeps them, and the commands about them.

A rule watches jobs, queues, gates or the cell. An alert is open for one rule and one subject. The
entry that opens or closes an alert also submits the tasks that tell people (`alerting.py`).

Evolution: as in `commands.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from fnmatch import translate
from functools import lru_cache
from typing import Final

import msgspec

from cron.alert_rules import AlertKind, Channel, ChannelKind, Condition, JobAlerts, Rule
from cron.crontab.conditions import condition_text, parse_condition
from cron.errors import CronError
from launcher.protocol.names import CELL_TENANT, SCHEDULED_S_MAX, TASK_MARK

SELF: Final = CELL_TENANT
"""The tenant of the cell's own queues and subjects."""
QUEUE: Final = f"{SELF}/alerts"
"""The queue of the tasks that tell people."""
TOLD_NAMES_MAX: Final = 20
"""Subjects that one delivery names."""
REST_MS: Final = 60_000
"""The least time between two deliveries of one rule to one channel. Alerts that begin or end
within it are gathered and sent in the next delivery."""
EVIDENCE_LAUNCHES: Final = 3
"""Launches that an alert names, the newest ones."""
_OWN: Final = f"{SELF}/"
_TO: Final = " to="
_REMIND: Final = " remind="
_SECONDS: Final = re.compile(r"[1-9][0-9]{0,8}s", re.ASCII)
_LAUNCH_CHARS_MAX: Final = 512


class Marks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the newest launches of a job ended, as far as the rules for the job need it.

    `failed` has a bit for each of the newest launches, the newest lowest: 1 for one that failed.
    `missed` counts the instants without a launch since the newest one that ran. `late_ms` is how
    late the newest launch began that began later than a rule allows. `success_ms` is when a launch
    succeeded last, for rules about that. `since_ms` is when the failures or misses began, and
    `launches` are the newest of these. `failures` counts the launches that failed since the last
    success, also beyond the bits (from format 12 on, 0 before).
    """

    failed: int = 0
    missed: int = 0
    late_ms: int = 0
    success_ms: int = 0
    since_ms: int = 0
    launches: tuple[str, ...] = ()
    failures: int = 0

    @property
    def is_marked(self) -> bool:
        """Whether a rule about failed, missed or late launches may fire."""
        return bool(self.failed or self.missed or self.late_ms)


NO_MARKS: Final = Marks()


class Evidence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a rule found: a number, whose unit depends on the kind, since when, and launches."""

    value: int = 0
    since_ms: int = 0
    launches: tuple[str, ...] = ()


class OpenAlert(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An alert that fires. `is_told`: people were told, or are about to be; they are not while it
    is muted."""

    number: int
    since_ms: int
    evidence: Evidence
    is_told: bool = True


class ClosedAlert(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An alert that is over. `by` is who took its rule away, "" where its condition ended."""

    number: int
    rule: str
    subject: str
    since_ms: int
    ended_ms: int
    evidence: Evidence
    is_told: bool = True
    by: str = ""


class Mute(msgspec.Struct, frozen=True, array_like=True):
    """A mute: until `until_ms`, alerts of subjects that match the pattern are not delivered."""

    number: int
    pattern: str
    since_ms: int
    until_ms: int
    by: str = ""
    reason: str = ""


class Gathered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Alerts that one delivery tells of: the number of the first, how many, the names of the first
    TOLD_NAMES_MAX, and since when and why the first fires."""

    number: int
    count: int
    subjects: tuple[str, ...]
    since_ms: int
    evidence: Evidence

    def joined(self, more: Gathered) -> Gathered:
        """Return these and more, which came later."""
        subjects = (*self.subjects, *more.subjects)[:TOLD_NAMES_MAX]
        return msgspec.structs.replace(self, count=self.count + more.count, subjects=subjects)

    def without(self, subjects: frozenset[str]) -> Gathered | None:
        """Return these without some that they name, None if none is left."""
        kept = tuple(one for one in self.subjects if one not in subjects)
        count = self.count - len(self.subjects) + len(kept)
        return msgspec.structs.replace(self, count=count, subjects=kept) if count else None


class Reminded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When people were reminded of the open alerts of a rule last, and how often by now."""

    at_ms: int
    count: int = 1


class Outgoing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The deliveries of one rule to one channel: the time of the last one, the key of the newest
    task that reports firing alerts, and the alerts gathered for the next delivery."""

    sent_ms: int = 0
    newest: str = ""
    firing: Gathered | None = None
    resolved: Gathered | None = None

    @property
    def is_pending(self) -> bool:
        """Whether something is gathered."""
        return self.firing is not None or self.resolved is not None


class Watch(msgspec.Struct, frozen=True):
    """The rules for one job. `kinds` has a bit for each kind among them."""

    rules: tuple[Rule, ...] = ()
    kinds: int = 0

    def has(self, kind: AlertKind) -> bool:
        """Whether a rule of that kind is for the job."""
        return bool(self.kinds >> kind & 1)

    @property
    def launches(self) -> int:
        """How many newest launches the rules about failures look at."""
        if not self.has(AlertKind.FAILED):
            return 0
        conditions = (rule.condition for rule in self.rules)
        return max(one.of or one.count for one in conditions if one.kind is AlertKind.FAILED)


class AlertState(msgspec.Struct, array_like=True, dict=True):
    """Channels, rules, mutes, the alerts that fire and the newest of those that are over.

    `revision` is the log index of the newest change of channels, rules or mutes. `rules_since` has
    when each rule came. `open` is by rule and subject. `closed_count` counts all that are over, of
    which `closed` has the newest, oldest first. `outgoing` is by rule and channel.
    """

    revision: int = 0
    numbers: int = 0  # of alerts, given so far; none is given twice
    mute_numbers: int = 0
    channels: dict[str, Channel] = {}
    rules: dict[str, Rule] = {}
    rules_since: dict[str, int] = {}
    mutes: dict[int, Mute] = {}
    open: dict[str, dict[str, OpenAlert]] = {}
    closed: list[ClosedAlert] = []
    closed_count: int = 0
    outgoing: dict[str, dict[str, Outgoing]] = {}
    reminded: dict[str, Reminded] = {}  # by rule, while one of its alerts is open

    def __post_init__(self) -> None:
        self.open_of = Counter(subject for mine in self.open.values() for subject in mine)
        self.open_count = sum(map(len, self.open.values()))
        self.pending: dict[tuple[str, str], None] = {
            (rule, channel): None
            for rule, mine in self.outgoing.items()
            for channel, one in mine.items()
            if one.is_pending
        }
        self.own: dict[str, JobAlerts] = {}  # what crontabs say of their jobs, by job
        self.own_kinds = 0  # a bit for each kind that was ever in there
        self.mailing: dict[str, None] = {}  # of these jobs: those whose output is mailed
        self.marked: dict[str, None] = {}  # jobs of which a rule about ends may fire
        self.is_watching = False  # whether any rule is about jobs, or any output is mailed
        self.is_used = False  # whether there ever was a rule or a channel
        self._watches: dict[str, Watch] = {}
        self.follow_rules()

    def follow_rules(self) -> None:
        """Take note of changed rules."""
        self._watches.clear()
        self._matchers: list[tuple[Rule, Callable[[str], bool]]] = [
            (rule, matcher(rule.subjects))
            for rule in self.rules.values()
            if is_of_jobs(rule.condition.kind)
        ]
        self.named_kinds = 0
        for rule, _ in self._matchers:
            self.named_kinds |= 1 << rule.condition.kind
        self.is_watching = bool(self.named_kinds or self.own)
        self.is_used = self.is_used or bool(self.revision or self.own)

    def note_job(self, name: str, alerts: JobAlerts | None) -> None:
        """Take note of what a crontab says of a job."""
        self._watches.pop(name, None)
        self.mailing.pop(name, None)
        if alerts is None:
            self.own.pop(name, None)
            return
        self.own[name] = alerts
        self.is_watching = self.is_used = True
        if alerts.mail_to:
            self.mailing[name] = None
        for condition in alerts.conditions:
            self.own_kinds |= 1 << condition.kind

    def note_marks(self, name: str, marks: Marks | None) -> None:
        """Take note of how the newest launches of a job ended."""
        if marks is not None and marks.is_marked:
            self.marked[name] = None
        else:
            self.marked.pop(name, None)

    @property
    def kinds(self) -> int:
        """A bit for each kind of rules about jobs."""
        return self.named_kinds | self.own_kinds

    def watch(self, name: str) -> Watch:
        """Return the rules for a job."""
        known = self._watches.get(name)
        if known is None:
            known = self._watches[name] = self._watch(name)
        return known

    def _watch(self, name: str) -> Watch:
        rules = [rule for rule, matches in self._matchers if matches(name)]
        own = self.own.get(name)
        if own is not None:
            rules += [own_rule(one, own.to, own.remind_s) for one in own.conditions]
        if not rules:
            return _NO_WATCH
        kinds = 0
        for rule in rules:
            kinds |= 1 << rule.condition.kind
        return Watch(tuple(rules), kinds)

    def rule(self, name: str) -> Rule | None:
        """Return a rule by its name: one of the file, or one that crontabs have."""
        return self.rules.get(name) or rule_of_name(name)

    def lacks_channel(self, names: Iterable[str]) -> bool:
        """Return whether one of these channels is not there, or tells nobody of alerts."""
        return any(
            name not in self.channels or self.channels[name].kind is ChannelKind.HEARTBEAT
            for name in names
        )

    def move_times(self, to_ms: int, moved: Callable[[int], int]) -> None:
        """Move the times of mutes and deliveries back with the log's time to `to_ms`; `moved` does
        that to a time of the wrong clock (rule R10). Alerts that fire stay as they are, so that
        nobody is told again."""
        for number, one in self.mutes.items():
            if one.since_ms > to_ms:
                until_ms = moved(one.until_ms)
                self.mutes[number] = msgspec.structs.replace(one, since_ms=to_ms, until_ms=until_ms)
        self.rules_since = {name: min(at_ms, to_ms) for name, at_ms in self.rules_since.items()}
        for name, reminded in self.reminded.items():
            at_ms = min(reminded.at_ms, to_ms)
            self.reminded[name] = msgspec.structs.replace(reminded, at_ms=at_ms)
        for mine in self.outgoing.values():
            for channel, out in mine.items():
                sent_ms = min(out.sent_ms, to_ms)
                mine[channel] = msgspec.structs.replace(out, sent_ms=sent_ms)

    def alerts(self) -> Iterator[tuple[str, str, OpenAlert]]:
        """Yield the alerts that fire, with rule and subject."""
        for rule, mine in self.open.items():
            for subject, alert in mine.items():
                yield rule, subject, alert

    def muted(self, now_ms: int) -> Callable[[str], bool]:
        """Return what says whether a subject is muted at a time."""
        patterns = tuple(mute.pattern for mute in self.mutes.values() if mute.until_ms > now_ms)
        return matcher(patterns) if patterns else lambda _: False


_NO_WATCH: Final = Watch()


def is_own(name: str) -> bool:
    """Return whether a job, a task or a queue is the cell's own."""
    return name.startswith(_OWN)


def count_own(names: str) -> int:
    """Return how many of these names, with line feeds between, are the cell's own ones."""
    return names.startswith(_OWN) + names.count(f"\n{_OWN}")


def is_of_jobs(kind: AlertKind) -> bool:
    """Return whether rules of a kind have jobs as subjects."""
    return kind < AlertKind.QUEUE_OLDER


@lru_cache(maxsize=4096)
def matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Return what says whether one of these patterns matches a full name; none matches all but the
    cell's own subjects."""
    if not patterns:
        return lambda name: not name.startswith(f"{SELF}/")
    match = re.compile("|".join(map(translate, patterns))).match
    return lambda name: match(name.partition(TASK_MARK)[0]) is not None


@lru_cache(maxsize=4096)
def own_rule(condition: Condition, to: tuple[str, ...], remind_s: int = 0) -> Rule:
    """Return the rule that the option `alert` of a job makes. All jobs with the same option share
    it, so that they are told of together."""
    again = f"{_REMIND}{remind_s}s" if remind_s else ""
    return Rule(
        f"{condition_text(condition)}{_TO}{','.join(to)}{again}", condition, (), to, remind_s
    )


@lru_cache(maxsize=4096)
def rule_of_name(name: str) -> Rule | None:
    """Return the rule of crontabs that has a name, None if no such rule can be."""
    text, mark, to = name.partition(_TO)
    if not mark:
        return None
    to, _, again = to.partition(_REMIND)
    remind_s = int(again[:-1]) if _SECONDS.fullmatch(again) else 0
    try:
        condition = parse_condition(text)
    except CronError:
        return None
    rule = own_rule(condition, tuple(to.split(",")), remind_s)
    return rule if rule.name == name and is_of_jobs(condition.kind) else None


def bounded(evidence: Evidence) -> Evidence:
    """Return evidence of a command within the bounds of State."""
    launches = tuple(name[:_LAUNCH_CHARS_MAX] for name in evidence.launches[:EVIDENCE_LAUNCHES])
    since_ms = min(max(evidence.since_ms, 0), SCHEDULED_S_MAX * 1000)
    return Evidence(evidence.value, since_ms, launches)


def gathered(some: list[tuple[str, OpenAlert]]) -> Gathered:
    """Return alerts with their subjects as one delivery tells of them."""
    first = some[0][1]
    names = tuple(subject for subject, _ in some[:TOLD_NAMES_MAX])
    return Gathered(first.number, len(some), names, first.since_ms, first.evidence)


# ---- commands of people


class ApplyAlerts(msgspec.Struct, frozen=True, array_like=True, tag="apply-alerts"):
    """Replace all channels and rules of the cell. `base` is the revision that the caller read."""

    base: int
    channels: tuple[Channel, ...] = ()
    rules: tuple[Rule, ...] = ()
    by: str = ""
    cell: str = ""


class MuteAlerts(msgspec.Struct, frozen=True, array_like=True, tag="mute-alerts"):
    """Start a mute: until `until_ms`, deliver no alerts of subjects that match the pattern."""

    pattern: str
    until_ms: int
    reason: str = ""
    by: str = ""


class UnmuteAlerts(msgspec.Struct, frozen=True, array_like=True, tag="unmute-alerts"):
    """End mutes, by number; an item each."""

    numbers: tuple[int, ...]
    by: str = ""


class TestAlert(msgspec.Struct, frozen=True, array_like=True, tag="test-alert"):
    """A delivery that says that it is a test."""

    __test__ = False

    channel: str
    by: str = ""
    cell: str = ""


# ---- commands of the leader


class RaiseLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Subjects for which a rule fires, in columns."""

    rule: str
    subjects: tuple[str, ...]
    evidence: tuple[Evidence, ...]


class RaiseAlerts(msgspec.Struct, frozen=True, array_like=True, tag="raise-alerts"):
    """Alerts that fire from now on; an item for each subject of each line, ALREADY for one that
    fires."""

    lines: tuple[RaiseLine, ...]
    cell: str = ""


class ResolveLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Subjects for which a rule does not fire any more."""

    rule: str
    subjects: tuple[str, ...]


class ResolveAlerts(msgspec.Struct, frozen=True, array_like=True, tag="resolve-alerts"):
    """Alerts that are over; an item for each subject of each line, ALREADY for one that does not
    fire."""

    lines: tuple[ResolveLine, ...]
    cell: str = ""


class SendAlerts(msgspec.Struct, frozen=True, array_like=True, tag="send-alerts"):
    """What was gathered of rules for channels is told now; an item for each (rule, channel)."""

    outgoing: tuple[tuple[str, str], ...]
    cell: str = ""


class RemindLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A rule of which people are to be reminded; and what it found of its oldest open alert by
    now."""

    rule: str
    subject: str = ""
    evidence: Evidence = Evidence()


class RemindAlerts(msgspec.Struct, frozen=True, array_like=True, tag="remind-alerts"):
    """Reminders of open alerts; each item is one line of a message."""

    lines: tuple[RemindLine, ...]
    cell: str = ""
