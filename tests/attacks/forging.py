"""What an attacker can do who may write to a store, but has not the user's secret."""

import base64
import os
import pickle
from pathlib import Path
from typing import Any

from agent_checkpoint.store.checkpoint_entries import seal_entry


class Poison:
    """A pickle that makes a directory when it is loaded: the mark that code has run."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __deepcopy__(self, memo: Any) -> Any:
        return self  # capturing it does no harm

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def poisoned(marker: Path) -> bytes:
    """Return the bytes of a pickle that leaves the marker."""
    return pickle.dumps(Poison(marker))


def pickle_tag(data: bytes, **seal: Any) -> "dict[str, Any]":
    """Return the tag of a pickle, with the seal that is given or with none."""
    return {"$pickle": {"data": base64.b64encode(data).decode(), **seal}}


def forge(store: Path, key: str, state: Any) -> None:
    """Add a checkpoint with any tree as its state to a file store, its hash recomputed."""
    folder = store / key
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "key": key,
        "ts_ns": 1_700_000_000_000_000_000,
        "kind": "save",
        "label": None,
        "tags": [],
        "metrics": {},
        "parents": [],
        "parts": {"agent": state},
    }
    (folder / f"{next_number(folder)}.json").write_bytes(seal_entry(record, indent=True))


def next_number(folder: Path) -> int:
    """Return the number that the next entry of a stream's folder gets."""
    return max((int(path.stem) for path in folder.glob("*.json")), default=0) + 1
