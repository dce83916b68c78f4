"""`python -m agent_checkpoint`: the command, where its script is not on the path."""

import sys

from agent_checkpoint.cli.main import main

sys.exit(main())
