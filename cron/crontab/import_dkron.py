"""Jobs of dkron (4.x), as its API answers `GET /v1/jobs`.

`KEYS` has each key of a job. A schedule is one of robfig/cron with seconds in front. A child of a
job runs after each run of its parent there; here it has the parent's schedule, and waits for it.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Final

from cron.calendar.duration import format_duration
from cron.crontab.dkron_words import BadCommand, split_words
from cron.crontab.imported import (
    NOT_OF_ITS_FORM,
    Found,
    Imported,
    Key,
    Treatment,
    exported,
    keys,
    plain_name,
    program,
)
from cron.crontab.located import Entry, place_of, read_json, text_of
from cron.crontab.options import MEMORY_BYTES_MAX, MEMORY_BYTES_MIN
from cron.crontab.robfig import Due, differs_at_shifts, duration_ns, read_robfig
from cron.errors import InvalidInput
from cron.limits import DEADLINE_S_MAX
from cron.where import EXECUTOR_LABEL
from launcher.protocol.names import format_time

KEYS: Final[dict[str, Key]] = {
    **keys(Treatment.CARRIED, "name", "name"),
    **keys(Treatment.CARRIED, "schedule and zone", "schedule", "timezone"),
    **keys(Treatment.CARRIED, "paused", "disabled"),
    **keys(Treatment.CARRIED, "after, with the schedule of the parent", "parent_job"),
    **keys(Treatment.CARRIED, "where and parts, or each", "tags"),
    **keys(Treatment.CARRIED, "retries", "retries"),
    **keys(Treatment.CARRIED, "overlap", "concurrency"),
    **keys(Treatment.CARRIED, "start and end", "starts_at", "expires_at"),
    **keys(Treatment.CARRIED, "command, where it is shell", "executor", "executor_config"),
    **keys(Treatment.CARRIED, "command, of early releases", "command", "shell"),
    **keys(Treatment.NOTED, "the output stays where executors keep it", "processors"),
    **keys(Treatment.NOTED, "write alert=failed and to=CHANNEL", "owner_email"),
    **keys(Treatment.NOTED, "a job has a collection, and no more labels", "metadata"),
    **keys(
        *(Treatment.LEAVES_OUT, "it is removed there after it has succeeded once: submit a task"),
        "ephemeral",
    ),
    **keys(Treatment.IRRELEVANT, "it is about people", "displayname", "owner"),
    **keys(
        *(Treatment.IRRELEVANT, "it is about what was", "id", "success_count", "error_count"),
        *("last_success", "last_error", "status", "next"),
    ),
    **keys(Treatment.IRRELEVANT, "the children name their parent", "dependent_jobs"),
    **keys(Treatment.CARRIED, "command", "executor_config.command", "executor_config.shell"),
    **keys(Treatment.CARRIED, "env", "executor_config.env"),
    **keys(Treatment.CARRIED, "cwd", "executor_config.cwd"),
    **keys(Treatment.CARRIED, "timeout", "executor_config.timeout"),
    **keys(Treatment.CARRIED, "memory", "executor_config.mem_limit"),
    **keys(Treatment.CARRIED, "stdin", "executor_config.payload"),
}
"""Each key of a job, and of the configuration of the executor `shell`."""
_TRUE: Final = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_SIZE: Final = re.compile(r"([0-9]{1,18})?(?:\.([0-9]{0,18}))?(B|BYTES|[KMGT]B?)?", re.ASCII)
_UNITS: Final = {"B": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_COUNT: Final = re.compile("[0-9]{1,6}", re.ASCII)
_VALUE: Final = re.compile("[^,|=!]+")
_VARIABLE: Final = re.compile(r"[^\s=]+")
_HASH: Final = {2: (24, 0), 3: (28, 1), 4: (12, 1), 5: (7, 0)}
"""How many values a `~` has in a field, and the first one; 60 from 0 in others."""
_NAME_VARIABLE: Final = "ENV_JOB_NAME"
_WITHOUT: Final = {
    "@at": "submit a task for that time",
    "@manually": "a job without a schedule is none here",
}


class _Job(Entry, kw_only=True):
    """A job that is read."""

    fields: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of its executor."""
        return self.fields.get("executor_config") or {}

    @property
    def parent(self) -> str:
        """The job that it follows, "" for none."""
        parent = self.fields.get("parent_job") or ""
        return parent if isinstance(parent, str) else str(parent)


