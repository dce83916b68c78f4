"""Finds secrets in text, and replaces them. Owns the built-in patterns and the placeholders.

Used with `redact=` before anything is stored, and by the CLI and the web UI to mask what they show
and export.

Every pattern takes linear time: a repetition is bounded, or nothing after it can fail, or a
lookbehind makes sure that a run of characters is tried only once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Union

from agent_checkpoint.errors import InvalidInputError, StateError
from agent_checkpoint.named_tuple import NamedTuple

Redact = Union[
    str,
    "re.Pattern[str]",
    Callable[[str], str],
    "list[str | re.Pattern[str] | Callable[[str], str]]",
]
"""The option `redact=`: `secrets`, regular expressions, a function, or a list of them."""

SECRETS = "secrets"
"""The name of the built-in patterns."""

PLACEHOLDER = re.compile(r"(\[(?:redacted|masked)(?::[a-z-]{1,30})?\])")

REDACTED = re.compile(r"\[redacted(?::[a-z-]{1,30})?\]")

MASKED = re.compile(r"\[masked(?::[a-z-]{1,30})?\]")

_ESCAPE = r"(?<=\\[nrtbf])|(?<=\\x[0-9a-fA-F]{2})|(?<=\\u[0-9a-fA-F]{4})"
_START = rf"(?:(?<![A-Za-z0-9_-])|{_ESCAPE})"
"""No character of a token before it; an escape may be, as in JSON or a repr inside a string."""

_NAMES = (
    r"(?:pass(?:word|wd|phrase)|pwd|(?:api|secret|private|signing|encryption)[_-]?key|apikey"
    r"|(?:access|auth|refresh|bearer|session|bot|api)[_-]?token|client[_-]?secret"
    r"|secret[_-]?access[_-]?key|account[_-]?key)"
)


class _Pattern(NamedTuple):
    """One kind of secret. What its group `before` matches is kept."""

    kind: str
    hints: tuple[str, ...]
    """A text has such a secret only if it contains one of these, in any case."""
    form: re.Pattern[str]
    is_possible: Callable[[str], bool] = lambda lower: True
    """A faster test of the text in lower case, for a form that is slow to search."""


_SEPARATOR = re.compile(r"[\"'\\]{0,3}\s{0,4}[:=]")
_NAME_ENDS = (
    ("key", ("api", "secret", "private", "signing", "encryption", "access", "account")),
    ("token", ("access", "auth", "refresh", "bearer", "session", "bot", "api")),
    ("secret", ("client",)),
    *((name, ("",)) for name in ("password", "passwd", "passphrase", "pwd")),
)
"""The ends of `_NAMES`, and what comes before, perhaps with a `_` or `-` between."""
_LONGEST_START = 11


def _may_assign(lower: str) -> bool:
    """Return whether a name of `_NAMES` and a separator are in a text."""
    for end, starts in _NAME_ENDS:
        at = lower.find(end)
        while at >= 0:
            after = at + len(end)
            if _SEPARATOR.match(lower, after):
                before = lower[max(0, at - _LONGEST_START) : at]
                if before.endswith(starts) or before[:-1].endswith(starts):
                    return True
            at = lower.find(end, after)
    return False


@cache
def _patterns() -> tuple[_Pattern, ...]:
    """Return the built-in patterns; compiling them takes longer than loading a module."""
    return (
        _Pattern(
            "private-key",
            ("private key",),
            re.compile(
                r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
                r"(?:[\s\\nr]{0,8}(?:Proc-Type|DEK-Info|Version|Comment): [^\n\\]{0,100}){0,4}"
                r"(?:[\s\\nr]{0,64}[A-Za-z0-9+/=]{16,})+[\s\\nr]{0,8}[A-Za-z0-9+/=]{0,64}"
                r"(?:[\s\\nr]{0,8}-----END [A-Z0-9 ]{0,40}-----)?"
            ),
        ),
        _Pattern("anthropic-key", ("sk-ant-",), re.compile(r"sk-ant-[A-Za-z0-9_-]{20,}")),
        _Pattern(
            "openai-key",
            ("sk-",),
            re.compile(
                r"sk-(?:(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20,}|or-v1-[0-9a-f]{40,})"
                rf"|{_START}sk-[A-Za-z0-9]{{32,}}"
            ),
        ),
        _Pattern(
            "github-token",
            ("gh", "github_pat_"),
            re.compile(r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}"),
        ),
        _Pattern(
            "gitlab-token",
            ("gl",),
            re.compile(r"gl(?:pat|dt|rt|cbt|ptt|ft|soat|oas)-[A-Za-z0-9_-]{20,}"),
        ),
        _Pattern(
            "slack-token",
            ("xox", "xapp-", "hooks.slack.com"),
            re.compile(
                r"xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[0-9]-[A-Za-z0-9-]{10,}"
                r"|hooks\.slack\.com/services/[A-Za-z0-9/_-]{20,}"
            ),
        ),
        _Pattern(
            "stripe-key",
            ("k_live_", "k_test_", "whsec_"),
            re.compile(
                rf"{_START}[rs]k_(?:live|test)_[A-Za-z0-9]{{16,}}|whsec_[A-Za-z0-9+/=]{{24,}}"
            ),
        ),
        _Pattern(
            "google-key",
            ("aiza", "ya29.", "gocspx-"),
            re.compile(r"AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}"),
        ),
        _Pattern(
            "aws-key",
            ("akia", "asia"),
            re.compile(rf"(?:(?<![A-Z0-9])|{_ESCAPE})(?:AKIA|ASIA)[A-Z2-7]{{16}}(?![A-Z0-9])"),
        ),
        _Pattern("hugging-face-token", ("hf_",), re.compile(rf"{_START}hf_[A-Za-z0-9]{{30,}}")),
        _Pattern("npm-token", ("npm_",), re.compile(rf"{_START}npm_[A-Za-z0-9]{{36,}}")),
        _Pattern("pypi-token", ("pypi-",), re.compile(r"pypi-[A-Za-z0-9_-]{50,}")),
        _Pattern(
            "jwt",
            (".ey",),
            re.compile(
                rf"{_START}ey[A-Za-z0-9_-]{{10,}}\.ey[A-Za-z0-9_-]{{8,}}\.[A-Za-z0-9_-]{{8,}}"
            ),
        ),
        _Pattern(
            "authorization",
            ("bearer", "authorization"),
            re.compile(
                r"(?P<before>authorization[\"'\\]{0,3}\s{0,4}[:=]\s{0,4}[\"'\\]{0,3}"
                r"(?:bearer|basic|token)\s{1,4}"
                r"|(?<![a-z])bearer\s{1,4}(?=[a-z._~+/=-]{0,256}[0-9])(?=[^\s\"'\\]{20}))"
                r"[a-z0-9._~+/=-]{8,}",
                re.IGNORECASE,
            ),
        ),
        _Pattern(
            "url-password",
            ("://",),
            re.compile(
                r"(?<=://)(?P<before>[^\s/:@\"'<>?#]{0,128}:)"
                r"(?!\$\{|\$[A-Z_]{2}|\{|%\(|\*\*|\[|<)[^\s/\"'<>?#]{1,256}(?=@)"
            ),
        ),
        _Pattern(
            "assignment",
            ("pass", "pwd", "key", "token", "secret"),
            re.compile(
                rf"(?P<before>{_NAMES}[\"'\\]{{0,3}}\s{{0,4}}(?::=|=>|=(?!=)|:)\s{{0,4}}[\"'\\]{{0,3}})"
                r"(?P<value>[^\s\"'\\,;&<>`]{6,256})",
                re.IGNORECASE,
            ),
            _may_assign,
        ),
    )


@cache
def _secret_name() -> re.Pattern[str]:
    return re.compile(rf"[a-z0-9_.-]{{0,64}}?{_NAMES}", re.IGNORECASE)


_REFERENCE = re.compile(r"[$%{*\[(]|[A-Z][A-Z0-9_]*\Z|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*[.(\[]")
"""The start of a value that refers to a secret: `$KEY`, `{key}`, `KEY`, `os.environ["KEY"]`."""

Counted = tuple[str, int]


class _Rule(NamedTuple):
    """One way to find secrets: its placeholder kind, and the replacement with its count."""

    replace: Callable[[str, str], Counted]
    """Takes a text and the word of the placeholder (`redacted` or `masked`)."""
    is_builtin: bool = False


class Redactor:
    """Replaces what its rules match by placeholders such as `[redacted:github-token]`."""

    def __init__(
        self, rules: Iterable[_Rule], word: str = "redacted", option: Redact = SECRETS
    ) -> None:
        self.option = option
        """The `redact=` option that it was made from, for another process."""
        self._rules = tuple(rules)
        self._word = word
        self._has_names = any(rule.is_builtin for rule in self._rules)

    def text(self, text: str) -> Counted:
        """Return a text without secrets, and how many were replaced.

        Raises:
            StateError: a function of the user failed.
        """
        count = 0
        for rule in self._rules:
            if "[" not in text or PLACEHOLDER.search(text) is None:
                text, found = rule.replace(text, self._word)
                count += found
                continue
            pieces = PLACEHOLDER.split(text)  # placeholders at odd positions: leave them alone
            for at in range(0, len(pieces), 2):
                pieces[at], found = rule.replace(pieces[at], self._word) if pieces[at] else ("", 0)
                count += found
            text = "".join(pieces)
        return text, count

    def data(self, data: bytes) -> tuple[bytes, int]:
        """Return bytes without secrets, read as UTF-8 where they are. Raises StateError."""
        text, count = self.text(data.decode("utf-8", "surrogateescape"))
        return (text.encode("utf-8", "surrogateescape"), count) if count else (data, 0)

    def member(self, name: str, value: str) -> Counted:
        """Return the value of a named member, such as `password`. Raises StateError."""
        if (
            self._has_names
            and len(value) >= 6
            and len(name) <= 128
            and _secret_name().fullmatch(name) is not None
            and not any(map(str.isspace, value))
            and _REFERENCE.match(value) is None
        ):
            return f"[{self._word}:assignment]", 1
        return self.text(value)

    def json(self, value: Any) -> Any:
        """Return JSON data without secrets in its strings, uncounted. Raises StateError."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, (list, tuple)):
            return [self.json(item) for item in value]
        if isinstance(value, dict):
            return {
                self.clean(name) if isinstance(name, str) else name: (
                    self.member(str(name), item)[0] if isinstance(item, str) else self.json(item)
                )
                for name, item in value.items()
            }
        return value

    def clean(self, text: str) -> str:
        """Return a text without secrets, uncounted. Raises StateError."""
        return self.text(text)[0]


