"""The one text form of a value: the same bytes with and without orjson."""

import json
import math
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from typing import Any

import pytest

from agent_checkpoint import IntegrityError
from agent_checkpoint.store import canonical_json
from agent_checkpoint.store.canonical_json import exact_float, read_json, write_json

FLOATS = [
    *(
        float(f"{digits}e{n}")
        for digits in ("1", "-1.5", "7.999999999999999")
        for n in range(-320, 308)
    ),
    0.0,
    -0.0,
    0.1,
    1 / 3,
    123456789.123,
    5e-324,
    2.2250738585072014e-308,
    sys.float_info.max,
    0.0001,
    0.00009999999999999999,
    9999999999999998.0,
    1e16,
    float(2**53),
    float(2**63),
    math.pi * 1e15,
]

VALUES = [
    [exact_float(value) for value in FLOATS],
    [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)],
    [None, True, False],
    {"": 1, "a": [], "b": {}, "c": [[], {}, [{}]]},
    "".join(map(chr, range(0x80))),
    [
        chr(code)
        for code in [*range(0xA0), 0x2028, 0x2029, 0xD7FF, 0xE000, 0xFEFF, 0xFFFF, 0x10FFFF]
    ],
    {"ключ": "значение", "鍵": "🎉", '"quoted"': "\\back\\slash/"},
    {"b": 1, "a": {"d": [1, {"e": [2.5, None]}], "c": "x"}},
    [],
    {},
    "text",
    5,
    None,
]

IS_INSTALLED = find_spec("orjson") is not None
LIBRARIES = ["with orjson", "without orjson"] if IS_INSTALLED else ["without orjson"]

needs_orjson = pytest.mark.skipif(not IS_INSTALLED, reason="orjson is not installed")


@pytest.fixture(params=LIBRARIES)
def library(request: Any, monkeypatch: Any) -> str:
    """Run a test with both libraries."""
    if request.param == "without orjson":
        monkeypatch.setattr(canonical_json, "orjson", None)
    return str(request.param)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


class TestSameBytes:
    @needs_orjson
    @pytest.mark.parametrize("indent", [False, True])
    @pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
    def test_both_libraries_write_the_same(
        self, value: Any, indent: bool, monkeypatch: Any
    ) -> None:
        fast = write_json(value, indent=indent)
        monkeypatch.setattr(canonical_json, "orjson", None)
        assert write_json(value, indent=indent) == fast

    @needs_orjson
    @pytest.mark.parametrize("indent", [False, True])
    @pytest.mark.parametrize("depth", [250, 260, 400])  # orjson itself stops at 254
    def test_deep_values_are_written_the_same(
        self, depth: int, indent: bool, monkeypatch: Any
    ) -> None:
        value = {"a": nested(depth), "b": exact_float(1e-7)}
        fast = write_json(value, indent=indent)
        monkeypatch.setattr(canonical_json, "orjson", None)
        assert write_json(value, indent=indent) == fast

    @pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
    def test_what_is_written_is_read_back(self, value: Any, library: str) -> None:
        for indent in (False, True):
            assert read_json(write_json(value, indent=indent)) == value

    def test_floats_come_back_to_the_last_bit(self, library: str) -> None:
        for value in FLOATS:
            assert repr(read_json(write_json(exact_float(value)))) == repr(float(value))


class TestForm:
    def test_the_text_is_compact(self, library: str) -> None:
        assert write_json({"a": [1, 2.5, "é"], "b": None}) == '{"a":[1,2.5,"é"],"b":null}'.encode()

    def test_the_order_of_members_is_kept(self, library: str) -> None:
        assert write_json({"b": 1, "a": 2}) == b'{"b":1,"a":2}'

    def test_an_indented_text_is_for_people(self, library: str) -> None:
        text = write_json({"a": [1, {}], "b": []}, indent=True)
        assert text == b'{\n  "a": [\n    1,\n    {}\n  ],\n  "b": []\n}'

    def test_floats_are_written_as_python_does(self, library: str) -> None:
        values = [1e-7, 1e16, 1.5e300, 0.0001, 1e15, -0.0]
        text = write_json([exact_float(value) for value in values])
        assert text == b"[1e-07,1e+16,1.5e+300,0.0001,1000000000000000.0,-0.0]"

    def test_the_text_is_plain_json(self, library: str) -> None:
        for value in VALUES:
            assert json.loads(write_json(value)) == value


class TestReading:
    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b" ",
            b"nonsense",
            b"{",
            b"[1,]",
            b"{'a': 1}",
            b'{"a" 1}',
            b"[1] 2",
            b"NaN",
            b"[Infinity]",
            b"-Infinity",
            b'"\xff"',
            b'"\n"',
            b"01",
            b"+1",
            b"\x00",
            rb'"\ud800"',
            rb'["\\\uDFFFx"]',
            rb'{"a":"\ud83d\ud83d\ude00"}',
        ],
    )
    def test_what_is_no_json_is_refused(self, text: bytes, library: str) -> None:
        with pytest.raises(IntegrityError, match="Invalid JSON"):
            read_json(text)

    def test_escaped_characters_are_read(self, library: str) -> None:
        assert read_json(rb'["\ud83d\ude00","\uD83D\uDE00","\\ud800","\u00e9"]') == [
            "\U0001f600",
            "\U0001f600",
            "\\ud800",
            "é",
        ]

    def test_what_is_nested_too_deeply_is_refused(self, library: str) -> None:
        for text in (b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000):
            with pytest.raises(IntegrityError):
                read_json(text)

    def test_the_message_quotes_no_content(self, library: str) -> None:
        with pytest.raises(IntegrityError) as caught:
            read_json(b'{"password": "hunter2", broken')
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux only")
def test_many_short_texts_take_little_memory() -> None:
    code = """
        import resource
        from agent_checkpoint.store.canonical_json import write_all_json, write_json

        def most():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

        numbers = list(range(100_000))
        before = most()
        texts = write_all_json(numbers), [write_json(number) for number in numbers]
        print(most() - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60  # megabytes