def import_dkron(content: bytes, *, file: str = "") -> Imported:
    """Return the jobs of a document of dkron: a job, a list of jobs, or jobs one after the other.

    Raises:
        InvalidInput: it is none.
    """
    try:
        jobs = list(_documents(content.decode("utf-8-sig")))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"it is not JSON: {error}", "save the answer of /v1/jobs") from error
    if not jobs or not all(isinstance(job, dict) and type(job.get("name")) is str for job in jobs):
        raise InvalidInput("it is not a list of dkron's jobs", "save the answer of /v1/jobs")
    imported = Imported()
    by_name: dict[str, _Job] = {}
    tables: dict[str, dict[str, Any]] = {}
    for fields in jobs:
        job = _Job(fields["name"], file, imported, fields=fields)
        job.at(job.fields)
        if job.name in by_name:
            job.leave_out("another job has its name")
        else:
            by_name[job.name] = job
    for job in _parents_first(by_name):
        try:
            _import(job, by_name, tables)
        except InvalidInput as error:
            job.leave_out(str(error))
        except NOT_OF_ITS_FORM as error:
            why = f"it is not of the form of a job: {error!r}"[:200]
            job.leave_out(why)
    return imported


def _documents(text: str) -> Iterator[Any]:
    """Yield the values of a text, and those in its lists."""
    for value in read_json(text):
        yield from value if isinstance(value, list) else (value,)


def _parents_first(by_name: dict[str, _Job]) -> Iterator[_Job]:
    """Yield each job once, behind its parent; one of a cycle may come before it."""
    done = set[str]()
    for job in by_name.values():
        line = {job.name: job}
        parent = by_name.get(job.parent)
        while parent is not None and parent.name not in line and parent.name not in done:
            line[parent.name] = parent
            parent = by_name.get(parent.parent)
        for one in reversed(line.values()):
            if one.name not in done:
                done.add(one.name)
                yield one


def _import(job: _Job, by_name: dict[str, _Job], tables: dict[str, dict[str, Any]]) -> None:
    fields, config = job.fields, job.config
    job.at(job.fields, "executor")
    executor = fields.get("executor", "shell")
    if executor != "shell":
        what = "serve it as a handler, see docs/targets.md"
        raise InvalidInput(f"its executor is {executor}: {what}")
    followed = _followed(job, by_name, tables)
    schedule, zone = (followed["schedule"], followed.get("zone")) if followed else _schedule(job)
    if plain_name(job.name) != job.name:
        job.at(job.fields, "name")
        job.note(f"name {job.name}: it is called {plain_name(job.name)} here")
    command = _command(job)
    exports, env = exported(_environment(job))
    table: dict[str, Any] = {
        "name": plain_name(job.name),
        "schedule": schedule,
        "zone": zone,
        "command": "\n".join((*exports, command)),
        "stdin": _input(job),
        "env": env,
        "cwd": config.get("cwd") or None,
        "timeout": _timeout(job),
        "memory": _memory(job),
        **_retries(job),
        # Nothing that was missed is launched late there.
        "catchup": "none",
        "overlap": _overlap(job, is_child=bool(followed)),
        **_bounds(job, followed),
        **_places(job),
        "paused": "disabled in dkron" if job.flag(job.fields, "disabled") else None,
    }
    if followed:
        # However long the parent runs.
        table |= {"after": [followed["name"]], "deadline": format_duration(DEADLINE_S_MAX)}
        job.at(job.fields, "parent_job")
        job.note(f"parent_job {job.parent}: runs of it that somebody asks for have no child here")
    if _note_keys(job):
        job.at(job.fields)
        job.imported.add(job.name, table, job.place)
    if table["name"] in job.imported.names:
        tables[job.name] = table


def _followed(
    job: _Job, by_name: dict[str, _Job], tables: dict[str, dict[str, Any]]
) -> dict[str, Any] | None:
    """Return the table of the parent, None for a job without one.

    Raises:
        InvalidInput: the parent is left out, or is not there.
    """
    job.at(job.fields, "parent_job")
    if not job.parent:
        return None
    if job.parent not in by_name:
        raise InvalidInput(f"parent_job {job.parent} is not in the file")
    if job.parent not in tables:
        raise InvalidInput(f"parent_job {job.parent} is left out, and this job follows it")
    return tables[job.parent]


