"""cron.access: roles, scopes and tokens, decided without clock or chance."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cron.access import (
    CELL,
    TOKEN_BYTES,
    TOKEN_CHARS,
    Action,
    Grant,
    Role,
    Subject,
    Token,
    covers,
    is_token,
    may,
    names_within,
    scopes_for,
    tenants_within,
    token_digest,
    token_id,
    token_text,
)

A = Action
EXPECTED = {
    Role.VIEWER: {A.STATUS, A.READ, A.READ_TASK},
    Role.SUBMITTER: {A.STATUS, A.READ_TASK, A.SUBMIT, A.CANCEL_TASK, A.SEE_PAYLOADS},
    Role.OPERATOR: {A.STATUS, A.READ, A.READ_TASK, A.OPERATE, A.CANCEL_TASK},
    Role.EDITOR: {*Action} - {A.ADMINISTER, A.MANAGE_ACCESS},
    Role.ADMIN: {*Action},
    Role.RUN_AS: set(),
    Role.SEE_PAYLOADS: {A.SEE_PAYLOADS},
}


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("action", Action)
def test_each_role_may_what_the_model_says(role: Role, action: Action) -> None:
    ada = Subject("ada", (Grant(role),))
    assert may(ada, action, "billing/mail") is (action in EXPECTED[role])
    assert not may(Subject("bob"), action, "billing/mail")


def test_a_role_holds_within_its_scope_and_only_there() -> None:
    ada = Subject("ada", (Grant(Role.VIEWER), Grant(Role.EDITOR, "billing/*")))
    assert may(ada, A.EDIT, "billing/mail")
    assert may(ada, A.EDIT, "billing/*")
    assert not may(ada, A.EDIT, "ops/mail")
    assert not may(ada, A.EDIT, "*/*")
    assert not may(ada, A.EDIT, CELL)
    assert may(ada, A.READ, CELL)
    assert scopes_for(ada, A.READ) == (CELL,)
    assert scopes_for(ada, A.EDIT) == ("billing/*",)
    assert scopes_for(ada, A.ADMINISTER) == ()


@pytest.mark.parametrize(
    ("granted", "wanted", "is_covered"),
    [
        (CELL, CELL, True),
        (CELL, "*/*", True),
        ("billing/*", CELL, False),
        ("billing/*", "*/*", False),
        ("billing/*", "billing/*", True),
        ("billing/*", "billing/mail-?", True),
        ("billing/*", "billing2/mail", False),
        ("billing/mail*", "billing/mail-[ab]", True),
        ("billing/mail*", "billing/mai*", False),
        ("billing/mail", "billing/mail*", False),
        ("b*/*", "billing/x", True),
        ("b*/*", "b?/x", True),
        ("b*/*", "*/x", False),
        # A class that has the slash in it matches `x/y`, which is of another tenant than it seems.
        ("x*/m*", "x[a/m]y", False),
        ("x[a/m]y", "x[a/m]y", True),
    ],
)
def test_a_scope_covers_what_it_matches_whole(granted: str, wanted: str, is_covered: bool) -> None:
    assert covers(granted, wanted) is is_covered


_PART = st.text("ab*?[]!", min_size=1, max_size=4)
_PATTERN = st.builds("{}/{}".format, _PART, _PART)
_NAMES = [
    f"{tenant}/{name}"
    for tenant, name in product(("a", "b", "ab", "ba", "aab", "!"), ("a", "b", "ab", "bb", "]b"))
]


@given(_PATTERN, _PATTERN)
def test_what_is_covered_is_matched_by_the_grant(granted: str, wanted: str) -> None:
    if covers(granted, wanted):
        escaped = [
            name for name in _NAMES if fnmatchcase(name, wanted) and not fnmatchcase(name, granted)
        ]
        assert escaped == []


def test_lists_are_of_what_the_scopes_match() -> None:
    is_within = names_within(["billing/*", "ops/mail"])
    assert is_within is not None
    names = ["billing/a", "ops/mail", "ops/mail:key-1", "ops/mailer", "default/billing"]
    assert [name for name in names if is_within(name)] == [
        "billing/a",
        "ops/mail",
        "ops/mail:key-1",
    ]
    assert names_within([]) is None
    assert names_within(["billing/*", CELL]) is None


def test_a_tenant_is_within_a_scope_that_has_all_of_it() -> None:
    is_within = tenants_within(["billing/*", "ops/mail"])
    assert is_within is not None
    assert [name for name in ("billing", "ops", "bill") if is_within(name)] == ["billing"]
    assert tenants_within([]) is None


# ---- tokens


def made(**fields: object) -> tuple[str, Token]:
    text = token_text(bytes(range(TOKEN_BYTES)))
    said: dict[str, object] = {
        "id": token_id(text),
        "name": "ci",
        "role": Role.EDITOR,
        "scope": CELL,
        "digest": token_digest(text),
    }
    return text, Token(**(said | fields))  # type: ignore[arg-type]


def test_a_token_is_known_by_its_hash_alone() -> None:
    text, token = made()
    assert len(text) == TOKEN_CHARS
    assert text.startswith(f"rc1_{token.id}_")
    assert is_token(text, token)
    assert text.rpartition("_")[2].encode().hex() not in token.digest.hex()


def test_any_other_text_is_another_token() -> None:
    text, token = made()
    for place in (4, 20, len(text) - 1):
        other = text[:place] + ("0" if text[place] != "0" else "1") + text[place + 1 :]
        assert not is_token(other, token)


@pytest.mark.parametrize("cut", ["", "rc1_", "rc1_00", "x"])
def test_a_text_that_is_not_whole_has_no_id(cut: str) -> None:
    text, _ = made()
    assert token_id(cut) == ""
    assert token_id(text[:-1]) == ""
    assert token_id(text + "0") == ""
    assert token_id(text.upper()) == ""
    assert token_id(text) != ""


def test_a_token_ends_at_its_time_or_when_it_is_revoked() -> None:
    assert made(expires_ms=1_000)[1].is_live(999)
    assert not made(expires_ms=1_000)[1].is_live(1_000)
    assert made()[1].is_live(1 << 60)
    assert not made(revoked_ms=5)[1].is_live(0)
