"""Run the hook client. Settings installed by version 0.1 name this file.

Like the client it imports nothing of the package and almost nothing of the standard library.
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
