"""CronJobs of Kubernetes (batch/v1), as documents that are parsed already.

A job is imported if its command is known here. Each key of a CronJob is in `_KEYS`. Times that
Kubernetes counts from the start of a Job, which has several attempts, are options of ours only as
far as both mean the same: see `_times`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from cron.calendar.duration import format_duration
from cron.crontab.imported import NOT_OF_ITS_FORM, Imported, plain_name
from cron.crontab.kubernetes_values import pieces, quantity
from cron.crontab.options import CPUS_MAX, MEMORY_BYTES_MAX, MEMORY_BYTES_MIN, RETRIES_MAX
from cron.crontab.robfig import differs_at_shifts, read_robfig
from cron.errors import InvalidInput
from cron.limits import DEADLINE_S_MAX, TIMEOUT_S_MAX

_RETRIES: Final = 6
"""The default of `backoffLimit`."""
_FIRST_REST_S: Final = 10
_REST_MAX_S: Final = {"Never": 600, "OnFailure": 300}
"""The longest delay before a retry: of the controller, which makes a new pod, and of the kubelet,
which starts the container again."""

_CARRIED: Final = "carried"
_NOTED: Final = "noted"
_IRRELEVANT: Final = "irrelevant"
_KEYS: Final[dict[str, dict[str, str]]] = {
    "CronJob": {
        **dict.fromkeys(("metadata", "spec"), _CARRIED),
        **dict.fromkeys(("apiVersion", "kind", "status"), _IRRELEVANT),
    },
    "spec": {
        **dict.fromkeys(
            (
                *("schedule", "timeZone", "concurrencyPolicy", "startingDeadlineSeconds"),
                *("suspend", "jobTemplate"),
            ),
            _CARRIED,
        ),
        **dict.fromkeys(("successfulJobsHistoryLimit", "failedJobsHistoryLimit"), _IRRELEVANT),
    },
    "jobTemplate": {"spec": _CARRIED, "metadata": _IRRELEVANT},
    "jobTemplate.spec": {
        **dict.fromkeys(
            (
                *("template", "backoffLimit", "activeDeadlineSeconds", "completions"),
                *("parallelism", "suspend"),
            ),
            _CARRIED,
        ),
        **dict.fromkeys(
            (
                *("podFailurePolicy", "successPolicy", "backoffLimitPerIndex", "managedBy"),
                *("maxFailedIndexes", "completionMode", "podReplacementPolicy"),
            ),
            _NOTED,
        ),
        **dict.fromkeys(("ttlSecondsAfterFinished", "selector", "manualSelector"), _IRRELEVANT),
    },
    "template": {"spec": _CARRIED, "metadata": _IRRELEVANT},
    "template.spec": {
        **dict.fromkeys(
            ("activeDeadlineSeconds", "containers", "restartPolicy", "enableServiceLinks"), _CARRIED
        ),
        **dict.fromkeys(
            (
                *("affinity", "dnsConfig", "dnsPolicy", "hostAliases"),
                *("hostIPC", "hostNetwork", "hostPID", "hostUsers", "hostname", "initContainers"),
                *("ephemeralContainers", "nodeName", "nodeSelector", "os", "overhead"),
                *("preemptionPolicy", "priority", "priorityClassName", "resourceClaims"),
                *("resources", "runtimeClassName", "securityContext", "serviceAccount"),
                *("serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain"),
                *("terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints"),
                *("volumes", "hostnameOverride", "workloadRef"),
            ),
            _NOTED,
        ),
        **dict.fromkeys(
            (
                *("automountServiceAccountToken", "imagePullSecrets", "readinessGates"),
                *("schedulerName", "schedulingGates"),
            ),
            _IRRELEVANT,
        ),
    },
    "container": {
        **dict.fromkeys(
            ("image", "command", "args", "workingDir", "env", "envFrom", "resources"), _CARRIED
        ),
        **dict.fromkeys(
            (
                *("lifecycle", "livenessProbe", "ports", "readinessProbe", "restartPolicy"),
                *("restartPolicyRules", "securityContext", "startupProbe", "stdin", "stdinOnce"),
                *("tty", "volumeDevices", "volumeMounts"),
            ),
            _NOTED,
        ),
        **dict.fromkeys(
            (
                *("name", "imagePullPolicy", "resizePolicy", "terminationMessagePath"),
                *("terminationMessagePolicy",),
            ),
            _IRRELEVANT,
        ),
    },
    "limits": dict.fromkeys(("cpu", "memory"), _CARRIED)
    | dict.fromkeys(("ephemeral-storage",), _NOTED),
}
"""Each key of a CronJob. A key that is noted does not matter where it is empty; one that is in none
of these tables is noted as well."""
_DEFAULTS: Final = {"dnsPolicy": "ClusterFirst", "completionMode": "NonIndexed"}
"""Values of noted keys that the API server writes itself, and that change nothing."""
_SERVICE: Final = re.compile(r"[A-Z0-9_]+_(?:SERVICE_HOST|SERVICE_PORT\w*|PORT(?:_\d+_\w+)?)")
"""Variables of services, which a container has without saying so."""
_KEY_OF_MAP: Final = re.compile(r"[-._a-zA-Z0-9]+", re.ASCII)


class _Variables(NamedTuple):
    """The variables of a container: those with values, and of the secrets that they are."""

    values: dict[str, str]
    secrets: dict[str, str]
    elsewhere: set[str]
    """Those whose value only Kubernetes knows."""
    has_maps: bool
    """Whether there are more of them, in a ConfigMap or a Secret."""

    def forget(self, name: str) -> None:
        """Forget a variable, which is given again."""
        self.values.pop(name, None)
        self.secrets.pop(name, None)
        self.elsewhere.discard(name)

    def is_elsewhere(self, name: str) -> bool:
        """Return whether the value of a variable may be known to Kubernetes alone."""
        if name in self.values or name in self.secrets:
            return False
        is_of_map = self.has_maps and _KEY_OF_MAP.fullmatch(name) is not None
        return name in self.elsewhere or is_of_map or _SERVICE.fullmatch(name) is not None


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
                _import(name, one, imported)
            except InvalidInput as error:
                imported.leave_out(name, str(error))
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


def _import(name: str, one: dict[str, Any], imported: Imported) -> None:
    spec = one.get("spec") or {}
    job = spec["jobTemplate"].get("spec") or {}
    pod = job["template"].get("spec") or {}
    container, *others = pod["containers"]
    if not container.get("command"):
        raise InvalidInput(f"its command is that of the image {container.get('image')}")
    variables = _environment(name, container, imported)
    schedule, zone = _schedule(name, spec, imported)
    table = {
        "name": name,
        "schedule": schedule,
        "zone": zone,
        "command": _command(container, variables),
        "env": variables.values or None,
        "secret": [f"{key}:{secret}" for key, secret in variables.secrets.items()] or None,
        "cwd": container.get("workingDir") or None,
        "overlap": _overlap(name, spec, imported),
        **_times(name, spec, job, pod, imported),
        **_limits(name, container, imported),
    }
    imported.note(name, f"image {container.get('image')}: the command runs on an executor's host")
    if others:
        imported.note(name, f"{len(others)} more containers")
    _note_pauses(name, spec, job, imported)
    parts = {
        "CronJob": one,
        "spec": spec,
        "jobTemplate": spec["jobTemplate"],
        "jobTemplate.spec": job,
        "template": job["template"],
        "template.spec": pod,
        "container": container,
    }
    for part, fields in parts.items():
        _note_keys(name, part, fields, imported)
    imported.add(name, table)


def _note_keys(name: str, part: str, fields: dict[str, Any], imported: Imported) -> None:
    """Note the keys of a part that are not carried over."""
    for key, value in fields.items():
        kind = _KEYS[part].get(key)
        if kind is None:
            imported.note(name, f"{part}: {key}, which this importer does not know")
        elif kind is _NOTED and value and value != _DEFAULTS.get(key):
            text = f" {value}" if isinstance(value, (str, int)) else ""
            imported.note(name, f"{part}: {key}{text[:80]}")


def _schedule(name: str, spec: dict[str, Any], imported: Imported) -> tuple[str, str | None]:
    """Return the schedule and its zone. One that the schedule names wins, as in Kubernetes."""
    due = read_robfig(_text("schedule", spec["schedule"]), has_seconds=False)
    zone = spec.get("timeZone") or None
    if due.zone and zone and due.zone != zone:
        imported.note(name, f"timeZone {zone}: the schedule names {due.zone}, which counts there")
    zone = due.zone or zone
    imported.note_zone(name, due.text, zone)
    if due.text.startswith("@every"):
        imported.note(name, f"{due.text} counts from 1970 here, and there from the last run")
    elif differs_at_shifts(due.text, zone):
        what = f"schedule {due.text}: a time that a change of clocks skips or repeats is due once"
        imported.note(name, f"{what} here; there it is left out, or due twice")
    return due.text, zone


def _overlap(name: str, spec: dict[str, Any], imported: Imported) -> str | None:
    policy = _text("concurrencyPolicy", spec.get("concurrencyPolicy", "Allow"))
    if policy not in ("Allow", "Forbid", "Replace"):
        raise InvalidInput(f"concurrencyPolicy {policy} is none of Kubernetes")
    if policy == "Forbid":
        what = "an instant that falls due while a launch runs is skipped here; there the newest one"
        imported.note(name, f"concurrencyPolicy Forbid: {what} begins when the run is over")
    return policy.lower() if policy != "Allow" else None


def _times(
    name: str, spec: dict[str, Any], job: dict[str, Any], pod: dict[str, Any], imported: Imported
) -> dict[str, Any]:
    """Return timeout, deadline and retries.

    `startingDeadlineSeconds` is about the first attempt there, and a deadline here about each.
    `activeDeadlineSeconds` is about all attempts together, from the start of the first one: none of
    them is longer, and none begins later. So both are carried over as far as that goes.
    """
    start_s = _seconds("startingDeadlineSeconds", spec.get("startingDeadlineSeconds"))
    active_s = _seconds("activeDeadlineSeconds", job.get("activeDeadlineSeconds"))
    pod_s = _seconds("activeDeadlineSeconds", pod.get("activeDeadlineSeconds"))
    restart = pod.get("restartPolicy", "Never")
    if restart not in _REST_MAX_S:
        raise InvalidInput(f"restartPolicy {restart} is none of a Job")
    limit = job.get("backoffLimit")
    retries = _RETRIES if limit is None else _whole("backoffLimit", limit)
    if retries > RETRIES_MAX:
        imported.note(name, f"backoffLimit {retries}: at most {RETRIES_MAX} retries here")
        retries = RETRIES_MAX
    if active_s and (fitting := _retries_within(active_s, _REST_MAX_S[restart])) < retries:
        what = f"delays before retries leave time for {fitting} in activeDeadlineSeconds {active_s}"
        imported.note(name, f"backoffLimit {retries}: {what}")
        retries = fitting
    deadline_s = start_s
    if start_s is None:
        deadline_s = DEADLINE_S_MAX  # it begins however late
    elif retries:
        deadline_s = start_s + active_s if active_s else None
        late = f"up to {deadline_s} s late" if deadline_s else "later"
        what = f"a deadline here ends retries too, so a launch may begin {late}"
        imported.note(name, f"startingDeadlineSeconds {start_s}: {what}")
    timeout_s = min((one for one in (active_s, pod_s) if one), default=None)
    if retries and (active_s or (pod_s and restart == "OnFailure")):
        what = f"is of all {retries + 1} attempts together there, and of each one here"
        imported.note(name, f"activeDeadlineSeconds {active_s or pod_s} {what}")
    for key, most_s, value in (
        ("startingDeadlineSeconds", DEADLINE_S_MAX, deadline_s),
        ("activeDeadlineSeconds", TIMEOUT_S_MAX, timeout_s),
    ):
        if value and value > most_s:
            imported.note(name, f"{key}: at most {format_duration(most_s)} here")
    return {
        "timeout": format_duration(min(timeout_s, TIMEOUT_S_MAX)) if timeout_s else None,
        "deadline": format_duration(min(deadline_s, DEADLINE_S_MAX)) if deadline_s else None,
        "retries": retries or None,
        "backoff-max": format_duration(_REST_MAX_S[restart]) if retries else None,
    }


def _retries_within(active_s: int, rest_max_s: int) -> int:
    """Return how many retries can begin at all before a Job is over: their delays alone take that
    long."""
    count = passed_s = 0
    while count < RETRIES_MAX:
        passed_s += min(_FIRST_REST_S << min(count, 16), rest_max_s)
        if passed_s >= active_s:
            break
        count += 1
    return count


def _limits(name: str, container: dict[str, Any], imported: Imported) -> dict[str, str | None]:
    """Return CPUs and memory, rounded up; 0 is no limit, and too much is none here."""
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    if resources.get("requests"):
        imported.note(name, "resources.requests: executors do not reserve what is not a limit")
    if claims := sorted({*resources} - {"limits", "requests"}):
        imported.note(name, f"resources: {', '.join(claims)}")
    _note_keys(name, "limits", limits, imported)
    milli = quantity(limits.get("cpu") or 0, per_unit=1000)
    size = quantity(limits.get("memory") or 0)
    if milli > CPUS_MAX * 1000:
        imported.note(name, f"cpu {limits['cpu']}: a launch is not limited to that many here")
        milli = 0
    if size > MEMORY_BYTES_MAX:
        imported.note(name, f"memory {limits['memory']}: a launch is not limited to that here")
        size = 0
    elif 0 < size < MEMORY_BYTES_MIN:
        imported.note(name, f"memory {limits['memory']}: the least is 1M here")
        size = MEMORY_BYTES_MIN
    return {
        "cpu": f"{milli // 1000}.{milli % 1000:03}" if milli else None,
        "memory": f"{-(-size // 1024)}K" if size else None,
    }


def _note_pauses(name: str, spec: dict[str, Any], job: dict[str, Any], imported: Imported) -> None:
    """Note what keeps a CronJob from running, and how many pods it has."""
    if spec.get("suspend"):
        imported.note(name, f"it is suspended: raftcron pause {name}")
    if job.get("suspend"):
        imported.note(name, f"its Jobs are suspended: raftcron pause {name}")
    if job.get("parallelism") == 0:
        imported.note(name, f"parallelism 0, so it does not run: raftcron pause {name}")
    for key in ("completions", "parallelism"):
        if job.get(key) not in (None, 0, 1):
            imported.note(name, f"{key} {job[key]}: the command runs once here; see parts")


def _command(container: dict[str, Any], variables: _Variables) -> str:
    """Return a command line; of `/bin/sh -c TEXT` the text, which runs in a shell anyway.

    Raises:
        InvalidInput: it has a variable whose value only Kubernetes knows.
    """
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    texts = [_text("command", word) for word in words]
    if len(texts) == 3 and texts[0] in ("/bin/sh", "sh") and texts[1] == "-c":
        return _expanded(texts[2], variables, is_script=True)
    return " ".join(_expanded(text, variables, is_script=False) for text in texts)


def _expanded(text: str, variables: _Variables, *, is_script: bool) -> str:
    """Return a text with its variables replaced: a script, or a word that a shell reads as such."""
    plain, quoted = "", ""
    for piece in pieces(text):
        name = piece.text
        if not piece.is_variable:
            plain += name
        elif name in variables.values:
            plain += variables.values[name]
        elif name in variables.secrets and not is_script:
            quoted += (shlex.quote(plain) if plain else "") + f'"${{{name}}}"'
            plain = ""
        elif name in variables.secrets or variables.is_elsewhere(name):
            raise InvalidInput(f"command: the value of $({name}) is known to Kubernetes alone")
        else:
            plain += f"$({name})"
    if is_script:
        return plain
    return quoted + (shlex.quote(plain) if plain or not quoted else "")


def _environment(name: str, container: dict[str, Any], imported: Imported) -> _Variables:
    """Return the variables. One with `$(NAME)` has the value that NAME has up to there."""
    found = _Variables({}, {}, set(), bool(container.get("envFrom")))
    if found.has_maps:
        imported.note(name, "envFrom: variables of a ConfigMap or Secret")
    for one in container.get("env") or []:
        variable = _text("env", one["name"])
        if left := sorted({*one} - {"name", "value", "valueFrom"}):
            imported.note(name, f"env: {', '.join(left)} of {variable}")
        if "valueFrom" in one and not one.get("value"):
            _take(name, variable, one["valueFrom"] or {}, found, imported)
            continue
        parts = pieces(_text(f"env: {variable}", one.get("value") or ""))
        needed = [part.text for part in parts if part.is_variable]
        if missing := [key for key in needed if key in found.secrets or found.is_elsewhere(key)]:
            found.forget(variable)
            found.elsewhere.add(variable)
            what = f"which has $({missing[0]}), whose value is elsewhere in Kubernetes"
            imported.note(name, f"env: variable {variable}, {what}")
            continue
        value = "".join(
            found.values.get(part.text, f"$({part.text})") if part.is_variable else part.text
            for part in parts
        )
        found.forget(variable)
        found.values[variable] = value
    return found


def _take(
    name: str, variable: str, source: dict[str, Any], found: _Variables, imported: Imported
) -> None:
    """Take a variable whose value is elsewhere: the key KEY of the Secret NAME is our NAME/KEY."""
    found.forget(variable)
    key: dict[str, Any] = source.get("secretKeyRef") or {}
    if not key:
        found.elsewhere.add(variable)
        imported.note(name, f"env: variable {variable}, whose value is elsewhere in Kubernetes")
        return
    secret = f"{key['name']}/{key['key']}"
    found.secrets[variable] = secret
    imported.note(name, f"secret {secret}: put it where executors find secrets")
    if key.get("optional"):
        imported.note(name, f"secret {secret}: it is optional there, and needed here")


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{what}: {str(value)[:40]} is not a text")
    return value


def _whole(what: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInput(f"{what}: {str(value)[:40]} is not a number of Kubernetes")
    return value


def _seconds(what: str, value: object) -> int | None:
    """Return a number of seconds, None if it is not given.

    Raises:
        InvalidInput: it is none, or is 0: then nothing ever runs there.
    """
    if value == 0 and not isinstance(value, bool):
        raise InvalidInput(f"{what}: 0 lets nothing run")
    return None if value is None else _whole(what, value)
