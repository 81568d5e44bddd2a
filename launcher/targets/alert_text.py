"""What the cell says of an alert, or of a launch with `MAILTO`, in words for people. Pure.

The cell sends numbers and names. The prose is made here, where it is shown, so that it can change
without a change of what the replicas agreed on. A field that is not known is shown as it is.
"""

from __future__ import annotations

import re
import shlex
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from launcher.protocol.names import short_job_name

FIRING: Final = "firing"
RESOLVED: Final = "resolved"
TEST: Final = "test"
STATES: Final = (FIRING, RESOLVED, TEST)
_VALUE_CHARS_MAX: Final = 2_000
_LIST_MAX: Final = 20

_SELF: Final = "raftcron/"
"""The tenant of the cell's own subjects."""
_DURATION: Final = re.compile(r"([0-9]+)([dhms])", re.ASCII)
_UNITS: Final = {"d": "day", "h": "hour", "m": "minute", "s": "second"}
_PLACES: Final = {
    "queue-older": ("/queues", "queue list"),
    "gate-open": ("/queues", "gate list"),
    "dead": ("/dead", "dead list"),
    "backup-failing": ("/cell", "status"),
    "replica-away": ("/cell", "status"),
    "clock-off": ("/cell", "status"),
    "certificate-ending": ("/cell", "status"),
    "disk-filling": ("/cell", "status"),
}
"""The page of the console and the command that show more of an alert; other kinds are of jobs."""
OF_CELL: Final = frozenset(
    {"backup-failing", "replica-away", "clock-off", "certificate-ending", "disk-filling"}
)
_WORDS: Final = ("backups", "gate", "queue", "replica", "the")
_LABELS: Final = {
    "failures": "Failures",
    "missed": "Missed instants",
    "late_s": "Late by",
    "running_s": "Runs for",
    "without_success_s": "No success for",
    "dead_letters": "Dead letters",
    "oldest_s": "Oldest waits for",
    "held_s": "Held for",
    "behind_s": "Behind by",
    "away_s": "Away for",
    "off_ms": "Clock is off by",
    "left_s": "Valid for",
    "used_percent": "Disk used",
    "launches": "Newest launches",
}
"""What is known of an alert, in the order in which it is shown."""


class Alerted(msgspec.Struct, frozen=True, kw_only=True):
    """An alert, as the cell hands it over. `number` is that of the first alert of the delivery,
    `subjects` the first of `count` names, `when` the condition as a rule writes it. `open`
    counts the alerts of the rule that fire. `removed` are subjects that do not exist any more.
    `reminder` is the number of this message among those that tell again of what is open, 0: it is
    the first one."""

    number: int
    state: str
    kind: str = ""
    rule: str = ""
    subjects: list[str] = []
    count: int = 1
    since: str = ""
    at: str = ""
    evidence: dict[str, Any] = {}
    cell: str = ""
    when: str = ""
    open: int = 0
    removed: list[str] = []
    reminder: int = 0


class Launched(msgspec.Struct, frozen=True, kw_only=True):
    """A launch that is over, as the cell hands it over for `MAILTO`. It printed `output_bytes`."""

    name: str
    job: str
    state: str = ""
    reason: str = ""
    exit: int | None = None
    attempt: int = 1
    detail: str = ""
    executor: str = ""
    output_bytes: int = 0
    at: str = ""
    command: str = ""
    cell: str = ""


class Note(NamedTuple):
    """A message for people. Notes with the same `thread` are about the same thing. `link` leads to
    the console, if it has an address."""

    title: str
    text: str
    thread: str = ""
    link: str = ""


def of_alert(alert: Alerted, console: str = "") -> Note:
    """Return what an alert says. `console` is the address of the console, or ""."""
    if alert.state == TEST:
        return _of_test(alert, console)
    happened = sentence(alert)
    mark = "RESOLVED: " if alert.state == RESOLVED else "STILL: " if alert.reminder else ""
    link = link_of(alert, console)
    lines = [_opening(alert, happened), ""]
    rows = [
        ("Cell", alert.cell),
        ("Rule", alert.rule + (f" ({alert.when})" if alert.when not in ("", alert.rule) else "")),
        ("Since", _when(alert.since)),
        ("Resolved" if alert.state == RESOLVED else "Noticed", _when(alert.at)),
        *evidence_rows(alert),
    ]
    lines += _table(rows)
    if alert.count > 1:
        shown = [name_of(alert, one) for one in alert.subjects[:_LIST_MAX]]
        whose = "Members" if alert.kind in OF_CELL else f"{_noun(alert)}s".capitalize()
        lines += ["", f"{whose}:", *(f"  {one}" for one in shown)]
        if alert.count > len(shown):
            lines.append(f"  and {alert.count - len(shown):,} more")
    lines += ["", "How to look:", *(f"  {one}" for one in _commands(alert))]
    if link:
        lines.append(f"  {link}")
    title = f"{_prefix(alert.cell)}{mark}{happened}"
    return Note(title, "\n".join(lines) + "\n", f"{alert.cell}\0alert {alert.number}", link)


