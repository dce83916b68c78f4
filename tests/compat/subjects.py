"""What is in the golden stores: classes, values of every type, and what was done to each store.

A golden store of a released format is never made again, so nothing here may change after a release;
what is new goes into a new function and a new directory.
"""

from __future__ import annotations

import random
import time as clock
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Optional
from zoneinfo import ZoneInfo

import numpy

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    KeepLatest,
    Log,
    Workspace,
    register_type,
)
from agent_checkpoint.records import Draft
from agent_checkpoint.store.checkpoint_entries import seal_entry
from agent_checkpoint.store.import_journal import IMPORT_STREAM
from tests.compat import directories

SECRET_OF_PICKLES = "golden"
LEAKED = "sk-golden-0123456789"
TOKEN_OF_THE_KILLED = "0123456789abcdef" * 2
LOOSE_BYTES = 8_000
"""From this size on objects are loose files here: that keeps the golden stores small."""


@register_type(name="golden.Point")
@dataclass
class GoldenPoint:
    x: int
    y: float = 0.5


@register_type(name="golden.Mood")
class GoldenMood(Enum):
    CALM = 1
    BUSY = 2


@dataclass
class GoldenHinted:
    """Not registered: the hints of GoldenAgent vouch for it."""

    word: str


class GoldenTool(Checkpointable):
    def __init__(self, name: str = "", uses: int = 0) -> None:
        self.name = name
        self.uses = uses


class GoldenAgent(Checkpointable):
    last: Optional[GoldenHinted] = None

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.memory: list[Any] = []
        self.favourite = GoldenTool("search")
        self.tools = [GoldenTool("read"), GoldenTool("write", 2)]
        self.last = None
        self._client = object()

    def _checkpoint_version(self) -> str:
        return "1.2"


class GoldenChat(Checkpointable):
    """The same conversation twice: the two are stored in the same way."""

    def __init__(self) -> None:
        self.log: Log[Any] = Log()
        self.list: list[Any] = []
        self.turn = 0


def message(number: int) -> dict[str, Any]:
    words = "word " * (1 + number * 7 % 9)
    return {"role": ("user", "assistant", "tool")[number % 3], "content": f"{number}: {words}"}


def every_type() -> dict[str, Any]:
    """Return a value for every tag of the codec but $zoneinfo, which needs a time zone database."""
    return {
        "plain": [None, True, -(2**63), 0.1, -0.0, 1e-7, 1e22, "é🎉\x7f\x00\n", {"": []}],
        "tuple": ((), (1, ("nested",))),
        "set": {3, 1, "two", 10},
        "frozenset": frozenset({(1, 2), "x"}),
        "deque": [deque([1, 2], maxlen=3), deque()],
        "dict": {1: "one", (2, 3): "pair", None: {"in": True}},
        "ordereddict": OrderedDict([("b", 1), ("a", 2)]),
        "counter": Counter({"x": 3, 4: -1}),
        "defaultdict": [defaultdict(list, {"k": [1]}), defaultdict(None, {1: 2})],
        "int": [2**63, -(2**200)],
        "float": [float("nan"), float("inf"), float("-inf")],
        "str": ["lone \ud800 surrogate", {"\udfff": 1}],
        "bytes": [b"", bytes(range(256))],
        "bytearray": bytearray(b"abc"),
        "datetime": [
            datetime(2024, 2, 29, 12, 30, 15, 7),
            datetime(2024, 2, 29, tzinfo=timezone.utc),
            datetime(2024, 10, 27, 2, 30, fold=1),
            datetime(1999, 12, 31, tzinfo=timezone(timedelta(hours=-3, seconds=5), "here")),
        ],
        "date": date(1, 1, 1),
        "time": [time(23, 59, 59, 999999), time(1, tzinfo=timezone.utc)],
        "timedelta": timedelta(days=-1, seconds=5, microseconds=3),
        "timezone": [timezone.utc, timezone(timedelta(hours=5, minutes=45))],
        "decimal": [Decimal("1.00"), Decimal("-NaN12"), Decimal("1E+99")],
        "fraction": [Fraction(1, 3), Fraction(-(2**70), 7)],
        "complex": complex(float("-inf"), -0.0),
        "uuid": uuid.UUID(int=2**127 + 5),
        "path": Path("a/b c"),
        "posixpath": PurePosixPath("/etc/é"),
        "windowspath": PureWindowsPath("c:\\x"),
        "ndarray": [
            numpy.arange(6, dtype="<i4").reshape(2, 3),
            numpy.asfortranarray(numpy.arange(6, dtype="<f8").reshape(2, 3)),
            numpy.float32(1.5),
            numpy.array([(1, b"ab")], dtype=[("n", "<i2"), ("s", "S3", (1,))]),
        ],
        "type": [GoldenPoint(1), GoldenMood.BUSY],
        "log": Log([{"role": "user"}, ("tuple",)]),
        "pickle": range(3),
    }


def dollars() -> dict[str, Any]:
    """Return what a user may well have: data that looks like our tags."""
    name = "0" * 64
    return {
        "alone": [{"$ref": name}, {"$list": name}, {"$map": name}, {"$text": [name]}],
        "in one": {"$blob": [name], "$state": {}, "$$": 1, "$": 2, "$tuple": [1, 2]},
        "long": {"$text": "$" * 3000},
        "many": {"$map": {f"${place}": {"$ref": place} for place in range(1000)}},
        "__class__": "data",
    }


def fill(manager: CheckpointManager, *, messages: int, saves: int, big: bool) -> None:
    """Do to a store what a golden store is to have in it; `big` needs a store that packs."""
    plain(manager)
    agents(manager)
    conversation(manager, messages, saves)
    values(manager, 500 if big else 10)
    if big:
        large(manager)
    upkeep(manager)
    imports(manager)


