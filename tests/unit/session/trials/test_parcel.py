"""What is sent to the process of a trial: it is found there, wherever that process runs."""

import subprocess
import sys

from agent_checkpoint.session.trials.parcel import pack

UNPACK = """
import sys
from agent_checkpoint.session.trials.parcel import unpack
print(unpack(sys.stdin.buffer.read())())
"""


def test_a_module_of_the_current_directory_is_found_in_another(tmp_path, monkeypatch):
    (tmp_path / "here_only.py").write_text("def answer():\n    return 42\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as at a prompt
    import here_only

    done = subprocess.run(
        [sys.executable, "-c", UNPACK],
        input=pack(here_only.answer),
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        timeout=60,
    )
    assert done.stdout == b"42\n", done.stderr.decode()
    del sys.modules["here_only"]
