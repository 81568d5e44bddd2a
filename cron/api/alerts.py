"""Alerts: rules and channels as they are applied, what fires, what is over, and mutes."""

from __future__ import annotations

from typing import Annotated, Final

from cron.api import checks
from cron.api.checks import Note, Pattern, Person, Source, Within, instant
from cron.api.rpc import Request, View
from cron.errors import InvalidInput, LimitExceeded

FILE_BYTES_MAX: Final = 1 << 20
"""A file of alerts: a thousand rules."""
CLOSED_MAX: Final = 1_000
FIRING_MAX: Final = 1_000
MUTES_AT_ONCE_MAX: Final = 1_000


def mute_numbers(numbers: list[int]) -> list[int]:
    """Return numbers of mutes, each once."""
    checks.between(len(numbers), 1, MUTES_AT_ONCE_MAX, "number of mutes")
    return sorted({checks.between(number, 1, 1 << 62, "mute") for number in numbers})


class AlertsQuery(Request, frozen=True, kw_only=True):
    """Which alerts to show: those of jobs or queues that a pattern matches, and at most `limit` of
    those that are over."""

    jobs: Pattern = ""
    limit: Annotated[int, checks.bound(1, CLOSED_MAX, "limit")] = 50
    within: Within = []


class DeliveryView(View, frozen=True, kw_only=True):
    """What became of the message that tells a channel of an alert. `state` is gathered (it waits
    for the channel's next message), waiting, sending, failing (it is tried again), sent or failed.
    `task` delivers it. `detail` says why it waits or fails, to callers who may see the whole cell.
    """

    channel: str
    state: str = ""
    task: str = ""
    detail: str = ""


class AlertView(View, frozen=True, kw_only=True):
    """An alert. `state` is firing or resolved; `ended_ms` is 0 while it fires. `value` is what the
    rule found, in the unit of its kind, since `evidence_ms` if that is not 0. `is_told`: people
    were told, or are about to be. `by` took its rule away, "" if its condition ended. `deliveries`
    are those of the message about its state, by channel; they are remembered for a day."""

    number: int
    rule: str = ""
    when: str = ""
    subject: str = ""
    state: str = "firing"
    since_ms: int = 0
    ended_ms: int = 0
    value: int = 0
    evidence_ms: int = 0
    launches: list[str] = []
    is_told: bool = False
    is_muted: bool = False
    by: str = ""
    deliveries: list[DeliveryView] = []


class MuteView(View, frozen=True, kw_only=True):
    """A mute: until `until_ms`, alerts of subjects that match `pattern` are not delivered. The
    notes of a new one say what is odd about it."""

    number: int
    pattern: str = ""
    since_ms: int = 0
    until_ms: int = 0
    by: str = ""
    reason: str = ""
    notes: list[str] = []


class RuleView(View, frozen=True, kw_only=True):
    """A rule of the cell; no `subjects` are all jobs. While an alert is open, its channels get a
    reminder every `remind_s`, 0: never."""

    name: str
    when: str = ""
    subjects: list[str] = []
    to: list[str] = []
    since_ms: int = 0
    remind_s: int = 0


class ChannelView(View, frozen=True, kw_only=True):
    """A channel; `to` are the addresses of mail."""

    name: str
    kind: str = ""
    to: list[str] = []


class AlertsReport(View, frozen=True, kw_only=True):
    """What fires, oldest first, what is over, newest first, and what is declared. The counts are of
    all that the caller may see. The notes say for which channels nobody sends now."""

    firing: list[AlertView] = []
    closed: list[AlertView] = []
    firing_count: int = 0
    closed_count: int = 0
    mutes: list[MuteView] = []
    rules: list[RuleView] = []
    channels: list[ChannelView] = []
    now_ms: int = 0
    notes: list[str] = []


class ApplyAlertsRequest(Request, frozen=True, kw_only=True):
    """A file of channels and rules, which become all that the cell has."""

    file: Source = "alerts.toml"
    text: str
    is_dry_run: bool = False
    by: Person = ""

    def check(self) -> None:
        """Refuse a text that is too long."""
        size = len(self.text.encode(errors="replace"))
        if size > FILE_BYTES_MAX:
            raise LimitExceeded(f"{self.file} has {size:,} bytes, at most {FILE_BYTES_MAX:,}")


class AlertChange(View, frozen=True):
    """What an apply does to a channel or rule. `action` is added, changed, removed or unchanged,
    `what` is channel or rule; `before` and `after` are in the words of the file."""

    action: str
    what: str
    name: str
    before: str = ""
    after: str = ""


class ApplyAlertsReport(View, frozen=True, kw_only=True):
    """What an apply did, or would do. The notes say what is missing to tell people."""

    changes: list[AlertChange] = []
    revision: int = 0
    is_dry_run: bool = False
    notes: list[str] = []


class TestAlertRequest(Request, frozen=True, kw_only=True):
    """A channel that gets a message that says it is a test."""

    __test__ = False

    channel: Annotated[str, checks.line("channel", 64)]
    by: Person = ""

    def check(self) -> None:
        """Refuse a test of nothing."""
        if not self.channel:
            raise InvalidInput("channel is empty", "`raftcron alerts list --channels`")


class TestAlertReport(View, frozen=True, kw_only=True):
    """The task that delivers a test."""

    __test__ = False

    task: str = ""
    notes: list[str] = []


class MuteRequest(Request, frozen=True, kw_only=True):
    """Start a mute of the subjects that `pattern` matches."""

    pattern: Annotated[str, checks.named_pattern]
    until_ms: Annotated[int, instant("until")]
    reason: Note = ""
    by: Person = ""


class UnmuteRequest(Request, frozen=True, kw_only=True):
    """Mutes to end, by number."""

    numbers: Annotated[list[int], mute_numbers]
    by: Person = ""
    within: Within = []


class MutesReport(View, frozen=True, kw_only=True):
    """Mutes that were ended, and which of the numbers that were asked for name none."""

    mutes: list[MuteView] = []
    unknown: list[int] = []
