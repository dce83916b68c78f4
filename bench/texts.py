"""What the conversations say: messages of about 1.09 kB as JSON, the same in every run.

Two kinds. `varied` reads like an agent at work: common words often, rare words seldom, and now and
then a path, a number or an id that is new. One alone shrinks 1.8 times with zlib, where as much of
Python's own documentation shrinks 2.2 times: the figures are not flattered by it. `noise` is base64
of random bytes, of which no compression gets more than the quarter that base64 adds.
"""

from __future__ import annotations

import base64
import json
import random
from itertools import accumulate
from pathlib import Path
from typing import Any

Message = dict[str, Any]

KINDS = ("varied", "noise")
CONTENT_CHARACTERS = 1060
ROLES = ("user", "assistant", "tool")

_COMMON, _SELDOM = (
    paragraph.split()
    for paragraph in Path(__file__).with_name("words.txt").read_text().split("\n\n")
)
_WORDS = [*_COMMON, *_SELDOM]
# Zipf's law: the word of rank n is used about 1/n as often as the first.
_WEIGHTS = list(accumulate(1 / (rank + 3) for rank in range(len(_WORDS))))


def conversation(kind: str, steps: int) -> list[Message]:
    """The messages of one conversation; equal for equal arguments."""
    rng = random.Random(f"{kind} conversation")
    content = {"varied": _varied, "noise": _noise}[kind]
    return [{"role": ROLES[step % 3], "content": content(rng)} for step in range(steps)]


def raw_bytes(messages: list[Message]) -> int:
    """How many bytes the messages are as plain JSON: what every ratio of sizes is taken of."""
    return sum(
        len(json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode())
        for message in messages
    )


def _noise(rng: random.Random) -> str:
    return base64.b64encode(rng.randbytes(CONTENT_CHARACTERS)).decode()[:CONTENT_CHARACTERS]


def _varied(rng: random.Random) -> str:
    words: list[str] = []
    length = 0
    while length < CONTENT_CHARACTERS:
        word = rng.choices(_WORDS, cum_weights=_WEIGHTS)[0]
        chance = rng.random()
        if chance < 0.02:
            word = f"src/{word}/{rng.choice(_SELDOM)}_{rng.choice(_SELDOM)}.py:{rng.randrange(900)}"
        elif chance < 0.04:
            word = f"{rng.randrange(1 << 32):08x}"
        elif chance < 0.06:
            word = f"{rng.uniform(0, 1000):.2f}"
        elif chance < 0.13:
            word += rng.choice((".", ",", ",", ":", "\n"))
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:CONTENT_CHARACTERS]