def _note_keys(job: _Job) -> bool:
    """Note the keys that are not carried over; return whether none of them leaves the job out."""
    found = []
    for prefix, fields in (("", job.fields), ("executor_config.", job.config)):
        for key, value in fields.items():
            row = KEYS.get(f"{prefix}{key}")
            if value or row is None:
                shown = json.dumps(value)[:80] if not isinstance(value, str) else value[:80]
                where = place_of(job.file, fields, key)
                found.append(Found(f"{prefix}{key}", f"{prefix}{key} {shown}", where))
    return job.imported.note_keys(job.name, KEYS, found)


def _schedule(job: _Job) -> tuple[str, str | None]:
    """Return the schedule of five fields, or `@every`, and its zone."""
    job.at(job.fields, "schedule")
    text = str(job.fields.get("schedule") or "")
    word = text.split(" ", 1)[0]
    if not text or word in _WITHOUT:
        raise InvalidInput(f"schedule {text or 'missing'}: {_WITHOUT.get(word, 'it has none')}")
    fields = "0 * * * * *" if text == "@minutely" else _hashed(job.name, text)
    due = read_robfig(fields, has_seconds=True)
    zone, given = due.zone, job.fields.get("timezone") or None
    if zone is None and given and not text.startswith("@"):
        zone = str(given)
    elif zone is None and given and not text.startswith("@every") and text != "@minutely":
        job.note(f"timezone {given}: it does not count there for {text}")
    _note_schedule(job, due, zone)
    return due.text, zone


def _note_schedule(job: _Job, due: Due, zone: str | None) -> None:
    """Note what differs between a schedule here and there."""
    job.imported.note_zone(job.name, due.text, zone, job.place)
    if due.second:
        job.note(f"second {due.second}: it is due at the whole minute")
    if "@every " in str(job.fields.get("schedule")):
        job.note(f"{due.text} counts from 1970 here, and there from the start of the leader")
    elif differs_at_shifts(due.text, zone):
        what = f"schedule {due.text}: a time that a change of clocks skips or repeats is due once"
        job.note(f"{what} here; there it is left out, or due twice")


def _hashed(name: str, text: str) -> str:
    """Return a schedule in which each `~` is the number that dkron computes from the name."""
    words, index, total = text.split(" "), 0, sum(map(ord, name))
    if any(word.startswith("@") for word in words):
        return text
    for number, word in enumerate(words):
        if word.startswith(("TZ=", "CRON_TZ=")):
            continue
        count, first = _HASH.get(index, (60, 0))
        words[number] = word.replace("~", str(total % count + first))
        index += 1
    return " ".join(words)


def _command(job: _Job) -> str:
    """Return the command for a shell; where none reads it there, its words in quotes."""
    config, fields = job.config, job.fields
    job.at(config if config.get("command") else fields, "command")
    command = text_of("command", config.get("command") or fields.get("command") or "")
    shell = config.get("shell", fields.get("shell"))
    if shell is True or str(shell) in _TRUE:
        job.imported.note_background(job.name, command, job.place)
        return command
    try:
        words, rest = split_words(command)
    except BadCommand as error:
        what = f"command {command[:80]}: {error}, and no shell reads it there"
        raise InvalidInput(what) from error
    if rest:
        job.note(f"command: {rest[:80]}, which dkron leaves out, because no shell reads it")
    line = program(list(map(shlex.quote, words)))
    job.imported.note_background(job.name, line, job.place)
    return line


def _input(job: _Job) -> str | None:
    job.at(job.config, "payload")
    payload = text_of("payload", job.config.get("payload") or "")
    return base64.b64decode(payload, validate=True).decode() or None


def _environment(job: _Job) -> dict[str, str]:
    """Return the variables, with the one that dkron sets itself."""
    job.at(job.config, "env")
    found: dict[str, str] = {}
    for pair in text_of("env", job.config.get("env") or "").split(","):
        key, equals, value = pair.partition("=")
        if equals and _VARIABLE.fullmatch(key):
            found[key] = value
        elif pair:
            job.note(f"env: {pair[:40]!r}, which sets no variable")
    return found | {_NAME_VARIABLE: job.name}