def redactor_of(redact: Redact | None) -> Redactor | None:
    """Return the redactor for a `redact=` option, or None for none.

    Raises:
        InvalidInputError: the option is invalid.
    """
    if redact is None:
        return None
    given = list(redact) if isinstance(redact, (list, tuple)) else [redact]
    if not given:
        raise InvalidInputError(f"redact is empty. Pass {SECRETS!r}, a pattern or a function.")
    return Redactor((rule for item in given for rule in _rules_of(item)), option=redact)


def _rules_of(item: Any) -> list[_Rule]:
    if isinstance(item, str) and item == SECRETS:
        return [_BUILTIN]
    if isinstance(item, str):
        try:
            item = re.compile(item)
        except re.error as error:
            raise InvalidInputError(f"redact has an invalid pattern ({error}).") from None
    if isinstance(item, re.Pattern):
        if not isinstance(item.pattern, str) or item.fullmatch("") is not None:
            raise InvalidInputError(
                "redact has a pattern of bytes, or one that matches the empty string. Pass a "
                "pattern of text that matches at least one character."
            )
        return [_Rule(_pattern_rule(item))]
    if callable(item):
        return [_Rule(_function_rule(item))]
    raise InvalidInputError(
        f"redact must be {SECRETS!r}, a regular expression, a function or a list of them, not "
        f"{type(item).__name__}."
    )


