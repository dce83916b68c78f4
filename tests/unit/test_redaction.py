"""The patterns of secrets: what they find, what they leave alone, and how much they look at."""

import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_checkpoint import redaction
from agent_checkpoint.errors import InvalidInputError, StateError
from agent_checkpoint.redaction import mask, mask_json, redactor_of
from tests.secrets_of_each_kind import CORES, SECRETS

BUILT_IN = redactor_of("secrets")
assert BUILT_IN is not None


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "see {} there",
        '{{"a": "{}"}}',
        "key:\\n{}\\n",
        "\\u2028{}",
        "\\x0c{}",
        "a\n{}\nb",
        "({})",
        "<{}>",
        "'{}',",
    ],
)
def test_each_kind_is_found_wherever_it_stands(kind: str, form: str) -> None:
    assert BUILT_IN is not None
    text, count = BUILT_IN.text(form.format(SECRETS[kind]))
    assert CORES[kind] not in text
    assert f"[redacted:{kind.partition(',')[0]}]" in text
    assert count == 1
    assert BUILT_IN.text(text) == (text, 0)  # again: nothing is left, and placeholders stay


@pytest.mark.parametrize("kind", SECRETS)
def test_each_kind_is_found_in_json_inside_a_string(kind: str) -> None:
    import json

    assert BUILT_IN is not None
    for text in (json.dumps({"content": SECRETS[kind]}), json.dumps(json.dumps([SECRETS[kind]]))):
        clean, _ = BUILT_IN.text(text)
        assert CORES[kind] not in clean
        assert json.loads(clean)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "task-abcdefghijklmnopqrstuvwxyzabcdefghijklmnop",
        "password: required",
        "password = getpass1(prompt)",
        "password = hash_password2(pw)",
        "api_key=os.environ['OPENAI_API_KEY1']",
        "api_key = settings.API_KEY2",
        "client = OpenAI(api_key=API_KEY_2)",
        "password=${DB_PASSWORD1}",
        "password == expected1",
        "PASSWORD_MIN_LENGTH = 12345678",
        "max_tokens: 12345678a",
        "the bearer of good news2",
        "https://example.com:8080/a@b",
        "http://[::1]:80/",
        "git@github.com:org/repo.git",
        "ssh://git@github.com/x",
        "https://user:${TOKEN}@example.com",
        "https://<user>:<password>@example.com",
        "-----BEGIN PRIVATE KEY----- is the first line of a key file",
        "-----BEGIN CERTIFICATE-----\nMIIEpAIBAAKCAQEAZx81kd0dJw2nQ7vLmP4sT6yU\n",
        "sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "b53f0a1e-2c1d-4d7e-9f0a-1b2c3d4e5f60",
        "eyJhbGciOiJIUzI1NiJ9",
        "AKIA is a prefix",
        "[redacted:github-token] and [redacted] and [masked:jwt]",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert BUILT_IN is not None
    assert BUILT_IN.text(text) == (text, 0)


def test_the_value_of_a_member_with_a_telling_name() -> None:
    assert BUILT_IN is not None
    for name in (
        "password",
        "DB_PASSWORD",
        "api_key",
        "openai-api-key",
        "clientSecret",
        "auth_token",
    ):
        assert BUILT_IN.member(name, "hunter2") == ("[redacted:assignment]", 1), name
    for name, value in (
        ("password", "short"),
        ("password", "Please enter it"),
        ("api_key", "OPENAI_API_KEY"),
        ("api_key", "$KEY_OF_MINE"),
        ("password", "[redacted:assignment]"),
        ("token", "abcdef1"),
        ("passwords_checked", "hunter2"),
        ("a" * 1000 + "password", "hunter2"),
    ):
        assert BUILT_IN.member(name, value) == (value, 0), name


def test_patterns_functions_and_lists_of_them() -> None:
    both = redactor_of([r"\d{4}", re.compile("(?i)bob"), lambda text: text.replace("Ann", "A.")])
    assert both is not None
    assert both.text("Bob 1234 Ann 12") == ("[redacted] [redacted] A. 12", 3)
    assert both.member("password", "hunter2") == ("hunter2", 0)  # only of the built-in set
    assert both.data(b"\xff Bob \xfe") == (b"\xff [redacted] \xfe", 1)


def test_placeholders_are_never_redacted_again() -> None:
    words = redactor_of([r"\w+", "secrets"])
    assert words is not None
    once, count = words.text("two words")
    assert (once, count) == ("[redacted] [redacted]", 2)
    assert words.text(once) == (once, 0)


def test_a_pattern_that_matches_nothing_inserts_nothing() -> None:
    ahead = redactor_of("(?=x)")
    assert ahead is not None
    assert ahead.text("axb") == ("axb", 0)


@pytest.mark.parametrize(
    "wrong", [[], "x*", "(", b"x", re.compile(b"x"), 7, ["secrets", 7], {"a": 1}]
)
def test_what_is_no_option_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="redact"):
        redactor_of(wrong)


@pytest.mark.parametrize("function", [lambda text: text[9], lambda text: None, lambda text: b""])
def test_a_function_that_fails_stops_the_save_and_shows_no_text(function: Any) -> None:
    failing = redactor_of(function)
    assert failing is not None
    with pytest.raises(StateError, match="function of redact=") as caught:
        failing.text("hunter2")
    assert "hunter2" not in str(caught.value)


