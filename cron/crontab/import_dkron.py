"""Jobs of dkron (4.x), as its API answers `GET /v1/jobs`."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from cron.crontab.imported import Imported, plain_name
from cron.errors import InvalidInput

_FIELDS: Final = 6
_SECONDS: Final = re.compile(r"\*(?:/([1-9][0-9]?))?")
_SILENT: Final = frozenset(
    {
        *("id", "name", "displayname", "schedule", "timezone", "owner", "owner_email"),
        *("success_count", "error_count", "last_success", "last_error", "disabled", "tags"),
        *("metadata", "retries", "dependent_jobs", "parent_job", "processors", "concurrency"),
        *("executor", "executor_config", "status", "next", "ephemeral", "expires_at"),
    }
)
"""Fields that are carried over, noted by themselves, or say nothing of the job to come."""
_CONFIG: Final = frozenset(("command", "shell", "env", "cwd", "timeout"))


def import_dkron(content: bytes) -> Imported:
    """Return the jobs of a document of dkron: a job, or a list of jobs.

    Raises:
        InvalidInput: it is none.
    """
    try:
        found = json.loads(content)
    except ValueError as error:
        raise InvalidInput(f"it is not JSON: {error}", "save the answer of /v1/jobs") from error
    jobs = found if isinstance(found, list) else [found]
    if not all(isinstance(job, dict) and isinstance(job.get("name"), str) for job in jobs):
        raise InvalidInput("it is not a list of dkron's jobs", "save the answer of /v1/jobs")
    by_name = {job["name"]: job for job in jobs}
    imported = Imported()
    for job in jobs:
        _import(job, by_name, imported)
    return imported


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
    table: dict[str, Any] = {
        "name": plain_name(name),
        "schedule": schedule,
        "zone": source.get("timezone") or None,
        "command": config.get("command", ""),
        "env": _environment(config.get("env", "")) or None,
        "cwd": config.get("cwd") or None,
        "timeout": config.get("timeout") or None,
        "retries": job.get("retries") or None,
        "overlap": "forbid" if job.get("concurrency") == "forbid" else None,
        "end": job.get("expires_at") or None,
        "after": [plain_name(parent)] if parent else None,
        **_places(name, job.get("tags") or {}, imported),
    }
    for what in ("processors", "metadata", "ephemeral"):
        if job.get(what):
            imported.note(name, f"{what} {json.dumps(job[what])[:80]}")
    if job.get("owner_email"):
        imported.note(name, f"mail to {job['owner_email']}: write alert=failed and to=CHANNEL")
    for key in sorted({*job} - _SILENT) + sorted({*config} - _CONFIG):
        imported.note(name, f"{key}, which has no equivalent")
    imported.add(name, table)


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
    if not second.isdigit():
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


def _places(name: str, tags: dict[str, Any], imported: Imported) -> dict[str, Any]:
    """Return where a job runs: tags are labels, and the number behind a colon how many."""
    labels, parts = [], 0
    for key, value in tags.items():
        label, colon, count = str(value).partition(":")
        if colon and count.isdigit():
            parts = max(parts, int(count))
        if key != "server":
            labels.append(f"{key}={label}")
    where = ", ".join(labels) or None
    if not parts:
        what = f"each={where}" if where else "each=LABELS"
        imported.note(name, f"dkron runs it on every node, here it runs on one: write {what}")
    return {"where": where, "parts": parts if parts > 1 else None}
