"""Writes the bill of materials of what is installed on a machine: `make sbom`.

CycloneDX 1.6 as JSON, from deploy/requirements.lock: every library with its version and the hashes
that pip accepts. Which library needs which, and under what licence, comes from the libraries'
metadata in this environment, which has the same versions. The same lock gives the same bytes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = "raftcron"
EPOCH_DEFAULT = 1_767_225_600
_PIN = re.compile(r"^([a-z0-9.-]+)(?:\[[a-z,]+\])?==([^\s;]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def main() -> None:
    """Write the bill of materials to a file, or to stdout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lock", type=Path, default=ROOT / "deploy" / "requirements.lock")
    parser.add_argument("output", type=Path, nargs="?", help="a file (default: stdout)")
    said = parser.parse_args()
    text = json.dumps(bill(said.lock.read_text()), indent=2, sort_keys=True) + "\n"
    if said.output is None:
        sys.stdout.write(text)
        return
    said.output.parent.mkdir(parents=True, exist_ok=True)
    said.output.write_text(text)


def bill(lock: str) -> dict[str, Any]:
    """Return the bill of materials of the libraries in `lock`."""
    libraries = locked(lock)
    version = metadata.version(PROJECT)
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH_DEFAULT))
    made = datetime.datetime.fromtimestamp(epoch, datetime.UTC)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{PROJECT} {version} {lock}')}",
        "version": 1,
        "metadata": {
            "timestamp": made.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "application", **named(PROJECT, version)},
        },
        "components": [
            library(name, pinned, hashes) for name, (pinned, hashes) in libraries.items()
        ],
        "dependencies": [
            {"ref": reference(name, pinned), "dependsOn": needs(name, libraries)}
            for name, pinned in [(PROJECT, version), *((n, v) for n, (v, _) in libraries.items())]
        ],
    }


def locked(lock: str) -> dict[str, tuple[str, list[str]]]:
    """Return the version and the hashes of each library, by name."""
    found: dict[str, tuple[str, list[str]]] = {}
    hashes: list[str] = []
    for line in lock.splitlines():
        if (pin := _PIN.match(line)) is not None:
            hashes = []
            found[pin[1]] = (pin[2], hashes)
        hashes += _HASH.findall(line)
    return found


def library(name: str, version: str, hashes: list[str]) -> dict[str, Any]:
    """Return a library; its hashes are those of its distributions for all platforms."""
    distribution = {
        "type": "distribution",
        "url": f"https://pypi.org/project/{name}/{version}/#files",
        "hashes": [{"alg": "SHA-256", "content": one} for one in sorted(hashes)],
    }
    row = {"type": "library", **named(name, version), "externalReferences": [distribution]}
    licence = licence_of(name)
    if licence:
        row["licenses"] = [{"license": {"name": licence}}]
    return row


def named(name: str, version: str) -> dict[str, str]:
    """Return the fields that name a component."""
    purl = reference(name, version)
    return {"name": name, "version": version, "purl": purl, "bom-ref": purl}


def reference(name: str, version: str) -> str:
    """Return the package URL of a component, its name within the bill."""
    return f"pkg:pypi/{name}@{version.replace('+', '%2B')}"


def licence_of(name: str) -> str:
    """Return the licence that a library states, in one line; "" if it is not installed here."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    stated = about.get("License-Expression") or about.get("License") or ""
    classified = [
        one.rpartition(" :: ")[2]
        for one in about.get_all("Classifier", [])
        if one.startswith("License ::")
    ]
    return stated if stated and "\n" not in stated else ", ".join(classified)


def needs(name: str, libraries: dict[str, tuple[str, list[str]]]) -> list[str]:
    """Return the references of the libraries that a library needs, as far as the lock has them."""
    try:
        stated = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    found = set()
    for requirement in map(Requirement, stated):
        other = re.sub(r"[-_.]+", "-", requirement.name).lower()
        is_extra = requirement.marker is not None and "extra" in str(requirement.marker)
        if other in libraries and not is_extra:
            found.add(reference(other, libraries[other][0]))
    return sorted(found)


if __name__ == "__main__":
    main()
