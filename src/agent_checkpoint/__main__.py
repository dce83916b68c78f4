"""Runs the CLI as `python -m agent_checkpoint`, without the installed script."""

import sys

from agent_checkpoint.cli.main import main

sys.exit(main())
