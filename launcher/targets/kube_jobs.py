"""Jobs of Kubernetes for launches, pure: their name, their manifest, and what one that is there
says of itself."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from launcher.targets.seen import Seen, State
from launcher.worker.errors import BadPayload

LAUNCH: Final = "raftcron.dev/launch"
ATTEMPT: Final = "raftcron.dev/attempt"
CELL: Final = "raftcron.dev/cell"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
KEPT_S_MIN: Final = 300
"""A Job that is over is kept at least so long: an attempt may be looked up a minute after its
worker died."""
NAMESPACE_CHARS_MAX: Final = 63


class KubernetesSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The payload of a launch of `kubernetes`: a `manifest` of a Job, or a `template` as a CronJob
    has it (`metadata` and `spec` of a Job)."""

    manifest: dict[str, Any] | None = None
    template: dict[str, Any] | None = None
    namespace: str = ""


class Named(msgspec.Struct, frozen=True):
    """What names a Job: the name of the launch, its attempt, and the cell."""

    name: str
    attempt: int
    cell: str

    @property
    def job(self) -> str:
        """The name of the Job: the same for all attempts, and other than those of other launches
        and cells."""
        said = f"{self.cell}\0{self.name}".encode()
        return "raftcron-" + hashlib.blake2b(said, digest_size=16).hexdigest()


def manifest_of(spec: KubernetesSpec) -> dict[str, Any]:
    """Return the Job that a payload asks for, without what names it.

    Raises:
        BadPayload: it asks for none, or for something that the target decides.
    """
    if (spec.manifest is None) == (spec.template is None):
        raise BadPayload("payload: it has not one of manifest and template")
    found = spec.manifest if spec.manifest is not None else spec.template
    said: dict[str, Any] = found or {}
    place = "manifest" if spec.manifest is not None else "template"
    kind = (said.get("apiVersion", "batch/v1"), said.get("kind", "Job"))
    if kind != ("batch/v1", "Job"):
        raise BadPayload(f"payload: {place} is a {kind[1]!r} of {kind[0]!r}, not a Job of batch/v1")
    unknown = set(said) - {"apiVersion", "kind", "metadata", "spec"}
    if unknown:
        raise BadPayload(f"payload: {place} has {sorted(unknown)[0]!r}")
    metadata = _mapping(said, "metadata", place)
    for name in metadata:
        if name not in ("labels", "annotations"):
            raise BadPayload(f"payload: {place}.metadata.{name} is decided by the target")
    job = _mapping(said, "spec", place)
    pod = _mapping(_mapping(job, "template", f"{place}.spec"), "spec", f"{place}.spec.template")
    containers = pod.get("containers")
    if not isinstance(containers, list) or not containers:
        raise BadPayload(f"payload: {place}.spec.template.spec.containers is no list of containers")
    if not all(isinstance(one, dict) for one in containers):
        raise BadPayload(f"payload: {place}.spec.template.spec.containers is no list of containers")
    kept_s = job.get("ttlSecondsAfterFinished", KEPT_S_MIN)
    if not isinstance(kept_s, int) or kept_s < KEPT_S_MIN:
        raise BadPayload(f"payload: {place}.spec.ttlSecondsAfterFinished is below {KEPT_S_MIN}")
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job}


def job_of(
    manifest: dict[str, Any], named: Named, kept_s: int, deadline_s: int | None
) -> dict[str, Any]:
    """Return the Job to create for an attempt: the manifest with its names, and with what it does
    not say itself. A Job that nobody looks at any more ends by its deadline, and goes by its
    TTL."""
    metadata, job = dict(manifest["metadata"]), dict(manifest["spec"])
    annotations = {LAUNCH: named.name, ATTEMPT: str(named.attempt), CELL: named.cell}
    metadata["name"] = named.job
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    metadata["labels"] = {**(metadata.get("labels") or {}), MANAGED_BY: "raftcron"}
    job.setdefault("ttlSecondsAfterFinished", kept_s)
    job.setdefault("backoffLimit", 0)  # retries are the cell's
    if deadline_s is not None:
        job.setdefault("activeDeadlineSeconds", max(1, deadline_s))
    template = dict(job["template"])
    pod = dict(template["spec"])
    pod.setdefault("restartPolicy", "Never")
    variables = [
        {"name": "RAFTCRON_LAUNCH", "value": named.name},
        {"name": "RAFTCRON_ATTEMPT", "value": str(named.attempt)},
    ]
    for list_ in ("initContainers", "containers"):
        if isinstance(pod.get(list_), list):
            pod[list_] = [_with_variables(one, variables) for one in pod[list_]]
    template["spec"] = pod
    job["template"] = template
    return {**manifest, "metadata": metadata, "spec": job}


def _with_variables(container: dict[str, Any], variables: list[dict[str, str]]) -> dict[str, Any]:
    own = {one["name"] for one in variables}
    said = container.get("env")
    kept = [one for one in said if one.get("name") not in own] if isinstance(said, list) else []
    return {**container, "env": [*kept, *variables]}


def is_of(job: dict[str, Any], named: Named) -> bool:
    """Return whether a Job is that of a launch."""
    annotations = metadata(job).get("annotations") or {}
    return (annotations.get(LAUNCH), annotations.get(CELL)) == (named.name, named.cell)


def is_pod_of(pod: dict[str, Any], job: dict[str, Any]) -> bool:
    """Return whether the cluster says that a pod is one of a Job. Its labels are no proof: the
    template of another Job may have them."""
    owners = metadata(pod).get("ownerReferences")
    uid = metadata(job).get("uid")
    return any(
        isinstance(one, dict) and uid is not None and one.get("uid") == uid
        for one in (owners if isinstance(owners, list) else ())
    )


def attempt_of(job: dict[str, Any]) -> int:
    """Return the attempt that created a Job, 0 if it does not say."""
    said = str((metadata(job).get("annotations") or {}).get(ATTEMPT, ""))
    return int(said) if said.isdecimal() else 0


def metadata(job: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of an object."""
    found = job.get("metadata")
    return found if isinstance(found, dict) else {}


def version_of(job: dict[str, Any]) -> str:
    """Return the version of an object, from which a watch goes on."""
    return str(metadata(job).get("resourceVersion", ""))


def seen_of(job: dict[str, Any]) -> Seen:
    """Return what a Job says of itself."""
    status = job.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, dict) and one.get("status") == "True":
            reason, message = one.get("reason") or "", one.get("message") or ""
            said = ": ".join(text for text in (str(reason), str(message)) if text)
            if one.get("type") == "Complete":
                return Seen(State.DONE, said or "complete")
            if one.get("type") == "Failed":
                return Seen(State.RETRY, f"its Job failed: {said}" if said else "its Job failed")
    return Seen(State.RUNNING)


def _mapping(said: dict[str, Any], name: str, place: str) -> dict[str, Any]:
    found = said.get(name, {})
    if not isinstance(found, dict):
        raise BadPayload(f"payload: {place}.{name} is no object")
    return found
