"""Workspaces: directories whose files are saved in checkpoints. Does not depend on agent state."""
