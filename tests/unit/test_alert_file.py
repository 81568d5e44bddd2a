"""Files of alerts: what they declare, and how wrong ones are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cron.alert_rules import AlertFile, AlertKind, Channel, ChannelKind, Condition, Rule
from cron.crontab.alert_file import CHANNEL_KEYS, RULE_KEYS, parse_alert_file
from cron.crontab.conditions import parse_condition
from cron.errors import CrontabError, Problem
from cron.limits import CHANNELS_MAX, RULE_CHANNELS_MAX, RULE_SUBJECTS_MAX, RULES_MAX
from launcher.targets.app import ALL, targets_of
from launcher.targets.config import load
from tests.style.tree import ROOT

EXAMPLE = (ROOT / "examples" / "alerts.toml").read_text(encoding="utf-8")
CHANNEL = '[[channel]]\nname = "ops"\nkind = "mail"\nto = ["ops@example.com"]\n'


def rule(*lines: str) -> str:
    return CHANNEL + "\n".join(["[[rule]]", 'name = "r"', *lines, ""])


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(CrontabError) as caught:
        parse_alert_file(text)
    return caught.value.problems


def test_the_example_declares_channels_of_every_kind_and_uses_every_key() -> None:
    found = parse_alert_file(EXAMPLE)
    assert {one.kind for one in found.channels} == set(ChannelKind)
    assert found.channels[0].to == ("ops@example.com", "ada@example.com")
    assert {one.name for one in found.rules} >= {"failed-twice", "cell-replica"}
    assert all(f"\n{key} = " in EXAMPLE for key in (*CHANNEL_KEYS, *RULE_KEYS))


def test_a_rule_names_its_subjects_with_their_tenants() -> None:
    text = rule('when = "failed:3/10"', 'jobs = ["nightly", "b*", "*", "a/?"]', 'to = "ops"')
    assert parse_alert_file(text) == AlertFile(
        (Channel("ops", ChannelKind.MAIL, ("ops@example.com",)),),
        (
            Rule(
                "r",
                Condition(AlertKind.FAILED, 3, 10),
                ("default/nightly", "default/b*", "*/*", "a/?"),
                ("ops",),
            ),
        ),
    )


def test_an_empty_file_declares_nothing() -> None:
    assert parse_alert_file("") == AlertFile()


@pytest.mark.parametrize("said", ["root", "ada@example.com", "ada+cron@mail.example.com"])
def test_a_local_name_is_an_address(said: str) -> None:
    [channel] = parse_alert_file(CHANNEL.replace("ops@example.com", said)).channels
    assert channel.to == (said,)


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        (CHANNEL + "[[channel]\n", 5, "file is not TOML", "examples/alerts.toml"),
        ("\nrules = 1\n", 2, "'rules' is not known", "[[channel]] and [[rule]]"),
        ("[rule]\n", 1, "rule is not a list of tables", "[[rule]]"),
        ("channel = 3\n", 1, "channel is not a list of tables", "[[channel]]"),
        ('[[channel]]\nkind = "mail"\n', 1, "channel number 1: name is missing", 'name = "ops"'),
        ('[[channel]]\nname = "a b"\n', 2, "not a plain word", "A-Z"),
        ('[[channel]]\nname = "' + "a" * 65 + '"\n', 2, "not a plain word", "up to 64"),
        ('[[channel]]\nname = 7\n', 2, "name is not a text", "quotes"),
        ('[[channel]]\nname = "a"\n', 1, "channel a: kind is missing", "mail"),
        ('[[channel]]\nname = "a"\nkind = "fax"\n', 3, "kind 'fax' is none of mail", ""),
        ('[[channel]]\nname = "a"\nkind = "mail"\n', 1, "to is missing", "ops@example.com"),
        (CHANNEL.replace("ops@", "o ps@"), 4, "'o ps@example.com' is no address", "write"),
        (CHANNEL.replace("ops@", "o\\nps@"), 4, "is no address", "write"),
        (CHANNEL.replace('"ops@example.com"', ""), 4, "to is not a list of texts", "ops@"),
        (CHANNEL.replace("mail", "webhook"), 4, "has no addresses", "docs/alerts.md"),
        (CHANNEL + CHANNEL, 6, "channel ops: is declared twice", "another name"),
        (CHANNEL + "form = 1\n", 5, "key 'form' is not known", "there are name, kind, to"),
        (rule('to = ["ops"]'), 5, "rule r: when is missing", 'when = "failed:2"'),
        (rule('when = "fialed"', 'to = "ops"'), 7, "'fialed' is not known", "did you mean failed"),
        (rule('when = "late"', 'to = "ops"'), 7, "does not say how long", "late:10m"),
        (rule('when = "late:5"', 'to = "ops"'), 7, "has no unit", "5s"),
        (rule('when = "dead,missed"', 'to = "ops"'), 7, "is not known", "for each condition"),
        (rule('when = "dead"'), 5, "to is missing", 'to = ["ops"]'),
        (rule('when = "dead"', 'to = ["osp"]'), 8, "channel 'osp' does not exist", "mean ops?"),
        (rule('when = "dead"', 'to = ["x"]'), 8, "does not exist", "declare it"),
        (rule('when = "dead"', 'to = ["ops", "ops"]'), 8, "has an entry twice", "remove"),
        (rule('when = "dead"', 'to = "ops"', 'jobs = ["a b"]'), 9, "not a pattern", "acme/*"),
        (rule('when = "dead"', 'to = "ops"', 'jobs = ["a/b/c"]'), 9, "not a pattern", "acme/*"),
        (rule('when = "dead"', 'to = "ops"', "jobs = []"), 9, "not a list of texts", "acme/*"),
        (rule('when = "late:1m"', 'to = "ops"', 'queues = "a"'), 9, "late does not watch queues",
         "write jobs"),
        (rule('when = "queue-older:1m"', 'to = "ops"', 'jobs = "a"'), 9, "does not watch jobs",
         "write queues"),
        (rule('when = "clock-off"', 'to = "ops"', 'jobs = "a"'), 9, "does not watch jobs",
         "remove it"),
        (rule('when = "dead"', 'to = "ops"', 'job = "a"'), 9, "key 'job' is not known", "jobs?"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_its_line_and_a_way_out(
    text: str, line: int, message: str, hint: str
) -> None:
    [problem] = problems_of(text)
    assert message in problem.message
    assert hint in problem.hint
    assert problem.line == line


def test_a_heartbeat_carries_no_alerts() -> None:
    beat = '[[channel]]\nname = "beat"\nkind = "heartbeat"\n'
    [problem] = problems_of(beat + rule('when = "dead"', 'to = ["beat"]'))
    assert "channel beat is a heartbeat" in problem.message


def test_all_errors_of_a_file_are_named_in_its_order() -> None:
    wrong = rule('when = "dead"', 'to = ["x"]') + '[[channel]]\nname = "a"\nkind = "fax"\n'
    assert [one.line for one in problems_of(wrong)] == [8, 11]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[channel]]\nname = "c"\nkind = "webhook"\n' * (CHANNELS_MAX + 1), "101 tables"),
        (rule('when = "dead"', 'to = "ops"') * (RULES_MAX + 1), "1,001 tables"),
        (rule('when = "dead"', f"to = {['x'] * (RULE_CHANNELS_MAX + 1)}"), "at most 10"),
        (
            rule('when = "dead"', 'to = "ops"', f"jobs = {['x'] * (RULE_SUBJECTS_MAX + 1)}"),
            "at most 20",
        ),
    ],
)
def test_more_than_a_cell_keeps_is_refused(text: str, message: str) -> None:
    assert any(message in one.message for one in problems_of(text))


# ---- the document

DOCUMENT = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
TABLES = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)


def test_the_rules_of_the_document_are_ones() -> None:
    found = [parse_alert_file(text) for text in TABLES if text.startswith("[[channel]]")]
    assert [one.rules[0].condition for one in found] == [Condition(AlertKind.FAILED, 2)]


def test_the_targets_of_the_document_are_ones(tmp_path: Path) -> None:
    (tmp_path / "slack.url").write_text("https://hooks.example.com/T0\n")
    (tmp_path / "pagerduty.key").write_text("k3y\n")
    for path in tmp_path.iterdir():
        path.chmod(0o600)
    for path in (ROOT / "examples" / "alerts").iterdir():
        (tmp_path / path.name).symlink_to(path)
    kinds = []
    for number, text in enumerate(TABLES):
        if not text.startswith("[[channel]]"):
            path = tmp_path / f"{number}.toml"
            path.write_text(text)
            kinds += [one.handler for one in targets_of(ALL, load(path), path)]
    assert kinds == ["mail", "webhook"]


def test_the_document_has_every_condition() -> None:
    rows = re.findall(r"^\| `([a-z0-9:/%-]+)` \|", DOCUMENT, re.MULTILINE)
    kinds = {"kind", "when"} | {one.label for one in ChannelKind}  # and the heads of tables
    found = {parse_condition(text).kind for text in rows if text not in kinds}
    assert found == set(AlertKind)
    assert kinds <= set(rows)