def _timeout(job: _Job) -> str | None:
    job.at(job.config, "timeout")
    length_ns = duration_ns(text_of("timeout", job.config.get("timeout") or "0"))
    if length_ns < 0:
        raise InvalidInput(f"timeout {job.config['timeout']} ends each run at once")
    if length_ns % 10**9:
        job.note(f"timeout {job.config['timeout']}: rounded up to whole seconds")
    return format_duration(-(-length_ns // 10**9)) if length_ns else None


def _memory(job: _Job) -> str | None:
    """Return a size such as `512MB`, or bytes, in whole KiB; None for none."""
    job.at(job.config, "mem_limit")
    text = str(job.config.get("mem_limit") or "")
    if not text:
        return None
    match = _SIZE.fullmatch(text.strip().upper())
    if match is None or not (match[1] or match[2]):
        raise InvalidInput(f"mem_limit {text} is not a size")
    number = Fraction(f"{match[1] or 0}.{match[2] or 0}")
    size = -(-number * (1 << _UNITS[(match[3] or "B")[0]]) // 1)
    if not size:
        raise InvalidInput(f"mem_limit {text} lets nothing run")
    if size > MEMORY_BYTES_MAX:
        job.note(f"mem_limit {text}: a launch is not limited to that here")
        return None
    if size < MEMORY_BYTES_MIN:
        job.note(f"mem_limit {text}: the least is 1M here")
    return f"{-(-max(size, MEMORY_BYTES_MIN) // 1024)}K"


def _retries(job: _Job) -> dict[str, Any]:
    """Return how often a run is tried again; no deadline ends that there."""
    job.at(job.fields, "retries")
    retries = job.fields.get("retries") or 0
    if type(retries) is not int or retries < 0:
        raise InvalidInput(f"retries {retries} is not a number")
    if not retries:
        return {}
    job.note(f"retries {retries}: the delays before them are those of backoff here")
    return {"retries": retries, "deadline": format_duration(DEADLINE_S_MAX)}


def _overlap(job: _Job, *, is_child: bool) -> str | None:
    job.at(job.fields, "concurrency")
    policy = job.fields.get("concurrency") or "allow"
    if policy not in ("allow", "forbid"):
        raise InvalidInput(f"concurrency {policy} is neither allow nor forbid")
    if policy == "forbid" and is_child:
        what = "launches that wait for their parents are skipped here when one of them begins"
        job.note(f"concurrency forbid: {what}")
    return "forbid" if policy == "forbid" else None


def _bounds(job: _Job, followed: dict[str, Any] | None) -> dict[str, Any]:
    """Return start and end; a child has no instants that its parent does not have."""
    found: dict[str, Any] = {}
    for key, ours, choose in (("starts_at", "start", max), ("expires_at", "end", min)):
        job.at(job.fields, key)
        texts = [one for one in ((followed or {}).get(ours), _moment(job, key)) if one]
        if texts:
            found[ours] = choose(texts)
    return found


def _moment(job: _Job, key: str) -> str | None:
    """Return a time of RFC 3339, which Go writes with the year 1 for none."""
    text = text_of(key, job.fields.get(key) or "")
    if not text or text.startswith("0001-"):
        return None
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    second = int(at.timestamp() // 1)
    return format_time(second + (key == "starts_at" and at.microsecond > 0))


def _places(job: _Job) -> dict[str, Any]:
    """Return where a job runs: tags are labels, and the number behind a colon how many executors;
    of several numbers the lowest one holds. Without a number dkron runs it on each."""
    job.at(job.fields, "tags")
    labels, counts = [], []
    for key, value in (job.fields.get("tags") or {}).items():
        label, *count = text_of(f"tag {key}", value).split(":")
        if len(count) == 1:
            if not _COUNT.fullmatch(count[0]) or not int(count[0]):
                raise InvalidInput(f"tag {key} {value}: dkron runs it on no node")
            counts.append(int(count[0]))
        if key == "server":
            continue
        if not _VALUE.fullmatch(label):
            raise InvalidInput(f"tag {key} {value} is not a label of an executor")
        labels.append(f"{key}={label}")
    where = ", ".join(labels) or None
    if not counts:
        return {"each": where or EXECUTOR_LABEL}
    return {"where": where, "parts": min(counts) if min(counts) > 1 else None}
