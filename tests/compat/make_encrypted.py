"""Make the golden encrypted stores, with what they must read back as.

    .venv/bin/python -m tests.compat.make_encrypted

wrote tests/compat/v1-encrypted, whose files stay as they are for ever. The data keys in them are
random, so a second run would make other bytes.
"""

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agent_checkpoint import CheckpointManager
from tests.compat import session_subject, subjects
from tests.compat.make_golden import fixed, recorded, rows, tidy

HERE = Path(__file__).resolve().parent / "v1-encrypted"
FIRST_KEY = bytes(range(100, 132))
KEYS: "dict[str, Any]" = {
    "sqlite": bytes(range(200, 232)),  # the store was made with FIRST_KEY, then it was rotated
    "file": "correct horse battery staple",
}


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    os.environ["AGENT_CHECKPOINT_SECRET"] = subjects.SECRET_OF_PICKLES
    expected: dict[str, Any] = {}
    with TemporaryDirectory() as place, fixed(), recorded() as parts:
        os.environ["AGENT_CHECKPOINT_HOME"] = f"{place}/home"
        for backend, key in KEYS.items():
            first = FIRST_KEY if backend == "sqlite" else key
            path = HERE / backend
            with CheckpointManager(backend=backend, path=path, encryption_key=first) as manager:
                subjects.plain(manager)
                subjects.agents(manager)
                if backend == "sqlite":
                    manager.rotate_key(key)
                    subjects.conversation(manager, 40, 4)
                    subjects.upkeep(manager)
                manager.gc(ignore_clock=True)  # files have the time of today
                assert manager.verify().ok
                expected[backend] = rows(manager, parts)
                if backend == "sqlite":
                    session_subject.fill(manager)
    for backend in KEYS:
        tidy(HERE / backend)
    text = json.dumps(expected, ensure_ascii=False, indent=1)
    (HERE / "expected.json").write_text(text + "\n", encoding="utf-8")
    size = sum(file.stat().st_size for file in HERE.rglob("*") if file.is_file())
    print(f"{size} bytes in {HERE}")


if __name__ == "__main__":
    main()