def of_launch(launch: Launched, console: str = "", output: str = "", problem: str = "") -> Note:
    """Return the mail about a launch, as cron sends one: how it ended, and what it printed.
    `output` is the end of that, or `problem` says why it could not be read."""
    ended = _end_of(launch)
    link = f"{console.rstrip('/')}/launches/{quote(launch.name, safe='/:@')}" if console else ""
    job, name = short_job_name(launch.job), short_job_name(launch.name)
    lines = [f"{job} {ended}.", ""]
    lines += _table(
        [
            ("Cell", launch.cell),
            ("Launch", name),
            ("Attempt", str(launch.attempt) if launch.attempt > 1 else ""),
            ("Ended", _when(launch.at)),
            ("Executor", launch.executor),
            ("Command", launch.command),
            ("Detail", launch.detail),
        ]
    )
    if output:
        size = len(output.encode("utf-8", "replace"))
        rest = f" (the last {size:,} of {launch.output_bytes:,} bytes)"
        lines += ["", f"Output{rest if launch.output_bytes > size else ''}:", "", output.rstrip()]
    elif launch.output_bytes:
        why = f" They could not be read: {problem}." if problem else ""
        lines += ["", f"It printed {launch.output_bytes:,} bytes.{why}"]
    lines += ["", "How to look:", f"  raftcron logs {shlex.quote(name)}"]
    if link:
        lines.append(f"  {link}")
    title = f"{_prefix(launch.cell)}{job} {ended}"
    return Note(title, "\n".join(lines) + "\n", "", link)


def sentence(alert: Alerted) -> str:
    """Return what happened to whom, such as `acme/backup failed 2 times in a row`."""
    who, is_one = _who(alert)
    value = alert.when.partition(":")[2]
    length = spelled(value) or "too long"
    has, is_, runs = ("has", "is", "runs") if is_one else ("have", "are", "run")
    match alert.kind:
        case "failed":
            return f"{who} failed{_times(value, alert.evidence.get('failures') if is_one else 0)}"
        case "missed":
            return f"{who} missed a launch"
        case "late":
            return f"{who} {is_} more than {length} late"
        case "running":
            return f"{who} {runs} for more than {length}"
        case "no-success":
            return f"{who} {has} not succeeded for {length}"
        case "dead":
            return f"{who} {has} dead letters"
        case "queue-older":
            return f"{who}: a task waits for more than {length}"
        case "gate-open":
            return f"{who} {has} held launches for more than {length}"
    return _of_cell(alert, value)


def _of_cell(alert: Alerted, value: str) -> str:
    """Return what happened to the cell itself."""
    name = ", ".join(name_of(alert, one) for one in alert.subjects[:3])
    length = spelled(value)
    match alert.kind:
        case "backup-failing":
            return "backups fail" + (f" for more than {length}" if length else "")
        case "replica-away":
            return f"replica {name} is away".replace("  ", " ")
        case "clock-off":
            return f"the clock of {name or 'a replica'} is off"
        case "certificate-ending":
            return f"the certificate of {name or 'a member'} ends soon"
        case "disk-filling":
            more = f" more than {value} full" if value else " filling"
            return f"the disk of {name or 'a replica'} is{more}"
    return f"{name or 'the cell'}: {alert.kind or 'alert'}"


def _who(alert: Alerted) -> tuple[str, bool]:
    """Return whom an alert is about, and whether that is one."""
    if alert.count > 1:
        return f"{alert.count:,} {_noun(alert)}s", False
    name = name_of(alert, alert.subjects[0]) if alert.subjects else "the cell"
    return (f"queue {name}" if alert.kind == "queue-older" else name), True


def name_of(alert: Alerted, subject: str) -> str:
    """Return how people call a subject: a job of the default tenant without it; the cell's own ones
    begin with its tenant, and a gate is `raftcron/gate-3`."""
    own = subject.removeprefix(_SELF)
    if own == subject or alert.kind not in OF_CELL | {"gate-open"}:
        return short_job_name(subject)
    return own.replace("gate-", "gate ", 1) if alert.kind == "gate-open" else own


def _noun(alert: Alerted) -> str:
    return {"queue-older": "queue", "gate-open": "gate"}.get(alert.kind, "job")


def _times(value: str, failures: Any) -> str:
    """Return ` 2 times in a row` for the number of a rule `failed:2`, or for that of the launches
    that failed by now, if these are more."""
    count, slash, of = value.partition("/")
    if slash:
        return f" in {count} of its newest {of} launches"
    number = int(count) if count.isdecimal() else 1
    if isinstance(failures, int) and failures > number:
        number = failures
    return f" {number:,} times in a row" if number > 1 else ""


