"""From an event of a coding agent to a checkpoint: client, daemon, saver."""
