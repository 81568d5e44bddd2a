"""The target `kubernetes` and an API server that forgets, hangs up, and has other people's Jobs."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import BadConfig
from launcher.targets import kubernetes as kubernetes_target
from launcher.targets.config import KubernetesConfig
from launcher.targets.kube_api import access_of
from launcher.targets.kube_jobs import KubernetesSpec, Named, job_of, manifest_of
from launcher.targets.kubernetes import KubernetesTarget
from launcher.targets.seen import State
from launcher.worker.errors import BadPayload
from launcher.worker.outcome import Ended
from launcher.worker.wire import Result
from tests.conformance.targets import kubeconfig_of
from tests.fakes.kubernetes_api import KubernetesFake, kubernetes_fake
from tests.unit.targets_rig import LAUNCH, Output, context_of, ended, read, work_for

CONTAINERS = [{"name": "main", "image": "busybox", "env": [{"name": "A", "value": "1"}]}]
SPEC = {"template": {"spec": {"containers": CONTAINERS}}}
PAYLOAD = {"template": {"spec": SPEC}}
NAME = Named(LAUNCH, 1, "").job


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesFake]:
    monkeypatch.setattr(kubernetes_target, "PAUSE_S", 0.05)
    with kubernetes_fake() as one:
        yield one


@pytest.fixture
def target(fake: KubernetesFake, tmp_path: Path) -> KubernetesTarget:
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig_of(fake.url)))
    return KubernetesTarget(
        KubernetesConfig(namespaces=("jobs",), kubeconfig="kubeconfig"), tmp_path
    )


class Attempt:
    """An attempt that runs in a thread."""

    def __init__(self, target: KubernetesTarget, **fields: Any) -> None:
        self.context, self.output = context_of(**fields)
        self.end: Ended | None = None
        self._thread = threading.Thread(target=self._run, args=(target,), daemon=True)
        self._thread.start()

    def _run(self, target: KubernetesTarget) -> None:
        self.end = ended(target, PAYLOAD, self.context)

    def over(self) -> tuple[Ended, Output]:
        """How it ended."""
        self._thread.join(30)
        assert self.end is not None, self.output.text
        return self.end, self.output


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    pause = threading.Event()
    for _ in range(1_500):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come")


def watching(fake: KubernetesFake, times: int = 1) -> None:
    """Wait until Jobs were watched so often."""
    until(lambda: sum("watch=1" in call for call in fake.calls) >= times)


# ---- from its creation to its end


def test_a_job_is_created_watched_and_its_log_kept(
    fake: KubernetesFake, target: KubernetesTarget
) -> None:
    fake.logs[NAME] = "one\ntwo\n  the result \n\n"
    attempt = Attempt(target)
    watching(fake)
    fake.finish(NAME)
    end, output = attempt.over()
    assert end == Ended(Result.OK, 0, "the result")
    assert output.text == f"created Job jobs/{NAME}\none\ntwo\n  the result \n"
    assert output.beats > 0
    assert set(fake.tokens) == {"Bearer t0ken"}
    assert "t0ken" not in output.text


@pytest.mark.parametrize("owners", [None, [], "x", [{"uid": "uid-1", "name": NAME}], ["x"]])
def test_the_log_is_that_of_its_own_pods_whatever_labels_others_have(
    fake: KubernetesFake, target: KubernetesTarget, owners: object
) -> None:
    # A Job of another tenant may say in its template that its pods are labelled so.
    stranger = {"name": "x-pod", "creationTimestamp": "2027-01-01T00:00:00Z"}
    fake.strangers = [{"metadata": {**stranger, "ownerReferences": owners}}]
    fake.logs[NAME] = "the result\n"
    attempt = Attempt(target)
    watching(fake)
    fake.finish(NAME)
    end, _ = attempt.over()
    assert end == Ended(Result.OK, 0, "the result")


def test_a_job_that_fails_is_tried_again_with_its_reason(
    fake: KubernetesFake, target: KubernetesTarget
) -> None:
    attempt = Attempt(target)
    watching(fake)
    fake.finish(NAME, "Failed", reason="BackoffLimitExceeded", message="it has failed")
    end, _ = attempt.over()
    assert end.result is Result.RETRY
    assert end.detail == "its Job failed: BackoffLimitExceeded: it has failed"


def test_a_later_attempt_replaces_a_job_that_failed(
    fake: KubernetesFake, target: KubernetesTarget
) -> None:
    first = Attempt(target)
    watching(fake)
    fake.finish(NAME, "Failed")
    assert first.over()[0].result is Result.RETRY
    second = Attempt(target, attempt=2)
    watching(fake, 2)
    assert fake.created == [NAME, NAME]
    assert fake.jobs[NAME]["metadata"]["annotations"]["raftcron.dev/attempt"] == "2"
    fake.finish(NAME)
    assert second.over()[0].result is Result.OK


def test_a_later_attempt_takes_over_a_job_that_runs(
    fake: KubernetesFake, target: KubernetesTarget
) -> None:
    target.start(work_for(target, PAYLOAD))
    second = Attempt(target, attempt=2)
    watching(fake)
    fake.finish(NAME)
    end, output = second.over()
    assert end.result is Result.OK
    assert output.text.startswith(f"found Job jobs/{NAME} of attempt 1")
    assert fake.created == [NAME]


def test_the_failure_of_a_job_of_the_same_attempt_is_that_of_the_attempt(
    fake: KubernetesFake, target: KubernetesTarget
) -> None:
    target.start(work_for(target, PAYLOAD))
    fake.finish(NAME, "Failed", reason="DeadlineExceeded")
    end, _ = Attempt(target, is_resumed=True).over()
    assert end.detail == "its Job failed: DeadlineExceeded"
    assert fake.created == [NAME]


def test_a_job_of_the_name_that_is_not_of_the_launch_is_left_alone(
    fake: KubernetesFake, target: KubernetesTarget
) -> None:
    target.start(work_for(target, PAYLOAD))
    fake.jobs[NAME]["metadata"]["annotations"]["raftcron.dev/launch"] = "acme/other@x"
    for is_resumed in (False, True):
        end, _ = Attempt(target, is_resumed=is_resumed, attempt=2).over()
        assert end.result is Result.FATAL
        assert "is not that of this launch" in end.detail
    context, _ = context_of()
    context.cancelled.set("killed")
    ended(target, PAYLOAD, context)
    assert NAME in fake.jobs, "it is not deleted either"


def test_a_job_that_is_deleted_while_it_runs_has_failed(
    fake: KubernetesFake, target: KubernetesTarget
) -> None:
    attempt = Attempt(target)
    watching(fake)
    fake.remove(NAME)
    end, _ = attempt.over()
    assert (end.result, end.detail) == (Result.RETRY, "its Job was deleted")


# ---- an API server that is not always there


def test_a_watch_goes_on_after_changes_were_forgotten(
    fake: KubernetesFake, target: KubernetesTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = work_for(target, PAYLOAD)
    assert target.start(work).state is State.RUNNING
    fake.forget()  # the version of the Job is older than what a watch may ask for: 410
    assert target.look(work).state is State.RUNNING
    assert work.cursor == "", "it asks for the Job itself"
    with fake.lock:
        fake.jobs[NAME]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    assert target.look(work).state is State.DONE


def test_a_create_whose_answer_did_not_come_is_looked_up(
    fake: KubernetesFake, target: KubernetesTarget
) -> None:
    fake.hangs_up = 1
    attempt = Attempt(target)
    watching(fake)
    fake.finish(NAME)
    end, output = attempt.over()
    assert end.result is Result.OK
    assert "looks whether the Job is there" in output.text
    assert fake.created == [NAME]


@pytest.mark.parametrize("status", [500, 503, 429, 403, 401])
def test_an_api_that_fails_while_a_job_runs_is_asked_again(
    fake: KubernetesFake, target: KubernetesTarget, status: int
) -> None:
    work = work_for(target, PAYLOAD)
    target.start(work)
    fake.broken = status
    work.cursor = ""
    for _ in range(3):
        assert target.look(work).state is State.RUNNING
    fake.broken = 0
    fake.finish(NAME)
    assert target.look(work).state is State.DONE


def test_an_api_that_is_gone_while_a_job_runs_is_waited_for(
    fake: KubernetesFake, target: KubernetesTarget
) -> None:
    work = work_for(target, PAYLOAD)
    target.start(work)
    fake.close()
    assert target.look(work).state is State.RUNNING


@pytest.mark.parametrize(
    ("status", "result"), [(500, Result.RETRY), (429, Result.RETRY), (403, Result.FATAL)]
)
def test_a_create_that_is_refused(
    fake: KubernetesFake, target: KubernetesTarget, status: int, result: Result
) -> None:
    fake.broken = status
    end, _ = Attempt(target).over()
    assert end.result is result
    assert end.after_ms == (1_000 if status == 429 else 0)


def test_a_namespace_that_is_not_there_is_fatal(fake: KubernetesFake, tmp_path: Path) -> None:
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig_of(fake.url)))
    one = KubernetesTarget(
        KubernetesConfig(namespaces=("none",), kubeconfig="kubeconfig"), tmp_path
    )
    context, _ = context_of()
    end = ended(one, PAYLOAD, context)
    assert (end.result, end.detail) == (Result.FATAL, 'HTTP 404: namespaces "none" not found')


# ---- its end by somebody else


def test_a_launch_that_is_killed_deletes_its_job_and_waits_for_its_pods(
    fake: KubernetesFake, target: KubernetesTarget
) -> None:
    attempt = Attempt(target)
    watching(fake)
    attempt.context.cancelled.set("killed")
    until(lambda: "deletionTimestamp" in fake.jobs[NAME]["metadata"])
    fake.remove(NAME)  # as the controller does once the pods are gone
    end, output = attempt.over()
    assert (end.result, end.detail) == (Result.CANCELLED, "cancelled: killed")
    assert f"deletes Job jobs/{NAME}" in output.text


def test_a_job_that_is_over_is_not_deleted_by_a_kill(
    fake: KubernetesFake, target: KubernetesTarget
) -> None:
    work = work_for(target, PAYLOAD)
    target.start(work)
    fake.finish(NAME)
    target.stop(work)
    assert NAME in fake.jobs


# ---- what is created


def test_a_job_says_whose_it_is_and_ends_by_itself() -> None:
    template = {
        "metadata": {"labels": {"app": "x"}, "annotations": {"raftcron.dev/launch": "forged"}},
        "spec": SPEC,
    }
    manifest = manifest_of(KubernetesSpec(template=template))
    job = job_of(manifest, Named(LAUNCH, 3, "prod"), 3_600, 90)
    assert job["metadata"] == {
        "name": Named(LAUNCH, 1, "prod").job,
        "labels": {"app": "x", "app.kubernetes.io/managed-by": "raftcron"},
        "annotations": {
            "raftcron.dev/launch": LAUNCH, "raftcron.dev/attempt": "3", "raftcron.dev/cell": "prod",
        },
    }  # fmt: skip
    spec = job["spec"]
    assert (spec["ttlSecondsAfterFinished"], spec["backoffLimit"]) == (3_600, 0)
    assert spec["activeDeadlineSeconds"] == 90
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["containers"][0]["env"] == [
        {"name": "A", "value": "1"}, {"name": "RAFTCRON_LAUNCH", "value": LAUNCH},
        {"name": "RAFTCRON_ATTEMPT", "value": "3"},
    ]  # fmt: skip
    assert "name" not in manifest["metadata"], "the payload's own is unchanged"


def test_what_a_manifest_says_itself_is_kept() -> None:
    own = {"ttlSecondsAfterFinished": 400, "backoffLimit": 6, "activeDeadlineSeconds": 7}
    pod = {"spec": {"containers": CONTAINERS, "restartPolicy": "OnFailure"}}
    said = {"apiVersion": "batch/v1", "kind": "Job", "spec": {**own, "template": pod}}
    job = job_of(manifest_of(KubernetesSpec(manifest=said)), Named(LAUNCH, 1, ""), 3_600, 90)
    assert own.items() <= job["spec"].items()
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"


def test_names_of_launches_and_cells_differ_and_are_labels() -> None:
    names = {Named(LAUNCH, 1, "").job, Named(LAUNCH, 1, "b").job, Named(LAUNCH + "+t1", 1, "").job}
    assert len(names) == 3
    assert Named(LAUNCH, 1, "").job == Named(LAUNCH, 2, "").job, "all attempts have one Job"
    assert all(len(name) <= 63 and name.replace("-", "").isalnum() for name in names)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({}, "not one of manifest and template"),
        ({"manifest": {"spec": SPEC}, **PAYLOAD}, "not one of manifest and template"),
        ({**PAYLOAD, "namespace": "kube-system"}, "namespace 'kube-system' is not one of"),
        ({**PAYLOAD, "namespace": "../jobs"}, "namespace '../jobs' is not one of"),
        ({"manifest": {"kind": "Pod", "apiVersion": "v1"}}, "is a 'Pod' of 'v1', not a Job"),
        ({"manifest": {"spec": SPEC, "status": {}}}, "manifest has 'status'"),
        ({"template": {"metadata": {"name": "x"}, "spec": SPEC}}, "metadata.name is decided by"),
        ({"template": {"metadata": {"finalizers": []}, "spec": SPEC}}, "metadata.finalizers is"),
        ({"template": {"spec": []}}, "template.spec is no object"),
        ({"template": {}}, "is no list of containers"),
        ({"template": {"spec": {"template": {"spec": {"containers": ["x"]}}}}}, "no list of"),
        (
            {"template": {"spec": {**SPEC, "ttlSecondsAfterFinished": 5}}},
            "ttlSecondsAfterFinished is below 300",
        ),
        ({"template": {"spec": SPEC}, "kubeconfig": "x"}, "unknown field `kubeconfig`"),
    ],
)
def test_a_payload_that_is_no_job_is_refused(
    target: KubernetesTarget, payload: object, problem: str
) -> None:
    with pytest.raises(BadPayload) as caught:
        read(target, payload)
    assert problem in str(caught.value)


# ---- where the cluster is


def changed(**fields: Any) -> dict[str, Any]:
    """A kubeconfig with other fields of its cluster or user."""
    found = kubeconfig_of("https://kube.example:6443")
    found["clusters"][0]["cluster"] |= fields.pop("cluster", {})
    found["users"][0]["user"] |= fields.pop("user", {})
    return found | fields


@pytest.mark.parametrize(
    ("kubeconfig", "problem"),
    [
        ("apiVersion: v1\nkind: Config\n", "is not JSON"),
        ("[]", "is no kubeconfig"),
        (changed(**{"current-context": "other"}), "has no context 'other'"),
        (changed(clusters=[]), "has no cluster 'c'"),
        (changed(users=[{"name": "u", "user": 7}]), "has no user 'u'"),
        (changed(cluster={"server": "http://kube.example"}), "neither https:// nor on this host"),
        (changed(cluster={"server": ""}), "neither https:// nor on this host"),
        (changed(cluster={"insecure-skip-tls-verify": True}), "insecure-skip-tls-verify"),
        (changed(cluster={"certificate-authority-data": "?"}), "is not base64"),
        (changed(cluster={"certificate-authority-data": "YWJj"}), "cannot be used"),
        (changed(cluster={"certificate-authority": "missing.pem"}), "cannot be read"),
        (changed(user={"exec": {}}), "its user has 'exec'"),
        (
            changed(user={"client-certificate-data": base64.b64encode(b"x").decode()}),
            "cannot be used",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_refused(
    tmp_path: Path, kubeconfig: object, problem: str
) -> None:
    text = kubeconfig if isinstance(kubeconfig, str) else json.dumps(kubeconfig)
    (tmp_path / "k").write_text(text)
    with pytest.raises(BadConfig) as caught:
        access_of(KubernetesConfig(namespaces=("jobs",), kubeconfig="k"), tmp_path)
    assert problem in str(caught.value)
    assert "t0ken" not in str(caught.value)


def test_outside_a_pod_there_has_to_be_a_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BadConfig, match="runs in no pod"):
        KubernetesTarget(KubernetesConfig(namespaces=("jobs",)), Path())


def test_a_token_in_a_file_is_read_for_each_call(tmp_path: Path, fake: KubernetesFake) -> None:
    found = kubeconfig_of(fake.url)
    found["users"][0]["user"] = {"tokenFile": "token"}
    (tmp_path / "k").write_text(json.dumps(found))
    one = KubernetesTarget(KubernetesConfig(namespaces=("jobs",), kubeconfig="k"), tmp_path)
    for number, token in enumerate(("first", "second"), 1):
        (tmp_path / "token").write_text(f"{token}\n")
        one.start(work_for(one, PAYLOAD, job=f"acme/j{number}"))
    assert fake.tokens == ["Bearer first", "Bearer second"]


def test_jobs_are_not_kept_for_less_than_they_may_be_looked_up(tmp_path: Path) -> None:
    (tmp_path / "k").write_text(json.dumps(kubeconfig_of("http://127.0.0.1:1")))
    config = KubernetesConfig(namespaces=("jobs",), kubeconfig="k", kept="1m")
    with pytest.raises(BadConfig, match="below 300 s"):
        KubernetesTarget(config, tmp_path)
