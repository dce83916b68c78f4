"""`python -m agent_checkpoint`: the command, for when its script is not on PATH."""

import sys

from agent_checkpoint.cli.main import main

sys.exit(main())
