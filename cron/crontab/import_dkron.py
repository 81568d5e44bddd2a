"""Jobs of dkron (4.x), as its API answers `GET /v1/jobs`."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from cron.crontab.imported import NOT_OF_ITS_FORM, Imported, plain_name
from cron.errors import InvalidInput

_FIELDS: Final = 6
_SECONDS: Final = re.compile(r"\*(?:/([1-9][0-9]?))?")
_SILENT: Final = frozenset(
    {
        *("id", "name", "displayname", "schedule", "timezone", "owner", "owner_email"),
        *("success_count", "error_count", "last_success", "last_error", "disabled", "tags"),
        *("metadata", "retries", "dependent_jobs", "parent_job", "processors", "concurrency"),
        *("executor", "executor_config", "status", "next", "ephemeral", "expires_at", "command"),
    }
)
"""Fields that are carried over, noted by themselves, or say nothing of the job to come."""
_CONFIG: Final = frozenset(("command", "shell", "env", "cwd", "timeout", "mem_limit", "payload"))
_SIZE: Final = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,3}))?(B|BYTES|[KMGT]B?)?", re.ASCII)
_UNITS: Final = {"K": 10, "M": 20, "G": 30, "T": 40}
_SHELL: Final = frozenset("$`*?~;&|<>(){}[]#")
_COUNT: Final = re.compile("[0-9]{1,6}", re.ASCII)


def import_dkron(content: bytes) -> Imported:
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
    by_name = {job["name"]: job for job in jobs}
    imported = Imported()
    for job in jobs:
        try:
            _import(job, by_name, imported)
        except NOT_OF_ITS_FORM as error:
            imported.leave_out(job["name"], f"it is not of the form of a job: {error!r}"[:200])
    return imported


def _documents(text: str) -> Iterator[Any]:
    """Yield the values of a text, and those in its lists."""
    decoder, at = json.JSONDecoder(), 0
    while rest := text[at:].lstrip():
        value, end = decoder.raw_decode(rest)
        at = len(text) - len(rest) + end
        yield from value if isinstance(value, list) else (value,)


def _import(job: dict[str, Any], by_name: dict[str, Any], imported: Imported) -> None:
    name = job["name"]
    config = job.get("executor_config") or {}
    if job.get("disabled"):
        imported.leave_out(name, "it is disabled")
        return
    if job.get("executor", "shell") != "shell":
        why = f"its executor is {job['executor']}: serve it as a handler, see docs/targets.md"
        imported.leave_out(name, why)
        return
    parent = job.get("parent_job") or ""
    source = by_name.get(parent, {}) if parent else job
    schedule = _schedule(name, str(source.get("schedule", "")), imported)
    if schedule is None:
        return
    zone = source.get("timezone") or None
    table: dict[str, Any] = {
        "name": plain_name(name),
        "schedule": schedule,
        "zone": zone,
        # The second one is of early releases of dkron; its documents still have it.
        "command": config.get("command") or job.get("command") or "",
        "stdin": base64.b64decode(config.get("payload") or "", validate=True).decode() or None,
        "env": _environment(config.get("env") or "") or None,
        "cwd": config.get("cwd") or None,
        "timeout": config.get("timeout") or None,
        "memory": _memory(config.get("mem_limit") or ""),
        "retries": job.get("retries") or None,
        "overlap": "forbid" if job.get("concurrency") == "forbid" else None,
        "end": job.get("expires_at") or None,
        "after": [plain_name(parent)] if parent else None,
        **_places(name, job.get("tags") or {}, imported),
    }
    imported.note_zone(name, schedule, zone)
    _note_left(name, job, config, imported)
    imported.add(name, table)


def _note_left(name: str, job: dict[str, Any], config: dict[str, Any], imported: Imported) -> None:
    """Note what a table does not have of a job and of its executor's configuration."""
    command = str(config.get("command", ""))
    if str(config.get("shell")).lower() not in ("true", "1") and not _SHELL.isdisjoint(command):
        imported.note(name, "no shell reads its command there, and here one does: quote its words")
    for what in ("processors", "metadata", "ephemeral"):
        if job.get(what):
            imported.note(name, f"{what} {json.dumps(job[what])[:80]}")
    if job.get("owner_email"):
        imported.note(name, f"mail to {job['owner_email']}: write alert=failed and to=CHANNEL")
    for key in sorted({*job} - _SILENT) + sorted({*config} - _CONFIG):
        imported.note(name, f"{key}, which has no equivalent")


def _schedule(name: str, text: str, imported: Imported) -> str | None:
    """Return dkron's schedule, which begins with seconds, as one of five fields; None where the job
    is left out."""
    word = text.split(" ", 1)[0]
    if word in ("@at", "@manually", "@after", "@parent", ""):
        hint = {"@at": "submit a task for that time", "@manually": "it can be triggered"}
        why = hint.get(word, "it has no schedule of its own")
        imported.leave_out(name, f"schedule {text or 'missing'}: {why}")
        return None
    if word in ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"):
        return word
    if word == "@minutely":
        return "* * * * *"
    fields = text.split()
    if word.startswith("@") or len(fields) != _FIELDS:
        return text
    second, *rest = fields
    repeated = _SECONDS.fullmatch(second)
    if repeated is not None and all(field in ("*", "?") for field in rest):
        return f"@every {repeated[1] or 1}s"
    if not _COUNT.fullmatch(second):
        imported.leave_out(name, f"schedule {text}: jobs here start at whole minutes")
        return None
    if int(second):
        imported.note(name, f"second {second}: it is due at the whole minute")
    # dkron's ? is any day, and its ~ a value that is derived from the name.
    days = ["*" if field == "?" else field for field in rest]
    return " ".join(field.replace("~", "?") for field in days)


def _environment(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {key.strip(): value for key, _, value in pairs}


def _memory(text: str) -> str | None:
    """Return a size such as `512MB`, or bytes, in whole KiB; None for none."""
    if not text:
        return None
    match = _SIZE.fullmatch(str(text).strip().upper())
    if match is None:
        raise ValueError(f"mem_limit {text}")
    thousandths = int(match[1]) * 1000 + int((match[2] or "").ljust(3, "0"))
    size = (thousandths << _UNITS.get((match[3] or "B")[0], 0)) // 1000
    return f"{max(1024, -(-size // 1024))}K"


def _places(name: str, tags: dict[str, Any], imported: Imported) -> dict[str, Any]:
    """Return where a job runs: tags are labels, and the number behind a colon how many executors;
    of several numbers the lowest one holds."""
    labels, counts = [], []
    for key, value in tags.items():
        label, colon, count = str(value).partition(":")
        if colon and _COUNT.fullmatch(count):
            counts.append(int(count))
        if key != "server":
            labels.append(f"{key}={label}")
    where, parts = ", ".join(labels) or None, min(counts, default=0)
    if not parts:
        what = f"each={where}" if where else "each=LABELS"
        imported.note(name, f"dkron runs it on every node, here it runs on one: write {what}")
    return {"where": where, "parts": parts if parts > 1 else None}
