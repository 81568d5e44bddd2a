"""Do the alert rules and the dashboard ask for metrics that exist, in queries that parse?"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.style.tree import ROOT

RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
RULES_TEST = RULES.with_name("rules_test.yaml")
DASHBOARD = ROOT / "deploy" / "grafana" / "raftcron.json"
DOCUMENT = ROOT / "docs" / "metrics.md"
PROMTOOL = shutil.which("promtool")
promtool_only = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed: it is in `prometheus`"
)
OF_PROCESS: Final = re.compile(r"process_(cpu_seconds_total|resident_memory_bytes|open_fds)")
GRID_COLUMNS: Final = 24
NOT_IN_SDK: Final = {"annotations.list.titleFormat", "templating.list.definition"}
"""Fields that Grafana writes, and its SDK leaves out."""


def documented() -> set[str]:
    """Return the names of all series, those of histograms with their suffixes."""
    rows = re.findall(r"^\| `(raftcron_\w+)`\S* \| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE)
    names = {name for name, kind in rows if kind != "histogram"}
    histograms = {name for name, kind in rows if kind == "histogram"}
    assert len(names) > 10, "the tables were not found"
    assert len(histograms) > 2
    suffixes = ("_bucket", "_sum", "_count")
    return names | {name + suffix for name in histograms for suffix in suffixes}


def dashboard() -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return shown


def panels() -> list[dict[str, Any]]:
    return [one for one in dashboard()["panels"] if one["type"] != "row"]


def expressions() -> list[str]:
    """Return all queries of the dashboard, with values instead of its variables."""
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    found += [one["expr"] for one in dashboard()["annotations"]["list"]]
    assert len(found) > 20
    return [one.replace("$__rate_interval", "5m").replace("$job", "raftcron") for one in found]


def check(*arguments: str, cwd: Path) -> None:
    said = subprocess.run(
        [str(PROMTOOL), *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr


@promtool_only
def test_the_alert_rules_parse_and_pass_their_tests() -> None:
    check("check", "rules", RULES.name, cwd=RULES.parent)
    check("test", "rules", RULES_TEST.name, cwd=RULES.parent)


def test_each_alert_rule_is_tested() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    assert len(alerts) == len(set(alerts)) > 15
    tests = RULES_TEST.read_text().replace("Replica(Down|Unreachable)", "")
    assert [one for one in alerts if f'"{one}"' not in tests and f" {one}," not in tests] == []


def test_rules_and_dashboard_name_metrics_that_the_document_has() -> None:
    known = documented()
    rules = re.sub(r"`[^`]*`", "", RULES.read_text())
    for text in (rules, "\n".join(expressions())):
        named = set(re.findall(r"\braftcron_\w+", text))
        assert len(named) > 10
        assert named - known == set()
    others = set(re.findall(r"\bprocess_\w+", "\n".join(expressions())))
    assert all(OF_PROCESS.fullmatch(one) for one in others)


def test_each_metric_of_the_document_is_in_the_dashboard() -> None:
    shown = "\n".join(expressions())
    missing = [
        name
        for name in documented()
        if not name.endswith(("_sum", "_count")) and not re.search(rf"\b{name}\b", shown)
    ]
    assert set(missing) <= {"raftcron_replica_reachable"}, "rules alone ask for it"


@promtool_only
def test_each_query_of_the_dashboard_parses(tmp_path: Path) -> None:
    lines = ["groups:", "  - name: dashboard", "    rules:"]
    for number, one in enumerate(expressions()):
        lines += [f"      - record: query:{number}", f"        expr: {json.dumps(one)}"]
    (tmp_path / "queries.yaml").write_text("\n".join(lines))
    check("check", "rules", "queries.yaml", cwd=tmp_path)


def test_the_dashboard_is_laid_out_as_grafana_draws_it() -> None:
    """Grafana moves panels that overlap, and takes one of two with the same id."""
    shown = dashboard()
    assert (shown["uid"], shown["title"]) == ("raftcron", "raftcron")
    assert shown["schemaVersion"] >= 36
    ids = [panel["id"] for panel in shown["panels"]]
    assert len(ids) == len(set(ids))
    cells = set[tuple[int, int]]()
    for panel in shown["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= GRID_COLUMNS
        taken = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert not taken & cells, panel["title"]
        cells |= taken
    titles = [panel["title"] for panel in shown["panels"] if panel["type"] != "stat"]
    assert len(titles) == len(set(titles))
    variables = {one["name"] for one in shown["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]\w*)", DASHBOARD.read_text())) <= variables
    for panel in panels():
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def lost(before: Any, after: Any, path: str = "") -> set[str]:
    """Return the fields of a document that another one lacks, or has otherwise."""
    if isinstance(before, dict) and isinstance(after, dict):
        inner = {f"{path}.{name}".lstrip("."): (one, name) for name, one in before.items()}
        return {at for at, (_, name) in inner.items() if name not in after}.union(
            *(lost(one, after[name], at) for at, (one, name) in inner.items() if name in after)
        )
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = zip(before, after, strict=True)
        return set[str]().union(*(lost(one, other, path) for one, other in pairs))
    return set() if before == after else {path}


@pytest.mark.nightly
def test_grafana_s_own_types_read_all_of_the_dashboard() -> None:
    """Grafana itself is in none of the registries that the tests may use. Its SDK has the types of
    the JSON model: what they do not know would be missing in what they write again."""
    model = importlib.import_module("grafana_foundation_sdk.models.dashboard")
    encoder = importlib.import_module("grafana_foundation_sdk.cog.encoder").JSONEncoder
    importlib.import_module("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    read = model.Dashboard.from_json(dashboard())
    assert len(read.panels) == len(dashboard()["panels"])
    assert lost(dashboard(), json.loads(encoder().encode(read))) <= NOT_IN_SDK
    wrong = dashboard()
    wrong["panels"][1]["targets"][0]["expression"] = "up"
    wrong["refesh"] = "10s"
    found = lost(wrong, json.loads(encoder().encode(model.Dashboard.from_json(wrong))))
    assert found - NOT_IN_SDK == {"refesh", "panels.targets.expression"}
