"""deploy/compose and deploy/kubernetes fit the programs, their configuration and each other.

`make kubernetes` sends the manifests to a real API server; here nothing is started.
"""

from __future__ import annotations

import base64
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from cron.config import parse_replica_config
from launcher.config import parse as parse_executor_config
from tests.style.tree import ROOT

COMPOSE = ROOT / "deploy" / "compose"
KUBERNETES = ROOT / "deploy" / "kubernetes"
USER = 65532


def manifests() -> list[dict[str, Any]]:
    """All objects that `kubectl apply -k deploy/kubernetes` makes."""
    names = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    return [one for name in names for one in yaml.safe_load_all((KUBERNETES / name).read_text())]


def of_kind(kind: str) -> list[dict[str, Any]]:
    """The objects of a kind."""
    return [one for one in manifests() if one["kind"] == kind]


SETS = of_kind("StatefulSet")
PODS = [pytest.param(one, id=one["metadata"]["name"]) for one in SETS]


def test_every_manifest_is_applied() -> None:
    names = {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert names == set(listed)
    assert sorted(one["metadata"]["name"] for one in SETS) == ["raftcron", "raftcron-executor"]


@pytest.mark.parametrize("workload", PODS)
def test_a_pod_has_no_more_rights_than_it_needs(workload: dict[str, Any]) -> None:
    pod = workload["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == USER == pod["securityContext"]["fsGroup"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("workload", PODS)
def test_a_pod_mounts_what_there_is(workload: dict[str, Any]) -> None:
    spec = workload["spec"]
    pod = spec["template"]["spec"]
    claims = {one["metadata"]["name"] for one in spec["volumeClaimTemplates"]}
    volumes = {one["name"] for one in pod["volumes"]} | claims
    assert {one["name"] for one in pod["containers"][0]["volumeMounts"]} == volumes
    assert spec["serviceName"] in {one["metadata"]["name"] for one in of_kind("Service")}
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels == workload["metadata"]["labels"]
    [config] = of_kind("ConfigMap")
    assert {"name": config["metadata"]["name"]} in [one.get("configMap") for one in pod["volumes"]]


def test_services_and_budget_choose_the_replicas() -> None:
    [replicas] = [one for one in SETS if one["metadata"]["name"] == "raftcron"]
    labels = replicas["spec"]["template"]["metadata"]["labels"]
    [budget] = of_kind("PodDisruptionBudget")
    assert budget["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind("Service")}
    assert services["raftcron-peers"]["selector"] == labels == services["raftcron"]["selector"]
    assert services["raftcron-peers"]["publishNotReadyAddresses"], "else no cell forms"
    affinity = replicas["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    [rule] = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == labels


def configurations(workload: dict[str, Any]) -> dict[str, str]:
    """The configuration of each pod of a StatefulSet, by the name of the pod."""
    name, count = workload["metadata"]["name"], workload["spec"]["replicas"]
    [container] = workload["spec"]["template"]["spec"]["containers"]
    assert "/etc/raftcron/$(POD_NAME).toml" in container["args"]
    [config] = of_kind("ConfigMap")
    return {f"{name}-{one}": config["data"][f"{name}-{one}.toml"] for one in range(count)}


@pytest.mark.parametrize("workload", PODS)
def test_the_configuration_of_each_pod_can_be_read(workload: dict[str, Any]) -> None:
    [container] = workload["spec"]["template"]["spec"]["containers"]
    mounts = [one["mountPath"] for one in container["volumeMounts"]]
    for name, text in configurations(workload).items():
        kind = container["args"][0]
        config: Any = (
            parse_replica_config(text, name)
            if kind == "replica"
            else parse_executor_config(text.encode(), Path(f"/etc/raftcron/{name}.toml"))
        )
        assert config.id == name
        assert str(config.data).startswith(mounts[0])
        if kind == "replica":
            assert set(config.peers) == set(configurations(workload))
            _check_ports(config, container)


def _check_ports(config: Any, container: dict[str, Any]) -> None:
    ports = {one["name"]: str(one["containerPort"]) for one in container["ports"]}
    listening = {"grpc": config.client, "raft": config.raft, "https": config.http}
    assert {name: text.rpartition(":")[2] for name, text in listening.items()} == ports
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = container[probe]["httpGet"]
        assert (get["port"], get["scheme"]) == ("https", "HTTPS")
        assert get["path"] == ("/readyz" if probe == "readinessProbe" else "/healthz")


def test_the_secrets_have_the_files_that_the_configuration_names(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("authority")
    (tmp_path / "ca.key").write_text("not for a cluster")
    for workload in SETS:
        kind = workload["spec"]["template"]["spec"]["containers"][0]["args"][0]
        for name in configurations(workload):
            folder = tmp_path / f"{kind}-{name}"
            folder.mkdir()
            for part in ("cert", "key"):
                (folder / f"{part}.pem").write_text(f"{part} of {name}")
    script = [str(KUBERNETES / "secrets.sh"), str(tmp_path)]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    namespace, *made = yaml.safe_load_all(printed)
    assert namespace in manifests()
    secrets = {one["metadata"]["name"]: one["data"] for one in made}
    for workload in SETS:
        pod = workload["spec"]["template"]["spec"]
        [secret] = [one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one]
        for name, text in configurations(workload).items():
            named = set(re.findall(r'"tls/([^"]+)"', text))
            assert named <= set(secrets[secret])
            key = base64.b64decode(secrets[secret][f"{name}.key.pem"]).decode()
            assert key == f"key of {name}"
    assert "bm90IGZvciBh" not in printed, "the authority's key stays outside"


def test_compose_starts_what_there_is() -> None:
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    lasting = {name: one for name, one in services.items() if "profiles" not in one}
    assert sorted(lasting) == ["executor-1", "r1", "r2", "r3"]
    for name, service in lasting.items():
        mounts = dict(one.split(":")[:2] for one in service["volumes"])
        config = COMPOSE / f"{name}.toml"
        kind, option, path = service["command"][:3]
        assert (option, path) == ("--config", f"/etc/raftcron/{kind}.toml")
        assert mounts[f"./{config.name}"] == path
        assert mounts[f"./tls/{kind}-{name}"] == "/etc/raftcron/tls"
        assert mounts[name] == "/var/lib/raftcron"
        assert (service["user"], service["read_only"], service["cap_drop"]) == (
            f"{USER}:{USER}", True, ["ALL"],
        )  # fmt: skip
        text = config.read_text()
        if kind == "replica":
            assert parse_replica_config(text, config.name).id == name
            assert set(parse_replica_config(text, config.name).peers) == lasting.keys() - {
                "executor-1"
            }
        else:
            assert parse_executor_config(text.encode(), config).id == name


def test_the_image_has_the_version_of_this_release() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    [image] = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["images"]
    assert image["newTag"] == version
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    images = {service["image"] for service in services.values()}
    assert images == {f"${{RAFTCRON_IMAGE:-localhost/raftcron:{version}}}"}
