"""Archives made up at random, by somebody who knows the names of this user's things.

Whatever is imported, and whatever the user types next, no file of theirs gets into a directory of
the user that is not named by `--into`; each command ends with an answer or one of our errors.
"""

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_checkpoint import CheckpointError, CheckpointManager, Session, Workspace
from agent_checkpoint.records import Claim, Draft
from agent_checkpoint.store.objects.references import ReusedPart
from agent_checkpoint.workspace.directory_key import key_of
from tests.attacks.test_imported_lines import plant
from tests.cli.world import opened, run

_SAMPLE, _FULL = 16, 300
_KINDS = ("save", "open", "close", "fork", "rollback", "restore", "safety", "adopt", "drift")


class Forger:
    """One archive, by its seed."""

    def __init__(self, seed: int, mine: Path, theirs: Path, known: "list[dict[str, Any]]") -> None:
        self.random = random.Random(seed)
        self.mine, self.theirs = mine, theirs
        self.known = known
        """Checkpoints of the user that the forger has seen, as parts, claims and ids."""

    def key(self) -> str:
        own = key_of(self.mine)
        made = ("nightly", "claude-code/abc", "codex/abc", own, f"{own}//2", f"{own}@1", "job@1")
        return self.random.choice([*made, f"{own}~0", "job~0", self.known[0]["id"], "fork-of-job"])

    def meta(self, key: str) -> "dict[str, Any]":
        choose = self.random.choice
        said = dict(choose([one["meta"] for one in self.known if one["meta"]]))
        changes = {
            "key": [key, "job", "other"],
            "family": ["job.000000000000", "evil.1", said["family"]],
            "workspace": [str(self.mine), str(self.mine / ".git"), "/", None],
            "seal": [said.get("seal"), "0" * 64, None],
            "lineage": [[["job", 10**9]], [], [[key, 1]]],
            "point": [self.known[0]["id"], "job_1-1"],
            "ledger": [0, 10**9],
            "standing": [["x"], []],
            "irreversible": [True, False],
        }
        for name in self.random.sample(sorted(changes), self.random.randrange(len(changes))):
            said[name] = choose(changes[name])
        return {name: value for name, value in said.items() if value is not None}

    def note(self, key: str) -> "dict[str, Any]":
        choose, mine = self.random.choice, str(self.mine)
        session = key.rpartition("/")[2] or key
        words = {"lines": 1, "bytes": 5, "ended": True, "digest": "0" * 64}
        back = {"files": True, "conversation": True, "exclude": []}
        said = {
            "agent": choose(["claude-code", "codex", "gemini", "fork"]),
            "session": choose([session, key, "abc"]),
            "root": choose([mine, "/", str(self.mine.parent)]),
            "cwd": mine,
            "event": choose(["PostToolUse", "rewind", "Stop"]),
            "calls": [],
            "seal": choose(["0" * 64, None]),
            "transcript": choose([None, {**words, "path": f"{mine}/app.py"}, {"path": 1}]),
            "rewind": choose([None, {**back, "target": f"{key}@1"}, {"target": "job@1"}]),
        }
        return {name: value for name, value in said.items() if value is not None}

    def write(self, path: Path) -> str:
        key, choose = self.key(), self.random.choice
        with CheckpointManager() as theirs:
            workspace = Workspace(self.theirs, theirs.store, watch=False)
            workspace.snapshot()
            tree = theirs.store.head(workspace.key)
            assert tree is not None
            ids = [one["id"] for one in self.known]
            for _ in range(self.random.randint(1, 4)):
                parts: dict[str, Any] = {"workspace": ReusedPart(tree.parts["workspace"])}
                if self.random.random() < 0.6:
                    parts["session"] = self.meta(key)
                if self.random.random() < 0.4:
                    parts["hook"] = self.note(key)
                claim = choose([None, *(one["claim"] for one in self.known)])
                if claim is not None and self.random.random() < 0.5:
                    claim = Claim(str(self.mine), "", claim.seal)
                token = choose([None, "0" * 32])
                parents = self.random.sample(ids, self.random.randrange(2))
                draft = Draft(key, parts, choose(_KINDS), token=token, claim=claim)
                ids.append(theirs.store.write(draft, parents=tuple(parents)).id)
            theirs.export_archive(path, key)
        return key


def seen_of_user(mine: Path) -> "list[dict[str, Any]]":
    """Save as the user does, and return what an archive would tell of that."""
    (mine / "app.py").write_text("mine\n")
    run("save", at=mine)
    with opened() as manager:
        Session("job", workspace=mine, store=manager).close()
        found = []
        for key in manager.list_keys():
            for item in manager.store.newest_first(key):
                meta = manager.state_dict(key, item.id) if "session" in item.parts else {}
                known = {"id": item.id, "claim": item.claim, "meta": meta.get("session")}
                found.append(known)
        return found


def present(place: Path) -> "dict[str, bytes]":
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }


def use_all(key: str, mine: Path) -> None:
    """Type what a user may type next, all of it with --yes."""
    for typed in (
        ("keys",),
        ("log",),
        ("log", key),
        ("show", key),
        ("diff",),
        ("diff", key),
        ("tasks", "--all"),
        ("effects", key),
        ("approvals", "list"),
        ("restore", "@1", "--yes"),
        ("restore", key, "--yes"),
        ("restore", f"{key}@1", "--yes"),
        ("restore", "app.py", "--yes"),
        ("rewind",),
        ("rewind", "@1", "--yes"),
        ("rewind", "--session", key, "@1", "--yes"),
        ("rollback", "--yes"),
        ("rollback", key, "--yes"),
        ("rollback", key, "--to", f"{key}@1", "--yes"),
        ("fork", key, "aside"),
        ("restore", "aside", "--yes"),
        ("rollback", "aside", "--yes"),
        ("verify",),
    ):
        done = run(*typed, at=mine)
        assert done.status in (0, 1, 2, 3, 4, 5), (typed, done)
        assert "Traceback" not in done.err, (typed, done)
    with opened() as manager:
        for name in (key, "aside", "nightly"):
            for options in ({}, {"workspace": mine}, {"workspace": mine, "on_drift": "restore"}):
                if name in manager.list_keys():
                    with suppress(CheckpointError):
                        Session(name, store=manager, **options).close()
        Workspace(mine, manager.store, watch=False).snapshot()


def test_no_archive_gets_a_file_into_a_directory_of_the_user(
    tmp_path: Path, full_faults: bool, tried: Any
) -> None:
    count = _FULL if full_faults else _SAMPLE
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.mkdir()
    theirs.mkdir()
    plant(theirs)
    known = seen_of_user(mine)
    imported = 0
    for seed in range(count):
        key = Forger(seed, mine, theirs, known).write(tmp_path / "evil.ckpt")
        before = present(mine)
        if run("import", tmp_path / "evil.ckpt", at=mine).status == 0:
            imported += 1
            use_all(key, mine)
            assert present(mine) == before, (seed, key)
            with opened() as manager:
                for name in ("aside", key):
                    with suppress(CheckpointError):
                        manager.delete(name)
    assert imported > count / 2
    tried("archive made up at random", imported)
    assert json.loads(run("verify", "--json", at=mine).out)["ok"]
