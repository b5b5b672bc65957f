"""Takes secrets and quoted content out of text: the second fence behind "never log it".

The first fence is that no code passes such things on. This one is for what comes from elsewhere:
exception texts of libraries that quote a connection URL, a header, a request body or a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, unquote, urlsplit

from pydantic import SecretStr

from settings import Settings

__all__ = ["MARK", "Redactor", "secrets_of"]

MARK = "[redacted]"

# Shorter values would blank out ordinary words: a password `demo` occurs in every other line.
_SHORTEST_LITERAL = 8

_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # An API key's public half stays: it is what an operator searches for.
    (re.compile(r"(?i)\b(ol_[0-9a-f]{8,})_[\w-]{8,}"), rf"\1_{MARK}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {MARK}"),
    (re.compile(r"(?i)\b(postgres(?:ql)?(?:\+\w+)?://[^:/@\s'\"]*:)[^\s'\"]*@"), rf"\1{MARK}@"),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://[^:/@\s'\"]*:)[^@/\s'\"]+@"), rf"\1{MARK}@"),
    # Both `password=…` of a connection string and `"password": "…"` of JSON or of a repr.
    (
        re.compile(
            r"(?i)\b((?:\w*(?:password|passwd|secret|api_?key|payload_keys|codec_token)|pgpassword)"
            r"\w*['\"]?\s*[=:]\s*)"
            r"(?:'[^']*'|\"[^\"]*\"|(?!SecretStr)[^\s,;&'\"})]+)"
        ),
        rf"\1{MARK}",
    ),
    # One key of the payload key ring: `id:<32 bytes in base64>`.
    (re.compile(r"\b([\w-]{1,32}):[A-Za-z0-9+/_-]{43}=(?![\w=])"), rf"\1:{MARK}"),
    # The codec endpoint's capability token is a part of its path.
    (re.compile(r"(/codec/)[^/\s'\"?]+"), rf"\1{MARK}"),
    # Validation errors quote what the caller sent.
    (re.compile(r"(input_value=).*?(, input_type=)", re.DOTALL), rf"\1{MARK}\2"),
    # Postgres and its drivers quote rows, keys and parameters.
    (re.compile(r"(Failing row contains )\(.*\)", re.DOTALL), rf"\1({MARK})"),
    (re.compile(r"(Key \([^)]*\)=)\([^)]*\)"), rf"\1({MARK})"),
    (re.compile(r"(\bparameter \$\d+ = )'(?:[^']|'')*'"), rf"\1{MARK}"),
    (re.compile(r"(\[parameters: ).*?(\]\n|\]$)", re.DOTALL), rf"\1{MARK}\2"),
)


class Redactor:
    """Replaces known secrets, and what looks like one, by ``[redacted]``.

    Args:
        literals: Secrets of this process, replaced wherever they occur. Values shorter than
            8 characters are left to the patterns.
    """

    def __init__(self, literals: Iterable[str] = ()) -> None:
        # Longest first: a secret that contains another must go as a whole.
        usable = {value for value in literals if len(value) >= _SHORTEST_LITERAL}
        spellings = usable | {quote(value, safe="") for value in usable}
        self._literals = sorted(spellings, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text without secrets; the same object when there is nothing to do."""
        for literal in self._literals:
            if literal in text:
                text = text.replace(literal, MARK)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text


def secrets_of(settings: Settings) -> list[str]:
    """Return the secret values in the settings, in the forms in which they could be printed."""
    found: list[str] = []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if not isinstance(value, SecretStr) or not (secret := value.get_secret_value()):
            continue
        if "://" in secret:
            # The address is useful in a log line; only the password is secret.
            password = urlsplit(secret).password
            found.extend({password, unquote(password)} if password else ())
        elif name == "payload_keys":
            found.extend(
                part.partition(":")[2] for part in secret.split(",") if part.partition(":")[2]
            )
        else:
            found.append(secret)
    return found
