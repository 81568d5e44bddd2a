"""CronJobs of Kubernetes (batch/v1), as documents that are parsed already.

A job is imported if its command is known here. `KEYS` has each key of a CronJob. Times that
Kubernetes counts from the start of a Job, which has several attempts, are options of ours only as
far as both mean the same: see `_times`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from cron.calendar.duration import format_duration
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
from cron.crontab.kubernetes_forms import check_form
from cron.crontab.kubernetes_values import pieces, quantity
from cron.crontab.located import Entry, place_of, text_of
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
_SECONDS: Final = ("startingDeadlineSeconds", "activeDeadlineSeconds")


def _of(part: str, treatment: Treatment, why: str, *names: str) -> dict[str, Key]:
    return keys(treatment, why, *(f"{part}.{name}" for name in names))


_ONE_COMMAND: Final = "a job has one command, on an executor's host"
_NO_CONTAINER: Final = "there is no container here"
_OF_CLUSTER: Final = "it is about the objects of the cluster"
KEYS: Final[dict[str, Key]] = {
    **_of("CronJob", Treatment.CARRIED, "name and tenant", "metadata", "spec"),
    **_of("CronJob", Treatment.IRRELEVANT, _OF_CLUSTER, "apiVersion", "kind", "status"),
    **_of("spec", Treatment.CARRIED, "schedule and zone", "schedule", "timeZone"),
    **_of("spec", Treatment.CARRIED, "overlap", "concurrencyPolicy"),
    **_of("spec", Treatment.CARRIED, "deadline", "startingDeadlineSeconds"),
    **_of("spec", Treatment.CARRIED, "paused", "suspend"),
    **_of("spec", Treatment.CARRIED, "see jobTemplate", "jobTemplate"),
    **_of(
        *("spec", Treatment.IRRELEVANT, _OF_CLUSTER),
        *("successfulJobsHistoryLimit", "failedJobsHistoryLimit"),
    ),
    **_of("jobTemplate", Treatment.CARRIED, "see jobTemplate.spec", "spec"),
    **_of("jobTemplate", Treatment.IRRELEVANT, _OF_CLUSTER, "metadata"),
    **_of("jobTemplate.spec", Treatment.CARRIED, "see template", "template"),
    **_of("jobTemplate.spec", Treatment.CARRIED, "retries", "backoffLimit"),
    **_of("jobTemplate.spec", Treatment.CARRIED, "timeout", "activeDeadlineSeconds"),
    **_of("jobTemplate.spec", Treatment.CARRIED, "paused", "suspend"),
    **_of(
        *("jobTemplate.spec", Treatment.CARRIED, "1, and a note for more"),
        *("completions", "parallelism"),
    ),
    **_of(
        *("jobTemplate.spec", Treatment.NOTED, "write retry-on or fatal-on for exit codes"),
        *("podFailurePolicy",),
    ),
    **_of(
        *("jobTemplate.spec", Treatment.NOTED, "the command runs once here"),
        *("successPolicy", "backoffLimitPerIndex", "maxFailedIndexes", "completionMode"),
    ),
    **_of(*("jobTemplate.spec", Treatment.NOTED, "another controller runs it there"), "managedBy"),
    **_of(
        *("jobTemplate.spec", Treatment.IRRELEVANT, _OF_CLUSTER, "ttlSecondsAfterFinished"),
        *("scheduling", "selector", "manualSelector", "podReplacementPolicy"),
    ),
    **_of("template", Treatment.CARRIED, "see template.spec", "spec"),
    **_of("template", Treatment.IRRELEVANT, _OF_CLUSTER, "metadata"),
    **_of("template.spec", Treatment.CARRIED, "the first one", "containers"),
    **_of("template.spec", Treatment.CARRIED, "backoff-max", "restartPolicy"),
    **_of("template.spec", Treatment.CARRIED, "timeout", "activeDeadlineSeconds"),
    **_of("template.spec", Treatment.NOTED, _ONE_COMMAND, "initContainers", "ephemeralContainers"),
    **_of(
        *("template.spec", Treatment.NOTED, "write where= with labels of executors"),
        *("affinity", "nodeName", "nodeSelector", "os", "runtimeClassName", "tolerations"),
        "topologySpreadConstraints",
    ),
    **_of(
        *("template.spec", Treatment.NOTED, "write priority="),
        *("preemptionPolicy", "priority", "priorityClassName"),
    ),
    **_of(
        *("template.spec", Treatment.NOTED, "term_grace_ms of the executor says it here"),
        "terminationGracePeriodSeconds",
    ),
    **_of(
        *("template.spec", Treatment.NOTED, "the command has the host's own here"),
        *("dnsConfig", "dnsPolicy", "hostAliases", "hostIPC", "hostNetwork", "hostPID"),
        *("hostUsers", "hostname", "hostnameOverride", "setHostnameAsFQDN", "subdomain"),
        *("securityContext", "serviceAccount", "serviceAccountName", "shareProcessNamespace"),
        *("volumes", "overhead", "resourceClaims", "resources", "workloadRef"),
    ),
    **_of(
        *("template.spec", Treatment.IRRELEVANT, _OF_CLUSTER),
        *("automountServiceAccountToken", "enableServiceLinks", "imagePullSecrets"),
        *(
            "readinessGates",
            "schedulerName",
            "schedulingGates",
            "schedulingGroup",
            "evictionResponders",
        ),
    ),
    **_of("container", Treatment.CARRIED, "command", "command", "args"),
    **_of("container", Treatment.CARRIED, "env and secret", "env"),
    **_of("container", Treatment.CARRIED, "cwd", "workingDir"),
    **_of("container", Treatment.CARRIED, "see resources", "resources"),
    **_of(*("container", Treatment.NOTED, "the command runs on an executor's host"), "image"),
    **_of(
        *("container", Treatment.NOTED, "write these variables of a ConfigMap or Secret into env"),
        "envFrom",
    ),
    **_of(
        *("container", Treatment.NOTED, _NO_CONTAINER, "lifecycle", "livenessProbe", "ports"),
        *("readinessProbe", "restartPolicy", "restartPolicyRules", "securityContext"),
        *("startupProbe", "stdin", "stdinOnce", "tty", "volumeDevices", "volumeMounts"),
    ),
    **_of(
        *("container", Treatment.IRRELEVANT, _NO_CONTAINER, "name", "imagePullPolicy"),
        *("resizePolicy", "terminationMessagePath", "terminationMessagePolicy"),
    ),
    **_of("resources", Treatment.CARRIED, "see limits", "limits"),
    **_of(
        *("resources", Treatment.NOTED, "executors do not reserve what is not a limit"),
        *("requests", "claims"),
    ),
    **_of("limits", Treatment.CARRIED, "cpu", "cpu"),
    **_of("limits", Treatment.CARRIED, "memory", "memory"),
    **_of("limits", Treatment.NOTED, "only cpu and memory are limited", "ephemeral-storage"),
    **_of("env", Treatment.CARRIED, "env and secret", "name", "value", "valueFrom"),
}
"""Each key of a CronJob, by the part that it is in. A key that is noted does not matter where it is
empty; one that is in no row is noted even then."""
_DEFAULTS: Final = {"dnsPolicy": "ClusterFirst", "completionMode": "NonIndexed"}
"""Values of noted keys that the API server writes itself, and that change nothing."""
_SERVICE: Final = re.compile(r"[A-Z0-9_]+_(?:SERVICE_HOST|SERVICE_PORT\w*|PORT(?:_\d+_\w+)?)")
"""Variables of services, which a container has without saying so."""
_KEY_OF_MAP: Final = re.compile(r"[-._a-zA-Z0-9]+", re.ASCII)


class _Variables(msgspec.Struct):
    """The variables of a container: those with values, and the secrets that others are."""

    values: dict[str, str] = {}
    secrets: dict[str, str] = {}
    elsewhere: set[str] = set()
    """Those whose value only Kubernetes knows."""
    has_maps: bool = False
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


class _CronJob(Entry):
    """A CronJob that is read."""

    def check_forms(self, fields: dict[str, Any]) -> None:
        """Return if each value of a part has the form that the API reads.

        Raises:
            InvalidInput: one has another form.
        """
        for key, value in fields.items():
            self.at(fields, key)
            check_form(key, value)

    def part(self, fields: dict[str, Any], key: str) -> dict[str, Any]:
        """Return the part at a key, an empty one for none.

        Raises:
            InvalidInput: it is none, or a value of either has another form than the API reads.
        """
        self.check_forms(fields)
        part: dict[str, Any] = fields.get(key) or {}
        self.check_forms(part)
        return part

    def note_keys(self, part: str, fields: dict[str, Any]) -> None:
        """Note the keys of a part that are not carried over."""
        found = []
        for key, value in fields.items():
            row = KEYS.get(f"{part}.{key}")
            is_empty = not value or value == _DEFAULTS.get(key)
            if row is not None and row.treatment is Treatment.NOTED and is_empty:
                continue
            shown = f" {value}" if isinstance(value, (str, int, float)) else ""
            where = place_of(self.file, fields, key)
            found.append(Found(f"{part}.{key}", f"{part}: {key}{shown}", where))
        self.imported.note_keys(self.name, KEYS, found)


def import_kubernetes(documents: Iterable[Any], *, file: str = "") -> Imported:
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
            job = _CronJob(f"{tenant}/{plain_name(str(names.get('name', '')))}", file, imported)
            job.at(one)
            try:
                _import(job, one)
            except InvalidInput as error:
                job.leave_out(str(error))
            except NOT_OF_ITS_FORM as error:
                why = f"it is not of the form of a CronJob: {error!r}"[:200]
                job.leave_out(why)
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


def _import(job: _CronJob, one: dict[str, Any]) -> None:
    spec = job.part(one, "spec")
    of_job = job.part(job.part(spec, "jobTemplate"), "spec")
    pod = job.part(job.part(of_job, "template"), "spec")
    job.part(one, "metadata")
    container, *others = pod["containers"]
    job.check_forms(container)
    job.part(job.part(container, "resources"), "limits")
    for variable in container.get("env") or []:
        job.part(job.part(variable, "valueFrom"), "secretKeyRef")
    if not container.get("command"):
        job.at(container, "image")
        raise InvalidInput(f"its command is that of the image {container.get('image')}")
    variables = _environment(job, container)
    schedule, zone = _schedule(job, spec)
    command = _command(job, container, variables)
    exports, env = exported(variables.values)
    table = {
        "name": job.name,
        "schedule": schedule,
        "zone": zone,
        "command": "\n".join((*exports, command)),
        "env": env or None,
        "secret": [f"{key}:{secret}" for key, secret in variables.secrets.items()] or None,
        "cwd": container.get("workingDir") or None,
        "overlap": _overlap(job, spec),
        **_times(job, spec, of_job, pod),
        **_limits(job, container),
        "paused": _paused(job, spec, of_job),
    }
    if others:
        job.at(pod, "containers")
        job.note(f"{len(others)} more containers: {_ONE_COMMAND}")
    for part, fields in {
        "CronJob": one,
        "spec": spec,
        "jobTemplate": spec["jobTemplate"],
        "jobTemplate.spec": of_job,
        "template": of_job["template"],
        "template.spec": pod,
        "container": container,
        "resources": container.get("resources") or {},
        "limits": (container.get("resources") or {}).get("limits") or {},
    }.items():
        job.note_keys(part, fields)
    job.at(one)
    job.imported.add(job.name, table, job.place)


def _schedule(job: _CronJob, spec: dict[str, Any]) -> tuple[str, str | None]:
    """Return the schedule and its zone. One that the schedule names wins, as in Kubernetes."""
    job.at(spec, "schedule")
    due = read_robfig(text_of("schedule", spec["schedule"]), has_seconds=False)
    zone = spec.get("timeZone") or None
    if due.zone and zone and due.zone != zone:
        job.note(f"timeZone {zone}: the schedule names {due.zone}, which counts there")
    zone = due.zone or zone
    job.imported.note_zone(job.name, due.text, zone, job.place)
    if due.text.startswith("@every"):
        job.note(f"{due.text} counts from 1970 here, and there from the last run")
    elif differs_at_shifts(due.text, zone):
        what = f"schedule {due.text}: a time that a change of clocks skips or repeats is due once"
        job.note(f"{what} here; there it is left out, or due twice")
    return due.text, zone


def _overlap(job: _CronJob, spec: dict[str, Any]) -> str | None:
    job.at(spec, "concurrencyPolicy")
    policy = text_of("concurrencyPolicy", spec.get("concurrencyPolicy") or "Allow")
    if policy not in ("Allow", "Forbid", "Replace"):
        raise InvalidInput(f"concurrencyPolicy {policy} is none of Kubernetes")
    if policy == "Forbid":
        what = "an instant that falls due while a launch runs is skipped here; there the newest one"
        job.note(f"concurrencyPolicy Forbid: {what} begins when the run is over")
    return policy.lower() if policy != "Allow" else None


def _times(
    job: _CronJob, spec: dict[str, Any], of_job: dict[str, Any], pod: dict[str, Any]
) -> dict[str, Any]:
    """Return timeout, deadline and retries.

    `startingDeadlineSeconds` is about the first attempt there, and a deadline here about each.
    `activeDeadlineSeconds` is about all attempts together, from the start of the first one: none of
    them is longer, and none begins later. So both are carried over as far as that goes.
    """
    starting, active = _SECONDS
    pod_s = _seconds(job, pod, active)
    active_s = _seconds(job, of_job, active)
    start_s = _seconds(job, spec, starting)
    job.at(pod, "restartPolicy")
    restart = pod.get("restartPolicy", "Never")
    if restart not in _REST_MAX_S:
        raise InvalidInput(f"restartPolicy {restart} is none of a Job")
    retries = _retries(job, of_job, active_s, _REST_MAX_S[restart])
    job.at(spec, starting)
    deadline_s = start_s
    if start_s is None:
        deadline_s = DEADLINE_S_MAX  # it begins however late
    elif retries:
        deadline_s = start_s + active_s if active_s else None
        late = f"up to {deadline_s} s late" if deadline_s else "later"
        what = f"a deadline here ends retries too, so a launch may begin {late}"
        job.note(f"{starting} {start_s}: {what}")
    if deadline_s and deadline_s > DEADLINE_S_MAX:
        job.note(f"{starting}: at most {format_duration(DEADLINE_S_MAX)} here")
    timeout_s = min((one for one in (active_s, pod_s) if one), default=None)
    job.at(of_job if active_s else pod, active)
    if retries and (active_s or (pod_s and restart == "OnFailure")):
        what = f"is of all {retries + 1} attempts together there, and of each one here"
        job.note(f"{active} {active_s or pod_s} {what}")
    if timeout_s and timeout_s > TIMEOUT_S_MAX:
        job.note(f"{active}: at most {format_duration(TIMEOUT_S_MAX)} here")
    return {
        "timeout": format_duration(min(timeout_s, TIMEOUT_S_MAX)) if timeout_s else None,
        "deadline": format_duration(min(deadline_s, DEADLINE_S_MAX)) if deadline_s else None,
        "retries": retries or None,
        "backoff-max": format_duration(_REST_MAX_S[restart]) if retries else None,
    }


def _retries(job: _CronJob, of_job: dict[str, Any], active_s: int | None, rest_max_s: int) -> int:
    """Return how many retries there are: not those that cannot begin before a Job is over, because
    the delays before them alone take that long."""
    job.at(of_job, "backoffLimit")
    limit = of_job.get("backoffLimit")
    retries = _RETRIES if limit is None else _whole("backoffLimit", limit)
    if retries > RETRIES_MAX:
        job.note(f"backoffLimit {retries}: at most {RETRIES_MAX} retries here")
        retries = RETRIES_MAX
    count = passed_s = 0
    while active_s and count < retries:
        passed_s += min(_FIRST_REST_S << min(count, 16), rest_max_s)
        if passed_s >= active_s:
            what = f"delays before retries leave time for {count} in {_SECONDS[1]} {active_s}"
            job.note(f"backoffLimit {retries}: {what}")
            return count
        count += 1
    return retries


def _limits(job: _CronJob, container: dict[str, Any]) -> dict[str, str | None]:
    """Return CPUs and memory, rounded up; 0 is no limit, and too much is none here."""
    limits = (container.get("resources") or {}).get("limits") or {}
    job.at(limits, "cpu")
    milli = quantity(limits.get("cpu") or 0, per_unit=1000)
    if milli > CPUS_MAX * 1000:
        job.note(f"cpu {limits['cpu']}: a launch is not limited to that many here")
        milli = 0
    job.at(limits, "memory")
    size = quantity(limits.get("memory") or 0)
    if size > MEMORY_BYTES_MAX:
        job.note(f"memory {limits['memory']}: a launch is not limited to that here")
        size = 0
    elif 0 < size < MEMORY_BYTES_MIN:
        job.note(f"memory {limits['memory']}: the least is 1M here")
        size = MEMORY_BYTES_MIN
    return {
        "cpu": f"{milli // 1000}.{milli % 1000:03}" if milli else None,
        "memory": f"{-(-size // 1024)}K" if size else None,
    }


def _paused(job: _CronJob, spec: dict[str, Any], of_job: dict[str, Any]) -> str | None:
    """Return what keeps a CronJob from running, None if nothing does; note if it has many pods."""
    for key in ("completions", "parallelism"):
        job.at(of_job, key)
        if of_job.get(key) is not None and _whole(key, of_job[key]) > 1:
            job.note(f"{key} {of_job[key]}: the command runs once here; see parts")
    if job.flag(spec, "suspend"):
        return "suspended in Kubernetes"
    if job.flag(of_job, "suspend"):
        return "its Jobs are suspended in Kubernetes"
    return "parallelism 0 in Kubernetes" if of_job.get("parallelism") == 0 else None


def _command(job: _CronJob, container: dict[str, Any], variables: _Variables) -> str:
    """Return a command line; of `/bin/sh -c TEXT` the text, which runs in a shell anyway.

    Raises:
        InvalidInput: it has a variable whose value only Kubernetes knows.
    """
    texts = []
    for key in ("command", "args"):
        job.at(container, key)
        texts += [text_of(key, word) for word in container.get(key) or []]
    if len(texts) == 3 and texts[0] in ("/bin/sh", "sh") and texts[1] == "-c":
        line = _expanded(texts[2], variables, is_script=True)
    else:
        line = program([_expanded(text, variables, is_script=False) for text in texts])
    job.at(container, "args" if container.get("args") else "command")
    job.imported.note_background(job.name, line, job.place)
    return line


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


def _environment(job: _CronJob, container: dict[str, Any]) -> _Variables:
    """Return the variables. One with `$(NAME)` has the value that NAME has up to there."""
    found = _Variables(has_maps=bool(container.get("envFrom")))
    for one in container.get("env") or []:
        job.at(one)
        job.note_keys("env", one)
        variable = text_of("env", one["name"])
        given = one.get("value")
        text = "" if given is None else text_of(f"env: {variable}", given)
        if "valueFrom" in one and not text:
            _take(job, variable, one["valueFrom"] or {}, found)
            continue
        parts = pieces(text)
        needed = [part.text for part in parts if part.is_variable]
        if missing := [key for key in needed if key in found.secrets or found.is_elsewhere(key)]:
            found.forget(variable)
            found.elsewhere.add(variable)
            what = f"which has $({missing[0]}), whose value is elsewhere in Kubernetes"
            job.note(f"env: variable {variable}, {what}")
            continue
        value = "".join(
            found.values.get(part.text, f"$({part.text})") if part.is_variable else part.text
            for part in parts
        )
        found.forget(variable)
        found.values[variable] = value
    return found


def _take(job: _CronJob, variable: str, source: dict[str, Any], found: _Variables) -> None:
    """Take a variable whose value is elsewhere: the key KEY of the Secret NAME is our NAME/KEY."""
    found.forget(variable)
    key: dict[str, Any] = source.get("secretKeyRef") or {}
    if not key:
        found.elsewhere.add(variable)
        job.note(f"env: variable {variable}, whose value is elsewhere in Kubernetes")
        return
    secret = f"{key['name']}/{key['key']}"
    found.secrets[variable] = secret
    job.note(f"secret {secret}: put it where executors find secrets")
    if key.get("optional"):
        job.note(f"secret {secret}: it is optional there, and needed here")


def _whole(what: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInput(f"{what}: {str(value)[:40]} is not a number of Kubernetes")
    return value


def _seconds(job: _CronJob, fields: dict[str, Any], key: str) -> int | None:
    """Return a number of seconds, None if it is not given.

    Raises:
        InvalidInput: it is none, or is 0: then nothing ever runs there.
    """
    job.at(fields, key)
    value = fields.get(key)
    if value is None:
        return None
    if (seconds := _whole(key, value)) == 0:
        raise InvalidInput(f"{key}: 0 lets nothing run")
    return seconds
