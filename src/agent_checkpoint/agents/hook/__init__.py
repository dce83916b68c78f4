"""Saves checkpoints at events of coding agents: client, daemon, event saver."""