def test_masking_data() -> None:
    token = SECRETS["github-token"]
    data = {"a": [token, 1, None], "password": "hunter2", token: {"b": f"x {token}"}, "n": 1.5}
    assert mask_json(data) == {
        "a": ["[masked:github-token]", 1, None],
        "password": "[masked:assignment]",
        "[masked:github-token]": {"b": "x [masked:github-token]"},
        "n": 1.5,
    }
    assert mask("plain") == "plain"


# -- linear time -----------------------------------------------------------------------------------

HOSTILE = [
    *(
        "sk-",
        "sk-ant-",
        "sk-proj-",
        "ghp_",
        "github_pat_",
        "glpat-",
        "xoxb-",
        "hf_",
        "npm_",
        "pypi-",
    ),
    *(
        "eyJ",
        "eyJaaaaaaaaaaaa.",
        "eyJaaaaaaaaaaaa.eyJaaaaaaaaaaaa",
        "AKIA",
        "sk_live_",
        "private key",
    ),
    *("-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n"),
    *("-----BEGIN PRIVATE KEY-----\nProc-Type: ", "-----BEGIN PRIVATE KEY-----nnnnnnnn"),
    *("://", "://a:", "://a:a", "://a:a@", "password=", "password: ", "password='"),
    *("authorization: bearer ", "bearer ", "bearer a", "[", "[redacted:", "[redacted]"),
    *("a", " ", "\n", "\\n"),
]


def parsed(form: "re.Pattern[str]") -> Any:
    if sys.version_info >= (3, 11):
        from re import _parser as parser
    else:
        import sre_parse as parser
    return parser.parse(form.pattern, form.flags)


def most_looked_at(sequence: Any, at_end: bool = True) -> float:
    """Return how many characters an attempt that fails can look at; infinite if there is no bound.

    An unbounded repeat has none if something behind it can fail: it is then tried at every length.
    """
    total = 0.0
    for place, (op, argument) in enumerate(sequence):
        is_last = at_end and not can_fail(sequence[place + 1 :])
        name = str(op)
        if name == "SUBPATTERN":
            total += most_looked_at(argument[-1], is_last)
        elif name == "BRANCH":
            total += max(most_looked_at(branch, is_last) for branch in argument[1])
        elif name in ("ASSERT", "ASSERT_NOT"):
            total += most_looked_at(argument[1], True)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, below = argument
            if most <= 1000:
                total += most * most_looked_at(below, is_last)
            else:
                total += least * most_looked_at(below) if is_last else float("inf")
        else:
            total += 1
    return total


def can_fail(sequence: Any) -> bool:
    has_assertion = any(str(op) in ("ASSERT", "ASSERT_NOT", "AT") for op, _ in sequence)
    return bool(has_assertion or sequence.getwidth()[0] > 0)


@pytest.mark.parametrize("kind", [pattern.kind for pattern in redaction._patterns()])
def test_an_attempt_that_fails_looks_at_few_characters(kind: str) -> None:
    """Steps are then linear in the length of the text, whatever the text is."""
    (form,) = [pattern.form for pattern in redaction._patterns() if pattern.kind == kind]
    if kind == "jwt":  # its runs end at a point, and a lookbehind lets a run be tried only once
        assert form.pattern.startswith(redaction._START)
        form = re.compile(form.pattern.replace(",}", ",64}"))
    assert most_looked_at(parsed(form)) < 6000


def test_the_bound_finds_patterns_that_have_none() -> None:
    for hostile in ("a+b", "(a+)+b", "(?:a|b+c)d", "x(?=a+$)", "a*?b"):
        assert most_looked_at(parsed(re.compile(hostile))) == float("inf"), hostile
    assert most_looked_at(parsed(re.compile("ab{3,}c?"))) == 4 + 1


@pytest.mark.parametrize("word", HOSTILE, ids=repr)
def test_a_hostile_megabyte(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matches do not overlap: each pattern consumes the text at most once."""
    assert BUILT_IN is not None
    consumed: list[int] = []
    original = redaction._fresh

    def counted(match: Any, *more: str) -> Any:
        consumed.append(match.end() - match.start())
        return original(match, *more)

    monkeypatch.setattr(redaction, "_fresh", counted)
    text = word * (1_000_000 // len(word))
    BUILT_IN.text(text)
    assert sum(consumed) <= len(redaction._patterns()) * len(text)


NAMES = [
    f"{start}{between}{end}"
    for end, starts in redaction._NAME_ENDS
    for start in starts
    for between in ("", "_", "-")
]
FRAGMENTS = [
    *NAMES,
    "secret_access_key",
    "APIKEY",
    "Client-Secret",
    "key",
    "token",
    "\u017fecret_key",
    "\u0130",
]
FRAGMENTS += [
    "=",
    " := ",
    "=>",
    '": "',
    '\\": \\"',
    "==",
    ":",
    " ",
    "\n",
    "hunter2x",
    "a1",
    "aaaaaaaa1",
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join))
def test_the_faster_test_of_assignments_misses_none(text: str) -> None:
    (pattern,) = [one for one in redaction._patterns() if one.kind == "assignment"]
    if pattern.form.search(text):
        assert any(hint in text.casefold() for hint in pattern.hints)
        assert pattern.is_possible(text.casefold())


def test_most_names_are_no_assignments() -> None:
    for text in ("key=lambda item: item", "tokens: list[str]", "the password is not", "secret = 1"):
        assert not redaction._may_assign(text)
    assert all(redaction._may_assign(f"{name} = x") for name in NAMES)
