"""Examples of other schedulers, imported: what was carried over, and what could not be.

    python -m tests.conformance.other_examples --dkron CLONE --kubernetes CLONE [--write]

CLONE is a clone of distribworks/dkron (LGPL-3.0), of kubernetes/api (Apache-2.0). Their files are
not part of this repository: `tests/data/imports/reports.json` has the hash of each example, the
names of its jobs, and the report. An example that is only a part of a job is completed by a name
and a schedule.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from cron.crontab.import_dkron import import_dkron
from cron.crontab.import_kubernetes import import_kubernetes
from cron.crontab.imported import Imported
from cron.crontab.jobfile import read_jobs_toml
from cron.errors import InvalidInput

REPORTS: Final = Path(__file__).parents[1] / "data" / "imports" / "reports.json"
_BLOCK: Final = re.compile(r"```(?:json|bash|sh|shell)?\n(.*?)```", re.DOTALL)
_POSTED: Final = re.compile(r"-d\s*'(.*?)'", re.DOTALL)
_WORDS: Final = ('"schedule"', '"parent_job"', '"executor"')
_CRON_JOB: Final = "testdata/HEAD/batch.v1.CronJob.json"


def dkron_examples(clone: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each example in dkron's documents and scripts."""
    for name in _git(clone, "ls-tree", "-r", "--name-only", "HEAD").split():
        if name == "scripts/testBackupJobs.json":
            yield name, _git(clone, "show", f"HEAD:{name}").encode()
        if not name.startswith("website/docs/") or not name.endswith(".md"):
            continue
        for number, block in enumerate(_BLOCK.findall(_git(clone, "show", f"HEAD:{name}"))):
            posted = _POSTED.search(block)
            text = posted[1] if posted else block
            if any(word in text for word in _WORDS):
                yield f"{name}#{number}", _completed(text)


def _completed(text: str) -> bytes:
    """Return an example with a name and a schedule, if it has none: a part of a job."""
    try:
        value = json.loads(text)
    except ValueError:
        return text.encode()
    if isinstance(value, dict) and "name" not in value:
        value = {"name": "example", "schedule": "@daily", **value}
    return json.dumps(value).encode()


def reports_of_dkron(clone: Path) -> Iterator[dict[str, Any]]:
    """Yield a report of each example of dkron that is JSON."""
    for name, content in dkron_examples(clone):
        try:
            imported = import_dkron(content)
        except InvalidInput as error:
            yield {"of": f"dkron {name}", "refused": str(error).partition(":")[0]}
            continue
        yield _report(f"dkron {name}", content, imported)


def reports_of_kubernetes(clone: Path) -> Iterator[dict[str, Any]]:
    """Yield a report of the CronJob that has each field of the API: as it is, and with times."""
    content = _git(clone, "show", f"HEAD:{_CRON_JOB}").encode()
    yield _report(f"kubernetes {_CRON_JOB}", content, import_kubernetes([json.loads(content)]))
    scheduled = json.loads(content)
    scheduled["spec"] |= {"schedule": "0 4 * * *", "timeZone": "UTC", "concurrencyPolicy": "Forbid"}
    scheduled["spec"]["startingDeadlineSeconds"] = 300
    pod = scheduled["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    pod["restartPolicy"] = "Never"
    pod["containers"][0]["workingDir"] = "/srv"
    name = f"kubernetes {_CRON_JOB}, with times"
    yield _report(name, content, import_kubernetes([scheduled]))


def _report(of: str, content: bytes, imported: Imported) -> dict[str, Any]:
    errors = read_jobs_toml(imported.text.encode(), file="f").errors if imported.tables else []
    if errors:
        raise AssertionError(f"{of}: {errors[0]}")
    left = [f"{one.job}: {'left out: ' if one.is_whole else ''}{one.what}" for one in imported.left]
    digest = hashlib.sha256(content).hexdigest()
    jobs = [one["name"] for one in imported.tables]
    return {"of": of, "sha256": digest, "jobs": jobs, "not carried over": left}


def _git(clone: Path, *arguments: str) -> str:
    command = ["git", "-C", str(clone), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Print the reports, or write them."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.other_examples")
    parser.add_argument("--dkron", type=Path, required=True)
    parser.add_argument("--kubernetes", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help=f"write {REPORTS.name}")
    said = parser.parse_args()
    found = [*reports_of_dkron(said.dkron), *reports_of_kubernetes(said.kubernetes)]
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if said.write:
        REPORTS.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
