"""What is sent to the process of a trial: it is found there, wherever that process runs."""

import subprocess
import sys
import threading

import pytest

from agent_checkpoint import InvalidInputError
from agent_checkpoint.session.explore.payload import encode_payloads

UNPACK = """
import sys
from agent_checkpoint.session.explore.payload import decode_payload
print(decode_payload(sys.stdin.buffer.read())["it"]())
"""


def test_a_module_of_the_current_directory_is_found_in_another(tmp_path, monkeypatch):
    (tmp_path / "here_only.py").write_text("def answer():\n    return 42\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as at a prompt
    import here_only

    done = subprocess.run(
        [sys.executable, "-c", UNPACK],
        input=encode_payloads([{"it": here_only.answer}])[0],
        cwd=tmp_path / "elsewhere",
        capture_output=True,
        timeout=60,
    )
    assert done.stdout == b"42\n", done.stderr.decode()
    del sys.modules["here_only"]


@pytest.mark.parametrize("name", ["the strategy", "the agent"])
def test_what_cannot_be_sent_is_named(name):
    content = {"the strategy": len, "the agent": None, name: threading.Lock()}
    with pytest.raises(InvalidInputError, match=f"^T{name[1:]} cannot be pickled"):
        encode_payloads([content])
