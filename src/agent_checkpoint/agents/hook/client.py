"""The program that coding agents run with `python -I -S` at every tool call.

Python compiles a script at each start, so the program itself is in modules with cached bytecode.
"""

import os
import sys

if __name__ == "__main__":
    # Before site-packages, which may have another version of this package.
    sys.path.append(os.path.abspath(f"{__file__}/../../../.."))
    if sys.argv[1:2] in (["--serve"], ["--upkeep"]):
        from agent_checkpoint.agents.hook.protocol import load_site_packages

        load_site_packages()
        if sys.argv[1] == "--serve":
            from agent_checkpoint.agents.hook.daemon import serve

            serve(int(sys.argv[2]))
        else:
            from agent_checkpoint.agents.hook.upkeep_process import main as keep_up

            keep_up(sys.argv[2])
    else:
        from agent_checkpoint.agents.hook.event_sender import main

        main(sys.argv[1:])
    # Skip the shutdown of Python, which takes longer than all of the above.
    os._exit(0)
