"""deploy/Containerfile, built by buildah on a Debian made here: no registry is asked.

Programs run in the image by buildah's chroot, so root is enough and no container runtime is needed.
The build sees the certificates that pip uses here (PIP_CERT), and has what else BUILD_OPTIONS of
the environment says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.package.building import VERSION
from tests.package.machine import ROOT, make_archive, missing

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2_400)]
REASON = missing() or ("" if shutil.which("buildah") else "buildah: not installed")
ARCHIVE = ROOT / ".cache" / "debian-bookworm-python.tar"
BASE, IMAGE = "localhost/raftcron-test-base", "localhost/raftcron-test"


def buildah(*arguments: str) -> str:
    """Return what buildah printed."""
    done = subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"buildah {' '.join(arguments)}: {done.stderr[-2_000:]}"
    return done.stdout.strip()


def certificates() -> str:
    """Return the option that shows the build those that pip uses here, if they are not its own."""
    path = os.environ.get("PIP_CERT", "")
    return f"--volume {path}:/etc/ssl/certs/ca-certificates.crt:ro" if path else ""


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    """A container of the image."""
    if REASON:
        pytest.skip(REASON)
    make_archive(ARCHIVE, "python3,python3-venv,ca-certificates")
    empty = buildah("from", "scratch")
    buildah("add", empty, str(ARCHIVE), "/")
    buildah("commit", "--rm", empty, BASE)
    options = f"--isolation chroot {certificates()} {os.environ.get('BUILD_OPTIONS', '')}"
    settings = ["BUILDER=buildah", f"BASE={BASE}", f"IMAGE={IMAGE}", f"BUILD_OPTIONS={options}"]
    made = subprocess.run(
        ["make", "image", *settings], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout[-2_000:] + made.stderr[-2_000:]
    name = buildah("from", f"{IMAGE}:{VERSION}")
    try:
        yield name
    finally:
        buildah("rm", name)
        buildah("rmi", f"{IMAGE}:{VERSION}", BASE)


def inside(container: str, *command: str) -> str:
    """Run a program in the image, as its user; return what it printed."""
    return buildah("run", "--isolation", "chroot", container, "--", *command)


def test_the_image_runs_the_command_as_a_user_without_rights(container: str) -> None:
    assert inside(container, "raftcron", "--version") == f"raftcron {VERSION}"
    assert inside(container, "id", "-un") == "raftcron"
    inside(container, "sh", "-c", "touch /var/lib/raftcron/x && ! touch /opt/raftcron/x /etc/x")


def test_the_image_says_what_it_is(container: str) -> None:
    config = json.loads(buildah("inspect", container))["OCIv1"]["config"]
    assert (config["User"], config["Entrypoint"]) == ("65532:65532", ["raftcron"])
    assert set(config["ExposedPorts"]) == {"7400/tcp", "7410/tcp", "7480/tcp"}
    assert "/var/lib/raftcron" in config["Volumes"]
