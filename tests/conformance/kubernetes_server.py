"""A real Kubernetes API server with etcd, and the tests against it: targets, manifests.

`python -m tests.conformance.kubernetes_server DIR` builds kube-apiserver from Go modules into DIR
once (about six minutes of CPU, with `go`), starts it and `etcd`, runs the tests, and ends both.
There is no kubelet and no controller: Jobs are stored, watched and refused as in earnest, and the
tests play their controller.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import json
import os
import secrets
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conformance.targets import kubeconfig_of
from tests.fakes.ports import free_ports

VERSION = os.environ.get("KUBERNETES_VERSION", "v1.34.2")
START_S = 120.0
MAIN = """package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
"""


def built(folder: Path) -> Path:
    """The program, built in a folder if it is not there."""
    program = folder / "kube-apiserver"
    if program.exists():
        return program
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    (source / "main.go").write_text(MAIN)
    found = run("go", "mod", "download", "-json", f"k8s.io/kubernetes@{VERSION}", cwd=source)
    lines = Path(json.loads(found)["GoMod"]).read_text().splitlines()
    go = next(line for line in lines if line.startswith("go "))
    # The modules of its staging folder are published under v0 of the same minor and patch.
    staged = sorted({line.split()[0] for line in lines if " => ./staging/" in line})
    replaced = [f"replace {one} => {one} v0.{VERSION.removeprefix('v1.')}" for one in staged]
    required = f"require k8s.io/kubernetes {VERSION}"
    (source / "go.mod").write_text("\n".join(["module kubeapi", go, required, *replaced, ""]))
    run("go", "mod", "tidy", cwd=source)
    run("go", "build", "-o", str(program.absolute()), ".", cwd=source)
    return program


def run(*command: str, cwd: Path) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


@contextmanager
def started(program: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """A kubeconfig of a server that runs while this is open, with its files in a folder."""
    port, etcd, peers = free_ports(3)
    token = secrets.token_hex(16)
    with (folder / "tokens.csv").open("w") as file:
        csv.writer(file).writerow([token, "admin", "1", "system:masters"])
    key = folder / "account.key"
    run("openssl", "genrsa", "-out", str(key), "2048", cwd=folder)
    client, peer = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peers}"
    store = [
        "etcd", "--data-dir", str(folder / "etcd"), "--listen-client-urls", client,
        "--advertise-client-urls", client, "--listen-peer-urls", peer,
        "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
    ]  # fmt: skip
    options = {
        "etcd-servers": client, "secure-port": port, "bind-address": "127.0.0.1",
        "advertise-address": "127.0.0.1", "cert-dir": folder / "certs",
        "service-account-issuer": "https://raftcron.test", "service-account-key-file": key,
        "service-account-signing-key-file": key, "authorization-mode": "RBAC",
        "token-auth-file": folder / "tokens.csv",
        "disable-admission-plugins": "ServiceAccount",
        "service-cluster-ip-range": "10.0.0.0/24",
    }  # fmt: skip
    server = [str(program), *(f"--{name}={value}" for name, value in options.items())]
    with contextlib.ExitStack() as closing, (folder / "log").open("wb") as log:
        for command in (store, server):
            process = subprocess.Popen(command, stdout=log, stderr=log)
            closing.callback(process.wait, 30)
            closing.callback(process.kill)
        url = f"https://127.0.0.1:{port}"
        wait_ready(url, token)
        kubeconfig = kubeconfig_of(url)
        kubeconfig["users"][0]["user"]["token"] = token
        ca = base64.b64encode((folder / "certs" / "apiserver.crt").read_bytes()).decode()
        kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"] = ca
        yield kubeconfig


def wait_ready(url: str, token: str) -> None:
    """Wait until a server says that it is ready."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    request = urllib.request.Request(f"{url}/readyz", headers={"authorization": f"Bearer {token}"})
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, urllib.error.URLError):
            urllib.request.urlopen(request, timeout=2, context=trusting).close()
            return
        time.sleep(0.5)
    raise TimeoutError(f"{url} is not ready")


def main(folder: Path) -> int:
    """Build, start, test; return the exit code of the tests."""
    for program in ("etcd", "openssl"):
        if shutil.which(program) is None:
            print(f"{program} is not installed: Debian has it in etcd-server and openssl")
            return 2
    program = built(folder)
    with (
        tempfile.TemporaryDirectory() as temporary,
        started(program, Path(temporary)) as kubeconfig,
    ):
        path = Path(temporary) / "kubeconfig"
        path.write_text(json.dumps(kubeconfig))
        command = [sys.executable, "-m", "pytest", "-q", "-m", "nightly"]
        tests = ["tests/conformance/test_targets.py", "tests/conformance/test_manifests.py"]
        chosen = ["-k", "kubernetes-real or test_manifests"]
        variables = {**os.environ, "KUBERNETES": str(path)}
        return subprocess.run([*command, *chosen, *tests], env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
