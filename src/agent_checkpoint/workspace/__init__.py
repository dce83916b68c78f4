"""A directory in checkpoints. Owns trees of files on disk and in a store; knows no agent state."""