def _pattern_rule(pattern: re.Pattern[str]) -> Callable[[str, str], Counted]:
    def replace(text: str, word: str) -> Counted:
        return _replace(pattern, text, lambda match: f"[{word}]" if match[0] else None)

    return replace


def _function_rule(function: Callable[[str], str]) -> Callable[[str, str], Counted]:
    def replace(text: str, word: str) -> Counted:
        try:
            changed = function(text)
        except Exception as error:
            # Its text may contain the secret; it stays in the chained exception.
            raise StateError(
                f"The function of redact= failed ({type(error).__name__}). Nothing was saved."
            ) from error
        if not isinstance(changed, str):
            raise StateError(
                f"The function of redact= returned {type(changed).__name__}, not a string. "
                "Nothing was saved."
            )
        return changed, int(changed != text)

    return replace


def _replace(
    pattern: re.Pattern[str], text: str, placeholder: Callable[[re.Match[str]], str | None]
) -> Counted:
    count = 0

    def put(match: re.Match[str]) -> str:
        nonlocal count
        fresh = placeholder(match)
        if fresh is None:
            return match[0]
        count += 1
        return fresh

    return pattern.sub(put, text), count


def _builtin(text: str, word: str) -> Counted:
    lower, count = text.casefold(), 0
    for kind, hints, form, is_possible in _patterns():
        if any(hint in lower for hint in hints) and is_possible(lower):
            text, found = _replace(form, text, lambda match, kind=kind: _fresh(match, word, kind))  # type: ignore[misc]
            count += found
    return text, count


def _fresh(match: re.Match[str], word: str, kind: str) -> str | None:
    groups = match.groupdict()
    before = groups.get("before", "")
    if "value" in groups and not _looks_secret(groups["value"], before[-1] in "\"'"):
        return None
    return f"{before}[{word}:{kind}]"


def _looks_secret(value: str, is_quoted: bool) -> bool:
    """Return whether an assigned value is a literal with letters and digits, not code or prose."""
    if len(value) < 8 and not is_quoted:
        return False
    if _REFERENCE.match(value.rstrip(")]}")) is not None:
        return False
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value))


_BUILTIN = _Rule(_builtin, is_builtin=True)
MASK = Redactor([_BUILTIN], "masked")
"""Masks the secrets of the built-in patterns."""


def mask(text: str) -> str:
    """Return a text with the secrets of the built-in patterns masked, for display."""
    return MASK.clean(text)


def mask_json(value: Any) -> Any:
    """Return JSON data with the secrets in its strings masked, for display."""
    return MASK.json(value)
