"""The steps of a trajectory: what happened between two checkpoints of a line."""