def plain(manager: CheckpointManager) -> None:
    state: dict[str, Any] = {"step": 1, "text": "first"}
    manager.save("plain", state, label="ein Anfang: é", tags=["good", "old"], metrics={"score": 1})
    state["step"] = 2
    manager.save("plain", state, metrics={"score": 0.25, "loss": -1e-9})
    try:
        with manager.rollback_context("plain", state, label="before"):
            state["step"] = 99
            manager.save("plain", state)
            raise TimeoutError
    except TimeoutError:
        pass
    manager.save("Capitals/and slashes", {"key": "needs escaping"})
    manager.save("empty", {})


def agents(manager: CheckpointManager) -> None:
    agent = GoldenAgent("echo")
    manager.save("agent", agent)
    agent.memory.append(("user", "hi"))
    agent.favourite.uses = 3
    agent.tools.append(GoldenTool("x" * 2000))
    agent.last = GoldenHinted("hinted")
    manager.save("agent", agent, label="second")
    manager.save("parts", {"planner": GoldenTool("plan"), "coder": agent, "log": Log([1, 2])})


def conversation(manager: CheckpointManager, messages: int, saves: int) -> None:
    chat = GoldenChat()
    number = 0
    for turn in range(1, saves + 1):
        for _ in range(messages // saves):
            number += 1
            chat.log.append(message(number))
            chat.list.append(message(number))
        if turn == saves // 2:  # as a streaming answer, and as one that was taken back
            chat.log[-1] = {"role": "assistant", "content": "replaced"}
            chat.log.truncate(len(chat.log) - 2)
            del chat.list[-2:]
        if turn == saves:
            del chat.list[:3]
            chat.list[5]["role"] = "system"
        chat.turn = turn
        manager.save("chat", chat, metrics={"turn": turn})
    manager.fork("chat", "fork of chat", checkpoint_id=f"chat@{saves // 2}")
    chat.log.append("only here")
    manager.save("fork of chat", chat)


def values(manager: CheckpointManager, many: int) -> None:
    manager.save("types", every_type())
    manager.save("zones", {"zone": ZoneInfo("Europe/Vienna")})
    manager.save("dollars", dollars() if many > 100 else {"$ref": {"$$": 1}, "$": None})
    members = {f"member {place}": {"n": place, "words": ["x"] * 5} for place in range(many)}
    manager.save("members", {"small": 1, "many": members})
    members["member 7"]["n"] = -7
    manager.save("members", {"small": 1, "many": members})
    pickling = CheckpointManager(manager.store.backend, fmt="pickle")
    pickling.save("pickled", {"range": range(5), "words": ["a", "b"]})


def large(manager: CheckpointManager) -> None:
    """Save what is stored in pieces, packed small, and what does not pack: a loose object."""
    manager.save(
        "large",
        {
            "text": "é123456789🎉abcde" * 70_000,
            "bytes": b"\0\1" * 600_000,
            "array": numpy.zeros((300, 400), dtype="<f8"),
            "pages": [f"page {place} " + "x" * 2000 for place in range(500)],
            "items": ["short", "x" * 5000, ["y" * 3000, "z" * 3000], {"deep": {"w": "w" * 5000}}],
        },
    )
    manager.save("loose", {"noise": random.Random(1).randbytes(LOOSE_BYTES)})


def upkeep(manager: CheckpointManager) -> None:
    for step in range(1, 7):
        manager.save("pruned", {"step": step, "text": f"{step}" * 1500})
    manager.prune("pruned", KeepLatest(2))
    manager.delete("plain", checkpoint_id="plain@2")
    manager.save("gone", {"step": 1})
    manager.delete("gone")
    manager.save("leaky", {"step": 1, "token": LEAKED})
    manager.save("leaky", {"step": 2, "mail": f"the token is {LEAKED}"}, label="leak")
    manager.purge(LEAKED)


def imports(manager: CheckpointManager) -> None:
    """Leave what an import leaves that was killed."""
    record: Any = {
        "key": "half",
        "token": TOKEN_OF_THE_KILLED,
        "ts_ns": clock.time_ns(),
        "process": "elsewhere/1/1",
    }
    manager.store.backend.append(IMPORT_STREAM, seal_entry(record))
    draft = Draft("half", {"agent": {"step": 1}}, token=TOKEN_OF_THE_KILLED)
    manager.store.write(draft, parents=(), after=0)


def workspaces(manager: CheckpointManager, place: Path) -> None:
    """Save a directory as a part of checkpoints, deep in a state, and restore it."""
    directories.make(place / "first", directories.FIRST)
    directories.make(place / "second", directories.SECOND)
    first = Workspace(place / "first", manager.store, ignore=directories.IGNORE)
    second = Workspace(place / "second", manager.store, ignore=directories.IGNORE)
    agent = GoldenTool("edit")
    manager.save("workspace", {"agent": agent, "workspace": first})
    agent.uses = 1
    manager.save("workspace", {"agent": agent, "workspace": second}, label="a few steps later")
    manager.save("within", {"tools": {"workspace": first, "a": "a" * 900, "b": "b" * 900}})
    second.snapshot(label="by itself")
    second.restore(first.state_dict())
    assert directories.on_disk(place / "second") == directories.FIRST


def elsewhere(manager: CheckpointManager) -> None:
    """Save the key that is then imported into the golden stores."""
    manager.save("imported", {"step": 1, "text": "from elsewhere " * 200})
    manager.save("imported", {"step": 2, "text": "from elsewhere " * 200})
