"""Save events of coding agents as checkpoints: client, daemon, event saver."""
