"""`python -m agent_checkpoint.demo`: the entry point of `make demo` and `agent-checkpoint demo`."""

import sys

from agent_checkpoint import InvalidInputError
from agent_checkpoint.demo.story import main

if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except InvalidInputError as error:
        sys.exit(f"agent-checkpoint demo: {error}")