def spelled(value: str) -> str:
    """Return `1 hour 30 minutes` for `1h30m`, and "" for what is no length of time."""
    parts = _DURATION.findall(value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        return ""
    return " ".join(
        f"{int(number[:9])} {_UNITS[unit]}{'s' if int(number[:9]) != 1 else ''}"
        for number, unit in parts
    )


def evidence_rows(alert: Alerted) -> list[tuple[str, str]]:
    """Return what is known of an alert, as label and text: known things first."""
    known = [key for key in _LABELS if key in alert.evidence]
    said = {*_LABELS, "since"}  # the alert itself says since when
    others = sorted(key for key in alert.evidence if key not in said)
    rows = []
    for key in (*known, *others[:_LIST_MAX]):
        label = _LABELS.get(key) or key.replace("_", " ").capitalize()
        rows.append((label, _shown(key, alert.evidence[key])))
    return rows


def link_of(alert: Alerted, console: str) -> str:
    """Return the page of the console that shows more, or "" without a console."""
    if not console:
        return ""
    base = console.rstrip("/")
    if alert.kind in _PLACES:
        return base + _PLACES[alert.kind][0]
    if alert.count == 1 and alert.subjects:
        return f"{base}/jobs/{quote(alert.subjects[0], safe='/')}"
    return base + "/jobs"


def _shown(key: str, value: Any) -> str:
    """Return a piece of evidence as text."""
    if isinstance(value, list):
        more = f", and {len(value) - _LIST_MAX} more" if len(value) > _LIST_MAX else ""
        names = (short_job_name(str(one)) for one in value[:_LIST_MAX])
        return ", ".join(names)[:_VALUE_CHARS_MAX] + more
    if isinstance(value, int | float) and not isinstance(value, bool):
        if key.endswith("_s"):
            return lasting(int(value))
        if key.endswith("_ms"):
            return f"{value:,} ms"
        return f"{value}%" if key.endswith("_percent") else f"{value:,}"
    return str(value)[:_VALUE_CHARS_MAX]


def lasting(seconds: int) -> str:
    """Return a length of time as its two largest units: `2d 3h`, `61 s` as `1m 1s`."""
    parts = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, seconds = divmod(max(0, seconds), size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def _opening(alert: Alerted, happened: str) -> str:
    if alert.state != RESOLVED:
        is_word = happened.split(" ", 1)[0] in _WORDS  # and not a name, which keeps its case
        return f"{happened[:1].upper()}{happened[1:]}." if is_word else f"{happened}."
    text = f"This is over: {happened}."
    began, ended = _instant(alert.since), _instant(alert.at)
    if began is not None and ended is not None and ended >= began:
        text += f" It lasted {lasting(int((ended - began).total_seconds()))}."
    if alert.removed and alert.count == 1:  # which ended the alert
        text += " The job was removed."
    elif alert.removed:
        names = ", ".join(name_of(alert, one) for one in alert.removed[:_LIST_MAX])
        text += f" Removed jobs: {names}."
    if alert.open == 1:
        text += " 1 other alert of this rule still fires."
    elif alert.open:
        text += f" {alert.open:,} other alerts of this rule still fire."
    return text


def _of_test(alert: Alerted, console: str) -> Note:
    rows = [("Cell", alert.cell), ("Sent", _when(alert.at))]
    text = ["This is a test of a channel of alerts. Nothing is wrong.", "", *_table(rows)]
    text += ["", "How to look:", "  raftcron alerts list"]
    link = console.rstrip("/")
    if link:
        text.append(f"  {link}")
    title = f"{_prefix(alert.cell)}test of alerts"
    return Note(title, "\n".join(text) + "\n", "", link)


def _commands(alert: Alerted) -> list[str]:
    """Return the commands that show more."""
    found = []
    if alert.kind in _PLACES:
        found.append(f"raftcron {_PLACES[alert.kind][1]}")
    elif alert.subjects:
        found.append(f"raftcron why {shlex.quote(short_job_name(alert.subjects[0]))}")
    launches = alert.evidence.get("launches")
    if isinstance(launches, list) and launches and alert.kind in ("failed", "running", "dead"):
        found.append(f"raftcron logs {shlex.quote(short_job_name(str(launches[-1])))}")
    return [*found, "raftcron alerts list"]


def _end_of(launch: Launched) -> str:
    """Return how a launch ended: `succeeded`, `failed with exit code 3`."""
    if launch.state in ("", "succeeded"):
        return "succeeded"
    word = {"dead": "failed for good", "lost": "was lost", "cancelled": "was cancelled"}.get(
        launch.state, launch.state
    )
    if launch.exit is not None and launch.exit > 0:
        return f"{word} with exit code {launch.exit}"
    return f"{word} ({launch.reason})" if launch.reason else word


def _prefix(cell: str) -> str:
    return f"[raftcron {cell}] " if cell not in ("", "default") else "[raftcron] "


def _when(text: str) -> str:
    """Return an instant as tables print it, `2026-11-20 15:00:00 UTC`; other texts as they are."""
    instant = _instant(text)
    return text if instant is None else instant.strftime("%Y-%m-%d %H:%M:%S UTC")


def _instant(text: str) -> datetime | None:
    """Return the instant of an ISO text in UTC, None if it is none."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    offset = instant.utcoffset()
    return instant if offset is not None and not offset else None


def _table(rows: list[tuple[str, str]]) -> list[str]:
    """Return rows of label and text as lines; rows without a text are left out."""
    shown = [(label, text) for label, text in rows if text]
    width = max((len(label) for label, _ in shown), default=0) + 1
    return [f"{label + ':':<{width}} {text}" for label, text in shown]
