"""deploy/kubernetes before a real API server: `make kubernetes` starts one and runs this.

Nothing is stored (dryRun=All), and a field that the server does not know is an error. There is no
kubelet, so no pod runs.
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.style.test_manifests import manifests

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif("KUBERNETES" not in os.environ, reason="`make kubernetes` runs this"),
]
PLACES = {
    "Namespace": "api/v1/namespaces",
    "ConfigMap": "api/v1/namespaces/{}/configmaps",
    "Service": "api/v1/namespaces/{}/services",
    "StatefulSet": "apis/apps/v1/namespaces/{}/statefulsets",
    "PodDisruptionBudget": "apis/policy/v1/namespaces/{}/poddisruptionbudgets",
}
NAMESPACE = "raftcron"


class Server:
    """The API server of $KUBERNETES, a kubeconfig."""

    def __init__(self) -> None:
        config = json.loads(Path(os.environ["KUBERNETES"]).read_text())
        self._url = config["clusters"][0]["cluster"]["server"]
        self._token = config["users"][0]["user"]["token"]
        self._trusting = ssl.create_default_context()
        self._trusting.check_hostname, self._trusting.verify_mode = False, ssl.CERT_NONE

    def create(self, path: str, body: dict[str, Any], query: str) -> dict[str, Any]:
        """Create an object; return the server's answer, a status if it refuses."""
        request = urllib.request.Request(
            f"{self._url}/{path}?fieldValidation=Strict{query}",
            data=json.dumps(body).encode(),
            headers={
                "authorization": f"Bearer {self._token}",
                "content-type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, context=self._trusting, timeout=30) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            return dict(json.load(error))


@pytest.fixture(scope="module")
def server() -> Server:
    server = Server()
    [namespace] = [one for one in manifests() if one["kind"] == "Namespace"]
    answer = server.create("api/v1/namespaces", namespace, "")
    assert answer.get("reason") == "AlreadyExists" or answer["kind"] == "Namespace", answer
    return server


@pytest.mark.parametrize(
    "manifest",
    [pytest.param(one, id=f"{one['kind']}-{one['metadata']['name']}") for one in manifests()],
)
def test_the_server_accepts_a_manifest(server: Server, manifest: dict[str, Any]) -> None:
    if manifest["kind"] == "Namespace":
        manifest = {**manifest, "metadata": {**manifest["metadata"], "name": "another"}}
    path = PLACES[manifest["kind"]].format(NAMESPACE)
    answer = server.create(path, manifest, "&dryRun=All")
    assert answer["kind"] == manifest["kind"], answer.get("message")


def test_the_server_refuses_what_it_does_not_know(server: Server) -> None:
    [budget] = [one for one in manifests() if one["kind"] == "PodDisruptionBudget"]
    wrong = {**budget, "spec": {**budget["spec"], "maxUnavailble": 1}}
    answer = server.create(PLACES[budget["kind"]].format(NAMESPACE), wrong, "&dryRun=All")
    assert "maxUnavailble" in answer["message"]
