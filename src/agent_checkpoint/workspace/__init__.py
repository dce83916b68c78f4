"""Workspaces: directories as a part of checkpoints. Knows nothing of agent state."""
