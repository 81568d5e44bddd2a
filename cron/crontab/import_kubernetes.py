"""CronJobs of Kubernetes (batch/v1), as documents that are parsed already."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any, Final

from cron.crontab.imported import NOT_OF_ITS_FORM, Imported, plain_name
from cron.errors import InvalidInput

_QUANTITY: Final = re.compile(r"([0-9]{1,18})(Ki|Mi|Gi|Ti|k|M|G|T)?", re.ASCII)
_UNITS: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}
_ZONED: Final = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(.*)")
_RETRIES: Final = 6
"""The default of `backoffLimit`."""
_NAMED: Final = ("initContainers", "volumes", "nodeSelector", "tolerations", "serviceAccountName")
_SILENT: Final = {
    "cron job": frozenset(
        {
            *("schedule", "timeZone", "concurrencyPolicy", "startingDeadlineSeconds", "suspend"),
            *("jobTemplate", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"),
        }
    ),
    "job": frozenset(
        {
            *("template", "backoffLimit", "activeDeadlineSeconds", "completions", "parallelism"),
            *("ttlSecondsAfterFinished", "selector", "manualSelector", "suspend"),
        }
    ),
    "pod": frozenset({*("containers", "restartPolicy", "schedulerName", "dnsPolicy"), *_NAMED}),
    "container": frozenset(
        {
            *("name", "image", "imagePullPolicy", "command", "args", "workingDir", "env"),
            *("envFrom", "resources", "terminationMessagePath", "terminationMessagePolicy"),
        }
    ),
}
"""Fields that are carried over, noted by themselves, or mean nothing outside of Kubernetes."""


def import_kubernetes(documents: Iterable[Any]) -> Imported:
    """Return the CronJobs among documents, or in lists.

    Raises:
        InvalidInput: there are none.
    """
    imported, count = Imported(), 0
    try:
        for one in _cron_jobs(documents):
            count += 1
            metadata = one.get("metadata")
            names = metadata if isinstance(metadata, dict) else {}
            tenant = plain_name(str(names.get("namespace") or "default"))
            name = f"{tenant}/{plain_name(str(names.get('name', '')))}"
            try:
                _import(name, one.get("spec") or {}, imported)
            except NOT_OF_ITS_FORM as error:
                imported.leave_out(name, f"it is not of the form of a CronJob: {error!r}"[:200])
    except RecursionError as error:
        raise InvalidInput("its lists are nested too deeply") from error
    if not count:
        hint = "name a file with kind: CronJob, or save `kubectl get cronjobs -A -o json`"
        raise InvalidInput("there is no CronJob", hint)
    return imported


def _cron_jobs(documents: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for one in documents:
        if isinstance(one, dict) and one.get("kind") == "CronJob":
            yield one
        elif isinstance(one, dict) and isinstance(one.get("items"), list):
            yield from _cron_jobs(one["items"])


def _import(name: str, spec: dict[str, Any], imported: Imported) -> None:
    job = spec["jobTemplate"].get("spec") or {}
    pod = job["template"].get("spec") or {}
    container, *others = pod["containers"]
    command = [*(container.get("command") or []), *(container.get("args") or [])]
    if not container.get("command"):
        imported.leave_out(name, f"its command is that of the image {container.get('image')}")
        return
    zoned = _ZONED.fullmatch(spec["schedule"])
    schedule = zoned[2] if zoned else spec["schedule"]
    zone = spec.get("timeZone") or (zoned[1] if zoned else None)
    resources = (container.get("resources") or {}).get("limits") or {}
    retries = job.get("backoffLimit", _RETRIES)
    deadline_s, timeout_s = spec.get("startingDeadlineSeconds"), job.get("activeDeadlineSeconds")
    overlap = spec.get("concurrencyPolicy", "Allow").lower()
    table = {
        "name": name,
        "schedule": schedule,
        "zone": zone,
        "command": _command(command),
        "env": _environment(name, container, imported) or None,
        "secret": _secrets(name, container, imported) or None,
        "cwd": container.get("workingDir"),
        "timeout": f"{timeout_s}s" if timeout_s else None,
        "deadline": f"{deadline_s}s" if deadline_s else None,
        "overlap": overlap if overlap != "allow" else None,
        "retries": retries or None,
        "backoff-max": "6m" if retries else None,
        "cpu": _cpu(str(resources["cpu"])) if "cpu" in resources else None,
        "memory": _memory(str(resources["memory"])) if "memory" in resources else None,
    }
    imported.note(name, f"image {container.get('image')}: the command runs on an executor's host")
    imported.note_zone(name, schedule, zone)
    if spec.get("suspend"):
        imported.note(name, f"it is suspended: raftcron pause {name}")
    if others:
        imported.note(name, f"{len(others)} more containers")
    for key in ("completions", "parallelism"):
        if job.get(key, 1) != 1:
            imported.note(name, f"{key} {job[key]}: see parts")
    for key in _NAMED:
        if pod.get(key):
            imported.note(name, key)
    parts = {"cron job": spec, "job": job, "pod": pod, "container": container}
    for part, fields in parts.items():
        if left := sorted(key for key in {*fields} - _SILENT[part] if fields[key]):
            imported.note(name, f"of its {part}: {', '.join(left)}")
    imported.add(name, table)


def _command(words: list[str]) -> str:
    """Return a command line; of `/bin/sh -c TEXT` the text, which runs in a shell anyway."""
    if len(words) == 3 and words[0] in ("/bin/sh", "sh") and words[1] == "-c":
        return str(words[2])
    return shlex.join(map(str, words))


def _environment(name: str, container: dict[str, Any], imported: Imported) -> dict[str, str]:
    found = {}
    for one in container.get("env") or []:
        if "value" in one:
            found[str(one["name"])] = str(one["value"])
        elif not _reference(one):
            imported.note(name, f"variable {one['name']}, whose value is elsewhere in Kubernetes")
    if container.get("envFrom"):
        imported.note(name, "envFrom: variables of a ConfigMap or Secret")
    return found


def _reference(variable: dict[str, Any]) -> dict[str, Any]:
    """Return which key of which Secret a variable is, empty for other variables."""
    found: dict[str, Any] = (variable.get("valueFrom") or {}).get("secretKeyRef") or {}
    return found


def _secrets(name: str, container: dict[str, Any], imported: Imported) -> list[str]:
    """Return variables that are keys of Secrets: the key KEY of Secret NAME is our NAME/KEY."""
    found = []
    for one in container.get("env") or []:
        if "value" not in one and (key := _reference(one)):
            secret = f"{key['name']}/{key['key']}"
            found.append(f"{one['name']}:{secret}")
            imported.note(name, f"secret {secret}: put it where executors find secrets")
    return found


def _cpu(text: str) -> str:
    milli = int(text[:-1]) if text.endswith("m") else round(float(text) * 1000)
    return f"{milli // 1000}.{milli % 1000:03}"


def _memory(text: str) -> str:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"memory {text}")
    size = int(match[1]) << _UNITS.get(match[2], 0)
    size *= {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}.get(match[2], 1)
    return f"{max(1024, -(-size // 1024))}K"
