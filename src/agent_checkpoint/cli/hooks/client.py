"""Runs the hook client. Settings installed by version 0.1 contain the path of this file.

It runs at every tool call, so it imports almost nothing.
"""

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CLIENT = os.path.join(_PACKAGE, "agents", "hook", "client.py")

if __name__ == "__main__":
    sys.argv[0] = CLIENT
    with open(CLIENT, encoding="utf-8") as file:
        program = compile(file.read(), CLIENT, "exec")
    exec(program, {"__name__": "__main__", "__file__": CLIENT})  # noqa: S102 - a file of our own
