"""Who a page is for: the cookie of a session, and the tokens of forms.

A session is a cookie with the token that somebody signed in with. No replica keeps sessions: each
checks the token by State with every request, so that a session is valid at every replica, and ends
with the request after its token was revoked.

Both cookies are `SameSite=Lax`. The browser sends them when a person follows a link from a mail or
a chat, so a person who has signed in sees the page. It does not send them with a form of another
site.

Every browser also has a random cookie for forms. A form's token is a hash of that cookie and of who
is signed in: a page of another site can make a browser send the cookies, but can neither read them
nor compute the token.
"""

from __future__ import annotations

import hashlib
import hmac
from http.cookies import CookieError, SimpleCookie
from typing import Final

from cron.api.admission import Shown
from cron.web.problems import Refusal

SESSION_S: Final = 43_200
"""How long a browser keeps a session: a working day."""
FORM_BYTES: Final = 16
_SESSION: Final = "raftcron-session"
_FORM: Final = "raftcron-form"


class Cookies:
    """The cookies of one request. `is_secure`: it came over TLS."""

    def __init__(self, header: str, *, is_secure: bool) -> None:
        self._prefix = "__Host-" if is_secure else ""
        self._is_secure = is_secure
        found: SimpleCookie = SimpleCookie()
        try:
            found.load(header)
        except CookieError:
            found = SimpleCookie()
        self._values = {name: one.value for name, one in found.items()}

    @property
    def session(self) -> str:
        """The token of the session, "" for none."""
        return self._values.get(self._prefix + _SESSION, "")

    @property
    def form(self) -> str:
        """The key of forms, "" where the browser has none yet."""
        return self._values.get(self._prefix + _FORM, "")

    def with_session(self, token: str) -> str:
        """Return the header that begins a session, or ends it for ""."""
        return self._set(_SESSION, token, SESSION_S if token else 0)

    def with_form(self, key: str) -> str:
        """Return the header that gives the browser its key of forms."""
        return self._set(_FORM, key, None)

    def _set(self, name: str, value: str, age_s: int | None) -> str:
        parts = [f"{self._prefix}{name}={value}", "Path=/", "HttpOnly", "SameSite=Lax"]
        if age_s is not None:
            parts.append(f"Max-Age={age_s}")
        if self._is_secure:
            parts.append("Secure")
        return "; ".join(parts)


def form_token(form_key: str, shown: Shown) -> str:
    """Return the CSRF token for the forms of one browser session and its signed-in identity."""
    name = "" if shown.identity is None else f"{shown.identity.kind} {shown.identity.name}"
    said = f"{shown.authorization}\n{name}".encode(errors="replace")
    return hmac.new(form_key.encode(errors="replace"), said, hashlib.sha256).hexdigest()


def check_form(given: str, form_key: str, shown: Shown) -> None:
    """Check that a form was on a page of this console, made for the same person.

    Raises:
        Refusal: it was not.
    """
    expected = form_token(form_key, shown)
    if not form_key or not hmac.compare_digest(expected.encode(), given.encode(errors="replace")):
        text = "the form is not one that this console made for you"
        hint = "open the page again, and send its form once more; nothing was changed"
        raise Refusal(403, "foreign_form", text, hint)
