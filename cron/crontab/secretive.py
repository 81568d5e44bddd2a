"""What looks like a secret in clear: in an environment line, a command, a payload. Pure.

The log, snapshots, backups and everybody who may see environments have it for ever. Wrong guesses
cost a warning, so only names and values are taken that are hardly ever anything else.
"""

from __future__ import annotations

import re
from typing import Final

HINT: Final = (
    "the log and backups keep it: write #: secret={name}:NAME, and put the value where executors "
    "find it (docs/security.md)"
)
PAYLOAD_HINT: Final = (
    "the log and backups keep it: pass the name of the secret, and let the handler look it up"
)
_NAME: Final = re.compile(
    r"(?:.*[_.-])?(?:PASSWORD|PASSWD|PASSPHRASE|PGPASSWORD|PASS|PWD|SECRET|TOKEN|API_?KEY"
    r"|PRIVATE_?KEY|ACCESS_?KEY|CREDENTIALS?)(?:[_.-]KEY)?",
    re.IGNORECASE,
)
_PLACE: Final = re.compile(r"[~./$]|\Z|[a-z]:[/\\]", re.IGNORECASE)
"""How values begin that say where a secret is; an empty one is none."""
_PLAIN: Final = ("yes", "no", "true", "false", "on", "off", "none", "null")
# Repetitions that may begin at many places of a text are bounded: its time must be linear.
_VALUES: Final = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY"), "a private key"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), "an access key of AWS"),
    (re.compile(r"\brc1_[A-Za-z0-9_-]{16,}"), "a token of raftcron"),
    (
        re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
        "a token of GitHub",
    ),
    (re.compile(r"\bglpat-[A-Za-z0-9_-]{16,}"), "a token of GitLab"),
    (re.compile(r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"), "a token of Slack"),
    (re.compile(r"\beyJ[\w-]{10,1000}\.eyJ[\w-]{10,1000}\."), "a signed token (JWT)"),
    (
        re.compile(r"\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]*:[^\s/@$]+@", re.IGNORECASE),
        "a password in a URL",
    ),
)
_MARK: Final = re.compile(r"://|-----BEGIN|AKIA|ASIA|rc1_|gh[pousr]_|github_pat_|glpat-|xox|eyJ")
"""What each of these has: one search in most texts instead of many."""
_LOOKED_AT_CHARS: Final = 64 << 10
_KEY: Final = re.compile(r'"([A-Za-z0-9_.-]{1,100})"\s*:\s*"([^"]{1,200})')


def secret_in(name: str, value: str) -> str:
    """Return what of a variable looks like a secret, "" for nothing."""
    if found := secret_in_text(value):
        return found
    is_named = _NAME.fullmatch(name) and not _PLACE.match(value)
    is_value = value.lower() not in _PLAIN and not value.isdigit()
    return "a secret, by its name" if is_named and is_value else ""


def secret_in_payload(text: str) -> str:
    """Return what in a JSON text looks like a secret, "" for nothing."""
    if found := secret_in_text(text):
        return found
    for key, value in _KEY.findall(text[:_LOOKED_AT_CHARS]):
        if found := secret_in(key, value):
            return f"{found} ({key})"
    return ""


def secret_in_text(text: str) -> str:
    """Return what in a text, such as a command, looks like a secret, "" for nothing."""
    looked_at = text[:_LOOKED_AT_CHARS]
    if not _MARK.search(looked_at):
        return ""
    return next((what for pattern, what in _VALUES if pattern.search(looked_at)), "")
